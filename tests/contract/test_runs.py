"""Runs from outside: claims, cancels, retries, forks, lists."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable
from itertools import chain

import pytest
from tests.support import runs

from perdure.core.records import InterruptRow, Record, RunChange, RunFilter, RunRow
from perdure.errors import AlreadyResumed, DurableConflictError, DurableNotFoundError, RunBusy, RunLost
from perdure.store.base import Store

Opener = Callable[[], Awaitable[Store]]
FAR = 4e9  # a clock far ahead: whatever is scheduled is due


async def status(store: Store, run_id: str) -> str:
    return (await get(store, run_id)).status


async def get(store: Store, run_id: str) -> RunRow:
    run = await store.run_get(run_id)
    assert run is not None
    return run


async def failed(store: Store, run_id: str) -> None:
    owner = await runs.created(store, run_id)
    await owner.write(runs.completed(0), questions=[runs.question(f"{run_id}-q")])
    assert await owner.end("failed", error="boom") == "failed"


async def test_run_get_of_an_unknown_run(store: Store) -> None:
    assert await store.run_get("nowhere") is None


async def test_run_list_newest_first_in_pages(store: Store) -> None:
    names = [f"r{n}" for n in range(5)]
    for name in names:
        await runs.created(store, name, runner="odd" if name in ("r1", "r3") else "even")
    first = await store.run_list(RunFilter(limit=2))
    second = await store.run_list(RunFilter(limit=2, after=first[-1].run_id))
    third = await store.run_list(RunFilter(limit=2, after=second[-1].run_id))
    assert [run.run_id for run in first + second + third] == names[::-1]
    assert [run.run_id for run in await store.run_list(RunFilter(runner="odd"))] == ["r3", "r1"]


async def test_run_list_by_status(store: Store) -> None:
    await runs.created(store, "r1")
    await failed(store, "r2")
    assert [run.run_id for run in await store.run_list(RunFilter(status="failed"))] == ["r2"]
    assert await store.run_list(RunFilter(status="completed")) == []


async def test_run_claim_takes_a_pending_run_under_a_new_fence(store: Store) -> None:
    first = await runs.created(store, "r1")
    await first.end("pending")
    (claim,) = await store.run_claim("w2")
    assert (claim.run_id, claim.root_id, claim.runner, claim.fence) == ("r1", "r1", "review", 2)
    run = await get(store, "r1")
    assert (run.status, run.worker_id, run.fence) == ("running", "w2", 2)
    assert (await runs.types(store, "r1"))[-1] == "status:running"
    second = runs.owner_of(store, claim, "w2")
    assert await second.write(runs.completed(0)) == 1


async def test_run_claim_leaves_a_run_with_a_living_owner(store: Store) -> None:
    await runs.created(store, "r1")
    assert await store.run_claim("w2") == []
    assert await store.run_claim("w2", run_ids=["r1"]) == []
    assert await store.run_claim(runs.WORKER) == []


async def test_run_claim_leaves_what_sleeps_and_what_is_over(store: Store) -> None:
    await runs.waiting(store, "asks", "q1")
    await failed(store, "over")
    owner = await runs.created(store, "later")
    await owner.end("waiting", due_in_s=1000.0)
    attention = await runs.created(store, "attention")
    await attention.end("needs_attention", blocked_operation="0")
    assert await store.run_claim("w2", limit=10) == []
    assert await store.run_claim("w2", run_ids=["asks", "over", "later", "attention"], limit=10) == []


@pytest.mark.parametrize("asleep", ["waiting", "retry_wait"])
async def test_run_claim_takes_what_is_due_by_the_given_clock(store: Store, asleep: str) -> None:
    owner = await runs.created(store, "r1")
    await owner.end(asleep, due_in_s=1000.0)
    assert await store.run_claim("w2") == []
    (claim,) = await store.run_claim("w2", now=FAR)
    assert claim.fence == 2
    assert (await get(store, "r1")).due_at is None


async def test_run_claim_oldest_first_and_at_most_limit(store: Store) -> None:
    for name in ("r1", "r2", "r3"):
        await (await runs.created(store, name)).end("pending")
    await runs.register(store, "w2")
    assert [claim.run_id for claim in await store.run_claim("w2", limit=2)] == ["r1", "r2"]
    assert [claim.run_id for claim in await store.run_claim("w2", limit=2)] == ["r3"]


async def test_run_claim_only_of_given_runners(store: Store) -> None:
    await (await runs.created(store, "r1", runner="one")).end("pending")
    await (await runs.created(store, "r2", runner="two")).end("pending")
    assert await store.run_claim("w2", runners=[]) == []
    assert [claim.run_id for claim in await store.run_claim("w2", runners=["two", "x"], limit=5)] == ["r2"]


async def test_run_claim_only_of_given_ids(store: Store) -> None:
    for name in ("r1", "r2"):
        await (await runs.created(store, name)).end("pending")
    assert [claim.run_id for claim in await store.run_claim("w2", run_ids=["r2", "x"], limit=5)] == ["r2"]


async def test_run_claim_of_dead_workers_runs(store: Store) -> None:
    await runs.created(store, "r1")
    (claim,) = await store.run_claim("w2", dead_workers=[runs.WORKER])
    assert claim.fence == 2


async def test_run_claim_of_a_worker_without_a_row(store: Store) -> None:
    owner = runs.owner(store, "r1", worker_id="ghost")
    await owner.write(create=runs.new_run("r1", worker_id="ghost"))
    assert len(await store.run_claim("w2")) == 1


async def test_run_claim_by_id_takes_a_sleeping_run_that_has_news(store: Store) -> None:
    owner = await runs.created(store, "r1")
    await owner.write(questions=[runs.question("q1")])
    await store.interrupt_answer("r1", {"q1": '"yes"'})
    await owner.end("retry_wait", due_in_s=1000.0)
    assert await store.run_claim("w2") == []
    assert len(await store.run_claim("w2", run_ids=["r1"])) == 1


async def test_run_claim_fences_the_owner_before(store: Store) -> None:
    owner = await runs.created(store, "r1")
    await store.run_claim("w2", dead_workers=[runs.WORKER])
    with pytest.raises(RunLost):
        await owner.write(runs.completed(0))


async def test_run_claim_by_many_at_once_gives_each_run_to_one(store: Store, open_another: Opener) -> None:
    for number in range(30):
        owner = await runs.created(store, f"r{number:02}")
        owner.append(change=RunChange(status="pending", is_release=True))
        await owner.wait(2)
    stores = [store, await open_another(), await open_another()]
    for number in range(6):
        await runs.register(store, f"w{number}")

    async def drain(one: Store, worker_id: str) -> list[str]:
        taken: list[str] = []
        while claims := await one.run_claim(worker_id, limit=3):
            taken += [claim.run_id for claim in claims]
        return taken

    claimed = await asyncio.gather(*(drain(stores[n % 3], f"w{n}") for n in range(6)))
    assert sorted(chain.from_iterable(claimed)) == [f"r{number:02}" for number in range(30)]
    assert {(await get(store, f"r{number:02}")).fence for number in range(30)} == {2}


CLAIMER = """
import asyncio, sys
from perdure.store.open import open_store

async def main():
    store = open_store(sys.argv[1])
    while claims := await store.run_claim(sys.argv[2], limit=2):
        print(*(claim.run_id for claim in claims))
    await store.close()

asyncio.run(main())
"""


async def test_run_claim_by_processes_gives_each_run_to_one(store: Store, store_url: str) -> None:
    for number in range(20):
        await (await runs.created(store, f"r{number:02}")).end("pending")
    for number in range(3):
        await runs.register(store, f"w{number}")
    processes = [
        subprocess.Popen([sys.executable, "-c", CLAIMER, store_url, f"w{n}"], stdout=subprocess.PIPE, text=True)
        for n in range(3)
    ]
    outputs = [process.communicate()[0].split() for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert sorted(chain.from_iterable(outputs)) == [f"r{number:02}" for number in range(20)]


async def test_run_due_in(store: Store) -> None:
    assert await store.run_due_in() is None
    await runs.waiting(store, "asks", "q1")
    assert await store.run_due_in() is None
    await (await runs.created(store, "later", runner="slow")).end("waiting", due_in_s=100.0)
    due_in_s = await store.run_due_in()
    assert due_in_s is not None
    assert 0 < due_in_s <= 100
    assert await store.run_due_in(["other"]) is None
    await store.interrupt_answer("asks", {"q1": '"yes"'})
    assert await store.run_due_in() == 0
    assert await store.run_due_in(["slow"]) == pytest.approx(due_in_s, abs=60)


async def test_run_running_count(store: Store) -> None:
    assert await store.run_running_count() == 0
    await runs.created(store, "r1", runner="a")
    await runs.created(store, "r2", runner="b")
    await (await runs.created(store, "r3", runner="b")).end("waiting")
    assert await store.run_running_count() == 2
    assert await store.run_running_count(["b", "c"]) == 1
    assert await store.run_running_count(["c"]) == await store.run_running_count([]) == 0
    assert await store.run_running_count(except_worker=runs.WORKER) == 0
    assert await store.run_running_count(["a"], except_worker="somebody else") == 1


async def test_a_claim_says_in_the_journal_whose_it_is(store: Store) -> None:
    await (await runs.created(store, "r1")).end("pending")
    await store.worker_register(runs.worker_row("w2"))
    (claim,) = await store.run_claim("w2")
    said = (await store.record_list("r1"))[-1]
    assert (said.type, said.outcome, said.data) == ("status", "running", '{"worker":"w2","fence":2}')
    assert claim.fence == 2


async def test_run_cancel_of_nobodys_run_ends_it(store: Store) -> None:
    await runs.waiting(store, "r1", "q1")
    run = await store.run_cancel("r1", cancelled_by="ann")
    assert (run.status, run.cancel_requested) == ("cancelled", True)
    assert run.ended_at is not None
    assert await store.interrupt_list() == []
    records = await store.record_list("r1")
    assert [record.type for record in records[-2:]] == ["cancel", "status"]
    assert (records[-2].data, records[-1].outcome) == ('{"cancelled_by":"ann"}', "cancelled")


async def test_run_cancel_of_an_owned_run_only_marks_it(store: Store) -> None:
    await runs.created(store, "r1")
    run = await store.run_cancel("r1")
    assert (run.status, run.cancel_requested, run.worker_id) == ("running", True, runs.WORKER)
    await store.run_cancel("r1")
    assert (await runs.types(store, "r1")).count("cancel") == 1


async def test_run_cancel_before_completion_wins(store: Store) -> None:
    owner = await runs.created(store, "r1")
    await store.run_cancel("r1")
    assert await owner.end("completed") == "cancelled"


async def test_run_cancel_after_completion_changes_nothing(store: Store) -> None:
    owner = await runs.created(store, "r1")
    assert await owner.end("completed") == "completed"
    seq = (await get(store, "r1")).seq
    run = await store.run_cancel("r1")
    assert (run.status, run.cancel_requested, run.seq) == ("completed", False, seq)


async def test_run_cancel_against_completion_agrees_with_itself(store: Store, open_another: Opener) -> None:
    other = await open_another()
    for attempt in range(10):
        owner = await runs.created(store, f"r{attempt}")
        final, _ = await asyncio.gather(owner.end("completed"), other.run_cancel(f"r{attempt}"))
        run = await get(store, f"r{attempt}")
        assert run.status == final
        assert run.cancel_requested == (final == "cancelled")


async def test_run_cancel_of_an_ended_workers_run_ends_it(store: Store) -> None:
    owner = await runs.created(store, "r1")
    await owner.write(runs.completed(0))
    await store.worker_end(runs.WORKER)
    assert (await store.run_cancel("r1")).status == "cancelled"


async def test_run_cancel_of_a_dead_workers_run_ends_it(store: Store) -> None:
    owner = await runs.created(store, "r1")
    await owner.write(questions=[runs.question("q1")])
    assert (await store.run_cancel("r1", dead_workers=["somebody else"])).status == "running"
    run = await store.run_cancel("r1", dead_workers=["somebody else", runs.WORKER])
    assert (run.status, run.worker_id) == ("cancelled", None)
    assert await store.interrupt_list() == []
    assert (await runs.types(store, "r1"))[-2:] == ["cancel", "status:cancelled"]
    with pytest.raises(RunLost):
        await owner.write(runs.completed(0))


async def test_run_cancel_of_an_unknown_run(store: Store) -> None:
    with pytest.raises(DurableNotFoundError):
        await store.run_cancel("nowhere")


async def test_run_retry_opens_a_failed_run_again(store: Store) -> None:
    await failed(store, "r1")
    run = await store.run_retry("r1", [Record(type="dropped", path="", index=0)])
    assert (run.status, run.attempt, run.error, run.ended_at, run.worker_id) == (
        "pending",
        2,
        None,
        None,
        None,
    )
    assert (await runs.types(store, "r1"))[-2:] == ["dropped", "status:pending"]
    assert [row.interrupt_id for row in await store.interrupt_list()] == ["r1-q"]
    await store.interrupt_answer("r1", {"r1-q": '"yes"'})


async def test_run_retry_keeps_an_answer_that_was_not_delivered(store: Store) -> None:
    owner = await runs.created(store, "r1")
    await owner.write(questions=[runs.question("q1")])
    await store.interrupt_answer("r1", {"q1": '"yes"'})
    await owner.end("failed", error="boom")
    await store.run_retry("r1", [])
    (claim,) = await store.run_claim("w2")
    assert [row.answer for row in (await store.facts("w2")).answers] == ['"yes"']
    assert claim.fence == 2


async def test_run_retry_of_anything_else_is_refused(store: Store) -> None:
    await runs.created(store, "running")
    await runs.waiting(store, "asleep", "q1")
    await (await runs.created(store, "done")).end("completed")
    await store.run_cancel("asleep")
    for run_id, error in {"running": RunBusy, "done": AlreadyResumed, "asleep": AlreadyResumed}.items():
        before = await get(store, run_id)
        with pytest.raises(error):
            await store.run_retry(run_id, [Record(type="dropped")])
        assert (await get(store, run_id)).seq == before.seq
    with pytest.raises(DurableNotFoundError):
        await store.run_retry("nowhere", [])


async def test_run_retry_twice_at_once_has_one_winner(store: Store, open_another: Opener) -> None:
    await failed(store, "r1")
    other = await open_another()
    outcomes = await asyncio.gather(store.run_retry("r1", []), other.run_retry("r1", []), return_exceptions=True)
    assert sorted(isinstance(outcome, RunBusy) for outcome in outcomes) == [False, True]
    assert (await get(store, "r1")).attempt == 2


async def test_run_repeat_records_the_decision(store: Store) -> None:
    owner = await runs.created(store, "r1")
    await owner.end("needs_attention", blocked_operation="3")
    run = await store.run_repeat("r1", Record(type="repeat", index=3))
    assert (run.status, run.blocked_operation, run.attempt, run.epoch) == ("pending", None, 1, 1)
    assert (await runs.types(store, "r1"))[-2:] == ["repeat", "status:pending"]
    with pytest.raises(RunBusy):
        await store.run_repeat("r1", Record(type="repeat", index=3))


async def test_run_reopen_only_what_needs_attention(store: Store) -> None:
    owner = await runs.created(store, "r1")
    assert (await store.run_reopen("r1")).status == "running"
    await owner.end("needs_attention", blocked_operation="3", error="changed")
    run = await store.run_reopen("r1")
    assert (run.status, run.error) == ("pending", None)
    assert (await store.run_reopen("r1")).seq == run.seq


def _answered(interrupt_id: str, answer_seq: int) -> InterruptRow:
    asked = runs.question(interrupt_id)
    return InterruptRow(
        interrupt_id=interrupt_id, run_id="other", path=asked.path, index=asked.index, slot=asked.slot,
        reason=asked.reason, context=asked.context, digest=asked.digest, bind=True, status="answered",
        created_at=5.0, answer='"yes"', answered_by="ann", answered_at=6.0, answer_seq=answer_seq,
        delivered_at=7.0,
    )  # fmt: skip


async def test_run_fork_begins_with_copies(store: Store) -> None:
    await runs.register(store, runs.WORKER)
    new = runs.new_run("fork", forked_from="r1", forked_seq=9)
    await store.run_fork(new, [runs.completed(0), runs.completed(1)], [_answered("fork-q", 2)])
    loaded = await store.run_load("fork")
    run = loaded.run
    assert (run.status, run.fence, run.worker_id, run.seq) == ("running", 1, runs.WORKER, 3)
    assert (run.forked_from, run.forked_seq) == ("r1", 9)
    assert [record.type for record in loaded.records] == ["submitted", "completed", "completed"]
    (row,) = loaded.interrupts
    assert row.run_id == "fork"
    assert (row.answer, row.answered_by, row.answer_seq, row.delivered_at, row.bind) == (
        '"yes"',
        "ann",
        2,
        7.0,
        True,
    )
    owner = runs.owner(store, "fork")
    await owner.write(runs.completed(2))
    assert [record.seq for record in await store.record_list("fork")] == [1, 2, 3, 4]


async def test_run_fork_does_not_touch_its_source(store: Store) -> None:
    await failed(store, "r1")
    before = await store.run_load("r1")
    records = [Record(*record[2:15]) for record in before.records]
    await store.run_fork(runs.new_run("fork", forked_from="r1", worker_id=None), records, [])
    after = await store.run_load("r1")
    assert (after.run, after.records, after.interrupts) == (before.run, before.records, before.interrupts)
    fork = await store.run_load("fork")
    assert fork.run.status == "queued"
    assert [record.type for record in fork.records].count("submitted") == 1


async def test_run_fork_to_a_taken_id(store: Store) -> None:
    await runs.created(store, "r1")
    with pytest.raises(DurableConflictError):
        await store.run_fork(runs.new_run("r1"), [runs.completed(0)], [])
    assert await runs.types(store, "r1") == ["submitted"]


async def test_facts_of_the_runs_a_worker_owns(store: Store) -> None:
    owner = await runs.created(store, "r1")
    other = runs.owner(store, "r2", worker_id="w2")
    await other.write(create=runs.new_run("r2", worker_id="w2"), questions=[runs.question("q2")])
    await owner.write(questions=[runs.question("q1a"), runs.question("q1b")])
    await store.interrupt_answer("r1", {"q1b": '"b"'})
    await store.interrupt_answer("r1", {"q1a": '"a"'})
    await store.interrupt_answer("r2", {"q2": '"yes"'})
    await store.run_cancel("r1")
    facts = await store.facts(runs.WORKER)
    assert [(row.run_id, row.interrupt_id, row.runner) for row in facts.answers] == [
        ("r1", "q1b", "review"),
        ("r1", "q1a", "review"),
    ]
    assert facts.cancels == ["r1"]
    await owner.write(delivered=["q1b", "q1a"])
    assert (await store.facts(runs.WORKER)).answers == []
    await owner.end("completed")
    assert (await store.facts(runs.WORKER)).cancels == []


# --- a person changes the state -----------------------------------------------------------------------------------


PATCH = Record(type="patched", data='{"state":{"amount":5}}')


async def test_run_patch_appends_to_a_run_nobody_owns_and_leaves_its_status(store: Store) -> None:
    await runs.waiting(store, "r1", "q1")
    run = await store.run_patch("r1", [PATCH])
    assert run.status == "waiting"
    assert (await store.record_list("r1"))[-1].data == PATCH.data


async def test_run_patch_of_an_owned_run_is_refused(store: Store) -> None:
    await runs.created(store, "r1")
    before = await store.record_list("r1")
    with pytest.raises(RunBusy):
        await store.run_patch("r1", [PATCH])
    assert await store.record_list("r1") == before


@pytest.mark.parametrize(
    ("status", "error"), [("completed", AlreadyResumed), ("cancelled", AlreadyResumed), ("failed", RunBusy)]
)
async def test_run_patch_of_a_run_that_is_over_is_refused(store: Store, status: str, error: type[Exception]) -> None:
    await (await runs.created(store, "r1")).end(status)
    with pytest.raises(error):
        await store.run_patch("r1", [PATCH])


async def test_interrupt_answer_stores_a_patch_before_the_answers(store: Store) -> None:
    await runs.waiting(store, "r1", "q1")
    await store.interrupt_answer("r1", {"q1": '{"approved":true,"metadata":{}}'}, records=[PATCH])
    assert (await runs.types(store, "r1"))[-3:] == ["patched", "answered", "status:pending"]


async def test_interrupt_answer_with_a_patch_is_refused_while_somebody_owns_the_run(store: Store) -> None:
    owner = await runs.created(store, "r1")
    await owner.write(Record(type="suspended"), questions=[runs.question("q1")])
    with pytest.raises(RunBusy):
        await store.interrupt_answer("r1", {"q1": '{"approved":true,"metadata":{}}'}, records=[PATCH])
    assert [row.status for row in await store.interrupt_list(run_id="r1")] == ["pending"]


async def test_run_retry_and_run_reopen_take_a_patch(store: Store) -> None:
    await (await runs.created(store, "r1")).end("failed")
    await store.run_retry("r1", [PATCH])
    await (await runs.created(store, "r2")).end("needs_attention")
    await store.run_reopen("r2", [PATCH])
    assert (await runs.types(store, "r1"))[-2:] == (await runs.types(store, "r2"))[-2:] == ["patched", "status:pending"]
