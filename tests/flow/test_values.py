"""What is recorded under fixed names, and what replay reads of it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from tests.support.engines import records_of

from perdure import interrupt, now, patched, random, sleep, uuid4, workflow
from perdure.engine.engine import Engine


async def test_rule_names_of_what_the_package_itself_records_are_data(engine: Engine):
    """They are in journals of runs in flight: renaming one would stop those runs."""

    @workflow
    async def flow() -> None:
        now(), random(), uuid4(), patched("p")
        await sleep(0.001)
        interrupt("why?")

    paused = await engine.run(flow)
    named = {
        (r.kind, r.name) for r in await records_of(engine, paused.execution_id) if r.kind not in (None, "workflow")
    }
    assert named == {
        ("value", "now"),
        ("value", "random"),
        ("value", "uuid4"),
        ("patch", "p"),
        ("timer", "timer"),
        ("interrupt", "why?"),
    }


async def test_rule_values_have_their_types_and_are_new_at_each_call(engine: Engine):
    @workflow
    async def flow() -> list[Any]:
        return [now(), now(), random(), random(), uuid4(), uuid4()]

    first = await engine.run(flow)
    times, numbers, ids = first.output[:2], first.output[2:4], first.output[4:]
    assert all(isinstance(t, datetime) and t.tzinfo is UTC for t in times)
    assert all(isinstance(n, float) and 0 <= n < 1 for n in numbers)
    assert all(isinstance(i, UUID) and i.version == 4 for i in ids)
    assert len({*numbers}) == len({*ids}) == 2
    assert (await engine.fork(flow, first.execution_id)).output == first.output


async def test_rule_values_of_parallel_branches_stay_with_their_branch(engine: Engine):
    @workflow
    async def flow() -> list[list[float]]:
        async def branch(delay_s: float) -> list[float]:
            found = [random()]
            await asyncio.sleep(delay_s)
            return [*found, random()]

        return list(await asyncio.gather(branch(0.01), branch(0.001)))

    first = await engine.run(flow)
    assert (await engine.fork(flow, first.execution_id)).output == first.output


async def test_rule_outside_a_run_they_are_simply_fresh():
    assert isinstance(now(), datetime)
    assert random() != random()
    assert uuid4() != uuid4()
