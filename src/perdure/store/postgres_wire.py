"""Statements in Postgres' binary form. Decides how values become parameters; knows no table.

Goes below psycopg's cursors: one libpq call sends, waits (without the GIL) and returns, and arrays are
packed here. A third of the client's time per group, which is time in which the event loop does not run.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from struct import Struct
from typing import TYPE_CHECKING, Any

from perdure.store.postgres_connect import checked

if TYPE_CHECKING:
    import psycopg

_PARAM = re.compile(r"(?<![:\w]):([a-z_]\w*)")
_TABLE = re.compile(r"\bperdure\.(?=(?:run|record|interrupt|worker|meta|tombstone)\b)")
_HEAD = Struct("!iiiii").pack
_LENGTH = Struct("!i").pack
_INT8 = Struct("!iq").pack
_FLOAT8 = Struct("!id").pack
_PLAIN_INT8 = Struct("!q").pack
_PLAIN_FLOAT8 = Struct("!d").pack
_NULL = _LENGTH(-1)
_TRUE, _FALSE = _LENGTH(1) + b"\x01", _LENGTH(1) + b"\x00"
_TEXT_OID, _INT8_OID, _FLOAT8_OID, _BOOL_OID = 25, 20, 701, 16
_EMPTY = {oid: _HEAD(0, 0, oid, 0, 0)[:12] for oid in (_TEXT_OID, _INT8_OID, _FLOAT8_OID, _BOOL_OID)}


class Statement:
    """A statement with `$n` for each `:name`, in the order of first appearance, its tables in the store's
    schema."""

    __slots__ = ("formats", "key", "params", "sql")

    def __init__(self, name: str, sql: str, schema: str) -> None:
        order: dict[str, int] = {}
        text = _PARAM.sub(lambda hit: f"${order.setdefault(hit.group(1), len(order) + 1)}", sql)
        self.sql = _TABLE.sub(f'"{schema}".', text).encode()
        self.params = tuple(order)
        self.formats = [1] * len(order)
        self.key = f"perdure_{name}".encode()


class Wire:
    """Executes statements on one connection, each in a transaction of its own unless one is open."""

    def __init__(self, connection: psycopg.Connection[Any], *, is_preparing: bool) -> None:
        self._connection = connection
        self._is_preparing = is_preparing
        self._prepared: set[bytes] = set()

    def execute(self, statement: Statement, params: Sequence[Any]) -> list[tuple[bytes | None, ...]]:
        """Send, wait, and return the rows as text. Raises `psycopg.Error`."""
        return _rows(checked(self._send(statement, params)))

    def command(self, statement: Statement, params: Sequence[Any]) -> int:
        """As `execute`, for statements without rows. Returns how many rows were written."""
        return checked(self._send(statement, params)).command_tuples or 0

    def _send(self, statement: Statement, params: Sequence[Any]) -> Any:
        raw = self._connection.pgconn
        if not self._is_preparing:
            return raw.exec_params(statement.sql, params, param_formats=statement.formats)
        if statement.key not in self._prepared:
            checked(raw.prepare(statement.key, statement.sql))
            self._prepared.add(statement.key)
        return raw.exec_prepared(statement.key, params, statement.formats)


def _rows(result: Any) -> list[tuple[bytes | None, ...]]:
    columns = range(result.nfields)
    return [tuple([result.get_value(row, column) for column in columns]) for row in range(result.ntuples)]


def text(value: str | None) -> bytes | None:
    """A `text`. Binary has a length, so that a NUL is refused by the server, where libpq would end the text
    at it."""
    return None if value is None else value.encode()


def integer(value: int | None) -> bytes | None:
    """An `int8`."""
    return None if value is None else _PLAIN_INT8(value)


def floating(value: float | None) -> bytes | None:
    """A `float8`."""
    return None if value is None else _PLAIN_FLOAT8(value)


def texts(values: Sequence[str | None]) -> bytes:
    """A `text[]`."""
    if not values:
        return _EMPTY[_TEXT_OID]
    parts = [_HEAD(1, 1, _TEXT_OID, len(values), 1)]
    for value in values:
        if value is None:
            parts.append(_NULL)
        else:
            encoded = value.encode()
            parts += (_LENGTH(len(encoded)), encoded)
    return b"".join(parts)


def integers(values: Sequence[int | None]) -> bytes:
    """An `int8[]`."""
    if not values:
        return _EMPTY[_INT8_OID]
    parts = [_NULL if value is None else _INT8(8, value) for value in values]
    return _HEAD(1, 1, _INT8_OID, len(values), 1) + b"".join(parts)


def floats(values: Sequence[float | None]) -> bytes:
    """A `float8[]`."""
    if not values:
        return _EMPTY[_FLOAT8_OID]
    parts = [_NULL if value is None else _FLOAT8(8, value) for value in values]
    return _HEAD(1, 1, _FLOAT8_OID, len(values), 1) + b"".join(parts)


def booleans(values: Sequence[bool]) -> bytes:
    """A `bool[]`."""
    if not values:
        return _EMPTY[_BOOL_OID]
    return _HEAD(1, 1, _BOOL_OID, len(values), 1) + b"".join([_TRUE if value else _FALSE for value in values])
