"""DESIGN "Quiet": when a run leaves memory, what brings it back, and what callers see meanwhile."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from tests.support.engines import FAST, Gate, opened, operation_of, record_that, row_of, status_that

from perdure import Resume, interrupt, sleep, step, workflow
from perdure.engine.engine import Engine

LEAVES = replace(FAST, stay_s=0.0)
"""A worker that keeps no quiet run in memory, however soon it is due."""
YES = Resume(approved=True)
ran: list[Any] = []
gate = Gate()


@pytest.fixture(autouse=True)
def fresh() -> None:
    global gate
    gate = Gate()
    ran.clear()


@step(name="quiet.note")
async def note(n: int) -> int:
    ran.append(n)
    return n


@step(name="quiet.hold")
async def hold() -> str:
    await gate.stand()
    return "held"


@workflow(name="quiet.napping")
async def napping(seconds: float) -> list[int]:
    first = await note(1)
    await sleep(seconds)
    return [first, await note(2)]


async def test_rule_a_run_that_only_sleeps_long_leaves_memory_and_is_waiting(engine: Engine):
    run_id = await engine.start(napping, 3600.0)
    row = await status_that(engine, run_id, "waiting")
    assert engine.host.drives == {}
    assert row.worker_id is None
    assert row.due_in_s is not None
    assert 3500 < row.due_in_s <= 3600


async def test_rule_a_run_due_soon_stays_in_memory(engine: Engine):
    run_id = await engine.start(napping, 0.05)
    statuses = {e.data["status"] async for e in engine.stream(run_id) if "status" in e.data}
    assert (await engine.run(napping, 0.05, execution_id=run_id)).output == [1, 2]
    assert "waiting" not in statuses


async def test_rule_a_waiting_run_is_continued_by_a_worker_when_it_is_due(store_url: str):
    async with opened(store_url, LEAVES) as first:
        run_id = await first.start(napping, 0.3)
        await status_that(first, run_id, "waiting")
    async with opened(store_url) as worker:
        await worker.recover([napping])
        assert (await row_of(worker, run_id)).status == "completed"
    assert ran == [1, 2]


async def test_rule_arun_keeps_waiting_for_timers(store_url: str):
    async with opened(store_url, LEAVES) as engine:
        assert (await engine.run(napping, 0.3)).output == [1, 2]


async def test_rule_arun_returns_paused_when_quiet_with_a_question_open(engine: Engine):
    """Although a timer is due later: a person may answer before."""

    @workflow
    async def flow() -> list[Any]:
        async def asking() -> bool:
            return interrupt("go on?").approved

        return list(await asyncio.gather(asking(), sleep(3600)))

    paused = await engine.run(flow)
    assert paused.status == "paused"
    row = await status_that(engine, paused.execution_id, "waiting")
    assert row.due_in_s is not None


async def test_rule_arun_is_not_paused_while_a_sibling_is_at_work(engine: Engine):
    @workflow
    async def flow() -> list[Any]:
        async def asking() -> bool:
            return interrupt("go on?").approved

        return list(await asyncio.gather(asking(), hold()))

    waiting = asyncio.ensure_future(engine.run(flow, execution_id="r1"))
    await gate.reached.wait()
    await record_that(engine, "r1", type="suspended")
    assert not waiting.done()
    gate.open()
    assert (await waiting).status == "paused"


async def test_rule_an_answer_that_comes_while_a_run_becomes_quiet_is_not_missed(engine: Engine):
    """Answered the moment the question is committed, again and again: the run is never left waiting with an answer."""

    @workflow
    async def flow() -> int:
        for n in range(10):
            interrupt(f"{n}?")
        return 10

    run_id = await engine.start(flow)
    answered: set[str] = set()
    async for event in engine.stream(run_id):
        if event.type == "suspended":
            [row] = [q for q in await engine.store.interrupt_list(run_id=run_id) if q.interrupt_id not in answered]
            answered.add(row.interrupt_id)
            await engine.answer(run_id, {row.interrupt_id: YES})
            following = asyncio.ensure_future(engine.run(flow, execution_id=run_id))
    assert (await following).output == 10


async def test_rule_the_deadline_of_a_sleep_is_stored_and_counted_from_its_record(engine: Engine, store_url: str):
    async with opened(store_url) as first:
        run_id = await first.start(napping, 1000.0)
        first_due = (await status_that(first, run_id, "waiting")).due_at
    await engine.recover([napping])
    op = await operation_of(engine, run_id, "1")
    second = await row_of(engine, run_id)
    assert (op.kind, op.wait_s) == ("timer", 1000.0)
    assert second.status == "waiting"
    assert second.due_at == first_due


async def test_rule_sleep_takes_seconds_or_a_timedelta_and_nothing_else(engine: Engine):
    @workflow
    async def flow() -> list[str]:
        await sleep(timedelta(milliseconds=1))
        await sleep(0)
        raised = []
        for wrong in (-1, "5", float("nan"), None, True):
            try:
                await sleep(wrong)  # type: ignore[arg-type]
            except Exception as error:
                raised.append(type(error).__name__)
        return raised

    assert (await engine.run(flow)).output[:3] == ["InvalidInputError"] * 3


async def test_rule_recover_returns_when_nothing_moves_and_leaves_paused_runs(engine: Engine):
    @workflow
    async def flow() -> bool:
        return interrupt("go on?").approved

    paused = await engine.run(flow)
    await engine.recover([flow, napping])
    assert (await row_of(engine, paused.execution_id)).status == "waiting"


async def test_rule_a_worker_goes_on_with_what_an_answer_made_runnable(engine: Engine, store_url: str):
    @workflow
    async def flow() -> bool:
        return interrupt("go on?").approved

    paused = await engine.run(flow)
    async with opened(store_url) as worker:
        working = asyncio.ensure_future(worker.work([flow]))
        await engine.answer(paused.execution_id, YES)
        await status_that(engine, paused.execution_id, "completed")
        await worker.close()
        await working


async def test_rule_two_sleeps_at_once_wake_in_the_order_of_their_deadlines(engine: Engine):
    @workflow
    async def flow() -> list[str]:
        order: list[str] = []

        async def nap(name: str, delay_s: float) -> None:
            await sleep(delay_s)
            order.append(name)

        await asyncio.gather(nap("long", 0.03), nap("short", 0.001))
        return order

    first = await engine.run(flow)
    assert first.output == ["short", "long"]
    assert (await engine.fork(flow, first.execution_id)).output == first.output
