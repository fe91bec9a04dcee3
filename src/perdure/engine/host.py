"""Hosts the drives of one process on one event loop: launches them, brings them what comes from outside, gives them
back.

Decides nothing about a run; it owns the worker's presence, the map of running drives, and the clock that wakes parked
runs here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, TypeVar

from perdure.core import codec, ids
from perdure.core.fold import Journal, fold
from perdure.core.leases import LeaseWatch
from perdure.core.records import Claim, Loaded, NewRun, Record, RecordType, RunFilter, StoredRecord
from perdure.core.settings import EngineSettings
from perdure.core.states import Status
from perdure.engine.context import Running
from perdure.engine.drive import Drive
from perdure.engine.news import News
from perdure.engine.plan import DrivePlan
from perdure.engine.presence import Presence, new_worker
from perdure.engine.runner import Runner, unfit
from perdure.engine.threads import StepThreads
from perdure.errors import DurableRecoveryError, DurableStorageError, RunLost
from perdure.store.base import Entry, Lane, Store

T = TypeVar("T")

log = logging.getLogger("perdure")

_RETRY_S = 0.5


class Host:
    """One worker: a start of this process on one event loop and one store."""

    def __init__(self, store: Store, settings: EngineSettings, *, is_inline: bool = False) -> None:
        self.store = store
        self.settings = settings
        self.is_inline = is_inline
        self.worker_id = ""
        self.drives: dict[str, Drive] = {}
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self.news = News()
        """Something may have come from outside, or a drive has ended."""
        self.is_closing = False
        self._leases = LeaseWatch(settings.lease_s, store.missed_s)
        self._threads = StepThreads()
        self._presence: Presence | None = None
        self._unsubscribe: Callable[[], None] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._claiming = asyncio.Lock()
        self._retaking: set[str] = set()
        """Runs of ours that are being taken up again after the store refused an entry of theirs."""
        self._ready = asyncio.Event()
        self._is_checking = False
        self._wants_check = False

    async def open(self) -> None:
        """Register as a worker and begin to listen."""
        await self._join()
        self._unsubscribe = self.store.subscribe(self._news, is_foreign_only=True)

    async def _join(self) -> None:
        worker = await self.store.worker_register(await asyncio.to_thread(new_worker))
        self.worker_id = worker.worker_id
        self._presence = Presence(
            self.store, self.worker_id, self.settings.lease_s, self._lease_lost, self.loop.is_closed
        )
        self._presence.start()
        self._ready.set()

    async def close(self) -> None:
        """Start nothing more, let started bodies end within the grace period, give every run back. Idempotent."""
        if self.is_closing:
            return
        self.is_closing = True
        self._ready.set()
        self.news.tell()
        drives = list(self.drives.values())
        for drive in drives:
            drive.release()
        ends = [drive.ended for drive in drives if not drive.ended.done()]
        if ends:
            await asyncio.wait(ends, timeout=self.settings.grace_s)
        for drive in drives:
            drive.abandon("the engine was closed before its bodies had ended")
        await self._leave()

    async def _leave(self) -> None:
        if self._unsubscribe is not None:
            self._unsubscribe()
        if self._presence is not None:
            self._presence.stop()
        for task in list(self._tasks):
            task.cancel()
        with contextlib.suppress(DurableStorageError):
            await self.store.worker_end(self.worker_id)
        self._threads.close()

    # Launching.

    def create(self, runner: Runner, run_id: str, input_data: str, input_digest: str) -> Drive:
        """A new run, driven at once: its creation is the first entry of its lane, and everything else waits behind
        it."""
        lane = Lane(run_id=run_id, root_id=run_id, worker_id=self.worker_id, fence=1)
        journal = Journal()
        submitted = Record(RecordType.SUBMITTED, data=input_data, name=runner.name)
        journal.apply(StoredRecord(run_id, 1, *submitted, 0.0))
        drive = self._drive(runner, lane, journal, 0.0, is_cancelled=False)
        new = NewRun(
            run_id=run_id,
            root_id=run_id,
            runner=runner.name,
            kind=runner.kind,
            version=runner.version,
            input_digest=input_digest,
            input_data=input_data,
            worker_id=self.worker_id,
        )
        self.store.append(Entry(lane=lane, create=new))
        if self.is_inline:
            self.store.flush_inline()
        return drive

    def launch(self, runner: Runner, claim: Claim, loaded: Loaded) -> Drive:
        """Go on with a claimed run: the same act as starting it, with a longer journal."""
        lane = Lane(run_id=claim.run_id, root_id=claim.root_id, worker_id=self.worker_id, fence=claim.fence)
        try:
            journal = fold(loaded.records, loaded.interrupts)
        except Exception as error:  # a journal nobody can read must not stop the others
            drive = self._drive(runner, lane, Journal(), 0.0, is_cancelled=False)
            why = f"the journal of run {claim.run_id} cannot be read: {type(error).__name__}: {error}"
            self.loop.call_soon(drive.need_attention, DurableRecoveryError(why))
            return drive
        age_s = max(0.0, loaded.now - journal.last_at) if journal.last_at else 0.0
        drive = self._drive(runner, lane, journal, age_s, is_cancelled=loaded.run.cancel_requested)
        if (why := unfit(runner, loaded.run)) is not None:
            self.loop.call_soon(drive.need_attention, DurableRecoveryError(why))
        else:
            drive.start()
        return drive

    def _drive(self, runner: Runner, lane: Lane, journal: Journal, age_s: float, *, is_cancelled: bool) -> Drive:
        drive = Drive(
            DrivePlan(
                lane=lane,
                journal=journal,
                runner=runner,
                store=self.store,
                settings=self.settings,
                loop=self.loop,
                is_inline=self.is_inline,
                age_s=age_s,
                is_cancelled=is_cancelled,
                threads=self._threads,
            )
        )
        self.drives[lane.run_id] = drive
        Running.drive_count += 1
        drive.ended.add_done_callback(lambda _: self._ended(drive))
        return drive

    def _ended(self, drive: Drive) -> None:
        Running.drive_count -= 1
        if self.drives.get(drive.run_id) is drive:
            del self.drives[drive.run_id]
        error = drive.ended.result().error
        end = drive.ended.result()
        was_created = drive.lane.committed > 0 or drive.lane.fence > 1  # else it is somebody else's, or nobody's
        if end.is_lost and was_created and not isinstance(error, RunLost) and not self.is_closing:
            self._retaking.add(drive.run_id)
            self.spawn(self._retake(drive, error))
        self.news.tell()

    async def _retake(self, drive: Drive, error: BaseException | None) -> None:
        """The store refused an entry, so the run is ours and nobody drives it. If the store was away, go on when it
        is back; if it was the entry's content, a person has to look."""
        runner = drive.plan.runner
        request = {"run_ids": [drive.run_id], "dead_workers": [self.worker_id], "limit": 1}
        while not self.is_closing:
            try:
                claims = await self.store.run_claim(self.worker_id, runners=[runner.name], **request)
                for claim in claims:
                    taken = self.launch(runner, claim, await self.store.run_load(drive.run_id))
                    self._retaking.discard(drive.run_id)
                    if not isinstance(error, DurableStorageError):
                        taken.need_attention(DurableRecoveryError(f"run {drive.run_id}: an entry was refused: {error}"))
                self._retaking.discard(drive.run_id)
                return
            except DurableStorageError as away:
                log.warning("run %s waits for the store: %s", drive.run_id, away)
                await asyncio.sleep(_RETRY_S)

    async def take_stray(self, runners: dict[str, Runner]) -> None:
        """Take up runs that are ours in the store and nobody drives: a claim whose commit was in doubt."""
        await self._kept(self._take_stray(runners))

    async def _take_stray(self, runners: dict[str, Runner]) -> None:
        async with self._claiming:  # so that nothing is just being loaded
            rows = await self.store.run_list(RunFilter(status=Status.RUNNING, limit=1000))
        known = self.drives.keys() | self._retaking
        stray = [r.run_id for r in rows if r.worker_id == self.worker_id and r.run_id not in known]
        if stray:
            log.warning("taking up %d runs that were claimed without our knowing", len(stray))
            await self._claim(runners, {"run_ids": stray, "dead_workers": [self.worker_id], "limit": len(stray)})

    async def claim(self, runners: dict[str, Runner], **request: Any) -> list[Drive]:
        """Claim runs and launch them, even if the caller is cancelled meanwhile: what is claimed is driven."""
        return await self._kept(self._claim(runners, request)) or []

    async def _kept(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Wait for work that goes on if the caller is cancelled. None if this host is closed meanwhile, which
        ends it."""
        task = self.spawn(work)
        await asyncio.wait((task,))
        return None if task.cancelled() else task.result()

    async def _claim(self, runners: dict[str, Runner], request: dict[str, Any]) -> list[Drive]:
        await self.ready()
        async with self._claiming:
            claims = await self.store.run_claim(self.worker_id, runners=list(runners), **request)
            launched = (self._launch_claim(runners[claim.runner], claim) for claim in claims)
            return [drive for drive in await asyncio.gather(*launched) if drive is not None]

    async def _launch_claim(self, runner: Runner, claim: Claim) -> Drive | None:
        """Load and launch. If the store is away just now, later: the run is ours and nobody else will."""
        try:
            loaded = await self.store.run_load(claim.run_id)
            return None if self.is_closing else self.launch(runner, claim, loaded)
        except DurableStorageError as error:
            if not self.is_closing:
                log.warning("run %s was claimed and cannot be loaded yet: %s", claim.run_id, error)
                self.loop.call_later(_RETRY_S, lambda: self.spawn(self._launch_claim(runner, claim)))
            return None

    # From outside.

    def _news(self) -> None:
        """Another process committed something. Called in any thread."""
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self._on_news)

    def _on_news(self) -> None:
        self.news.tell()
        if self.drives:
            self.check_facts()

    def check_facts(self) -> None:
        """Look for answers and cancels of our runs soon; several requests at once are one look."""
        if self._is_checking:
            self._wants_check = True
            return
        self._is_checking = True
        self.spawn(self._check_facts())

    async def _check_facts(self) -> None:
        try:
            while True:
                self._wants_check = False
                await self.take_facts()
                if not self._wants_check:
                    return
        except DurableStorageError as error:
            log.warning("could not look for answers: %s", error)
        finally:
            self._is_checking = False

    async def take_facts(self) -> None:
        """Bring answers and cancels to the drives they are for."""
        facts = await self.store.facts(self.worker_id)
        by_run: dict[str, list[Any]] = {}
        for row in sorted(facts.answers, key=lambda row: (row.answer_seq or 0, row.path, row.index)):
            by_run.setdefault(row.run_id, []).append(row)
        for run_id, answers in by_run.items():
            if run_id in self.drives:
                self.drives[run_id].answers_came(answers)
        for run_id in facts.cancels:
            if run_id in self.drives:
                self.drives[run_id].cancel()

    async def dead_workers(self) -> list[str]:
        """Workers whose runs may be taken: proven dead, or silent for a whole lease of our own time."""
        workers = await self.store.worker_list()
        now_s = time.monotonic()
        dead = []
        for worker in workers:
            if worker.worker_id == self.worker_id:
                continue
            proof = await self.store.worker_probe(worker)
            if self._leases.is_dead(worker, proof, now_s):
                dead.append(worker.worker_id)
        self._leases.forget({worker.worker_id for worker in workers})
        return dead

    async def is_alive(self, worker_id: str) -> bool:
        """Whether a worker lives: waits for a verdict where one look cannot tell (at most a lease)."""
        if worker_id == self.worker_id:
            return True
        first_beat: int | None = None
        while True:
            mark = self.news.mark()
            worker = next((w for w in await self.store.worker_list() if w.worker_id == worker_id), None)
            if worker is None:
                return False
            proof = await self.store.worker_probe(worker)
            if self._leases.is_dead(worker, proof, time.monotonic()):
                return False
            first_beat = worker.beat if first_beat is None else first_beat
            if proof == "alive" or worker.beat != first_beat:
                return True
            await self.news.wait(mark, self.settings.poll_s)

    async def bury(self, worker_ids: list[str]) -> None:
        """End dead workers' rows: their runs become pending, for whoever has the runner."""
        for worker_id in worker_ids:
            await self.store.worker_end(worker_id)

    def _lease_lost(self, why: str) -> None:
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self._lost, why)

    def _lost(self, why: str) -> None:
        """Our runs are, or will soon be, somebody else's: stop them, and join again as a new worker."""
        if self.is_closing:
            return
        self._ready.clear()
        for drive in list(self.drives.values()):
            drive.abandon(why)
        self.spawn(self._join_again())

    async def _join_again(self) -> None:
        lost, presence = self.worker_id, self._presence
        if presence is not None:
            presence.stop()
        while not self.is_closing:
            try:
                await self.store.worker_end(lost)
                await self._join()
            except DurableStorageError as error:
                log.warning("cannot join again yet: %s", error)
                await asyncio.sleep(_RETRY_S)
            else:
                self.news.tell()
                return

    async def ready(self) -> None:
        """Wait until this host is a worker, which it is but for the moments after it has lost its lease."""
        await self._ready.wait()

    def spawn(self, coro: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """A task owned by this host, in an empty context: nothing of the caller's reaches the engine."""
        task = self.loop.create_task(coro, context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def digest_of_input(input_data: str) -> str:
    """What tells whether an id is asked for again with the same input."""
    return codec.digest(input_data)


new_run_id = ids.run_id
