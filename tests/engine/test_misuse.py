"""Code that does what it should not: the run says so, and nobody else is held up by it."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.support.engines import Gate, journal_of, opened, row_of

from perdure import InvalidInputError, PerdureError, Resume, idempotent, interrupt, patched, step, workflow
from perdure.core.records import RunFilter
from perdure.engine import runloop
from perdure.engine.engine import Engine

YES = Resume(approved=True)
ran: list[Any] = []
engines: list[Engine] = []
gate = Gate()


@pytest.fixture(autouse=True)
def fresh() -> None:
    global gate
    gate = Gate()
    ran.clear()
    engines.clear()


@step(name="misuse.note")
async def note(n: int) -> int:
    ran.append(n)
    return n


@step(name="misuse.hold")
async def hold() -> str:
    await gate.stand()
    return "held"


@idempotent(name="misuse.pay")
async def pay(n: int) -> int:
    ran.append(n)
    return n * 10


@idempotent(name="misuse.pay_sync")
def pay_sync(n: int) -> int:
    ran.append(n)
    return n * 10


@workflow(name="misuse.child")
async def child(n: int) -> int:
    return await note(n)


# --- StopIteration ------------------------------------------------------------------------------------


@step(name="misuse.stop")
def stop() -> Any:
    return next(iter([]))


@step(name="misuse.stop_inside")
async def stop_inside() -> Any:
    return await stop()


@idempotent(name="misuse.stop_keyed")
def stop_keyed() -> Any:
    return next(iter([]))


@step(name="misuse.stop_keyed_in_thread")
def stop_keyed_in_thread() -> Any:
    return stop_keyed()


async def stop_direct() -> Any:
    return stop_keyed()


@pytest.mark.parametrize("call", [stop, stop_inside, stop_direct, stop_keyed_in_thread])
async def test_rule_stop_iteration_of_a_sync_body_is_a_runtime_error(
    engine: Engine, call: Callable[[], Awaitable[Any]]
):
    """No future can carry a StopIteration, so the run used to wait for ever."""

    @workflow(name=f"misuse.stopping {getattr(call, '__name__', call)}")
    async def flow() -> str:
        try:
            await call()
        except Exception as error:
            return type(error).__name__
        return ""

    async with asyncio.timeout(20):
        result = await engine.run(flow)
        assert result.output == "RuntimeError"
        assert (await engine.fork(flow, result.execution_id)).output == "RuntimeError"


# --- bodies that cancel themselves --------------------------------------------------------------------


async def test_rule_a_body_that_cancels_its_own_task_has_an_outcome(engine: Engine):
    """The run ends, and the same worker goes on with others."""

    @step
    async def cancel_self() -> None:
        ran.append("cancel")
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.Event().wait()

    @workflow
    async def flow() -> str:
        try:
            await cancel_self()
        except (asyncio.CancelledError, Exception) as error:
            return f"{type(error).__name__} {await note(1)}"
        return ""

    async with asyncio.timeout(20):
        result = await engine.run(flow)
        assert result.output.endswith(" 1")
        assert (await engine.run(child, 2)).output == 2
        assert (await engine.fork(flow, result.execution_id)).output == result.output
    assert ran == ["cancel", 1, 2]


async def test_rule_a_body_inside_a_body_that_cancels_itself_ends_the_run(engine: Engine):
    """Libraries cancel the task they run in; whatever the outer body makes of it, the run has an end."""

    @step
    async def cancel_self() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.Event().wait()

    @step
    async def around() -> None:
        await cancel_self()

    @workflow
    async def flow() -> str:
        try:
            await around()
        except (asyncio.CancelledError, Exception) as error:
            return type(error).__name__
        return ""

    async with asyncio.timeout(20):
        result = await engine.run(flow)
        assert result.output != ""
        assert (await engine.run(child, 2)).output == 2


async def test_rule_a_self_cancelled_body_raises_the_same_at_first_and_at_replay(engine: Engine):
    """`except Exception` must not catch it once and miss it the other time."""

    @step
    async def cancel_self() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.Event().wait()

    @workflow
    async def flow() -> list[Any]:
        try:
            await cancel_self()
        except BaseException as error:
            caught = [type(error).__name__, isinstance(error, Exception)]
            ran.append(caught)
        return [*caught, interrupt("go on?").approved]

    async with asyncio.timeout(20):
        first = await engine.run(flow)
        result = await engine.resume(flow, first.execution_id, resume_value=YES)
        forked = await engine.fork(flow, first.execution_id)
    assert forked.output == result.output
    assert ran == [ran[0]] * len(ran)


# --- spinning -----------------------------------------------------------------------------------------


async def test_rule_a_workflow_that_spins_fails_and_its_worker_goes_on(engine: Engine):
    """Waiting with sleep(0) for something that only the real loop can bring would stop that loop for ever."""

    @workflow
    async def spinning() -> str:
        task = asyncio.create_task(hold())
        while not task.done():
            await asyncio.sleep(0)
        return task.result()

    async with asyncio.timeout(60):
        with pytest.raises(PerdureError, match="spins"):
            await engine.run(spinning, execution_id="s")
        assert (await row_of(engine, "s")).status == "failed"
        assert (await engine.run(child, 2)).output == 2


async def test_rule_tasks_of_a_workflow_that_spins_unwind(engine: Engine):
    """Their `finally` blocks run, also those that need a turn of the loop."""

    @workflow
    async def spinning() -> None:
        async def waiting() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                ran.append("unwound")

        task = asyncio.create_task(waiting())
        while not task.done():
            await asyncio.sleep(0)

    async with asyncio.timeout(60):
        with pytest.raises(PerdureError, match="spins"):
            await engine.run(spinning)
    assert ran == ["unwound"]


async def test_rule_many_synchronous_calls_are_no_spinning(engine: Engine, monkeypatch: pytest.MonkeyPatch):
    """Each one that returns is progress, however many there are."""
    monkeypatch.setattr(runloop, "_MAX_CALLBACKS", 20)

    @workflow
    async def flow() -> int:
        return sum([pay_sync(n) for n in range(60)])

    async with asyncio.timeout(20):
        assert (await engine.run(flow)).output == 10 * sum(range(60))


# --- names that cannot be stored ----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a\0b", "a\ud800b"], ids=["nul", "surrogate"])
async def test_rule_a_change_name_that_cannot_be_stored_is_refused_at_the_call(engine: Engine, name: str):
    """The run goes on; nothing of it is refused later by the store."""

    @workflow(name=f"misuse.patching {name!a}")
    async def flow() -> int:
        with pytest.raises(InvalidInputError):
            patched(name)
        return await note(1)

    result = await engine.run(flow)
    assert result.output == 1
    assert list((await journal_of(engine, result.execution_id)).operations) == ["0"]


# --- loops inside sync bodies -------------------------------------------------------------------------


@step(name="misuse.loop_in_thread")
def loop_in_thread() -> int:
    return asyncio.run(call_note())


async def call_note() -> int:
    return await note(2)


@step(name="misuse.keyed_loop_in_thread")
def keyed_loop_in_thread() -> int:
    return asyncio.run(call_pay())


async def call_pay() -> int:
    return await pay(2)


@step(name="misuse.loop_in_own_thread")
async def loop_in_own_thread() -> int:
    context = contextvars.copy_context()
    with ThreadPoolExecutor(1) as threads:
        return await asyncio.get_running_loop().run_in_executor(threads, context.run, keyed_loop)


def keyed_loop() -> int:
    return asyncio.run(call_pay())


@pytest.mark.parametrize(("call", "found"), [(loop_in_thread, 2), (keyed_loop_in_thread, 20), (loop_in_own_thread, 20)])
async def test_rule_async_calls_work_in_a_loop_that_a_sync_body_has_made(
    engine: Engine, call: Callable[[], Awaitable[int]], found: int
):
    """`asyncio.run` in a sync step is how sync code calls async code; the journal is touched from one thread only."""

    @workflow(name=f"misuse.looping {getattr(call, '__name__', call)}")
    async def flow() -> int:
        return await call()

    async with asyncio.timeout(20):
        result = await engine.run(flow)
    phases = {op.phase for op in (await journal_of(engine, result.execution_id)).operations.values()}
    assert result.output == found
    assert phases == {"completed"}
    assert ran == [2]


# --- contexts -----------------------------------------------------------------------------------------


async def test_rule_tasks_may_be_given_one_context_and_ask_in_it(engine: Engine, store_url: str):
    """A task that is frozen in a question does not keep its context from the other."""

    @workflow
    async def flow() -> list[Any]:
        async def asking() -> bool:
            return interrupt("go on?").approved

        context = contextvars.copy_context()
        first = asyncio.create_task(asking(), context=context)
        second = asyncio.create_task(call_note(), context=context)
        return [await second, await first]

    async with asyncio.timeout(20):
        paused = await engine.run(flow)
        assert paused.status == "paused"
        async with opened(store_url) as later:
            result = await later.resume(flow, paused.execution_id, resume_value=YES)
    assert result.output == [2, True]
    assert ran == [2]


# --- runs started from workflow code ------------------------------------------------------------------


async def run_by_engine() -> Any:
    return await engines[0].run(child, 5)


async def run_by_workflow() -> Any:
    return await child.arun(5, store=engines[0].store)


async def start_by_engine() -> Any:
    return await engines[0].start(child, 5)


@pytest.mark.parametrize("begin", [run_by_engine, run_by_workflow, start_by_engine])
async def test_rule_workflow_code_cannot_start_runs_and_is_told_the_way(
    engine: Engine, begin: Callable[[], Awaitable[Any]]
):
    """It would be an effect that is repeated at every replay: nothing is created."""
    engines.append(engine)

    @workflow(name=f"misuse.beginning {begin.__name__}")
    async def flow() -> str:
        try:
            await begin()
        except PerdureError as error:
            return str(error)
        return ""

    async with asyncio.timeout(20):
        result = await engine.run(flow)
    assert "step" in result.output
    assert [row.run_id for row in await engine.store.run_list(RunFilter())] == [result.execution_id]
    assert ran == []


@pytest.mark.parametrize("what", ["resume", "retry", "fork", "cancel"])
async def test_rule_workflow_code_cannot_steer_other_runs(engine: Engine, what: str):
    """Whatever would change another run from outside of a step is refused before anything happens."""
    engines.append(engine)

    @workflow(name="misuse.waiting_child")
    async def waiting_child() -> bool:
        return interrupt("child?").approved

    @workflow(name=f"misuse.steering {what}")
    async def flow() -> str:
        act = {
            "resume": lambda: engines[0].resume(waiting_child, "other", resume_value=YES),
            "retry": lambda: engines[0].retry(waiting_child, "other"),
            "fork": lambda: engines[0].fork(waiting_child, "other"),
            "cancel": lambda: engines[0].cancel("other"),
        }[what]
        try:
            await act()
        except PerdureError as error:
            return str(error)
        return ""

    async with asyncio.timeout(20):
        await engine.run(waiting_child, execution_id="other")
        before = await row_of(engine, "other")
        result = await engine.run(flow)
        after = await row_of(engine, "other")
    assert "step" in result.output
    assert (after.status, after.fence, after.cancel_requested) == (before.status, before.fence, before.cancel_requested)


# --- as_completed -------------------------------------------------------------------------------------


async def test_rule_as_completed_of_coroutines_is_refused(engine: Engine):
    """It would start them in an order that no replay can repeat; tasks are fine."""

    @workflow
    async def flow() -> list[Any]:
        coroutines = [child(n) for n in (1, 2, 3)]
        try:
            for each in asyncio.as_completed(coroutines):
                await each
        except RuntimeError as error:
            found = [str(error)]
        else:
            found = []
        for coroutine in coroutines:
            coroutine.close()
        tasks = [asyncio.create_task(note(n)) for n in (4, 5)]
        return found + sorted([await each for each in asyncio.as_completed(tasks)])

    result = await engine.run(flow)
    assert "create_task" in result.output[0]
    assert result.output[1:] == [4, 5]
    assert sorted(ran) == [4, 5]
