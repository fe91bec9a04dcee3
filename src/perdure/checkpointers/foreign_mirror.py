"""What this process knows of runs that are kept elsewhere: the store's own tables in memory, so that the store's own
transactions decide here, too.

A transaction is only tried here: what it would change is taken down and rolled back. It comes to stand when the row
that says so is durable in the checkpointer and is applied, as every row is that was read from there. Workers are of
this process only and are no rows. Called from one thread for everything that changes runs, from any for reading.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from perdure.checkpointers.foreign_rows import Columns, Draft, Row
from perdure.core.records import Record, RecordType
from perdure.errors import DurableStorageError
from perdure.store import migrate, rows
from perdure.store.sqlite import mapped
from perdure.store.sqlite_group import SqliteSession

T = TypeVar("T")
Work = Callable[[sqlite3.Connection, float], T]

_TOUCHED = """
CREATE TABLE touched (what TEXT NOT NULL, run_id TEXT NOT NULL, id TEXT NOT NULL, PRIMARY KEY (what, run_id, id));
CREATE TRIGGER run_inserted AFTER INSERT ON run
  BEGIN INSERT OR IGNORE INTO touched VALUES ('run', NEW.id, ''); END;
CREATE TRIGGER run_updated AFTER UPDATE ON run
  BEGIN INSERT OR IGNORE INTO touched VALUES ('run', NEW.id, ''); END;
CREATE TRIGGER record_inserted AFTER INSERT ON record
  BEGIN INSERT OR IGNORE INTO touched VALUES ('record', NEW.run_id, NEW.seq); END;
CREATE TRIGGER interrupt_inserted AFTER INSERT ON interrupt
  BEGIN INSERT OR IGNORE INTO touched VALUES ('asked', NEW.run_id, NEW.id); END;
CREATE TRIGGER interrupt_updated AFTER UPDATE ON interrupt
  BEGIN INSERT OR IGNORE INTO touched VALUES ('changed', NEW.run_id, NEW.id); END;
CREATE TRIGGER worker_inserted AFTER INSERT ON worker
  BEGIN INSERT OR IGNORE INTO touched VALUES ('worker', '', NEW.id); END;
CREATE TRIGGER worker_updated AFTER UPDATE ON worker
  BEGIN INSERT OR IGNORE INTO touched VALUES ('worker', '', NEW.id); END;
"""
_TOUCHED_RUNS = "SELECT DISTINCT run_id FROM touched WHERE what <> 'worker' ORDER BY run_id"
_TOUCHED_RECORDS = """
SELECT {record} FROM touched JOIN record ON record.run_id = touched.run_id AND record.seq = CAST(touched.id AS INTEGER)
WHERE touched.what = 'record' AND touched.run_id = ? ORDER BY record.seq
""".replace("{record}", ", ".join(rows.COLUMNS["record"]))
_ASKED = """
SELECT interrupt.* FROM touched JOIN interrupt ON interrupt.id = touched.id
WHERE touched.what = 'asked' AND touched.run_id = ? ORDER BY interrupt.created_at, interrupt.ordinal, interrupt.id
"""
_CHANGED = """
SELECT interrupt.* FROM touched JOIN interrupt ON interrupt.id = touched.id
WHERE touched.what = 'changed' AND touched.run_id = ?
  AND NOT EXISTS (SELECT 1 FROM touched AS new WHERE new.what = 'asked' AND new.id = touched.id)
ORDER BY interrupt.id
"""
_OPEN = """
SELECT * FROM interrupt WHERE run_id = ? AND status = 'pending' ORDER BY created_at, ordinal, id
"""
_TOUCHED_WORKERS = "SELECT worker.* FROM touched JOIN worker ON worker.id = touched.id WHERE touched.what = 'worker'"
_ASKED_ONCE = frozenset(
    {"run_id", "path", "idx", "slot", "reason", "context", "digest", "bind", "created_at", "ordinal"}
)
"""Of a question: what never changes after it was asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What a transaction would change."""

    drafts: Sequence[Draft]
    workers: Sequence[Columns]


class Mirror:
    """See the module."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(
            ":memory:", isolation_level=None, check_same_thread=False, cached_statements=256
        )
        for step in migrate.pending("sqlite", 0, url):
            self._connection.executescript(step.sql)
        self._columns = {table: self._columns_of(table) for table in ("run", "record", "interrupt", "worker")}
        # Where a run's records lie in this mirror is no part of the run.
        self._columns["run"].remove("n")
        self._columns["record"].remove("id")
        self._connection.executescript(_TOUCHED)

    def _columns_of(self, table: str) -> list[str]:
        return [row[1] for row in self._connection.execute(f"PRAGMA table_info({table})")]

    # --- trying -----------------------------------------------------------------------------------------

    def attempt(self, work: Work[T]) -> tuple[T, Changes]:
        """Do it, take down what it changed, undo it. Raises what the work raises."""
        with self._locked() as connection:
            connection.execute("BEGIN")
            try:
                connection.execute("DELETE FROM touched")
                result = work(connection, time.time())
                return result, self._changes(connection)
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    def _changes(self, connection: sqlite3.Connection) -> Changes:
        run_ids = [run_id for (run_id,) in connection.execute(_TOUCHED_RUNS).fetchall()]
        return Changes(
            drafts=[self._draft(connection, run_id) for run_id in run_ids],
            workers=_named(connection.execute(_TOUCHED_WORKERS)),
        )

    def _draft(self, connection: sqlite3.Connection, run_id: str) -> Draft:
        records = _named(connection.execute(_TOUCHED_RECORDS, (run_id,)))
        if not records:  # a row is named after its first record, so it has one
            add_note(connection, time.time(), run_id, "kept")
            records = _named(connection.execute(_TOUCHED_RECORDS, (run_id,)))
        changed = _named(connection.execute(_CHANGED, (run_id,)))
        opened = _named(connection.execute(_OPEN, (run_id,)))
        return Draft(
            run=_named(
                connection.execute(f"SELECT {', '.join(self._columns['run'])} FROM run WHERE id = ?", (run_id,))
            )[0],
            records=records,
            asked=_named(connection.execute(_ASKED, (run_id,))),
            changed=[{name: value for name, value in each.items() if name not in _ASKED_ONCE} for each in changed],
            open_ids=[each["id"] for each in opened],
            first_open=opened[0] if opened else None,
        )

    # --- what came to stand -----------------------------------------------------------------------------

    def apply(self, found: Sequence[Row]) -> None:
        """Take rows of one run into account, in order."""
        with self._locked() as connection:
            connection.execute("BEGIN")
            try:
                self._replace(connection, "run", [found[-1].draft.run])
                for row in found:
                    self._apply(connection, row)
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")

    def _apply(self, connection: sqlite3.Connection, row: Row) -> None:
        names = [column.partition(".")[2] for column in rows.COLUMNS["record"]]
        self._check("record", row.draft.records)
        found = [tuple(record.get(name) for name in names) for record in row.draft.records]
        SqliteSession(connection, 0.0).insert_records(found)
        self._replace(connection, "interrupt", row.draft.asked)
        for question in row.draft.changed:
            self._check("interrupt", [question])
            set_ = ", ".join(f"{name} = :{name}" for name in question)
            connection.execute(f"UPDATE interrupt SET {set_} WHERE id = :id", question)

    def _replace(self, connection: sqlite3.Connection, table: str, found: Sequence[Columns]) -> None:
        self._check(table, found)
        names = self._columns[table]
        # Not an upsert: its conflict clause would be that of the triggers, too.
        update = f"UPDATE {table} SET {', '.join(f'{name} = ?' for name in names)} WHERE id = ?"
        insert = f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"
        for columns in found:
            values = [columns.get(name) for name in names]
            if connection.execute(update, [*values, columns["id"]]).rowcount == 0:
                connection.execute(insert, values)

    def _check(self, table: str, found: Sequence[Columns]) -> None:
        """Names come from the checkpointer, so only known ones reach a statement."""
        unknown = {name for columns in found for name in columns} - set(self._columns[table])
        if unknown:
            raise DurableStorageError(
                f"{self._url}: a row has {', '.join(sorted(map(repr, unknown)))}, which this version of Perdure does "
                "not know; upgrade it"
            )

    def apply_workers(self, workers: Iterable[Columns]) -> None:
        """New workers, and ends of known ones; heartbeats that came meanwhile stand."""
        with self._locked() as connection:
            for worker in workers:
                ended = connection.execute(
                    "UPDATE worker SET ended_at = ? WHERE id = ?", (worker["ended_at"], worker["id"])
                )
                if ended.rowcount == 0:
                    self._replace(connection, "worker", [worker])

    def forget(self, run_id: str) -> None:
        """Leave a run to the checkpointer alone."""
        with self._locked() as connection:
            connection.execute("BEGIN")
            SqliteSession(connection, 0.0).run("record_delete", {"run_id": run_id})
            for statement in (
                "DELETE FROM interrupt WHERE run_id = ?",
                "DELETE FROM run WHERE id = ?",
            ):
                connection.execute(statement, (run_id,))
            connection.execute("COMMIT")

    # --- reading ----------------------------------------------------------------------------------------

    def read(self, work: Callable[[SqliteSession], T]) -> T:
        """One snapshot."""
        with self._locked() as connection:
            return work(SqliteSession(connection, time.time()))

    def open_questions(self, run_id: str) -> list[Columns]:
        """In the order in which they are to be asked."""
        with self._locked() as connection:
            return _named(connection.execute(_OPEN, (run_id,)))

    def name_at(self, run_id: str, path: str, index: int) -> str | None:
        """The name of the operation at a place."""
        with self._locked() as connection:
            row = connection.execute(
                "SELECT name FROM run JOIN record ON record.id > run.n << 24 AND record.id < (run.n + 1) << 24 "
                "WHERE run.id = ? AND path = ? AND idx = ? AND name IS NOT NULL LIMIT 1",
                (run_id, path, index),
            ).fetchone()
        return None if row is None else row[0]

    def beat(self, worker_id: str) -> bool:
        """Count a heartbeat."""
        with self._locked() as connection:
            return SqliteSession(connection, 0.0).run("worker_beat", {"id": worker_id}) == 1

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def abandon(self) -> None:
        """In a forked child: another thread may have held the lock."""
        self._lock = threading.Lock()

    @contextmanager
    def _locked(self) -> Iterator[sqlite3.Connection]:
        """Never held over a call of the checkpointer. No exception of the database leaves."""
        with self._lock:
            try:
                yield self._connection
            except (sqlite3.Error, sqlite3.Warning, OverflowError, UnicodeError) as error:
                raise mapped(error, self._url) from error


def add_note(
    connection: sqlite3.Connection, now: float, run_id: str, name: str, path: str = "", index: int = 0
) -> None:
    """A remark in the journal, which replay leaves out."""
    session = SqliteSession(connection, now)
    taken = session.one("seq_take", {"root_id": run_id, "count": 1})
    assert taken is not None
    note = Record(RecordType.NOTE.value, path, index, name=name)
    session.insert_records(rows.record_rows(run_id, taken[0], [note], now))


def _named(cursor: sqlite3.Cursor) -> list[Columns]:
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
