"""What the store keeps, as values. Decides the shapes that cross from the engine to the store and back; no behaviour.

A run's journal is a sequence of records. Their `type` is one of `RecordType`; persisted names are pinned by a test.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class RecordType(StrEnum):
    """What a record says. Names are data: they are stored.

    A version that meets a type it does not know stops the run, since what it left out it might perform again. So a new
    kind of remark, which older versions may ignore, is a `note` with a name of its own and no new type.
    """

    SUBMITTED = "submitted"  # data: the run's input
    STATUS = "status"  # outcome: the new status; data: why, if anything
    STARTED = "started"  # an operation begins (again: attempt); data: its arguments or, of a timer, its delay
    ATTEMPT_FAILED = "attempt_failed"  # data: the error; delay_s in `wait_s`
    SUSPENDED = "suspended"  # an operation has asked; its questions are in the same transaction
    DELIVERED = "delivered"  # an answer has entered a suspended operation; data: the interrupt id
    COMPLETED = "completed"  # outcome: value | error | cancelled; data: encoded
    DROPPED = "dropped"  # a trailing error is forgotten by a retry
    PATCHED = "patched"  # a person changed the state of a chain; data: what is new
    ANSWERED = "answered"  # a person answered; data: interrupt id, who
    REPEAT = "repeat"  # a person decided to perform an operation in doubt again
    CANCEL = "cancel"  # a person asked to cancel
    NOTE = "note"  # for people only, ignored by replay: late results, changed contexts


class Kind(StrEnum):
    """Kinds of operations."""

    WORKFLOW = "workflow"
    STEP = "step"
    EFFECT = "effect"
    MODEL = "model"
    TOOL = "tool"
    NODE = "node"
    ROUTE = "route"
    PATCH = "patch"
    TIMER = "timer"
    VALUE = "value"
    INTERRUPT = "interrupt"


class Recovery(StrEnum):
    """What happens to an operation that was started and not completed when its process died."""

    SAFE = "safe"  # run again, with other arguments too
    IDEMPOTENT = "idempotent"  # run again under the same operation id
    MANUAL = "manual"  # stop and ask


class OutcomeKind(StrEnum):
    """How an operation completed."""

    VALUE = "value"
    ERROR = "error"
    CANCELLED = "cancelled"


class QuestionStatus(StrEnum):
    """A question's life."""

    PENDING = "pending"
    ANSWERED = "answered"
    WITHDRAWN = "withdrawn"  # the run ended
    ABANDONED = "abandoned"  # the code no longer waits for it; an answer that came too late stays with it


class Record(NamedTuple):
    """One fact, as the engine hands it to the store; sequence and time are given at commit."""

    type: str
    path: str = ""
    index: int = 0  # pyright: ignore[reportIncompatibleMethodOverride]  # a tuple's own `index` is not used
    kind: str | None = None
    name: str | None = None
    digest: str | None = None
    recovery: str | None = None
    attempt: int = 0
    outcome: str | None = None
    data: str | None = None
    wait_s: float | None = None
    clock_s: float = 0.0
    state: str | None = None
    """What the record made of the state it belongs to, for people and forks (`core.snapshots`); replay of a chain reads
    results through it where they are stored as a difference to the state."""


class StoredRecord(NamedTuple):
    """One committed fact: `Record` with its place in the root's sequence and the database's time (epoch seconds)."""

    run_id: str
    seq: int
    type: str
    path: str
    index: int  # pyright: ignore[reportIncompatibleMethodOverride]  # as above
    kind: str | None
    name: str | None
    digest: str | None
    recovery: str | None
    attempt: int
    outcome: str | None
    data: str | None
    wait_s: float | None
    clock_s: float
    state: str | None
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRun:
    """A run to be created, already claimed by its creator when `worker_id` is given."""

    run_id: str
    root_id: str
    runner: str
    kind: str
    version: str | None
    input_digest: str
    input_data: str
    worker_id: str | None = None
    parent_id: str | None = None
    forked_from: str | None = None
    forked_seq: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """A run as stored. Times are epoch seconds of the database's clock; `due_in_s` is relative to the read."""

    run_id: str
    root_id: str
    parent_id: str | None
    runner: str
    kind: str
    version: str | None
    status: str
    fence: int
    worker_id: str | None
    seq: int
    input_digest: str
    due_at: float | None
    due_in_s: float | None
    cancel_requested: bool
    blocked_operation: str | None
    error: str | None
    attempt: int
    epoch: int
    forked_from: str | None
    forked_seq: int | None
    created_at: float
    updated_at: float
    ended_at: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question to be stored with the operation that asked it. `reason` and `context` are encoded."""

    interrupt_id: str
    path: str
    index: int
    slot: str
    reason: str
    context: str
    digest: str
    bind: bool
    ordinal: int = 0
    """How many questions the run had asked before: the order among those of one moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InterruptRow:
    """A question as stored, with its answer if there is one (`answer` is an encoded `{"approved", "metadata"}`)."""

    interrupt_id: str
    run_id: str
    path: str
    index: int
    slot: str
    reason: str
    context: str
    digest: str
    bind: bool
    status: str
    created_at: float
    answer: str | None
    answered_by: str | None
    answered_at: float | None
    answer_seq: int | None
    delivered_at: float | None
    ordinal: int = 0
    runner: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunChange:
    """What an entry changes in the run's own row.

    `status` waiting is conditional: it becomes pending if an answer or a cancel has come meanwhile. Any terminal status
    becomes cancelled if a cancel was requested before. `is_release` gives the run back (no owner).
    """

    status: str
    is_release: bool = False
    due_in_s: float | None = None
    blocked_operation: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """Everything replay needs of one run, read in one snapshot. `now` is the database's clock at the read."""

    run: RunRow
    records: list[StoredRecord]
    interrupts: list[InterruptRow]
    now: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A run taken by a worker; every write carries the fence."""

    run_id: str
    root_id: str
    runner: str
    fence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What came from outside for the runs a worker owns: answers not yet delivered, and runs to cancel."""

    answers: list[InterruptRow]
    cancels: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRow:
    """One start of a process that executes runs. `beat` only ever counts up; no clock is compared."""

    worker_id: str
    host: str
    boot_id: str
    pid: int
    beat: int
    lock: str | None
    started_at: float
    ended_at: float | None
    run_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """Which runs to list, newest first; `after` is the id of the last run of the page before."""

    status: str | None = None
    runner: str | None = None
    after: str | None = None
    limit: int = 100
