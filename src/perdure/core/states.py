"""The one table of run states. Decides which status may follow which; the store enforces it by asking here."""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    """Status of a run, as stored and shown."""

    QUEUED = "queued"
    PENDING = "pending"
    RUNNING = "running"
    WAITING = "waiting"
    RETRY_WAIT = "retry_wait"
    NEEDS_ATTENTION = "needs_attention"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


TERMINAL = frozenset({Status.COMPLETED, Status.FAILED, Status.CANCELLED})
"""Written once; the one way on is `retry()` of a failed run."""

CLAIMABLE = frozenset({Status.QUEUED, Status.PENDING})
"""Any worker that has the runner may take these at once; `waiting` and `retry_wait` only when due."""

TRANSITIONS: dict[Status, frozenset[Status]] = {
    Status.QUEUED: frozenset({Status.RUNNING, Status.CANCELLED}),
    Status.PENDING: frozenset({Status.RUNNING, Status.CANCELLED}),
    Status.RUNNING: frozenset(
        {
            Status.RUNNING,  # taken over from a dead worker
            Status.PENDING,
            Status.WAITING,
            Status.RETRY_WAIT,
            Status.NEEDS_ATTENTION,
            Status.COMPLETED,
            Status.FAILED,
            Status.CANCELLED,
        }
    ),
    Status.WAITING: frozenset({Status.RUNNING, Status.PENDING, Status.CANCELLED}),
    Status.RETRY_WAIT: frozenset({Status.RUNNING, Status.PENDING, Status.CANCELLED}),
    Status.NEEDS_ATTENTION: frozenset({Status.PENDING, Status.CANCELLED}),
    Status.COMPLETED: frozenset(),
    Status.FAILED: frozenset({Status.PENDING}),
    Status.CANCELLED: frozenset(),
}


def may_follow(old: Status, new: Status) -> bool:
    """Whether a run may go from `old` to `new`."""
    return new in TRANSITIONS[old]


def is_terminal(status: str) -> bool:
    """Whether nothing more will be recorded in a run of this status (but a `retry()` of a failed one)."""
    return status in TERMINAL
