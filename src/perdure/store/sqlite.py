"""The SQLite driver. Decides connections, pragmas, how a group is written and what each SQLite error means.

One file, WAL, `synchronous=FULL`, any number of processes. Every write takes the lock with `BEGIN IMMEDIATE`,
so it never fails half way for a lock.

How a group is written is in `sqlite_group`.
"""

from __future__ import annotations

import os
import random
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from perdure.core.records import WorkerRow
from perdure.errors import (
    DurableConflictError,
    DurableLimitError,
    DurableStorageError,
    PerdureError,
    SerializationError,
)
from perdure.store import filesystem, migrate, rows
from perdure.store.base import Lane
from perdure.store.driver import Batch, StoreBusy, T
from perdure.store.presence import Presence
from perdure.store.sqlite_group import SqliteSession, insert, write_batch

APPLICATION_ID = 0x50445552
"""Marks the file as ours ("PDUR"), so that no other program's database is migrated."""

_BUSY_MS = 5_000
_SETUP_S = 30.0
_WATCH_S = 0.05
_IDLE_READERS = 4
_RECLAIM_PAGES = 256
_RECLAIM_MS = 250
_DRIVER_ERRORS = (sqlite3.Error, sqlite3.Warning, OSError, OverflowError, UnicodeError)
_BUSY_CODES = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_SCHEMA}

_leaked: list[Any] = []
"""Connections inherited by a forked child. Closing one would drop the parent's locks' bookkeeping; they are
kept."""


class SqliteDriver:
    """See `driver.Driver`."""

    kind = "sqlite"
    can_inline = True
    beat_s = 1.0
    missed_s = 0.0

    def __init__(self, path: str, *, url: str, is_network_allowed: bool = False) -> None:
        self.url = url
        # Resolved once: the process may change its directory.
        self._path = os.path.realpath(path)
        self._is_network_allowed = is_network_allowed
        self._presence = Presence(self._path)
        self._file: tuple[int, int] | None = None
        self._writer: sqlite3.Connection | None = None
        self._timeout_ms = _BUSY_MS
        self._doubtful: set[Lane] = set()
        self._beater: sqlite3.Connection | None = None
        self._beat_lock = threading.Lock()
        self._readers: list[sqlite3.Connection] = []
        self._watchers: list[_Watcher] = []
        self._is_closed = False

    # --- opening ----------------------------------------------------------------------------------------

    def setup(self) -> int:
        self._refuse_network(filesystem.current_mountinfo())
        with self._mapped():
            self._create_file()
            connection = sqlite3.connect(self._path, isolation_level=None, timeout=_SETUP_S)
            try:
                if connection.execute("PRAGMA page_count").fetchone() == (0,):
                    # Lets `reclaim` give pages back. Later it would do nothing but write at each opening.
                    connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
                self._use_wal(connection)
                found = self._migrate(connection)
            finally:
                connection.close()
            self._file = self._identity()
        return found

    def _refuse_network(self, mountinfo: str) -> None:
        kind = filesystem.network_type(self._path, mountinfo)
        if kind is not None and not self._is_network_allowed:
            raise DurableStorageError(
                f"{self._path} is on a network file system ({kind}), where SQLite loses data; put it on a "
                f"local disk or use Postgres (or, if one machine alone opens it: ?allow_network_fs=1)"
            )

    def _create_file(self) -> None:
        """Create an empty file for the owner only, whose mode the side files take: SQLite would let others read it.

        A database that exists, and may be open in this process, is never opened here: to close any descriptor of it
        drops every lock the process holds on it (POSIX locks), and then another process deletes the write-ahead log
        under it. So a new file gets its name when its descriptor is closed already.
        """
        filesystem.make_directories(Path(self._path).parent)
        if os.path.exists(self._path):
            return
        fresh = f"{self._path}.new-{secrets.token_hex(8)}"
        _create(fresh)
        try:
            os.link(fresh, self._path)
        except FileExistsError:
            pass  # another was first
        except OSError:  # a file system without links
            with suppress(FileExistsError):
                _create(self._path)
        finally:
            os.unlink(fresh)

    def _identity(self) -> tuple[int, int]:
        found = os.stat(self._path)
        return found.st_dev, found.st_ino

    def _check_file(self) -> None:
        """Before each write, for 2 us: an open connection writes on into a file that is not there any more."""
        try:
            is_there = self._identity() == self._file
        except FileNotFoundError:
            is_there = False
        if not is_there:
            raise DurableStorageError(
                f"{self._path} was deleted, moved or replaced while this store was open; nothing more is written"
            )

    def _use_wal(self, connection: sqlite3.Connection) -> None:
        # Changing the mode ignores the busy timeout when several processes open a new file at once.
        deadline = time.monotonic() + _SETUP_S
        while True:
            try:
                (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
                break
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
            time.sleep(0.01)
        if mode != "wal":
            raise DurableStorageError(f"{self._path} cannot be used in WAL mode (it is in mode {mode})")

    def _migrate(self, connection: sqlite3.Connection) -> int:
        connection.execute("BEGIN IMMEDIATE")
        try:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            (owner,) = connection.execute("PRAGMA application_id").fetchone()
            (count,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            if owner != APPLICATION_ID and (owner or version or count):
                raise DurableStorageError(f"{self._path} is another program's database; nothing was changed")
            for step in migrate.pending("sqlite", version, self.url):
                for statement in _statements(step.sql):
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {step.version}")
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")
        return version

    def _connect(self, *, timeout_ms: int = _BUSY_MS, synchronous: str = "FULL") -> sqlite3.Connection:
        if self._is_closed:
            raise DurableStorageError("the store is closed")
        # mode=rw: a file that was deleted under us is not silently replaced by an empty one.
        connection = sqlite3.connect(
            f"{Path(self._path).as_uri()}?mode=rw",
            uri=True,
            isolation_level=None,
            check_same_thread=False,
            timeout=timeout_ms / 1000,
            cached_statements=256,
        )
        connection.execute(f"PRAGMA synchronous = {synchronous}")
        connection.execute("PRAGMA journal_size_limit = 67108864")
        return connection

    # --- writing ----------------------------------------------------------------------------------------

    def write(self, batches: Sequence[Batch], *, is_inline: bool = False) -> None:
        # Every entry passes here, so no context managers: they cost as much as the statements.
        doubtful = self._doubtful
        try:
            connection = self._begin(0 if is_inline else _BUSY_MS)
            try:
                now = time.time()
                pending: list[rows.Row] = []
                for batch in batches:
                    write_batch(connection, batch, now, pending, doubtful)
                insert(connection, pending)
                connection.execute("COMMIT")
            except BaseException:
                self._roll_back(connection)
                raise
        except _DRIVER_ERRORS as error:
            raise mapped(error, self.url) from error
        except Exception:
            raise
        except BaseException:
            # Ctrl-C in a caller's thread may come right behind COMMIT.
            doubtful.update(batch.lane for batch in batches)
            raise
        if doubtful:
            doubtful.difference_update(batch.lane for batch in batches)

    def transact(self, work: Callable[[SqliteSession], T]) -> T:
        with self._mapped():
            connection = self._begin(_BUSY_MS)
            try:
                result = work(SqliteSession(connection, time.time()))
                connection.execute("COMMIT")
            except BaseException:
                self._roll_back(connection)
                raise
        return result

    def _begin(self, timeout_ms: int) -> sqlite3.Connection:
        """The write connection, with its transaction begun."""
        self._check_file()
        connection = self._writer
        if connection is None:
            connection = self._writer = self._connect()
            self._timeout_ms = _BUSY_MS
        if timeout_ms != self._timeout_ms:
            connection.execute(f"PRAGMA busy_timeout = {timeout_ms}")
            self._timeout_ms = timeout_ms
        connection.execute("BEGIN IMMEDIATE")
        return connection

    def _roll_back(self, connection: sqlite3.Connection) -> None:
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        except sqlite3.Error:
            # Of no use any more; the file's own journal undoes the rest.
            self._writer = None
            connection.close()

    # --- reading ----------------------------------------------------------------------------------------

    def read(self, work: Callable[[SqliteSession], T]) -> T:
        with self._mapped():
            connection = self._reader()
            try:
                connection.execute("BEGIN")
                result = work(SqliteSession(connection, time.time()))
                connection.execute("COMMIT")
            except BaseException:
                connection.close()
                raise
        self._give_back(connection)
        return result

    def _reader(self) -> sqlite3.Connection:
        try:
            return self._readers.pop()
        except IndexError:
            connection = self._connect()
            connection.execute("PRAGMA query_only = ON")
            return connection

    def _give_back(self, connection: sqlite3.Connection) -> None:
        if self._is_closed or len(self._readers) >= _IDLE_READERS:
            connection.close()
        else:
            self._readers.append(connection)

    def reclaim(self) -> None:
        """In small transactions of its own, so that writers come between; ends early if somebody has the lock."""
        with suppress(StoreBusy), self._mapped():
            self._check_file()
            connection = self._connect(timeout_ms=_RECLAIM_MS)
            try:
                before = None
                while (left := connection.execute("PRAGMA freelist_count").fetchone()[0]) and left != before:
                    before = left
                    connection.execute(f"PRAGMA incremental_vacuum({_RECLAIM_PAGES})").fetchall()
                # The file shrinks when the log is written back.
                connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            finally:
                connection.close()

    # --- news of other processes ------------------------------------------------------------------------

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        watcher = _Watcher(self, callback)
        self._watchers = [other for other in self._watchers if other.is_alive()] + [watcher]
        watcher.start()
        return watcher.stop

    # --- workers ----------------------------------------------------------------------------------------

    def worker_lock(self, worker_id: str) -> str:
        return self._presence.lock(worker_id)

    def worker_unlock(self, worker_id: str) -> None:
        self._presence.unlock(worker_id)

    def worker_sweep(self, worker: WorkerRow) -> None:
        self._presence.sweep(worker)

    def worker_probe(self, worker: WorkerRow) -> str:
        return self._presence.probe(worker)

    def worker_beat(self, worker_id: str) -> bool:
        with self._beat_lock, self._mapped(busy=DurableStorageError):
            self._check_file()
            if self._beater is None:
                # A heartbeat that a power cut takes back harms nobody, so it waits for no disk.
                self._beater = self._connect(timeout_ms=0, synchronous="NORMAL")
            return self._insist(lambda beater: SqliteSession(beater, 0.0).run("worker_beat", {"id": worker_id}) == 1)

    def _insist(self, attempt: Callable[[sqlite3.Connection], T]) -> T:
        """Try for as long as SQLite would wait for a lock, but more often: it looks ever more rarely, and among many
        busy writers is always the last to come."""
        assert self._beater is not None
        deadline = time.monotonic() + _BUSY_MS / 1000
        while True:
            try:
                return attempt(self._beater)
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF not in _BUSY_CODES or time.monotonic() > deadline:
                    raise
            time.sleep(random.uniform(0.001, 0.01))

    # --- the end ----------------------------------------------------------------------------------------

    def abandon(self) -> None:
        self._is_closed = True
        _leaked.extend((self._writer, self._beater, self._readers, self._watchers))
        self._writer = self._beater = None
        self._readers = []
        self._watchers = []
        self._presence.forget()

    def close(self) -> None:
        self._is_closed = True
        for watcher in self._watchers:
            watcher.stop()
            watcher.join()
        while self._readers:
            self._readers.pop().close()
        with self._beat_lock:
            for connection in (self._beater, self._writer):
                if connection is not None:
                    connection.close()
            self._beater = self._writer = None
        self._presence.close()

    @contextmanager
    def _mapped(self, busy: type[Exception] = StoreBusy) -> Iterator[None]:
        """No exception of the driver leaves."""
        try:
            yield
        except _DRIVER_ERRORS as error:
            found = mapped(error, self.url)
            raise (busy(str(found)) if isinstance(found, StoreBusy) else found) from error


class _Watcher(threading.Thread):
    """Looks every 50 ms whether the file was changed by another connection."""

    def __init__(self, driver: SqliteDriver, callback: Callable[[], None]) -> None:
        super().__init__(name="perdure-watch", daemon=True)
        self._driver = driver
        self._callback = callback
        self._stopped = threading.Event()

    def stop(self) -> None:
        self._stopped.set()

    def run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._look()
            except (sqlite3.Error, OSError, PerdureError):
                # The store's users will meet the error themselves; here it only means that nothing is known.
                self._stopped.wait(1.0)

    def _look(self) -> None:
        connection = self._driver._connect()
        try:
            seen = None
            while not self._stopped.is_set():
                (version,) = connection.execute("PRAGMA data_version").fetchone()
                if version != seen:
                    # Also the first time: what was committed before the first look may be news.
                    seen = version
                    self._callback()
                self._stopped.wait(_WATCH_S)
        finally:
            connection.close()


def _create(path: str) -> None:
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def _statements(script: str) -> Iterator[str]:
    """The statements of a migration; `executescript` would commit first."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def mapped(error: Exception, url: str) -> Exception:
    """What an exception of the driver, or of binding values, means to the writer and to callers."""
    if isinstance(error, OSError):
        return DurableStorageError(f"cannot open the store at {url}: {error}")
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return _mapped_without_code(error, url)
    if code == sqlite3.SQLITE_CONSTRAINT_CHECK:
        return SerializationError("$", f"text holds a NUL character: {error}")
    match code & 0xFF:
        case busy if busy in _BUSY_CODES:
            return StoreBusy(f"the store at {url} is busy: {error}")
        case sqlite3.SQLITE_TOOBIG:
            return DurableLimitError(f"a value is too large for SQLite: {error}")
        case sqlite3.SQLITE_CONSTRAINT:
            return DurableConflictError(f"the store at {url} has other content: {error}")
        case sqlite3.SQLITE_MISMATCH | sqlite3.SQLITE_RANGE:
            return SerializationError("$", f"SQLite cannot hold a value: {error}")
        case _:
            name = getattr(error, "sqlite_errorname", code)
            return DurableStorageError(f"the store at {url} failed ({name}): {error}")


def _mapped_without_code(error: Exception, url: str) -> Exception:
    if isinstance(error, sqlite3.DataError):
        return DurableLimitError(f"a value is too large for SQLite: {error}")
    if isinstance(error, (OverflowError, UnicodeError)) or "binding parameter" in str(error):
        return SerializationError("$", f"SQLite cannot hold a value: {error}")
    return DurableStorageError(f"the store at {url} failed: {error}")
