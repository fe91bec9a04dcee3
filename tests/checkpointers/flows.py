"""Workflows that the tests of this directory run, and what their bodies did."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.support.engines import Gate

from perdure import interrupt, step, workflow
from perdure.core.resume import Resume

YES, NO = Resume(approved=True), Resume(approved=False)

did: list[Any] = []
"""What bodies did, in order; emptied before each test."""
gates: list[Gate] = []
"""Where `hold` stands; fresh in each test."""


@step(name="foreign.note")
async def note(value: Any) -> Any:
    did.append(value)
    return value


@step(name="foreign.ask")
async def ask(name: str) -> bool:
    return interrupt("may I?", {"name": name}).approved


@step(name="foreign.hold")
async def hold(name: str) -> str:
    await gates[-1].stand()
    did.append(name)
    return name


@step(name="foreign.fail")
async def fail() -> None:
    did.append("failed")
    raise ValueError("no luck")


@workflow(name="foreign.steps")
async def steps(n: int) -> list[Any]:
    return [await note(each) for each in range(n)]


@workflow(name="foreign.asking")
async def asking(n: int) -> list[Any]:
    return [await note(n), interrupt("go on?", {"n": n}).approved, await note(-n)]


@workflow(name="foreign.asking_all")
async def asking_all() -> list[bool]:
    return list(await asyncio.gather(*(ask(name) for name in "abc")))


@workflow(name="foreign.asking_oddly")
async def asking_oddly() -> bool:
    return interrupt("go \0 on \ud800", {"what": "\0"}).approved


@workflow(name="foreign.holding")
async def holding() -> list[Any]:
    return [await note("before"), await hold("held"), await note("after")]


@workflow(name="foreign.failing")
async def failing() -> None:
    await note(1)
    await fail()


@workflow(name="foreign.echo")
async def echo(value: Any) -> Any:
    return await note(value)
