"""The Postgres driver. Composes its parts: connections, groups, transactions, listening, presence. Called
by `SqlStore`.

Three kinds of connection: one for writing, a pool for reading, and direct ones (past a pooler, if there is
one) for what belongs to a session: a worker's lock and LISTEN. A connection that breaks is thrown away;
the next call opens another.

Groups never wait for each other in a circle: they lock their runs in ascending order, and whoever is
chosen as the victim of a deadlock all the same has written nothing and is sent again.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from perdure.core.records import WorkerRow
from perdure.errors import DurableStorageError, InvalidInputError
from perdure.store import local_presence, postgres_setup, postgres_url
from perdure.store.base import Lane
from perdure.store.driver import Batch, Session, StoreBusy, StoreLost
from perdure.store.postgres_connect import connect, conninfo, database, is_pooled, simple, tune
from perdure.store.postgres_errors import load_psycopg, translate
from perdure.store.postgres_group import GroupWriter
from perdure.store.postgres_listen import Listener
from perdure.store.postgres_presence import Presence, probe
from perdure.store.postgres_session import READ_ONLY, PostgresSession
from perdure.store.postgres_tree import write_tree
from perdure.store.postgres_wire import Wire

if TYPE_CHECKING:
    import psycopg
    import psycopg_pool

T = TypeVar("T")

_PROGRESS_S = 0.05
_MIN_READERS, _MAX_READERS = 0, 4
_READER_LIFETIME_S = 1800.0
_READER_WAIT_S = 15.0


class PostgresDriver:
    """See `driver.Driver`. The constructor connects, to find out whether a pooler stands between."""

    kind = "postgres"
    can_inline = False
    beat_s = 0.25
    missed_s = 0.6

    def __init__(self, url: str, *, min_readers: int = _MIN_READERS, max_readers: int = _MAX_READERS) -> None:
        self._psycopg = load_psycopg()
        self._min_readers, self._max_readers = min_readers, max_readers
        parsed = postgres_url.parse(url)
        self.url = postgres_url.redacted(url)
        self._schema = parsed.schema
        self._channel = parsed.channel
        self._pid = os.getpid()
        self._info = conninfo(parsed.conninfo)
        self._writer: psycopg.Connection[Any] | None = None
        self._groups: GroupWriter | None = None
        self._writer_pid: int | None = None
        self._doubtful: set[Lane] = set()
        self._told_at = -_PROGRESS_S
        self._guard = threading.Lock()
        self._readers: psycopg_pool.ConnectionPool[Any] | None = None
        self._presences: dict[str, Presence] = {}
        self._files = local_presence.open_presence(f"{database(self._info)} {self._schema}")
        self._listeners: list[Listener] = []
        self._is_closed = False
        with _opening():
            connection = connect(self._info)
        try:
            with _opening():
                pooled = is_pooled(connection)
                self._is_preparing = not pooled if parsed.prepare is None else parsed.prepare
                self._is_direct = not pooled
                self._adopt(connection)
            self._direct_info = self._choose_direct(parsed.direct, pooled)
        except BaseException:
            connection.close()
            raise

    def setup(self) -> int:
        with _opening():
            return postgres_setup.setup(self._connection(), self._schema, self.url)

    # --- writing ------------------------------------------------------------------------------------------

    def write(self, batches: Sequence[Batch], *, is_inline: bool = False) -> None:
        if any(batch.lane.root_id != batch.lane.run_id for batch in batches):
            self.transact(lambda session: write_tree(session, batches, self._doubtful))
            return
        # A run may have two lanes for a moment, when somebody creates it twice: each is judged after the
        # other.
        first, rest = _distinct(batches)
        self._write_group(first)
        if rest:
            self._doubtful.update(batch.lane for batch in first)
            self.write(rest)
            self._doubtful.difference_update(batch.lane for batch in first)

    def _write_group(self, batches: Sequence[Batch]) -> None:
        self._connection()
        assert self._groups is not None
        is_told = self._is_to_be_told(batches)
        try:
            with _translated(is_ambiguous=True):
                self._groups.write(batches, doubtful=self._doubtful, is_told=is_told)
        except StoreLost:
            # The statement is its own transaction: that it was sent is all we know.
            self._doubtful.update(batch.lane for batch in batches)
            self._drop_writer()
            raise
        if self._doubtful:
            self._doubtful.difference_update(batch.lane for batch in batches)

    def _is_to_be_told(self, batches: Sequence[Batch]) -> bool:
        """Whether other processes hear of the group at once. What they may act on, always; plain progress
        now and then, since a notification takes a lock that all committers of a database share. The
        listener's floor has the rest."""
        now = time.monotonic()
        is_news = any(batch.change is not None or batch.questions for batch in batches)
        if not is_news and now - self._told_at < _PROGRESS_S:
            return False
        self._told_at = now
        return True

    def transact(self, work: Callable[[Session], T]) -> T:
        connection = self._connection()
        is_ambiguous = False
        try:
            with self._rolled_back(connection):
                with _translated():
                    session = PostgresSession(connection, self._schema, is_preparing=self._is_preparing)
                    result = work(session)
                is_ambiguous = session.has_written
                with _translated(is_ambiguous=is_ambiguous):
                    session.end(self._channel)
                return result
        except StoreLost:
            self._drop_writer()
            raise

    @contextlib.contextmanager
    def _rolled_back(self, connection: psycopg.Connection[Any]) -> Iterator[None]:
        """If the block raises, end its transaction; a connection that cannot do that is thrown away."""
        try:
            yield
        except BaseException:
            try:
                simple(connection, "ROLLBACK")
            except self._psycopg.Error:
                connection.close()
            raise

    def _connection(self) -> psycopg.Connection[Any]:
        self._check_usable()
        if self._writer is not None and not self._writer.closed:
            return self._writer
        with _translated():
            return self._adopt(connect(self._info))

    def _adopt(self, connection: psycopg.Connection[Any]) -> psycopg.Connection[Any]:
        """Write through this connection from now on."""
        if self._is_direct:
            tune(connection)
        self._writer = connection
        self._writer_pid = connection.info.backend_pid
        self._groups = GroupWriter(Wire(connection, is_preparing=self._is_preparing), self._schema, self._channel)
        return connection

    def _drop_writer(self) -> None:
        connection, self._writer = self._writer, None
        if connection is not None:
            connection.close()

    # --- reading ------------------------------------------------------------------------------------------

    def read(self, work: Callable[[Session], T]) -> T:
        try:
            return self._read_once(work)
        except StoreLost:
            # Nothing was written, so once more is safe: the server may have been restarted since the last
            # read.
            return self._read_once(work)

    def _read_once(self, work: Callable[[Session], T]) -> T:
        with _translated(), self._reader_pool().connection() as connection, self._rolled_back(connection):
            session = PostgresSession(connection, self._schema, READ_ONLY, is_preparing=self._is_preparing)
            result = work(session)
            simple(connection, "COMMIT")
            return result

    def _reader_pool(self) -> psycopg_pool.ConnectionPool[Any]:
        import psycopg_pool  # optional dependency

        self._check_usable()
        with self._guard:
            if self._readers is None:
                self._readers = psycopg_pool.ConnectionPool(
                    self._info,
                    kwargs={"autocommit": True, "prepare_threshold": None},
                    min_size=self._min_readers,
                    max_size=self._max_readers,
                    max_lifetime=_READER_LIFETIME_S,
                    timeout=_READER_WAIT_S,
                    num_workers=1,
                    check=psycopg_pool.ConnectionPool.check_connection,
                    open=True,
                    name="perdure",
                )
            return self._readers

    # --- other processes ----------------------------------------------------------------------------------

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        self._check_usable()
        listener = Listener(self._direct_info, self._channel, callback, lambda: self._writer_pid)
        # Stopped ones stay until they have ended, so that `close` leaves no connection behind.
        self._listeners = [*(other for other in self._listeners if other.is_alive()), listener]
        listener.start()
        return listener.stop

    def reclaim(self) -> None:
        """Autovacuum does it."""

    def worker_lock(self, worker_id: str) -> str:
        self._check_usable()
        file = self._file_lock(worker_id)
        presence = Presence(self._direct_info, self._info, self._schema, worker_id, file)
        try:
            with _opening():
                name = presence.take()
        except BaseException:
            self._file_unlock(worker_id)
            raise
        self._presences[worker_id] = presence
        return name

    def _file_lock(self, worker_id: str) -> str:
        """Lock the worker's file on this machine; its inode, empty where that cannot be had."""
        if self._files is None:
            return ""
        try:
            return self._files.lock(worker_id).rpartition("|")[2]
        except DurableStorageError:
            return ""

    def _file_unlock(self, worker_id: str) -> None:
        if self._files is not None:
            self._files.unlock(worker_id)

    def worker_lock_held(self, worker_id: str) -> bool:
        """Whether this process' worker held its lock when its last heartbeat was counted or tried."""
        presence = self._presences.get(worker_id)
        return presence is not None and presence.is_held()

    def worker_unlock(self, worker_id: str) -> None:
        presence = self._presences.pop(worker_id, None)
        if presence is not None:
            presence.release()
        self._file_unlock(worker_id)

    def worker_sweep(self, worker: WorkerRow) -> None:
        """Only its lock file: the lock of a session ends with it."""
        if self._files is not None:
            self._files.sweep(worker)

    def worker_probe(self, worker: WorkerRow) -> str:
        proof = "unknown" if self._files is None else self._files.probe(worker)
        if proof != "unknown":
            return proof
        try:
            with _translated(), self._reader_pool().connection() as connection:
                return probe(connection, worker)
        except (StoreBusy, StoreLost):
            return "unknown"

    def worker_beat(self, worker_id: str) -> bool:
        self._check_usable()
        presence = self._presences.get(worker_id)
        return presence is not None and presence.beat()

    # --- life ---------------------------------------------------------------------------------------------

    def abandon(self) -> None:
        # The connections stay referenced and open: a farewell on a shared socket would end the parent's
        # session.
        self._is_closed = True
        if self._files is not None:
            self._files.forget()

    def close(self) -> None:
        if os.getpid() != self._pid:
            return  # a forked child shares the sockets: a farewell on them would end the parent's sessions
        self._is_closed = True
        for listener in self._listeners:
            listener.stop_and_wait()
        for worker_id in list(self._presences):
            self.worker_unlock(worker_id)
        with self._guard:
            readers, self._readers = self._readers, None
        if readers is not None:
            readers.close()
        self._drop_writer()

    def _check_usable(self) -> None:
        if self._is_closed:
            raise DurableStorageError("the store is closed")
        if os.getpid() != self._pid:
            raise DurableStorageError("the store was opened before fork(); open it in the child")

    def _choose_direct(self, given: str | None, pooled: bool) -> str | None:
        """Where a session of our own can be had: as given, or the URL itself unless it leads to a pooler."""
        if given is None:
            return None if pooled else self._info
        if not given:
            return None
        info = conninfo(given)
        with _opening(), connect(info) as connection:
            if is_pooled(connection):
                raise InvalidInputError(
                    "direct", "leads to a connection pooler, too; locks and LISTEN need the server itself"
                )
        return info


def _distinct(batches: Sequence[Batch]) -> tuple[list[Batch], list[Batch]]:
    """The first batch of each run, and the others."""
    first: dict[str, Batch] = {}
    rest: list[Batch] = []
    for batch in batches:
        if first.setdefault(batch.lane.run_id, batch) is not batch:
            rest.append(batch)
    return list(first.values()), rest


@contextlib.contextmanager
def _translated(*, is_ambiguous: bool = False) -> Iterator[None]:
    """psycopg's errors stop here; so do texts that UTF-8 cannot carry."""
    psycopg = load_psycopg()
    try:
        yield
    except psycopg.Error as error:
        raise translate(error, is_ambiguous=is_ambiguous) from error
    except UnicodeEncodeError as error:
        raise InvalidInputError("data", f"cannot be stored as text: {error.reason}") from error


@contextlib.contextmanager
def _opening() -> Iterator[None]:
    """Opening is not tried again: who opens a store wants to know at once that its server is not there."""
    try:
        with _translated():
            yield
    except (StoreBusy, StoreLost) as error:
        raise DurableStorageError(f"the store cannot be opened: {error}") from error
