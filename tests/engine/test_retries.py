"""DESIGN "Retries and trailing errors": attempts of one operation, stored deadlines, and what a retry forgets."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from tests.support.engines import (
    HASTY,
    Gate,
    bare,
    journal_of,
    opened,
    operation_of,
    record_that,
    records_of,
    row_of,
)

from perdure import (
    AlreadyResumed,
    ChainResumeError,
    RetryPolicy,
    SerializationError,
    interrupt,
    operation_id,
    step,
    workflow,
)
from perdure.core.resume import Resume
from perdure.engine.engine import Engine

AT_ONCE = RetryPolicy(max_attempts=4, initial_delay_s=0.0, max_delay_s=0.0)
ran: list[Any] = []
world: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def fresh() -> None:
    ran.clear()
    world.clear()


@step(name="retries.quick")
async def quick(n: int) -> int:
    ran.append(f"quick {n}")
    return n


@step(name="retries.flaky")
async def flaky(name: str) -> str:
    """Fails for as long as the world says so."""
    ran.append(name)
    if name in world.get("broken", ()):
        raise ValueError(name)
    return name


async def test_rule_attempts_of_a_step_are_attempts_of_one_operation(engine: Engine):
    @step(retries=AT_ONCE)
    async def third_time_lucky() -> str:
        ran.append(operation_id())
        if len(ran) < 3:
            raise OSError(f"attempt {len(ran)}")
        return "lucky"

    @workflow
    async def flow() -> str:
        return await third_time_lucky()

    result = await engine.run(flow, execution_id="r1")

    op = await operation_of(engine, "r1", "0")
    failures = [r.attempt for r in await records_of(engine, "r1") if r.type == "attempt_failed"]
    assert result.output == "lucky"
    assert ran == ["r1/0"] * 3
    assert (op.attempt, failures) == (3, [1, 2])


async def test_rule_the_last_attempts_error_is_the_operations_error(engine: Engine):
    @step(retries=AT_ONCE)
    async def never() -> None:
        ran.append(1)
        raise OSError(f"attempt {len(ran)}")

    @workflow
    async def flow() -> None:
        await never()

    with pytest.raises(OSError, match="attempt 4"):
        await engine.run(flow)
    assert len(ran) == 4


async def test_rule_retries_is_the_number_of_further_attempts(engine: Engine):
    assert step(retries=3)(quick.spec.function).spec.retry == RetryPolicy(max_attempts=4)
    assert step(retries=0)(quick.spec.function).spec.retry is None
    with pytest.raises(ValueError, match="retries"):
        step(retries=-1)(quick.spec.function)


async def test_rule_the_time_of_the_next_attempt_is_stored_and_survives_the_worker(engine: Engine, store_url: str):
    """The first worker leaves while it waits an hour; the next one waits on, with the attempts counted so far."""

    @step(retries=RetryPolicy(max_attempts=2, initial_delay_s=3600.0, max_delay_s=3600.0, jitter=0.0))
    async def later() -> str:
        ran.append("later")
        raise OSError("not yet")

    @workflow
    async def flow() -> str:
        return await later()

    async with opened(store_url, HASTY) as first:
        run_id = await first.start(flow)
        failed = await record_that(first, run_id, type="attempt_failed")
        assert failed.wait_s == 3600.0
    async with opened(store_url) as second:
        await second.recover([flow])
        row = await row_of(second, run_id)
        op = await operation_of(second, run_id, "0")

    assert ran == ["later"], "the deadline is an hour away for the second worker, too"
    assert row.status == "waiting"
    assert row.due_in_s is not None
    assert 3000 < row.due_in_s <= 3600
    assert (op.attempt, op.phase) == (1, "retrying")


async def test_rule_a_due_attempt_is_performed_by_the_next_worker(engine: Engine, store_url: str):
    @step(retries=RetryPolicy(max_attempts=2, initial_delay_s=0.2, max_delay_s=0.2, jitter=0.0))
    async def second_time_lucky() -> str:
        ran.append("attempt")
        if len(ran) == 1:
            raise OSError("first")
        return "lucky"

    @workflow
    async def flow() -> str:
        return await second_time_lucky()

    async with opened(store_url, HASTY) as first:
        run_id = await first.start(flow)
        await record_that(first, run_id, type="attempt_failed")
    assert (await engine.run(flow, execution_id=run_id)).output == "lucky"
    assert len(ran) == 2


async def test_rule_what_cannot_be_mended_by_trying_again_is_not_tried_again(engine: Engine):
    @step(retries=AT_ONCE)
    async def unstorable() -> Any:
        ran.append("body")
        return object()

    @workflow
    async def flow() -> None:
        await unstorable()

    with pytest.raises(SerializationError):
        await engine.run(flow)
    assert ran == ["body"]


async def test_rule_a_new_attempt_runs_the_failed_inner_calls_again_and_keeps_the_completed_ones(
    engine: Engine,
):
    world["broken"] = {"b"}

    @step(retries=AT_ONCE)
    async def outer() -> list[str]:
        if ran.count("b") == 2:
            world["broken"] = set()
        return [await flaky("a"), await flaky("b")]

    @workflow
    async def flow() -> list[str]:
        return await outer()

    assert (await engine.run(flow)).output == ["a", "b"]
    assert ran == ["a", "b", "b", "b"]


# --- retry() of a failed run --------------------------------------------------------------------------


async def test_rule_a_retry_runs_the_trailing_error_again_and_nothing_else(engine: Engine):
    world["broken"] = {"pay"}

    @workflow
    async def flow() -> list[Any]:
        return [await quick(1), await flaky("pay")]

    with pytest.raises(ValueError, match="pay"):
        await engine.run(flow, execution_id="r1")
    world["broken"] = set()
    result = await engine.retry(flow, "r1")

    assert result.output == [1, "pay"]
    assert ran == ["quick 1", "pay", "pay"]
    assert (await row_of(engine, "r1")).attempt == 2


async def test_rule_aresume_of_a_failed_run_is_a_retry(engine: Engine):
    world["broken"] = {"pay"}

    @workflow
    async def flow() -> str:
        return await flaky("pay")

    with pytest.raises(ValueError, match="pay"):
        await engine.run(flow, execution_id="r1")
    world["broken"] = set()
    assert (await engine.resume(flow, "r1")).output == "pay"


async def test_rule_a_retry_that_fails_again_can_be_retried_again(engine: Engine):
    world["broken"] = {"pay"}

    @workflow
    async def flow() -> str:
        return await flaky("pay")

    with pytest.raises(ValueError, match="pay"):
        await engine.run(flow, execution_id="r1")
    with pytest.raises(ValueError, match="pay"):
        await engine.retry(flow, "r1")
    world["broken"] = set()
    assert (await engine.retry(flow, "r1")).output == "pay"
    assert ran == ["pay"] * 3


async def test_rule_several_failed_branches_all_run_again(engine: Engine):
    world["broken"] = {"a", "b"}

    @workflow
    async def flow() -> list[str]:
        found = await asyncio.gather(flaky("a"), flaky("b"), flaky("c"), return_exceptions=True)
        errors = [error for error in found if isinstance(error, Exception)]
        if errors:
            raise errors[0]
        return [str(name) for name in found]

    with pytest.raises(ValueError, match="a"):
        await engine.run(flow, execution_id="r1")
    world["broken"] = set()
    assert (await engine.retry(flow, "r1")).output == ["a", "b", "c"]
    assert sorted(ran) == ["a", "a", "b", "b", "c"]


async def test_rule_a_handled_error_is_kept_by_a_retry(engine: Engine):
    """Clean-up ran after it: what the code decided because of it stays decided."""
    world["broken"] = {"first", "last"}

    @workflow
    async def flow() -> list[str]:
        try:
            found = await flaky("first")
        except ValueError:
            found = f"instead {await quick(1)}"
        return [found, await flaky("last")]

    with pytest.raises(ValueError, match="last"):
        await engine.run(flow, execution_id="r1")
    world["broken"] = set()
    assert (await engine.retry(flow, "r1")).output == ["instead 1", "last"]
    assert ran == ["first", "quick 1", "last", "last"]


async def test_rule_a_handled_error_that_blocks_the_way_is_named_with_a_fork_before_it(engine: Engine):
    world["broken"] = {"pay"}

    @workflow
    async def flow() -> list[Any]:
        booked = await quick(1)
        try:
            return [booked, await flaky("pay")]
        except ValueError:
            await quick(2)
            raise

    with pytest.raises(ValueError, match="pay"):
        await engine.run(flow, execution_id="r1")
    world["broken"] = set()
    with pytest.raises(ChainResumeError, match="flaky") as caught:
        await engine.retry(flow, "r1")
    assert (await row_of(engine, "r1")).status == "failed"

    checkpoint = str(caught.value).split("checkpoint_id='")[1].split("'")[0]
    result = await engine.fork(flow, "r1", checkpoint_id=checkpoint)
    assert result.output == [1, "pay"]
    assert ran == ["quick 1", "pay", "quick 2", "pay"], "the fork keeps what was before the error"


async def test_rule_after_an_answer_nothing_is_dropped(engine: Engine):
    """A handled error before a question stays, when the person has answered."""
    world["broken"] = {"check"}

    @workflow
    async def flow() -> list[Any]:
        try:
            checked = await flaky("check")
        except ValueError as error:
            checked = f"failed {error}"
        return [checked, interrupt("go on?").approved]

    await engine.run(flow, execution_id="r1")
    world["broken"] = set()
    result = await engine.resume(flow, "r1", resume_value=Resume(approved=True))
    assert result.output == ["failed check", True]
    assert ran == ["check"]


async def test_rule_only_a_failed_run_can_be_retried(engine: Engine):
    @workflow
    async def flow() -> int:
        return await quick(1)

    await engine.run(flow, execution_id="r1")
    with pytest.raises(AlreadyResumed, match="completed"):
        await engine.retry(flow, "r1")


async def test_rule_an_own_error_of_the_workflow_is_retried_by_running_on(engine: Engine):
    """No operation failed: the code raised by itself, and does other things at the next attempt."""
    world["is_bad"] = True

    @workflow
    async def flow() -> int:
        found = await quick(1)
        if world["is_bad"]:
            raise RuntimeError("own mistake")
        return found

    with pytest.raises(RuntimeError, match="own mistake"):
        await engine.run(flow, execution_id="r1")
    world["is_bad"] = False
    assert (await engine.retry(flow, "r1")).output == 1
    assert ran == ["quick 1"]


# --- time limits --------------------------------------------------------------------------------------


async def test_rule_an_async_body_over_its_limit_is_cancelled_and_tried_again(engine: Engine):
    @step(timeout=0.01, retries=AT_ONCE)
    async def slow_once() -> str:
        ran.append("attempt")
        if len(ran) == 1:
            await asyncio.Event().wait()
        return "in time"

    @workflow
    async def flow() -> str:
        return await slow_once()

    assert (await engine.run(flow)).output == "in time"
    assert len(ran) == 2


async def test_rule_a_time_out_without_retries_is_a_timeout_error_that_names_the_step(engine: Engine):
    @step(timeout=0.01)
    async def slow() -> None:
        await asyncio.Event().wait()

    @workflow
    async def flow() -> str:
        try:
            await slow()
        except TimeoutError as error:
            return str(error)
        return ""

    first = await engine.run(flow)
    assert "slow" in first.output
    assert (await engine.fork(flow, first.execution_id)).output == first.output


async def test_rule_a_timed_out_sync_body_keeps_its_thread_and_no_attempt_starts_until_it_has_ended(
    engine: Engine,
):
    release, first_ended = threading.Event(), threading.Event()
    seen: list[bool] = []

    @step(timeout=0.01, retries=AT_ONCE)
    def slow_once() -> str:
        seen.append(first_ended.is_set())
        if len(seen) == 1:
            release.wait(30)
            first_ended.set()
        return f"attempt {len(seen)}"

    @workflow
    async def flow() -> str:
        return await slow_once()

    run_id = await engine.start(flow)
    await record_that(engine, run_id, type="attempt_failed")
    release.set()
    result = await engine.run(flow, execution_id=run_id)

    assert result.output.startswith("attempt")
    assert seen[0] is False
    assert all(seen[1:])


async def test_rule_a_late_result_of_a_timed_out_sync_body_is_an_event(engine: Engine):
    release = threading.Event()

    @step(timeout=0.01)
    def slow() -> str:
        release.wait(30)
        return "too late"

    @step
    async def hold() -> None:
        await gate.stand()

    gate = Gate()

    @workflow
    async def flow() -> str:
        try:
            return await slow()
        except TimeoutError:
            await hold()
            return "timed out"

    run_id = await engine.start(flow)
    await gate.reached.wait()
    release.set()
    late = await record_that(engine, run_id, type="note", name="late_result")
    gate.open()
    assert late.data == '"too late"'
    assert (await engine.run(flow, execution_id=run_id)).output == "timed out"


async def test_rule_a_negative_or_senseless_time_limit_is_refused_at_registration():
    for limit in (-1, float("nan"), float("inf"), "5"):
        with pytest.raises(ValueError, match="timeout"):
            step(timeout=limit)(quick.spec.function)  # type: ignore[call-overload]


async def test_rule_names_of_failed_attempts_are_shown_in_the_journal(engine: Engine):
    @step(retries=AT_ONCE)
    async def twice() -> str:
        ran.append(1)
        if len(ran) == 1:
            raise OSError("why it failed")
        return "ok"

    @workflow
    async def flow() -> str:
        return await twice()

    await engine.run(flow, execution_id="r1")
    failed = next(r for r in await records_of(engine, "r1") if r.type == "attempt_failed")
    assert bare(failed.name) == "twice"
    assert "why it failed" in (failed.data or "")
    assert (await journal_of(engine, "r1")).operations["0"].outcome == "value"
