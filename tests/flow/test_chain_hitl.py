"""People in a chain: hitl nodes and questions of functions, what is shown, who has answered, what a no means."""

from __future__ import annotations

import asyncio
import datetime as dt
import threading
from decimal import Decimal
from typing import Any

import pytest
from tests.support.chains import NO, YES, Echo, line, point, questions

from perdure import (
    AlreadyResumed,
    AmbiguousAnswer,
    Chain,
    ChainTemplateError,
    DurableNotFoundError,
    DurableRecoveryError,
    InvalidInputError,
    Resume,
    SerializationError,
    interrupt,
)

ran: list[Any] = []


@pytest.fixture(autouse=True)
def fresh() -> None:
    ran.clear()


def gate(name: str, /, **given: Any) -> Chain:
    """Something before the question, and something behind it."""
    chain = Chain(name).add_node("before", fn=lambda: {"amount": 5})
    chain.add_node("ask", type="hitl", **given).add_node("behind", fn=lambda ask: ran.append(ask))
    return chain.connect("before", "ask").connect("ask", "behind")


# --- what is asked --------------------------------------------------------------------------------------


def test_rule_a_person_sees_reason_and_context_with_their_templates_filled(store_url: str):
    chain = gate(
        "templated", reason="Pay {{state.amount}} to {{input.who}}?", context={"n": "{{state.amount}}", "a": [1]}
    )
    paused = chain.run({"who": "ann"}, execution_id="r1", store=store_url)
    assert (paused.status, paused.output) == ("paused", None)
    (question,) = paused.pending_interrupts
    assert paused.pending_interrupt == question
    assert question == {
        "interrupt_id": question["interrupt_id"], "reason": "Pay 5 to ann?", "context": {"n": 5, "a": [1]},
        "node_id": "ask", "agent_path": None,
    }  # fmt: skip
    asked = point(store_url, "r1", "ask", status="interrupted")
    assert (asked.interrupt_reason, asked.state) == ("Pay 5 to ann?", {"who": "ann", "amount": 5})


def test_rule_without_a_reason_the_question_names_the_node(store_url: str):
    for given, reason in (({}, "ask: approve?"), ({"name": "Wire transfer"}, "Wire transfer: approve?")):
        assert gate("unreasoned", **given).run(store=store_url).pending_interrupts[0]["reason"] == reason


def test_rule_a_template_of_the_question_that_leads_nowhere_asks_nothing(store_url: str):
    with pytest.raises(ChainTemplateError, match=r"state\.nobody"):
        gate("nowhere", reason="Ask {{state.nobody}}?").run(execution_id="r1", store=store_url)
    assert questions(store_url, "r1") == []


def test_rule_a_context_of_rich_values_is_shown_as_they_are(store_url: str):
    given = {"sum": Decimal("1.10"), "due": dt.date(2024, 2, 29), "pair": (1, 2)}
    chain = Chain("rich").add_node("ask", type="hitl", context={name: f"{{{{state.{name}}}}}" for name in given})
    paused = chain.run(given, store=store_url)
    assert paused.pending_interrupts[0]["context"] == given


def test_rule_what_was_shown_stays_as_it_was(store_url: str):
    """The context is frozen at the question, whatever the code makes of it later."""
    shown = [{"n": 1}, {"n": 2}]

    def asks() -> Any:
        return interrupt("ok?", shown.pop(0)).approved

    paused = line("frozen", asks).run(execution_id="r1", store=store_url)
    result = asyncio.run(line("frozen", asks).aresume("r1", resume_value=YES, store=store_url))
    assert (paused.pending_interrupts[0]["context"], result.output) == ({"n": 1}, True)
    assert point(store_url, "r1", "asks", status="interrupted").interrupt_context == '{"n":1}'


def test_rule_a_bound_question_is_only_answered_for_what_was_shown(store_url: str):
    amounts = [5, 50]
    chain = Chain("bound").add_node("ask", fn=lambda: interrupt("pay?", {"amount": amounts[0]}, bind=True).approved)
    chain.run(execution_id="r1", store=store_url)
    amounts.pop(0)
    with pytest.raises(DurableRecoveryError, match="was asked with"):
        chain.resume("r1", resume_value=YES, store=store_url)
    amounts[0] = 5
    result: Any = chain.resume("r1", store=store_url)
    assert result.output is True


def test_rule_a_bound_hitl_node_asks_anew_when_the_state_it_shows_was_changed(store_url: str):
    """A yes to five is no yes to fifty."""
    chain = gate("bound hitl", context={"amount": "{{state.amount}}"}, bind=True)
    first = chain.run({}, execution_id="r1", store=store_url)
    second: Any = chain.resume("r1", resume_value=YES, modified_state={"amount": 50}, store=store_url)
    assert (second.status, ran) == ("paused", [])
    assert [one.pending_interrupts[0]["context"] for one in (first, second)] == [{"amount": 5}, {"amount": 50}]
    assert first.pending_interrupts[0]["interrupt_id"] != second.pending_interrupts[0]["interrupt_id"]
    result: Any = chain.resume("r1", resume_value=NO, store=store_url)
    assert result.output == {"approved": False, "metadata": {}}


# --- what is answered -----------------------------------------------------------------------------------


@pytest.mark.parametrize("approved", [True, False])
def test_rule_what_the_person_said_is_the_result_and_the_state_under_the_id(store_url: str, approved: bool):
    said = {"note": "fine", "n": [1, None], "ü": "\x00"}
    chain = gate("said").connect("ask", "behind", condition="not ask.approved")
    chain.run(execution_id="r1", store=store_url)
    result: Any = chain.resume("r1", resume_value=Resume(approved=approved, metadata=said), store=store_url)
    assert result.node_results["ask"] == {"approved": approved, "metadata": said}
    assert result.final_state["ask"] == {"approved": approved, "metadata": said}
    assert ran == [{"approved": approved, "metadata": said}]


def test_rule_an_output_key_keeps_the_answer_elsewhere(store_url: str):
    chain = Chain("elsewhere").add_node("ask", type="hitl", output_key="decision")
    paused = chain.run(store=store_url)
    result: Any = chain.resume(paused.execution_id, resume_value=YES, store=store_url)
    assert result.final_state == {"decision": {"approved": True, "metadata": {}}}


def test_rule_a_no_without_a_condition_leads_nowhere(store_url: str):
    chain = gate("no")
    chain.run(execution_id="r1", store=store_url)
    result: Any = chain.resume("r1", resume_value=NO, store=store_url)
    assert (result.status, result.output, ran) == ("completed", {"approved": False, "metadata": {}}, [])


def test_rule_who_has_answered_is_kept_and_is_not_what_they_say(store_url: str):
    chain = gate("who")
    chain.run(execution_id="r1", store=store_url)
    answer = Resume(approved=True, metadata={"answered_by": "mallory"})
    chain.resume("r1", resume_value=answer, answered_by="ann", store=store_url)
    assert [row.answered_by for row in questions(store_url, "r1")] == ["ann"]


@pytest.mark.parametrize("value", [{}, True, "yes", 1, [], {"approved": True}], ids=repr)
def test_rule_nothing_but_a_resume_approves(store_url: str, value: Any):
    chain = gate("strict")
    chain.run(execution_id="r1", store=store_url)
    with pytest.raises((InvalidInputError, DurableNotFoundError)):
        chain.resume("r1", resume_value=value, store=store_url)
    assert [row.status for row in questions(store_url, "r1")] == ["pending"]
    assert ran == []


def test_rule_an_answer_to_something_else_is_refused(store_url: str):
    chain = gate("addressed")
    chain.run(execution_id="r1", store=store_url)
    chain.run(execution_id="r2", store=store_url)
    (other,) = questions(store_url, "r2")
    for address in (other.interrupt_id, "nobody", "", 5):
        with pytest.raises((DurableNotFoundError, InvalidInputError)):
            chain.resume("r1", resume_value=YES, interrupt_id=address, store=store_url)  # type: ignore[arg-type]
    for who in (5, "", "a\n"):
        with pytest.raises(InvalidInputError, match="answered_by"):
            chain.resume("r1", resume_value=YES, answered_by=who, store=store_url)  # type: ignore[arg-type]
    assert {row.status for run_id in ("r1", "r2") for row in questions(store_url, run_id)} == {"pending"}


def test_rule_an_answer_that_cannot_be_stored_is_refused_and_asked_for_again(store_url: str):
    chain = gate("unstorable")
    chain.run(execution_id="r1", store=store_url)
    with pytest.raises(SerializationError):
        chain.resume("r1", resume_value=Resume(approved=True, metadata={"lock": threading.Lock()}), store=store_url)
    assert [row.status for row in questions(store_url, "r1")] == ["pending"]


# --- several --------------------------------------------------------------------------------------------


def test_rule_two_questions_of_one_node_are_asked_one_after_the_other(store_url: str):
    def asks() -> list[bool]:
        ran.append("asks")
        return [interrupt("first?").approved, interrupt("second?").approved, interrupt("second?").approved]

    chain = line("twice", asks)
    paused: Any = chain.run(execution_id="r1", store=store_url)
    seen = []
    for answer, reason in ((YES, "first?"), (NO, "second?"), (YES, "second?")):
        (question,) = paused.pending_interrupts
        assert question["reason"] == reason
        seen.append(question["interrupt_id"])
        paused = chain.resume("r1", resume_value=answer, store=store_url)
    assert (paused.output, ran) == ([True, False, True], ["asks"] * 4)
    assert len(set(seen)) == 3


def two_gates() -> Chain:
    chain = Chain("two gates").add_node("start", fn=lambda: None)
    for side in ("a", "b"):
        chain.add_node(side, type="hitl", reason=f"{side}?")
        chain.add_node(f"{side} then", fn=lambda side=side: ran.append(side))
        chain.connect("start", side).connect(side, f"{side} then")
    return chain


def test_rule_two_open_gates_are_answered_apart_or_together(store_url: str):
    for run_id, both in (("apart", False), ("together", True)):
        ran.clear()
        paused = two_gates().run(execution_id=run_id, store=store_url)
        ids = {q["reason"]: q["interrupt_id"] for q in paused.pending_interrupts}
        assert set(ids) == {"a?", "b?"}
        with pytest.raises(AmbiguousAnswer):
            two_gates().resume(run_id, resume_value=YES, store=store_url)
        if both:
            answers = {ids["a?"]: YES, ids["b?"]: NO}
            result: Any = two_gates().resume(run_id, resume_value=answers, store=store_url)
        else:
            left: Any = two_gates().resume(run_id, resume_value={ids["a?"]: YES}, store=store_url)
            assert ([q["interrupt_id"] for q in left.pending_interrupts], ran) == ([ids["b?"]], ["a"])
            with pytest.raises(AlreadyResumed):
                two_gates().resume(run_id, resume_value=YES, interrupt_id=ids["a?"], store=store_url)
            result = two_gates().resume(run_id, resume_value=NO, store=store_url)
        assert (result.status, ran) == ("completed", ["a"])


def test_rule_one_unknown_address_in_a_map_answers_nothing(store_url: str):
    paused = two_gates().run(execution_id="r1", store=store_url)
    first = paused.pending_interrupts[0]["interrupt_id"]
    with pytest.raises(DurableNotFoundError, match="nobody"):
        two_gates().resume("r1", resume_value={first: YES, "nobody": YES}, store=store_url)
    assert [row.status for row in questions(store_url, "r1")] == ["pending"] * 2


# --- swallowed ------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*asked a question and then:RuntimeWarning")
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_rule_a_node_that_swallows_the_signal_pauses_all_the_same(store_url: str, is_async: bool):
    def swallows() -> str:
        try:
            return f"approved {interrupt('go?').approved}"
        except Exception:
            ran.append("went on")
            return "went on"

    async def swallows_async() -> str:
        return swallows()

    chain = Chain("swallowing").add_node("a", fn=swallows_async if is_async else swallows)
    paused = chain.run(execution_id="r1", store=store_url)
    assert (paused.status, paused.node_results) == ("paused", {})
    result: Any = chain.resume("r1", resume_value=YES, store=store_url)
    assert (result.output, ran) == ("approved True", ["went on"])


def test_rule_an_interrupt_inside_an_agent_of_a_parallel_node_pauses_the_chain(store_url: str):
    class Asking(Echo):
        async def arun(self, value: Any) -> str:
            return f"{self.name} {interrupt('may I?', {'agent': self.name}).approved}"

    chain = Chain("agents asking").add_node("par", type="parallel", agents=[Asking("one"), Asking("two")])
    paused = chain.run(execution_id="r1", store=store_url)
    answers = {q["interrupt_id"]: Resume(approved=q["context"]["agent"] == "one") for q in paused.pending_interrupts}
    result: Any = chain.resume("r1", resume_value=answers, store=store_url)
    assert result.output == ["one True", "two False"]
