"""Groups that hold runs below a root: their numbers come from another row than their own. Decides how such
a group is written with plain queries, several round trips for each batch; the statement for groups of
roots is in `postgres_group`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from perdure.core.states import Status, is_terminal
from perdure.errors import DurableConflictError
from perdure.store import rows
from perdure.store.base import Lane
from perdure.store.driver import Batch, Session, may_settle, refusal_of_missing, settle, settled_records
from perdure.store.postgres_group import judge


def write_tree(session: Session, batches: Sequence[Batch], doubtful: Collection[Lane]) -> None:
    """Write the batches, of roots and of runs below them, in the session's transaction. See
    `Driver.write`."""
    for run_id in sorted({batch.lane.root_id for batch in batches}):
        session.one("run_lock", {"id": run_id})
    for run_id in sorted({batch.lane.run_id for batch in batches}):
        session.one("run_lock", {"id": run_id})
    for batch in batches:
        batch.refusal = batch.status = None
        _write(session, batch, doubtful)


def _write(session: Session, batch: Batch, doubtful: Collection[Lane]) -> None:
    lane = batch.lane
    state = session.one("batch_state", {"id": lane.run_id})
    if not _is_to_be_written(batch, state):
        judge(batch, state, None, is_doubtful=lane in doubtful)
        return
    if batch.create is not None:
        new = rows.new_run(
            batch.create,
            worker_id=lane.worker_id,
            fence=lane.fence,
            seq=0,
            entry_n=batch.last_n,
            now=session.now,
        )
        if session.run("run_insert", new) == 0:
            batch.refusal = refusal_of_missing(batch, session.one("tombstone_get", {"run_id": lane.run_id}))
            return
    first_seq = _take_numbers(session, batch)
    _write_beside(
        session,
        batch,
        old=state[4] if state else Status.RUNNING,
        is_cancel_requested=bool(state and state[5]),
    )
    session.insert_records(rows.record_rows(lane.run_id, first_seq, settled_records(batch), session.now))


def _is_to_be_written(batch: Batch, state: tuple[Any, ...] | None) -> bool:
    if state is None or batch.create is not None:
        return state is None and batch.create is not None
    _, fence, worker_id, entry_n, status, _ = state
    lane = batch.lane
    is_own = fence == lane.fence and worker_id == lane.worker_id and entry_n < batch.first_n
    return is_own and (batch.change is None or not is_terminal(status))


def _take_numbers(session: Session, batch: Batch) -> int:
    """Count the batch's entries and take numbers for its records from the root; the first one."""
    lane, count = batch.lane, len(batch.records)
    taken = session.one("seq_take", {"root_id": lane.root_id, "count": count})
    if taken is None:
        raise DurableConflictError(f"run {lane.run_id} belongs to {lane.root_id}, which does not exist")
    counted = {"id": lane.run_id, "seq": taken[0], "entry_n": batch.last_n, "now": session.now}
    session.run("batch_count", counted)
    return taken[0] - count + 1


def _write_beside(session: Session, batch: Batch, *, old: str, is_cancel_requested: bool) -> None:
    run_id, change = batch.lane.run_id, batch.change
    session.many("interrupt_insert", [rows.question(run_id, asked, session.now) for asked in batch.questions])
    for interrupt_id in batch.abandoned:
        session.run("interrupt_abandoned", {"id": interrupt_id, "run_id": run_id})
    for interrupt_id in batch.delivered:
        session.run("interrupt_delivered", {"id": interrupt_id, "run_id": run_id, "now": session.now})
    if change is None:
        return
    # A statement of its own after the lock: it sees every answer that was committed before we got it.
    has_undelivered = change.status == Status.WAITING and session.one("run_has_answers", {"id": run_id}) is not None
    batch.status = settle(change, is_cancel_requested=is_cancel_requested, has_undelivered=has_undelivered)
    if not may_settle(old, batch.status):
        raise DurableConflictError(f"run {run_id} is {old} and cannot become {batch.status}")
    session.run("run_change", rows.change(run_id, change, batch.status, session.now))
    if is_terminal(batch.status):
        session.run("interrupt_withdraw", {"run_id": run_id})
