"""What a prune costs an SQLite store, and what it gives back: pages are found by indexes, and the file shrinks."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tests.support import kept, locks, runs

from perdure.store import queries
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


@pytest.mark.parametrize(
    ("query", "index"),
    [
        ("prune_candidates", "run_by_age"),
        ("prune_execution_candidates", "execution_by_age"),
        ("unsynced_runs", "run_unsynced"),
        ("unsynced_executions", "execution_unsynced"),
    ],
)
def test_pages_are_read_in_the_order_of_an_index(tmp_path: Path, query: str, index: str) -> None:
    """Nothing is sorted, so a page costs what it has, however much there is."""
    path = tmp_path / "perdure.db"
    open_store(str(path)).close_now()
    params = dict.fromkeys(("cutoff", "after_at", "after_id", "limit", "has_failed", "project_id"))
    with closing(sqlite3.connect(path)) as connection:
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {queries.load('sqlite')[query]}", params)]
    assert f"USING INDEX {index}" in plan[0]
    assert not [step for step in plan if "TEMP B-TREE" in step]


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
