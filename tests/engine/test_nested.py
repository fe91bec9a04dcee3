"""DESIGN "Nested runners", "The engine owns the drive" and where code runs: contexts, threads, tasks."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import Any

import pytest
from tests.support.engines import HASTY, Gate, ids_of, journal_of, opened

from perdure import PerdureError, Resume, UnawaitedOperation, interrupt, operation_id, patched, step, workflow
from perdure.engine.engine import Engine
from perdure.flow.workflow import Workflow

YES = Resume(approved=True)
ran: list[Any] = []
gate = Gate()
tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="nobody")


@pytest.fixture(autouse=True)
def fresh() -> None:
    global gate
    gate = Gate()
    ran.clear()


@step(name="nested.note")
async def note(n: int) -> int:
    ran.append(n)
    return n


@step(name="nested.hold")
async def hold() -> str:
    await gate.stand()
    return "held"


@workflow(name="nested.inner")
async def inner(n: int) -> list[Any]:
    return [await note(n), await note(n + 1)]


@workflow(name="nested.inner_asking")
async def inner_asking(n: int) -> list[Any]:
    return [await note(n), interrupt("inner?").approved]


async def test_rule_a_nested_workflow_joins_the_run_under_its_operations_path(engine: Engine):
    @workflow
    async def flow() -> list[Any]:
        return await inner(1)

    result = await engine.run(flow)
    operations = (await journal_of(engine, result.execution_id)).operations
    assert result.output == [1, 2]
    assert sorted(operations) == ["0", "0/0", "0/1"]
    assert operations["0"].kind == "workflow"


async def test_rule_a_nested_workflow_may_ask_and_goes_on_where_it_asked(engine: Engine):
    @workflow
    async def flow() -> list[Any]:
        return await inner_asking(1)

    paused = await engine.run(flow)
    assert paused.pending_interrupt is not None
    assert paused.pending_interrupt["reason"] == "inner?"
    result = await engine.resume(flow, paused.execution_id, resume_value=YES)
    assert result.output == [1, True]
    assert ran == [1]


async def test_rule_nested_workflows_run_side_by_side_and_replay(engine: Engine, store_url: str):
    @workflow
    async def flow() -> list[Any]:
        found = await asyncio.gather(inner(10), inner(20), inner(30))
        await hold()
        return list(found)

    async with opened(store_url, HASTY) as first:
        run_id = await first.start(flow)
        await gate.reached.wait()
    gate.open()
    assert (await engine.run(flow, execution_id=run_id)).output == [[10, 11], [20, 21], [30, 31]]
    assert sorted(ran) == [10, 11, 20, 21, 30, 31]


async def test_rule_an_error_of_a_nested_workflow_is_an_outcome_like_any_other(engine: Engine):
    @workflow
    async def failing() -> None:
        await note(1)
        raise KeyError("inside")

    @workflow
    async def flow() -> str:
        try:
            await failing()
        except KeyError as error:
            return f"caught {error} {await note(2)}"
        return ""

    first = await engine.run(flow)
    assert first.output == "caught 'inside' 2"
    assert (await engine.fork(flow, first.execution_id)).output == first.output
    assert ran == [1, 2]


async def test_rule_a_workflow_called_in_a_body_is_refused_and_names_the_way(engine: Engine):
    @step
    async def body() -> Any:
        return await inner(1)

    @workflow
    async def flow() -> str:
        try:
            await body()
        except PerdureError as error:
            return str(error)
        return ""

    assert "workflow code" in (await engine.run(flow)).output


async def test_rule_outside_a_run_workflows_and_steps_are_plain_functions():
    assert await note(5) == 5
    assert await inner(1) == [1, 2]
    assert ran == [5, 1, 2]


async def test_rule_a_journal_call_under_an_operation_that_has_ended_raises(engine: Engine):
    """A task that a body left behind: its calls belong to nothing any more."""
    caught: list[str] = []
    done = asyncio.Event()

    @step
    async def leaves_a_task() -> str:
        async def later() -> None:
            await gate.stand()
            try:
                await note(99)
            except BaseException as error:
                caught.append(str(error))
            done.set()

        task = asyncio.ensure_future(later())
        await gate.reached.wait()
        return f"left {task.done()}"

    @step
    async def wait() -> None:
        gate.open()
        await done.wait()

    @workflow
    async def flow() -> str:
        left = await leaves_a_task()
        await wait()
        return left

    assert (await engine.run(flow)).output == "left False"
    assert len(caught) == 1
    assert "ended" in caught[0]
    assert ran == []


async def test_rule_engine_tasks_start_in_an_empty_context(engine: Engine):
    """Nothing of the caller's context reaches the run: at a replay in another process it would not be there."""

    @workflow
    async def flow() -> str:
        return tenant.get()

    token = tenant.set("the caller's")
    try:
        assert (await engine.run(flow)).output == "nobody"
    finally:
        tenant.reset(token)


async def test_rule_what_the_code_sets_is_seen_by_its_bodies_and_tasks(engine: Engine):
    @step
    async def read() -> str:
        return tenant.get()

    @step
    def read_in_thread() -> str:
        return tenant.get()

    @workflow
    async def flow() -> list[str]:
        tenant.set("ours")
        return [await read(), await read_in_thread(), *await asyncio.gather(read(), read())]

    assert (await engine.run(flow)).output == ["ours"] * 4
    assert tenant.get() == "nobody"


async def test_rule_what_a_body_sets_stays_in_the_body(engine: Engine):
    """A replay does not run the body, so what it leaves behind in the context may not count."""

    @step
    async def change() -> None:
        tenant.set("changed by the body")

    @workflow
    async def flow() -> str:
        await change()
        return tenant.get()

    assert (await engine.run(flow)).output == "nobody"


async def test_rule_two_runs_do_not_see_each_others_context(engine: Engine):
    @workflow
    async def flow(name: str) -> str:
        tenant.set(name)
        await note(1)
        return tenant.get()

    results = await asyncio.gather(*(engine.run(flow, name) for name in "abc"))
    assert [result.output for result in results] == ["a", "b", "c"]


async def test_rule_sync_bodies_run_in_threads_and_async_ones_on_the_real_loop(engine: Engine):
    here = threading.get_ident()

    @step
    def sync_body() -> bool:
        return threading.get_ident() == here

    @step
    async def async_body() -> bool:
        return threading.get_ident() == here

    @workflow
    async def flow() -> list[bool]:
        return [await sync_body(), await async_body()]

    assert (await engine.run(flow)).output == [False, True]


async def test_rule_a_durable_call_from_a_thread_the_code_made_raises(engine: Engine):
    """A wrong thread has no place in the run: nothing is recorded under somebody else's number."""
    raised: list[str] = []

    @workflow
    async def flow() -> int:
        def elsewhere() -> None:
            try:
                interrupt("from a thread?")
            except BaseException as error:
                raised.append(type(error).__name__)

        context = contextvars.copy_context()
        thread = threading.Thread(target=context.run, args=(elsewhere,))
        thread.start()
        thread.join()
        return await note(1)

    assert (await engine.run(flow)).output == 1
    assert len(raised) == 1


async def test_rule_a_durable_call_from_a_plain_callback_raises(engine: Engine):
    raised: list[str] = []

    @workflow
    async def flow() -> int:
        def callback() -> None:
            try:
                call = note(2)
                call.close()
            except RuntimeError as error:
                raised.append(str(error))

        asyncio.get_running_loop().call_soon(callback)
        await asyncio.sleep(0)
        return await note(1)

    assert (await engine.run(flow)).output == 1
    assert len(raised) == 1


async def test_rule_async_generators_with_durable_calls_work_and_close(engine: Engine):
    closed: list[str] = []

    async def numbers() -> Any:
        try:
            for n in range(10):
                yield await note(n)
        finally:
            closed.append("closed")

    @workflow
    async def flow() -> list[int]:
        found = []
        stream = numbers()
        async for n in stream:
            found.append(n)
            if n == 2:
                break
        await stream.aclose()
        return [*found, await note(7)]

    first = await engine.run(flow)
    assert first.output == [0, 1, 2, 7]
    assert (await engine.fork(flow, first.execution_id)).output == first.output
    assert closed == ["closed", "closed"]


async def test_rule_operation_id_and_patched_belong_where_they_mean_something(engine: Engine):
    @step
    async def in_body() -> list[str]:
        found = [operation_id()]
        try:
            patched("x")
        except PerdureError as error:
            found.append(str(error))
        return found

    @workflow
    async def flow() -> list[str]:
        found = await in_body()
        try:
            operation_id()
        except PerdureError as error:
            found.append(str(error))
        return found

    result = await engine.run(flow, execution_id="r1")
    assert result.output[0] == "r1/0"
    assert "workflow code" in result.output[1]
    assert "body" in result.output[2]


async def test_rule_many_runs_at_once_are_independent(engine: Engine):
    results = await asyncio.gather(*(engine.run(inner, n) for n in range(100)))
    assert [result.output for result in results] == [[n, n + 1] for n in range(100)]


async def test_rule_a_keyed_question_of_a_nested_workflow_replays_after_it_has_completed(
    engine: Engine, store_url: str
):
    """It belongs to the nested workflow, whose own code no longer runs at replay."""

    @workflow
    async def keyed() -> bool:
        return interrupt("first?", key="k1").approved

    @workflow
    async def flow() -> list[bool]:
        return [await keyed(), interrupt("second?").approved]

    await engine.run(flow, execution_id="r")
    for reason in ("second?", None):
        async with opened(store_url) as later:
            result = await later.resume(flow, "r", resume_value=YES)
        assert (result.pending_interrupt or {}).get("reason") == reason
    assert result.output == [True, True]


async def test_rule_the_same_key_in_two_nested_workflows_is_two_questions(engine: Engine):
    """A question's key counts inside the nested workflow that asks it."""

    @workflow
    async def keyed() -> bool:
        return interrupt("which?", key="k").approved

    @workflow
    async def flow() -> list[bool]:
        return list(await asyncio.gather(keyed(), keyed()))

    paused = await engine.run(flow)
    first, second = ids_of(paused)
    answers = {first: YES, second: Resume(approved=False)}
    result = await engine.resume(flow, paused.execution_id, resume_value=answers)
    assert sorted(result.output) == [False, True]


async def test_rule_a_nested_workflow_that_leaves_calls_open_has_failed(engine: Engine):
    """What goes on after its end would never be replayed; the error is its outcome."""

    @workflow
    async def leaving() -> int:
        task = asyncio.create_task(hold())
        await note(1)
        assert not task.done()
        return 1

    @workflow
    async def flow() -> int:
        return await leaving()

    async with asyncio.timeout(20):
        waiting = asyncio.ensure_future(engine.run(flow, execution_id="r"))
        await gate.reached.wait()
        gate.open()
        with pytest.raises(UnawaitedOperation, match="hold"):
            await waiting
    assert (await journal_of(engine, "r")).operations["0"].outcome == "error"


async def test_rule_a_task_of_a_nested_workflow_makes_no_calls_after_its_end(engine: Engine):
    """An effect recorded below an operation that has ended is lost at the next load, so it is refused first."""

    @workflow
    async def flow() -> str:
        go_on = asyncio.Event()
        tasks: list[asyncio.Task[int]] = []

        @workflow(name="nested.leaving a task")
        async def leaving() -> None:
            async def later() -> int:
                await go_on.wait()
                return await note(7)

            tasks.append(asyncio.create_task(later()))
            await asyncio.sleep(0)

        await leaving()
        go_on.set()
        try:
            await tasks[0]
        except PerdureError:
            return f"refused {await note(8)}"
        return "performed"

    async with asyncio.timeout(20):
        assert (await engine.run(flow)).output == "refused 8"
    assert ran == [8]


@workflow(name="nested.racing")
async def racing() -> Any:
    slow, fast = asyncio.create_task(hold()), asyncio.create_task(note(1))
    done, left = await asyncio.wait({slow, fast}, return_when=asyncio.FIRST_COMPLETED)
    for task in left:
        task.cancel()
    return done.pop().result()


@workflow(name="nested.racing_a_question")
async def racing_a_question() -> Any:
    async def asking() -> bool:
        return interrupt("in time?").approved

    slow, fast = asyncio.create_task(asking()), asyncio.create_task(note(1))
    done, left = await asyncio.wait({slow, fast}, return_when=asyncio.FIRST_COMPLETED)
    for task in left:
        task.cancel()
    return done.pop().result()


@workflow(name="nested.raising_beside_a_cancelled_task")
async def raising_beside_a_cancelled_task() -> Any:
    task = asyncio.create_task(hold())
    await note(1)
    try:
        raise ValueError("its own")
    finally:
        task.cancel()


@pytest.mark.parametrize("race", [racing, racing_a_question, raising_beside_a_cancelled_task], ids=lambda w: w.name)
async def test_rule_a_call_whose_task_was_cancelled_is_not_left_open_by_a_nested_workflow(
    engine: Engine, race: Workflow[Any, Any]
):
    """Every race ends like this: the losers are cancelled, and the winner's value is returned at once."""

    @workflow(name=f"{race.name} outside")
    async def flow() -> Any:
        try:
            return [await race(), await note(2)]
        except ValueError as error:
            return [str(error), await note(2)]

    async with asyncio.timeout(20):
        result = await engine.run(flow)
        again = await engine.fork(flow, result.execution_id)
    assert result.output in ([1, 2], ["its own", 2])
    assert again.output == result.output
    assert ran == [1, 2]


async def test_rule_what_a_nested_workflow_does_to_its_arguments_stays_there(engine: Engine, store_url: str):
    """At replay its code does not run, so its caller must not see it at the first execution either."""

    @workflow
    async def filling(x: list[int]) -> None:
        x.append(5)

    @workflow
    async def flow() -> list[Any]:
        x: list[int] = []
        await filling(x)
        first = await note(len(x))
        return [first, interrupt("go on?").approved, x]

    await engine.run(flow, execution_id="r")
    async with opened(store_url) as later:
        assert (await later.resume(flow, "r", resume_value=YES)).output == [0, True, []]
    assert ran == [0]
