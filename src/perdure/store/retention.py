"""What is deleted, and what must not be. Decides it under the locks: what was seen before them may have changed.

Trees are pruned whole, by their roots: a run below a root takes its numbers from there, and who runs the root may ask
for its result. Forks and their sources are independent, so neither keeps the other. Whatever can still go on by itself
or by a person's word is no candidate: live, asleep, paused, in doubt; failed only if the caller says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from perdure.core.records import RunRow
from perdure.core.states import Status
from perdure.errors import RunBusy
from perdure.store import rows, transactions
from perdure.store.driver import Session
from perdure.store.kept import PruneRequest, Tombstone

MAX_RUNS = 100
MAX_RECORDS = 10_000
"""Bounds of a transaction, which holds up every other writer of an SQLite file; a tree is never split."""

_OF_EXECUTION = (
    "checkpoint_delete",
    "write_delete",
    "pending_delete",
    "idempotent_delete",
    "replica_delete",
    "execution_delete",
)
_OF_RUN = ("record_delete", "interrupt_delete", *_OF_EXECUTION, "run_delete")
_GOES_ON = frozenset({Status.QUEUED, Status.PENDING, Status.RUNNING, Status.RETRY_WAIT})


@dataclass(frozen=True, slots=True)
class Candidate:
    """Something that looks as if it may go. `place` is where the next page begins; `record_count` is what it weighs."""

    id: str
    place: float
    record_count: int


@dataclass(frozen=True, slots=True)
class Prune:
    """A request with its moment: the cutoff by the database's clock at its begin."""

    request: PruneRequest
    cutoff: float

    def params(self, **more: Any) -> dict[str, Any]:
        return {"cutoff": self.cutoff, "has_failed": self.request.has_failed, **more}

    def is_over(self, run: RunRow) -> bool:
        """Whether a run, as its locked row says, may go."""
        endings = {Status.COMPLETED, Status.CANCELLED} | ({Status.FAILED} if self.request.has_failed else set())
        return run.status in endings and run.ended_at is not None and run.ended_at <= self.cutoff


# --- pruning --------------------------------------------------------------------------------------------


def candidates(session: Session, prune: Prune, after: Candidate | None) -> list[Candidate]:
    """The next roots that look as if they may go, oldest first."""
    found = session.all("prune_candidates", prune.params(**_page(after)))
    return [Candidate(*row) for row in found]


def execution_candidates(session: Session, prune: Prune, after: Candidate | None) -> list[Candidate]:
    """The same of executions kept by hand."""
    found = session.all("prune_execution_candidates", prune.params(**_page(after)))
    return [Candidate(*row) for row in found]


def _page(after: Candidate | None) -> dict[str, Any]:
    place = (-1e300, "") if after is None else (after.place, after.id)
    return {"after_at": place[0], "after_id": place[1], "limit": MAX_RUNS}


def batches(found: Sequence[Candidate]) -> list[list[str]]:
    """Ids for one transaction each."""
    made: list[list[str]] = []
    weight = 0
    for candidate in found:
        weight += candidate.record_count
        if not made or weight > MAX_RECORDS:
            made.append([])
            weight = candidate.record_count
        made[-1].append(candidate.id)
    return made


def prune_runs(session: Session, prune: Prune, root_ids: Sequence[str]) -> int:
    """Delete the trees of these roots that may really go, and leave tombstones; returns the number of runs. Roots that
    somebody has locked are in use, and are passed over."""
    free = [run_id for (run_id,) in session.all("run_lock_free", {"run_ids": list(root_ids)})]
    doomed = [run for tree in _trees(session, free) if all(map(prune.is_over, tree)) for run in tree]
    if not prune.request.is_dry:
        session.many("tombstone_insert", [{"run_id": run.run_id, "now": session.now} for run in doomed])
        _delete(session, _OF_RUN, [run.run_id for run in doomed])
    return len(doomed)


def prune_executions(session: Session, prune: Prune, ids: Sequence[str]) -> int:
    """Delete those that may really go; returns how many."""
    doomed = [each for each in sorted(ids) if _is_execution_over(session, prune, each)]
    if not prune.request.is_dry:
        _delete(session, _OF_EXECUTION, doomed)
    return len(doomed)


def _is_execution_over(session: Session, prune: Prune, id: str) -> bool:
    session.one("execution_lock", {"id": id})
    return session.one("prune_execution_check", prune.params(id=id)) is not None


def _trees(session: Session, root_ids: Sequence[str]) -> list[list[RunRow]]:
    """The runs of each tree, its root first; the roots are locked, the others are locked here."""
    trees = {run_id: [transactions.get(session, run_id)] for run_id in root_ids}
    for row in session.all("run_lock_below", {"run_ids": list(root_ids)}):
        run = rows.run_row(row, session.now)
        trees[run.root_id].append(run)
    return list(trees.values())


def _delete(session: Session, queries: Sequence[str], run_ids: Sequence[str]) -> None:
    for query in queries:
        session.many(query, [{"run_id": run_id} for run_id in run_ids])


def tombstone(session: Session, run_id: str) -> Tombstone | None:
    """See `MaintenanceStore.tombstone_get`."""
    row = session.one("tombstone_get", {"run_id": run_id})
    return None if row is None else rows.tombstone(row)


# --- deleting one ---------------------------------------------------------------------------------------


def delete(session: Session, run_id: str, dead_workers: Sequence[str]) -> None:
    """See `MaintenanceStore.execution_delete`."""
    doomed = _with_descendants(session, run_id)
    for run in doomed:
        _require_still(session, run, run_id, dead_workers)
    session.one("execution_lock", {"id": run_id})
    _delete(session, _OF_RUN, [run.run_id for run in doomed])
    _delete(session, _OF_EXECUTION, [run_id])  # an id may have rows kept by hand and no run
    session.run("tombstone_delete", {"run_id": run_id})


def _with_descendants(session: Session, run_id: str) -> list[RunRow]:
    """The run and all below it, locked with the rest of the tree; empty if there is no such run."""
    run = transactions.find(session, run_id)
    if run is None or session.one("run_lock", {"id": run.root_id}) is None:
        return []
    (tree,) = _trees(session, [run.root_id])
    found = [each for each in tree if each.run_id == run_id]
    for parent in found:  # grows while it is walked
        found += [each for each in tree if each.parent_id == parent.run_id]
    return found


def _require_still(session: Session, run: RunRow, asked_for: str, dead_workers: Sequence[str]) -> None:
    """Nobody may run it, now or by itself later on."""
    is_owned = session.one("run_is_orphan", {"id": run.run_id, "dead_workers": list(dead_workers)}) is None
    is_due = run.status == Status.WAITING and run.due_at is not None
    if is_owned or is_due or run.status in _GOES_ON:
        raise RunBusy(asked_for, f"run {run.run_id} is {run.status} and goes on; cancel it, or wait for its end")
