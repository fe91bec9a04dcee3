"""Whose answer is it: which open questions a `resume_value` answers. Decides nothing by default. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from perdure.core import codec
from perdure.core.records import InterruptRow, QuestionStatus
from perdure.errors import AlreadyResumed, AmbiguousAnswer, DurableNotFoundError, InvalidInputError

if TYPE_CHECKING:
    from perdure.core.resume import Resume


def choose_answers(
    run_id: str,
    value: Resume | Mapping[str, Resume],
    interrupt_id: str | None,
    questions: Sequence[InterruptRow],
) -> dict[str, str]:
    """Interrupt ids and encoded answers. With one question open the address may be left out; with several it may
    not."""
    by_id = {row.interrupt_id: row for row in questions}
    pending = [row.interrupt_id for row in questions if row.status == QuestionStatus.PENDING]
    if isinstance(value, Mapping):
        if interrupt_id is not None:
            raise InvalidInputError("interrupt_id", "is given beside a mapping of answers; use one of the two")
        addressed = dict(value)
        if not addressed:
            raise InvalidInputError("resume_value", "is an empty mapping: nothing is approved by silence")
    elif interrupt_id is not None:
        addressed = {interrupt_id: value}
    else:
        if not pending:
            raise AlreadyResumed(run_id, f"run {run_id} has no open question; it was answered before")
        if len(pending) > 1:
            raise AmbiguousAnswer(run_id, pending)
        addressed = {pending[0]: value}
    for key in addressed:
        _check(run_id, key, by_id)
    return {key: encode_answer(answer) for key, answer in addressed.items()}


def _check(run_id: str, interrupt_id: str, by_id: Mapping[str, InterruptRow]) -> None:
    row = by_id.get(interrupt_id)
    if row is None:
        raise DurableNotFoundError(f"run {run_id} has no question {interrupt_id}")
    if row.status != QuestionStatus.PENDING:
        raise AlreadyResumed(run_id, f"question {interrupt_id} of run {run_id} is {row.status}")


def encode_answer(answer: object) -> str:
    """A `Resume`, as recorded. Anything else is refused: no answer is guessed."""
    from perdure.core.resume import Resume  # pydantic is loaded when somebody answers

    if not isinstance(answer, Resume):
        raise InvalidInputError("resume_value", f"must be a Resume, not {type(answer).__name__}")
    return codec.encode({"approved": answer.approved, "metadata": answer.metadata})
