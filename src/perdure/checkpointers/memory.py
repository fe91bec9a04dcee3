"""A checkpointer in memory, for runs that are not to outlast their process. Decides nothing that the protocol does not;
whatever goes in or comes out is a copy."""

from __future__ import annotations

import builtins
import copy
import threading
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from perdure.checkpointers.ends import is_run_end
from perdure.checkpointers.protocol import Checkpoint, PendingInterrupt
from perdure.errors import DurableConflictError

T = TypeVar("T", Checkpoint, PendingInterrupt)


@dataclass(slots=True, eq=False)
class _Execution:
    rows: dict[str, Checkpoint] = field(default_factory=dict)
    writes: dict[str, list[Any]] = field(default_factory=dict)
    pending: PendingInterrupt | None = None
    results: dict[str, Any] = field(default_factory=dict)


class MemoryCheckpointer:
    """A `Checkpointer`, complete and safe in threads; see there. Empty at first, gone with the object."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._executions: dict[str, _Execution] = {}

    def setup(self) -> None:
        """Nothing is needed."""

    def put(self, checkpoint: Checkpoint) -> None:
        with self._lock:
            self._insert(checkpoint)

    def put_writes(self, execution_id: str, checkpoint_id: str, writes: builtins.list[Any]) -> None:
        with self._lock:
            kept = self._of(execution_id).writes.setdefault(checkpoint_id, [])
            kept.extend(copy.deepcopy(writes))

    def get_last(self, execution_id: str) -> Checkpoint | None:
        with self._lock:
            rows = self._rows(execution_id)
            return _copied(next(reversed(rows.values()))) if rows else None

    def get_by_id(self, execution_id: str, checkpoint_id: str) -> Checkpoint | None:
        with self._lock:
            row = self._rows(execution_id).get(checkpoint_id)
            return None if row is None else _copied(row)

    def list(self, execution_id: str, *, limit: int = 100) -> builtins.list[Checkpoint]:
        with self._lock:
            return [_copied(row) for row in builtins.list(self._rows(execution_id).values())[:limit]]

    def list_pending_interrupts(self, *, limit: int = 100) -> builtins.list[PendingInterrupt]:
        with self._lock:
            pending = [each.pending for each in self._executions.values() if each.pending is not None]
            return [_copied(each) for each in sorted(pending, key=lambda each: each.created_at)[:limit]]

    def record_interrupt(self, checkpoint: Checkpoint, pending: PendingInterrupt) -> None:
        with self._lock:
            execution = self._executions.get(checkpoint.execution_id)
            if execution is not None and execution.pending is not None:
                raise DurableConflictError(f"execution {checkpoint.execution_id} has a question pending already")
            self._insert(checkpoint)
            self._of(checkpoint.execution_id).pending = _copied(pending)

    def delete_pending_interrupt_atomic(self, execution_id: str) -> PendingInterrupt | None:
        with self._lock:
            execution = self._executions.get(execution_id)
            if execution is None:
                return None
            claimed, execution.pending = execution.pending, None
            return claimed

    def delete_execution(self, execution_id: str) -> None:
        with self._lock:
            self._executions.pop(execution_id, None)

    def get_idempotent(self, execution_id: str, function_key: str) -> Any | None:
        with self._lock:
            execution = self._executions.get(execution_id)
            return None if execution is None else copy.deepcopy(execution.results.get(function_key))

    def put_idempotent(self, execution_id: str, function_key: str, result: Any) -> None:
        with self._lock:
            self._of(execution_id).results.setdefault(function_key, copy.deepcopy(result))

    def prune(self, older_than: timedelta) -> int:
        """Whole executions, and only those that are over for good: one that waits or has failed may still go on."""
        cutoff = datetime.now(UTC) - older_than
        with self._lock:
            over = [name for name, each in self._executions.items() if _was_over(each, cutoff)]
            return sum(len(self._executions.pop(name).rows) for name in over)

    def _of(self, execution_id: str) -> _Execution:
        return self._executions.setdefault(execution_id, _Execution())

    def _rows(self, execution_id: str) -> dict[str, Checkpoint]:
        execution = self._executions.get(execution_id)
        return {} if execution is None else execution.rows

    def _insert(self, checkpoint: Checkpoint) -> None:
        rows = self._rows(checkpoint.execution_id)
        if checkpoint.checkpoint_id in rows:
            raise DurableConflictError(
                f"execution {checkpoint.execution_id} has a checkpoint {checkpoint.checkpoint_id} already"
            )
        self._of(checkpoint.execution_id).rows[checkpoint.checkpoint_id] = _copied(checkpoint)


def _copied(row: T) -> T:
    return row.model_copy(deep=True)


def _was_over(execution: _Execution, cutoff: datetime) -> bool:
    last = next(reversed(execution.rows.values()), None)
    if last is None or execution.pending is not None or not is_run_end(last) or last.status == "failed":
        return False
    ended_at = datetime.fromisoformat(last.created_at)
    return (ended_at if ended_at.tzinfo else ended_at.replace(tzinfo=UTC)) < cutoff
