"""The checkpointer for Postgres. Decides what a connection string is; loads psycopg when it is first used."""

from __future__ import annotations

from collections.abc import Hashable

from perdure.checkpointers.sql import SqlCheckpointer
from perdure.errors import InvalidInputError
from perdure.store import postgres_url
from perdure.store.sql_store import SqlStore


class PostgresCheckpointer(SqlCheckpointer):
    """Checkpoints in a schema of a Postgres database; see `SqlCheckpointer`.

    `connection_string`: a URL (`postgresql://user@host/base`) or libpq's keywords (`host=... dbname=...`). `schema`: a
    name, `[A-Za-z_][A-Za-z0-9_]*`, created if it is missing. `min_pool_size` connections for reading are kept open and
    at most `max_pool_size` are used at once; one more writes. `InvalidInputError` names the parameter that is wrong; a
    keyword string is read when it is first used.
    """

    def __init__(
        self,
        connection_string: str,
        *,
        schema: str = "perdure",
        min_pool_size: int = 1,
        max_pool_size: int = 10,
    ) -> None:
        super().__init__()
        if not isinstance(connection_string, str) or not connection_string.strip():
            raise InvalidInputError("connection_string", "must be a URL or libpq's keywords")
        self.schema = postgres_url.check_schema(schema)
        self._url = postgres_url.with_schema(connection_string, schema)
        self._min_pool_size = _count("min_pool_size", min_pool_size, at_least=0)
        self._max_pool_size = _count("max_pool_size", max_pool_size, at_least=1)
        if min_pool_size > max_pool_size:
            raise InvalidInputError("min_pool_size", f"is {min_pool_size}, more than max_pool_size ({max_pool_size})")

    @property
    def url(self) -> str:
        """The store's URL, or libpq's keywords if it was given those."""
        return self._url

    def _address(self) -> Hashable:
        return "postgres", self._url, self._min_pool_size, self._max_pool_size

    def _open(self) -> SqlStore:
        from perdure.store.postgres import PostgresDriver  # optional dependency: perdure[postgres]

        driver = PostgresDriver(self._url, min_readers=self._min_pool_size, max_readers=self._max_pool_size)
        return SqlStore(driver)


def _count(name: str, value: object, *, at_least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidInputError(name, f"must be a whole number, not {value!r}")
    if value < at_least:
        raise InvalidInputError(name, f"must be at least {at_least}")
    return value
