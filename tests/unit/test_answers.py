"""Which open questions an answer is for. Nothing by default."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError
from tests.support.journals import question

from perdure.core import codec
from perdure.core.resume import Resume
from perdure.engine.answers import choose_answers, encode_answer
from perdure.errors import AlreadyResumed, AmbiguousAnswer, DurableNotFoundError, InvalidInputError

YES = Resume(approved=True)
ONE = [question("a")]
TWO = [question("a"), question("b", index=1)]


def test_with_one_open_the_address_may_be_left_out():
    assert list(choose_answers("r1", YES, None, ONE)) == ["a"]
    answered = question("b", index=1, status="answered", answer="{}")
    assert list(choose_answers("r1", YES, None, [*ONE, answered])) == ["a"]


def test_with_several_open_it_may_not():
    with pytest.raises(AmbiguousAnswer) as caught:
        choose_answers("r1", YES, None, TWO)
    assert caught.value.interrupt_ids == ("a", "b")


def test_with_none_open_there_is_nothing_to_answer():
    with pytest.raises(AlreadyResumed):
        choose_answers("r1", YES, None, [])
    with pytest.raises(AlreadyResumed):
        choose_answers("r1", YES, None, [question("a", status="answered")])


def test_an_address_or_a_mapping_says_which():
    assert list(choose_answers("r1", YES, "b", TWO)) == ["b"]
    assert list(choose_answers("r1", {"b": YES, "a": YES}, None, TWO)) == ["b", "a"]


def test_a_question_that_is_not_this_runs_is_not_found():
    for value, address in ((YES, "x"), ({"a": YES, "x": YES}, None)):
        with pytest.raises(DurableNotFoundError, match="x"):
            choose_answers("r1", value, address, TWO)


@pytest.mark.parametrize("status", ["answered", "withdrawn"])
def test_a_question_that_is_closed_is_already_resumed(status: str):
    rows = [question("a", status=status), question("b", index=1)]
    with pytest.raises(AlreadyResumed, match=status):
        choose_answers("r1", YES, "a", rows)


def test_an_empty_mapping_and_two_addresses_are_refused():
    with pytest.raises(InvalidInputError, match="silence"):
        choose_answers("r1", {}, None, ONE)
    with pytest.raises(InvalidInputError, match="interrupt_id"):
        choose_answers("r1", {"a": YES}, "a", ONE)


@pytest.mark.parametrize("value", [True, "yes", 1, {"approved": True}, object()])
def test_nothing_but_a_resume_is_an_answer(value: Any):
    with pytest.raises(InvalidInputError, match="Resume"):
        encode_answer(value)


def test_an_answer_is_recorded_with_its_metadata_exactly():
    text = encode_answer(Resume(approved=False, metadata={"why": (1, b"x")}))
    assert codec.decode(text) == {"approved": False, "metadata": {"why": (1, b"x")}}


# --- Resume -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("approved", ["yes", "true", 1, 0, None, [], {}])
def test_approved_is_a_bool_and_nothing_that_looks_like_one(approved: object):
    with pytest.raises(ValidationError):
        Resume(approved=approved)  # type: ignore[arg-type]


def test_approved_has_no_default():
    with pytest.raises(ValidationError):
        Resume()  # type: ignore[call-arg]


def test_an_unknown_field_is_dropped_with_a_warning_that_names_it():
    with pytest.warns(UserWarning, match="comment"):
        answer = Resume(approved=True, comment="x")  # type: ignore[call-arg]
    assert answer == YES
    assert not hasattr(answer, "comment")


def test_a_resume_cannot_be_changed():
    with pytest.raises(ValidationError):
        YES.approved = False  # type: ignore[misc]
