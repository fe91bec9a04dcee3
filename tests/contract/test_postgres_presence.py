"""Who lives and who has written, as seen through Postgres: locks, heartbeats and notifications."""

from __future__ import annotations

import math
import os
import stat
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.support.batches import batch, change, question, started, write
from tests.support.postgres import PostgresServer
from tests.support.proxy import proxied
from tests.support.sessions import session, value

from perdure.core.records import Record, WorkerRow
from perdure.errors import DurableStorageError
from perdure.store import transactions
from perdure.store.driver import Session, boot_id, host_name
from perdure.store.postgres import PostgresDriver
from perdure.store.postgres_listen import Listener

Connection = psycopg.Connection[Any]
_END_SESSIONS = (
    "SELECT pg_terminate_backend(pid, 10000) FROM pg_locks WHERE locktype = 'advisory' AND granted"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)
"""Ends the sessions that hold the workers' locks."""


@pytest.fixture
def watcher(postgres_dsn: str) -> Iterator[Connection]:
    with session(postgres_dsn) as connection:
        yield connection


def opened(dsn: str) -> PostgresDriver:
    driver = PostgresDriver(dsn)
    driver.setup()
    return driver


@pytest.fixture
def driver(postgres_dsn: str) -> Iterator[PostgresDriver]:
    driver = opened(postgres_dsn)
    yield driver
    driver.close()


@pytest.fixture
def peer(postgres_dsn: str, driver: PostgresDriver) -> Iterator[PostgresDriver]:
    """Another process' view of the same store."""
    peer = opened(postgres_dsn)
    yield peer
    peer.close()


def registered(driver: PostgresDriver, worker_id: str = "w1") -> WorkerRow:
    lock = driver.worker_lock(worker_id)
    row = WorkerRow(
        worker_id=worker_id,
        host="host",
        boot_id="boot",
        pid=os.getpid(),
        beat=0,
        lock=lock,
        started_at=0.0,
        ended_at=None,
    )
    return driver.transact(lambda session: transactions.worker_register(session, row, lock))


def found(driver: PostgresDriver, worker_id: str = "w1") -> WorkerRow:
    def work(session: Session) -> WorkerRow | None:
        return transactions.worker_find(session, worker_id)

    row = driver.read(work)
    assert row is not None
    return row


# --- workers --------------------------------------------------------------------------------------------


def test_worker_probe_follows_the_lock(driver: PostgresDriver, peer: PostgresDriver) -> None:
    """Held: alive. Given back, or its holder's connection gone: lost. Looking takes nothing away."""
    row = registered(driver)
    assert [peer.worker_probe(row) for _ in range(3)] == ["alive"] * 3
    driver.worker_unlock("w1")
    driver.worker_unlock("w1")
    assert peer.worker_probe(row) == "lost"
    assert peer.worker_lock("w1").partition("|")[0] == (row.lock or "").partition("|")[0]
    assert peer.worker_probe(row) == "alive"


def test_worker_lock_is_one_workers(driver: PostgresDriver, peer: PostgresDriver) -> None:
    """Nobody takes the lock of a worker that lives."""
    registered(driver)
    with pytest.raises(DurableStorageError, match="w1"):
        peer.worker_lock("w1")


def test_worker_probe_without_a_lock_is_unknown(driver: PostgresDriver, postgres_dsn: str) -> None:
    """Without a direct connection nothing is proven: the lease decides."""
    blind = opened(postgres_dsn + "&direct=none")
    row = registered(blind)
    assert (row.lock or "").startswith("none")
    assert blind.worker_beat("w1")
    assert not blind.worker_lock_held("w1")
    assert driver.worker_probe(row) == "unknown"
    blind.close()
    assert driver.worker_probe(row) == "unknown"


def test_worker_beat_counts_until_the_end(driver: PostgresDriver) -> None:
    """Each beat counts one; the beat of an ended worker says so."""
    registered(driver)
    assert [driver.worker_beat("w1") for _ in range(3)] == [True] * 3
    assert found(driver).beat == 3
    driver.transact(lambda session: transactions.worker_end(session, "w1"))
    assert not driver.worker_beat("w1")


def test_worker_beat_locks_again(driver: PostgresDriver, peer: PostgresDriver, watcher: Connection) -> None:
    """A lock whose connection was ended is noticed at the next beat, and taken again at the one after it."""
    row = registered(driver)
    watcher.execute(_END_SESSIONS)
    assert peer.worker_probe(row) == "lost"
    with pytest.raises(DurableStorageError, match="not counted"):
        driver.worker_beat("w1")
    assert not driver.worker_lock_held("w1")
    assert driver.worker_beat("w1")
    assert driver.worker_lock_held("w1")
    assert peer.worker_probe(found(peer)) == "alive"


def test_worker_probe_after_a_restart_proves_nothing(postgres_server: PostgresServer) -> None:
    """A restart of the server frees every lock; a worker that has not locked again since is not taken for
    dead."""
    driver, peer = opened(postgres_server.dsn()), opened(postgres_server.dsn())
    row = registered(driver)
    assert peer.worker_probe(row) == "alive"
    postgres_server.restart("immediate")
    assert peer.worker_probe(row) == "unknown"
    with pytest.raises(DurableStorageError):
        driver.worker_beat("w1")
    assert driver.worker_beat("w1")
    assert peer.worker_probe(row) == "alive"
    driver.worker_unlock("w1")
    assert peer.worker_probe(row) == "unknown"
    assert peer.worker_probe(found(peer)) == "lost"
    driver.close()
    peer.close()


def test_worker_probe_sees_a_living_process_through_its_file(
    driver: PostgresDriver, peer: PostgresDriver, watcher: Connection
) -> None:
    """A worker of this machine that has lost its session is known to live; one that gave its file back is not."""
    row = replace(registered(driver), host=host_name(), boot_id=boot_id())
    watcher.execute(_END_SESSIONS)
    assert peer.worker_probe(row) == "alive"
    driver.worker_unlock("w1")
    assert peer.worker_probe(row) == "lost"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary directory of the test's own, and in it the path of the lock files' directory."""
    monkeypatch.setenv("TMPDIR", f"{tmp_path}/")  # with a slash, as macOS has it
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path / f"perdure-{os.getuid()}"


def assert_only_the_server_proves(dsn: str) -> None:
    driver = opened(dsn)
    row = replace(registered(driver), host=host_name(), boot_id=boot_id())
    assert "|" not in (row.lock or "|")
    assert driver.worker_probe(row) == "alive"
    driver.worker_unlock("w1")
    assert driver.worker_probe(row) == "lost"
    driver.close()


def test_lock_files_lie_in_a_directory_of_our_own(place: Path, postgres_dsn: str) -> None:
    """What is old there and held by nobody is removed; what is held stays, however old."""
    first = opened(postgres_dsn)
    registered(first)
    (held,) = place.iterdir()
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    left, fresh = place / "0.worker-left", place / "0.worker-fresh"
    for path in (left, fresh):
        path.touch()
    for path in (left, held):
        os.utime(path, (0, 0))
    second = opened(postgres_dsn)
    assert set(place.iterdir()) == {held, fresh}
    first.close()
    assert set(place.iterdir()) == {fresh}
    second.close()


@pytest.mark.parametrize("how", ["open to others", "a link", "a file"])
def test_a_directory_that_is_not_ours_alone_proves_nothing(
    how: str, place: Path, tmp_path: Path, postgres_dsn: str
) -> None:
    """Others could lock, or remove, what lies there: such a directory is not used, and the server decides."""
    if how == "a link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        place.symlink_to(tmp_path / "elsewhere")
    elif how == "a file":
        place.touch()
    else:
        place.mkdir()
        place.chmod(0o777)
    assert_only_the_server_proves(postgres_dsn)


def test_without_a_temporary_directory_the_server_proves(
    place: Path, postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container whose file systems are read-only: `tempfile` has nothing to offer, or the current directory."""

    def refuse() -> str:
        raise FileNotFoundError("no usable temporary directory")

    monkeypatch.setattr(tempfile, "gettempdir", refuse)
    assert_only_the_server_proves(postgres_dsn)


def test_the_current_directory_gets_no_lock_files(
    postgres_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert_only_the_server_proves(postgres_dsn)
    assert list(tmp_path.iterdir()) == []


# --- notifications --------------------------------------------------------------------------------------


class Bell:
    """A callback that counts, and lets a test wait for the next call."""

    def __init__(self) -> None:
        self._rung = threading.Semaphore(0)

    def __call__(self) -> None:
        self._rung.release()

    def wait(self) -> None:
        self._rung.acquire()


def listening(driver: PostgresDriver, bell: Bell) -> Listener:
    """A listener that polls so rarely that only a notification can be what rings. It has listened once."""
    listener = Listener(driver._direct_info, driver._channel, bell, lambda: driver._writer_pid, poll_s=3600.0)
    listener.start()
    bell.wait()
    return listener


def test_watch_hears_of_what_changes_a_run(driver: PostgresDriver, peer: PostgresDriver) -> None:
    """Ends, waits, questions and writes from outside are told to other processes at once."""
    bell = Bell()
    driver._told_at = math.inf  # progress is not told: only what others may act on can ring
    run = started(driver)
    listener = listening(peer, bell)
    write(driver, batch(run, 1, questions=[question(run.run_id)]))
    bell.wait()
    record, waiting = change("waiting", is_release=False)
    write(driver, batch(run, [record], change=waiting))
    bell.wait()
    driver.transact(lambda session: transactions.cancel(session, run.run_id, None))
    bell.wait()
    listener.stop()


def test_watch_hears_of_progress(driver: PostgresDriver, peer: PostgresDriver) -> None:
    """Plain records are told, too, if none were told a moment ago."""
    run = started(driver)
    bell = Bell()
    listener = listening(peer, bell)
    driver._told_at = -math.inf
    write(driver, batch(run))
    bell.wait()
    listener.stop()


def test_watch_passes_over_own_commits(driver: PostgresDriver) -> None:
    """The process' own writes are told to it in memory, not by its server."""
    bell = Bell()
    listener = listening(driver, bell)
    run = started(driver)
    record, waiting = change("completed")
    write(driver, batch(run, [record], change=waiting))
    with session(driver._info) as other:
        other.execute(f"NOTIFY {driver._channel}")  # arrives after the driver's own
    bell.wait()
    assert not bell._rung.acquire(blocking=False)
    listener.stop()


def test_watch_hears_nothing_of_a_transaction_that_wrote_nothing(driver: PostgresDriver, peer: PostgresDriver) -> None:
    """Claims that find nothing do not wake everybody else, who would then try to claim."""
    bell = Bell()
    listener = listening(peer, bell)
    driver.transact(lambda session: session.all("run_list", _everything()))
    with session(driver._info) as other:
        other.execute(f"NOTIFY {driver._channel}")
    bell.wait()
    assert not bell._rung.acquire(blocking=False)
    listener.stop()


def _everything() -> dict[str, Any]:
    return {"status": None, "runner": None, "after": None, "limit": 10}


def test_watch_tells_again_after_a_lost_connection(postgres_dsn: str, driver: PostgresDriver) -> None:
    """What was committed while nobody listened is told when somebody does again."""
    with proxied(postgres_dsn) as proxy:
        peer = opened(proxy.dsn)
        bell = Bell()
        listener = Listener(peer._direct_info, peer._channel, bell, lambda: None, poll_s=3600.0)
        listener.start()
        bell.wait()
        proxy.cut()
        bell.wait()
        listener.stop()
        peer.close()


def test_watch_polls_without_a_connection(postgres_dsn: str) -> None:
    """Without a direct connection subscribers are told at every interval."""
    blind = opened(postgres_dsn + "&direct=none")
    bell = Bell()
    stop = blind.watch(bell)
    bell.wait()
    bell.wait()
    stop()
    stop()
    blind.close()


def test_watch_stops_from_its_own_callback(driver: PostgresDriver) -> None:
    """A callback may end what called it."""
    is_over = threading.Event()
    stops: list[Any] = []
    is_set = threading.Event()

    def callback() -> None:
        is_set.wait()
        stops[0]()
        is_over.set()

    stops.append(driver.watch(callback))
    is_set.set()
    assert is_over.wait(60)


# --- life -----------------------------------------------------------------------------------------------


def test_close_leaves_no_session_behind(postgres_dsn: str, watcher: Connection) -> None:
    """All connections end; closing again is fine; a closed driver says what it is."""
    driver = opened(postgres_dsn + "&application_name=leaving")
    registered(driver)
    driver.watch(lambda: None)
    driver.close()
    driver.close()
    sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'leaving'"
    while value(watcher, sessions):  # the server ends a session a moment after its client left
        pass
    with pytest.raises(DurableStorageError, match="closed"):
        driver.transact(lambda session: None)
    with pytest.raises(DurableStorageError, match="closed"):
        driver.read(lambda session: None)


def test_fork_leaves_the_parents_sessions_alone(driver: PostgresDriver, peer: PostgresDriver) -> None:
    """A child cannot use the store, and its end takes neither the parent's connections nor its lock."""
    row = registered(driver)
    child = os.fork()
    if child == 0:
        try:
            driver.abandon()
            driver.close()
            driver.transact(lambda session: None)
        except DurableStorageError:
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert driver.worker_beat("w1")
    assert peer.worker_probe(row) == "alive"
    write(driver, batch(started(driver), [Record("note")]))
