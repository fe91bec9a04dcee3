"""A checkpointer as a user of the protocol would write one: the smallest that keeps its promises, in a file of its own.
It knows nothing of Perdure but the two models. Behind it, how tests open a store over it."""

from __future__ import annotations

import builtins
import sqlite3
import warnings
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from perdure.checkpointers.foreign import ForeignCheckpointerWarning, ForeignStore, open_foreign
from perdure.checkpointers.protocol import Checkpoint, PendingInterrupt

_SCHEMA = """
CREATE TABLE IF NOT EXISTS checkpoints (n INTEGER PRIMARY KEY, execution TEXT, id TEXT, row TEXT, at TEXT,
  UNIQUE (execution, id));
CREATE TABLE IF NOT EXISTS writes (execution TEXT, id TEXT, writes TEXT);
CREATE TABLE IF NOT EXISTS pending (execution TEXT PRIMARY KEY, row TEXT);
CREATE TABLE IF NOT EXISTS results (execution TEXT, key TEXT, result TEXT, PRIMARY KEY (execution, key));
"""


class FileCheckpointer:
    """Rows as JSON in a SQLite file. One connection, which SQLite lets only the thread use that made it."""

    def __init__(self, path: str) -> None:
        self.path = path

    def setup(self) -> None:
        self.db = sqlite3.connect(self.path, isolation_level=None, timeout=30)
        self.db.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;" + _SCHEMA)

    def put(self, checkpoint: Checkpoint) -> None:
        row = (checkpoint.execution_id, checkpoint.checkpoint_id, checkpoint.model_dump_json(), checkpoint.created_at)
        self.db.execute("INSERT INTO checkpoints (execution, id, row, at) VALUES (?, ?, ?, ?)", row)

    def put_writes(self, execution_id: str, checkpoint_id: str, writes: builtins.list[Any]) -> None:
        self.db.execute("INSERT INTO writes VALUES (?, ?, ?)", (execution_id, checkpoint_id, repr(writes)))

    def get_last(self, execution_id: str) -> Checkpoint | None:
        found = self._rows("WHERE execution = ? ORDER BY n DESC LIMIT 1", execution_id)
        return found[0] if found else None

    def get_by_id(self, execution_id: str, checkpoint_id: str) -> Checkpoint | None:
        found = self._rows("WHERE execution = ? AND id = ?", execution_id, checkpoint_id)
        return found[0] if found else None

    def list(self, execution_id: str, *, limit: int = 100) -> builtins.list[Checkpoint]:
        return self._rows("WHERE execution = ? ORDER BY n LIMIT ?", execution_id, limit)

    def list_pending_interrupts(self, *, limit: int = 100) -> builtins.list[PendingInterrupt]:
        rows = self.db.execute("SELECT row FROM pending ORDER BY rowid LIMIT ?", (limit,)).fetchall()
        return [PendingInterrupt.model_validate_json(row) for (row,) in rows]

    def record_interrupt(self, checkpoint: Checkpoint, pending: PendingInterrupt) -> None:
        self.db.execute("BEGIN IMMEDIATE")
        try:
            self.put(checkpoint)
            self.db.execute("INSERT INTO pending VALUES (?, ?)", (checkpoint.execution_id, pending.model_dump_json()))
        except BaseException:
            self.db.execute("ROLLBACK")
            raise
        self.db.execute("COMMIT")

    def delete_pending_interrupt_atomic(self, execution_id: str) -> PendingInterrupt | None:
        gone = self.db.execute("DELETE FROM pending WHERE execution = ? RETURNING row", (execution_id,)).fetchall()
        return PendingInterrupt.model_validate_json(gone[0][0]) if gone else None

    def delete_execution(self, execution_id: str) -> None:
        for table in ("checkpoints", "writes", "pending", "results"):
            self.db.execute(f"DELETE FROM {table} WHERE execution = ?", (execution_id,))

    def get_idempotent(self, execution_id: str, function_key: str) -> Any | None:
        where = "SELECT result FROM results WHERE execution = ? AND key = ?"
        found = self.db.execute(where, (execution_id, function_key)).fetchone()
        return None if found is None else Checkpoint.model_validate_json(found[0]).node_output

    def put_idempotent(self, execution_id: str, function_key: str, result: Any) -> None:
        text = Checkpoint(node_output=result).model_dump_json()
        self.db.execute("INSERT OR IGNORE INTO results VALUES (?, ?, ?)", (execution_id, function_key, text))

    def prune(self, older_than: timedelta) -> int:
        cutoff = (datetime.now(UTC) - older_than).isoformat()
        waiting = "SELECT execution FROM pending"
        old = (
            f"SELECT execution FROM checkpoints GROUP BY execution HAVING max(at) < ? AND execution NOT IN ({waiting})"
        )
        return self.db.execute(f"DELETE FROM checkpoints WHERE execution IN ({old})", (cutoff,)).rowcount

    def _rows(self, where: str, *values: Any) -> builtins.list[Checkpoint]:
        rows = self.db.execute(f"SELECT row FROM checkpoints {where}", values).fetchall()
        return [Checkpoint.model_validate_json(row) for (row,) in rows]


# --- stores over it ------------------------------------------------------------------------------------

_SCHEME = "third-party:"


def opened_over(checkpointer: Any) -> ForeignStore:
    """The store over a checkpointer, without the warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ForeignCheckpointerWarning)
        return open_foreign(checkpointer)


def path_of(store: ForeignStore) -> str:
    """The file below a store."""
    return cast(FileCheckpointer, store.checkpointer).path


def address_of(store: ForeignStore) -> str:
    """A text by which another process finds it."""
    return _SCHEME + path_of(store)


def opened_at(address: str) -> ForeignStore | None:
    """The store of such a text; None for a URL."""
    return opened_over(FileCheckpointer(address.removeprefix(_SCHEME))) if address.startswith(_SCHEME) else None
