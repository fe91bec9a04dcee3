"""Group commit: who is stored, who is refused, who is told."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from itertools import chain

import pytest
from tests.support import runs

from perdure.core.records import Record
from perdure.errors import DurableStorageError, InvalidInputError, SerializationError
from perdure.store.base import Entry, Lane, Store
from perdure.store.sql_store import SqlStore
from perdure.store.writer import Job

Opener = Callable[[], Awaitable[Store]]
CANNOT_BE_STORED = (SerializationError, InvalidInputError)
UNSTORABLE = [
    runs.completed(0, data="nul \0"),
    runs.completed(0, attempt=2**70),
    runs.completed(0, data="\ud800"),
]


@pytest.mark.parametrize("record", UNSTORABLE, ids=["nul", "integer", "surrogate"])
async def test_an_entry_that_cannot_be_stored_refuses_its_lane_alone(store: Store, record: Record) -> None:
    owners = [await runs.created(store, f"r{number}") for number in range(9)]
    for owner in owners:
        owner.append(runs.completed(1))
    bad = owners[4].append(record)
    owners[4].append(runs.completed(2))
    for owner in owners:
        owner.append(runs.completed(3))
    with pytest.raises(CANNOT_BE_STORED):
        await owners[4].wait(bad)
    for owner in owners[:4] + owners[5:]:
        await owner.wait(owner.lane.enqueued)
        assert [record.index for record in (await store.record_list(owner.lane.run_id))[1:]] == [1, 3]
    assert [record.index for record in (await store.record_list("r4"))[1:]] == [1]
    assert owners[4].told[-1] == "refused"


async def test_a_refused_entry_stores_neither_its_questions_nor_its_change(store: Store) -> None:
    owner = await runs.created(store, "r1")
    with pytest.raises(CANNOT_BE_STORED):
        await owner.end("completed", UNSTORABLE[0])
    run = await store.run_get("r1")
    assert run is not None
    assert (run.status, run.seq) == ("running", 1)


async def test_many_lanes_share_groups_and_each_is_told(store: Store) -> None:
    owners = [await runs.created(store, f"r{number}") for number in range(40)]
    for index in range(20):
        for owner in owners:
            owner.append(runs.completed(index))
    await asyncio.gather(*(owner.wait(21) for owner in owners))
    for owner in owners:
        assert owner.lane.committed == 21
        assert [record.index for record in (await store.record_list(owner.lane.run_id))[1:]] == list(range(20))


async def test_a_group_is_bounded_but_nothing_is_left_behind(store: Store) -> None:
    owner = await runs.created(store, "r1")
    for index in range(3000):
        owner.append(runs.completed(index))
    await owner.wait(3001)
    run = await store.run_get("r1")
    assert run is not None
    assert run.seq == 3001


async def test_writes_from_outside_keep_their_place_in_the_queue(store: Store) -> None:
    owner = await runs.created(store, "r1")
    owner.append(questions=[runs.question("q1")])
    answered = asyncio.ensure_future(store.interrupt_answer("r1", {"q1": '"yes"'}))
    await asyncio.sleep(0)
    owner.append(runs.completed(0))
    await answered
    await owner.wait(3)
    assert await runs.types(store, "r1") == ["submitted", "answered", "completed"]


async def test_a_caller_that_is_cancelled_does_not_take_its_write_back(store: Store) -> None:
    await runs.waiting(store, "r1", "q1")
    answering = asyncio.ensure_future(store.interrupt_answer("r1", {"q1": '"yes"'}))
    await asyncio.sleep(0)
    answering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await answering
    await (await runs.created(store, "r2")).write(runs.completed(0))
    run = await store.run_get("r1")
    assert run is not None
    assert run.status == "pending"


async def test_each_lane_is_called_in_its_own_loop(store: Store) -> None:
    await runs.register(store, runs.WORKER)

    async def drive(run_id: str) -> list[bool]:
        here = asyncio.get_running_loop()
        owner = runs.owner(store, run_id)
        seen: list[bool] = []
        told = owner.lane.on_commit
        assert told is not None

        def on_commit() -> None:
            seen.append(asyncio.get_running_loop() is here)
            told()

        owner.lane.on_commit = on_commit
        await owner.write(create=runs.new_run(run_id))
        await owner.write(runs.completed(0))
        return seen

    seen = await asyncio.gather(*(asyncio.to_thread(asyncio.run, drive(f"r{number}")) for number in range(4)))
    assert all(chain.from_iterable(seen))


async def test_a_loop_that_is_gone_harms_nobody(store: Store) -> None:
    gone = asyncio.new_event_loop()
    gone.close()
    lane = Lane(run_id="gone", root_id="gone", worker_id=runs.WORKER, fence=1, loop=gone, on_commit=lambda: None)
    store.append(Entry(lane=lane, create=runs.new_run("gone")))
    await (await runs.created(store, "r1")).write(runs.completed(0))
    assert lane.committed == 1


async def test_close_writes_what_is_queued(store: Store, open_another: Opener) -> None:
    owner = await runs.created(store, "r1")
    for index in range(500):
        owner.append(runs.completed(index))
    await store.close()
    assert owner.lane.committed == 501
    assert len(await (await open_another()).record_list("r1")) == 501


async def test_close_is_idempotent_and_final(store: Store) -> None:
    owner = await runs.created(store, "r1")
    await store.close()
    await store.close()
    with pytest.raises(DurableStorageError):
        owner.append(runs.completed(0))
    with pytest.raises(DurableStorageError):
        await store.run_get("r1")
    with pytest.raises(DurableStorageError):
        await store.run_cancel("r1")
    with pytest.raises(DurableStorageError):
        store.worker_beat(runs.WORKER)
    assert owner.lane.enqueued == 1


async def test_two_stores_on_one_address_share_everything(store: Store, open_another: Opener) -> None:
    other = await open_another()
    first = await runs.created(store, "r1")
    second = await runs.created(other, "r2")
    for index in range(20):
        first.append(runs.completed(index))
        second.append(runs.completed(index))
    await asyncio.gather(first.wait(21), second.wait(21))
    assert len(await store.record_list("r2")) == len(await other.record_list("r1")) == 21


async def test_a_fault_of_the_writer_itself_is_told_to_everybody(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    assert isinstance(store, SqlStore)
    owner = await runs.created(store, "r1")
    queued = threading.Event()

    def fail(result: object, error: BaseException | None) -> None:
        raise AssertionError("a fault of our own")

    store._writer.submit(Job(lambda session: queued.wait(), fail))
    n = owner.append(runs.completed(0))
    cancelling = asyncio.ensure_future(store.run_cancel("r1"))
    await asyncio.sleep(0)
    queued.set()
    with pytest.raises(DurableStorageError, match="a fault of our own"):
        await owner.wait(n)
    with pytest.raises(DurableStorageError, match="a fault of our own"):
        await cancelling
    with pytest.raises(DurableStorageError, match="a fault of our own"):
        runs.owner(store, "r2").append(create=runs.new_run("r2"))
    assert "the writer of a store has failed" in caplog.text
