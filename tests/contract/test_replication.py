"""The outbox of a connected plane: what was not acknowledged yet, in order, and nothing twice."""

from __future__ import annotations

import asyncio

import pytest
from tests.support import database, kept, runs

from perdure.store.sql_store import SqlStore

call = asyncio.to_thread  # the methods under test block


def unsynced(store: SqlStore, limit: int = 100, project_id: str | None = None) -> list[str]:
    """What is to be sent, as checkpoint ids."""
    found = store.replica.unsynced_list(limit=limit, project_id=project_id)
    names: list[str] = []
    for part in found:
        names += [row.checkpoint_id for row in part.kept]
        names += [f"{part.run.run.run_id}:{seq}" for seq in sorted(part.seqs)] if part.run is not None else []
    return names


def marks(url: str, run_id: str) -> tuple[int | None, int]:
    """How far a run is acknowledged, and how many rows say so one by one."""
    ((mark,),) = database.execute(url, f"SELECT synced_seq FROM run WHERE id = '{run_id}'")
    ((count,),) = database.execute(url, f"SELECT count(*) FROM replica WHERE run_id = '{run_id}'")
    return mark, count


async def with_steps(store: SqlStore, run_id: str, count: int) -> runs.Owner:
    """A run of so many steps: its checkpoints are `run_id:2` and so on."""
    owner = await runs.created(store, run_id)
    for n in range(count):
        await owner.write(runs.completed(n))
    return owner


async def test_unsynced_list_oldest_execution_first_and_in_it_in_order(store: SqlStore) -> None:
    await call(store.checkpoints.checkpoint_put, kept.row("c1", "e1"))
    await with_steps(store, "r1", 2)
    await call(store.checkpoints.checkpoint_put, kept.row("c3", "e2"))
    await call(store.checkpoints.checkpoint_put, kept.row("c2", "e1"))
    assert await call(unsynced, store) == ["c1", "c2", "r1:2", "r1:3", "c3"]
    assert await call(unsynced, store, 3) == ["c1", "c2", "r1:2"]
    assert await call(unsynced, store, 0) == []


async def test_synced_mark_raises_the_mark_and_needs_no_rows(store: SqlStore, store_url: str) -> None:
    owner = await with_steps(store, "r1", 3)
    await call(store.replica.synced_mark, ["r1:2", "r1:3"])
    assert marks(store_url, "r1") == (3, 0)
    assert await call(unsynced, store) == ["r1:4"]
    await call(store.replica.synced_mark, ["r1:4"])
    assert await call(unsynced, store) == []
    await owner.end("completed")
    assert await call(unsynced, store) == ["r1:5"]
    await call(store.replica.synced_mark, ["r1:5"])
    assert marks(store_url, "r1") == (None, 0)  # over, and in no index that is looked at
    assert await call(unsynced, store) == []


async def test_synced_mark_in_any_order_and_twice(store: SqlStore, store_url: str) -> None:
    await with_steps(store, "r1", 3)
    await call(store.replica.synced_mark, ["r1:4", "r1:4"])
    assert marks(store_url, "r1") == (1, 1)
    assert await call(unsynced, store) == ["r1:2", "r1:3"]
    for _ in range(2):
        await call(store.replica.synced_mark, ["r1:3", "r1:2"])
        assert marks(store_url, "r1") == (4, 0)


async def test_synced_mark_of_unknown_ids(store: SqlStore, store_url: str) -> None:
    await with_steps(store, "r1", 1)
    await call(store.checkpoints.checkpoint_put, kept.row("c1"))
    await call(store.replica.synced_mark, ["r1:99", "r2:1", "nowhere", "r1:", ":", "", "r1:-2", "e1:1"])
    await call(store.replica.quarantine_mark, {"r1:99": "no", "nowhere": "no"})
    assert sorted(await call(unsynced, store)) == ["c1", "r1:2"]
    assert database.execute(store_url, "SELECT count(*) FROM replica") == [(0,)]


async def test_records_that_are_no_checkpoints_are_passed_once(store: SqlStore, store_url: str) -> None:
    owner = await runs.created(store, "r1")
    assert await call(unsynced, store) == []
    assert marks(store_url, "r1") == (1, 0)
    await owner.end("waiting", due_in_s=5.0)
    assert await call(unsynced, store) == []
    assert marks(store_url, "r1") == (2, 0)


async def test_quarantine_mark_keeps_the_reason_and_sends_no_more(store: SqlStore, store_url: str) -> None:
    await with_steps(store, "r1", 2)
    await call(store.checkpoints.checkpoint_put, kept.row("c1"))
    await call(store.replica.quarantine_mark, {"r1:2": "too large", "c1": "bad"})
    assert await call(unsynced, store) == ["r1:3"]
    await call(store.replica.synced_mark, ["r1:2", "r1:3"])
    assert marks(store_url, "r1") == (3, 1)
    await call(store.replica.quarantine_mark, {"r1:2": "too large by far"})
    assert await call(store.replica.quarantine_list, "r1") == {"r1:2": "too large by far"}
    assert await call(store.replica.quarantine_list, "e1") == {"c1": "bad"}
    assert await call(unsynced, store) == []


async def test_kept_checkpoints_are_marked_as_those_of_runs(store: SqlStore, store_url: str) -> None:
    for name in ("c1", "c2", "c3"):
        await call(store.checkpoints.checkpoint_put, kept.row(name))
    await call(store.replica.synced_mark, ["c2"])
    assert await call(unsynced, store) == ["c1", "c3"]
    await call(store.replica.synced_mark, ["c1", "c3"])
    assert database.execute(store_url, "SELECT synced_seq FROM execution") == [(3,)]
    assert database.execute(store_url, "SELECT count(*) FROM replica") == [(0,)]
    await call(store.checkpoints.checkpoint_put, kept.row("c4"))
    assert await call(unsynced, store) == ["c4"]


async def test_a_run_with_both_kinds_has_a_mark_for_each(store: SqlStore) -> None:
    await with_steps(store, "r1", 1)
    await call(store.checkpoints.checkpoint_put, kept.row("c1", "r1"))
    await call(store.replica.synced_mark, ["r1:2"])
    assert await call(unsynced, store) == ["c1"]
    await call(store.replica.synced_mark, ["c1"])
    assert await call(unsynced, store) == []


async def test_what_a_retry_adds_is_sent(store: SqlStore, store_url: str) -> None:
    owner = await with_steps(store, "r1", 1)
    await owner.end("failed")
    await call(store.replica.synced_mark, ["r1:2", "r1:3"])
    assert marks(store_url, "r1") == (None, 0)
    await store.run_retry("r1", [])
    (claim,) = await store.run_claim(runs.WORKER)
    await runs.owner_of(store, claim, runs.WORKER).end("completed")
    assert await call(unsynced, store) == ["r1:6"]
    await call(store.replica.synced_mark, ["r1:6"])
    assert marks(store_url, "r1") == (None, 0)


@pytest.mark.parametrize("project_id", ["p1", None])
async def test_unsynced_list_of_one_project(store: SqlStore, store_url: str, project_id: str | None) -> None:
    for name in ("r1", "r2"):
        await with_steps(store, name, 1)
    for name in ("e1", "e2"):
        await call(store.checkpoints.checkpoint_put, kept.row(f"c-{name}", name))
    database.execute(store_url, "UPDATE run SET project_id = 'p1' WHERE id = 'r2'")
    database.execute(store_url, "UPDATE execution SET project_id = 'p1' WHERE id = 'e2'")
    expected = {"p1": ["r2:2", "c-e2"], None: ["r1:2", "r2:2", "c-e1", "c-e2"]}[project_id]
    assert await call(unsynced, store, 10, project_id) == expected
    (first, *_) = await call(lambda: store.replica.unsynced_list(limit=10, project_id="p1"))
    assert first.project_id == "p1"


async def test_runs_below_a_root(store: SqlStore, store_url: str) -> None:
    root = await runs.created(store, "root")
    child = await runs.created(store, "child", root_id="root", parent_id="root")
    await child.write(runs.completed(0))
    await child.end("completed")
    await root.end("completed")
    found = await call(unsynced, store)
    assert found == ["root:5", "child:3", "child:4"]
    await call(store.replica.synced_mark, found)
    assert await call(unsynced, store) == []
    assert (marks(store_url, "root"), marks(store_url, "child")) == ((None, 0), (None, 0))
