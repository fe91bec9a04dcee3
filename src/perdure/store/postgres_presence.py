"""A sign that a worker lives: a session's advisory lock. Decides what a free or held lock shows; `core`
decides what to do.

The lock and the heartbeat share one connection, so a beat that was counted proves that the lock was held.
A lock is lost with its connection, and that alone proves nothing about the process: a restart of the
server frees all of them. So the name of a lock contains the start of the server under which it was taken,
and a name from another start proves nothing.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

from perdure.core.records import WorkerRow
from perdure.errors import DurableStorageError
from perdure.store import queries
from perdure.store.driver import StoreBusy, StoreLost
from perdure.store.postgres_connect import connect, simple
from perdure.store.postgres_errors import load_psycopg
from perdure.store.postgres_setup import advisory_key
from perdure.store.postgres_wire import Statement, Wire, text

if TYPE_CHECKING:
    import psycopg

_NO_LOCK = "none"
_START = "SELECT extract(epoch FROM pg_postmaster_start_time())::text"
_BEAT_TIMEOUT_MS = 2000


class Presence:
    """One worker's lock and heartbeats. `info` is the direct connection; `beat_info` is used for beats if
    there is none. `file` is the inode of the worker's lock file on its machine, if it has one."""

    def __init__(self, info: str | None, beat_info: str, schema: str, worker_id: str, file: str) -> None:
        named = queries.load("postgres")
        self._info = info
        self._beat_info = beat_info
        self._worker_id = worker_id
        self._file = file
        self._key = advisory_key(f"{schema}:worker:{worker_id}")
        self._beat = Statement("worker_beat", named["worker_relock"], schema)
        self._guard = threading.Lock()
        self._connection: psycopg.Connection[Any] | None = None
        self._name: str | None = None

    def take(self) -> str:
        """Take the lock; its name, with the lock file's inode behind it. `DurableStorageError` if somebody holds it."""
        with self._guard:
            return self._named(self._open())

    def beat(self) -> bool:
        """Count one beat, on the connection that holds the lock; locks again first if that was lost.

        Raises `DurableStorageError` if the beat could not be counted: the lock is not held then.
        """
        psycopg = load_psycopg()
        with self._guard:
            try:
                name = self._open()
                assert self._connection is not None
                params = [text(self._named(name)), text(self._worker_id)]
                return Wire(self._connection, is_preparing=False).command(self._beat, params) > 0
            except (psycopg.Error, StoreBusy, StoreLost) as error:
                self._drop()
                raise DurableStorageError(f"heartbeat of worker {self._worker_id} not counted: {error}") from error

    def is_held(self) -> bool:
        """Whether the lock was held when last looked at: False from the first beat that failed until the
        next counted."""
        return self._name is not None and self._name != _NO_LOCK

    def release(self) -> None:
        """Give the lock back; others see it free when this returns. Idempotent."""
        psycopg = load_psycopg()
        with self._guard:
            if self._connection is not None and self._name not in (None, _NO_LOCK):
                # The end of a session is seen only a moment after its client has left.
                with contextlib.suppress(psycopg.Error):
                    simple(self._connection, "SELECT pg_advisory_unlock_all()")
            self._drop()

    def _open(self) -> str:
        if self._connection is not None and not self._connection.closed and self._name is not None:
            return self._name
        self._drop()
        self._connection = connect(self._info or self._beat_info)
        if self._info is None:
            self._name = _NO_LOCK
        else:
            try:
                self._name = self._lock(self._connection)
            except BaseException:
                self._drop()
                raise
        return self._name

    def _lock(self, connection: psycopg.Connection[Any]) -> str:
        simple(connection, f"SET statement_timeout = {_BEAT_TIMEOUT_MS}")
        if simple(connection, f"SELECT pg_try_advisory_lock({self._key})") != "t":
            raise DurableStorageError(f"another session holds the lock of worker {self._worker_id}")
        return f"{self._key}@{simple(connection, _START)}"

    def _named(self, name: str) -> str:
        return f"{name}|{self._file}" if self._file else name

    def _drop(self) -> None:
        connection, self._connection, self._name = self._connection, None, None
        if connection is not None:
            connection.close()


def probe(connection: psycopg.Connection[Any], worker: WorkerRow) -> str:
    """`alive`, `dead` or `unknown`, by looking at the server's table of locks: looking takes no lock from
    anybody.

    `lost` says: the lock is free under the server's start at which the worker last beat. A living worker that has
    lost its connection is seen so until it has locked again, so the caller also waits for missed beats.
    """
    key, _, start = (worker.lock or _NO_LOCK).partition("|")[0].partition("@")
    if not start:
        return "unknown"
    number = int(key) & 0xFFFFFFFFFFFFFFFF
    is_held = simple(
        connection,
        "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND granted "
        "AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) "
        f"AND classid = {number >> 32} AND objid = {number & 0xFFFFFFFF})",
    )
    if is_held == "t":
        return "alive"
    return "lost" if simple(connection, _START) == start else "unknown"
