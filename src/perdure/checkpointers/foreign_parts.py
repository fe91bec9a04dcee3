"""Cuts what a run's owner writes into rows, one for each boundary, as people expect of checkpoints. Pure.

To put only the first of them is as if the process had died a moment earlier: records are in the order in which they
happened. What cannot be taken apart stays together: answers that have entered the run go with what they led to, and a
question with the operation that asked it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from perdure.core.records import Kind, Question, Record, RecordType
from perdure.core.states import is_terminal
from perdure.store.driver import Batch

_BOUNDARIES = frozenset({RecordType.COMPLETED, RecordType.SUSPENDED})
_IN_PASSING = frozenset({Kind.VALUE, Kind.ROUTE, Kind.PATCH})
"""Completions of these kinds are between two boundaries, not one."""


def parts_of(batch: Batch) -> list[Batch]:
    """The batch in parts; itself alone if there is nothing to cut, or it must not be cut."""
    if batch.delivered or batch.abandoned:
        return _end_apart(batch)
    pieces = _pieces(batch, lambda record: _is_boundary(record) or _is_end(batch, record))
    asked = _by_piece(batch.questions, pieces)
    return [batch] if len(pieces) == 1 or asked is None else _batches(batch, pieces, asked)


def _end_apart(batch: Batch) -> list[Batch]:
    """The end of a run has a row of its own in any case; what has entered the run goes before it."""
    pieces = _pieces(batch, lambda record: _is_end(batch, record))
    if len(pieces) == 1:
        return [batch]
    first, last = _batches(batch, pieces, [batch.questions, []])
    first.delivered, first.abandoned = batch.delivered, batch.abandoned
    return [first, last]


def _is_boundary(record: Record) -> bool:
    return record.type in _BOUNDARIES and record.kind not in _IN_PASSING and not record.path.startswith(("@", "%"))


def _is_end(batch: Batch, record: Record) -> bool:
    change = batch.change
    return (
        change is not None
        and is_terminal(change.status)
        and record is batch.records[-1]
        and record.type == RecordType.STATUS
    )


def _pieces(batch: Batch, is_cut: Callable[[Record], bool]) -> list[list[Record]]:
    """The records, cut before each of these; nothing is before the first piece."""
    pieces: list[list[Record]] = [[]]
    for record in batch.records:
        if pieces[-1] and is_cut(record):
            pieces.append([])
        pieces[-1].append(record)
    return pieces


def _by_piece(questions: Sequence[Question], pieces: Sequence[Sequence[Record]]) -> list[list[Question]] | None:
    """The questions of each piece; None if there is one that no operation here has asked."""
    asked: list[list[Question]] = [[] for _ in pieces]
    for question in questions:
        place = next((n for n, piece in enumerate(pieces) if any(_asks(record, question) for record in piece)), None)
        if place is None:
            return None
        asked[place].append(question)
    return asked


def _asks(record: Record, question: Question) -> bool:
    if record.type != RecordType.SUSPENDED:
        return False
    is_direct = (record.path, record.index) == (question.path, question.index)
    return is_direct or question.interrupt_id in (record.data or "")


def _batches(batch: Batch, pieces: Sequence[list[Record]], asked: Sequence[Sequence[Question]]) -> list[Batch]:
    """A batch for each piece. Only the last one counts the last entry, so the owner's next one comes after all of
    them."""
    found: list[Batch] = []
    for number, (records, questions) in enumerate(zip(pieces, asked, strict=True)):
        is_last = number == len(pieces) - 1
        found.append(
            Batch(
                batch.lane,
                batch.last_n if number else batch.first_n,
                batch.last_n if is_last else batch.last_n - 1,
                records,
                change=batch.change if is_last else None,
                create=None if number else batch.create,
                questions=list(questions),
            )
        )
    return found
