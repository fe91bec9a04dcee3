"""What a connected plane has not acknowledged yet: the transactions. Decides what is sent again and what never is.

A high-water mark for each run and each kept execution, and rows of `replica` for what was acknowledged beyond it or set
aside; the journal itself is not written to. A run that is over and acknowledged is not looked at any more, until it is
retried. Marks only ever rise, so they may be computed outside of the transaction that writes them.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perdure.core import checkpoints
from perdure.store import rows, transactions
from perdure.store.driver import Session
from perdure.store.kept import KeptCheckpoint, Unsynced

_QUERIES = {False: ("unsynced_runs", "run_synced_seq", "run_synced"),
            True: ("unsynced_executions", "execution_synced_seq", "execution_synced")}  # fmt: skip
"""By whether it is kept by hand."""
_PAGE = 1000
"""So many kept rows are looked at for one source in one call."""


@dataclass(frozen=True, slots=True)
class Source:
    """A run or a kept execution that has something beyond its mark."""

    id: str
    is_kept: bool
    synced_seq: int
    project_id: str | None = None


@dataclass(frozen=True, slots=True)
class Mark:
    """How far a source is acknowledged."""

    source: Source
    seq: int


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a checkpoint is."""

    checkpoint_id: str
    run_id: str
    seq: int
    is_kept: bool


# --- reading --------------------------------------------------------------------------------------------


def unsynced(session: Session, limit: int, project_id: str | None) -> tuple[list[Unsynced], list[Mark]]:
    """At most `limit` checkpoints, and the marks of sources in which nothing is left to be sent."""
    found: list[Unsynced] = []
    marks: list[Mark] = []
    for source in _sources(session, limit, project_id):
        if limit <= 0:
            break
        part, mark = _look(session, source, limit)
        if part is None:
            marks.append(mark)
        else:
            found.append(part)
            limit -= len(part.seqs) + len(part.kept)
    return found, marks


def marks(session: Session, ids: Collection[tuple[str, bool]]) -> list[Mark]:
    """How far these runs (or kept executions: True) are acknowledged, if further than was known."""
    found: list[Mark] = []
    for id, is_kept in sorted(ids):
        row = session.one(_QUERIES[is_kept][1], {"id": id})
        if row is not None and row[1] is not None:
            source = Source(id, is_kept, row[1])
            found.append(_look(session, source, 1)[1])
    return [mark for mark in found if mark.seq > mark.source.synced_seq]


def _sources(session: Session, limit: int, project_id: str | None) -> Iterator[Source]:
    """Oldest first."""
    params = {"limit": limit, "project_id": project_id}
    pages = [
        [(created_at, Source(id, is_kept, synced_seq, project))
         for id, synced_seq, project, created_at in session.all(_QUERIES[is_kept][0], params)]
        for is_kept in (False, True)
    ]  # fmt: skip
    for _, source in heapq.merge(*pages, key=lambda each: each[0]):
        yield source


def _look(session: Session, source: Source, limit: int) -> tuple[Unsynced | None, Mark]:
    """What is to be sent of a source, at most `limit`, and how far it is acknowledged."""
    done = {row[0] for row in session.all("replica_list", {"run_id": source.id})}
    return (_look_kept if source.is_kept else _look_run)(session, source, done, limit)


def _look_run(session: Session, source: Source, done: set[str], limit: int) -> tuple[Unsynced | None, Mark]:
    loaded = transactions.load(session, source.id)
    points = [point for point in checkpoints.checkpoints(loaded) if point.seq > source.synced_seq]
    left = [point.seq for point in points if point.checkpoint_id not in done]
    if not left:
        return None, Mark(source, loaded.run.seq)
    part = Unsynced(project_id=source.project_id, run=loaded, seqs=frozenset(left[:limit]))
    return part, Mark(source, left[0] - 1)


def _look_kept(session: Session, source: Source, done: set[str], limit: int) -> tuple[Unsynced | None, Mark]:
    params = {"run_id": source.id, "after": source.synced_seq, "limit": _PAGE}
    points = [rows.kept_checkpoint(row) for row in session.all("checkpoint_after", params)]
    left = [point for point in points if point.checkpoint_id not in done]
    if not left:
        return None, Mark(source, points[-1].seq if points else source.synced_seq)
    part = Unsynced(project_id=source.project_id, run=None, kept=tuple(left[:limit]))
    return part, Mark(source, left[0].seq - 1)


# --- writing --------------------------------------------------------------------------------------------


def acknowledge(session: Session, checkpoint_ids: Sequence[str]) -> set[tuple[str, bool]]:
    """Note that the plane has these; returns whose marks may rise. Unknown ids are passed over."""
    return _note(session, "replica_acknowledge", {each: {} for each in checkpoint_ids})


def quarantine(session: Session, reasons: Mapping[str, str]) -> set[tuple[str, bool]]:
    """Note that the plane will never take these, and why."""
    return _note(session, "replica_quarantine", {each: {"reason": reason} for each, reason in reasons.items()})


def reasons(session: Session, run_id: str) -> dict[str, str]:
    """See `ReplicaStore.quarantine_list`."""
    return dict(session.all("replica_reasons", {"run_id": run_id}))


def raise_marks(session: Session, found: Sequence[Mark]) -> None:
    """Write marks; what they cover needs no row of its own any more."""
    for mark in found:
        values = {"id": mark.source.id, "seq": mark.seq, "is_kept": mark.source.is_kept}
        session.run(_QUERIES[mark.source.is_kept][2], values)
        session.run("replica_forget", values)


def _note(session: Session, query: str, ids: Mapping[str, Mapping[str, Any]]) -> set[tuple[str, bool]]:
    places = [place for each in sorted(ids) if (place := _place(session, each, has_reason=bool(ids[each]))) is not None]
    params = [
        {
            "checkpoint_id": place.checkpoint_id,
            "run_id": place.run_id,
            "seq": place.seq,
            "is_kept": place.is_kept,
            "now": session.now,
            **ids[place.checkpoint_id],
        }
        for place in places
    ]
    session.many(query, params)
    return {(place.run_id, place.is_kept) for place in places}


def _place(session: Session, checkpoint_id: str, *, has_reason: bool) -> _Place | None:
    """Where a checkpoint is; None if it is nowhere, or if what is to be said of it is known already."""
    row = session.one("checkpoint_get", {"id": checkpoint_id})
    if row is not None:
        kept: KeptCheckpoint = rows.kept_checkpoint(row)
        place = _Place(checkpoint_id, kept.run_id, kept.seq, True)
    else:
        run_id, _, seq = checkpoint_id.rpartition(":")
        if not seq.isdecimal():
            return None
        place = _Place(checkpoint_id, run_id, int(seq), False)
    known = session.one(_QUERIES[place.is_kept][1], {"id": place.run_id})
    if known is None or place.seq > known[0]:
        return None
    is_covered = known[1] is None or place.seq <= known[1]
    return None if is_covered and not has_reason else place
