"""Reads a run's records into what they say: operations, the order of their completions, decisions.

Decides what counts as completed and in which order completions are released. Called at load for every stored record
and, while the run lives, for every record the engine enqueues, so that both see the same journal. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from perdure.core import keys, snapshots
from perdure.core.records import InterruptRow, Kind, OutcomeKind, QuestionStatus, RecordType, Recovery, StoredRecord
from perdure.errors import DurableRecoveryError


class Phase(StrEnum):
    """Where an operation is. The public status is `started`, `suspended` or `completed`."""

    STARTED = "started"
    RETRYING = "retrying"  # an attempt failed, the next is due
    SUSPENDED = "suspended"
    ANSWERED = "answered"  # a question of it was answered, its body has not begun again
    COMPLETED = "completed"
    DROPPED = "dropped"  # its error was forgotten by a retry


@dataclass(slots=True)
class Operation:
    """One operation as the journal tells it."""

    key: str
    path: str
    index: int
    kind: str
    name: str
    digest: str | None
    recovery: str | None
    phase: Phase
    started_seq: int
    seq: int
    started_at: float = 0.0
    ended_at: float | None = None
    attempt: int = 1
    outcome: str | None = None
    data: str | None = None
    arguments: str | None = None
    wait_s: float | None = None
    clock_s: float = 0.0
    error: str | None = None
    is_repeat: bool = False
    began_seq: int | None = None
    """Where its body was last recorded to begin; None if it never was."""
    waits_for: str | None = None
    """Encoded list of the interrupt ids it was suspended on."""
    state: str | None = None
    """What its end, or its question, made of the state; see `Record.state`."""

    def left_s(self, clock_s: float) -> float:
        """Of the delay before its next attempt, at this time of the run."""
        return max(0.0, (self.wait_s or 0.0) - (clock_s - self.clock_s))

    @property
    def is_completed(self) -> bool:
        return self.phase is Phase.COMPLETED

    @property
    def is_in_doubt(self) -> bool:
        """Started, not completed, and its body may have run: only a person may decide if the policy is `manual`."""
        return self.phase is Phase.STARTED and self.recovery == Recovery.MANUAL and not self.is_repeat


# Completions of these kinds are not released to a waiting task: their calls return at once.
_IMMEDIATE = frozenset({Kind.VALUE.value, Kind.PATCH.value, Kind.ROUTE.value})


@dataclass(slots=True)
class Journal:
    """A run's records, folded. `completions` lists keys of workflow code's operations in recorded order."""

    operations: dict[str, Operation] = field(default_factory=dict)
    completions: list[str] = field(default_factory=list)
    last_start: dict[str, int] = field(default_factory=dict)
    highest_index: dict[str, int] = field(default_factory=dict)
    inside: dict[str, list[Operation]] = field(default_factory=dict)
    """Calls made inside a body, by the path of the body, in the order they began."""
    patches: dict[str, bool] = field(default_factory=dict)
    interrupts: dict[tuple[str, int], dict[str, InterruptRow]] = field(default_factory=dict)
    state_patches: list[Operation] = field(default_factory=list)
    """What people changed in the state of a chain, in order; each is released in its turn, like a completion."""
    input_data: str | None = None
    result_data: str | None = None
    result_status: str | None = None
    clock_s: float = 0.0
    last_at: float = 0.0
    last_seq: int = 0

    def apply(self, record: StoredRecord) -> None:
        """Take one record into account. Records come in sequence order. Raises `DurableRecoveryError` for an unknown
        type."""
        self.last_seq = record.seq
        if record.at:
            self.last_at = record.at
        if record.clock_s > self.clock_s:
            self.clock_s = record.clock_s
        handler = _HANDLERS.get(record.type)
        if handler is None:
            # A newer version has written it. To leave it out might be to perform an operation again.
            raise DurableRecoveryError(
                f"record {record.seq} is of type {record.type!r}, which this version of Perdure does not know"
            )
        handler(self, record)

    def recorded_input(self) -> str:
        """The run's input, encoded. Raises `DurableRecoveryError` if the journal has lost it: nobody may guess one."""
        if self.input_data is None:
            raise DurableRecoveryError("the journal does not have the run's input")
        return self.input_data

    def replay_order(self) -> list[str]:
        """Keys to release, in recorded order: completed, not dropped, not inside an operation whose own end is
        recorded."""
        return [
            key
            for key in self.completions
            if (op := self.operations[key]).is_completed
            and op.outcome != OutcomeKind.CANCELLED
            and (op.kind not in _IMMEDIATE or op.path == keys.STATE_PATCHES)
            and not self.is_superseded(op.path)
        ]

    def is_superseded(self, path: str) -> bool:
        """Whether `path` lies inside an operation that completed with a value or an error, so that nobody will ask."""
        for cut, char in enumerate(path):
            if char in "/!" and self._has_ended(path[:cut]):
                return True
        return self._has_ended(path)

    def in_doubt(self) -> Operation | None:
        """The first manual operation that was started and has no end, if any that still matters."""
        return next((op for op in self.operations.values() if op.is_in_doubt and not self.is_superseded(op.path)), None)

    def undelivered(self) -> list[InterruptRow]:
        """Answers that have not entered the run, in order of arrival."""
        rows = [row for rows in self.interrupts.values() for row in rows.values()]
        return sorted(
            (row for row in rows if row.status == QuestionStatus.ANSWERED and row.delivered_at is None),
            key=lambda row: (row.answer_seq or 0, row.path, row.index),
        )

    def add_interrupt(self, row: InterruptRow) -> None:
        """Take a question (and its answer, if it has one) into account."""
        self.interrupts.setdefault((row.path, row.index), {})[row.slot] = row

    def _has_ended(self, key: str) -> bool:
        op = self.operations.get(key)
        return op is not None and op.is_completed and op.outcome != OutcomeKind.CANCELLED


def fold(records: Iterable[StoredRecord], interrupts: Iterable[InterruptRow] = ()) -> Journal:
    """The journal of one run from its stored records (ascending) and questions. Raises `DurableRecoveryError` if this
    version cannot read it."""
    journal = Journal()
    for record in records:
        journal.apply(record)
    for row in interrupts:
        journal.add_interrupt(row)
    if any(snapshots.is_packed(op.state) for op in journal.operations.values()):
        _unpack(journal)
    return journal


def _unpack(journal: Journal) -> None:
    """Put results in their place that are recorded as a part of the state."""
    reader = states_of(journal)
    for key, text in reader.results.items():
        op = journal.operations[key]
        if op.is_completed and op.outcome == OutcomeKind.VALUE:
            op.data = text


def states_of(journal: Journal) -> snapshots.Reader:
    """The states that the journal has, by key of the operations."""
    reader = snapshots.Reader(journal.input_data)
    for op in sorted(journal.operations.values(), key=lambda op: op.seq):
        if op.state is not None:
            reader.take(op.key, op.state, op.data if op.is_completed else None)
    return reader


def _submitted(journal: Journal, record: StoredRecord) -> None:
    journal.input_data = record.data


def _status(journal: Journal, record: StoredRecord) -> None:
    journal.result_status = record.outcome
    journal.result_data = record.data


def _begin(journal: Journal, record: StoredRecord) -> Operation:
    key = keys.operation_key(record.path, record.index)
    op = Operation(
        key=key,
        path=record.path,
        index=record.index,
        kind=record.kind or "",
        name=record.name or "",
        digest=record.digest,
        recovery=record.recovery,
        phase=Phase.STARTED,
        started_seq=record.seq,
        seq=record.seq,
        started_at=record.at,
        clock_s=record.clock_s,
        attempt=record.attempt or 1,
    )
    journal.operations[key] = op
    body = keys.enclosing_body(record.path)
    if body:
        journal.inside.setdefault(body, []).append(op)
    journal.last_start[record.path] = record.seq
    if record.index > journal.highest_index.get(record.path, -1):
        journal.highest_index[record.path] = record.index
    return op


def _started(journal: Journal, record: StoredRecord) -> None:
    op = journal.operations.get(keys.operation_key(record.path, record.index))
    if op is None:
        op = _begin(journal, record)
        op.arguments = record.data
        op.wait_s = record.wait_s
    else:
        # Begun again: a later attempt, or a repetition after a crash. A saved policy is never relaxed (DESIGN §5).
        op.phase = Phase.STARTED
        op.attempt = record.attempt or op.attempt
        op.seq = record.seq
    op.began_seq = record.seq
    op.is_repeat = False


def _attempt_failed(journal: Journal, record: StoredRecord) -> None:
    op = journal.operations[keys.operation_key(record.path, record.index)]
    op.phase = Phase.RETRYING
    op.attempt = record.attempt
    op.error = record.data
    op.wait_s = record.wait_s
    op.clock_s = record.clock_s
    op.ended_at = record.at
    op.seq = record.seq


def _suspended(journal: Journal, record: StoredRecord) -> None:
    op = journal.operations.get(keys.operation_key(record.path, record.index)) or _begin(journal, record)
    op.phase = Phase.SUSPENDED
    op.waits_for = record.data
    op.state = record.state
    op.seq = record.seq


def _delivered(journal: Journal, record: StoredRecord) -> None:
    op = journal.operations.get(keys.operation_key(record.path, record.index))
    if op is not None and op.phase is Phase.SUSPENDED:
        op.phase = Phase.ANSWERED
        op.seq = record.seq


def _completed(journal: Journal, record: StoredRecord) -> None:
    op = journal.operations.get(keys.operation_key(record.path, record.index)) or _begin(journal, record)
    op.phase = Phase.COMPLETED
    op.outcome = record.outcome
    op.data = record.data
    op.state = record.state
    op.seq = record.seq
    op.ended_at = record.at
    op.clock_s = record.clock_s
    if op.kind == Kind.PATCH:
        journal.patches[op.name] = record.data == "true"
    if keys.is_ordered(op.path):
        journal.completions.append(op.key)


def _dropped(journal: Journal, record: StoredRecord) -> None:
    op = journal.operations[keys.operation_key(record.path, record.index)]
    # A manual body that was cancelled may have had its effect: forgetting the cancellation leaves it in doubt.
    is_doubtful = op.outcome == OutcomeKind.CANCELLED and op.recovery == Recovery.MANUAL and op.began_seq is not None
    op.phase = Phase.STARTED if is_doubtful else Phase.DROPPED
    op.error = op.data
    op.outcome = op.data = None
    op.attempt = 0
    op.seq = record.seq
    if op.key in journal.completions:
        journal.completions.remove(op.key)


def _patched(journal: Journal, record: StoredRecord) -> None:
    op = _begin(journal, record._replace(path=keys.STATE_PATCHES, index=len(journal.state_patches), kind=Kind.PATCH))
    op.phase, op.outcome, op.data, op.ended_at = Phase.COMPLETED, OutcomeKind.VALUE, record.data, record.at
    journal.state_patches.append(op)
    journal.completions.append(op.key)


def _repeat(journal: Journal, record: StoredRecord) -> None:
    op = journal.operations.get(keys.operation_key(record.path, record.index))
    if op is not None:
        op.is_repeat = True


def _ignored(journal: Journal, record: StoredRecord) -> None:
    """For people only; or a fact that the run's row and its questions carry."""


_HANDLERS: dict[str, Callable[[Journal, StoredRecord], None]] = {
    RecordType.SUBMITTED: _submitted,
    RecordType.STATUS: _status,
    RecordType.STARTED: _started,
    RecordType.ATTEMPT_FAILED: _attempt_failed,
    RecordType.SUSPENDED: _suspended,
    RecordType.DELIVERED: _delivered,
    RecordType.COMPLETED: _completed,
    RecordType.DROPPED: _dropped,
    RecordType.PATCHED: _patched,
    RecordType.REPEAT: _repeat,
    RecordType.ANSWERED: _ignored,
    RecordType.CANCEL: _ignored,
    RecordType.NOTE: _ignored,
}
