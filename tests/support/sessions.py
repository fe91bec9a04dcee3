"""Another session beside the driver's: to stop a group at its lock and to look at what it stored."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, LiteralString

import psycopg


@contextmanager
def session(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """A plain connection that sees the store's tables by their bare names."""
    with psycopg.connect(dsn, autocommit=True, options="-c search_path=perdure") as connection:
        yield connection


class Blocked:
    """`work` in a thread, stopped at a lock that somebody holds."""

    def __init__(self, work: Callable[[], object], watcher: psycopg.Connection[Any], backend_pid: int) -> None:
        self._work = work
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        while self._thread.is_alive() and not _value(watcher, "SELECT pg_blocking_pids(%s)", backend_pid):
            pass
        if not self._thread.is_alive():
            raise AssertionError(f"it did not wait for a lock: {self.error!r}")

    def finish(self) -> None:
        """Wait until it is over; raises what it raised."""
        self._thread.join()
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self.error = error


def _value(connection: psycopg.Connection[Any], sql: LiteralString, *params: Any) -> Any:
    row = connection.execute(sql, params).fetchone()
    assert row is not None
    return row[0]


def backend_pid(watcher: psycopg.Connection[Any], application: str) -> int:
    """The one server process of an application by name, idle or not."""
    return _value(watcher, "SELECT pid FROM pg_stat_activity WHERE application_name = %s", application)


value = _value
