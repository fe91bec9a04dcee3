"""What a child process of the explorer does: one job, on its own store, until it has ended or is killed."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from perdure.core.settings import EngineSettings
from perdure.engine.engine import open_engine
from perdure.testing import interpreted, ledger, shapes
from perdure.testing.catalogue import program
from perdure.testing.faults import Faults, Target, open_faulty
from perdure.testing.person import Person
from perdure.testing.programs import Program

_SETTINGS = EngineSettings(poll_s=0.02)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """`person` starts the program or goes on with it; `worker` competes for its runs until it is told to
    stop (SIGTERM).

    `recovers` lets a person first do what a worker does (`engine.recover`); with `is_inline` a person's engine commits
    on its own loop, as the sync `run()` does. The result is a JSON file: `outcome`, `trace`.
    """

    role: str
    program: str
    value: Any
    answers: Mapping[str, bool]
    url: str
    ledger: str
    incarnation: str
    result: str
    shape: Any = None
    recovers: bool = False
    is_inline: bool = False
    point: str | None = None
    ordinal: int | None = None
    note: str | None = None


def perform(job: Job) -> None:
    """Do it. Whatever goes wrong is raised: the process then ends with a status of its own."""
    ledger.use(ledger.Ledger(job.ledger, job.incarnation))
    faults = Faults(Target(point=job.point, ordinal=job.ordinal, note=job.note))
    asyncio.run({"person": _person, "worker": _worker}[job.role](job, _program(job), faults))


def _program(job: Job) -> Program:
    if job.shape is not None:
        known = shapes.program_of(job.shape)
    elif job.program == interpreted.PROGRAM.name:
        known = interpreted.PROGRAM
    else:
        known = program(job.program)
    return replace(known, value=job.value, answers=job.answers)


async def _person(job: Job, program: Program, faults: Faults) -> None:
    store = open_faulty(job.url, faults)
    try:
        async with await open_engine(store, settings=_SETTINGS, is_inline=job.is_inline) as engine:
            if job.recovers:
                await engine.recover([program.runner])
            outcome = await Person(engine=engine, program=program).go()
    finally:
        await store.close()
    result = json.dumps({"outcome": outcome, "trace": faults.trace})
    await asyncio.to_thread(Path(job.result).write_text, result)


async def _worker(job: Job, program: Program, faults: Faults) -> None:
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    # Blocked since before the fork: a stop that came earlier is delivered now.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    store = open_faulty(job.url, faults)
    try:
        async with await open_engine(store, settings=_SETTINGS) as engine:
            work = asyncio.create_task(engine.work([program.runner]))
            stop = asyncio.create_task(stopped.wait())
            await asyncio.wait({work, stop}, return_when=asyncio.FIRST_COMPLETED)
            if not stop.done():
                work.result()
                raise AssertionError("a worker stopped by itself")
            stop.cancel()
        await work
    finally:
        await store.close()
