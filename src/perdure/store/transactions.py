"""The writes from outside a run, each one transaction. Decides what they check and change; both databases run
these.

Every function takes a `Session` that is inside a write transaction, locks the run first, and raises a typed
error with nothing stored. None of them carries a fence: the lock is what they share with the run's owner.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perdure.core import codec
from perdure.core.records import (
    Claim,
    Facts,
    InterruptRow,
    Loaded,
    NewRun,
    QuestionStatus,
    Record,
    RecordType,
    RunRow,
    StoredRecord,
    WorkerRow,
)
from perdure.core.states import Status, is_terminal, may_follow
from perdure.errors import AlreadyResumed, DurableConflictError, DurableNotFoundError, RunBusy
from perdure.store import rows
from perdure.store.driver import Session

_SPARE_CANDIDATES = 16
"""Candidates picked beyond the limit, since other claimants look at the same ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRequest:
    """Who takes which runs; see `RunStore.run_claim`."""

    worker_id: str
    run_ids: Sequence[str] | None
    runners: Sequence[str] | None
    dead_workers: Sequence[str]
    limit: int
    now: float | None

    def params(self, session: Session) -> dict[str, Any]:
        """Parameters of `run_candidates`, `run_candidates_named` and `run_take`."""
        return {
            "worker_id": self.worker_id,
            "run_ids": _listed(self.run_ids),
            "runners": _listed(self.runners),
            "dead_workers": list(self.dead_workers),
            "is_naming": self.run_ids is not None,
            "limit": self.limit + _SPARE_CANDIDATES,
            "now": session.now if self.now is None else self.now,
        }


# --- reads ----------------------------------------------------------------------------------------------


def load(session: Session, run_id: str) -> Loaded:
    """See `JournalStore.run_load`."""
    return Loaded(
        run=get(session, run_id),
        records=[StoredRecord._make(row) for row in session.all("record_load", {"run_id": run_id})],
        interrupts=[rows.interrupt_row(row) for row in session.all("interrupt_load", {"run_id": run_id})],
        now=session.now,
    )


def find(session: Session, run_id: str) -> RunRow | None:
    """See `RunStore.run_get`."""
    row = session.one("run_get", {"id": run_id})
    return None if row is None else rows.run_row(row, session.now)


def get(session: Session, run_id: str) -> RunRow:
    """A run that must exist."""
    run = find(session, run_id)
    if run is None:
        raise _unknown(run_id)
    return run


def candidates(session: Session, request: ClaimRequest) -> list[str]:
    """Ids of runs that look claimable, oldest first, without locks."""
    query = "run_candidates" if request.run_ids is None else "run_candidates_named"
    return [row[0] for row in session.all(query, request.params(session))]


def due_in(session: Session, runners: Sequence[str] | None) -> float | None:
    """See `RunStore.run_due_in`."""
    params = {"runners": _listed(runners), "dead_workers": [], "now": session.now}
    row = session.one("run_due_in", params)
    return None if row is None or row[0] is None else max(0.0, row[0])


def running_count(session: Session, runners: Sequence[str] | None, except_worker: str | None) -> int:
    """See `RunStore.run_running_count`."""
    row = session.one("run_running_count", {"runners": _listed(runners), "worker_id": except_worker})
    assert row is not None
    return row[0]


def facts(session: Session, worker_id: str) -> Facts:
    """See `RunStore.facts`."""
    params = {"worker_id": worker_id}
    return Facts(
        answers=[rows.interrupt_row(row) for row in session.all("facts_answers", params)],
        cancels=[row[0] for row in session.all("facts_cancels", params)],
    )


# --- claims ---------------------------------------------------------------------------------------------


def claim(session: Session, request: ClaimRequest) -> list[Claim]:
    """See `RunStore.run_claim`. A run somebody else has locked is passed over; the condition is checked
    again."""
    params = request.params(session)
    seen = candidates(session, request)
    if not seen:
        return []
    free = {run_id for (run_id,) in session.all("run_lock_free", {"run_ids": seen})}
    wanted = [run_id for run_id in seen if run_id in free][: request.limit]
    taken = {
        run_id: Claim(run_id=run_id, root_id=root_id, runner=runner, fence=fence)
        for run_id, root_id, runner, fence in session.all("run_take", {**params, "run_ids": wanted})
    }
    claims = [taken[run_id] for run_id in wanted if run_id in taken]
    # Said in the journal, since the run's row keeps only the last owner and the worker's row may go.
    _append_one_each(
        session,
        [
            (claim.run_id, claim.root_id, _status(Status.RUNNING, _owner(request.worker_id, claim.fence)))
            for claim in claims
        ],
    )
    return claims


# --- answers and decisions ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Answers:
    """What a person decided: interrupt ids with encoded answers, and what is recorded before them."""

    by_id: Mapping[str, str]
    answered_by: str | None
    records: Sequence[Record] = ()
    now: float | None = None


def answer(session: Session, run_id: str, given: Answers) -> RunRow:
    """See `JournalStore.interrupt_answer`."""
    now = session.now if given.now is None else given.now
    run = _lock(session, run_id)
    questions = [_open_question(session, run, interrupt_id) for interrupt_id in given.by_id]
    if given.records:
        _require_unowned(session, run)
        _append(session, run.run_id, run.root_id, given.records)
    records = [_answered(asked, given.answered_by) for asked in questions]
    if run.status == Status.WAITING:
        records.append(_status(Status.PENDING))
    last_seq = _append(session, run.run_id, run.root_id, records)
    for seq, asked in enumerate(questions, last_seq - len(records) + 1):
        values = {"answer": given.by_id[asked.interrupt_id], "answered_by": given.answered_by, "seq": seq, "now": now}
        session.run("interrupt_answer", {"id": asked.interrupt_id, "run_id": run_id, **values})
    session.run("run_answered", {"id": run_id, "now": now})
    return get(session, run_id)


def cancel(session: Session, run_id: str, cancelled_by: str | None, dead_workers: Sequence[str] = ()) -> RunRow:
    """See `RunStore.run_cancel`."""
    run = _lock(session, run_id)
    if is_terminal(run.status):
        return run
    records = [] if run.cancel_requested else [_cancel(cancelled_by)]
    if session.one("run_is_orphan", {"id": run_id, "dead_workers": list(dead_workers)}) is not None:
        _append(session, run.run_id, run.root_id, [*records, _status(Status.CANCELLED)])
        session.run("run_cancelled", {"id": run_id, "now": session.now})
        session.run("interrupt_withdraw", {"run_id": run_id})
    elif records:
        _append(session, run.run_id, run.root_id, records)
        session.run("run_cancel", {"id": run_id, "now": session.now})
    return get(session, run_id)


def retry(session: Session, run_id: str, drops: Sequence[Record]) -> RunRow:
    """See `RunStore.run_retry`."""
    run = _lock(session, run_id)
    _require(run, Status.FAILED, "retried")
    session.run("interrupt_reopen", {"run_id": run_id})
    return _continue(session, run, drops, attempts=1)


def repeat(session: Session, run_id: str, record: Record) -> RunRow:
    """See `RunStore.run_repeat`."""
    run = _lock(session, run_id)
    _require(run, Status.NEEDS_ATTENTION, "told to repeat an operation")
    return _continue(session, run, [record], attempts=0)


def reopen(session: Session, run_id: str, records: Sequence[Record] = ()) -> RunRow:
    """See `RunStore.run_reopen`."""
    run = _lock(session, run_id)
    if run.status != Status.NEEDS_ATTENTION:
        return run
    return _continue(session, run, records, attempts=0)


def patch(session: Session, run_id: str, records: Sequence[Record]) -> RunRow:
    """See `RunStore.run_patch`."""
    run = _lock(session, run_id)
    if run.status in (Status.COMPLETED, Status.CANCELLED):
        raise AlreadyResumed(run_id, f"run {run_id} is {run.status}; its state cannot be changed")
    if run.status == Status.FAILED:
        raise RunBusy(run_id, f"run {run_id} has failed; its state is changed together with a retry")
    _require_unowned(session, run)
    _append(session, run.run_id, run.root_id, records)
    return get(session, run_id)


def _continue(session: Session, run: RunRow, records: Sequence[Record], *, attempts: int) -> RunRow:
    assert may_follow(Status(run.status), Status.PENDING)
    _append(session, run.run_id, run.root_id, [*records, _status(Status.PENDING)])
    values = {"id": run.run_id, "attempts": attempts, "seq": run.seq, "now": session.now}
    session.run("run_continue", values)
    return get(session, run.run_id)


# --- new runs -------------------------------------------------------------------------------------------


def fork(session: Session, new: NewRun, records: Sequence[Record], interrupts: Sequence[InterruptRow]) -> None:
    """See `RunStore.run_fork`. The `submitted` record is made from `new` unless `records` begin with one."""
    if find(session, new.run_id) is not None:
        raise DurableConflictError(f"run {new.run_id} exists already")
    if not records or records[0].type != RecordType.SUBMITTED:
        records = [submitted(new), *records]
    params = rows.new_run(new, worker_id=new.worker_id, fence=1, seq=0, entry_n=0, now=session.now)
    if session.run("run_insert", params) == 0:
        raise DurableConflictError(f"run {new.run_id} was there before, and has been pruned; use another id")
    _append(session, new.run_id, new.root_id, records)
    session.many("interrupt_insert", [rows.interrupt(new.run_id, row) for row in interrupts])


def submitted(new: NewRun) -> Record:
    """The first record of a run: its input."""
    return Record(
        type=RecordType.SUBMITTED.value,
        kind=new.kind,
        name=new.runner,
        digest=new.input_digest,
        data=new.input_data,
    )


# --- workers --------------------------------------------------------------------------------------------


def worker_register(session: Session, worker: WorkerRow, lock: str) -> WorkerRow:
    """See `WorkerStore.worker_register`; `lock` is held already."""
    values = {
        "host": worker.host,
        "boot_id": worker.boot_id,
        "pid": worker.pid,
        "beat": worker.beat,
        "lock": lock,
    }
    session.run("worker_insert", {"id": worker.worker_id, "now": session.now, **values})
    return _worker(session, worker.worker_id)


def worker_end(session: Session, worker_id: str) -> int:
    """See `WorkerStore.worker_end`."""
    owned = session.all("run_lock_owned", {"worker_id": worker_id})
    running = [
        (run_id, root_id, _status(Status.PENDING)) for run_id, root_id, status in owned if status == Status.RUNNING
    ]
    if owned:
        run_ids = [run_id for run_id, _, _ in owned]
        session.run("run_release", {"run_ids": run_ids, "worker_id": worker_id, "now": session.now})
        _append_one_each(session, running)
    session.run("worker_end", {"id": worker_id, "now": session.now})
    return len(running)


def worker_find(session: Session, worker_id: str) -> WorkerRow | None:
    """One worker, ended or not."""
    row = session.one("worker_get", {"id": worker_id})
    return None if row is None else rows.worker_row(row)


def _worker(session: Session, worker_id: str) -> WorkerRow:
    worker = worker_find(session, worker_id)
    assert worker is not None
    return worker


# --- parts ----------------------------------------------------------------------------------------------


def _lock(session: Session, run_id: str) -> RunRow:
    row = session.one("run_lock", {"id": run_id})
    if row is None:
        raise _unknown(run_id)
    return rows.run_row(row, session.now)


def _append(session: Session, run_id: str, root_id: str, records: Sequence[Record]) -> int:
    """Append under the root's lock; returns the last number. Nothing to append takes no number."""
    if not records:
        return 0
    taken = session.one("seq_take", {"root_id": root_id, "count": len(records)})
    if taken is None:
        raise DurableConflictError(f"run {run_id} belongs to {root_id}, which does not exist")
    last_seq: int = taken[0]
    if root_id != run_id:
        session.run("seq_note", {"id": run_id, "seq": last_seq})
    session.insert_records(rows.record_rows(run_id, last_seq - len(records) + 1, records, session.now))
    return last_seq


def _append_one_each(session: Session, records: Sequence[tuple[str, str, Record]]) -> None:
    """Append a record each to many runs (run id, root id, record), in few statements if they are roots. Other roots are
    locked ascending."""
    roots = {run_id: record for run_id, root_id, record in records if run_id == root_id}
    if roots:
        taken = session.all("seq_take_one_each", {"run_ids": list(roots)})
        session.insert_records(
            [row for run_id, seq in taken for row in rows.record_rows(run_id, seq, [roots[run_id]], session.now)]
        )
    below = [each for each in records if each[0] != each[1]]
    for run_id, root_id, record in sorted(below, key=lambda each: each[1]):
        _append(session, run_id, root_id, [record])


def _open_question(session: Session, run: RunRow, interrupt_id: str) -> InterruptRow:
    row = session.one("interrupt_get", {"id": interrupt_id, "run_id": run.run_id})
    if row is None:
        raise DurableNotFoundError(f"run {run.run_id} has not asked question {interrupt_id}")
    asked = rows.interrupt_row(row)
    if is_terminal(run.status):
        raise AlreadyResumed(run.run_id, f"run {run.run_id} is {run.status}; question {interrupt_id} takes no answer")
    if asked.status != QuestionStatus.PENDING:
        raise AlreadyResumed(run.run_id, f"question {interrupt_id} of run {run.run_id} is {asked.status} already")
    return asked


def _require(run: RunRow, wanted: Status, what: str) -> None:
    """The run must be in this status for a person's decision."""
    if run.status == wanted:
        return
    if run.status in (Status.COMPLETED, Status.CANCELLED):
        raise AlreadyResumed(run.run_id, f"run {run.run_id} is {run.status}; it cannot be {what}")
    if run.worker_id is not None:
        raise RunBusy(run.run_id)
    raise RunBusy(run.run_id, f"run {run.run_id} is {run.status}; only one that is {wanted} can be {what}")


def _require_unowned(session: Session, run: RunRow) -> None:
    """Nobody may be running it: who does has bound the state to its nodes already."""
    if session.one("run_is_orphan", {"id": run.run_id, "dead_workers": []}) is None:
        raise RunBusy(run.run_id)


def _answered(asked: InterruptRow, answered_by: str | None) -> Record:
    data = codec.encode({"interrupt_id": asked.interrupt_id, "answered_by": answered_by})
    return Record(type=RecordType.ANSWERED.value, path=asked.path, index=asked.index, data=data)


def _cancel(cancelled_by: str | None) -> Record:
    return Record(type=RecordType.CANCEL.value, data=codec.encode({"cancelled_by": cancelled_by}))


def _status(status: Status, data: str | None = None) -> Record:
    return Record(type=RecordType.STATUS.value, outcome=status.value, data=data)


def _owner(worker_id: str, fence: int) -> str:
    return codec.encode({"worker": worker_id, "fence": fence})


def _listed(values: Sequence[str] | None) -> list[str] | None:
    return None if values is None else list(values)


def _unknown(run_id: str) -> DurableNotFoundError:
    return DurableNotFoundError(f"there is no run {run_id} in this store")
