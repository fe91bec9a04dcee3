"""What people keep by hand: checkpoints, questions, results under keys."""

from __future__ import annotations

import asyncio

import pytest
from tests.support import kept, runs

from perdure.errors import DurableConflictError, DurableNotFoundError, DurableStorageError
from perdure.store.driver import Session
from perdure.store.kept import CLAIM_S, KeptQuestion, OpenQuestion
from perdure.store.sql_store import SqlStore

call = asyncio.to_thread  # the methods under test block


def ids(found: list[OpenQuestion]) -> list[str]:
    return [asked.interrupt_id for asked in found]


# --- checkpoints ----------------------------------------------------------------------------------------


async def test_checkpoint_put_and_checkpoint_get(store: SqlStore) -> None:
    given = kept.row("c1", state_snapshot={"b": 1.0, "a": [None, "\0\ud800"]})
    await call(store.checkpoints.checkpoint_put, given)
    found = await call(store.checkpoints.checkpoint_get, "e1", "c1")
    assert found is not None
    assert (found.checkpoint_id, found.run_id, found.status, found.content) == ("c1", "e1", "completed", given.content)
    assert (found.seq, found.after_seq, found.put_at > 0) == (1, 0, True)
    assert await call(store.checkpoints.checkpoint_get, "e2", "c1") is None
    assert await call(store.checkpoints.checkpoint_get, "e1", "c2") is None


async def test_checkpoint_put_of_an_existing_id_changes_nothing(store: SqlStore) -> None:
    await call(store.checkpoints.checkpoint_put, kept.row("c1"))
    for run_id in ("e1", "e2"):
        with pytest.raises(DurableConflictError, match="c1"):
            await call(store.checkpoints.checkpoint_put, kept.row("c1", run_id, status="failed"))
    loaded = await call(lambda: store.checkpoints.execution_load("e1", limit=10))
    assert [(row.checkpoint_id, row.status) for row in loaded.kept] == [("c1", "completed")]
    assert (await call(lambda: store.checkpoints.execution_load("e2", limit=10))).kept == []
    # The number that was taken was given back.
    await call(store.checkpoints.checkpoint_put, kept.row("c2"))
    assert [row.seq for row in (await call(lambda: store.checkpoints.execution_load("e1", limit=10))).kept] == [1, 2]


async def test_checkpoint_put_under_the_id_of_a_checkpoint_in_a_journal(store: SqlStore) -> None:
    await kept.ended(store, "r1")
    with pytest.raises(DurableConflictError):
        await call(store.checkpoints.checkpoint_put, kept.row("r1:2", "r1"))
    await call(store.checkpoints.checkpoint_put, kept.row("r1:99", "r1"))


async def test_execution_load_from_either_end(store: SqlStore) -> None:
    for name in ("c1", "c2", "c3"):
        await call(store.checkpoints.checkpoint_put, kept.row(name))
    oldest = await call(lambda: store.checkpoints.execution_load("e1", limit=2))
    newest = await call(lambda: store.checkpoints.execution_load("e1", limit=2, is_newest=True))
    assert [row.checkpoint_id for row in oldest.kept] == ["c1", "c2"]
    assert [row.checkpoint_id for row in newest.kept] == ["c2", "c3"]
    assert oldest.run is None


async def test_execution_load_says_behind_which_record_a_checkpoint_was_put(store: SqlStore) -> None:
    owner = await runs.created(store, "r1")
    await call(store.checkpoints.checkpoint_put, kept.row("c1", "r1"))
    await owner.write(runs.completed(0))
    await call(store.checkpoints.checkpoint_put, kept.row("c2", "r1"))
    loaded = await call(lambda: store.checkpoints.execution_load("r1", limit=10))
    assert loaded.run is not None
    assert [record.seq for record in loaded.run.records] == [1, 2]
    assert [row.after_seq for row in loaded.kept] == [1, 2]


async def test_what_is_kept_by_hand_is_no_run(store: SqlStore) -> None:
    """No worker ever claims it, and its question is no run's."""
    await call(store.checkpoints.checkpoint_put, kept.row("c1", status="interrupted"), kept.question("q1", "c1"))
    assert await store.run_get("e1") is None
    assert await store.run_claim("w1", run_ids=["e1"], limit=10) == []
    assert await store.run_claim("w1", limit=10) == []
    assert await store.interrupt_list(status=None) == []


async def test_many_at_once_get_each_its_own_number(store: SqlStore) -> None:
    await asyncio.gather(*(call(store.checkpoints.checkpoint_put, kept.row(f"c{n}")) for n in range(20)))
    loaded = await call(lambda: store.checkpoints.execution_load("e1", limit=100))
    assert [row.seq for row in loaded.kept] == list(range(1, 21))


async def test_write_put_and_write_list(store: SqlStore) -> None:
    await call(store.checkpoints.checkpoint_put, kept.row("c1"))
    await call(store.checkpoints.write_put, "e1", "c1", ["1", '"two"'])
    await call(store.checkpoints.write_put, "e1", "c1", ["3"])
    assert await call(store.checkpoints.write_list, "e1", "c1") == ["1", '"two"', "3"]
    assert await call(store.checkpoints.write_list, "e1", "c2") == []


async def test_write_put_beside_a_checkpoint_of_a_journal(store: SqlStore) -> None:
    await kept.ended(store, "r1")
    await call(store.checkpoints.write_put, "r1", "r1:2", ["1"])
    assert await call(store.checkpoints.write_list, "r1", "r1:2") == ["1"]


@pytest.mark.parametrize("checkpoint_id", ["c2", "e1:1", "r1:9", "r1:2:", "r1:x"])
async def test_write_put_beside_no_checkpoint(store: SqlStore, checkpoint_id: str) -> None:
    await kept.ended(store, "r1")
    await call(store.checkpoints.checkpoint_put, kept.row("c1"))
    for run_id in ("e1", "r1", "nowhere"):
        with pytest.raises(DurableNotFoundError):
            await call(store.checkpoints.write_put, run_id, checkpoint_id, ["1"])


# --- questions ------------------------------------------------------------------------------------------


async def test_pending_list_shows_questions_of_runs_and_kept_ones_oldest_first(store: SqlStore) -> None:
    await call(store.checkpoints.checkpoint_put, kept.row("c1"), kept.question("k1", "c1"))
    await runs.waiting(store, "r1", "q1", "q2")
    await call(store.checkpoints.checkpoint_put, kept.row("c2"), kept.question("k2", "c2"))
    assert ids(await call(lambda: store.checkpoints.pending_list(limit=10))) == ["k1", "q1", "q2", "k2"]
    assert ids(await call(lambda: store.checkpoints.pending_list(limit=2))) == ["k1", "q1"]
    first, second, *_ = await call(lambda: store.checkpoints.pending_list(limit=10))
    assert isinstance(first, KeptQuestion)
    assert not isinstance(second, KeptQuestion)
    assert second.runner == "review"


async def test_pending_claim_gives_each_question_to_one_caller(store: SqlStore) -> None:
    await runs.waiting(store, "r1", "q1", "q2")
    found = await asyncio.gather(*(call(store.checkpoints.pending_claim, "r1") for _ in range(8)))
    assert sorted(asked.interrupt_id for asked in found if asked is not None) == ["q1", "q2"]
    assert await call(lambda: store.checkpoints.pending_list(limit=10)) == []
    assert await call(store.checkpoints.pending_claim, "nowhere") is None


async def test_pending_claim_takes_the_oldest_of_both_kinds(store: SqlStore) -> None:
    await runs.waiting(store, "r1", "q1")
    await call(store.checkpoints.checkpoint_put, kept.row("c1", "r1"), kept.question("k1", "c1", "r1"))
    claimed = [await call(store.checkpoints.pending_claim, "r1") for _ in range(3)]
    assert [None if asked is None else asked.interrupt_id for asked in claimed] == ["q1", "k1", None]


@pytest.mark.parametrize(("run_id", "name"), [("r1", "q1"), ("e1", "k1")])
async def test_pending_claim_lapses_after_a_minute(store: SqlStore, run_id: str, name: str) -> None:
    await runs.waiting(store, "r1", "q1")
    await call(store.checkpoints.checkpoint_put, kept.row("c1"), kept.question("k1", "c1"))

    def claimed(at: float) -> list[str]:
        asked = store.checkpoints.pending_claim(run_id, now=at)
        return [] if asked is None else [asked.interrupt_id]

    def is_listed(at: float) -> bool:
        return name in ids(store.checkpoints.pending_list(limit=10, now=at))

    assert await call(claimed, 1000.0) == [name]
    assert await call(claimed, 1000.0 + CLAIM_S - 1) == []
    assert not await call(is_listed, 1000.0 + CLAIM_S - 1)
    assert await call(is_listed, 1000.0 + CLAIM_S)
    assert await call(claimed, 1000.0 + CLAIM_S) == [name]
    assert await call(claimed, 1000.0 + CLAIM_S + 1) == []


async def test_a_claimed_question_of_a_run_takes_its_answer(store: SqlStore) -> None:
    """Who has claimed is who answers; the row is kept for the audit."""
    await runs.waiting(store, "r1", "q1")
    await call(store.checkpoints.pending_claim, "r1")
    assert [row.interrupt_id for row in await store.interrupt_list()] == ["q1"]
    assert (await store.interrupt_answer("r1", {"q1": '"yes"'}, answered_by="ann")).status == "pending"
    assert await call(lambda: store.checkpoints.pending_list(limit=10, now=kept.FAR)) == []
    assert [(row.status, row.answered_by) for row in await store.interrupt_list(status=None)] == [("answered", "ann")]


async def test_a_claimed_kept_question_is_answered_by_the_next_checkpoint(store: SqlStore) -> None:
    await call(store.checkpoints.checkpoint_put, kept.row("c1"), kept.question("k1", "c1"))
    await call(store.checkpoints.checkpoint_put, kept.row("c2"), kept.question("k2", "c2"))
    await call(store.checkpoints.pending_claim, "e1")
    await call(store.checkpoints.checkpoint_put, kept.row("c3"))
    # k2 was not claimed: a branch beside it went on, and it is still open.
    assert ids(await call(lambda: store.checkpoints.pending_list(limit=10, now=kept.FAR))) == ["k2"]


async def test_a_retry_opens_a_claimed_question_to_everybody(store: SqlStore) -> None:
    owner = await runs.created(store, "r1")
    await owner.write(questions=[runs.question("q1")])
    await call(store.checkpoints.pending_claim, "r1")
    await owner.end("failed")
    await store.run_retry("r1", [])
    assert ids(await call(lambda: store.checkpoints.pending_list(limit=10))) == ["q1"]


async def test_a_question_under_a_taken_id_is_refused_with_its_checkpoint(store: SqlStore) -> None:
    await call(store.checkpoints.checkpoint_put, kept.row("c1"), kept.question("k1", "c1"))
    with pytest.raises(DurableConflictError, match="k1"):
        await call(store.checkpoints.checkpoint_put, kept.row("c2"), kept.question("k1", "c2"))
    assert await call(store.checkpoints.checkpoint_get, "e1", "c2") is None


# --- results under keys ---------------------------------------------------------------------------------


async def test_idempotent_put_keeps_the_first(store: SqlStore) -> None:
    await call(store.checkpoints.idempotent_put, "e1", "pay:1", '"first"')
    await call(store.checkpoints.idempotent_put, "e1", "pay:1", '"second"')
    await call(store.checkpoints.idempotent_put, "e2", "pay:1", "null")
    assert await call(store.checkpoints.idempotent_get, "e1", "pay:1") == '"first"'
    assert await call(store.checkpoints.idempotent_get, "e2", "pay:1") == "null"


async def test_idempotent_get_of_an_unknown_key(store: SqlStore) -> None:
    assert await call(store.checkpoints.idempotent_get, "e1", "pay:1") is None


# --- the doors ------------------------------------------------------------------------------------------


async def test_perform_now_and_read_now_in_a_closed_store(store: SqlStore) -> None:
    await store.close()
    with pytest.raises(DurableStorageError):
        await call(store.perform_now, lambda session: None)
    with pytest.raises(DurableStorageError):
        await call(store.read_now, lambda session: None)


async def test_perform_now_raises_what_the_work_raised_and_stores_nothing(store: SqlStore) -> None:
    def work(session: Session) -> None:
        session.run("idempotent_put", {"run_id": "e1", "key": "k", "data": "1", "now": 0.0})
        raise LookupError("no")

    with pytest.raises(LookupError):
        await call(store.perform_now, work)
    assert await call(store.checkpoints.idempotent_get, "e1", "k") is None
