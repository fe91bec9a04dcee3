"""The store's driver over a third-party checkpointer. Decides when a row is put, when a question is made pending or
claimed, and what an exception of the checkpointer means; what a transaction does is the store's own code, on a mirror.

Everything that calls the checkpointer runs in the writer's thread, one call after the other.

One question of a run is pending in the checkpointer at a time. A row whose transaction asks the first one is put by
`record_interrupt`, both at once. When the pending one is open no more, the row that says so is put first and the
pending row is claimed after that: an answer is never lost in between, and who has put the row has answered. Then the
next question is announced, with a row of its own. What a crash left undone here is done when the run is read again.
"""

from __future__ import annotations

import collections
import logging
import secrets
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from perdure.checkpointers import foreign_rows
from perdure.checkpointers.foreign_mirror import Mirror, add_note
from perdure.checkpointers.foreign_parts import parts_of
from perdure.checkpointers.foreign_rows import Columns, Draft, Link, Row
from perdure.checkpointers.protocol import NO_LIMIT, Checkpoint, Checkpointer, PendingInterrupt
from perdure.core.records import WorkerRow
from perdure.core.states import Status, is_terminal
from perdure.errors import DurableStorageError, PerdureError
from perdure.store.driver import Batch, Session
from perdure.store.sqlite_group import SqliteSession, insert, write_batch

T = TypeVar("T")

_ATTEMPTS = 100
"""How often others may be first before we give up."""
_KEPT_ENDED = 200
"""Runs that have ended and are still remembered; others are read again when they are named."""
_log = logging.getLogger("perdure.store")


class Overtaken(Exception):
    """Somebody else has put the row that was to be ours."""

    def __init__(self, run_id: str) -> None:
        super().__init__(run_id)
        self.run_id = run_id


@dataclass(slots=True)
class Tail:
    """The end of a run's rows, as known here."""

    next_seq: int = 1
    token: str | None = None
    row_id: str | None = None
    count: int = 0
    announced: str | None = None
    """The question that is pending in the checkpointer."""
    status: str = ""
    worker_id: str | None = None

    def follow(self, row: Row) -> None:
        """Another row."""
        self.next_seq, self.token, self.row_id = row.next_seq, row.link.token, row.row_id
        self.announced = row.link.announced
        self.status, self.worker_id = row.draft.run["status"], row.draft.run.get("worker_id")
        self.count += 1


@dataclass(frozen=True, slots=True)
class Outside(Generic[T]):
    """Work for the writer's thread that is no transaction."""

    call: Callable[[], T]

    def __call__(self, session: Session) -> T:
        return self.call()


class ForeignDriver:
    """See `store.driver.Driver`."""

    kind = "foreign"
    can_inline = False
    beat_s = 1.0
    missed_s = 0.0

    def __init__(self, checkpointer: Checkpointer) -> None:
        self.url = f"foreign:{type(checkpointer).__name__}"
        self.commit_count = 0
        """Rows that came to stand."""
        self.news_count = 0
        """Those of them that others wait for: a run's status, a question, anything from outside."""
        self._checkpointer = checkpointer
        self._mirror = Mirror(self.url)
        self._tails: dict[str, Tail] = {}
        self._ended: collections.deque[str] = collections.deque()
        self._living: set[str] = set()
        self._name = secrets.token_hex(6)
        self._token_count = 0

    def setup(self) -> None:
        """Nothing here: `prepare` is for the writer's thread."""

    def prepare(self) -> None:
        """Make the checkpointer usable."""
        self._call("setup")

    # --- writing ----------------------------------------------------------------------------------------

    def write(self, batches: Sequence[Batch], *, is_inline: bool = False) -> None:
        """One batch after the other, each refused for itself: there is no transaction over several runs."""
        for batch in batches:
            try:
                self._write(batch)
            except PerdureError as error:
                batch.refusal = error
            except Exception as error:
                _log.exception("a row of run %s could not be made", batch.lane.run_id)
                batch.refusal = DurableStorageError(f"{self.url}: {type(error).__name__}: {error}")
                batch.refusal.__cause__ = error

    def _write(self, batch: Batch) -> None:
        if batch.create is not None:
            if batch.create.root_id != batch.create.run_id:
                raise DurableStorageError(f"{self.url} holds no runs below others")
            self.fetch(batch.create.run_id)
        is_news = batch.create is not None or batch.change is not None or bool(batch.questions)
        for part in parts_of(batch):
            self._perform(lambda connection, now, part=part: _write_part(connection, part, now), is_news=is_news)
            batch.status, batch.refusal = part.status, part.refusal
            if batch.refusal is not None:
                return

    def transact(self, work: Callable[[Session], T]) -> T:
        if isinstance(work, Outside):
            return work.call()
        return self._perform(lambda connection, now: work(SqliteSession(connection, now)), is_news=True)

    def _perform(self, work: Callable[[sqlite3.Connection, float], T], *, is_news: bool) -> T:
        """Try it, put what it changed, take that into account. From the start again if somebody else was first."""
        for _ in range(_ATTEMPTS):
            result, changes = self._mirror.attempt(work)
            self._mirror.apply_workers(changes.workers)
            self._living -= {worker["id"] for worker in changes.workers if worker["ended_at"] is not None}
            try:
                for draft in changes.drafts:
                    self._store(draft, is_news)
            except Overtaken as overtaken:
                self._catch_up(overtaken.run_id)
                continue
            return result
        raise DurableStorageError(f"{self.url}: others were first {_ATTEMPTS} times; two processes write to one run")

    def _store(self, draft: Draft, is_news: bool) -> None:
        tail = self._tails.get(draft.run_id) or Tail()
        asks = draft.first_open if tail.announced is None else None
        self._token_count += 1
        link = Link(
            token=f"{self._name}-{self._token_count}",
            previous=tail.token,
            announced=asks["id"] if asks is not None else tail.announced,
        )
        text = foreign_rows.encode(draft, link)
        checkpoint = foreign_rows.view(draft, text, index=tail.count, parent_id=tail.row_id, asks=asks)
        self._put(checkpoint, None if asks is None else self._pending(checkpoint, asks), link)
        row = foreign_rows.decode(checkpoint)
        assert row is not None
        self._apply(draft.run_id, [row], is_news)
        self._settle(draft.run_id)

    def _pending(self, checkpoint: Checkpoint, asks: Columns) -> PendingInterrupt:
        is_new = checkpoint.step_type == "hitl_pause"
        name = checkpoint.node_id if is_new else self._mirror.name_at(asks["run_id"], asks["path"], asks["idx"])
        return foreign_rows.pending(checkpoint, asks, name)

    def _put(self, checkpoint: Checkpoint, pending: PendingInterrupt | None, link: Link) -> None:
        """Raises `Overtaken` if the row's id is somebody else's, `DurableStorageError` if nothing was stored."""
        try:
            if pending is None:
                self._checkpointer.put(checkpoint)
            else:
                self._checkpointer.record_interrupt(checkpoint, pending)
        except Exception as error:
            found = self._call("get_by_id", checkpoint.execution_id, checkpoint.checkpoint_id)
            if found is None:
                raise self._failed("put" if pending is None else "record_interrupt", error) from error
            if foreign_rows.token_of(found) != link.token:
                raise Overtaken(checkpoint.execution_id) from error
            # It was stored all the same.

    def _apply(self, run_id: str, found: Sequence[Row], is_news: bool) -> None:
        self._mirror.apply(found)
        tail = self._tails.setdefault(run_id, Tail())
        for row in found:
            tail.follow(row)
        self.commit_count += len(found)
        self.news_count += is_news
        if is_terminal(found[-1].draft.run["status"]):
            self._ended.append(run_id)
            self._forget_old()

    def _forget_old(self) -> None:
        while len(self._ended) > _KEPT_ENDED:
            run_id = self._ended.popleft()
            if run_id in self._tails and run_id not in self._ended and is_terminal(self._tails[run_id].status):
                self._forget(run_id)

    def _forget(self, run_id: str) -> None:
        self._mirror.forget(run_id)
        del self._tails[run_id]

    # --- questions --------------------------------------------------------------------------------------

    def announced(self, run_id: str) -> str | None:
        """The question of a run that is pending in the checkpointer, if any. From any thread."""
        tail = self._tails.get(run_id)
        return None if tail is None else tail.announced

    def _settle(self, run_id: str) -> None:
        """Claim the pending question if it is open no more, and announce the next. The rows say already what is so:
        what fails here is done later."""
        try:
            tail = self._tails[run_id]
            opened = self._mirror.open_questions(run_id)
            if tail.announced is not None and all(each["id"] != tail.announced for each in opened):
                self._claim(run_id, tail)
                opened = self._mirror.open_questions(run_id)
            if tail.announced is None and opened:
                self._announce(run_id, opened[0])
        except DurableStorageError as error:
            _log.warning("a question of run %s is to be settled later: %s", run_id, error)

    def _claim(self, run_id: str, tail: Tail) -> None:
        claimed = self._call("delete_pending_interrupt_atomic", run_id)
        announced, tail.announced = tail.announced, None
        if claimed is not None and claimed.interrupt_id not in ("", announced):
            # Another process has announced the next one meanwhile: read that, and announce it again.
            self._catch_up(run_id)
            tail.announced = None

    def _announce(self, run_id: str, asks: Columns) -> None:
        self._perform(
            lambda connection, now: add_note(connection, now, run_id, "asked", asks["path"], asks["idx"]),
            is_news=True,
        )

    # --- reading ----------------------------------------------------------------------------------------

    def is_run_here(self, run_id: str) -> bool:
        """Whether a worker of this process owns the run. Then it changes here only; if that is not so, its next row
        will find its id taken. From any thread."""
        tail = self._tails.get(run_id)
        return tail is not None and tail.worker_id in self._living

    def fetch(self, run_id: str) -> None:
        """Know a run as the checkpointer has it. In the writer's thread."""
        tail = self._tails.get(run_id)
        if tail is None:
            self._load(run_id)
            return
        if self.is_run_here(run_id):
            return
        last: Checkpoint | None = self._call("get_last", run_id)
        if last is None:
            self._forget(run_id)
        elif tail.status not in (Status.COMPLETED, Status.CANCELLED) and foreign_rows.token_of(last) != tail.token:
            self._catch_up(run_id)

    def fetch_pending(self, limit: int) -> None:
        """Know the runs that have a question pending, whoever asked it. In the writer's thread."""
        for pending in self._call("list_pending_interrupts", limit=limit):
            if pending.execution_id in self._tails:
                continue
            try:
                self._load(pending.execution_id, is_ours=False)
            except DurableStorageError as error:  # one that cannot be read hides no other
                _log.warning("a question of run %s is not shown: %s", pending.execution_id, error)

    def _load(self, run_id: str, *, is_ours: bool = True) -> None:
        rows = self._listed(run_id, is_ours)
        if not rows:
            return
        if self._call("get_by_id", run_id, foreign_rows.row_id(run_id, rows[-1].next_seq)) is not None:
            # Cut short, or put just now.
            rows = self._listed(run_id, is_ours)
            if self._call("get_by_id", run_id, foreign_rows.row_id(run_id, rows[-1].next_seq)) is not None:
                raise foreign_rows.lost(run_id, rows[-1].next_seq)
        self._apply(run_id, rows, is_news=True)
        self._settle(run_id)

    def _listed(self, run_id: str, is_ours: bool) -> list[Row]:
        found = self._call("list", run_id, limit=NO_LIMIT)
        rows = [row for row in map(foreign_rows.decode, found) if row is not None]
        if found and not rows and is_ours:
            raise DurableStorageError(f"execution {run_id!r} has rows in {self.url} that Perdure has not written")
        return foreign_rows.ordered(run_id, rows)

    def _catch_up(self, run_id: str) -> None:
        """Read the rows that others have put."""
        tail = self._tails.get(run_id)
        if tail is None:
            self._load(run_id)
            return
        while True:
            found = self._call("get_by_id", run_id, foreign_rows.row_id(run_id, tail.next_seq))
            row = None if found is None else foreign_rows.decode(found)
            if row is None:
                return
            if row.link.previous != tail.token:
                raise foreign_rows.replaced(row.row_id)
            self._apply(run_id, [row], is_news=True)

    def read(self, work: Callable[[Session], T]) -> T:
        return self._mirror.read(work)

    # --- the checkpointer -------------------------------------------------------------------------------

    def _call(self, method: str, *args: Any, **options: Any) -> Any:
        try:
            return getattr(self._checkpointer, method)(*args, **options)
        except Exception as error:
            raise self._failed(method, error) from error

    def _failed(self, method: str, error: Exception) -> DurableStorageError:
        return DurableStorageError(f"{method}() of {self.url} failed: {type(error).__name__}: {error}")

    def reclaim(self) -> None:
        """The room is the checkpointer's."""

    # --- news and workers -------------------------------------------------------------------------------

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """There is no way to hear of other processes."""
        return lambda: None

    def is_living(self, worker_id: str) -> bool:
        """Whether a worker is one of this process that has not ended. From any thread."""
        return worker_id in self._living

    def worker_lock(self, worker_id: str) -> str:
        if worker_id in self._living:
            raise DurableStorageError(f"worker {worker_id} is registered already")
        self._living.add(worker_id)
        return f"process:{self._name}"

    def worker_unlock(self, worker_id: str) -> None:
        self._living.discard(worker_id)

    def worker_sweep(self, worker: WorkerRow) -> None:
        """Nothing is left of one."""

    def worker_probe(self, worker: WorkerRow) -> str:
        if worker.lock is None:
            return "unknown"
        return "alive" if worker.worker_id in self._living else "dead"

    def worker_beat(self, worker_id: str) -> bool:
        return self._mirror.beat(worker_id)

    # --- the end ----------------------------------------------------------------------------------------

    def abandon(self) -> None:
        self._mirror.abandon()
        self._living = set()

    def close(self) -> None:
        self._mirror.close()


def _write_part(connection: sqlite3.Connection, part: Batch, now: float) -> None:
    part.status = part.refusal = None
    pending: list[tuple[Any, ...]] = []
    write_batch(connection, part, now, pending, set())
    insert(connection, pending)
