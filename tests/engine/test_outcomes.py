"""DESIGN "Outcomes": a value, an error or cancelled, the same at first execution and at replay."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from tests.support.engines import HASTY, Gate, bare, journal_of, opened, record_that, row_of

from perdure import OperationError, PerdureError, UnawaitedOperation, step, workflow
from perdure.engine.engine import Engine

ran: list[str] = []


@pytest.fixture(autouse=True)
def fresh() -> None:
    ran.clear()


class Declined(Exception):
    """Declared where it is used: rebuilt."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(code, reason)
        self.code = code


class Undeclared(Exception):
    """Known to nobody."""


@step(name="outcomes.raise_builtin")
async def raise_builtin() -> None:
    ran.append("builtin")
    raise KeyError("missing")


@step(name="outcomes.raise_declared", errors=[Declined])
async def raise_declared() -> None:
    ran.append("declared")
    raise Declined(51, "no funds")


@step(name="outcomes.raise_undeclared")
async def raise_undeclared() -> None:
    ran.append("undeclared")
    raise Undeclared("odd")


@step(name="outcomes.quick")
async def quick(n: int) -> int:
    ran.append(f"quick {n}")
    return n


def told(error: BaseException) -> list[str]:
    """What the code can see of an error."""
    return [type(error).__name__, str(error), str(error.args), str(getattr(error, "code", None))]


@workflow(name="outcomes.catching")
async def catching(which: str) -> list[str]:
    body = {"builtin": raise_builtin, "declared": raise_declared, "undeclared": raise_undeclared}[which]
    try:
        await body()
    except Exception as error:
        await quick(1)
        return told(error)
    return []


@pytest.mark.parametrize(
    ("which", "name"),
    [("builtin", "KeyError"), ("declared", "Declined"), ("undeclared", "OperationError")],
)
async def test_rule_errors_are_the_same_class_and_content_at_first_execution_and_at_replay(
    engine: Engine, which: str, name: str
):
    first = await engine.run(catching, which)
    replay = await engine.fork(catching, first.execution_id)

    assert first.output[0] == name
    assert replay.output == first.output
    assert ran == [which, "quick 1"]


async def test_rule_an_undeclared_error_has_type_name_message_and_traceback_text(engine: Engine):
    caught: list[OperationError] = []

    @workflow
    async def flow() -> None:
        try:
            await raise_undeclared()
        except OperationError as error:
            caught.append(error)

    await engine.run(flow)

    error = caught[0]
    assert (error.type_name, error.message) == ("Undeclared", "odd")
    assert "raise_undeclared" in error.traceback_text


async def test_rule_a_run_that_failed_raises_its_recorded_error_to_everybody_who_asks(engine: Engine, store_url: str):
    @workflow
    async def flow() -> None:
        await raise_builtin()

    with pytest.raises(KeyError, match="missing"):
        await engine.run(flow, execution_id="r1")
    async with opened(store_url) as second:
        with pytest.raises(KeyError, match="missing"):
            await second.run(flow, execution_id="r1")
    assert ran == ["builtin"]


async def test_rule_errors_declared_by_the_workflow_are_rebuilt_for_its_caller(engine: Engine):
    @workflow(errors=[Declined])
    async def flow() -> None:
        raise Declined(7, "own")

    with pytest.raises(Declined) as caught:
        await engine.run(flow)
    assert caught.value.code == 7


async def test_rule_an_undeclared_error_of_the_workflow_is_an_operation_error_for_its_caller(engine: Engine):
    @workflow
    async def flow() -> None:
        raise Undeclared("own")

    with pytest.raises(OperationError) as caught:
        await engine.run(flow)
    assert caught.value.type_name == "Undeclared"


async def test_rule_exception_groups_of_a_task_group_replay(engine: Engine):
    @workflow
    async def flow() -> list[list[str]]:
        errors: list[list[str]] = []
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(raise_builtin())
        except* KeyError as caught:
            errors = [told(error) for error in caught.exceptions]
        await quick(1)
        return errors

    first = await engine.run(flow)
    assert first.output == [["KeyError", "'missing'", "('missing',)", "None"]]
    assert (await engine.fork(flow, first.execution_id)).output == first.output


async def test_rule_a_call_that_the_code_cancels_is_recorded_as_cancelled_before_the_code_goes_on(
    engine: Engine,
):
    began = asyncio.Event()

    @step
    async def slow() -> None:
        ran.append("slow")
        began.set()
        await asyncio.Event().wait()

    @step
    async def see_it_begin() -> None:
        await began.wait()

    @workflow
    async def flow() -> int:
        task = asyncio.ensure_future(slow())
        await see_it_begin()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        return await quick(1)

    first = await engine.run(flow)
    records = [
        (bare(r.name), r.outcome)
        for r in (await engine.store.run_load(first.execution_id)).records
        if r.type == "completed"
    ]
    replay = await engine.fork(flow, first.execution_id)

    assert records == [("see_it_begin", "value"), ("slow", "cancelled"), ("quick", "value")]
    assert first.output == replay.output == 1
    assert ran == ["slow", "quick 1"], "the cancelled body never runs again"


async def test_rule_a_call_that_a_timeout_cancels_is_recorded_as_cancelled(engine: Engine):
    @step
    async def slow() -> None:
        await asyncio.Event().wait()

    @workflow
    async def flow() -> int:
        try:
            async with asyncio.timeout(0.001):
                await slow()
        except TimeoutError:
            return await quick(1)
        return 0

    first = await engine.run(flow)
    records = (await engine.store.run_load(first.execution_id)).records
    replay = await engine.fork(flow, first.execution_id)

    assert [r.outcome for r in records if r.type == "completed" and r.kind == "step"] == ["cancelled", "value"]
    assert first.output == replay.output == 1
    assert ran == ["quick 1"]


async def test_rule_the_cancelled_body_is_really_cancelled_and_its_clean_up_runs(engine: Engine):
    began, cleaned = asyncio.Event(), asyncio.Event()

    @step
    async def slow() -> None:
        try:
            began.set()
            await asyncio.Event().wait()
        finally:
            cleaned.set()

    @step
    async def see_it_begin() -> None:
        await began.wait()

    @workflow
    async def flow() -> str:
        task = asyncio.ensure_future(slow())
        await see_it_begin()
        task.cancel()
        await asyncio.wait([task])
        return f"{task.cancelled()}"

    assert (await engine.run(flow)).output == "True"
    await cleaned.wait()


async def test_rule_the_loser_of_a_race_is_recorded_and_its_late_result_is_an_event(engine: Engine, store_url: str):
    """A body that swallows its cancellation and returns after all: the code does not see it, the stream does."""
    gate, last = Gate(), Gate()

    @step
    async def stubborn() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await gate.stand()
        return "late"

    @step
    async def hold() -> None:
        await last.stand()

    @workflow
    async def flow() -> str:
        racers = [asyncio.ensure_future(stubborn()), asyncio.ensure_future(quick(1))]
        done, left = await asyncio.wait(racers, return_when=asyncio.FIRST_COMPLETED)
        for task in left:
            task.cancel()
        await hold()
        return str([task.result() for task in done])

    run_id = await engine.start(flow)
    await gate.reached.wait()
    gate.open()
    late = await record_that(engine, run_id, type="note", name="late_result")
    last.open()
    result = await engine.run(flow, execution_id=run_id)

    assert result.output == "[1]"
    assert (late.data, late.outcome) == ('"late"', "value")


async def test_rule_a_task_group_that_fails_cancels_its_other_calls_and_replays(engine: Engine):
    started = asyncio.Event()

    @step
    async def slow() -> None:
        ran.append("slow")
        started.set()
        await asyncio.Event().wait()

    @step
    async def fail() -> None:
        await started.wait()
        raise ValueError("first")

    @workflow
    async def flow() -> list[str]:
        errors: list[str] = []
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(slow())
                group.create_task(fail())
        except* ValueError as caught:
            errors = [str(error) for error in caught.exceptions]
        return [*errors, str(await quick(1))]

    first = await engine.run(flow)
    replay = await engine.fork(flow, first.execution_id)
    assert first.output == replay.output == ["first", "1"]
    assert ran == ["slow", "quick 1"]


async def test_rule_a_cancelled_call_counts_as_awaited(engine: Engine):
    @workflow
    async def flow() -> str:
        task = asyncio.ensure_future(quick(1))
        await asyncio.sleep(0)
        task.cancel()
        return "done"

    assert (await engine.run(flow)).output == "done"


async def test_rule_calls_that_are_not_awaited_at_return_are_an_error_that_names_them(engine: Engine):
    made = []

    @workflow
    async def flow() -> str:
        made.append(quick(1))
        return "done"

    with pytest.raises(UnawaitedOperation, match="quick"):
        await engine.run(flow, execution_id="r1")
    made[0].close()
    assert (await row_of(engine, "r1")).status == "failed"
    assert ran == []


async def test_rule_tasks_left_running_at_return_are_an_error_that_names_their_calls(engine: Engine):
    @workflow
    async def flow() -> str:
        asyncio.ensure_future(quick(1))  # noqa: RUF006
        await asyncio.sleep(0)
        return "done"

    with pytest.raises(UnawaitedOperation, match="quick"):
        await engine.run(flow)


async def test_rule_when_the_function_raises_running_bodies_are_awaited_and_recorded_before_failed(
    engine: Engine,
):
    gate = Gate()

    @step
    async def slow() -> str:
        await gate.stand()
        return "recorded after all"

    @step
    async def fail() -> None:
        await gate.reached.wait()
        raise ValueError("first")

    @workflow
    async def flow() -> None:
        await asyncio.gather(slow(), fail())

    run_id = await engine.start(flow)
    await record_that(engine, run_id, type="completed", name="fail")
    gate.open()
    with pytest.raises(ValueError, match="first"):
        await engine.run(flow, execution_id=run_id)

    records = (await engine.store.run_load(run_id)).records
    ends = [(bare(r.name), r.outcome) for r in records if r.type == "completed"]
    assert ends == [("fail", "error"), ("slow", "value")]
    assert (records[-1].type, records[-1].outcome) == ("status", "failed")


async def test_rule_a_workflow_that_cancels_itself_has_failed_with_that(engine: Engine):
    """Only `cancel()` cancels a run."""

    @workflow
    async def flow() -> None:
        raise asyncio.CancelledError

    with pytest.raises((asyncio.CancelledError, PerdureError)):
        await engine.run(flow, execution_id="r1")
    assert (await row_of(engine, "r1")).status == "failed"


async def test_rule_a_workflow_that_waits_for_nothing_fails_and_says_so(engine: Engine):
    @workflow
    async def flow() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Exception, match="waits for something"):
        await engine.run(flow, execution_id="r1")
    assert (await row_of(engine, "r1")).status == "failed"


async def test_rule_a_timed_out_manual_body_is_in_doubt_and_never_tried_again_by_itself(engine: Engine):
    from perdure import DurableRecoveryError

    @step(recovery="manual", timeout=0.001, retries=3)
    async def pay() -> None:
        ran.append("pay")
        await asyncio.Event().wait()

    @workflow
    async def flow() -> None:
        await pay()

    with pytest.raises(DurableRecoveryError, match="pay"):
        await engine.run(flow, execution_id="r1")
    assert ran == ["pay"]
    assert (await row_of(engine, "r1")).status == "needs_attention"


async def test_rule_base_exceptions_of_a_body_do_not_leave_the_run_hanging(engine: Engine):
    @step
    async def leave() -> None:
        raise asyncio.CancelledError

    @workflow
    async def flow() -> str:
        try:
            await leave()
        except BaseException as error:
            return type(error).__name__
        return ""

    assert (await engine.run(flow)).output in ("CancelledError", "OperationError")


async def test_rule_the_journal_survives_a_restart_between_error_and_handler(engine: Engine, store_url: str):
    """The error is recorded; the handler's first body is not: replay raises the error again and goes on there."""
    gate = Gate()

    @step
    async def clean_up() -> str:
        ran.append("clean up")
        await gate.stand()
        return "clean"

    @workflow
    async def flow() -> list[Any]:
        try:
            await raise_declared()
        except Declined as error:
            return [error.code, await clean_up()]
        return []

    async with opened(store_url, HASTY) as first:
        run_id = await first.start(flow)
        await gate.reached.wait()
    gate.open()
    result = await engine.resume(flow, run_id)

    assert result.output == [51, "clean"]
    assert ran == ["declared", "clean up", "clean up"]
    assert (await journal_of(engine, run_id)).operations["0"].outcome == "error"
