"""What only the SQLite driver promises: the file, its locks, its errors."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support import runs

from perdure.errors import (
    DurableConflictError,
    DurableLimitError,
    DurableStorageError,
    InvalidInputError,
    PerdureError,
    RunLost,
    SerializationError,
)
from perdure.store import migrate
from perdure.store.base import Entry, Lane, Store
from perdure.store.driver import StoreBusy
from perdure.store.open import open_store
from perdure.store.presence import Presence
from perdure.store.sqlite import SqliteDriver, mapped
from perdure.store.writer import plan


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "perdure.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[Store]:
    opened = await asyncio.to_thread(open_store, f"sqlite:///{path}")
    yield opened
    await opened.close()


@pytest.fixture
def driver(path: Path) -> Iterator[SqliteDriver]:
    opened = SqliteDriver(str(path), url=str(path))
    opened.setup()
    yield opened
    opened.close()


# --- the file -------------------------------------------------------------------------------------------


async def test_the_file_and_new_directories_are_the_owners_alone(tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.mkdir(mode=0o755)
    opened = await asyncio.to_thread(open_store, str(old / "new" / "deep" / "perdure.db"))
    await runs.created(opened, "r1")
    modes = {entry.name: stat.S_IMODE(entry.stat().st_mode) for entry in [old, *old.rglob("*")]}
    await opened.close()
    assert (modes.pop("old"), modes.pop("new"), modes.pop("deep")) == (0o755, 0o700, 0o700)
    assert set(modes.values()) == {0o600}
    assert {"perdure.db", "perdure.db-wal", f"perdure.db.worker-{runs.WORKER}"} <= modes.keys()


def test_a_second_store_of_a_process_takes_no_lock_from_the_first(driver: SqliteDriver, path: Path) -> None:
    """To close a descriptor of the file would drop the locks of all connections in the process; the next process
    to leave would then take itself for the last, and delete the log that is in use."""
    driver.transact(lambda session: session.run("worker_beat", {"id": "w1"}))
    log = os.stat(f"{path}-wal").st_ino
    second = SqliteDriver(str(path), url=str(path))
    second.setup()
    script = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('SELECT * FROM run').fetchall(); c.close()"
    )
    subprocess.run([sys.executable, "-c", script, str(path)], check=True)
    second.close()
    assert os.stat(f"{path}-wal").st_ino == log


async def test_many_stores_open_and_close_on_one_file_at_once(path: Path) -> None:
    """Each thread of a program with its own loop has its own store: opened first together, then again and again."""

    def use(name: str) -> None:
        for turn in range(10):
            store = open_store(str(path))
            asyncio.run(runs.register(store, f"{name}-{turn}"))
            asyncio.run(store.close())

    await asyncio.gather(*(asyncio.to_thread(use, f"w{number}") for number in range(4)))
    store = await asyncio.to_thread(open_store, str(path))
    assert len(await store.worker_list()) == 40
    await store.close()
    assert not list(path.parent.glob("*.new-*"))


def test_commits_wait_for_the_disk(driver: SqliteDriver) -> None:
    for connection in (driver._connect(), driver._reader()):
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
        connection.close()


@pytest.mark.parametrize("form", ["sqlite:///{relative}", "{relative}", "sqlite:///{absolute}", "{absolute}"])
def test_forms_of_the_address(form: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    opened = open_store(form.format(relative=path.name, absolute=path))
    monkeypatch.chdir("/")
    asyncio.run(_use(opened))
    assert path.exists()


async def _use(store: Store) -> None:
    await runs.created(store, "r1")
    await store.close()


@pytest.mark.parametrize(
    "url",
    ["mysql://host/db", "sqlite://", "sqlite:///", "sqlite://host/file.db", ":memory:", "sqlite:///:memory:",
     "", "dir/", "sqlite:///x.db?mode=ro"],
)  # fmt: skip
def test_an_address_of_no_known_form_is_refused(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInputError) as caught:
        open_store(url)
    assert caught.value.field == "store"
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_database_is_refused(path: Path) -> None:
    path.write_bytes(b"no database, but long enough to have a header" * 100)
    with pytest.raises(DurableStorageError):
        open_store(str(path))


def test_another_programs_database_is_refused_unchanged(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    with pytest.raises(DurableStorageError, match="another program"):
        open_store(str(path))
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("theirs",)]
    connection.close()


def test_a_directory_in_the_way_is_refused(path: Path) -> None:
    path.mkdir()
    with pytest.raises(DurableStorageError):
        open_store(str(path))


def test_a_file_that_was_deleted_is_not_silently_made_anew(path: Path) -> None:
    driver = SqliteDriver(str(path), url="x")
    driver.setup()
    os.unlink(path)
    with pytest.raises(DurableStorageError):
        driver.read(lambda session: session.all("worker_list"))
    with pytest.raises(DurableStorageError):
        driver.transact(lambda session: session.all("worker_list"))
    assert not path.exists()


# --- locks ----------------------------------------------------------------------------------------------


async def test_a_lock_held_by_another_is_waited_for(store: Store, path: Path) -> None:
    owner = await runs.created(store, "r1")
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    n = owner.append(runs.completed(0))
    assert (await store.run_load("r1")).run.seq == 1  # readers are not held up
    assert owner.lane.committed == 1
    blocker.execute("ROLLBACK")
    blocker.close()
    await owner.wait(n)


def test_inline_leaves_a_held_lock_to_the_writer(path: Path) -> None:
    async def write(store: Store) -> list[int]:
        owner = await runs.created(store, "r1")
        blocker = sqlite3.connect(path, isolation_level=None)
        blocker.execute("BEGIN IMMEDIATE")
        owner.append(runs.completed(0))
        store.flush_inline()
        owner.append(runs.completed(1))
        assert owner.lane.committed == 1
        blocker.execute("ROLLBACK")
        blocker.close()
        await owner.wait(3)
        return [record.index for record in (await store.record_list("r1"))[1:]]

    store = open_store(str(path))
    assert asyncio.run(write(store)) == [0, 1]
    asyncio.run(store.close())


def test_inline_is_committed_when_it_returns(path: Path) -> None:
    async def write(store: Store) -> tuple[int, list[str]]:
        owner = await runs.created(store, "r1")
        owner.told.clear()
        owner.append(runs.completed(0))
        store.flush_inline()
        while owner.lane.committed < 2:  # the thread was about to look by itself
            store.flush_inline()
            await asyncio.sleep(0)
        return owner.lane.committed, owner.told

    store = open_store(str(path))
    assert asyncio.run(write(store)) == (2, ["commit"])
    asyncio.run(store.close())


def test_a_group_in_doubt_that_is_stored_is_not_stored_twice(driver: SqliteDriver) -> None:
    lane = Lane(run_id="r1", root_id="r1", worker_id=runs.WORKER, fence=1)
    entries = [
        Entry(lane=lane, n=1, create=runs.new_run("r1")),
        Entry(lane=lane, n=2, records=[runs.completed(0)]),
    ]
    driver.write(plan(entries[:1])[0])
    driver.write(plan(entries[1:])[0])
    (again,) = plan(entries[1:])[0]
    driver.write([again])
    assert isinstance(again.refusal, RunLost)
    driver._doubtful.add(lane)
    (again,) = plan(entries[1:])[0]
    driver.write([again])
    assert again.refusal is None
    assert len(driver.read(lambda session: session.all("record_load", {"run_id": "r1"}))) == 2


# --- forks ----------------------------------------------------------------------------------------------


def test_a_store_opened_before_fork_raises_in_the_child(path: Path) -> None:
    script = """
import asyncio, os, sys
from perdure.errors import DurableStorageError
from perdure.store.base import Entry, Lane
from perdure.store.open import open_store
from tests.support import runs

store = open_store(sys.argv[1])
asyncio.run(runs.created(store, "r1"))
lane = Lane(run_id="r1", root_id="r1", worker_id=runs.WORKER, fence=1, enqueued=1, committed=1)

def refused(use):
    try:
        use()
    except DurableStorageError as error:
        assert "fork" in str(error), error
        return True
    return False

child = os.fork()
if child == 0:
    uses = [
        lambda: store.append(Entry(lane=lane)),
        lambda: asyncio.run(store.run_get("r1")),
        lambda: asyncio.run(store.run_cancel("r1")),
        lambda: store.worker_beat(runs.WORKER),
    ]
    os._exit(0 if all(refused(use) for use in uses) else 1)
assert os.waitpid(child, 0)[1] == 0
assert asyncio.run(store.run_get("r1")).status == "running"
asyncio.run(store.close())
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", script, str(path)], check=True, cwd=_root())


def _root() -> Path:
    return Path(__file__).parents[2]


def test_a_forked_child_does_not_keep_its_parents_lock(path: Path) -> None:
    script = """
import asyncio, os, sys
from perdure.store.open import open_store
from tests.support import runs

store = open_store(sys.argv[1])
asyncio.run(runs.register(store, "parent"))
if os.fork() == 0:
    print("ready", os.getpid(), flush=True)
    sys.stdin.read()
    os._exit(0)
os.waitpid(-1, 0)
"""
    parent = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", script, str(path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=_root(),
    )  # fmt: skip
    assert parent.stdout is not None
    child_id = int(parent.stdout.readline().split()[1])
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    store = open_store(str(path))
    (row,) = asyncio.run(store.worker_list())
    assert asyncio.run(store.worker_probe(row)) == "dead"
    os.kill(child_id, 0)  # the child is still there
    parent.communicate()
    asyncio.run(store.close())


# --- proof of life --------------------------------------------------------------------------------------


def test_presence_is_unknown_unless_host_boot_and_inode_agree(path: Path) -> None:
    presence, other = Presence(str(path)), Presence(str(path))
    row = runs.worker_row("w1", lock=presence.lock("w1"))
    assert other.probe(row) == "alive"
    assert other.probe(replace(row, host="elsewhere")) == "unknown"
    assert other.probe(replace(row, boot_id="another boot")) == "unknown"
    assert other.probe(replace(row, boot_id="")) == "unknown"
    assert other.probe(replace(row, lock=f"{row.lock}1")) == "unknown"
    presence.forget()
    assert other.probe(row) == "dead"


def test_presence_without_its_file_is_unknown(path: Path) -> None:
    presence, other = Presence(str(path)), Presence(str(path))
    row = runs.worker_row("w1", lock=presence.lock("w1"))
    os.unlink(f"{path}.worker-w1")
    assert other.probe(row) == "unknown"
    presence.close()


@pytest.mark.parametrize("how", ["deleted", "moved", "replaced"])
async def test_nothing_is_written_into_a_file_that_is_gone(store: Store, path: Path, how: str) -> None:
    owner = await runs.created(store, "r1")
    kept = path.with_suffix(".kept")
    if how == "moved":
        path.rename(kept)
    else:
        path.unlink()
    if how == "replaced":
        path.touch()
    with pytest.raises(DurableStorageError, match="deleted, moved or replaced"):
        await owner.write(runs.completed(0))
    with pytest.raises(DurableStorageError, match="deleted, moved or replaced"):
        await store.run_cancel("r1")
    with pytest.raises(DurableStorageError, match="deleted, moved or replaced"):
        await asyncio.to_thread(store.worker_beat, runs.WORKER)
    if how == "moved":
        kept.rename(path)
        assert await asyncio.to_thread(store.worker_beat, runs.WORKER)
        assert (await store.run_cancel("r1")).cancel_requested


def test_presence_sweep_removes_only_what_nobody_holds(path: Path) -> None:
    presence, other = Presence(str(path)), Presence(str(path))
    file = Path(f"{path}.worker-w1")
    row = runs.worker_row("w1", lock=presence.lock("w1"))
    other.sweep(row)
    assert file.exists()
    presence.forget()
    other.sweep(row)
    assert not file.exists()


# --- errors ---------------------------------------------------------------------------------------------


def _sqlite_error(name: str) -> sqlite3.Error:
    error = sqlite3.OperationalError("failed")
    error.sqlite_errorcode = getattr(sqlite3, name)
    error.sqlite_errorname = name
    return error


def test_every_exception_of_the_driver_is_mapped() -> None:
    classes = [value for value in vars(sqlite3).values() if isinstance(value, type) and issubclass(value, Exception)]
    assert len(classes) >= 10
    for found in classes:
        assert isinstance(mapped(found("failed"), "x"), PerdureError)
    names = [name for name in vars(sqlite3) if name.startswith("SQLITE_") and isinstance(getattr(sqlite3, name), int)]
    for name in names:
        assert isinstance(mapped(_sqlite_error(name), "x"), (PerdureError, StoreBusy))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("SQLITE_BUSY", StoreBusy), ("SQLITE_BUSY_SNAPSHOT", StoreBusy), ("SQLITE_LOCKED", StoreBusy),
        ("SQLITE_FULL", DurableStorageError), ("SQLITE_IOERR_WRITE", DurableStorageError),
        ("SQLITE_CORRUPT", DurableStorageError), ("SQLITE_READONLY", DurableStorageError),
        ("SQLITE_TOOBIG", DurableLimitError), ("SQLITE_CONSTRAINT_PRIMARYKEY", DurableConflictError),
        ("SQLITE_CONSTRAINT_CHECK", SerializationError), ("SQLITE_MISMATCH", SerializationError),
    ],
)  # fmt: skip
def test_what_a_code_means(name: str, expected: type[Exception]) -> None:
    assert type(mapped(_sqlite_error(name), "x")) is expected


def test_a_value_that_is_too_large_is_a_limit(driver: SqliteDriver) -> None:
    driver.transact(lambda session: None)
    assert driver._writer is not None
    driver._writer.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 10_000)
    lane = Lane(run_id="r1", root_id="r1", worker_id=runs.WORKER, fence=1)
    with pytest.raises(DurableLimitError):
        driver.write(plan([Entry(lane=lane, n=1, create=runs.new_run("r1", input_data="x" * 20_000))])[0])
    assert driver.read(lambda session: session.one("run_get", {"id": "r1"})) is None


async def test_a_full_disk_refuses_everybody_and_is_got_over(store: Store, path: Path) -> None:
    owners = [await runs.created(store, f"r{number}") for number in range(3)]
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    wal_bytes = os.stat(f"{path}-wal").st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (wal_bytes + 8192, hard))
    try:
        for owner in owners:
            owner.append(runs.completed(0, data="x" * 100_000))
        for owner in owners:
            with pytest.raises(DurableStorageError):
                await owner.wait(2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    for number in range(3):
        assert await runs.types(store, f"r{number}") == ["submitted"]
    again = runs.owner(store, "r0")
    again.lane.enqueued = again.lane.committed = 1
    await again.write(runs.completed(0, data="x" * 100_000))


# --- migrations -----------------------------------------------------------------------------------------


def test_a_newer_schema_is_refused_unchanged(path: Path) -> None:
    SqliteDriver(str(path), url="x").setup()
    newest = migrate.migrations("sqlite")[-1].version
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {newest + 1}")
    connection.close()
    with pytest.raises(DurableStorageError, match="upgrade perdure"):
        open_store(str(path))


def test_plans_never_walk_a_whole_table(driver: SqliteDriver) -> None:
    from perdure.store import queries

    hot = {
        "run_get", "run_list", "run_candidates", "run_take", "seq_take", "run_has_answers", "record_list",
        "record_load", "interrupt_load", "interrupt_answer", "interrupt_delivered", "interrupt_withdraw",
        "facts_answers", "facts_cancels", "run_lock_owned", "run_lock_free", "run_release", "seq_take_one_each",
        "worker_beat",
    }  # fmt: skip
    loaded = queries.load("sqlite")
    connection = driver._connect()
    for name in hot:
        params = dict.fromkeys(queries._PARAM.findall(loaded[name]))
        plan_rows = connection.execute(f"EXPLAIN QUERY PLAN {loaded[name]}", params).fetchall()
        scans = [row[3] for row in plan_rows if row[3].startswith("SCAN") and "json_each" not in row[3]]
        assert scans in ([], ["SCAN run USING INDEX run_by_age"]), (name, scans)
    connection.close()
