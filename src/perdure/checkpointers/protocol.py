"""The checkpointer protocol: the rows that people see, and the 13 methods a backend has. Decides shapes and contracts;
stores nothing and knows no engine.

Everything is synchronous and may block. Who calls it: users, the plane, and `checkpointers.foreign`, which drives runs
over an object that has these methods and nothing else.
"""

from __future__ import annotations

import builtins
from datetime import timedelta
from typing import Any, Protocol, runtime_checkable

from pydantic import BaseModel, Field

NO_LIMIT = 2**31 - 1
"""What Perdure itself passes as `limit`: it never reads a truncated history."""


class Checkpoint(BaseModel):
    """The state after a boundary of one execution.

    `step_type` is one of `llm_call tool_call hitl_pause node handoff fork_origin run_end`, or None where nothing says.
    `status` is `completed`, `interrupted` or `failed` (and `cancelled` at the end of a run that was cancelled).
    `node_index` is the row's place among the rows of its execution. A row with an empty `node_id` belongs to no node:
    it keeps the books (a run was taken up, answered, put to sleep), and nobody resumes or forks there. `created_at` is
    ISO 8601 in UTC. `node_output` is whatever the node returned.
    """

    checkpoint_id: str = ""
    parent_checkpoint_id: str | None = None
    chain_name: str = ""
    execution_id: str = ""
    node_id: str = ""
    node_index: int = 0
    step_type: str | None = None
    status: str = "completed"
    state_snapshot: dict[str, Any] = Field(default_factory=dict)
    node_input: dict[str, Any] = Field(default_factory=dict)
    node_output: Any = Field(default_factory=dict)
    iteration: int = 0
    iteration_counters: dict[str, int] = Field(default_factory=dict)
    interrupt_reason: str | None = None
    interrupt_context: dict[str, Any] = Field(default_factory=dict)
    agent_path: str | None = None
    created_at: str = ""


class PendingInterrupt(BaseModel):
    """A question that waits for a person. `interrupt_id` names it where several are open; a backend that has no place
    for it may leave it out."""

    execution_id: str
    chain_name: str
    node_id: str
    reason: str
    context: dict[str, Any]
    agent_path: str | None
    created_at: str
    interrupt_id: str = ""


@runtime_checkable
class Checkpointer(Protocol):
    """A backend for checkpoints. Methods may block, and may be called from a thread other than the one that made the
    object, but by Perdure from one thread only. Whatever they raise is a failure of the backend: nothing of that call
    counts as stored, unless `get_by_id` finds it.
    """

    def setup(self) -> None:
        """Make the backend usable (create tables). Called before anything else, more than once."""
        ...

    def put(self, checkpoint: Checkpoint) -> None:
        """Store a row; durable when this returns. A row of this execution with the same `checkpoint_id` is never
        replaced: `DurableConflictError` (any exception will do), with nothing stored."""
        ...

    def put_writes(self, execution_id: str, checkpoint_id: str, writes: builtins.list[Any]) -> None:
        """Keep what a step wrote beside its checkpoint, for people who inspect it."""
        ...

    def get_last(self, execution_id: str) -> Checkpoint | None:
        """The row that was put last, not the one with the latest clock; None for an unknown execution."""
        ...

    def get_by_id(self, execution_id: str, checkpoint_id: str) -> Checkpoint | None:
        """One row as it was put, or None."""
        ...

    def list(self, execution_id: str, *, limit: int = 100) -> builtins.list[Checkpoint]:
        """Rows in the order in which they were put, oldest first, at most `limit`; empty for an unknown execution.

        The default of 100 is for people. Whoever needs all passes a large limit, which must be honoured: a list that
        is cut silently is found out and refused (`DurableStorageError`).
        """
        ...

    def list_pending_interrupts(self, *, limit: int = 100) -> builtins.list[PendingInterrupt]:
        """Open questions of all executions, oldest first."""
        ...

    def record_interrupt(self, checkpoint: Checkpoint, pending: PendingInterrupt) -> None:
        """Store the row and the question in one transaction: nobody ever sees one without the other. As `put`
        otherwise. An execution has at most one question pending at a time."""
        ...

    def delete_pending_interrupt_atomic(self, execution_id: str) -> PendingInterrupt | None:
        """Claim the question of an execution. Of N callers, in whatever processes, exactly one gets it; the others get
        None."""
        ...

    def delete_execution(self, execution_id: str) -> None:
        """Remove everything of an execution. Nothing happens if there is nothing."""
        ...

    def get_idempotent(self, execution_id: str, function_key: str) -> Any | None:
        """What was put under this key; None means that there is no row.

        A stored None could not be told from that. So whoever may have one to store wraps what he stores, as Perdure
        does: `{"value": result}`. An implementation stores what it is given and need not know.
        """
        ...

    def put_idempotent(self, execution_id: str, function_key: str, result: Any) -> None:
        """Store a result (never a bare None, see `get_idempotent`). The first one stays if there is one already."""
        ...

    def prune(self, older_than: timedelta) -> int:
        """Delete executions that ended longer ago than this; returns how many rows went.

        Interrupted ones are kept, whatever their age. A run that Perdure drives is its rows: all of them go, or none.
        One that has lost some cannot be continued (`DurableStorageError`).
        """
        ...


@runtime_checkable
class ReplicatedCheckpointer(Protocol):
    """Optional: a checkpointer whose rows are sent to a connected plane."""

    def fetch_unsynced(self, limit: int, project_id: str | None = None) -> list[dict[str, Any]]:
        """Rows that have not been acknowledged, oldest first; of one project, if it is given."""
        ...

    def mark_synced(self, checkpoint_ids: list[str]) -> None:
        """The plane has acknowledged these."""
        ...


@runtime_checkable
class QuarantinableCheckpointer(Protocol):
    """Optional: a checkpointer that can set aside rows which the plane will never take."""

    def mark_quarantined(self, reasons: dict[str, str]) -> None:
        """By checkpoint id, why. These are not sent again, and can be told from those that were acknowledged."""
        ...
