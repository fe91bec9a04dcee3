"""Pruning on Postgres, where a duplicate submission can begin before the prune commits and end after it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import psycopg
import pytest
from tests.support import kept, runs

from perdure.errors import AlreadyResumed
from perdure.store import retention
from perdure.store.driver import Session
from perdure.store.kept import PruneRequest
from perdure.store.open import open_store
from perdure.store.retention import Prune
from perdure.store.sql_store import SqlStore


@pytest.fixture
def stores(postgres_dsn: str) -> Iterator[tuple[SqlStore, SqlStore]]:
    """Two on one database, as two processes have them."""
    opened = open_store(postgres_dsn), open_store(postgres_dsn)
    yield opened
    for store in opened:
        store.close_now()


def _wait_until_somebody_waits_for_a_lock(dsn: str) -> None:
    """Bounded by the test's time limit."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        waiting = (
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
        while connection.execute(waiting).fetchone() == (0,):
            threading.Event().wait(0.01)


def test_a_duplicate_that_waits_for_the_prune_of_its_run_is_recognised(
    stores: tuple[SqlStore, SqlStore], postgres_dsn: str
) -> None:
    """Its snapshot is older than the prune's commit: it sees neither the row that is gone nor the tombstone."""
    ours, others = stores
    asyncio.run(kept.ended(ours, "r1"))
    prune = Prune(PruneRequest(older_than_s=0.0), kept.FAR)
    is_deleted, may_commit = threading.Event(), threading.Event()

    def delete_and_wait(session: Session) -> int:
        count = retention.prune_runs(session, prune, ["r1"])
        is_deleted.set()
        assert may_commit.wait(60)
        return count

    pruner = threading.Thread(target=ours.perform_now, args=(delete_and_wait,))
    pruner.start()
    assert is_deleted.wait(60)

    async def submit_again() -> None:
        late = runs.owner(others, "r1")
        written = late.append(create=runs.new_run("r1"))
        await asyncio.to_thread(_wait_until_somebody_waits_for_a_lock, postgres_dsn)
        may_commit.set()
        with pytest.raises(AlreadyResumed, match="pruned"):
            await late.wait(written)

    asyncio.run(submit_again())
    pruner.join()
    assert asyncio.run(ours.run_get("r1")) is None
    assert ours.maintenance.tombstone_get("r1") is not None


def test_a_run_that_somebody_holds_is_passed_over(stores: tuple[SqlStore, SqlStore], postgres_dsn: str) -> None:
    """A prune waits for nobody's run."""
    ours, others = stores
    for name in ("r1", "r2"):
        asyncio.run(kept.ended(ours, name))
    is_held, may_end = threading.Event(), threading.Event()

    def hold(session: Session) -> None:
        session.one("run_lock", {"id": "r1"})
        is_held.set()
        assert may_end.wait(60)

    holder = threading.Thread(target=others.perform_now, args=(hold,))
    holder.start()
    assert is_held.wait(60)
    assert ours.maintenance.prune(PruneRequest(older_than_s=0.0), now=kept.FAR).run_count == 1
    may_end.set()
    holder.join()
    assert ours.maintenance.prune(PruneRequest(older_than_s=0.0), now=kept.FAR).run_count == 1
