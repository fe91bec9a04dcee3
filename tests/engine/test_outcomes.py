"""DESIGN "Outcomes": a value, an error or cancelled, the same at first execution and at replay."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from tests.support.engines import HASTY, Gate, bare, journal_of, opened, record_that, records_of, row_of, shape

from perdure import (
    DurableRunError,
    EngineSettings,
    OperationError,
    PerdureError,
    Resume,
    UnawaitedOperation,
    idempotent,
    interrupt,
    open_engine,
    step,
    workflow,
)
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


# --- arguments are the body's own ---------------------------------------------------------------------


@step(name="outcomes.fill")
async def fill(x: list[int]) -> None:
    x.append(1)


@step(name="outcomes.fill_in_thread")
def fill_in_thread(x: list[int]) -> None:
    x.append(1)


@idempotent(name="outcomes.fill_keyed")
async def fill_keyed(x: list[int]) -> None:
    x.append(1)


@idempotent(name="outcomes.fill_keyed_sync")
def fill_keyed_sync(x: list[int]) -> None:
    x.append(1)


async def fill_directly(x: list[int]) -> None:
    fill_keyed_sync(x)


@step(name="outcomes.fill_inside")
async def fill_inside(x: list[int]) -> int:
    await fill(x)
    return len(x)


@pytest.mark.parametrize("call", [fill, fill_in_thread, fill_keyed, fill_directly])
async def test_rule_what_a_body_does_to_its_arguments_its_caller_never_sees(
    engine: Engine, store_url: str, call: Callable[[list[int]], Awaitable[Any]]
):
    """At replay there is no body, so the first execution must not see it either."""

    @workflow(name=f"outcomes.filling {getattr(call, '__name__', call)}")
    async def flow() -> list[Any]:
        x: list[int] = []
        await call(x)
        await quick(len(x))
        return [interrupt("go on?").approved, x]

    await engine.run(flow, execution_id="r")
    async with opened(store_url) as later:
        result = await later.resume(flow, "r", resume_value=Resume(approved=True))
    assert result.output == [True, []]
    assert ran == ["quick 0"]


async def test_rule_what_an_inner_body_does_to_its_arguments_the_outer_body_never_sees(engine: Engine):
    """A repeated body finds the inner result recorded, and must find its own values the same."""

    @workflow
    async def flow() -> int:
        return await fill_inside([])

    assert (await engine.run(flow)).output == 0


async def test_rule_what_a_workflow_does_to_its_input_the_starter_never_sees(engine: Engine):
    """The run has what was recorded, not the starter's object."""

    @workflow
    async def flow(x: list[int]) -> list[int]:
        x.append(1)
        return x

    given = [0]
    assert (await engine.run(flow, given)).output == [0, 1]
    assert given == [0]


# --- calls that never began ---------------------------------------------------------------------------


async def cancelled_before_it_began() -> str:
    task = asyncio.create_task(quick(1))
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return "went on"


@workflow(name="outcomes.nested")
async def nested(n: int) -> int:
    return await quick(n)


@idempotent(name="outcomes.keyed")
async def keyed(n: int) -> int:
    return await quick(n)


async def nested_and_cancelled_before_it_began() -> str:
    task = asyncio.create_task(nested(1))
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return "went on"


async def keyed_and_cancelled_before_it_began() -> str:
    task = asyncio.create_task(keyed(1))
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return "went on"


async def timed_out_before_it_began() -> str:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(quick(1), 0)
    return "went on"


async def group_that_raised_before_it_began() -> str:
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(quick(1))
            raise ValueError
    except* ValueError:
        pass
    return "went on"


async def gathered_and_cancelled_before_it_began() -> str:
    both = asyncio.gather(quick(1), quick(2))
    both.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await both
    return "went on"


async def closed_before_it_began() -> str:
    call = quick(1)
    call.close()
    return "went on"


@pytest.mark.parametrize(
    "leave",
    [
        cancelled_before_it_began,
        timed_out_before_it_began,
        group_that_raised_before_it_began,
        gathered_and_cancelled_before_it_began,
        nested_and_cancelled_before_it_began,
        keyed_and_cancelled_before_it_began,
        closed_before_it_began,
    ],
)
async def test_rule_a_call_given_up_before_it_began_is_no_call_left_open(
    engine: Engine, store_url: str, leave: Callable[[], Awaitable[str]]
):
    """It counts as cancelled: its body never runs, and the run replays."""

    @workflow(name=f"outcomes.leaving {leave.__name__}")
    async def flow() -> list[Any]:
        return [await leave(), await quick(9), interrupt("go on?").approved]

    async with asyncio.timeout(20):
        paused = await engine.run(flow, execution_id="r")
        assert paused.status == "paused"
        async with opened(store_url) as later:
            result = await later.resume(flow, "r", resume_value=Resume(approved=True))
    assert result.output == ["went on", 9, True]
    assert ran == ["quick 9"]


async def test_rule_a_call_that_was_made_and_forgotten_is_left_open(engine: Engine):
    """Nobody gave it up, so nobody knows whether it was wanted."""

    @workflow
    async def flow() -> str:
        forgotten.append(quick(1))
        return "forgot"

    forgotten: list[Any] = []
    async with asyncio.timeout(20):
        with pytest.raises(UnawaitedOperation):
            await engine.run(flow)
    for call in forgotten:
        call.close()
    assert ran == []


# --- threads that go on after their time --------------------------------------------------------------


class Thread:
    """A place in a thread where a body stays until the test lets it go."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.left = threading.Event()

    def stand(self) -> None:
        self.opened.wait(60)
        self.left.set()


thread = Thread()


@pytest.fixture
def held_thread() -> Iterator[Thread]:
    """Let go at the end, whatever the test has shown."""
    global thread
    thread = Thread()
    yield thread
    thread.opened.set()


@step(name="outcomes.stay_too_long", timeout=0.05)
def stay_too_long() -> str:
    thread.stand()
    return "too late"


@workflow(name="outcomes.staying_too_long")
async def staying_too_long(then: str) -> Any:
    if then == "raise":
        return await stay_too_long()
    try:
        await stay_too_long()
    except TimeoutError:
        ran.append("timed out")
    if then == "ask":
        return interrupt("go on?").approved
    return await quick(3)


async def test_rule_a_sync_step_over_its_limit_fails_the_run_while_its_thread_goes_on(
    engine: Engine, held_thread: Thread
):
    """Nothing waits for the thread: the error is there when the time is over."""
    async with asyncio.timeout(20):
        with pytest.raises(TimeoutError, match="stay_too_long"):
            await engine.run(staying_too_long, "raise", execution_id="r")
        assert (await row_of(engine, "r")).status == "failed"


async def test_rule_a_run_completes_or_pauses_while_a_thread_of_it_goes_on(engine: Engine, held_thread: Thread):
    """A thread may be stuck for ever, the person who is asked must not wait for it."""
    async with asyncio.timeout(20):
        assert (await engine.run(staying_too_long, "go on", execution_id="done")).output == 3
        assert (await engine.run(staying_too_long, "ask", execution_id="asks")).status == "paused"
        assert not held_thread.left.is_set()
        result = await engine.resume(staying_too_long, "asks", resume_value=Resume(approved=True))
    assert result.output is True


async def test_rule_a_cancelled_run_does_not_wait_for_a_thread(engine: Engine, held_thread: Thread):
    """Cancelling is for what hangs, so it must not hang itself: neither before the time is over nor after it."""
    gate = Gate()

    @step
    async def hold() -> None:
        await gate.stand()

    @step
    def stay() -> None:
        entered.set()
        held_thread.stand()

    @workflow
    async def flow(has_limit: bool) -> None:
        if not has_limit:
            await stay()
        with contextlib.suppress(TimeoutError):
            await stay_too_long()
        await hold()

    entered = threading.Event()
    async with asyncio.timeout(20):
        for has_limit in (True, False):
            run_id = await engine.start(flow, has_limit)
            await (gate.reached.wait() if has_limit else asyncio.to_thread(entered.wait, 20))
            await engine.cancel(run_id)
            with pytest.raises(DurableRunError):
                await engine.run(flow, has_limit, execution_id=run_id)
        assert not held_thread.left.is_set()


async def test_rule_an_engine_closes_while_a_thread_that_timed_out_goes_on(store_url: str, held_thread: Thread):
    """The grace period is for bodies whose results count."""
    gate = Gate()

    @step
    async def hold() -> None:
        await gate.stand()

    @workflow
    async def flow() -> None:
        with contextlib.suppress(TimeoutError):
            await stay_too_long()
        await hold()

    async with asyncio.timeout(20):
        engine = await open_engine(store_url, settings=EngineSettings(poll_s=0.02, grace_s=600.0))
        await engine.start(flow, execution_id="r")
        await gate.reached.wait()
        gate.open()
        await engine.close()
        assert not held_thread.left.is_set()
        async with opened(store_url) as later:
            await later.run(flow, execution_id="r")


async def test_rule_a_thread_that_ends_after_its_run_changes_nothing(engine: Engine, held_thread: Thread):
    """What it returns is nobody's any more."""
    async with asyncio.timeout(20):
        await engine.run(staying_too_long, "go on", execution_id="r")
        before = shape(await records_of(engine, "r"))
        held_thread.opened.set()
        await asyncio.to_thread(held_thread.left.wait, 20)
        assert (await engine.run(staying_too_long, "go on", execution_id="other")).output == 3
        assert shape(await records_of(engine, "r")) == before


# --- the code raised beside a running body ------------------------------------------------------------


async def test_rule_a_retry_of_code_that_raised_beside_a_running_body_raises_again(engine: Engine):
    """The body's completion was recorded after the code had ended: the journal is not ahead of the code."""
    gate = Gate()

    @step
    async def slow() -> str:
        ran.append("slow")
        await gate.stand()
        return "slow"

    @workflow
    async def flow() -> str:
        task = asyncio.create_task(slow())
        await quick(1)
        if fixed:
            return f"{await task} after all"
        raise KeyError("boom")

    fixed: list[bool] = []
    async with asyncio.timeout(20):
        waiting = asyncio.ensure_future(engine.run(flow, execution_id="r"))
        await gate.reached.wait()
        gate.open()
        with pytest.raises(KeyError, match="boom"):
            await waiting
        with pytest.raises(KeyError, match="boom"):
            await engine.retry(flow, "r")
        assert (await row_of(engine, "r")).status == "failed"
        fixed.append(True)
        assert (await engine.retry(flow, "r")).output == "slow after all"
    assert sorted(ran) == ["quick 1", "slow"]
