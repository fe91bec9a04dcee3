"""The store over any driver. Decides which thread does what: writes go through the writer's queue, reads to a
pool.

Implements `base.Store`; the transactions themselves are in `transactions.py`, the SQL in `sql/`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from perdure.core.records import (
    Claim,
    Facts,
    InterruptRow,
    Loaded,
    NewRun,
    Record,
    RunFilter,
    RunRow,
    StoredRecord,
    WorkerRow,
)
from perdure.errors import DurableStorageError, InvalidInputError
from perdure.store import rows, transactions
from perdure.store.base import Entry, Lane
from perdure.store.driver import Driver, Session, StoreBusy, StoreLost
from perdure.store.sql_concerns import SqlCheckpoints, SqlMaintenance, SqlReplica
from perdure.store.writer import Writer

T = TypeVar("T")

_READERS = 4
_READ_ATTEMPTS = 6
_log = logging.getLogger("perdure.store")


class SqlStore:
    """See `base.Store`. Opening blocks; use `open_store(url)`."""

    def __init__(self, driver: Driver) -> None:
        self.url = driver.url
        self.kind = driver.kind
        self.beat_s = driver.beat_s
        self.missed_s = driver.missed_s
        self._driver = driver
        try:
            self.found_version = driver.setup()
            """The version of the schema before it was opened, 0 if it is new."""
        except BaseException:
            driver.close()
            raise
        self._unusable: DurableStorageError | None = None
        self._news = _News(driver)
        self._writer = Writer(driver, self._news.tell_own)
        self._pool = ThreadPoolExecutor(_READERS, thread_name_prefix="perdure-read")
        self.checkpoints = SqlCheckpoints(self)
        self.maintenance = SqlMaintenance(self, driver)
        self.replica = SqlReplica(self)
        _remember(self)

    # --- JournalStore -----------------------------------------------------------------------------------

    def append(self, entry: Entry) -> None:
        self._writer.append(entry)

    def flush_inline(self) -> None:
        self._writer.flush_inline()

    def wait_committed(self, lane: Lane, n: int) -> None:
        self._writer.wait_committed(lane, n)

    async def run_load(self, run_id: str) -> Loaded:
        return await self._read(lambda session: transactions.load(session, run_id))

    async def interrupt_answer(
        self,
        run_id: str,
        answers: Mapping[str, str],
        *,
        answered_by: str | None = None,
        records: Sequence[Record] = (),
        now: float | None = None,
    ) -> RunRow:
        if not answers:
            raise InvalidInputError("answers", "there is none")
        given = transactions.Answers(dict(answers), answered_by, records, now)
        return await self._write(lambda session: transactions.answer(session, run_id, given))

    # --- RunStore ---------------------------------------------------------------------------------------

    async def run_get(self, run_id: str) -> RunRow | None:
        return await self._read(lambda session: transactions.find(session, run_id))

    async def run_list(self, runs: RunFilter) -> list[RunRow]:
        params = {"status": runs.status, "runner": runs.runner, "after": runs.after, "limit": runs.limit}

        def work(session: Session) -> list[RunRow]:
            return [rows.run_row(row, session.now) for row in session.all("run_list", params)]

        return await self._read(work)

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
        request = transactions.ClaimRequest(
            worker_id=worker_id,
            run_ids=run_ids,
            runners=runners,
            dead_workers=dead_workers,
            limit=limit,
            now=now,
        )
        # Whoever polls mostly finds nothing: that takes no write lock.
        if run_ids is None and not await self._read(lambda session: transactions.candidates(session, request)):
            return []
        return await self._write(lambda session: transactions.claim(session, request))

    async def run_due_in(self, runners: Sequence[str] | None = None) -> float | None:
        return await self._read(lambda session: transactions.due_in(session, runners))

    async def run_running_count(self, runners: Sequence[str] | None = None, *, except_worker: str | None = None) -> int:
        return await self._read(lambda session: transactions.running_count(session, runners, except_worker))

    async def run_cancel(
        self, run_id: str, *, cancelled_by: str | None = None, dead_workers: Sequence[str] = ()
    ) -> RunRow:
        return await self._write(lambda session: transactions.cancel(session, run_id, cancelled_by, dead_workers))

    async def run_retry(self, run_id: str, drops: Sequence[Record]) -> RunRow:
        return await self._write(lambda session: transactions.retry(session, run_id, drops))

    async def run_repeat(self, run_id: str, record: Record) -> RunRow:
        return await self._write(lambda session: transactions.repeat(session, run_id, record))

    async def run_reopen(self, run_id: str, records: Sequence[Record] = ()) -> RunRow:
        return await self._write(lambda session: transactions.reopen(session, run_id, records))

    async def run_patch(self, run_id: str, records: Sequence[Record]) -> RunRow:
        return await self._write(lambda session: transactions.patch(session, run_id, records))

    async def run_fork(self, new: NewRun, records: Sequence[Record], interrupts: Sequence[InterruptRow]) -> None:
        await self._write(lambda session: transactions.fork(session, new, records, interrupts))

    async def facts(self, worker_id: str) -> Facts:
        return await self._read(lambda session: transactions.facts(session, worker_id))

    # --- EventStore -------------------------------------------------------------------------------------

    async def record_list(self, run_id: str, *, after: int = 0, limit: int = 1000) -> list[StoredRecord]:
        params = {"run_id": run_id, "after": after, "limit": limit}
        return [rows.stored_record(row) for row in await self._all("record_list", params)]

    async def interrupt_list(
        self, *, run_id: str | None = None, status: str | None = "pending", limit: int = 100
    ) -> list[InterruptRow]:
        params = {"run_id": run_id, "status": status, "limit": limit}
        return [rows.interrupt_row(row) for row in await self._all("interrupt_list", params)]

    def subscribe(self, callback: Callable[[], None], *, is_foreign_only: bool = False) -> Callable[[], None]:
        return self._news.subscribe(callback, is_foreign_only)

    # --- WorkerStore ------------------------------------------------------------------------------------

    async def worker_register(self, worker: WorkerRow) -> WorkerRow:
        lock = await self._in_thread(lambda: self._driver.worker_lock(worker.worker_id))
        try:
            return await self._write(lambda session: transactions.worker_register(session, worker, lock))
        except Exception:
            await self._in_thread(lambda: self._driver.worker_unlock(worker.worker_id))
            raise

    def worker_beat(self, worker_id: str) -> bool:
        if self._unusable is not None:
            raise self._unusable
        return self._driver.worker_beat(worker_id)

    async def worker_list(self) -> list[WorkerRow]:
        return [rows.worker_row(row) for row in await self._all("worker_list", None)]

    async def worker_probe(self, worker: WorkerRow) -> str:
        return await self._in_thread(lambda: self._driver.worker_probe(worker))

    async def worker_end(self, worker_id: str) -> int:
        count = await self._write(lambda session: transactions.worker_end(session, worker_id))
        worker = await self._read(lambda session: transactions.worker_find(session, worker_id))

        # After the row: a worker that is ended needs no proof of life any more.
        def give_back() -> None:
            self._driver.worker_unlock(worker_id)
            if worker is not None:
                self._driver.worker_sweep(worker)

        await self._in_thread(give_back)
        return count

    # --- the end ----------------------------------------------------------------------------------------

    async def close(self) -> None:
        """See `base.Store.close`."""
        await asyncio.to_thread(self.close_now)

    def close_now(self) -> None:
        """The same, blocking, for callers without a loop."""
        if self._unusable is not None:
            return
        self._unusable = DurableStorageError("the store is closed")
        self._writer.close()
        self._news.close()
        self._pool.shutdown(wait=True)
        self._driver.close()

    def abandon(self) -> None:
        """In a child made by `fork()`: neither the connections nor the threads came along whole."""
        if self._unusable is None:
            self._unusable = DurableStorageError(
                "this store was opened before fork(); open it again in the child process"
            )
            self._writer.abandon(self._unusable)
            self._news.abandon()
            self._driver.abandon()

    # --- threads ----------------------------------------------------------------------------------------

    async def _write(self, work: Callable[[Session], T]) -> T:
        return await self._writer.perform(work)

    async def _all(self, query: str, params: dict[str, Any] | None) -> list[tuple[Any, ...]]:
        return await self._read(lambda session: session.all(query, params))

    async def _read(self, work: Callable[[Session], T]) -> T:
        return await self._in_thread(lambda: self.read_now(work))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        if self._unusable is not None:
            raise self._unusable
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    # --- for callers without a loop ---------------------------------------------------------------------

    def perform_now(self, work: Callable[[Session], T]) -> T:
        """Run `work` in a write transaction, in the order in which it came among all writes of this store, and wait for
        its commit. Errors as of the asynchronous writes. Blocks; in any thread but the store's own."""
        return self._writer.perform_now(work)

    def read_now(self, work: Callable[[Session], T]) -> T:
        """Run `work` in a read-only snapshot, in the calling thread. Reads change nothing, so they are tried again
        whatever broke."""
        if self._unusable is not None:
            raise self._unusable
        delay_s = 0.01
        for attempt in range(1, _READ_ATTEMPTS + 1):
            try:
                return self._driver.read(work)
            except (StoreBusy, StoreLost) as error:
                if attempt == _READ_ATTEMPTS:
                    raise DurableStorageError(f"gave up reading: {error}") from error
            time.sleep(delay_s)
            delay_s *= 3
        raise AssertionError("unreachable")


class _News:
    """Who wants to know of commits. Other processes are watched only while somebody does."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._lock = threading.Lock()
        self._everybody: dict[object, Callable[[], None]] = {}
        self._for_own: tuple[Callable[[], None], ...] = ()
        """Those told of this store's own commits; looked at after each group, so it is ready to be walked."""
        self._foreign_only: set[object] = set()
        self._stop: Callable[[], None] | None = None

    def subscribe(self, callback: Callable[[], None], is_foreign_only: bool) -> Callable[[], None]:
        key = object()
        with self._lock:
            self._everybody[key] = callback
            if is_foreign_only:
                self._foreign_only.add(key)
            self._settle()
            if self._stop is None:
                self._stop = self._driver.watch(self.tell_foreign)
        return lambda: self._unsubscribe(key)

    def _unsubscribe(self, key: object) -> None:
        with self._lock:
            self._everybody.pop(key, None)
            self._foreign_only.discard(key)
            self._settle()
            if not self._everybody:
                self._stop_watching()

    def _settle(self) -> None:
        self._for_own = tuple(call for key, call in self._everybody.items() if key not in self._foreign_only)

    def tell_own(self) -> None:
        """This store has committed."""
        if self._for_own:
            _call_all(self._for_own)

    def tell_foreign(self) -> None:
        """Somebody has committed, perhaps this store."""
        with self._lock:
            callbacks = tuple(self._everybody.values())
        _call_all(callbacks)

    def close(self) -> None:
        with self._lock:
            self._everybody.clear()
            self._for_own = ()
            self._stop_watching()

    def _stop_watching(self) -> None:
        stop, self._stop = self._stop, None
        if stop is not None:
            stop()

    def abandon(self) -> None:
        # The parent's other threads may have held the lock when they vanished.
        self._lock = threading.Lock()
        self._everybody = {}
        self._for_own = ()
        self._stop = None


def _call_all(callbacks: Sequence[Callable[[], None]]) -> None:
    for callback in callbacks:
        try:
            callback()
        except Exception:
            # A listener's fault must not stop the writer; a loop that is closed is the usual one.
            _log.debug("a subscriber failed", exc_info=True)


_open: weakref.WeakSet[SqlStore] = weakref.WeakSet()


def _remember(store: SqlStore) -> None:
    if not _open:
        _register_fork_hook()
    _open.add(store)


_is_hooked = False


def _register_fork_hook() -> None:
    """Once per process, and only if a store is opened at all."""
    global _is_hooked
    if not _is_hooked and hasattr(os, "register_at_fork"):
        _is_hooked = True
        os.register_at_fork(after_in_child=_abandon_all)


def _abandon_all() -> None:
    for store in list(_open):
        store.abandon()
