"""The store over any third-party checkpointer: the engine that drives runs on a database drives them there, too.

Decides which run is to be read before something is done with it, and which question is shown; how rows are written is
`foreign_driver`, what they hold `foreign_rows`, what is known here `foreign_mirror`. Called by the layers above through
`open_foreign`.

What is the same as on a database: every record, question, answer and status is a row before anybody sees it, a run
goes on from its rows in a new process, and a recorded operation is never performed again. What is not:

- Who runs a run is known in this process only. To others it looks like nobody's, and whoever names it takes it. Over a
  checkpointer whose `put` refuses an id that is taken, the one who was overtaken is found out at the next row and
  records nothing more; over one that replaces rows, a run that two processes have written is refused when it is read.
- Nobody is told of what other processes do, and runs of theirs are found when they are named, or have a question
  pending. A worker sees the runs that this process has touched.
- Of several open questions of a run one is shown at a time, and the next one when that is answered.
- Each row is a call of its own: nothing is committed in groups, and who reads may see the first of an entry's rows.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn, cast

from perdure.checkpointers.foreign_driver import ForeignDriver, Outside
from perdure.checkpointers.memory import MemoryCheckpointer
from perdure.checkpointers.protocol import NO_LIMIT, Checkpointer
from perdure.checkpointers.sql import SqlCheckpointer
from perdure.core.records import (
    Claim,
    InterruptRow,
    Loaded,
    NewRun,
    QuestionStatus,
    Record,
    RunFilter,
    RunRow,
    StoredRecord,
)
from perdure.errors import DurableStorageError, InvalidInputError
from perdure.store.sql_store import SqlStore
from perdure.store.writer import Writer

_METHODS = tuple(sorted(name for name in vars(Checkpointer) if not name.startswith("_")))


class ForeignCheckpointerWarning(UserWarning):
    """A third-party checkpointer drives runs; the message says what it cannot promise."""


class ForeignStore(SqlStore):
    """See `store.base.Store`, and the module for what is not the same. Opening blocks; use `open_foreign`."""

    def __init__(self, checkpointer: Checkpointer) -> None:
        if isinstance(checkpointer, SqlCheckpointer):
            raise InvalidInputError(
                "checkpointer",
                f"{type(checkpointer).__name__} has a store of its own: runs go there, not into its rows",
            )
        missing = [name for name in _METHODS if not callable(getattr(checkpointer, name, None))]
        if missing:
            raise InvalidInputError(
                "checkpointer", f"{type(checkpointer).__name__} has no {', '.join(missing)}: see Checkpointer"
            )
        self.checkpointer = checkpointer
        self._foreign = ForeignDriver(checkpointer)
        super().__init__(self._foreign)
        self.checkpoints = self.maintenance = self.replica = cast(Any, _Elsewhere(self.url))
        finalizer = weakref.finalize(self, _end_writer, self._writer)
        finalizer.atexit = False
        try:
            self._writer.perform_now(Outside(self._foreign.prepare))
        except BaseException:
            self.close_now()
            raise

    def is_open(self) -> bool:
        """Whether it was neither closed nor left behind in a parent process."""
        return self._unusable is None

    # --- runs that are named ----------------------------------------------------------------------------

    async def run_load(self, run_id: str) -> Loaded:
        await self._fetch(run_id)
        loaded = await super().run_load(run_id)
        return replace(loaded, run=self._shown(loaded.run))

    async def run_get(self, run_id: str) -> RunRow | None:
        await self._fetch(run_id)
        found = await super().run_get(run_id)
        return None if found is None else self._shown(found)

    async def record_list(self, run_id: str, *, after: int = 0, limit: int = 1000) -> list[StoredRecord]:
        await self._fetch(run_id)
        return await super().record_list(run_id, after=after, limit=limit)

    async def interrupt_answer(
        self,
        run_id: str,
        answers: Mapping[str, str],
        *,
        answered_by: str | None = None,
        records: Sequence[Record] = (),
        now: float | None = None,
    ) -> RunRow:
        await self._fetch(run_id)
        return self._shown(
            await super().interrupt_answer(run_id, answers, answered_by=answered_by, records=records, now=now)
        )

    async def run_cancel(
        self, run_id: str, *, cancelled_by: str | None = None, dead_workers: Sequence[str] = ()
    ) -> RunRow:
        await self._fetch(run_id)
        return self._shown(await super().run_cancel(run_id, cancelled_by=cancelled_by, dead_workers=dead_workers))

    async def run_retry(self, run_id: str, drops: Sequence[Record]) -> RunRow:
        await self._fetch(run_id)
        return await super().run_retry(run_id, drops)

    async def run_repeat(self, run_id: str, record: Record) -> RunRow:
        await self._fetch(run_id)
        return await super().run_repeat(run_id, record)

    async def run_reopen(self, run_id: str, records: Sequence[Record] = ()) -> RunRow:
        await self._fetch(run_id)
        return self._shown(await super().run_reopen(run_id, records))

    async def run_patch(self, run_id: str, records: Sequence[Record]) -> RunRow:
        await self._fetch(run_id)
        return self._shown(await super().run_patch(run_id, records))

    async def run_fork(self, new: NewRun, records: Sequence[Record], interrupts: Sequence[InterruptRow]) -> None:
        await self._fetch(new.run_id)
        await super().run_fork(new, records, interrupts)

    async def run_claim(
        self,
        worker_id: str,
        *,
        run_ids: Sequence[str] | None = None,
        runners: Sequence[str] | None = None,
        dead_workers: Sequence[str] = (),
        limit: int = 1,
        now: float | None = None,
    ) -> list[Claim]:
        for run_id in run_ids or ():
            await self._fetch(run_id)
        claims: list[Claim] = []
        while len(claims) < limit:  # a row each: what was claimed before one fails is claimed
            try:
                found = await super().run_claim(
                    worker_id, run_ids=run_ids, runners=runners, dead_workers=dead_workers, limit=1, now=now
                )
            except DurableStorageError:
                if not claims:
                    raise
                break
            claims += found
            if not found or not self._foreign.is_living(worker_id):  # what a dead one claims may be claimed at once
                break
        return claims

    async def run_list(self, runs: RunFilter) -> list[RunRow]:
        """Those that this process has touched."""
        return [self._shown(found) for found in await super().run_list(runs)]

    async def interrupt_list(
        self, *, run_id: str | None = None, status: str | None = "pending", limit: int = 100
    ) -> list[InterruptRow]:
        """Of a run's open questions only the one that is being asked: an answer without an address is for that one."""
        if run_id is not None:
            await self._fetch(run_id)
        else:
            await self._outside(lambda: self._foreign.fetch_pending(limit))
        rows = await super().interrupt_list(run_id=run_id, status=status, limit=NO_LIMIT)
        asked = self._asked(rows)
        return [row for row in rows if row.status != QuestionStatus.PENDING or row.interrupt_id in asked][:limit]

    def _asked(self, rows: Sequence[InterruptRow]) -> set[str]:
        by_run: dict[str, list[str]] = {}
        for row in rows:
            if row.status == QuestionStatus.PENDING:
                by_run.setdefault(row.run_id, []).append(row.interrupt_id)
        announced = {run_id: self._foreign.announced(run_id) for run_id in by_run}
        return {name if (name := announced[run_id]) in opened else opened[0] for run_id, opened in by_run.items()}

    def _shown(self, run: RunRow) -> RunRow:
        """A worker of another process owns nothing, as far as anybody here can tell."""
        if run.worker_id is None or self._foreign.is_living(run.worker_id):
            return run
        return replace(run, worker_id=None)

    async def _fetch(self, run_id: str) -> None:
        # Who reads a run that is run here must not wait for a row that is just being put.
        if not self._foreign.is_run_here(run_id):
            await self._outside(lambda: self._foreign.fetch(run_id))

    async def _outside(self, call: Callable[[], Any]) -> None:
        await self._writer.perform(Outside(call))

    # --- news -------------------------------------------------------------------------------------------

    def subscribe(self, callback: Callable[[], None], *, is_foreign_only: bool = False) -> Callable[[], None]:
        """Engines of one process share this store, so what one of them has committed is news to the others too, if it
        is more than another step of a run."""
        driver = self._foreign
        seen = -1

        def tell() -> None:
            nonlocal seen
            count = driver.news_count if is_foreign_only else driver.commit_count
            if count != seen:
                seen = count
                callback()

        return super().subscribe(tell)


class _Elsewhere:
    """In place of what a SQL store keeps beside its runs: that is the checkpointer's own business."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __getattr__(self, name: str) -> NoReturn:
        raise DurableStorageError(f"{name} is not done through {self._url}: use the checkpointer itself")


def open_foreign(checkpointer: Checkpointer) -> ForeignStore:
    """The store over a checkpointer: one for each object, since who runs what is known in it only. Blocks (it calls
    `setup`): call it before the loop runs or in a thread.

    Raises `InvalidInputError` for an object without the 13 methods, `DurableStorageError` if `setup` fails. Warns with
    a `ForeignCheckpointerWarning`, once for each object, unless nothing was to last anyway (`MemoryCheckpointer`).
    """
    with _opening:
        known = _stores.get(id(checkpointer))
        if known is not None and known.is_open():
            return known
        store = ForeignStore(checkpointer)
        _stores[id(checkpointer)] = store
    if not isinstance(checkpointer, MemoryCheckpointer):
        warnings.warn(
            f"{type(checkpointer).__name__} drives runs in this process only: other processes cannot see who runs an "
            "execution. Run, resume and cancel each in one process at a time; otherwise an operation may be performed "
            "twice, a lost owner may go on, and an end may be written twice. Open questions of one execution are asked "
            "one after the other, and a run that has lost rows (prune) is refused",
            ForeignCheckpointerWarning,
            stacklevel=2,
        )
    return store


_opening = threading.Lock()
_stores: weakref.WeakValueDictionary[int, ForeignStore] = weakref.WeakValueDictionary()
"""By the id of the checkpointer, which lives as long as its store does."""


def _end_writer(writer: Writer) -> None:
    """Nobody has the store any more: its thread ends by itself, nobody waits for it."""
    threading.Thread(target=writer.close, name="perdure-ending", daemon=True).start()
