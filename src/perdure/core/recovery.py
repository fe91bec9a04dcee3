"""Decides what becomes of an operation that is asked for again, and what a retry may forget. Pure.

Policies and trailing errors: DESIGN "The journal's rules". The engine asks here and does what the answer says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from perdure.core import keys
from perdure.core.fold import Journal, Operation, Phase, fold
from perdure.core.records import Kind, OutcomeKind, Record, RecordType, StoredRecord


class Action(Enum):
    """What to do with an operation the code has called."""

    RUN = auto()  # never begun, or begun and to be repeated
    RETURN = auto()  # recorded: deliver its outcome when its turn comes
    PARK = auto()  # asked a question that is still open
    WAIT = auto()  # an attempt failed, the next one has a stored deadline
    DOUBT = auto()  # manual, begun, no end: a person decides


def decide(op: Operation | None) -> Action:
    """What the journal says about an operation the code calls."""
    if op is None or op.phase in (Phase.DROPPED, Phase.ANSWERED):
        return Action.RUN
    match op.phase:
        case Phase.COMPLETED:
            return Action.RETURN
        case Phase.SUSPENDED:
            return Action.PARK
        case Phase.RETRYING:
            return Action.WAIT
    return Action.DOUBT if op.is_in_doubt else Action.RUN


# Kinds whose recorded arguments must equal the ones of the call. A model request or a route may differ (DESIGN §5).
_VERIFIED = frozenset({Kind.STEP.value, Kind.EFFECT.value, Kind.TOOL.value, Kind.WORKFLOW.value})


def mismatch(op: Operation, kind: str, name: str, digest: str | None, arguments: str | None = None) -> str | None:
    """Why the recorded operation is not the one the code calls, in a sentence for people; None if it is."""
    if op.kind != kind or op.name != name:
        return f"the journal has {op.kind} {op.name!r} at {op.key}, the code calls {kind} {name!r}"
    if kind in _VERIFIED and op.digest != digest and not _may_differ(op):
        was = f" (recorded: {op.arguments}, now: {arguments})" if op.arguments and arguments else ""
        return f"{kind} {name!r} at {op.key} is called with other arguments than those recorded{was}"
    return None


def _may_differ(op: Operation) -> bool:
    return op.recovery == "safe" and not op.is_completed


def trailing_errors(journal: Journal, below: str = "") -> list[Operation]:
    """Errors after which no operation started on the same path or one that encloses it, and around which none has
    returned a value; inside `below` only.

    `below` is an operation's key, or "" for the whole run. A new attempt or a `retry()` drops these and runs them
    again.
    """
    return [
        op
        for op in journal.operations.values()
        if op.is_completed
        and op.outcome == OutcomeKind.ERROR
        # A key records an error only where the effect has happened and its result could not be stored.
        and not op.path.startswith("@")
        and (not below or keys.is_below(op.path, below))
        and not _is_settled(journal, op.path)
        and _is_trailing(journal, op, below)
    ]


def _is_settled(journal: Journal, path: str) -> bool:
    """Whether `path` lies inside an operation that has returned a value: what failed in there was handled in there."""
    enclosing = (journal.operations.get(path[:cut]) for cut, char in enumerate(f"{path}/") if char in "/!")
    return any(op is not None and op.is_completed and op.outcome == OutcomeKind.VALUE for op in enclosing)


def _is_trailing(journal: Journal, op: Operation, below: str) -> bool:
    return not any(
        seq > op.seq and keys.is_same_or_ancestor(op.path, path) and (not below or keys.is_below(path, below))
        for path, seq in journal.last_start.items()
    )


@dataclass(frozen=True, slots=True)
class RetryPlan:
    """What a `retry()` of a failed run forgets; or the handled error that blocks the way."""

    drops: tuple[Record, ...] = ()
    blocked_by: Operation | None = None


def plan_retry_of(records: Sequence[StoredRecord]) -> RetryPlan:
    """How to retry a run that has failed, from its records."""
    failed = (r.name for r in reversed(records) if r.type == RecordType.STATUS and r.outcome == "failed")
    return plan_retry(fold(records), next(failed, None))


def plan_retry(journal: Journal, cause: str | None) -> RetryPlan:
    """How to retry a failed run. `cause` is the key of the operation whose error failed it, if one did."""
    trailing = trailing_errors(journal)
    caused = journal.operations.get(cause) if cause else None
    if caused is not None and caused.is_completed and caused not in trailing:
        return RetryPlan(blocked_by=caused)
    return RetryPlan(drops=tuple(drop(op) for op in (*trailing, *_cancelled_with(journal, trailing))))


def _cancelled_with(journal: Journal, errors: list[Operation]) -> list[Operation]:
    """Calls that the code cancelled when the first of these errors had come (a task group does): forgotten with
    them."""
    if not errors:
        return []
    first = min(op.seq for op in errors)
    return [
        op
        for op in journal.operations.values()
        if op.is_completed
        and op.outcome == OutcomeKind.CANCELLED
        and op.kind != Kind.TIMER
        and op.seq > first
        and _is_trailing(journal, op, "")
    ]


def drop(op: Operation) -> Record:
    """The record that forgets an operation's error."""
    return Record(RecordType.DROPPED, op.path, op.index, op.kind, op.name)


def fork_records(records: list[StoredRecord], upto: int) -> list[Record]:
    """The records a fork at sequence `upto` begins with: what was recorded up to there, without the run's own statuses,
    people's decisions, and operations that were only begun or were waiting for an answer (they are asked again). What
    encloses a kept operation stays begun: begun anew it would look as if it had handled the errors inside it."""
    kept = [r for r in records if r.seq <= upto and r.type in _FORKED]
    operations = fold(kept).operations.values()
    ended = {(op.path, op.index) for op in operations if op.is_completed}
    timers = {(r.path, r.index) for r in kept if r.kind == Kind.TIMER}
    entered = {path[:cut] for path, _ in ended for cut, char in enumerate(f"{path}/") if char == "/"}
    return [
        Record(*r[2:-1])
        for r in kept
        if r.type in (RecordType.SUBMITTED, RecordType.PATCHED)
        or (r.path, r.index) in ended
        or (r.path, r.index) in timers
        or r.type == RecordType.DELIVERED
        or (r.type == RecordType.STARTED and keys.operation_key(r.path, r.index) in entered)
    ]


_FORKED = frozenset(
    {
        RecordType.SUBMITTED,
        RecordType.STARTED,
        RecordType.ATTEMPT_FAILED,
        RecordType.SUSPENDED,
        RecordType.DELIVERED,
        RecordType.COMPLETED,
        RecordType.DROPPED,
        RecordType.PATCHED,
    }
)
