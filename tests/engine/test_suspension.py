"""DESIGN "Suspended and parked": a question stops what asked it, and nobody else notices."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.engines import (
    HASTY,
    Gate,
    bare,
    ids_of,
    opened,
    operation_of,
    question_count,
    questions_of,
    record_that,
    records_of,
    status_that,
)

from perdure import InterruptSignal, Resume, interrupt, step, workflow
from perdure.engine.engine import Engine

ran: list[Any] = []
YES = Resume(approved=True)
NO = Resume(approved=False)


@pytest.fixture(autouse=True)
def fresh() -> None:
    ran.clear()


@step(name="suspension.quick")
async def quick(n: int) -> int:
    ran.append(f"quick {n}")
    return n


def leaves(error: BaseException) -> list[str]:
    """Class names of an error and, of a group, of all in it."""
    if isinstance(error, BaseExceptionGroup):
        return [name for inner in error.exceptions for name in leaves(inner)]
    return [type(error).__name__]


@step(name="suspension.ask")
async def ask(name: str) -> bool:
    ran.append(f"ask {name}")
    return interrupt(f"approve {name}?", {"name": name}).approved


async def test_rule_the_operation_and_its_question_are_stored_in_one_transaction(engine: Engine):
    @workflow
    async def flow() -> bool:
        return await ask("a")

    result = await engine.run(flow)

    op = await operation_of(engine, result.execution_id, "0")
    [question] = await questions_of(engine, result.execution_id)
    assert result.status == "paused"
    assert op.phase == "suspended"
    assert (question.path, question.index, question.status) == ("", 0, "pending")


async def test_rule_on_an_answer_the_body_runs_again_from_its_top(engine: Engine):
    @workflow
    async def flow() -> bool:
        return await ask("a")

    paused = await engine.run(flow)
    result = await engine.resume(flow, paused.execution_id, resume_value=YES)

    assert result.output is True
    assert ran == ["ask a", "ask a"]


async def test_rule_the_body_runs_again_under_the_same_operation_id(engine: Engine):
    from perdure import operation_id

    @step
    async def ask_with_id() -> bool:
        ran.append(operation_id())
        return interrupt("go on?").approved

    @workflow
    async def flow() -> bool:
        return await ask_with_id()

    paused = await engine.run(flow, execution_id="r1")
    await engine.resume(flow, paused.execution_id, resume_value=YES)
    assert ran == ["r1/0", "r1/0"]


async def test_rule_siblings_joins_and_handlers_never_see_a_question(engine: Engine):
    """The call of a suspended operation neither returns nor raises: no handler runs, no sibling is cancelled."""
    seen: list[str] = []

    @workflow
    async def flow() -> list[Any]:
        try:
            async with asyncio.TaskGroup() as group:
                asked = group.create_task(ask("a"))
                other = group.create_task(quick(1))
        except BaseException as error:
            seen.extend(leaves(error))
            raise
        return [asked.result(), other.result()]

    paused = await engine.run(flow)
    before = list(seen)
    result = await engine.resume(flow, paused.execution_id, resume_value=NO)

    assert paused.status == "paused"
    assert result.output == [False, 1]
    assert set(before) <= {"RunLost", "CancelledError"}, "at teardown only, and never an InterruptSignal"


async def test_rule_a_sibling_goes_on_and_its_steps_are_recorded_while_a_question_is_open(engine: Engine):
    @workflow
    async def flow() -> list[Any]:
        async def rest() -> int:
            for n in range(5):
                await quick(n)
            return 5

        return list(await asyncio.gather(ask("a"), rest()))

    paused = await engine.run(flow)
    result = await engine.resume(flow, paused.execution_id, resume_value=YES)

    assert result.output == [True, 5]
    assert ran.count("ask a") == 2
    assert [r for r in ran if r.startswith("quick")] == [f"quick {n}" for n in range(5)]


async def test_rule_a_direct_interrupt_freezes_only_its_own_task(engine: Engine):
    @workflow
    async def flow() -> list[Any]:
        async def asking() -> bool:
            ran.append("before")
            approved = interrupt("go on?").approved
            ran.append("after")
            return approved

        return list(await asyncio.gather(asking(), quick(1)))

    run_id = await engine.start(flow)
    await record_that(engine, run_id, type="completed", name="quick")
    [question] = await question_count(engine, run_id, 1)
    assert "after" not in ran
    result = await engine.resume(flow, run_id, resume_value=Resume(approved=True), interrupt_id=question.interrupt_id)
    assert result.output == [True, 1]


async def test_rule_no_finally_runs_and_no_lock_is_released_while_a_task_waits_in_memory(engine: Engine):
    """A run with a question that goes on elsewhere: the asking task stands where it is, its clean-up has not run."""
    gate = Gate()

    @step
    async def hold() -> None:
        await gate.stand()

    @workflow
    async def flow() -> list[Any]:
        lock = asyncio.Lock()
        order: list[str] = []

        async def asking() -> None:
            async with lock:
                try:
                    interrupt("go on?")
                    order.append("answered")
                finally:
                    order.append("finally")

        async def other() -> None:
            await hold()
            order.append("held" if lock.locked() else "free")

        await asyncio.gather(asking(), other())
        return order

    run_id = await engine.start(flow)
    await gate.reached.wait()
    [question] = await question_count(engine, run_id, 1)
    gate.open()
    result = await engine.resume(flow, run_id, resume_value=YES, interrupt_id=question.interrupt_id)
    assert set(result.output) == {"held", "answered", "finally"} or result.output == [
        "answered",
        "finally",
        "free",
    ]


async def test_rule_finally_runs_at_each_pause_and_its_calls_are_refused(engine: Engine):
    """At teardown journal calls raise `RunLost`, and whatever the code returns or raises is discarded."""
    seen: list[str] = []

    @workflow
    async def flow() -> str:
        try:
            interrupt("go on?")
            return "answered"
        finally:
            try:
                await quick(99)
                seen.append("clean-up ran")
            except BaseException as error:
                seen.append(type(error).__name__)
                raise

    paused = await engine.run(flow)
    assert paused.status == "paused"
    assert seen == ["RunLost"]
    assert ran == []

    result = await engine.resume(flow, paused.execution_id, resume_value=YES)
    assert result.output == "answered"
    assert seen == ["RunLost", "clean-up ran"]
    assert ran == ["quick 99"]


async def test_rule_what_code_returns_at_teardown_is_discarded(engine: Engine):
    @workflow
    async def flow() -> str:
        try:
            return f"{interrupt('go on?').approved}"
        except BaseException:
            return "swallowed everything"

    paused = await engine.run(flow)
    assert paused.status == "paused"
    result = await engine.resume(flow, paused.execution_id, resume_value=YES)
    assert result.output == "True"


async def test_rule_registration_pauses_even_if_the_code_swallows_the_signal(engine: Engine):
    """A body that catches everything: one question, a paused run, and a warning that names it."""

    @step
    async def swallowing() -> str:
        try:
            ran.append("body")
            return f"approved: {interrupt('go on?').approved}"
        except Exception:
            return "guessed"

    @workflow
    async def flow() -> str:
        return await swallowing()

    with pytest.warns(RuntimeWarning, match="swallowing"):
        paused = await engine.run(flow)
    assert paused.status == "paused"
    assert len(paused.pending_interrupts) == 1

    result = await engine.resume(flow, paused.execution_id, resume_value=YES)
    assert result.output == "approved: True"
    assert len(ran) == 2


async def test_rule_after_a_swallowed_signal_every_call_raises_it_again_before_doing_anything(engine: Engine):
    @step
    async def swallowing() -> list[Any]:
        found: list[Any] = []
        try:
            found.append(interrupt("first?").approved)
        except InterruptSignal:
            pass
        for attempt in (lambda: quick(1), lambda: interrupt("second?")):
            try:
                value = attempt()
                found.append(await value if asyncio.iscoroutine(value) else value.approved)
            except InterruptSignal as error:
                ran.append(error.reason)
        return found

    @workflow
    async def flow() -> list[Any]:
        return await swallowing()

    with pytest.warns(RuntimeWarning, match="swallowing"):
        paused = await engine.run(flow)
    assert [q["reason"] for q in paused.pending_interrupts] == ["first?"]
    assert ran == ["first?", "first?"]


async def test_rule_a_retry_wrapper_around_a_question_asks_once(engine: Engine):
    @step(retries=5)
    async def wrapped() -> bool:
        for _ in range(3):
            try:
                return interrupt("go on?").approved
            except InterruptSignal:
                ran.append("caught")
        raise OSError("gave up")

    @workflow
    async def flow() -> bool:
        return await wrapped()

    with pytest.warns(RuntimeWarning, match="wrapped"):
        paused = await engine.run(flow)
    assert len(paused.pending_interrupts) == 1
    assert (await engine.resume(flow, paused.execution_id, resume_value=YES)).output is True


async def test_rule_a_question_inside_a_call_inside_a_body_suspends_the_outermost_operation(engine: Engine):
    @step
    async def outer() -> list[Any]:
        ran.append("outer")
        return [await quick(1), await ask("a")]

    @workflow
    async def flow() -> list[Any]:
        return await outer()

    paused = await engine.run(flow)
    assert (await operation_of(engine, paused.execution_id, "0")).phase == "suspended"
    result = await engine.resume(flow, paused.execution_id, resume_value=YES)

    assert result.output == [1, True]
    assert ran == ["outer", "quick 1", "ask a", "outer", "ask a"], "the completed inner call is not repeated"


async def test_rule_an_answer_is_delivered_in_memory_if_the_run_is_there(engine: Engine):
    """The run stays, since a sibling is at work: nothing else is run again for the answer."""
    gate = Gate()
    drives: list[str] = []

    @step
    async def hold() -> None:
        await gate.stand()

    @workflow
    async def flow() -> list[Any]:
        drives.append("code")
        found = await asyncio.gather(ask("a"), hold())
        return [found[0]]

    run_id = await engine.start(flow)
    await gate.reached.wait()
    await question_count(engine, run_id, 1)
    await engine.answer(run_id, YES)
    await record_that(engine, run_id, type="completed", name="ask")
    gate.open()
    assert (await engine.run(flow, execution_id=run_id)).output == [True]
    assert drives == ["code"]


async def test_rule_an_answer_from_another_process_reaches_a_run_that_is_being_run(engine: Engine, store_url: str):
    gate = Gate()

    @step
    async def hold() -> None:
        await gate.stand()

    @workflow
    async def flow() -> list[Any]:
        return list(await asyncio.gather(ask("a"), hold()))

    run_id = await engine.start(flow)
    await gate.reached.wait()
    await question_count(engine, run_id, 1)
    async with opened(store_url) as other:
        await other.answer(run_id, NO)
    await record_that(engine, run_id, type="completed", name="ask")
    gate.open()
    assert (await engine.run(flow, execution_id=run_id)).output == [False, None]


async def test_rule_a_suspended_operation_survives_a_restart_with_its_siblings_records(engine: Engine, store_url: str):
    @workflow
    async def flow() -> list[Any]:
        return list(await asyncio.gather(quick(1), ask("a"), quick(2)))

    async with opened(store_url, HASTY) as first:
        paused = await first.run(flow)
    result = await engine.resume(flow, paused.execution_id, resume_value=YES)

    assert result.output == [1, True, 2]
    assert sorted(ran) == ["ask a", "ask a", "quick 1", "quick 2"]


async def test_rule_a_waiting_run_holds_no_slot_lease_or_owner(engine: Engine):
    @workflow
    async def flow() -> bool:
        return await ask("a")

    paused = await engine.run(flow)
    row = await status_that(engine, paused.execution_id, "waiting")
    assert row.worker_id is None
    assert engine.host.drives == {}


async def test_rule_the_interrupted_checkpoint_is_there_when_the_question_is(engine: Engine):
    from perdure.core.checkpoints import checkpoints

    @workflow
    async def flow() -> list[Any]:
        return [await quick(1), await ask("a")]

    paused = await engine.run(flow)
    view = checkpoints(await engine.store.run_load(paused.execution_id))
    assert [(bare(c.node_id), c.status) for c in view] == [("quick", "completed"), ("ask", "interrupted")]


async def test_rule_a_question_that_has_lost_its_race_is_abandoned(engine: Engine):
    gate = Gate()

    @step
    async def hold() -> str:
        await gate.stand()
        return "nobody came"

    @workflow
    async def flow() -> list[str]:
        racers = [asyncio.ensure_future(ask("a")), asyncio.ensure_future(hold())]
        done, left = await asyncio.wait(racers, return_when=asyncio.FIRST_COMPLETED)
        for task in left:
            task.cancel()
        return [str(task.result()) for task in done]

    run_id = await engine.start(flow)
    await gate.reached.wait()
    await question_count(engine, run_id, 1)
    gate.open()
    await status_that(engine, run_id, "completed", "failed")
    assert (await engine.run(flow, execution_id=run_id)).output == ["nobody came"]
    assert [q.status for q in await questions_of(engine, run_id)] == ["abandoned"]


async def test_rule_a_timeout_around_a_direct_question_can_be_lost_by_the_person(engine: Engine):
    @workflow
    async def flow() -> str:
        async def asking() -> str:
            return f"answered {interrupt('go on?').approved}"

        try:
            return await asyncio.wait_for(asking(), 0.01)
        except TimeoutError:
            return "nobody came"

    run_id = await engine.start(flow)
    await status_that(engine, run_id, "completed", "failed")
    assert (await engine.run(flow, execution_id=run_id)).output == "nobody came"


async def test_rule_parallel_questions_are_all_open_at_once_and_answered_in_any_order(engine: Engine):
    @workflow
    async def flow() -> list[bool]:
        return list(await asyncio.gather(*(ask(name) for name in "abc")))

    paused = await engine.run(flow)
    by_name = {q["context"]["name"]: q["interrupt_id"] for q in paused.pending_interrupts}
    assert sorted(by_name) == ["a", "b", "c"]
    assert len(set(ids_of(paused))) == 3

    for name, answer in (("c", NO), ("a", YES)):
        paused = await engine.resume(flow, paused.execution_id, resume_value=answer, interrupt_id=by_name[name])
        assert paused.status == "paused"
    result = await engine.resume(flow, paused.execution_id, resume_value={by_name["b"]: YES})

    assert result.output == [True, True, False]
    delivered = [r for r in await records_of(engine, paused.execution_id) if r.type == "delivered"]
    assert len(delivered) == 3
