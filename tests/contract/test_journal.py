"""What drives one run: append under a fence, load, answer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest
from tests.support import runs

from perdure.core.records import Record, RunChange
from perdure.errors import (
    AlreadyResumed,
    DurableConflictError,
    DurableNotFoundError,
    InvalidInputError,
    RunLost,
)
from perdure.store.base import Entry, Lane, Store

Opener = Callable[[], Awaitable[Store]]


async def test_append_create_stores_the_run_and_its_input_first(store: Store) -> None:
    await runs.created(store, "r1", version="v1", forked_from="r0", forked_seq=3)
    loaded = await store.run_load("r1")
    run = loaded.run
    assert (run.status, run.fence, run.worker_id, run.seq, run.attempt, run.epoch) == (
        "running",
        1,
        runs.WORKER,
        1,
        1,
        0,
    )
    assert (run.version, run.forked_from, run.forked_seq, run.cancel_requested) == ("v1", "r0", 3, False)
    (record,) = loaded.records
    assert (record.seq, record.type, record.data, record.digest) == (1, "submitted", '{"claim":17}', "d1")
    assert abs(record.at - loaded.now) < 3600


async def test_append_keeps_every_field_of_a_record(store: Store) -> None:
    owner = await runs.created(store, "r1")
    record = Record(
        type="completed", path="a/~1!", index=7, kind="step", name="Ünïcode", digest="f" * 64,
        recovery="manual", attempt=3, outcome="error", data='["\\u0000"]', wait_s=1.5, clock_s=0.1,
        state='{"from":""}',
    )  # fmt: skip
    await owner.write(record, Record(type="note"))
    stored = (await store.record_list("r1", after=1))[0]
    assert stored[2:15] == tuple(record)


async def test_append_numbers_records_without_gaps_in_order(store: Store) -> None:
    owner = await runs.created(store, "r1")
    last = [owner.append(runs.completed(index), runs.completed(index + 1)) for index in range(0, 600, 2)][-1]
    await owner.wait(last)
    records = await store.record_list("r1")
    assert [record.seq for record in records] == list(range(1, 602))
    assert [record.index for record in records[1:]] == list(range(600))


async def test_append_create_of_a_taken_id_is_refused_and_changes_nothing(store: Store) -> None:
    first = await runs.created(store, "r1")
    second = runs.owner(store, "r1")
    with pytest.raises(DurableConflictError):
        await second.write(create=runs.new_run("r1", input_data='"other"'))
    await first.write(runs.completed(0))
    assert await runs.types(store, "r1") == ["submitted", "completed"]


async def test_append_two_creators_at_once_one_wins(store: Store) -> None:
    await runs.register(store, runs.WORKER)
    owners = [runs.owner(store, "r1") for _ in range(5)]
    for owner in owners:
        owner.append(create=runs.new_run("r1"))
    outcomes = await asyncio.gather(*(owner.wait(1) for owner in owners), return_exceptions=True)
    assert sorted(isinstance(outcome, DurableConflictError) for outcome in outcomes) == [
        False,
        True,
        True,
        True,
        True,
    ]


@pytest.mark.parametrize(("worker_id", "fence"), [(runs.WORKER, 2), ("somebody", 1), (runs.WORKER, 0)])
async def test_append_under_another_claim_is_refused_with_nothing_stored(
    store: Store, worker_id: str, fence: int
) -> None:
    await runs.created(store, "r1")
    stale = runs.owner(store, "r1", worker_id=worker_id, fence=fence)
    stale.lane.enqueued = stale.lane.committed = 50  # far ahead, so that only the claim can be the reason
    with pytest.raises(RunLost):
        await stale.write(runs.completed(0), questions=[runs.question("q1")])
    assert await runs.types(store, "r1") == ["submitted"]
    assert await store.interrupt_list(run_id="r1") == []


async def test_append_to_an_unknown_run_is_refused(store: Store) -> None:
    with pytest.raises(RunLost):
        await runs.owner(store, "nowhere").write(runs.completed(0))


async def test_append_after_a_refusal_is_dropped_and_the_lane_is_told_once(store: Store) -> None:
    owner = await runs.created(store, "r1")
    await owner.end("pending")
    (claim,) = await store.run_claim(runs.WORKER)
    for index in range(3):
        owner.append(runs.completed(index))
    with pytest.raises(RunLost):
        await owner.wait(owner.lane.enqueued)
    count = owner.lane.enqueued
    assert owner.append(runs.completed(9)) == 0
    assert owner.lane.enqueued == count
    await runs.owner_of(store, claim, runs.WORKER).write(runs.completed(5))
    assert owner.told.count("refused") == 1
    assert [record.index for record in await store.record_list("r1") if record.type == "completed"] == [5]


async def test_append_a_change_of_the_run(store: Store) -> None:
    owner = await runs.created(store, "r1")
    await owner.write(change=RunChange(status="retry_wait", is_release=True, due_in_s=60.0))
    run = await store.run_get("r1")
    assert run is not None
    assert (run.status, run.worker_id) == ("retry_wait", None)
    assert run.due_at is not None
    assert run.due_in_s is not None
    assert 0 < run.due_in_s <= 60


async def test_append_after_giving_the_run_back_is_refused(store: Store) -> None:
    owner = await runs.created(store, "r1")
    owner.append(runs.completed(0), change=RunChange(status="waiting", is_release=True))
    owner.append(runs.completed(1))
    with pytest.raises(RunLost):
        await owner.wait(owner.lane.enqueued)
    assert await runs.types(store, "r1") == ["submitted", "completed"]


async def test_append_terminal_is_final(store: Store) -> None:
    owner = await runs.created(store, "r1")
    await owner.write(change=RunChange(status="completed"))
    with pytest.raises(RunLost):
        await owner.write(change=RunChange(status="failed", error="boom"))
    run = await store.run_get("r1")
    assert run is not None
    assert (run.status, run.error) == ("completed", None)
    assert run.ended_at is not None


async def test_append_terminal_withdraws_open_questions(store: Store) -> None:
    owner = await runs.created(store, "r1")
    await owner.write(questions=[runs.question("q1"), runs.question("q2")])
    await store.interrupt_answer("r1", {"q1": '"yes"'})
    await owner.end("failed", error="boom")
    found = {row.interrupt_id: row.status for row in await store.interrupt_list(run_id="r1", status=None)}
    assert found == {"q1": "answered", "q2": "withdrawn"}
    assert await store.interrupt_list() == []


async def test_append_terminal_after_a_cancel_becomes_cancelled(store: Store) -> None:
    owner = await runs.created(store, "r1")
    await store.run_cancel("r1")
    assert await owner.end("completed") == "cancelled"
    assert (await runs.types(store, "r1"))[-1] == "status:cancelled"


async def test_append_waiting_after_an_answer_becomes_pending(store: Store) -> None:
    owner = await runs.created(store, "r1")
    await owner.write(questions=[runs.question("q1")])
    await store.interrupt_answer("r1", {"q1": '"yes"'})
    assert await owner.end("waiting", due_in_s=50.0) == "pending"
    run = await store.run_get("r1")
    assert run is not None
    assert (run.status, run.due_at) == ("pending", None)
    assert (await runs.types(store, "r1"))[-1] == "status:pending"


async def test_append_waiting_after_a_delivered_answer_stays_waiting(store: Store) -> None:
    owner = await runs.created(store, "r1")
    await owner.write(questions=[runs.question("q1")])
    await store.interrupt_answer("r1", {"q1": '"yes"'})
    await owner.write(Record(type="delivered"), delivered=["q1"], change=RunChange(status="waiting", is_release=True))
    assert owner.lane.final_status == "waiting"


@pytest.mark.parametrize("status", ["waiting", "retry_wait"])
async def test_append_a_sleep_after_a_cancel_becomes_pending(store: Store, status: str) -> None:
    owner = await runs.created(store, "r1")
    await store.run_cancel("r1")
    assert await owner.end(status, due_in_s=60.0) == "pending"


async def test_append_needs_attention_after_a_cancel_becomes_cancelled(store: Store) -> None:
    owner = await runs.created(store, "r1")
    await store.run_cancel("r1")
    assert await owner.end("needs_attention", blocked_operation="0") == "cancelled"


async def test_append_by_threads_to_one_lane_keeps_its_numbers_in_order(store: Store) -> None:
    owner = await runs.created(store, "r1")
    barrier = threading.Barrier(5)

    def write(thread: int) -> None:
        barrier.wait()
        for index in range(100):
            store.append(Entry(lane=owner.lane, records=[runs.completed(index, name=f"t{thread}")]))

    await asyncio.gather(*(asyncio.to_thread(write, thread) for thread in range(5)))
    await owner.wait(owner.lane.enqueued)
    assert owner.lane.enqueued == 501
    records = (await store.record_list("r1"))[1:]
    for thread in range(5):
        assert [record.index for record in records if record.name == f"t{thread}"] == list(range(100))


async def test_append_below_a_root_takes_numbers_from_the_root(store: Store) -> None:
    root = await runs.created(store, "root")
    child = runs.owner(store, "a-child", root_id="root")
    await child.write(create=runs.new_run("a-child", root_id="root", parent_id="root"))
    await root.write(runs.completed(0))
    await child.write(runs.completed(0), runs.completed(1))
    assert [record.seq for record in await store.record_list("root")] == [1, 3]
    assert [record.seq for record in await store.record_list("a-child")] == [2, 4, 5]


def test_flush_inline_commits_before_it_returns_or_leaves_it_to_the_writer(store: Store) -> None:
    async def write() -> None:
        owner = await runs.created(store, "r1")
        for index in range(50):
            n = owner.append(runs.completed(index))
            store.flush_inline()
            await owner.wait(n)

    # Its callers own their loop and may block it, so this is no async test.
    asyncio.run(write())
    records = asyncio.run(store.record_list("r1"))
    assert [record.index for record in records[1:]] == list(range(50))


def test_flush_inline_refuses_like_the_writer(store: Store) -> None:
    async def write() -> list[str]:
        await runs.created(store, "r1")
        stale = runs.owner(store, "r1", fence=7)
        stale.append(runs.completed(0))
        store.flush_inline()
        with pytest.raises(RunLost):
            await stale.wait(1)
        return stale.told

    assert asyncio.run(write()) == ["refused"]


async def test_wait_committed_blocks_a_thread_until_the_entry_is_durable(store: Store) -> None:
    await runs.register(store, runs.WORKER)
    lane = Lane(run_id="r1", root_id="r1", worker_id=runs.WORKER, fence=1)
    store.append(Entry(lane=lane, create=runs.new_run("r1")))
    store.append(Entry(lane=lane, records=[runs.completed(0)]))
    await asyncio.to_thread(store.wait_committed, lane, 2)
    assert await runs.types(store, "r1") == ["submitted", "completed"]


async def test_wait_committed_raises_the_refusal(store: Store) -> None:
    lane = Lane(run_id="r1", root_id="r1", worker_id=runs.WORKER, fence=1)
    store.append(Entry(lane=lane, records=[runs.completed(0)]))
    with pytest.raises(RunLost):
        await asyncio.to_thread(store.wait_committed, lane, 1)


async def test_run_load_is_one_snapshot_of_run_records_and_questions(store: Store, open_another: Opener) -> None:
    owner = await runs.created(store, "r1")
    other = await open_another()

    async def write() -> None:
        for index in range(40):
            asked = runs.question(f"q{index}", index=index)
            await owner.write(runs.completed(index), Record(type="suspended", index=index), questions=[asked])

    async def read() -> None:
        while len((loaded := await other.run_load("r1")).interrupts) < 40:
            assert loaded.run.seq == len(loaded.records) == 1 + 2 * len(loaded.interrupts)

    await asyncio.gather(write(), read())


async def test_run_load_of_an_unknown_run(store: Store) -> None:
    with pytest.raises(DurableNotFoundError):
        await store.run_load("nowhere")


async def test_interrupt_answer_stores_the_answer_and_makes_the_run_runnable(store: Store) -> None:
    await runs.waiting(store, "r1", "q1")
    run = await store.interrupt_answer("r1", {"q1": '{"approved":true}'}, answered_by="ann")
    assert (run.status, run.epoch, run.due_at) == ("pending", 1, None)
    (row,) = (await store.run_load("r1")).interrupts
    assert (row.status, row.answer, row.answered_by) == ("answered", '{"approved":true}', "ann")
    (record,) = [record for record in await store.record_list("r1") if record.type == "answered"]
    assert record.seq == row.answer_seq
    assert record.data == '{"interrupt_id":"q1","answered_by":"ann"}'


async def test_interrupt_answer_takes_the_given_time(store: Store) -> None:
    await runs.waiting(store, "r1", "q1")
    await store.interrupt_answer("r1", {"q1": '"yes"'}, now=1234.5)
    assert (await store.run_load("r1")).interrupts[0].answered_at == 1234.5


async def test_interrupt_answer_of_several_questions_is_all_or_nothing(store: Store) -> None:
    await runs.waiting(store, "r1", "q1", "q2")
    with pytest.raises(DurableNotFoundError):
        await store.interrupt_answer("r1", {"q1": '"yes"', "q3": '"yes"'})
    assert len(await store.interrupt_list(run_id="r1")) == 2
    await store.interrupt_answer("r1", {"q2": '"no"', "q1": '"yes"'})
    answered = {row.interrupt_id: (row.answer, row.answer_seq) for row in (await store.run_load("r1")).interrupts}
    assert answered["q2"][0] == '"no"'
    assert answered["q1"][1] == (answered["q2"][1] or 0) + 1
    assert await runs.types(store, "r1") == [
        "submitted", "suspended", "status:waiting", "answered", "answered", "status:pending",
    ]  # fmt: skip


async def test_interrupt_answer_twice_is_refused(store: Store) -> None:
    await runs.waiting(store, "r1", "q1")
    await store.interrupt_answer("r1", {"q1": '"yes"'})
    with pytest.raises(AlreadyResumed):
        await store.interrupt_answer("r1", {"q1": '"no"'})
    assert (await store.run_load("r1")).interrupts[0].answer == '"yes"'


async def test_interrupt_answer_of_another_runs_question_is_refused(store: Store) -> None:
    await runs.waiting(store, "r1", "q1")
    await runs.waiting(store, "r2", "q2")
    with pytest.raises(DurableNotFoundError):
        await store.interrupt_answer("r1", {"q2": '"yes"'})
    with pytest.raises(DurableNotFoundError):
        await store.interrupt_answer("nowhere", {"q2": '"yes"'})


async def test_interrupt_answer_of_a_run_that_is_over_is_refused(store: Store) -> None:
    await runs.waiting(store, "r1", "q1")
    await store.run_cancel("r1")
    with pytest.raises(AlreadyResumed):
        await store.interrupt_answer("r1", {"q1": '"yes"'})


async def test_interrupt_answer_without_an_answer_is_refused(store: Store) -> None:
    await runs.waiting(store, "r1", "q1")
    with pytest.raises(InvalidInputError):
        await store.interrupt_answer("r1", {})


async def test_interrupt_answer_race_has_one_winner(store: Store, open_another: Opener) -> None:
    await runs.waiting(store, "r1", "q1")
    stores = [store, await open_another(), await open_another()]
    outcomes = await asyncio.gather(
        *(one.interrupt_answer("r1", {"q1": f'"{n}"'}) for n, one in enumerate(stores * 3)),
        return_exceptions=True,
    )
    losers = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    assert len(losers) == 8
    assert all(isinstance(loser, AlreadyResumed) for loser in losers)
    assert (await runs.types(store, "r1")).count("answered") == 1


async def test_interrupt_answer_against_going_to_sleep_never_loses_the_answer(
    store: Store, open_another: Opener
) -> None:
    other = await open_another()
    for attempt in range(10):
        run_id, asked = f"r{attempt}", f"q{attempt}"
        owner = await runs.created(store, run_id)
        await owner.write(questions=[runs.question(asked)])
        await asyncio.gather(owner.end("waiting"), other.interrupt_answer(run_id, {asked: '"yes"'}))
        run = await store.run_get(run_id)
        assert run is not None
        assert run.status == "pending"
