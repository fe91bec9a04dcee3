"""Rows as values. Decides which columns are read and in which order; the only place where a row becomes a
value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from perdure.core.records import (
    InterruptRow,
    NewRun,
    Question,
    Record,
    RunChange,
    RunRow,
    StoredRecord,
    WorkerRow,
)
from perdure.core.states import is_terminal
from perdure.store.kept import KeptCheckpoint, KeptQuestion, Tombstone

Row = tuple[Any, ...]

_RUN = [entry.name for entry in fields(RunRow) if entry.name != "due_in_s"]
_INTERRUPT = [entry.name for entry in fields(InterruptRow) if entry.name != "runner"]
_WORKER = [entry.name for entry in fields(WorkerRow) if entry.name != "run_count"]
_CHECKPOINT = [entry.name for entry in fields(KeptCheckpoint) if entry.name != "created_at"]
_PENDING = [entry.name for entry in fields(KeptQuestion)]
_TOMBSTONE = [entry.name for entry in fields(Tombstone)]


def _columns(table: str, names: Sequence[str], key: str = "") -> list[str]:
    """A value's fields as qualified columns; some are named differently there (`index` is a word of SQL)."""
    renamed = {key or f"{table}_id": "id", "index": "idx"}
    return [f"{table}.{renamed.get(name, name)}" for name in names]


COLUMNS = {
    "run": _columns("run", _RUN),
    "record": _columns("record", StoredRecord._fields),
    "interrupt": _columns("interrupt", _INTERRUPT),
    "worker": _columns("worker", _WORKER),
    "checkpoint": _columns("checkpoint", _CHECKPOINT),
    "pending_interrupt": _columns("pending_interrupt", _PENDING, "interrupt_id"),
    "tombstone": _columns("tombstone", _TOMBSTONE),
}
"""What `{run}` and the like stand for in the SQL files; qualified, so that joins need no aliases."""


def run_row(row: Row, now: float) -> RunRow:
    """A row of `{run}`."""
    values = dict(zip(_RUN, row, strict=True))
    values["cancel_requested"] = bool(values["cancel_requested"])
    due_at = values["due_at"]
    return RunRow(**values, due_in_s=None if due_at is None else max(0.0, due_at - now))


def stored_record(row: Row) -> StoredRecord:
    """A row of `{record}`."""
    return StoredRecord._make(row)


def interrupt_row(row: Row) -> InterruptRow:
    """A row of `{interrupt}`, with `run.runner` behind it if the query has it."""
    values = dict(zip(_INTERRUPT, row, strict=False))
    values["bind"] = bool(values["bind"])
    runner = row[len(_INTERRUPT)] if len(row) > len(_INTERRUPT) else ""
    return InterruptRow(**values, runner=runner)


def worker_row(row: Row) -> WorkerRow:
    """A row of `{worker}`, with the number of its running runs behind it if the query has it."""
    values = dict(zip(_WORKER, row, strict=False))
    count = row[len(_WORKER)] if len(row) > len(_WORKER) else 0
    return WorkerRow(**values, run_count=count)


def kept_checkpoint(row: Row) -> KeptCheckpoint:
    """A row of `{checkpoint}`."""
    return KeptCheckpoint(**dict(zip(_CHECKPOINT, row, strict=True)))


def kept_question(row: Row) -> KeptQuestion:
    """A row of `{pending_interrupt}`."""
    return KeptQuestion(**dict(zip(_PENDING, row, strict=True)))


def tombstone(row: Sequence[Any]) -> Tombstone:
    """A row of `{tombstone}`; times may be texts."""
    values: dict[str, Any] = dict(zip(_TOMBSTONE, row, strict=True))
    values["ended_at"], values["pruned_at"] = float(values["ended_at"]), float(values["pruned_at"])
    return Tombstone(**values)


def record_rows(run_id: str, first_seq: int, records: Sequence[Record], at: float) -> list[Row]:
    """Rows of table `record` for records numbered from `first_seq`. Hot: tuples are concatenated, nothing is
    looked at."""
    tail = (at,)
    return [(run_id, seq, *record, *tail) for seq, record in enumerate(records, first_seq)]


def new_run(new: NewRun, *, worker_id: str | None, fence: int, seq: int, entry_n: int, now: float) -> dict[str, Any]:
    """Parameters of `run_insert`."""
    return {
        "id": new.run_id,
        "root_id": new.root_id,
        "parent_id": new.parent_id,
        "runner": new.runner,
        "kind": new.kind,
        "version": new.version,
        "status": "running" if worker_id else "queued",
        "fence": fence,
        "worker_id": worker_id,
        "seq": seq,
        "entry_n": entry_n,
        "input_digest": new.input_digest,
        "forked_from": new.forked_from,
        "forked_seq": new.forked_seq,
        "now": now,
    }


def question(run_id: str, asked: Question, now: float) -> dict[str, Any]:
    """Parameters of `interrupt_insert` for a question without an answer."""
    return {
        "id": asked.interrupt_id,
        "run_id": run_id,
        "path": asked.path,
        "idx": asked.index,
        "slot": asked.slot,
        "reason": asked.reason,
        "context": asked.context,
        "digest": asked.digest,
        "bind": asked.bind,
        "ordinal": asked.ordinal,
        "status": "pending",
        "created_at": now,
        "answer": None,
        "answered_by": None,
        "answered_at": None,
        "answer_seq": None,
        "delivered_at": None,
    }


def interrupt(run_id: str, row: InterruptRow) -> dict[str, Any]:
    """Parameters of `interrupt_insert` for a copied question, under another run."""
    return {
        "id": row.interrupt_id,
        "run_id": run_id,
        "path": row.path,
        "idx": row.index,
        "slot": row.slot,
        "reason": row.reason,
        "context": row.context,
        "digest": row.digest,
        "bind": row.bind,
        "ordinal": row.ordinal,
        "status": row.status,
        "created_at": row.created_at,
        "answer": row.answer,
        "answered_by": row.answered_by,
        "answered_at": row.answered_at,
        "answer_seq": row.answer_seq,
        "delivered_at": row.delivered_at,
    }


def change(run_id: str, wanted: RunChange, status: str, now: float) -> dict[str, Any]:
    """Parameters of `run_change`; `status` is the settled one."""
    return {
        "id": run_id,
        "status": status,
        "is_release": wanted.is_release,
        "due_at": now + wanted.due_in_s if wanted.due_in_s is not None and status == wanted.status else None,
        "blocked_operation": wanted.blocked_operation,
        "error": wanted.error,
        "ended_at": now if is_terminal(status) else None,
        "now": now,
    }
