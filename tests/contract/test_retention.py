"""What is deleted, and what must not be: pruning by age, deleting one execution, tombstones."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from tests.support import database, kept, runs

from perdure.core import recovery
from perdure.core.records import Record, RunChange
from perdure.errors import AlreadyResumed, DurableConflictError, RunBusy
from perdure.store import retention
from perdure.store.base import Store
from perdure.store.kept import PruneRequest
from perdure.store.retention import MAX_RECORDS, Candidate, Prune, batches
from perdure.store.sql_store import SqlStore

call = asyncio.to_thread  # the methods under test block

TABLES = (
    "run", "record", "interrupt", "checkpoint", "checkpoint_write", "pending_interrupt", "idempotent", "replica",
    "execution",
)  # fmt: skip


def pruned(store: SqlStore, *, older_than_s: float = 0.0, now: float | None = kept.FAR, **values: bool) -> int:
    """How much a prune deletes; by default whatever has ended is old enough."""
    return store.maintenance.prune(PruneRequest(older_than_s=older_than_s, **values), now=now).count


async def is_there(store: SqlStore, *run_ids: str) -> list[str]:
    """Those of the runs that are whole: their row and their journal."""
    return [run_id for run_id in run_ids if await store.run_get(run_id) and await store.record_list(run_id)]


def rows_left(url: str, run_id: str) -> dict[str, int]:
    """How many rows of an id are left in each table, those that have some."""
    key = {"run": "id", "execution": "id"}
    counts = {
        table: database.execute(url, f"SELECT count(*) FROM {table} WHERE {key.get(table, 'run_id')} = '{run_id}'")
        for table in TABLES
    }
    return {table: found[0][0] for table, found in counts.items() if found[0][0]}


# --- pruning runs ---------------------------------------------------------------------------------------


async def test_prune_deletes_all_rows_of_what_is_over(store: SqlStore, store_url: str) -> None:
    owner = await runs.created(store, "r1")
    await owner.write(runs.completed(0), questions=[runs.question("q1")])
    await call(store.checkpoints.checkpoint_put, kept.row("c1", "r1"), kept.question("k1", "c1", "r1"))
    await call(store.checkpoints.write_put, "r1", "c1", ["1"])
    await call(store.checkpoints.idempotent_put, "r1", "key", "1")
    await call(store.replica.quarantine_mark, {"r1:2": "no", "c1": "no"})
    await owner.end("completed")
    assert set(rows_left(store_url, "r1")) == set(TABLES)
    await kept.ended(store, "r2", "cancelled")
    assert await call(pruned, store) == 2
    assert rows_left(store_url, "r1") == rows_left(store_url, "r2") == {}
    assert await call(pruned, store) == 0


async def test_prune_spares_what_has_ended_later(store: SqlStore) -> None:
    await kept.ended(store, "r1")
    run = await store.run_get("r1")
    assert run is not None
    assert run.ended_at is not None
    before, after = run.ended_at + kept.DAY_S - 1, run.ended_at + kept.DAY_S + 1
    assert await call(lambda: pruned(store, older_than_s=kept.DAY_S, now=before)) == 0
    assert await call(lambda: pruned(store, older_than_s=kept.DAY_S, now=None)) == 0
    assert await is_there(store, "r1") == ["r1"]
    assert await call(lambda: pruned(store, older_than_s=kept.DAY_S, now=after)) == 1


async def test_prune_deletes_failed_runs_only_when_asked(store: SqlStore) -> None:
    await kept.ended(store, "r1", "failed")
    assert await call(pruned, store) == 0
    await store.run_retry("r1", [])  # it still can
    (claim,) = await store.run_claim(runs.WORKER)
    await runs.owner_of(store, claim, runs.WORKER).end("failed")
    assert await call(lambda: pruned(store, has_failed=True)) == 1


async def test_prune_spares_whatever_can_go_on(store: SqlStore) -> None:
    """Live, asleep, paused, in doubt: whatever their age."""
    await runs.created(store, "running")
    for name, values in (
        ("pending", {}), ("retry_wait", {"due_in_s": 1.0}), ("needs_attention", {"blocked_operation": "0"}),
    ):  # fmt: skip
        await (await runs.created(store, name)).end(name, **values)
    await runs.waiting(store, "paused", "q1")
    await (await runs.created(store, "asleep")).end("waiting", due_in_s=1.0)
    names = ("running", "pending", "retry_wait", "needs_attention", "paused", "asleep")
    assert await call(lambda: pruned(store, has_failed=True)) == 0
    assert await is_there(store, *names) == list(names)


async def test_peer_E6_prune_never_bricks_a_paused_run(store: SqlStore) -> None:
    await runs.waiting(store, "r1", "q1")
    await kept.ended(store, "old")
    assert await call(pruned, store) == 1
    await store.interrupt_answer("r1", {"q1": '"yes"'})
    (claim,) = await store.run_claim(runs.WORKER)
    assert [record.type for record in (await store.run_load("r1")).records][:2] == ["submitted", "suspended"]
    assert await runs.owner_of(store, claim, runs.WORKER).end("completed", runs.completed(0)) == "completed"


async def _tree(store: SqlStore, root: str, *below: str) -> None:
    """A root that has completed, and runs below it that are still running."""
    owner = await runs.created(store, root)
    for name in below:
        await runs.created(store, name, root_id=root, parent_id=root)
    await owner.end("completed")


@pytest.mark.parametrize("status", ["running", "waiting", "needs_attention", "failed"])
async def test_prune_spares_a_tree_with_a_run_that_can_go_on(store: SqlStore, status: str) -> None:
    await _tree(store, "root")
    owner = await runs.created(store, "child", root_id="root", parent_id="root")
    await runs.created(store, "grandchild", root_id="root", parent_id="child")
    grandchild = runs.owner(store, "grandchild", root_id="root")
    grandchild.lane.enqueued = grandchild.lane.committed = 1
    if status != "running":
        await owner.write(questions=[runs.question("q1")] if status == "waiting" else [])
        await grandchild.end("completed")
        await owner.end(status)
    assert await call(pruned, store) == 0
    assert await is_there(store, "root", "child", "grandchild") == ["root", "child", "grandchild"]


async def test_prune_deletes_a_tree_whole(store: SqlStore, store_url: str) -> None:
    root = await runs.created(store, "root")
    for name in ("a", "b"):
        child = await runs.created(store, name, root_id="root", parent_id="root")
        await child.end("completed")
    await call(pruned, store)
    assert await is_there(store, "root", "a", "b") == ["root", "a", "b"]  # the root may ask for their results
    await root.end("completed")
    assert await call(pruned, store) == 3
    for name in ("root", "a", "b"):
        assert rows_left(store_url, name) == {}


async def test_R2_a_fork_and_its_source_do_not_keep_each_other(store: SqlStore) -> None:
    """A fork has a copy of what it needs: its source may go, and what is left is whole."""
    await kept.ended(store, "source")
    loaded = await store.run_load("source")
    fork = runs.new_run("fork", worker_id=None, forked_from="source", forked_seq=2)
    await store.run_fork(fork, recovery.fork_records(loaded.records, 2), [])
    assert await call(pruned, store) == 1
    forked = await store.run_load("fork")
    assert [record.type for record in forked.records] == ["submitted", "completed"]
    (claim,) = await store.run_claim(runs.WORKER)
    await runs.owner_of(store, claim, runs.WORKER).end("completed")
    assert await call(pruned, store) == 1


async def test_prune_counts_and_deletes_nothing_when_dry(store: SqlStore) -> None:
    await kept.ended(store, "r1")
    await runs.waiting(store, "r2", "q1")
    await call(store.checkpoints.checkpoint_put, kept.row("c1"))
    found = await call(lambda: store.maintenance.prune(PruneRequest(older_than_s=0.0, is_dry=True), now=kept.FAR))
    assert (found.run_count, found.execution_count) == (1, 1)
    assert await is_there(store, "r1") == ["r1"]
    assert await call(store.checkpoints.checkpoint_get, "e1", "c1") is not None
    assert await call(store.maintenance.tombstone_get, "r1") is None


async def test_prune_of_more_than_a_page(store: SqlStore) -> None:
    await runs.register(store, runs.WORKER)
    await asyncio.gather(*(kept.ended(store, f"r{n}") for n in range(230)))
    await runs.waiting(store, "paused", "q1")
    assert await call(pruned, store) == 230
    assert await is_there(store, "paused") == ["paused"]


def test_batches_are_bounded_by_what_they_weigh() -> None:
    found = [Candidate(str(n), 0.0, weight) for n, weight in enumerate([1, MAX_RECORDS * 2, 1, MAX_RECORDS, 0, 5])]
    assert batches(found) == [["0"], ["1"], ["2"], ["3", "4"], ["5"]]
    assert batches([]) == []


# --- between seeing and deleting ------------------------------------------------------------------------


async def test_R2_a_run_resumed_between_the_look_and_the_delete_stays(
    store: SqlStore, open_another: Callable[[], Awaitable[Store]]
) -> None:
    """Somebody else retries one when both have been seen as candidates; under its lock it is one no more."""
    prune = Prune(PruneRequest(older_than_s=0.0, has_failed=True), kept.FAR)
    await kept.ended(store, "r1", "failed")
    await kept.ended(store, "r2", "failed")
    seen = await call(store.read_now, lambda session: retention.candidates(session, prune, None))
    assert [each.id for each in seen] == ["r1", "r2"]
    await (await open_another()).run_retry("r1", [])
    ids = [each.id for each in seen]
    assert await call(store.perform_now, lambda session: retention.prune_runs(session, prune, ids)) == 1
    assert await is_there(store, "r1", "r2") == ["r1"]
    assert [claim.run_id for claim in await store.run_claim("w2")] == ["r1"]


async def test_an_execution_that_went_on_between_the_look_and_the_delete_stays(store: SqlStore) -> None:
    prune = Prune(PruneRequest(older_than_s=0.0), kept.FAR)
    await call(store.checkpoints.checkpoint_put, kept.row("c1"))
    seen = await call(store.read_now, lambda session: retention.execution_candidates(session, prune, None))
    assert [each.id for each in seen] == ["e1"]
    await call(store.checkpoints.checkpoint_put, kept.row("c2", status="interrupted"))
    assert await call(store.perform_now, lambda session: retention.prune_executions(session, prune, ["e1"])) == 0
    assert await call(store.checkpoints.checkpoint_get, "e1", "c1") is not None


# --- executions kept by hand ----------------------------------------------------------------------------


async def test_prune_of_executions_kept_by_hand(store: SqlStore, store_url: str) -> None:
    for name, status in (("done", "completed"), ("failed", "failed"), ("asks", "interrupted")):
        await call(store.checkpoints.checkpoint_put, kept.row(f"c-{name}", name, status))
    await call(store.checkpoints.checkpoint_put, kept.row("c1", "open"), kept.question("k1", "c1", "open"))
    await call(store.checkpoints.write_put, "done", "c-done", ["1"])
    await call(store.checkpoints.idempotent_put, "only a key", "k", "1")
    assert await call(lambda: pruned(store, now=None, older_than_s=kept.DAY_S)) == 0
    assert await call(pruned, store) == 2
    assert [name for name in ("done", "only a key", "failed", "asks", "open") if rows_left(store_url, name)] == [
        "failed", "asks", "open",
    ]  # fmt: skip
    assert await call(lambda: pruned(store, has_failed=True)) == 1


async def test_prune_leaves_what_was_put_by_hand_to_the_run_of_that_id(store: SqlStore, store_url: str) -> None:
    await runs.waiting(store, "r1", "q1")
    await call(store.checkpoints.checkpoint_put, kept.row("c1", "r1"))
    assert await call(pruned, store) == 0
    assert rows_left(store_url, "r1")["checkpoint"] == 1


# --- tombstones -----------------------------------------------------------------------------------------


async def test_tombstone_get(store: SqlStore) -> None:
    await kept.ended(store, "r1", "cancelled")
    run = await store.run_get("r1")
    assert run is not None
    assert await call(store.maintenance.tombstone_get, "r1") is None
    await call(pruned, store)
    found = await call(store.maintenance.tombstone_get, "r1")
    assert found is not None
    assert (found.run_id, found.runner, found.input_digest) == ("r1", run.runner, run.input_digest)
    assert (found.status, found.ended_at) == ("cancelled", run.ended_at)
    assert await store.run_get("r1") is None


async def test_a_late_duplicate_of_a_pruned_run_is_not_run_again(store: SqlStore) -> None:
    await kept.ended(store, "r1")
    await call(pruned, store)
    late = runs.owner(store, "r1")
    with pytest.raises(AlreadyResumed, match="pruned"):
        await late.write(create=runs.new_run("r1"))
    other_input = runs.owner(store, "r1")
    with pytest.raises(DurableConflictError, match="other input"):
        await other_input.write(create=runs.new_run("r1", input_digest="d2"))
    other_runner = runs.owner(store, "r1")
    with pytest.raises(DurableConflictError):
        await other_runner.write(create=runs.new_run("r1", runner="another"))
    with pytest.raises(DurableConflictError, match="pruned"):
        await store.run_fork(runs.new_run("r1", worker_id=None), [], [])
    assert await store.run_get("r1") is None
    assert await store.record_list("r1") == []


async def test_a_pruned_id_below_a_root_is_not_used_again(store: SqlStore) -> None:
    await kept.ended(store, "r1")
    await call(pruned, store)
    await runs.created(store, "root")
    late = runs.owner(store, "r1", root_id="root")
    with pytest.raises(AlreadyResumed, match="pruned"):
        await late.write(create=runs.new_run("r1", root_id="root", parent_id="root"))


async def test_others_of_a_group_are_created_beside_a_pruned_id(store: SqlStore) -> None:
    await kept.ended(store, "r1")
    await call(pruned, store)
    owners = [runs.owner(store, name) for name in ("r0", "r1", "r2")]
    written = [owner.append(create=runs.new_run(owner.lane.run_id)) for owner in owners]
    ended = await asyncio.gather(
        *(owner.wait(n) for owner, n in zip(owners, written, strict=True)), return_exceptions=True
    )
    assert [type(each) for each in ended] == [int, AlreadyResumed, int]


# --- deleting one ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["completed", "failed", "cancelled", "needs_attention", "paused"])
async def test_execution_delete_of_a_run_that_stands_still(store: SqlStore, store_url: str, status: str) -> None:
    if status == "paused":
        await runs.waiting(store, "r1", "q1")
    else:
        await kept.ended(store, "r1", status)
    await call(store.checkpoints.checkpoint_put, kept.row("c1", "r1"))
    await runs.waiting(store, "r2", "q2")
    await call(store.maintenance.execution_delete, "r1")
    assert rows_left(store_url, "r1") == {}
    assert [row.interrupt_id for row in await store.interrupt_list(status=None)] == ["q2"]
    assert await call(store.maintenance.tombstone_get, "r1") is None
    await runs.created(store, "r1")  # the id is free


@pytest.mark.parametrize("status", ["running", "pending", "retry_wait", "asleep"])
async def test_execution_delete_of_a_run_that_goes_on(store: SqlStore, store_url: str, status: str) -> None:
    owner = await runs.created(store, "r1")
    if status == "asleep":
        await owner.end("waiting", due_in_s=1000.0)
    elif status != "running":
        await owner.end(status, due_in_s=1000.0 if status == "retry_wait" else None)
    before = rows_left(store_url, "r1")
    with pytest.raises(RunBusy, match="r1"):
        await call(store.maintenance.execution_delete, "r1")
    assert rows_left(store_url, "r1") == before


async def test_execution_delete_goes_with_what_is_below(store: SqlStore, store_url: str) -> None:
    await runs.register(store, runs.WORKER)
    for name, parent in (("root", None), ("a", "root"), ("b", "root"), ("aa", "a")):
        owner = await runs.created(store, name, root_id="root", parent_id=parent)
        if name != "b":
            await owner.end("completed")
    with pytest.raises(RunBusy, match="b is running"):
        await call(store.maintenance.execution_delete, "root")
    await call(store.maintenance.execution_delete, "a")
    assert [name for name in ("root", "a", "aa", "b") if rows_left(store_url, name)] == ["root", "b"]
    await store.run_cancel("b", dead_workers=[runs.WORKER])
    await call(store.maintenance.execution_delete, "root")
    assert [name for name in ("root", "b") if rows_left(store_url, name)] == []


async def test_execution_delete_of_what_is_kept_by_hand(store: SqlStore, store_url: str) -> None:
    await call(store.checkpoints.checkpoint_put, kept.row("c1"), kept.question("k1", "c1"))
    await call(store.checkpoints.checkpoint_put, kept.row("c2", "e2"))
    await call(store.maintenance.execution_delete, "e1")
    assert rows_left(store_url, "e1") == {}
    assert rows_left(store_url, "e2") != {}


async def test_execution_delete_of_a_pruned_run_leaves_nothing(store: SqlStore) -> None:
    await kept.ended(store, "r1")
    await call(pruned, store)
    await call(store.maintenance.execution_delete, "r1")
    assert await call(store.maintenance.tombstone_get, "r1") is None


async def test_execution_delete_of_an_unknown_id(store: SqlStore) -> None:
    await call(store.maintenance.execution_delete, "nowhere")


async def test_execution_delete_of_a_paused_run_that_is_owned(store: SqlStore) -> None:
    """Its owner may take the answer at any moment."""
    owner = await runs.created(store, "r1")
    asked = [runs.question("q1")]
    await owner.write(Record(type="suspended"), questions=asked, change=RunChange(status="waiting"))
    with pytest.raises(RunBusy):
        await call(store.maintenance.execution_delete, "r1")
    assert await is_there(store, "r1") == ["r1"]
    await store.worker_end(runs.WORKER)
    await call(store.maintenance.execution_delete, "r1")
    assert await is_there(store, "r1") == []
