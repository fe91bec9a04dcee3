"""Group commit: one queue and one thread per store. Decides what is written together and who is told; knows
no SQL.

`append` is called by anybody, a group is taken and committed by whoever holds the commit lock: the thread, or
a caller that owns its loop (`flush_inline`). Taking happens only under that lock, so entries are committed in
the order they came. A group is what is there; nobody waits for more.

An entry that cannot be stored poisons its lane and nobody else: the group is halved until it is found.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from perdure.errors import DurableStorageError, PerdureError, SerializationError
from perdure.store import transactions
from perdure.store.base import Entry, Lane
from perdure.store.driver import Batch, Driver, Session, StoreBusy, StoreLost

MAX_RECORDS = 1024
"""Bounds a group to a few milliseconds of the database's lock."""
RETRY_S = 60.0
"""How long a busy or broken database is tried again before lanes are refused."""
_LAZY_S = 0.01
_log = logging.getLogger("perdure.store")


@dataclass(slots=True, eq=False)
class Job:
    """A write from outside, in a transaction of its own. `done` is called in the committing thread."""

    work: Callable[[Session], Any]
    done: Callable[[Any, BaseException | None], None]


class Writer:
    """Owns the driver's write connection."""

    def __init__(self, driver: Driver, notify: Callable[[], None], *, retry_s: float = RETRY_S) -> None:
        self._driver = driver
        self._notify = notify
        self._retry_s = retry_s
        self._queue: deque[Entry | Job] = deque()
        self._append_lock = threading.Lock()
        self._commit_lock = threading.Lock()
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._is_woken = False
        self._is_lazy = False
        self._in_hand: Sequence[Entry | Job] = ()
        self._closed: DurableStorageError | None = None
        self._thread = threading.Thread(target=self._run, name="perdure-writer", daemon=True)
        self._thread.start()

    # --- callers ----------------------------------------------------------------------------------------

    def append(self, entry: Entry) -> None:
        """See `JournalStore.append`."""
        lane = entry.lane
        # Numbering and queueing are one step: step threads append to a lane too, and the order must be the
        # same.
        with self._append_lock:
            if lane.refused is not None:
                return
            if self._closed is not None:
                raise self._closed
            lane.enqueued = entry.n = lane.enqueued + 1
            self._queue.append(entry)
            if self._is_woken:
                return
            self._is_woken = True
        self._wake.put(None)

    def submit(self, job: Job) -> None:
        """Put a job in the queue. Raises `DurableStorageError` if the store is closed."""
        with self._append_lock:
            if self._closed is not None:
                raise self._closed
            self._queue.append(job)
            self._is_woken = True
        self._wake.put(None)

    async def perform(self, work: Callable[[Session], Any]) -> Any:
        """Run a job and return its result. A caller that is cancelled does not take the job back."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()

        def settle(result: Any, error: BaseException | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

        self.submit(Job(work, lambda result, error: _call_in(loop, settle, result, error)))
        return await future

    def perform_now(self, work: Callable[[Session], Any]) -> Any:
        """Run a job and return its result, blocking the calling thread, which must not be the writer's own."""
        gate = threading.Lock()
        gate.acquire()
        ended: list[tuple[Any, BaseException | None]] = []

        def settle(result: Any, error: BaseException | None) -> None:
            ended.append((result, error))
            gate.release()

        self.submit(Job(work, settle))
        gate.acquire()
        ((result, error),) = ended
        if error is not None:
            raise error
        return result

    def flush_inline(self) -> None:
        """See `JournalStore.flush_inline`."""
        if not self._driver.can_inline:
            return
        if not self._commit_lock.acquire(blocking=False):
            self._wake.put(None)
            return
        try:
            self._is_lazy = True
            while self._queue and isinstance(self._queue[0], Entry):
                if not self._commit_inline(self._take()):
                    return
        finally:
            self._commit_lock.release()

    def wait_committed(self, lane: Lane, n: int) -> None:
        """See `JournalStore.wait_committed`."""
        while lane.committed < n:
            if lane.refused is not None:
                raise lane.refused
            if self._closed is not None and not self._thread.is_alive():
                raise self._closed
            gate = threading.Lock()
            gate.acquire()
            lane.waiters.append(gate)
            # Looked at again after it is registered: the writer sets these first and opens gates afterwards.
            if lane.committed < n and lane.refused is None:
                gate.acquire()

    def close(self) -> None:
        """Commit what is queued and stop. Idempotent; later appends raise."""
        with self._append_lock:
            if self._closed is None:
                self._closed = DurableStorageError("the store is closed")
        self._wake.put(None)
        if self._thread is not threading.current_thread():
            self._thread.join()

    def abandon(self, error: DurableStorageError) -> None:
        """In a forked child: the thread is gone, and what is queued is the parent's to write."""
        self._append_lock = threading.Lock()
        self._commit_lock = threading.Lock()
        self._commit_lock.acquire()
        self._queue = deque()
        self._closed = error

    # --- the committing thread --------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            _log.exception("the writer of a store has failed")
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """A fault of our own: nobody may wait for a thread that is gone."""
        failure = DurableStorageError(f"the writer failed, the store is closed: {type(error).__name__}: {error}")
        failure.__cause__ = error
        with self._append_lock:
            self._closed = failure
            left = [*self._in_hand, *self._queue]
            self._queue.clear()
        told = _Told()
        told.refuse((one.lane for one in left if isinstance(one, Entry)), failure)
        for job in (one for one in left if isinstance(one, Job)):
            with contextlib.suppress(Exception):
                job.done(None, failure)
        self._tell(told)

    def _work(self) -> None:
        while True:
            is_lazy = self._sleep()
            # Never waited for: the lock would be ours while its last holder still computes, and the next inline commit
            # would find it taken.
            if not self._commit_lock.acquire(blocking=False):
                self._is_lazy = self._is_woken = True
                continue
            try:
                # Before looking: whoever appends from here on wakes us, or we look again by ourselves.
                self._is_woken = is_lazy
                while self._queue:
                    self._step()
            finally:
                self._commit_lock.release()
            if self._closed is not None and not self._queue:
                return

    def _sleep(self) -> bool:
        """Wait to be woken. While a caller commits inline, being woken at each append would only get in its
        way: then look now and again, so that what it leaves in the queue is on disk soon. Returns whether
        that is so.
        """
        try:
            self._wake.get(timeout=_LAZY_S if self._is_woken else None)
        except Empty:
            pass
        is_lazy, self._is_lazy = self._is_lazy, False
        return is_lazy

    def _step(self) -> None:
        first = self._queue[0]
        if isinstance(first, Job):
            self._in_hand = (self._queue.popleft(),)
            self._perform(first)
        else:
            told = _Told()
            self._in_hand = entries = self._take()
            self._commit(entries, told)
            self._tell(told)
        self._in_hand = ()

    def _take(self) -> list[Entry]:
        """What is there, up to the next job and the bound."""
        queue = self._queue
        entries: list[Entry] = []
        count = 0
        while queue and count < MAX_RECORDS:
            entry = queue[0]
            if isinstance(entry, Job):
                break
            queue.popleft()
            if entry.lane.refused is None:
                entries.append(entry)
                count += len(entry.records) or 1
        return entries

    def _perform(self, job: Job) -> None:
        try:
            result = self._patiently(lambda: self._driver.transact(job.work), is_repeatable=False)
        except Exception as error:
            job.done(None, error)
            return
        job.done(result, None)
        self._notify()

    def _commit_inline(self, entries: list[Entry]) -> bool:
        """False if somebody else has the lock: the entries are back in the queue and the thread has been
        woken."""
        batches, rest = plan(entries)
        told = _Told()
        try:
            if batches:
                self._driver.write(batches, is_inline=True)
        except (StoreBusy, StoreLost):
            # Sent again by the thread: what has been stored after all is left alone there.
            self._queue.extendleft(reversed(entries))
            self._wake.put(None)
            return False
        except Exception:
            # Whose fault it is, or that the disk is full, is found out in the usual way.
            self._commit(entries, told)
        except BaseException:
            self._queue.extendleft(reversed(entries))
            self._wake.put(None)
            raise
        else:
            told.add(batches)
            if rest:
                self._queue.extendleft(reversed(rest))
        self._tell(told, asyncio._get_running_loop())
        return True

    def _commit(self, entries: list[Entry], told: _Told) -> None:
        while entries:
            batches, rest = plan(entries)
            try:
                if batches:
                    self._patiently(lambda batches=batches: self._driver.write(batches), is_repeatable=True)
                told.add(batches)
            except DurableStorageError as error:
                told.refuse((batch.lane for batch in batches), error)
            except Exception as error:
                self._commit_halves(entries[: len(entries) - len(rest)], error, told)
            entries = rest

    def _commit_halves(self, entries: list[Entry], error: Exception, told: _Told) -> None:
        if len(entries) == 1:
            told.refuse([entries[0].lane], _typed(error))
            return
        middle = len(entries) // 2
        self._commit(entries[:middle], told)
        self._commit(entries[middle:], told)

    def _patiently(self, attempt: Callable[[], Any], *, is_repeatable: bool) -> Any:
        """Try while the database is busy or away. An outside write whose fate is unknown is not tried
        again."""
        deadline = time.monotonic() + self._retry_s
        delay_s = 0.002
        while True:
            try:
                return attempt()
            except (StoreBusy, StoreLost) as error:
                if isinstance(error, StoreLost) and error.is_ambiguous and not is_repeatable:
                    message = f"{error}; it is not known whether this was stored: look before repeating it"
                    raise DurableStorageError(message) from error
                if time.monotonic() + delay_s > deadline:
                    raise DurableStorageError(f"gave up after {self._retry_s:g} s: {error}") from error
            time.sleep(delay_s)
            delay_s = min(delay_s * 2, 1.0)

    def _tell(self, told: _Told, here: asyncio.AbstractEventLoop | None = None) -> None:
        """Open gates, and call each loop once with all its lanes; lanes of the loop running `here` at
        once."""
        by_loop: dict[asyncio.AbstractEventLoop, list[Lane]] = {}
        for lane in told.lanes:
            while lane.waiters:
                lane.waiters.pop().release()  # type: ignore[attr-defined]
            if lane.loop is not None:
                by_loop.setdefault(lane.loop, []).append(lane)
        for loop, lanes in by_loop.items():
            if loop is here:
                _tell_lanes(lanes)
            else:
                _call_in(loop, _tell_lanes, lanes)
        if told.lanes:
            self._notify()


class _Told:
    """Lanes with news, each once, in order."""

    __slots__ = ("lanes",)

    def __init__(self) -> None:
        self.lanes: dict[Lane, None] = {}

    def add(self, batches: Sequence[Batch]) -> None:
        for batch in batches:
            lane = batch.lane
            if batch.refusal is not None:
                self.refuse([lane], batch.refusal)
                continue
            if batch.change is not None:
                lane.final_status = batch.status
            lane.committed = batch.last_n
            self.lanes[lane] = None

    def refuse(self, lanes: Iterable[Lane], error: BaseException) -> None:
        for lane in lanes:
            if lane.refused is None:
                lane.refused = error
                self.lanes[lane] = None


def plan(entries: Sequence[Entry]) -> tuple[list[Batch], list[Entry]]:
    """One batch per lane of entries to be written in one transaction, and the entries left for the next one.

    A lane's batch ends with a change of its run: a later entry of the lane is for the next group, and so is
    everything behind it.
    """
    batches: dict[Lane, Batch] = {}
    for position, entry in enumerate(entries):
        lane = entry.lane
        if lane.refused is not None:
            continue
        batch = batches.get(lane)
        if batch is None:
            batch = batches[lane] = Batch(lane, entry.n, entry.n, [])
        elif batch.change is not None or entry.create is not None:
            return list(batches.values()), list(entries[position:])
        _merge(batch, entry)
    return list(batches.values()), []


def _merge(batch: Batch, entry: Entry) -> None:
    batch.last_n = entry.n
    if entry.create is not None:
        new = batch.create = entry.create
        batch.records.append(transactions.submitted(new))
    batch.records.extend(entry.records)
    if entry.questions:
        batch.questions.extend(entry.questions)
    if entry.delivered:
        batch.delivered.extend(entry.delivered)
    if entry.abandoned:
        batch.abandoned.extend(entry.abandoned)
    batch.change = entry.change


def _typed(error: Exception) -> Exception:
    """What a single entry is refused with; a value a driver stumbles over is at fault itself."""
    if isinstance(error, PerdureError):
        return error
    found = SerializationError("$", f"cannot be stored: {type(error).__name__}: {error}")
    found.__cause__ = error
    return found


def _tell_lanes(lanes: Sequence[Lane]) -> None:
    for lane in lanes:
        if lane.refused is None:
            if lane.on_commit is not None:
                lane.on_commit()
        elif lane.on_refused is not None:
            on_refused, lane.on_refused = lane.on_refused, None
            on_refused(lane.refused)


def _call_in(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *values: Any) -> None:
    # A loop that is closed has nobody left to be told.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(function, *values)
