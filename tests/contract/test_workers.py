"""Workers: rows, heartbeats, proof of life, the end."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from tests.support import runs

from perdure.errors import DurableStorageError, RunLost
from perdure.store.base import Store

Opener = Callable[[], Awaitable[Store]]


async def test_worker_register_stores_the_row_with_its_lock(store: Store) -> None:
    row = await store.worker_register(runs.worker_row("w1", pid=42))
    assert (row.worker_id, row.host, row.boot_id, row.pid, row.beat) == ("w1", runs.HOST, runs.BOOT, 42, 0)
    assert row.lock
    assert row.ended_at is None
    assert row.started_at > 0
    assert await store.worker_list() == [row]


async def test_worker_register_of_a_taken_id_is_refused(store: Store, open_another: Opener) -> None:
    await store.worker_register(runs.worker_row("w1"))
    other = await open_another()
    with pytest.raises(DurableStorageError):
        await other.worker_register(runs.worker_row("w1"))
    assert await other.worker_probe((await store.worker_list())[0]) == "alive"


async def test_worker_register_with_any_id(store: Store) -> None:
    names = ["a/b", "a:b", "CON", "x" * 300, "ünï", "..", "a b."]
    for name in names:
        await store.worker_register(runs.worker_row(name))
    assert sorted(row.worker_id for row in await store.worker_list()) == sorted(names)
    for name in names:
        await store.worker_end(name)


async def test_worker_beat_counts(store: Store) -> None:
    await store.worker_register(runs.worker_row("w1"))
    assert [await asyncio.to_thread(store.worker_beat, "w1") for _ in range(3)] == [True] * 3
    assert [row.beat for row in await store.worker_list()] == [3]


async def test_worker_beat_of_an_ended_or_unknown_worker(store: Store) -> None:
    await store.worker_register(runs.worker_row("w1"))
    await store.worker_end("w1")
    assert not await asyncio.to_thread(store.worker_beat, "w1")
    assert not await asyncio.to_thread(store.worker_beat, "nobody")


async def test_worker_list_counts_running_runs(store: Store) -> None:
    await runs.created(store, "r1")
    await runs.created(store, "r2")
    owner = await runs.created(store, "r3")
    await owner.end("completed")
    assert [row.run_count for row in await store.worker_list()] == [2]


async def test_worker_end_releases_its_running_runs(store: Store) -> None:
    owner = await runs.created(store, "r1")
    await (await runs.created(store, "r2")).end("completed")
    assert await store.worker_end(runs.WORKER) == 1
    run = await store.run_get("r1")
    assert run is not None
    assert (run.status, run.worker_id) == ("pending", None)
    assert await store.worker_list() == []
    assert (await runs.types(store, "r1"))[-1] == "status:pending"
    with pytest.raises(RunLost):
        await owner.write(runs.completed(0))
    assert await store.worker_end(runs.WORKER) == 0


async def test_worker_end_of_an_unknown_worker(store: Store) -> None:
    assert await store.worker_end("nobody") == 0


async def test_worker_probe_of_a_living_worker(store: Store, open_another: Opener) -> None:
    row = await store.worker_register(runs.worker_row("w1"))
    other = await open_another()
    assert [await store.worker_probe(row), await other.worker_probe(row)] == ["alive", "alive"]


async def test_worker_probe_without_proof_is_unknown(store: Store) -> None:
    row = await store.worker_register(runs.worker_row("w1"))
    assert await store.worker_probe(replace(row, lock=None)) == "unknown"


VICTIM = """
import asyncio, sys
from perdure.core.records import WorkerRow
from perdure.store.driver import boot_id, host_name
from perdure.store.open import open_store

async def main():
    store = open_store(sys.argv[1])
    await store.worker_register(WorkerRow(
        worker_id="victim", host=host_name(), boot_id=boot_id(), pid=1, beat=0, lock=None, started_at=0,
        ended_at=None
    ))
    print("ready", flush=True)
    sys.stdin.read()

asyncio.run(main())
"""


def start_victim(store_url: str) -> subprocess.Popen[str]:
    victim = subprocess.Popen(
        [sys.executable, "-c", VICTIM, store_url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert victim.stdout is not None
    assert victim.stdout.readline() == "ready\n"
    return victim


def kill(victim: subprocess.Popen[str]) -> None:
    victim.send_signal(signal.SIGKILL)
    victim.communicate()


async def test_worker_probe_of_a_killed_process_is_dead(store: Store, store_url: str) -> None:
    victim = start_victim(store_url)
    (row,) = await store.worker_list()
    assert await store.worker_probe(row) == "alive"
    kill(victim)
    assert await store.worker_probe(row) == "dead"  # on this machine the kernel says so at once
    await store.worker_end("victim")
    assert await store.worker_list() == []


async def test_worker_end_gives_the_lock_back(store: Store) -> None:
    row = await store.worker_register(runs.worker_row("w1"))
    await store.worker_end("w1")
    assert await store.worker_probe(row) in ("lost", "unknown")
    again = await store.worker_register(runs.worker_row("w2"))
    assert again.worker_id == "w2"
