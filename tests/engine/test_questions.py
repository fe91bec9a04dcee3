"""DESIGN §9: whose question, whose answer."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.support.engines import (
    Gate,
    ids_of,
    opened,
    question_count,
    questions_of,
    record_that,
    records_of,
    row_of,
)

from perdure import (
    AlreadyResumed,
    AmbiguousAnswer,
    ChainResumeError,
    DurableNotFoundError,
    DurableRecoveryError,
    InvalidInputError,
    PerdureError,
    Resume,
    SerializationError,
    interrupt,
    step,
    workflow,
)
from perdure.engine.engine import Engine
from perdure.flow.workflow import Workflow

YES = Resume(approved=True)
NO = Resume(approved=False)
ran: list[Any] = []
code: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def fresh() -> None:
    ran.clear()
    code.clear()


@workflow(name="questions.two_in_a_row")
async def two_in_a_row() -> list[bool]:
    return [interrupt("first?").approved, interrupt("second?").approved]


@workflow(name="questions.two_in_one_body")
async def two_in_one_body() -> list[bool]:
    return await ask_twice()


@step(name="questions.ask_twice")
async def ask_twice() -> list[bool]:
    ran.append("body")
    return [interrupt("first?").approved, interrupt("second?").approved]


@workflow(name="questions.two_at_once")
async def two_at_once() -> list[bool]:
    async def asking(name: str) -> bool:
        return interrupt(f"{name}?", {"name": name}).approved

    return list(await asyncio.gather(asking("a"), asking("b")))


# --- identity -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("flow", [two_in_a_row, two_in_one_body], ids=lambda flow: flow.name)
async def test_rule_two_questions_in_one_place_are_asked_one_after_the_other(engine: Engine, flow: Workflow):
    paused = await engine.run(flow)
    assert [q["reason"] for q in paused.pending_interrupts] == ["first?"]
    paused = await engine.resume(flow, paused.execution_id, resume_value=YES)
    assert [q["reason"] for q in paused.pending_interrupts] == ["second?"]
    result = await engine.resume(flow, paused.execution_id, resume_value=NO)

    assert result.output == [True, False]
    questions = await questions_of(engine, paused.execution_id)
    assert [(q.status, q.answer is not None) for q in questions] == [("answered", True)] * 2


async def test_rule_a_question_has_the_same_id_at_every_execution(engine: Engine):
    paused = await engine.run(two_in_one_body)
    first = ids_of(paused)
    paused = await engine.run(two_in_one_body, execution_id=paused.execution_id)
    assert ids_of(paused) == first
    paused = await engine.resume(two_in_one_body, paused.execution_id, resume_value=YES)
    assert set(first).isdisjoint(ids_of(paused))


async def test_rule_a_key_names_the_question_where_the_order_of_calls_changes(engine: Engine):
    """Asked as a then b, both keyed; after the answer to a the body asks b first: each call gets its own answer."""

    @step
    async def keyed() -> dict[str, bool]:
        order = code.get("order", "ab")
        return {name: interrupt(f"{name}?", key=name).approved for name in order}

    @workflow
    async def flow() -> dict[str, bool]:
        return await keyed()

    paused = await engine.run(flow)
    code["order"] = "ba"
    paused = await engine.resume(flow, paused.execution_id, resume_value=YES)
    assert [q["reason"] for q in paused.pending_interrupts] == ["b?"]
    result = await engine.resume(flow, paused.execution_id, resume_value=NO)
    assert result.output == {"a": True, "b": False}


async def test_rule_the_answer_to_another_reason_is_not_delivered_and_both_are_shown(engine: Engine):
    code["reason"] = "pay 10?"

    @step
    async def body() -> bool:
        return interrupt(code["reason"]).approved

    @workflow
    async def flow() -> bool:
        return await body()

    paused = await engine.run(flow)
    code["reason"] = "pay 10000?"
    with pytest.raises(DurableRecoveryError, match=r"pay 10\?.*pay 10000\?"):
        await engine.resume(flow, paused.execution_id, resume_value=YES)
    assert (await row_of(engine, paused.execution_id)).status == "needs_attention"


async def test_rule_a_direct_question_with_another_reason_stops_the_run_too(engine: Engine):
    code["reason"] = "pay 10?"

    @workflow
    async def flow() -> bool:
        return interrupt(code["reason"]).approved

    paused = await engine.run(flow)
    code["reason"] = "pay 10000?"
    with pytest.raises(DurableRecoveryError, match=r"pay 10\?.*pay 10000\?"):
        await engine.resume(flow, paused.execution_id, resume_value=YES)


# --- context ------------------------------------------------------------------------------------------


def asking_with(context: Any, *, in_body: bool, bind: bool) -> Workflow:
    """A workflow whose question shows what `code` says now."""
    code["context"] = context

    @step(name="questions.contextual")
    async def contextual() -> bool:
        return interrupt("go on?", {"amount": code["context"]}, bind=bind).approved

    @workflow(name="questions.context flow")
    async def flow() -> bool:
        if in_body:
            return await contextual()
        return interrupt("go on?", {"amount": code["context"]}, bind=bind).approved

    return flow


@pytest.mark.parametrize("in_body", [True, False], ids=["in a body", "direct"])
async def test_rule_a_changed_context_is_delivered_all_the_same_and_an_event_says_so(engine: Engine, in_body: bool):
    flow = asking_with(10, in_body=in_body, bind=False)
    paused = await engine.run(flow)
    code["context"] = 11
    result = await engine.resume(flow, paused.execution_id, resume_value=YES)

    notes = [r for r in await records_of(engine, paused.execution_id) if r.type == "note"]
    [question] = await questions_of(engine, paused.execution_id)
    assert result.output is True
    assert [r.name for r in notes] == ["context_changed"]
    assert question.context == '{"amount":10}', "what the approver saw is the record"


@pytest.mark.parametrize("in_body", [True, False], ids=["in a body", "direct"])
async def test_rule_with_bind_what_was_approved_is_what_runs(engine: Engine, in_body: bool):
    flow = asking_with(10, in_body=in_body, bind=True)
    paused = await engine.run(flow)
    code["context"] = 11
    with pytest.raises(DurableRecoveryError, match="approved"):
        await engine.resume(flow, paused.execution_id, resume_value=YES)
    code["context"] = 10
    assert (await engine.resume(flow, paused.execution_id)).output is True


async def test_rule_the_context_is_frozen_when_it_is_asked(engine: Engine):
    @workflow
    async def flow() -> bool:
        shown = {"items": [1]}

        async def asking() -> bool:
            return interrupt("go on?", shown).approved

        task = asyncio.ensure_future(asking())
        await asyncio.sleep(0)
        shown["items"].append(2)
        return await task

    paused = await engine.run(flow)
    assert paused.pending_interrupt is not None
    assert paused.pending_interrupt["context"] == {"items": [1]}


async def test_rule_bad_arguments_ask_nothing(engine: Engine):
    bad: list[tuple[dict[str, Any], type[Exception]]] = [
        ({"reason": "  "}, InvalidInputError),
        ({"reason": 5}, InvalidInputError),
        ({"reason": "ok", "context": [1]}, InvalidInputError),
        ({"reason": "ok", "key": " "}, InvalidInputError),
        ({"reason": "ok", "context": {"f": object()}}, SerializationError),
    ]

    @workflow
    async def flow() -> list[str]:
        raised = []
        for arguments, _ in bad:
            try:
                interrupt(**arguments)
            except Exception as error:
                raised.append(type(error).__name__)
        return raised

    result = await engine.run(flow)
    assert result.output == [cls.__name__ for _, cls in bad]
    assert await questions_of(engine, result.execution_id) == []


async def test_rule_outside_a_run_nothing_can_be_asked():
    with pytest.raises(PerdureError, match="outside"):
        interrupt("anybody?")


# --- answers ------------------------------------------------------------------------------------------


async def test_rule_a_decision_has_approved_and_metadata_and_both_arrive(engine: Engine):
    @workflow
    async def flow() -> list[Any]:
        answer = interrupt("go on?")
        return [answer.approved, answer.metadata]

    paused = await engine.run(flow)
    metadata = {"note": "only half", "amount": 5.5, "tags": ["a", None]}
    result = await engine.resume(flow, paused.execution_id, resume_value=Resume(approved=False, metadata=metadata))
    assert result.output == [False, metadata]


async def test_rule_with_several_questions_open_an_answer_without_address_is_refused(engine: Engine):
    paused = await engine.run(two_at_once)
    with pytest.raises(AmbiguousAnswer) as caught:
        await engine.resume(two_at_once, paused.execution_id, resume_value=YES)
    assert set(caught.value.interrupt_ids) == set(ids_of(paused))
    assert {q.status for q in await questions_of(engine, paused.execution_id)} == {"pending"}


async def test_rule_several_answers_are_given_in_one_mapping(engine: Engine):
    paused = await engine.run(two_at_once)
    names = {q["interrupt_id"]: q["context"]["name"] for q in paused.pending_interrupts}
    answers = {question: (YES if name == "a" else NO) for question, name in names.items()}
    assert (await engine.resume(two_at_once, paused.execution_id, resume_value=answers)).output == [
        True,
        False,
    ]


async def test_rule_partial_answers_leave_the_others_open(engine: Engine):
    paused = await engine.run(two_at_once)
    first, second = ids_of(paused)
    paused = await engine.resume(two_at_once, paused.execution_id, resume_value={second: YES})
    assert paused.status == "paused"
    assert ids_of(paused) == [first]
    result = await engine.resume(two_at_once, paused.execution_id, resume_value=YES)
    assert result.status == "completed"


async def test_rule_a_mapping_with_one_bad_id_stores_nothing(engine: Engine):
    paused = await engine.run(two_at_once)
    with pytest.raises(DurableNotFoundError):
        await engine.resume(two_at_once, paused.execution_id, resume_value={ids_of(paused)[0]: YES, "q_unknown": YES})
    assert {q.status for q in await questions_of(engine, paused.execution_id)} == {"pending"}


async def test_rule_an_answer_to_an_unknown_question_is_refused(engine: Engine):
    paused = await engine.run(two_at_once)
    with pytest.raises(DurableNotFoundError, match="q_unknown"):
        await engine.resume(two_at_once, paused.execution_id, resume_value=YES, interrupt_id="q_unknown")


async def test_rule_an_answer_to_an_answered_question_is_refused(engine: Engine):
    paused = await engine.run(two_at_once)
    first, second = ids_of(paused)
    await engine.resume(two_at_once, paused.execution_id, resume_value={first: YES})
    with pytest.raises(AlreadyResumed):
        await engine.resume(two_at_once, paused.execution_id, resume_value={first: NO})
    rows = {q.interrupt_id: q for q in await questions_of(engine, paused.execution_id)}
    assert '"approved":true' in (rows[first].answer or "")
    assert rows[second].status == "pending"


async def test_rule_an_answer_to_a_question_of_another_run_is_refused(engine: Engine):
    one, other = await engine.run(two_at_once), await engine.run(two_at_once)
    with pytest.raises(DurableNotFoundError):
        await engine.resume(two_at_once, one.execution_id, resume_value=YES, interrupt_id=ids_of(other)[0])
    assert {q.status for q in await questions_of(engine, other.execution_id)} == {"pending"}


@pytest.mark.parametrize("value", [{}, True, "yes", {"approved": True}, 1])
async def test_rule_nothing_but_a_resume_is_an_answer(engine: Engine, value: Any):
    paused = await engine.run(two_in_a_row)
    with pytest.raises((InvalidInputError, DurableNotFoundError)):
        await engine.resume(two_in_a_row, paused.execution_id, resume_value=value)
    assert [q.status for q in await questions_of(engine, paused.execution_id)] == ["pending"]


async def test_rule_an_address_beside_a_mapping_is_refused(engine: Engine):
    paused = await engine.run(two_in_a_row)
    [question] = ids_of(paused)
    with pytest.raises(InvalidInputError, match="interrupt_id"):
        await engine.resume(two_in_a_row, paused.execution_id, resume_value={question: YES}, interrupt_id=question)


async def test_rule_resuming_a_question_without_an_answer_is_refused(engine: Engine):
    paused = await engine.run(two_in_a_row)
    with pytest.raises(ChainResumeError, match="answer"):
        await engine.resume(two_in_a_row, paused.execution_id)
    assert [q.status for q in await questions_of(engine, paused.execution_id)] == ["pending"]


async def test_rule_who_answered_and_when_is_recorded_and_never_taken_from_the_answer(engine: Engine):
    paused = await engine.run(two_at_once)
    first, second = ids_of(paused)
    claimed = Resume(approved=True, metadata={"answered_by": "the chief"})
    await engine.resume(two_at_once, paused.execution_id, resume_value={first: claimed}, answered_by="clerk")
    await engine.resume(two_at_once, paused.execution_id, resume_value={second: claimed})
    by_id = {q.interrupt_id: q for q in await questions_of(engine, paused.execution_id)}
    assert by_id[first].answered_by == "clerk"
    assert by_id[second].answered_by is None
    assert by_id[first].answered_at is not None


async def test_rule_answers_enter_in_order_of_arrival(engine: Engine, store_url: str):
    """Both were stored while nobody ran the run; the second question was answered first."""
    order: list[str] = []

    @workflow
    async def flow() -> list[str]:
        async def asking(name: str) -> None:
            interrupt(f"{name}?", {"name": name})
            order.append(name)

        await asyncio.gather(asking("a"), asking("b"))
        return order

    paused = await engine.run(flow)
    by_name = {q["context"]["name"]: q["interrupt_id"] for q in paused.pending_interrupts}
    for name in "ba":
        await engine.answer(paused.execution_id, {by_name[name]: YES})
    async with opened(store_url) as second:
        await second.recover([flow])
    assert order == ["b", "a"]


async def test_rule_an_answer_is_used_once(engine: Engine):
    """A loop that asks at each turn asks anew at each turn."""

    @workflow
    async def flow() -> int:
        turns = 0
        while interrupt(f"turn {turns}?").approved:
            turns += 1
        return turns

    result = await engine.run(flow)
    for answer in (YES, YES, NO):
        assert result.status == "paused"
        result = await engine.resume(flow, result.execution_id, resume_value=answer)
    assert result.output == 2


async def test_rule_questions_of_several_tasks_of_one_body_need_keys_or_equal_contexts(engine: Engine):
    """Tasks of a body run in an order of their own; an answer must not go to what was not approved."""

    @step
    async def both() -> list[bool]:
        async def asking(name: str) -> bool:
            return interrupt("pay?", {"to": name}, key=name).approved

        return list(await asyncio.gather(asking("a"), asking("b")))

    @workflow
    async def flow() -> list[bool]:
        return await both()

    result = await engine.run(flow)
    answers = {"a": YES, "b": NO}
    while result.status == "paused":
        given = {q["interrupt_id"]: answers[q["context"]["to"]] for q in result.pending_interrupts}
        result = await engine.resume(flow, result.execution_id, resume_value=given)
    assert result.output == [True, False]


async def test_rule_a_question_is_visible_and_answerable_while_its_run_goes_on(engine: Engine):
    gate = Gate()

    @step
    async def hold() -> int:
        await gate.stand()
        return 1

    @workflow
    async def flow() -> list[Any]:
        async def asking() -> bool:
            return interrupt("go on?").approved

        return list(await asyncio.gather(asking(), hold()))

    run_id = await engine.start(flow)
    await gate.reached.wait()
    [question] = await question_count(engine, run_id, 1)
    await engine.answer(run_id, {question.interrupt_id: YES})
    await record_that(engine, run_id, type="completed", kind="interrupt")
    gate.open()
    assert (await engine.run(flow, execution_id=run_id)).output == [True, 1]


async def test_rule_sync_bodies_may_ask_too(engine: Engine):
    @step
    def sync_body() -> bool:
        ran.append("sync")
        return interrupt("go on?").approved

    @workflow
    async def flow() -> bool:
        return await sync_body()

    paused = await engine.run(flow)
    assert (await engine.resume(flow, paused.execution_id, resume_value=YES)).output is True
    assert ran == ["sync", "sync"]


async def test_rule_what_a_paused_result_shows_of_a_question(engine: Engine):
    @workflow
    async def flow() -> bool:
        return interrupt("Pay?", {"amount": 5}).approved

    paused = await engine.run(flow)
    assert paused.pending_interrupt == paused.pending_interrupts[0]
    assert paused.pending_interrupt is not None
    assert set(paused.pending_interrupt) == {"interrupt_id", "reason", "context", "node_id", "agent_path"}
    assert (paused.pending_interrupt["reason"], paused.pending_interrupt["context"]) == (
        "Pay?",
        {"amount": 5},
    )
    assert paused.output is None


@pytest.mark.parametrize("place", ["code", "bodies", "nested"])
async def test_rule_parallel_questions_are_listed_in_the_order_they_were_asked(engine: Engine, place: str):
    """Also those that one entry has stored: the first of a result is the one that was asked first."""

    async def ask_in_code(n: int) -> bool:
        return interrupt(f"question {n}").approved

    @step(name=f"questions.ask_in_order {place}")
    async def ask_in_body(n: int) -> bool:
        return interrupt(f"question {n}").approved

    @workflow(name=f"questions.ask_in_order_nested {place}")
    async def ask_nested(n: int) -> bool:
        return interrupt(f"question {n}").approved

    ask = {"code": ask_in_code, "bodies": ask_in_body, "nested": ask_nested}[place]

    @workflow(name=f"questions.in_order {place}")
    async def flow() -> list[bool]:
        return list(await asyncio.gather(*(ask(n) for n in range(12))))

    paused = await engine.run(flow)
    expected = [f"question {n}" for n in range(12)]
    assert paused.pending_interrupt is not None
    assert paused.pending_interrupt["reason"] == "question 0"
    assert [question["reason"] for question in paused.pending_interrupts] == expected
    assert [json.loads(row.reason) for row in await engine.store.interrupt_list(limit=100)] == expected


async def test_rule_a_later_task_that_asks_first_is_listed_first(engine: Engine):
    """The order is that of asking, not that of the tasks."""

    @workflow
    async def flow() -> list[bool]:
        async def ask(n: int) -> bool:
            for _ in range(3 - n):
                await asyncio.sleep(0)
            return interrupt(f"question {n}").approved

        return list(await asyncio.gather(*(ask(n) for n in range(3))))

    paused = await engine.run(flow)
    assert [question["reason"] for question in paused.pending_interrupts] == ["question 2", "question 1", "question 0"]
