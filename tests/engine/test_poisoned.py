"""DESIGN "A refused entry poisons its run" and the limits: what cannot be recorded does not go on unrecorded."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.database import execute
from tests.support.engines import Gate, opened, records_of, row_of, shape, status_that

from perdure import (
    DurableLimitError,
    DurableRecoveryError,
    EngineSettings,
    Limits,
    Resume,
    RunLost,
    interrupt,
    step,
    workflow,
)
from perdure.core.records import RunFilter
from perdure.engine.engine import Engine

gate = Gate()
ran: list[Any] = []


@pytest.fixture(autouse=True)
def fresh() -> None:
    global gate
    gate = Gate()
    ran.clear()


@step(name="poisoned.hold")
async def hold() -> str:
    await gate.stand()
    return "held"


@step(name="poisoned.note")
async def note(n: int) -> int:
    ran.append(n)
    return n


@step(name="poisoned.big")
async def big(size: int) -> str:
    ran.append(size)
    return "x" * size


async def refuse(engine: Engine, other: Engine, run_id: str) -> None:
    """The next entry of this run is refused: somebody else has claimed it."""
    await other.store.run_claim(other.host.worker_id, run_ids=[run_id], dead_workers=[engine.host.worker_id])


async def test_rule_after_a_refusal_every_journal_call_raises_run_lost(engine: Engine, store_url: str):
    seen: list[str] = []

    @workflow
    async def flow() -> str:
        try:
            await hold()
            while True:
                await note(1)
                await asyncio.sleep(0)
        except BaseException as error:
            seen.append(type(error).__name__)
            try:
                await note(2)
            except BaseException as again:
                seen.append(type(again).__name__)
            raise

    run_id = await engine.start(flow)
    await gate.reached.wait()
    drive = engine.host.drives[run_id]
    async with opened(store_url) as other:
        await refuse(engine, other, run_id)
        before = shape(await records_of(other, run_id))
        gate.open()
        end = await drive.ended
        assert shape(await records_of(other, run_id)) == before
    assert end.is_lost
    assert isinstance(end.error, RunLost)
    assert seen[-1] == "RunLost"
    assert run_id not in engine.host.drives


async def test_rule_run_lost_is_not_an_exception_that_code_catches_by_accident():
    assert issubclass(RunLost, BaseException)
    assert not issubclass(RunLost, Exception)


async def test_rule_a_body_of_a_lost_run_starts_no_further_operation(engine: Engine, store_url: str):
    @step
    async def outer() -> int:
        await gate.stand()
        return await note(1)

    @workflow
    async def flow() -> int:
        return await outer()

    run_id = await engine.start(flow)
    await gate.reached.wait()
    drive = engine.host.drives[run_id]
    async with opened(store_url) as other:
        await refuse(engine, other, run_id)
        gate.open()
        await drive.ended
    assert ran == []


async def test_rule_other_runs_of_the_same_worker_are_not_touched(engine: Engine, store_url: str):
    @workflow
    async def flow() -> list[Any]:
        return [await hold(), await note(1)]

    run_ids = [await engine.start(flow) for _ in range(3)]
    await gate.reached.wait()
    drive = engine.host.drives[run_ids[1]]
    async with opened(store_url) as other:
        await refuse(engine, other, run_ids[1])
        gate.open()
        for run_id in (run_ids[0], run_ids[2]):
            assert (await engine.run(flow, execution_id=run_id)).output == ["held", 1]
        assert (await drive.ended).is_lost


# --- limits -------------------------------------------------------------------------------------------


SMALL = EngineSettings(poll_s=0.02, limits=Limits(max_payload_bytes=1000, max_operations=10))


async def test_rule_a_result_over_the_limit_is_recorded_as_that_error_and_not_repeated(store_url: str):
    @workflow
    async def flow() -> str:
        try:
            return await big(5000)
        except DurableLimitError:
            return "too large"

    async with opened(store_url, SMALL) as engine:
        first = await engine.run(flow)
        assert first.output == "too large"
        assert (await engine.fork(flow, first.execution_id)).output == "too large"
        assert all(len(r.data or "") < 5000 for r in await records_of(engine, first.execution_id))
    assert ran == [5000]


async def test_rule_an_input_over_the_limit_is_refused_with_nothing_stored(store_url: str):
    @workflow
    async def flow(text: str) -> int:
        return len(text)

    async with opened(store_url, SMALL) as engine:
        with pytest.raises(DurableLimitError):
            await engine.run(flow, "x" * 5000)
        assert await engine.store.run_list(RunFilter()) == []


async def test_rule_an_output_over_the_limit_fails_the_run(store_url: str):
    @workflow
    async def flow() -> str:
        return "x" * 5000

    async with opened(store_url, SMALL) as engine:
        with pytest.raises(DurableLimitError):
            await engine.run(flow, execution_id="r1")
        assert (await row_of(engine, "r1")).status == "failed"


@pytest.mark.parametrize("is_in_body", [False, True])
async def test_rule_a_question_with_a_context_over_the_limit_is_not_asked(store_url: str, is_in_body: bool):
    async def ask() -> str:
        try:
            interrupt("go on?", {"text": "x" * 5000})
        except DurableLimitError:
            return "too large"
        return "asked"

    asking = step(ask) if is_in_body else ask

    @workflow
    async def flow() -> list[Any]:
        return [await asking(), interrupt("small?", {"text": "x"}).approved]

    async with opened(store_url, SMALL) as engine:
        paused = await engine.run(flow, execution_id="r1")
        assert [question["reason"] for question in paused.pending_interrupts] == ["small?"]
        result = await engine.resume(flow, "r1", resume_value=Resume(approved=True))
        assert result.output == ["too large", True]


async def test_rule_a_run_with_too_many_operations_fails_before_the_next_body(store_url: str):
    @workflow
    async def flow() -> None:
        for n in range(100):
            await note(n)

    async with opened(store_url, SMALL) as engine:
        with pytest.raises(DurableLimitError, match="operations"):
            await engine.run(flow, execution_id="r1")
        assert (await row_of(engine, "r1")).status == "failed"
    assert ran == list(range(10))


async def test_rule_a_journal_that_stops_the_engine_is_claimed_once_and_needs_attention(engine: Engine, store_url: str):
    """Nobody takes the run up again and again: the journal does not grow, and other runs go on."""

    @workflow
    async def flow() -> bool:
        await note(1)
        return interrupt("go on?").approved

    async with asyncio.timeout(20):
        paused = await engine.run(flow, execution_id="r")
        await asyncio.to_thread(execute, store_url, "UPDATE record SET outcome = 'weird' WHERE type = 'completed'")
        before = len(await records_of(engine, "r"))
        with pytest.raises(DurableRecoveryError):
            await engine.resume(flow, paused.execution_id, resume_value=Resume(approved=True))
        row = await status_that(engine, "r", "needs_attention")
        stopped = await records_of(engine, "r")
        with pytest.raises(DurableRecoveryError):
            await engine.run(flow, execution_id="r")
        assert (await engine.run(flow, execution_id="other")).status == "paused"
    assert row.error
    claims = [record for record in stopped[before:] if record.type == "status" and record.name == "running"]
    assert len(stopped) <= before + 6, shape(stopped)
    assert len(claims) <= 2
    assert ran == [1, 1]
