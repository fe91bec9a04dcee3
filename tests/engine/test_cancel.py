"""Cancelling: only `cancel()` does; losing or cancelling a waiting caller only stops the waiting."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.engines import (
    Gate,
    bare,
    opened,
    questions_of,
    records_of,
    row_of,
    status_that,
)

from perdure import ChainCheckpointError, DurableRunError, interrupt, sleep, step, workflow
from perdure.engine.engine import Engine

gate = Gate()
ran: list[str] = []


@pytest.fixture(autouse=True)
def fresh() -> None:
    global gate
    gate = Gate()
    ran.clear()


@step(name="cancel.hold")
async def hold() -> str:
    ran.append("hold")
    await gate.stand()
    return "held"


@step(name="cancel.after")
async def after() -> str:
    ran.append("after")
    return "after"


@workflow(name="cancel.holding")
async def holding() -> list[str]:
    return [await hold(), await after()]


@workflow(name="cancel.asking")
async def asking() -> bool:
    return interrupt("go on?").approved


async def test_rule_cancelling_arun_only_stops_the_waiting(engine: Engine):
    waiting = asyncio.ensure_future(engine.run(holding, execution_id="r1"))
    await gate.reached.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    gate.open()
    assert (await engine.run(holding, execution_id="r1")).output == ["held", "after"]
    assert ran == ["hold", "after"]


async def test_rule_a_time_out_of_the_caller_only_stops_the_waiting(engine: Engine):
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(engine.run(holding, execution_id="r1"), 0.05)
    gate.open()
    assert (await engine.run(holding, execution_id="r1")).output == ["held", "after"]


async def test_rule_cancel_ends_a_run_that_is_being_run_here(engine: Engine):
    run_id = await engine.start(holding)
    await gate.reached.wait()
    await engine.cancel(run_id)
    await status_that(engine, run_id, "cancelled")
    with pytest.raises(DurableRunError, match="cancelled"):
        await engine.run(holding, execution_id=run_id)
    assert ran == ["hold"]


async def test_rule_cancel_from_another_process_reaches_the_owner(engine: Engine, store_url: str):
    run_id = await engine.start(holding)
    await gate.reached.wait()
    async with opened(store_url) as other:
        await other.cancel(run_id, cancelled_by="clerk")
        await status_that(other, run_id, "cancelled")
    assert ran == ["hold"]


async def test_rule_a_caller_who_waits_is_told_that_the_run_was_cancelled(engine: Engine):
    waiting = asyncio.ensure_future(engine.run(holding, execution_id="r1"))
    await gate.reached.wait()
    await engine.cancel("r1")
    with pytest.raises(DurableRunError) as caught:
        await waiting
    assert (caught.value.run_id, caught.value.status) == ("r1", "cancelled")


async def test_rule_a_paused_run_is_cancelled_at_once_and_its_question_withdrawn(engine: Engine):
    await engine.run(asking, execution_id="r1")
    assert await engine.cancel("r1") == "cancelled"
    assert [q.status for q in await questions_of(engine, "r1")] == ["withdrawn"]


async def test_rule_a_sleeping_run_is_cancelled_at_once(engine: Engine):
    @workflow
    async def flow() -> None:
        await sleep(3600)

    run_id = await engine.start(flow)
    await status_that(engine, run_id, "waiting")
    assert await engine.cancel(run_id) == "cancelled"


async def test_rule_completions_of_operations_that_had_started_are_recorded_for_the_audit(engine: Engine):
    """A body that does not stop when it is cancelled, and ends with a value: its effect happened."""
    began, ended = Gate(), Gate()

    @step
    async def stubborn() -> str:
        try:
            await began.stand()
        except asyncio.CancelledError:
            await ended.stand()
        return "happened"

    @workflow
    async def flow() -> str:
        return await stubborn()

    run_id = await engine.start(flow)
    await began.reached.wait()
    await engine.cancel(run_id)
    await ended.reached.wait()
    ended.open()
    await status_that(engine, run_id, "cancelled")
    completed = [(bare(r.name), r.data) for r in await records_of(engine, run_id) if r.type == "completed"]
    assert completed == [("stubborn", '"happened"')]


async def test_rule_code_cannot_refuse_to_be_cancelled(engine: Engine):
    """Whatever it returns or raises is discarded."""

    @workflow
    async def flow() -> str:
        try:
            await hold()
        except BaseException:
            return "I completed"
        return "normal"

    run_id = await engine.start(flow)
    await gate.reached.wait()
    await engine.cancel(run_id)
    await status_that(engine, run_id, "cancelled")
    assert (await row_of(engine, run_id)).status == "cancelled"


async def test_rule_who_cancelled_is_recorded(engine: Engine):
    await engine.run(asking, execution_id="r1")
    await engine.cancel("r1", cancelled_by="clerk")
    [record] = [r for r in await records_of(engine, "r1") if r.type == "cancel"]
    assert "clerk" in (record.data or "")


async def test_rule_cancelling_an_unknown_run_is_refused(engine: Engine):
    with pytest.raises(ChainCheckpointError, match="nothing-here"):
        await engine.cancel("nothing-here")


async def test_rule_a_cancelled_run_is_not_recovered_by_a_worker(engine: Engine):
    await engine.run(asking, execution_id="r1")
    await engine.cancel("r1")
    await engine.recover([asking])
    assert (await row_of(engine, "r1")).status == "cancelled"


async def test_rule_cancelling_twice_is_the_same_as_once(engine: Engine):
    await engine.run(asking, execution_id="r1")
    await engine.cancel("r1")
    before: list[Any] = await records_of(engine, "r1")
    assert await engine.cancel("r1") == "cancelled"
    assert await records_of(engine, "r1") == before
