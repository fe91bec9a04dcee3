"""Schemas: fresh equals migrated, and both dialects have the same names."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from perdure.errors import DurableStorageError
from perdure.store import migrate, queries, rows
from perdure.store.open import open_store
from perdure.store.sqlite import APPLICATION_ID, SqliteDriver

TABLES = {
    "run": "id root_id parent_id runner kind version status fence worker_id seq entry_n input_digest due_at "
    "cancel_requested blocked_operation error attempt epoch forked_from forked_seq created_at updated_at "
    "ended_at project_id synced_seq",
    "record": "run_id seq type path idx kind name digest recovery attempt outcome data wait_s clock_s state at",
    "interrupt": "id run_id path idx slot reason context digest bind status answer answered_by created_at "
    "answered_at answer_seq delivered_at ordinal claimed_at",
    "worker": "id host boot_id pid beat lock started_at ended_at",
    "meta": "key value",
    "tombstone": "run_id runner input_digest status ended_at pruned_at",
    "execution": "id seq status synced_seq project_id created_at updated_at",
    "checkpoint": "id run_id seq after_seq status content put_at parent_checkpoint_id chain_name node_id node_index "
    "step_type state_snapshot node_input node_output iteration iteration_counters interrupt_reason interrupt_context "
    "agent_path created_at",
    "checkpoint_write": "run_id checkpoint_id idx data",
    "pending_interrupt": "id run_id checkpoint_id seq status content created_at claimed_at",
    "idempotent": "run_id key data created_at",
    "replica": "checkpoint_id run_id seq is_kept reason at",
}
"""Names are data: they are in databases."""
ON_SQLITE = {"run": {"n"}, "record": {"id"}}
"""Where a run's records lie there."""


def sqlite_columns(path: Path) -> dict[str, set[str]]:
    connection = sqlite3.connect(path)
    try:
        return {table: {row[1] for row in connection.execute(f"PRAGMA table_xinfo({table})")} for table in TABLES}
    finally:
        connection.close()


def test_sqlite_has_the_names(tmp_path: Path) -> None:
    path = tmp_path / "perdure.db"
    SqliteDriver(str(path), url="x").setup()
    wanted = {table: set(names.split()) | ON_SQLITE.get(table, set()) for table, names in TABLES.items()}
    assert sqlite_columns(path) == wanted


def test_postgres_has_the_same_names(postgres_dsn: str) -> None:
    asyncio.run(open_store(postgres_dsn).close())
    with psycopg.connect(postgres_dsn) as connection:
        found = connection.execute(
            "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema NOT IN "
            "('pg_catalog', 'information_schema')"
        ).fetchall()
    assert {name for name, _ in found} == set(TABLES)
    for table, names in TABLES.items():
        assert {column for name, column in found if name == table} == set(names.split()), table


def test_dialects_name_the_same_queries() -> None:
    shared = {"is_runner", "is_named", "owner_is_listed", "run_lock", "run_lock_free", "run_lock_owned"}
    shared |= {"run_lock_below", "execution_lock", "checkpoint_insert"}
    own = {"run_number"}  # where a run's records lie
    assert queries.names("sqlite") == shared | {"record_list", "record_load", "record_delete"} | own
    assert shared <= queries.names("postgres")
    assert not shared & queries.names("common")
    assert set(queries.load("sqlite")) - own <= set(queries.load("postgres"))


def test_queries_read_the_columns_of_the_rows() -> None:
    assert queries.load("sqlite")["run_get"].startswith(f"SELECT {', '.join(rows.COLUMNS['run'])} FROM run")


def test_pyformat_keeps_casts_and_doubles_percents() -> None:
    assert queries.pyformat("SELECT :a::text, '%', :b_2") == "SELECT %(a)s::text, '%%', %(b_2)s"


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_migrations_are_numbered_without_gaps(dialect: str) -> None:
    assert [step.version for step in migrate.migrations(dialect)] == list(
        range(1, len(migrate.migrations(dialect)) + 1)
    )


def test_pending_migrations() -> None:
    newest = migrate.migrations("sqlite")[-1].version
    assert migrate.pending("sqlite", newest, "x") == ()
    assert len(migrate.pending("sqlite", 0, "x")) == newest
    with pytest.raises(DurableStorageError):
        migrate.pending("sqlite", newest + 1, "x")


def dump(path: Path) -> list[tuple[str, ...]]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute("SELECT type, name, sql FROM sqlite_master ORDER BY 1, 2").fetchall()
    finally:
        connection.close()


def test_fresh_equals_migrated_step_by_step(tmp_path: Path) -> None:
    fresh, stepped = tmp_path / "fresh.db", tmp_path / "stepped.db"
    SqliteDriver(str(fresh), url="x").setup()
    connection = sqlite3.connect(stepped)
    first = migrate.migrations("sqlite")[0]
    connection.executescript(first.sql)
    connection.execute(f"PRAGMA user_version = {first.version}")
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.close()
    SqliteDriver(str(stepped), url="x").setup()
    assert dump(stepped) == dump(fresh)


def test_setup_by_threads_at_once(store_url: str) -> None:
    with ThreadPoolExecutor(8) as pool:
        stores = list(pool.map(open_store, [store_url] * 8))
    for store in stores:
        assert asyncio.run(store.worker_list()) == []
        asyncio.run(store.close())


def test_setup_by_processes_at_once(store_url: str) -> None:
    script = """
import asyncio, sys
from perdure.store.open import open_store
sys.stdin.readline()
store = open_store(sys.argv[1])
assert asyncio.run(store.worker_list()) == []
asyncio.run(store.close())
"""
    processes = [
        subprocess.Popen([sys.executable, "-c", script, store_url], stdin=subprocess.PIPE, text=True) for _ in range(3)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        process.communicate()
    assert [process.returncode for process in processes] == [0, 0, 0]


def test_a_store_is_opened_again_with_what_it_held(store_url: str) -> None:
    first = open_store(store_url)
    asyncio.run(first.close())
    second = open_store(store_url)
    assert asyncio.run(second.run_get("nowhere")) is None
    asyncio.run(second.close())
