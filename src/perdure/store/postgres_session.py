"""One connection inside one transaction, for queries by name. Decides how a transaction begins and how
values are passed.

Nothing is set for longer than the transaction: behind a pooler the next one may run on another server
connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from perdure.store import queries
from perdure.store.driver import Params
from perdure.store.postgres_connect import simple
from perdure.store.postgres_wire import Statement, Wire, floats, integers, texts

if TYPE_CHECKING:
    import psycopg

READ_ONLY = " ISOLATION LEVEL REPEATABLE READ READ ONLY"

_WRITES = ("INSERT", "UPDATE", "DELETE")
_RECORD_ARRAYS = (
    texts,
    integers,
    texts,
    texts,
    integers,
    *(texts,) * 4,
    integers,
    *(texts,) * 2,
    *(floats,) * 2,
    texts,
    floats,
)
"""As the columns of table `record`."""


class PostgresSession:
    """See `driver.Session`. `has_written` tells whether there is news for others."""

    def __init__(self, connection: psycopg.Connection[Any], schema: str, mode: str = "", *, is_preparing: bool) -> None:
        self._connection = connection
        self._schema = schema
        self._is_preparing = is_preparing
        self.has_written = False
        # One round trip. The snapshot of a REPEATABLE READ transaction is taken by its SELECT.
        clock = "SELECT extract(epoch FROM clock_timestamp())::float8"
        now = simple(connection, f'BEGIN{mode}; SET LOCAL search_path TO "{schema}"; {clock}')
        self._now = float(now or 0.0)

    @property
    def now(self) -> float:
        return self._now

    def all(self, query: str, params: Params | None = None) -> list[tuple[Any, ...]]:
        return self._execute(query, params).fetchall()

    def one(self, query: str, params: Params | None = None) -> tuple[Any, ...] | None:
        return self._execute(query, params).fetchone()

    def run(self, query: str, params: Params | None = None) -> int:
        return self._execute(query, params).rowcount

    def many(self, query: str, params: Sequence[Params]) -> None:
        if not params:
            return
        self.has_written = True
        with self._connection.cursor() as cursor:
            cursor.executemany(_statements()[query], params)

    def insert_records(self, rows: Sequence[tuple[Any, ...]]) -> None:
        if not rows:
            return
        self.has_written = True
        arrays = [pack(column) for pack, column in zip(_RECORD_ARRAYS, zip(*rows, strict=True), strict=True)]
        statement = _record_insert(self._schema)
        Wire(self._connection, is_preparing=False).command(statement, arrays)

    def end(self, channel: str) -> None:
        """Commit, telling others if anything was written."""
        simple(self._connection, f'NOTIFY "{channel}"; COMMIT' if self.has_written else "COMMIT")

    def _execute(self, query: str, params: Params | None) -> psycopg.Cursor[Any]:
        cursor = self._connection.execute(_statements()[query], params or {}, prepare=self._is_preparing)
        if cursor.rowcount > 0 and (cursor.statusmessage or "").startswith(_WRITES):
            self.has_written = True
        return cursor


@cache
def _statements() -> dict[str, bytes]:
    return {name: queries.pyformat(sql).encode() for name, sql in queries.load("postgres").items()}


@cache
def _record_insert(schema: str) -> Statement:
    return Statement("record_insert", queries.load("postgres")["record_insert"], schema)
