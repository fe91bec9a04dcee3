"""Journals written by hand, for tests that decide without any store."""

from __future__ import annotations

from typing import Any

from perdure.core.records import InterruptRow, Loaded, RunRow, StoredRecord


def stored(seq: int, type: str, path: str = "", index: int = 0, **columns: Any) -> StoredRecord:
    """One committed record; what is not named is as an operation of a step would have it."""
    values: dict[str, Any] = {
        "kind": "step",
        "name": "f",
        "digest": "d",
        "recovery": "idempotent",
        "attempt": 1,
        "outcome": None,
        "data": None,
        "wait_s": None,
        "clock_s": 0.0,
        "state": None,
        "at": float(seq),
        **columns,
    }
    return StoredRecord("r1", seq, type, path, index, **values)


def done(seq: int, path: str = "", index: int = 0, outcome: str = "value", **columns: Any) -> StoredRecord:
    """A completion."""
    return stored(seq, "completed", path, index, outcome=outcome, **{"data": "1", **columns})


def question(interrupt_id: str = "q1", **columns: Any) -> InterruptRow:
    """An open question of run `r1`."""
    values: dict[str, Any] = {
        "run_id": "r1",
        "path": "",
        "index": 0,
        "slot": "0",
        "reason": '"why?"',
        "context": "{}",
        "digest": "d",
        "bind": False,
        "status": "pending",
        "created_at": 0.0,
        "answer": None,
        "answered_by": None,
        "answered_at": None,
        "answer_seq": None,
        "delivered_at": None,
        **columns,
    }
    return InterruptRow(interrupt_id=interrupt_id, **values)


def loaded(records: list[StoredRecord], **columns: Any) -> Loaded:
    """A run as it is read for replay."""
    values: dict[str, Any] = {
        "run_id": "r1",
        "root_id": "r1",
        "parent_id": None,
        "runner": "flow",
        "kind": "workflow",
        "version": None,
        "status": "running",
        "fence": 1,
        "worker_id": "w1",
        "seq": len(records),
        "input_digest": "d",
        "due_at": None,
        "due_in_s": None,
        "cancel_requested": False,
        "blocked_operation": None,
        "error": None,
        "attempt": 1,
        "epoch": 1,
        "forked_from": None,
        "forked_seq": None,
        "created_at": 0.0,
        "updated_at": 0.0,
        "ended_at": None,
        **columns,
    }
    return Loaded(run=RunRow(**values), records=records, interrupts=[], now=0.0)
