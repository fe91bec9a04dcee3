"""Room that a prune has freed goes back to the system: the file of an SQLite store shrinks."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

from tests.support import kept, locks, runs

from perdure.store.kept import PruneRequest
from perdure.store.open import open_store
from perdure.store.sql_store import SqlStore

_ALL = PruneRequest(older_than_s=0.0)


async def _large(store: SqlStore, run_id: str) -> None:
    owner = await runs.created(store, run_id)
    for n in range(5):
        await owner.write(runs.completed(n, data=f'"{"x" * 100_000}"'))
    await owner.end("completed")


def _free_pages(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("PRAGMA freelist_count").fetchone()[0]


def test_L7_free_pages_are_reclaimed(tmp_path: Path) -> None:
    path = tmp_path / "perdure.db"
    store = open_store(str(path))
    asyncio.run(_large(store, "r1"))
    asyncio.run(runs.waiting(store, "r2", "q1"))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
    before = path.stat().st_size
    assert before > 500_000
    assert store.maintenance.prune(_ALL, now=kept.FAR).count == 1
    assert _free_pages(path) == 0
    assert path.stat().st_size < before / 3
    store.close_now()


def test_a_prune_that_finds_nothing_reclaims_nothing_and_a_locked_file_does_not_fail_it(tmp_path: Path) -> None:
    path = tmp_path / "perdure.db"
    store = open_store(str(path))
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE filler (x)")
        connection.execute("INSERT INTO filler VALUES (zeroblob(200000))")
        connection.execute("DROP TABLE filler")
    free = _free_pages(path)
    assert free > 10
    store.maintenance.prune(_ALL, now=kept.FAR)
    assert _free_pages(path) == free
    with locks.write_lock(f"sqlite:///{path}"):
        store._driver.reclaim()
    assert _free_pages(path) == free
    store._driver.reclaim()
    assert _free_pages(path) == 0
    store.close_now()
