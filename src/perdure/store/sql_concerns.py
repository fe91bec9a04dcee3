"""What is kept by hand, what is deleted and what is replicated: the store's concerns for callers without a loop.

Decides transactions and their order, nothing else; the decisions are in `checkpoints`, `retention` and `replication`.
Everything here blocks. It may be called from any thread, a loop's included, which then waits as for any blocking call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from perdure.store import checkpoints, replication, retention, rows
from perdure.store.driver import Driver, Session
from perdure.store.kept import (
    Execution,
    KeptCheckpoint,
    KeptQuestion,
    OpenQuestion,
    Pruned,
    PruneRequest,
    Tombstone,
    Unsynced,
)
from perdure.store.retention import Candidate, Prune

T = TypeVar("T")

_Find = Callable[[Session, Prune, Candidate | None], list[Candidate]]
_Delete = Callable[[Session, Prune, Sequence[str]], int]


class Doors(Protocol):
    """The blocking ways into a store."""

    def read_now(self, work: Callable[[Session], T]) -> T: ...

    def perform_now(self, work: Callable[[Session], T]) -> T: ...


class SqlCheckpoints:
    """See `base.CheckpointStore`."""

    def __init__(self, doors: Doors) -> None:
        self._doors = doors

    def checkpoint_put(self, row: KeptCheckpoint, question: KeptQuestion | None = None) -> None:
        self._doors.perform_now(lambda session: checkpoints.put(session, row, question))

    def checkpoint_get(self, run_id: str, checkpoint_id: str) -> KeptCheckpoint | None:
        return self._doors.read_now(lambda session: checkpoints.get(session, run_id, checkpoint_id))

    def execution_load(self, run_id: str, *, limit: int, is_newest: bool = False) -> Execution:
        return self._doors.read_now(lambda session: checkpoints.load(session, run_id, limit, is_newest=is_newest))

    def write_put(self, run_id: str, checkpoint_id: str, writes: Sequence[str]) -> None:
        self._doors.perform_now(lambda session: checkpoints.put_writes(session, run_id, checkpoint_id, writes))

    def write_list(self, run_id: str, checkpoint_id: str) -> list[str]:
        return self._doors.read_now(lambda session: checkpoints.list_writes(session, run_id, checkpoint_id))

    def pending_list(self, *, limit: int, now: float | None = None) -> list[OpenQuestion]:
        return self._doors.read_now(lambda session: checkpoints.list_open(session, limit, now))

    def pending_claim(self, run_id: str, *, now: float | None = None) -> OpenQuestion | None:
        return self._doors.perform_now(lambda session: checkpoints.claim(session, run_id, now))

    def idempotent_get(self, run_id: str, key: str) -> str | None:
        return self._doors.read_now(lambda session: checkpoints.get_idempotent(session, run_id, key))

    def idempotent_put(self, run_id: str, key: str, data: str) -> None:
        self._doors.perform_now(lambda session: checkpoints.put_idempotent(session, run_id, key, data))


class SqlMaintenance:
    """See `base.MaintenanceStore`."""

    def __init__(self, doors: Doors, driver: Driver) -> None:
        self._doors = doors
        self._driver = driver

    def execution_delete(self, run_id: str) -> None:
        # Looked at before the transaction, which holds locks: a worker that is dead stays dead.
        workers = self._doors.read_now(lambda session: session.all("worker_list"))
        found = [rows.worker_row(row) for row in workers]
        dead = [worker.worker_id for worker in found if self._driver.worker_probe(worker) == "dead"]
        self._doors.perform_now(lambda session: retention.delete(session, run_id, dead))

    def prune(self, request: PruneRequest, *, now: float | None = None) -> Pruned:
        at = self._doors.read_now(lambda session: session.now) if now is None else now
        prune = Prune(request, at - request.older_than_s)
        run_count = self._prune(prune, retention.candidates, retention.prune_runs)
        execution_count = self._prune(prune, retention.execution_candidates, retention.prune_executions)
        if run_count + execution_count and not request.is_dry:
            self._driver.reclaim()
        return Pruned(run_count=run_count, execution_count=execution_count)

    def _prune(self, prune: Prune, find: _Find, delete: _Delete) -> int:
        """Page by page without locks, and each batch once more under them. Returns how many went."""
        count = 0
        after: Candidate | None = None
        while page := self._doors.read_now(lambda session, after=after: find(session, prune, after)):
            for ids in retention.batches(page):
                count += self._doors.perform_now(lambda session, ids=ids: delete(session, prune, ids))
            after = page[-1]
        return count

    def tombstone_get(self, run_id: str) -> Tombstone | None:
        return self._doors.read_now(lambda session: retention.tombstone(session, run_id))


class SqlReplica:
    """See `base.ReplicaStore`."""

    def __init__(self, doors: Doors) -> None:
        self._doors = doors

    def unsynced_list(self, *, limit: int, project_id: str | None = None) -> list[Unsynced]:
        found, marks = self._doors.read_now(lambda session: replication.unsynced(session, limit, project_id))
        if marks:
            self._doors.perform_now(lambda session: replication.raise_marks(session, marks))
        return found

    def synced_mark(self, checkpoint_ids: Sequence[str]) -> None:
        self._note(lambda session: replication.acknowledge(session, checkpoint_ids))

    def quarantine_mark(self, reasons: Mapping[str, str]) -> None:
        self._note(lambda session: replication.quarantine(session, reasons))

    def quarantine_list(self, run_id: str) -> dict[str, str]:
        return self._doors.read_now(lambda session: replication.reasons(session, run_id))

    def _note(self, work: Callable[[Session], set[tuple[str, bool]]]) -> None:
        touched = self._doors.perform_now(work)
        # In a transaction of its own, since it reads whole journals; who dies in between, the next call does it.
        marks = self._doors.read_now(lambda session: replication.marks(session, touched))
        if marks:
            self._doors.perform_now(lambda session: replication.raise_marks(session, marks))
