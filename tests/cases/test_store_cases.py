"""Public failure reports that are a store's to prevent, each under its id."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.support import runs

from perdure.errors import DurableStorageError
from perdure.store.base import Entry, Lane
from perdure.store.open import open_store
from perdure.store.sqlite import SqliteDriver

ROOT = Path(__file__).parents[2]

KILLED = """
import asyncio, sys
from perdure.core.records import Record
from perdure.store.open import open_store
from tests.support import runs

async def main():
    store = open_store(sys.argv[1])
    owner = await runs.created(store, "r1")
    index = 0
    while True:
        asked = runs.question(f"q{index}")
        n = owner.append(runs.completed(index), Record(type="suspended", index=index), questions=[asked])
        await owner.wait(n)
        print(index, flush=True)
        index += 1

asyncio.run(main())
"""


def start(script: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip


@pytest.mark.parametrize("count", [1, 17, 60])
def test_C1_what_was_reported_saved_is_there_and_nothing_is_half_there(store_url: str, count: int) -> None:
    victim = start(KILLED, store_url)
    assert victim.stdout is not None
    for _ in range(count):
        victim.stdout.readline()
    victim.send_signal(signal.SIGKILL)
    said = victim.communicate()[0].split()
    last = int(said[-1]) if said else count - 1
    store = open_store(store_url)
    loaded = asyncio.run(store.run_load("r1"))
    asyncio.run(store.close())
    completed = [record.index for record in loaded.records if record.type == "completed"]
    assert completed == list(range(len(completed)))
    assert len(completed) > last
    assert [record.seq for record in loaded.records] == list(range(1, loaded.run.seq + 1))
    assert {row.interrupt_id for row in loaded.interrupts} == {f"q{index}" for index in completed}


WRITER = """
import asyncio, sys
from perdure.store.open import open_store
from tests.support import runs

async def one(store, name, worker_id):
    owner = runs.owner(store, name, worker_id=worker_id)
    await owner.write(create=runs.new_run(name, worker_id=worker_id))
    for index in range(30):
        await owner.write(runs.completed(index))
    return await owner.end("completed")

async def main(url, worker_id):
    store = open_store(url)
    await runs.register(store, worker_id)
    print(*await asyncio.gather(*(one(store, f"{worker_id}-{n}", worker_id) for n in range(5))))
    await store.close()

asyncio.run(main(*sys.argv[1:]))
"""


def test_L1_processes_threads_and_a_long_reader_never_meet_a_locked_database(tmp_path: Path) -> None:
    path = tmp_path / "perdure.db"
    store = open_store(str(path))
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM record").fetchone()
    processes = [start(WRITER, str(path), f"p{n}") for n in range(2)]
    lanes = [Lane(run_id=f"t{n}", root_id=f"t{n}", worker_id=runs.WORKER, fence=1) for n in range(20)]

    def write(lane: Lane) -> None:
        store.append(Entry(lane=lane, create=runs.new_run(lane.run_id)))
        for index in range(20):
            store.append(Entry(lane=lane, records=[runs.completed(index)]))
            store.wait_committed(lane, lane.enqueued)

    threads = [threading.Thread(target=write, args=(lane,)) for lane in lanes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    outputs = [process.communicate()[0].split() for process in processes]
    assert reader.execute("SELECT count(*) FROM record").fetchone() == (0,)
    reader.close()
    assert outputs == [["completed"] * 5] * 2
    assert [lane.committed for lane in lanes] == [21] * 20
    counts = [len(asyncio.run(store.record_list(lane.run_id))) for lane in lanes]
    assert counts == [21] * 20
    asyncio.run(store.close())


def test_L3_one_store_object_serves_threads_and_tasks_at_once(store_url: str) -> None:
    store = open_store(store_url)

    async def one(name: str) -> int:
        owner = await runs.created(store, name)
        await owner.write(runs.completed(0))
        assert (await store.run_load(name)).run.seq == 2
        return len(await store.record_list(name))

    async def many(prefix: str) -> list[int]:
        return await asyncio.gather(*(one(f"{prefix}-{n}") for n in range(5)))

    asyncio.run(runs.register(store, runs.WORKER))
    found: list[list[int]] = []
    threads = [threading.Thread(target=lambda n=n: found.append(asyncio.run(many(f"thread{n}")))) for n in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[2] * 5] * 10
    asyncio.run(store.close())


def test_L4_a_network_file_system_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    path = tmp_path / "perdure.db"
    mounts = f"36 35 98:0 / {tmp_path.resolve()} rw - virtiofs host rw"
    with pytest.raises(DurableStorageError, match="virtiofs"):
        SqliteDriver(str(path), url="x")._refuse_network(mounts)
    SqliteDriver(str(path), url="x", is_network_allowed=True)._refuse_network(mounts)
    assert not path.exists()
    store = open_store(f"sqlite:///{path}?allow_network_fs=1")
    asyncio.run(store.close())


async def test_L6_the_loop_goes_on_while_the_database_does_not(tmp_path: Path) -> None:
    path = tmp_path / "perdure.db"
    store = await asyncio.to_thread(open_store, str(path))
    owner = await runs.created(store, "r1")
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    owner.append(runs.completed(0))
    cancelling = asyncio.ensure_future(store.run_cancel("r1"))
    # The blocking-call detector is on: any call of ours that waits in this loop fails the test.
    for _ in range(100):
        assert (await store.run_load("r1")).run.seq == 1
    assert not cancelling.done()
    blocker.execute("ROLLBACK")
    blocker.close()
    assert (await cancelling).cancel_requested
    await store.close()


@pytest.mark.parametrize("worker_id", ["a:b", "a*b?", "<x>|y", "CON", "dot.", "x" * 300, "sp ace", "ünï", "a\\b/c"])
async def test_L8_ids_never_become_file_names_as_they_are(tmp_path: Path, worker_id: str) -> None:
    store = await asyncio.to_thread(open_store, str(tmp_path / "perdure.db"))
    row = await store.worker_register(runs.worker_row(worker_id))
    (name,) = [name for name in os.listdir(tmp_path) if ".worker-" in name]
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_")
    assert len(name) < 100
    assert await store.worker_probe(row) == "alive"
    owner = runs.owner(store, worker_id, worker_id=worker_id)
    await owner.write(create=runs.new_run(worker_id, worker_id=worker_id))
    assert (await store.run_load(worker_id)).run.run_id == worker_id
    await store.close()


async def test_L8_different_ids_have_different_files(tmp_path: Path) -> None:
    store = await asyncio.to_thread(open_store, str(tmp_path / "perdure.db"))
    for worker_id in itertools.chain(("a:b", "a_b", "a/b", "a b"), ("x" * 299, "x" * 300)):
        await store.worker_register(runs.worker_row(worker_id))
    assert len([name for name in os.listdir(tmp_path) if ".worker-" in name]) == 6
    await store.close()
