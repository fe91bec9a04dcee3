"""A store as it would be if its process had been killed after the n-th record of a run: cut from a
finished one."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path


def cut(source: Path, target: Path, run_id: str, seq: int) -> None:
    """Copy a SQLite store with only the first `seq` records of the run, and of questions what those records say.

    The run is nobody's. The copy has no workers.
    """
    with closing(sqlite3.connect(source)) as old, closing(sqlite3.connect(target)) as new:
        old.backup(new)
        with new:
            _cut_records(new, run_id, seq)
            _cut_questions(new, run_id)
            new.execute(
                "UPDATE run SET status = 'pending', worker_id = NULL, entry_n = 0, seq = ?, due_at = NULL, "
                "blocked_operation = NULL, error = NULL, ended_at = NULL WHERE id = ?",
                (seq, run_id),
            )


def _cut_records(store: sqlite3.Connection, run_id: str, seq: int) -> None:
    store.execute("DELETE FROM worker")
    store.execute("DELETE FROM record WHERE run_id = ? AND seq > ?", (run_id, seq))


def _cut_questions(store: sqlite3.Connection, run_id: str) -> None:
    """A question is there if the record of its asking is; its answer, if the record of the answer is; it is
    delivered if it has led to a record."""
    store.execute(
        "DELETE FROM interrupt WHERE run_id = :run AND NOT EXISTS (SELECT 1 FROM record WHERE run_id = :run "
        "AND type = 'suspended' AND record.path = interrupt.path AND record.idx = interrupt.idx "
        "AND (data IS NULL OR instr(data, interrupt.id) > 0))",
        {"run": run_id},
    )
    store.execute(
        "UPDATE interrupt SET status = 'pending', answer = NULL, answered_by = NULL, answered_at = NULL, "
        "answer_seq = NULL, delivered_at = NULL WHERE run_id = :run AND NOT EXISTS (SELECT 1 FROM record "
        "WHERE run_id = :run "
        "AND type = 'answered' AND instr(data, interrupt.id) > 0)",
        {"run": run_id},
    )
    store.execute(
        "UPDATE interrupt SET delivered_at = NULL WHERE run_id = :run AND NOT EXISTS (SELECT 1 FROM record "
        "WHERE run_id = :run "
        "AND ((type = 'delivered' AND instr(data, interrupt.id) > 0) OR (type = 'completed' AND kind = 'interrupt' "
        "AND record.path = interrupt.path AND record.idx = interrupt.idx)))",
        {"run": run_id},
    )
