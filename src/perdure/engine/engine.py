"""The engine: starts, resumes, forks, retries, cancels and watches runs of any runner, on one loop and one store.

Decides what an id that exists already means (DESIGN "Existing ids") and whom an answer is for; the store decides what
is true. It owns its drives: cancelling a waiting caller stops the waiting only.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Generator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from perdure.core import checkpoints, ids, keys, recovery
from perdure.core.fold import fold
from perdure.core.records import InterruptRow, Kind, Loaded, QuestionStatus, Record, RecordType, RunRow
from perdure.core.settings import EngineSettings, get_config
from perdure.core.states import Status, is_terminal
from perdure.engine.answers import choose_answers
from perdure.engine.context import BodyScope, TaskScope, current
from perdure.engine.drive import Drive
from perdure.engine.ending import DriveEnd
from perdure.engine.forks import ForkPoint, fork_of
from perdure.engine.host import Host, digest_of_input, new_run_id
from perdure.engine.liveness import dead_owners
from perdure.engine.results import RunResult, question_dict, result_of
from perdure.engine.runner import Runner, unfit
from perdure.engine.streams import Event, stream
from perdure.engine.work import Work
from perdure.errors import (
    AlreadyResumed,
    ChainCheckpointError,
    ChainResumeError,
    DurableConflictError,
    DurableRecoveryError,
    DurableRunError,
    DurableStorageError,
    InvalidInputError,
    PerdureError,
    RunBusy,
    RunLost,
)
from perdure.store.base import Store

if TYPE_CHECKING:
    from perdure.core.resume import Resume

_WAIT_S = 1.0
"""A floor under notifications while waiting for somebody else's run."""


class Engine:
    """Open with `open_engine(url)`; belongs to the event loop it was opened in."""

    def __init__(self, host: Host, *, owns_store: bool) -> None:
        self.host = host
        self.store: Store = host.store
        self._owns_store = owns_store
        self._works: set[Work] = set()

    async def close(self) -> None:
        """Give every run back (started bodies may end within the grace period) and leave. Idempotent."""
        for work in list(self._works):
            work.stop()
        await self.host.close()
        if self._owns_store:
            await self.store.close()

    async def __aenter__(self) -> Engine:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # Starting.

    async def run(self, runner: Runner, value: Any = None, *, execution_id: str | None = None) -> RunResult[Any]:
        """Run to the end or to a question. An id that exists already is the same run (other input:
        `DurableConflictError`).

        Raises what the run failed with; `DurableRunError` if it was cancelled; `DurableRecoveryError` if it needs
        attention.
        """
        drive = await self._begin(runner, value, execution_id)
        return await self._follow(runner, drive if isinstance(drive, str) else drive.run_id)

    async def start(self, runner: Runner, value: Any = None, *, execution_id: str | None = None) -> str:
        """Begin a run and return its id once that is durable; it goes on in this engine."""
        drive = await self._begin(runner, value, execution_id)
        if isinstance(drive, str):
            return drive
        await _durable(drive)
        return drive.run_id

    async def _begin(self, runner: Runner, value: Any, execution_id: str | None) -> Drive | str:
        """A new drive; or the id of a run that exists already with the same input."""
        self._check_open()
        input_data = self.host.settings.limits.check_payload("input", runner.encode_input(value))
        digest = digest_of_input(input_data)
        await self.host.ready()
        if execution_id is None and isinstance(scope := current(), BodyScope):
            execution_id = scope.run_id_for(runner.name, digest)  # a repetition of the body finds the same run
        if execution_id is None:
            drive = self.host.create(runner, new_run_id(), input_data, digest)
            drive.start()
            return drive
        ids.check_id(execution_id, "execution_id")
        # Most ids are new, so nothing is looked up first: the store refuses one that exists.
        drive = await self._create(runner, execution_id, input_data, digest)
        if isinstance(drive, Drive):
            return drive
        known = await self.store.run_get(execution_id)
        if known is None and drive is not None:
            raise drive  # the id was another run's, which has been pruned
        _check_same(known or await self._get(execution_id), runner, digest)
        return execution_id

    async def _create(
        self, runner: Runner, run_id: str, input_data: str, digest: str
    ) -> Drive | DurableConflictError | None:
        """Create a run under a given id; the store's refusal, or None, if somebody else did, here or elsewhere."""
        rival = self.host.drives.get(run_id)
        if rival is not None:
            with contextlib.suppress(DurableConflictError):
                await _durable(rival)
            return None
        drive = self.host.create(runner, run_id, input_data, digest)
        try:
            await _durable(drive)
        except DurableConflictError as refusal:
            return refusal
        drive.start()
        return drive

    # Following.

    async def _follow(self, runner: Runner, run_id: str) -> RunResult[Any]:
        """Drive or wait until the run has ended or asks."""
        end: DriveEnd | None = None
        while True:
            drive = self.host.drives.get(run_id)
            if drive is not None:
                end = await drive.watch()
                if end is None:
                    return await self._paused(run_id)
                if end.status is Status.COMPLETED or end.status is Status.FAILED:
                    return result_of(runner, run_id, end.status, end.data)
                if end.status is Status.NEEDS_ATTENTION and end.error is not None:
                    raise end.error
                # The refused creation of a run that exists already says nothing about that run.
                if end.is_lost and end.error is not None and not isinstance(end.error, RunLost | DurableConflictError):
                    raise end.error
            settled = await self._look(runner, run_id)
            if settled is not None:
                return settled

    async def _look(self, runner: Runner, run_id: str) -> RunResult[Any] | None:
        """What the store says; claims the run if it is nobody's, waits for news if it is somebody's."""
        mark = self.host.news.mark()
        row = await self._get(run_id)
        match row.status:
            case Status.COMPLETED | Status.FAILED:
                return result_of(runner, run_id, Status(row.status), await self._end_data(run_id))
            case Status.CANCELLED:
                raise DurableRunError(run_id, "cancelled")
            case Status.NEEDS_ATTENTION:
                raise DurableRecoveryError(row.error or f"run {run_id} needs attention", row.blocked_operation)
            case Status.WAITING if await self._questions(run_id):
                return await self._paused(run_id)
        self._check_open()
        if await self._claim(runner, row):
            return None
        # Whoever runs it may die; a waiting run is looked at when it is due.
        wait_s = self.host.settings.poll_s if row.status == Status.RUNNING else _WAIT_S
        await self.host.news.wait(mark, wait_s if row.due_in_s is None else min(wait_s, max(0.01, row.due_in_s)))
        return None

    async def _claim(self, runner: Runner, row: RunRow) -> bool:
        if (row.runner, row.kind) != (runner.name, runner.kind) and (why := unfit(runner, row)) is not None:
            raise DurableRecoveryError(why)
        if row.status == Status.WAITING and (row.due_in_s is None or row.due_in_s > 0):
            return False
        if row.status == Status.RUNNING and row.worker_id == self.host.worker_id:
            if row.run_id not in self.host.drives:
                await self.host.take_stray({runner.name: runner})
            return row.run_id in self.host.drives
        dead = await self.host.dead_workers() if row.status == Status.RUNNING else []
        if row.status == Status.RUNNING and row.worker_id not in dead and row.worker_id is not None:
            return False
        return bool(await self.host.claim({runner.name: runner}, run_ids=[row.run_id], dead_workers=dead))

    async def _paused(self, run_id: str) -> RunResult[Any]:
        return RunResult(
            execution_id=run_id,
            status="paused",
            pending_interrupts=[question_dict(row) for row in await self._questions(run_id)],
        )

    async def _questions(self, run_id: str) -> list[InterruptRow]:
        return await self.store.interrupt_list(run_id=run_id, status=QuestionStatus.PENDING, limit=1000)

    async def _end_data(self, run_id: str) -> str | None:
        loaded = await self.store.run_load(run_id)
        return fold(loaded.records).result_data

    async def _get(self, run_id: str) -> RunRow:
        row = await self.store.run_get(run_id) if isinstance(run_id, str) else None
        if row is None:
            raise ChainCheckpointError(f"no run {run_id} in {_shown(self.store.url)}")
        return row

    # Going on.

    async def _get_fitting(self, runner: Runner, run_id: str) -> RunRow:
        """A run that this runner may go on with. `DurableRecoveryError` if it is another's, or if code and run do not
        fit: before anything is consumed."""
        self._check_open()
        row = await self._get(run_id)
        if (why := unfit(runner, row)) is not None:
            raise DurableRecoveryError(why)
        await runner.check(self.store, run_id)
        return row

    async def resume(
        self,
        runner: Runner,
        execution_id: str,
        *,
        resume_value: Resume | Mapping[str, Resume] | None = None,
        interrupt_id: str | None = None,
        repeat_operation: str | None = None,
        answered_by: str | None = None,
        state_patch: str | None = None,
    ) -> RunResult[Any]:
        """Answer and go on; or go on after a crash, a failure, a decision. Refused resumes change nothing.
        `state_patch` (encoded, of a runner that has a state) is stored in the same transaction as the decision.

        Raises `ChainCheckpointError` (unknown id), `ChainResumeError` (a question is open and no answer given),
        `AlreadyResumed` (nothing is open, or the run has completed), `AmbiguousAnswer`, `RunBusy` (somebody runs it),
        `DurableRecoveryError`.
        """
        row = await self._get_fitting(runner, execution_id)
        patches = self._patches(state_patch)
        if resume_value is not None and repeat_operation is not None:
            raise InvalidInputError("repeat_operation", "is given beside resume_value; they are two decisions")
        if resume_value is not None:
            answers = {"interrupt_id": interrupt_id, "answered_by": answered_by, "row": row, "records": patches}
            await self.answer(execution_id, resume_value, **answers)
        elif repeat_operation is not None:
            if patches:
                raise InvalidInputError("modified_state", "is given beside repeat_operation; use one of the two")
            await self._repeat(row, repeat_operation)
        else:
            await self._go_on(row, patches)
        self.host.news.tell()
        return await self._follow_after(runner, execution_id)

    def _patches(self, state_patch: str | None) -> list[Record]:
        if state_patch is None:
            return []
        self.host.settings.limits.check_payload("modified_state", state_patch)
        return [Record(RecordType.PATCHED, kind=Kind.PATCH, name="state", data=state_patch)]

    async def _follow_after(self, runner: Runner, run_id: str) -> RunResult[Any]:
        """Follow a run that an answer has just made runnable: a question still open is a pause only after it was
        driven."""
        row = await self._get(run_id)
        if row.status in (Status.PENDING, Status.QUEUED):
            await self._claim(runner, row)
        elif run_id in self.host.drives:
            await self.host.take_facts()
        return await self._follow(runner, run_id)

    async def answer(
        self,
        execution_id: str,
        resume_value: Resume | Mapping[str, Resume],
        *,
        interrupt_id: str | None = None,
        answered_by: str | None = None,
        row: RunRow | None = None,
        records: Sequence[Record] = (),
    ) -> None:
        """Store answers and make the run runnable, in one transaction; whoever has the runner goes on."""
        row = row or await self._get(execution_id)
        if is_terminal(row.status):
            raise AlreadyResumed(
                execution_id, f"run {execution_id} is {row.status}; to run again, fork it or use a new id"
            )
        questions = await self.store.interrupt_list(run_id=execution_id, status=None, limit=10_000)
        answers = choose_answers(execution_id, resume_value, interrupt_id, questions)
        for text in answers.values():
            self.host.settings.limits.check_payload("resume_value", text)
        by = None if answered_by is None else ids.check_id(answered_by, "answered_by")
        await self.store.interrupt_answer(execution_id, answers, answered_by=by, records=records)
        if execution_id in self.host.drives:
            await self.host.take_facts()

    async def _go_on(self, row: RunRow, patches: Sequence[Record]) -> None:
        run_id = row.run_id
        if row.status in (Status.COMPLETED, Status.CANCELLED):
            raise AlreadyResumed(run_id, f"run {run_id} is {row.status}; to run again, fork it or use a new id")
        if row.status == Status.FAILED:
            await self._retry(row, patches)
            return
        if row.status == Status.NEEDS_ATTENTION:
            await self.store.run_reopen(run_id, patches)
            return
        if row.status == Status.WAITING and await self._questions(run_id):
            raise ChainResumeError(f"run {run_id} waits for an answer; give one with resume_value=Resume(approved=...)")
        if row.status == Status.RUNNING and row.worker_id is not None and await self.host.is_alive(row.worker_id):
            raise RunBusy(run_id)
        if patches:
            if row.worker_id is not None:
                await self.host.bury([row.worker_id])
            await self.store.run_patch(run_id, patches)

    async def _repeat(self, row: RunRow, operation_id: str) -> None:
        """A person's decision to perform an operation in doubt again."""
        if row.status != Status.NEEDS_ATTENTION or row.blocked_operation is None:
            raise ChainResumeError(f"run {row.run_id} has no operation in doubt to repeat")
        if operation_id != row.blocked_operation:
            raise ChainResumeError(f"run {row.run_id} is blocked by {row.blocked_operation}, not by {operation_id}")
        loaded = await self.store.run_load(row.run_id)
        operations = fold(loaded.records).operations
        key = keys.key_of(operation_id, row.run_id, operations)
        if key is None:
            raise ChainResumeError(f"run {row.run_id} has no operation {operation_id}")
        op = operations[key]
        await self.store.run_repeat(row.run_id, Record(RecordType.REPEAT, op.path, op.index, op.kind, op.name))

    async def retry(self, runner: Runner, execution_id: str) -> RunResult[Any]:
        """A new attempt of a failed run on the same journal: trailing errors are forgotten, everything else stands."""
        row = await self._get_fitting(runner, execution_id)
        if row.status in (Status.COMPLETED, Status.CANCELLED):
            raise AlreadyResumed(execution_id, f"run {execution_id} is {row.status}; only a failed run can be retried")
        if row.status != Status.FAILED:
            raise RunBusy(execution_id, f"run {execution_id} is {row.status}; only a failed run can be retried")
        await self._retry(row)
        return await self._follow_after(runner, execution_id)

    async def _retry(self, row: RunRow, patches: Sequence[Record] = ()) -> None:
        loaded = await self.store.run_load(row.run_id)
        plan = recovery.plan_retry_of(loaded.records)
        if plan.blocked_by is not None:
            op = plan.blocked_by
            raise ChainResumeError(
                f"run {row.run_id} failed with the error of {op.kind} {op.name!r} ({op.key}), which the code "
                "handled: other "
                "operations ran after it. A retry would only replay that; fork before it: "
                f"checkpoint_id='{_before(loaded, op.seq)}'"
            )
        await self.store.run_retry(row.run_id, [*plan.drops, *patches])

    async def fork(
        self,
        runner: Runner,
        execution_id: str,
        *,
        checkpoint_id: str | int | None = None,
        value: Any = None,
        has_value: bool = False,
        new_id: str | None = None,
        state_patch: str | None = None,
    ) -> RunResult[Any]:
        """Branch into a new, independent run that begins with what was recorded up to the checkpoint. The source is
        untouched.

        A new input makes sense only from the start: with one, nothing else is taken over. `state_patch` (encoded, of a
        runner that has a state) is the first thing recorded after the fork point.
        """
        row = await self._get_fitting(runner, execution_id)
        if row.status == Status.RUNNING and checkpoint_id is None:
            raise RunBusy(execution_id, f"run {execution_id} is being run right now; name the checkpoint to fork from")
        loaded = await self.store.run_load(execution_id)
        seq = 1 if has_value else checkpoints.fork_point(loaded, checkpoint_id)
        run_id = new_run_id() if new_id is None else ids.check_id(new_id, "new_id")
        data = runner.encode_input(value) if has_value else None
        fork = fork_of(runner, loaded, ForkPoint(run_id, seq, data, self._patches(state_patch)))
        await self.store.run_fork(fork.run, fork.records, fork.answered)
        return await self._follow_after(runner, run_id)

    async def cancel(self, execution_id: str, *, cancelled_by: str | None = None) -> str:
        """Ask for a run to be cancelled; durable when this returns. Returns the run's status at that moment: an owned
        run becomes cancelled as soon as its owner notices, and cannot end otherwise any more."""
        self._check_open()
        by = None if cancelled_by is None else ids.check_id(cancelled_by, "cancelled_by")
        owner = (await self._get(execution_id)).worker_id
        dead = [] if owner == self.host.worker_id else await dead_owners(self.store, owner)
        row = await self.store.run_cancel(execution_id, cancelled_by=by, dead_workers=dead)
        if execution_id in self.host.drives:
            await self.host.take_facts()
        self.host.news.tell()
        return row.status

    def stream(self, execution_id: str, *, after: int = 0) -> AsyncIterator[Event]:
        """Committed events after `after`, ascending, none twice, none missing; ends when the run has ended."""
        return stream(self.store, execution_id, after)

    # Working.

    async def work(
        self, runners: Iterable[Runner], *, until_idle: bool = False, concurrency: int | None = None
    ) -> None:
        """Claim, recover and continue what the store holds for these runners, until stopped (or until nothing is left
        to do)."""
        self._check_open()
        work = Work(self.host, {runner.name: runner for runner in runners}, concurrency)
        self._works.add(work)
        try:
            await work.run(until_idle=until_idle)
        finally:
            self._works.discard(work)

    async def recover(self, runners: Iterable[Runner]) -> None:
        """`work(until_idle=True)`: paused runs remain, everything else of these runners has ended."""
        await self.work(runners, until_idle=True)

    def _check_open(self) -> None:
        if isinstance(current(), TaskScope):
            raise PerdureError(
                "runs are started, resumed and forked from a step; or call the workflow: `await other(x)`"
            )
        if self.host.is_closing:
            raise DurableStorageError("the engine is closed")


async def _durable(drive: Drive) -> None:
    """Wait until the creation of a run is durable; raises what it was refused with."""
    done = asyncio.Event()
    drive.recorder.after_commit(1, done.set)
    await done.wait()
    if drive.lane.refused is not None:
        raise drive.lane.refused


def _check_same(row: RunRow, runner: Runner, digest: str) -> None:
    if (row.runner, row.kind) != (runner.name, runner.kind):
        raise DurableConflictError(f"run id {row.run_id} belongs to {row.kind} {row.runner!r}, not to {runner.name!r}")
    if row.input_digest != digest:
        raise DurableConflictError(f"run id {row.run_id} exists with other input; use another id")


def _before(loaded: Loaded, seq: int) -> str:
    earlier = [c.checkpoint_id for c in checkpoints.checkpoints(loaded) if c.seq < seq]
    return earlier[-1] if earlier else f"{loaded.run.run_id}:1"


def _shown(url: str) -> str:
    """A store's URL without its password."""
    head, at, tail = url.rpartition("@")
    return f"{head.split('://')[0]}://...@{tail}" if at else url


class _Opening:
    """`await open_engine(...)`, or `async with open_engine(...) as engine`."""

    def __init__(self, opening: Coroutine[Any, Any, Engine]) -> None:
        self._opening = opening
        self._engine: Engine | None = None

    def __await__(self) -> Generator[Any, None, Engine]:
        return self._opening.__await__()

    async def __aenter__(self) -> Engine:
        self._engine = await self._opening
        return self._engine

    async def __aexit__(self, *_: object) -> None:
        if self._engine is not None:
            await self._engine.close()


def open_engine(
    store: str | Store | None = None, *, settings: EngineSettings | None = None, is_inline: bool = False
) -> _Opening:
    """Open an engine in the running event loop: on a URL (default `get_config().store_url`), or on an open store that
    stays the caller's. Awaitable, and an asynchronous context manager. `is_inline` is for callers that own their
    loop: commits may be made on it."""
    chosen = get_config().store_url if store is None else store
    if not isinstance(chosen, str) and not hasattr(chosen, "run_load"):
        raise InvalidInputError("store", f"expected a URL or an open store, got {type(chosen).__qualname__}")
    if settings is not None and not isinstance(settings, EngineSettings):
        raise InvalidInputError("settings", f"expected EngineSettings, got {type(settings).__qualname__}")
    return _Opening(_open(chosen, settings, is_inline))


async def _open(store: str | Store, settings: EngineSettings | None, is_inline: bool) -> Engine:
    from perdure.store.open import open_store  # drivers are loaded when a store is opened

    owns = isinstance(store, str)
    opened: Store = await asyncio.to_thread(open_store, store) if isinstance(store, str) else store
    try:
        host = Host(opened, settings or EngineSettings(), is_inline=is_inline)
        await host.open()
    except BaseException:
        if owns:
            await opened.close()
        raise
    return Engine(host, owns_store=owns)
