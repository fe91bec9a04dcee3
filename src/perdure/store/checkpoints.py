"""Checkpoints, questions and results that people keep by hand: the transactions. Decides order, claims and what
closes a question; both databases run these.

Whoever writes into an execution first takes the lock of its row; a run's lock is taken before it, never behind it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from perdure.core.records import Loaded
from perdure.errors import DurableConflictError, DurableNotFoundError
from perdure.store import rows, transactions
from perdure.store.driver import Session
from perdure.store.kept import CLAIM_S, Execution, KeptCheckpoint, KeptQuestion, OpenQuestion

_NUL_OR_SURROGATE = re.compile(
    r"(?<!\\)((?:\\\\)*)"  # an escape begins behind an even number of backslashes
    r"(?:(\\ud[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2})|\\(u0000|ud[89a-f][0-9a-f]{2}))"
)


# --- checkpoints ----------------------------------------------------------------------------------------


def put(session: Session, row: KeptCheckpoint, question: KeptQuestion | None = None) -> None:
    """See `CheckpointStore.checkpoint_put`."""
    now = session.now
    taken = session.one("execution_advance", {"id": row.run_id, "status": row.status, "now": now})
    assert taken is not None
    after_seq = _position(session, row.run_id)
    if session.one("checkpoint_get", {"id": row.checkpoint_id}) is not None or _is_place(row, after_seq):
        raise DurableConflictError(f"checkpoint {row.checkpoint_id} exists already; every checkpoint needs its own id")
    values = {"id": row.checkpoint_id, "run_id": row.run_id, "seq": taken[0], "after_seq": after_seq, "now": now}
    content = {"status": row.status, "content": row.content, "shown": shown(row.content), "created_at": row.created_at}
    session.run("pending_answered", {"run_id": row.run_id})
    session.run("checkpoint_insert", values | content)
    if question is not None:
        _ask(session, question, taken[0])


def _position(session: Session, run_id: str) -> int:
    found = session.one("run_position", {"id": run_id})
    return 0 if found is None else found[0]


def _is_place(row: KeptCheckpoint, last_seq: int) -> bool:
    """Whether the id is that of a checkpoint which a run's journal has."""
    run_id, _, place = row.checkpoint_id.rpartition(":")
    return run_id == row.run_id and place.isdecimal() and int(place) <= last_seq


def _ask(session: Session, question: KeptQuestion, seq: int) -> None:
    if session.one("pending_get", {"id": question.interrupt_id}) is not None:
        raise DurableConflictError(f"question {question.interrupt_id} exists already; every question needs its own id")
    values = {"id": question.interrupt_id, "run_id": question.run_id, "checkpoint_id": question.checkpoint_id}
    session.run("pending_insert", values | {"seq": seq, "content": question.content, "now": session.now})


def shown(content: str) -> str:
    """Encoded text as JSONB takes it: NUL and lone surrogates are there as the characters of their escapes. For people;
    nothing reads it back."""
    if "\\u0000" not in content and "\\ud" not in content:
        return content
    return _NUL_OR_SURROGATE.sub(_spelled, content)


def _spelled(hit: re.Match[str]) -> str:
    before, pair, lone = hit.groups()
    return before + (pair or "\\\\" + lone)


def get(session: Session, run_id: str, checkpoint_id: str) -> KeptCheckpoint | None:
    """See `CheckpointStore.checkpoint_get`."""
    row = session.one("checkpoint_get", {"id": checkpoint_id})
    found = None if row is None else rows.kept_checkpoint(row)
    return found if found is not None and found.run_id == run_id else None


def load(session: Session, run_id: str, limit: int, *, is_newest: bool) -> Execution:
    """See `CheckpointStore.execution_load`."""
    query = "checkpoint_newest" if is_newest else "checkpoint_oldest"
    kept = [rows.kept_checkpoint(row) for row in session.all(query, {"run_id": run_id, "limit": limit})]
    return Execution(run=_run(session, run_id), kept=kept[::-1] if is_newest else kept)


def _run(session: Session, run_id: str) -> Loaded | None:
    return None if transactions.find(session, run_id) is None else transactions.load(session, run_id)


# --- what steps wrote -----------------------------------------------------------------------------------


def put_writes(session: Session, run_id: str, checkpoint_id: str, writes: Sequence[str]) -> None:
    """See `CheckpointStore.write_put`."""
    session.one("execution_lock", {"id": run_id})
    place = KeptCheckpoint(checkpoint_id=checkpoint_id, run_id=run_id, status="", content="")
    if get(session, run_id, checkpoint_id) is None and not _is_place(place, _position(session, run_id)):
        raise DurableNotFoundError(f"execution {run_id} has no checkpoint {checkpoint_id}")
    names = {"run_id": run_id, "checkpoint_id": checkpoint_id}
    counted = session.one("write_count", names)
    assert counted is not None
    session.many("write_insert", [names | {"idx": n, "data": data} for n, data in enumerate(writes, counted[0])])


def list_writes(session: Session, run_id: str, checkpoint_id: str) -> list[str]:
    """See `CheckpointStore.write_list`."""
    return [row[0] for row in session.all("write_list", {"run_id": run_id, "checkpoint_id": checkpoint_id})]


# --- questions ------------------------------------------------------------------------------------------


def list_open(session: Session, limit: int, now: float | None = None) -> list[OpenQuestion]:
    """See `CheckpointStore.pending_list`."""
    at = session.now if now is None else now
    return _oldest(session, ("interrupt_unclaimed", "pending_list"), {"limit": limit, "lapsed_at": at - CLAIM_S})


def claim(session: Session, run_id: str, now: float | None = None) -> OpenQuestion | None:
    """See `CheckpointStore.pending_claim`."""
    at = session.now if now is None else now
    # Who comes at the same time waits here, and then sees what was claimed.
    session.one("run_lock", {"id": run_id})
    session.one("execution_lock", {"id": run_id})
    queries = ("interrupt_unclaimed_of", "pending_list_of")
    for asked in _oldest(session, queries, {"run_id": run_id, "limit": 1, "lapsed_at": at - CLAIM_S}):
        query = "pending_claim" if isinstance(asked, KeptQuestion) else "interrupt_claim"
        session.run(query, {"id": asked.interrupt_id, "now": at})
        return asked
    return None


def _oldest(session: Session, queries: tuple[str, str], params: dict[str, Any]) -> list[OpenQuestion]:
    """Questions of runs (first query) and kept ones (second), oldest first."""
    of_runs, kept = queries
    found: list[OpenQuestion] = [
        *(rows.interrupt_row(row) for row in session.all(of_runs, params)),
        *(rows.kept_question(row) for row in session.all(kept, params)),
    ]
    return sorted(found, key=lambda asked: asked.created_at)[: params["limit"]]


# --- results under keys ---------------------------------------------------------------------------------


def get_idempotent(session: Session, run_id: str, key: str) -> str | None:
    """See `CheckpointStore.idempotent_get`."""
    row = session.one("idempotent_get", {"run_id": run_id, "key": key})
    return None if row is None else row[0]


def put_idempotent(session: Session, run_id: str, key: str, data: str) -> None:
    """See `CheckpointStore.idempotent_put`."""
    if transactions.find(session, run_id) is None:
        # So that it is pruned one day, as what else is kept.
        session.run("execution_touch", {"id": run_id, "now": session.now})
    session.run("idempotent_put", {"run_id": run_id, "key": key, "data": data, "now": session.now})
