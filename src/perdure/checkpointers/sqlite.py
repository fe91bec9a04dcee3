"""The default checkpointer: one SQLite file. Decides which file, and nothing else."""

from __future__ import annotations

import os
from collections.abc import Hashable

from perdure.checkpointers.sql import SqlCheckpointer
from perdure.core.settings import get_config
from perdure.errors import InvalidInputError
from perdure.store.open import sqlite_path
from perdure.store.sql_store import SqlStore


class SQLiteCheckpointer(SqlCheckpointer):
    """Checkpoints in an SQLite file; see `SqlCheckpointer`.

    `db_path`: the file, or its `sqlite:///` URL; None for `get_config().resolved_checkpoint_db_path`.
    It is looked up now and created at the first use, with its directory. `PRAGMA user_version` is its schema's.
    """

    def __init__(self, db_path: str | os.PathLike[str] | None = None) -> None:
        super().__init__()
        given = get_config().resolved_checkpoint_db_path if db_path is None else os.fspath(db_path)
        if not isinstance(given, str) or not given or given.startswith(":memory:") or "\0" in given or given[-1] == "/":
            raise InvalidInputError("db_path", f"{given!r} names no file; what must last needs one")
        self.db_path = os.path.abspath(sqlite_path(given) if "://" in given else given)

    @property
    def url(self) -> str:
        """The store's URL."""
        return f"sqlite:///{self.db_path}"

    def _address(self) -> Hashable:
        return "sqlite", os.path.realpath(self.db_path)

    def _open(self) -> SqlStore:
        from perdure.store.sqlite import SqliteDriver  # only when it is used

        return SqlStore(SqliteDriver(self.db_path, url=self.url))
