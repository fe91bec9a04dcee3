"""Public failure reports about Postgres, as far as the store reaches."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
from tests.support.batches import step
from tests.support.postgres import PostgresServer
from tests.support.proxy import Proxy, proxied
from tests.support.sessions import session, value

from perdure.core.records import NewRun, Record
from perdure.store.base import Entry, Lane
from perdure.store.open import open_store
from perdure.store.sql_store import SqlStore


class Drive:
    """A lane whose commits can be awaited."""

    def __init__(self, store: Any, run_id: str) -> None:
        self._store = store
        self._progress = asyncio.Event()
        self.lane = Lane(
            run_id=run_id,
            root_id=run_id,
            worker_id="w1",
            fence=1,
            loop=asyncio.get_running_loop(),
            on_commit=self._progress.set,
            on_refused=lambda error: self._progress.set(),
        )

    def start(self) -> None:
        lane = self.lane
        new = NewRun(
            run_id=lane.run_id,
            root_id=lane.run_id,
            runner="runner",
            kind="workflow",
            version=None,
            input_digest="digest",
            input_data="{}",
            worker_id="w1",
        )
        self._store.append(Entry(lane=lane, create=new))

    def append(self, *records: Record) -> None:
        self._store.append(Entry(lane=self.lane, records=records))

    async def committed(self) -> None:
        """Until everything appended is durable."""
        while self.lane.committed < self.lane.enqueued:
            if self.lane.refused is not None:
                raise self.lane.refused
            self._progress.clear()
            await self._progress.wait()


@pytest.fixture
def proxy(postgres_dsn: str) -> Any:
    with proxied(postgres_dsn) as proxy:
        yield proxy


@pytest.fixture
async def store(proxy: Proxy) -> AsyncIterator[SqlStore]:
    store = await asyncio.to_thread(open_store, proxy.dsn)
    assert isinstance(store, SqlStore)
    yield store
    await store.close()


async def test_p1_idle_connections_closed_by_the_server(
    store: SqlStore, postgres_dsn: str, postgres_admin: Any
) -> None:
    """During a long call the server, or something on the way, has closed every connection: the run goes on,
    and nothing is stored twice."""
    drive = Drive(store, "long call")
    drive.start()
    drive.append(step(0))
    await drive.committed()
    assert await store.run_get("long call") is not None
    with session(postgres_dsn) as other:
        other.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        drive.append(step(1))
        drive.append(step(2), step(3))
        await drive.committed()
        assert len(await store.record_list("long call")) == 5
        assert value(other, "SELECT seq FROM run WHERE id = 'long call'") == 5


async def test_p1_server_restarted_in_mid_run(postgres_server: PostgresServer) -> None:
    """A crash and restart of the server loses nothing that was acknowledged and repeats nothing."""
    store = await asyncio.to_thread(open_store, postgres_server.dsn())
    drive = Drive(store, "run")
    drive.start()
    drive.append(step(0))
    await drive.committed()
    postgres_server.stop("immediate")
    for n in range(1, 20):
        drive.append(step(n))
    await asyncio.to_thread(postgres_server.start)
    await drive.committed()
    records = await store.record_list("run")
    assert [record.index for record in records] == [0, *range(20)]
    assert [record.seq for record in records] == list(range(1, 22))
    await store.close()


async def test_p1_answer_to_a_commit_is_lost(store: SqlStore, proxy: Proxy) -> None:
    """The commit took place, its answer did not arrive: the writer recognises its own group."""
    drive = Drive(store, "run")
    drive.start()
    await drive.committed()
    for n in range(10):
        proxy.drop_next_answer()
        drive.append(step(n))
        await drive.committed()
        assert proxy.dropped.is_set()
    assert [record.index for record in await store.record_list("run")] == [0, *range(10)]


async def test_w2_blip_during_work_drops_no_run(store: SqlStore, proxy: Proxy) -> None:
    """Connections break again and again while many runs are written: each run ends up complete."""
    drives = [Drive(store, f"run {n}") for n in range(20)]
    for drive in drives:
        drive.start()
    for n in range(5):
        for drive in drives:
            drive.append(step(n))
        proxy.cut()
        await asyncio.gather(*(drive.committed() for drive in drives))
    for drive in drives:
        records = await store.record_list(drive.lane.run_id)
        assert [record.index for record in records] == [0, *range(5)]


async def test_w2_blip_during_recovery_leaves_runs_claimable(store: SqlStore, proxy: Proxy) -> None:
    """A claim whose connection broke is tried again or fails with an error; no run disappears."""
    drives = [Drive(store, f"run {n}") for n in range(5)]
    for drive in drives:
        drive.start()
    await asyncio.gather(*(drive.committed() for drive in drives))
    proxy.cut()
    claims = await store.run_claim("w2", dead_workers=["w1"], limit=10)
    assert sorted(claim.run_id for claim in claims) == [f"run {n}" for n in range(5)]
    assert {claim.fence for claim in claims} == {2}


_OPEN = """
import sys
from perdure.store.open import open_store
open_store(sys.argv[1]).close_now()
"""


async def test_p4_many_start_on_an_empty_database(postgres_dsn: str) -> None:
    """Eight processes open a store that does not exist yet: one creates it, all get it."""
    starts = [
        subprocess.Popen([sys.executable, "-c", _OPEN, postgres_dsn], stderr=subprocess.PIPE, text=True)
        for _ in range(8)
    ]
    assert [(process.communicate()[1], process.returncode) for process in starts] == [("", 0)] * 8


async def test_p4_migrator_killed_half_way(postgres_dsn: str) -> None:
    """A migrator that dies with its work half done leaves none of it; the next one does it all."""
    half = psycopg.connect(postgres_dsn)
    half.execute("CREATE SCHEMA perdure; CREATE TABLE perdure.meta (key TEXT, value TEXT)")
    with session(postgres_dsn) as killer:
        killer.execute("SELECT pg_terminate_backend(%s, 10000)", (half.info.backend_pid,))
        half.close()
        store = await asyncio.to_thread(open_store, postgres_dsn)
        assert value(killer, "SELECT count(*) FROM meta WHERE key = 'schema_version'") == 1
        await store.close()
