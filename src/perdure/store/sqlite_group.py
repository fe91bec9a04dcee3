"""Writes one group into SQLite, in a transaction that the driver has begun. Decides which statements, of what size.

The GIL shapes the writing: each statement gives it up and, while the loop computes, waits up to 5 ms to get it back.
`executemany` does that once per row; so rows go into statements of many rows, and a group is few statements.
"""

from __future__ import annotations

import itertools
import json
import sqlite3
from collections.abc import Sequence
from typing import Any

from perdure.core.records import StoredRecord
from perdure.core.states import Status, is_terminal
from perdure.errors import DurableConflictError, DurableLimitError, RunLost
from perdure.store import queries, rows
from perdure.store.base import Lane
from perdure.store.driver import Batch, Params, may_settle, refusal_of_missing, settle, settled_records

_SEQ_BITS = 24
_ROW = "(" + ", ".join("?" * (1 + len(StoredRecord._fields))) + ")"
_INSERT_SIZES = (256, 64, 16, 8, 4, 3, 2, 1)
_INSERT = {
    size: f"INSERT INTO record (id, {', '.join(name.split('.')[1] for name in rows.COLUMNS['record'])}) VALUES "
    + ", ".join([_ROW] * size)
    for size in _INSERT_SIZES
}
_ADVANCE = """
UPDATE run SET seq = seq + ?, entry_n = ?, updated_at = ?
WHERE id = ? AND fence = ? AND worker_id = ? AND entry_n < ? {also} RETURNING seq, status, cancel_requested, n
"""
_COUNT = _ADVANCE.format(also="")
_COUNT_AND_CHANGE = _ADVANCE.format(also="AND status NOT IN ('completed', 'failed', 'cancelled')")


class SqliteSession:
    """A connection in a transaction; see `driver.Session`."""

    __slots__ = ("_connection", "_queries", "now")

    def __init__(self, connection: sqlite3.Connection, now: float) -> None:
        self._connection = connection
        self._queries = queries.load("sqlite")
        self.now = now

    def all(self, query: str, params: Params | None = None) -> list[tuple[Any, ...]]:
        return self._execute(query, params).fetchall()

    def one(self, query: str, params: Params | None = None) -> tuple[Any, ...] | None:
        # All rows are fetched, so that no statement stays open in a transaction that is about to end.
        found = self._execute(query, params).fetchall()
        return found[0] if found else None

    def run(self, query: str, params: Params | None = None) -> int:
        return self._execute(query, params).rowcount

    def many(self, query: str, params: Sequence[Params]) -> None:
        for values in params:
            self._execute(query, values)

    def insert_records(self, rows: Sequence[tuple[Any, ...]]) -> None:
        numbers = {run_id: self._number(run_id) for run_id in {row[0] for row in rows}}
        insert(self._connection, [numbered(numbers[row[0]], row) for row in rows])

    def _number(self, run_id: str) -> int:
        found = self.one("run_number", {"run_id": run_id})
        if found is None:
            raise DurableConflictError(f"there is no run {run_id} for its records")
        return found[0]

    def _execute(self, query: str, params: Params | None) -> sqlite3.Cursor:
        values = {key: json.dumps(value) if isinstance(value, list) else value for key, value in (params or {}).items()}
        return self._connection.execute(self._queries[query], values)


def write_batch(
    connection: sqlite3.Connection, batch: Batch, now: float, pending: list[rows.Row], doubtful: set[Lane]
) -> None:
    lane = batch.lane
    state = _create(connection, batch, now) if batch.create else _advance(connection, batch, now)
    if state is None:
        _explain(connection, batch, is_doubtful=lane in doubtful)
        return
    last_seq, old_status, is_cancel_requested, number = state
    if batch.questions or batch.delivered or batch.abandoned or batch.change is not None:
        _write_beside(connection, batch, now, old_status, bool(is_cancel_requested))
    records = batch.records if batch.change is None else settled_records(batch)
    found = rows.record_rows(lane.run_id, last_seq - len(records) + 1, records, now)
    pending += [numbered(number, row) for row in found]


def numbered(number: int, row: rows.Row) -> rows.Row:
    """A row of a record with its id: the run's number, then the record's in the run."""
    seq = row[1]
    if seq >> _SEQ_BITS:
        raise DurableLimitError(f"run {row[0]} has {seq} records; a run has less than {1 << _SEQ_BITS}")
    return (number << _SEQ_BITS | seq, *row)


def _advance(connection: sqlite3.Connection, batch: Batch, now: float) -> tuple[int, str, int, int] | None:
    """Count the entries and take their numbers in one statement; None if the lane has lost the run."""
    lane, count = batch.lane, len(batch.records)
    is_root = lane.root_id == lane.run_id
    values = (
        count if is_root else 0,
        batch.last_n,
        now,
        lane.run_id,
        lane.fence,
        lane.worker_id,
        batch.first_n,
    )
    state = connection.execute(_COUNT if batch.change is None else _COUNT_AND_CHANGE, values).fetchone()
    if state is not None and not is_root:
        session = SqliteSession(connection, now)
        state = (_take_from_root(session, lane.root_id, lane.run_id, count), *state[1:])
    return state


def _take_from_root(session: SqliteSession, root_id: str, run_id: str, count: int) -> int:
    taken = session.one("seq_take", {"root_id": root_id, "count": count})
    if taken is None:
        raise DurableConflictError(f"run {run_id} belongs to {root_id}, which does not exist")
    session.run("seq_note", {"id": run_id, "seq": taken[0]})
    return taken[0]


def _create(connection: sqlite3.Connection, batch: Batch, now: float) -> tuple[int, str, int, int] | None:
    lane, new = batch.lane, batch.create
    assert new is not None
    session = SqliteSession(connection, now)
    count = len(batch.records)
    is_root = new.root_id == new.run_id
    row = rows.new_run(
        new,
        worker_id=lane.worker_id,
        fence=lane.fence,
        seq=count if is_root else 0,
        entry_n=batch.last_n,
        now=now,
    )
    try:
        if session.run("run_insert", row) == 0:
            return None
    except sqlite3.IntegrityError as error:
        # Only this statement is undone. To look first would cost every new run a statement more.
        if error.sqlite_errorname == "SQLITE_CONSTRAINT_UNIQUE":
            return None
        raise
    (number,) = connection.execute("SELECT last_insert_rowid()").fetchone()
    last_seq = count if is_root else _take_from_root(session, new.root_id, new.run_id, count)
    return last_seq, Status.RUNNING, 0, number


def _explain(connection: sqlite3.Connection, batch: Batch, *, is_doubtful: bool) -> None:
    """Why a batch was not written: stored already, id taken, or lost."""
    lane = batch.lane
    found = connection.execute(
        "SELECT fence, worker_id, entry_n, status FROM run WHERE id = ?", (lane.run_id,)
    ).fetchone()
    if found is None:
        pruned = SqliteSession(connection, 0.0).one("tombstone_get", {"run_id": lane.run_id})
        batch.refusal = refusal_of_missing(batch, pruned)
        return
    fence, worker_id, entry_n, status = found
    if is_doubtful and fence == lane.fence and entry_n >= batch.last_n:
        batch.status = status
    elif batch.create is not None:
        batch.refusal = DurableConflictError(f"run {lane.run_id} exists already")
    else:
        owner = status if is_terminal(status) else f"worker {worker_id}'s" if worker_id else "nobody's"
        batch.refusal = RunLost(lane.run_id, f"it is {owner} now (fence {fence}, ours was {lane.fence})")


def _write_beside(
    connection: sqlite3.Connection, batch: Batch, now: float, old_status: str, is_cancel_requested: bool
) -> None:
    run_id, change = batch.lane.run_id, batch.change
    session = SqliteSession(connection, now)
    for asked in batch.questions:
        session.run("interrupt_insert", rows.question(run_id, asked, now))
    for interrupt_id in batch.abandoned:
        session.run("interrupt_abandoned", {"id": interrupt_id, "run_id": run_id})
    for interrupt_id in batch.delivered:
        session.run("interrupt_delivered", {"id": interrupt_id, "run_id": run_id, "now": now})
    if change is None:
        return
    batch.status = settle(
        change,
        is_cancel_requested=is_cancel_requested,
        has_undelivered=change.status == Status.WAITING and session.one("run_has_answers", {"id": run_id}) is not None,
    )
    if not may_settle(old_status, batch.status):
        raise DurableConflictError(f"run {run_id} is {old_status} and cannot become {batch.status}")
    session.run("run_change", rows.change(run_id, change, batch.status, now))
    if is_terminal(batch.status):
        session.run("interrupt_withdraw", {"run_id": run_id})


def insert(connection: sqlite3.Connection, records: Sequence[rows.Row]) -> None:
    start, left = 0, len(records)
    for size in _INSERT_SIZES:
        while left >= size:
            chunk = records[start : start + size] if left > size or start else records
            connection.execute(_INSERT[size], list(itertools.chain.from_iterable(chunk)))
            start, left = start + size, left - size
