"""Drives one claimed run: executes its runner against its journal, one completion at a time.

Decides when the next completion is released, when bodies may start, when the run is quiet and how it ends. What happens inside a
body is `bodies`, questions are `questions`; what is written and when it is durable is the store's.

A drive lives in the real loop's thread. It replays first (recorded completions, in recorded order), then lives (completions in order
of arrival, each recorded when it is released). One pump is one journal entry, so what a completion led to is durable together
with it. It ends exactly once, with a `DriveEnd`.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import contextvars
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perdure.core import codec, keys, recovery
from perdure.core.fold import Journal
from perdure.core.records import (
    InterruptRow,
    Kind,
    OutcomeKind,
    Question,
    Record,
    RecordType,
    RunChange,
    StoredRecord,
)
from perdure.core.settings import EngineSettings
from perdure.core.states import Status
from perdure.engine.bodies import Bodies, encode_value
from perdure.engine.calls import Call, CallSpec, Outcome
from perdure.engine.context import TaskScope, place
from perdure.engine.questions import Questions
from perdure.engine.runloop import RunLoop, RunTimer
from perdure.engine.timers import Timers
from perdure.errors import (
    DurableLimitError,
    DurableRecoveryError,
    InterruptSignal,
    PerdureError,
    RunLost,
    SerializationError,
    UnawaitedOperation,
)
from perdure.store.base import Entry, JournalStore, Lane

if TYPE_CHECKING:
    from perdure.engine.runner import Runner

log = logging.getLogger("perdure")

_TEARDOWN_ROUNDS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class DriveEnd:
    """How a drive ended. `status` is what the store now says; `lost` means that somebody else decides."""

    status: Status | None
    is_lost: bool = False
    data: str | None = None
    error: BaseException | None = None


@dataclass(slots=True, kw_only=True)
class DrivePlan:
    """What a drive is made of."""

    lane: Lane
    journal: Journal
    runner: Runner
    store: JournalStore
    settings: EngineSettings
    loop: asyncio.AbstractEventLoop
    version: str | None = None
    is_inline: bool = False
    age_s: float = 0.0
    """Seconds of run time that passed since its last record, by the database's clock."""
    is_cancelled: bool = False
    threads: Any = None


class Drive:
    """One execution of a run, from its claim until it is paused, ended, given back or lost."""

    def __init__(self, plan: DrivePlan) -> None:
        self.plan = plan
        self.lane = plan.lane
        self.run_id = plan.lane.run_id
        self.journal = plan.journal
        self.store = plan.store
        self.settings = plan.settings
        self.real_loop = plan.loop
        self.calls: dict[str, Call] = {}
        self.open: dict[str, Call] = {}
        self.to_start: list[Call] = []
        self.arrived: collections.deque[tuple[Call, Outcome, tuple[str, ...]]] = collections.deque()
        self.barriers: collections.deque[tuple[int, Callable[..., None], tuple[Any, ...]]] = collections.deque()
        self.bodies = Bodies(self)
        self.questions = Questions(self)
        self.timers = Timers(self)
        self.ended: asyncio.Future[DriveEnd] = plan.loop.create_future()
        self.keys_running: dict[str, asyncio.Future[None]] = {}
        """Idempotency keys whose body runs now."""
        self.is_paused = False
        """Quiet with a question open, in memory because something else is due soon."""
        self._watchers: list[asyncio.Future[DriveEnd | None]] = []
        self.is_closed = False
        self.is_live = False
        self._stopping: RunChange | None = None
        self._fault: DurableRecoveryError | None = None
        self._exclusive: Call | None = None
        self._final: tuple[RunChange, str | None, BaseException | None] | None = None
        self._is_pumping = False
        self._batch: list[Record] = []
        self._asked: list[Question] = []
        self._delivered: list[str] = []
        self._replay: list[str] = []
        self._cursor = 0
        self._operation_count = len(plan.journal.operations)
        self._context = contextvars.Context()
        self._clock_base = plan.journal.clock_s + plan.age_s - time.monotonic()
        self.loop = RunLoop(self, self._context)
        self.root: asyncio.Task[Any] | None = None
        plan.lane.loop = plan.loop
        plan.lane.on_commit = self._on_commit
        plan.lane.on_refused = self._on_refused

    # Life.

    def start(self) -> None:
        """Begin in a callback of the real loop. Call once."""
        self.real_loop.call_soon(self._begin)

    def _begin(self) -> None:
        if self.is_closed:
            return
        if self.plan.is_cancelled:
            self._stop(RunChange(status=Status.CANCELLED, is_release=True))
            return
        self._context.run(place.set, self)
        self._context.run(self.plan.runner.enter, self.run_id)
        self._replay = self.journal.replay_order()
        self.questions.load()
        try:
            value = self.plan.runner.decode_input(self.journal.input_data)
            coro = self.plan.runner.drive(value)
        except Exception as error:
            self.need_attention(DurableRecoveryError(f"run {self.run_id}: its input does not fit: {error}"))
            return
        self.root = self.loop.create_root(coro)
        self.pump()

    def cancel(self) -> None:
        """End as cancelled: code is discarded, bodies are stopped, what they had completed is recorded for the audit."""
        self._stop(RunChange(status=Status.CANCELLED, is_release=True))

    def release(self) -> None:
        """Give the run back (shutdown): start nothing, let started bodies end within the grace period, record them."""
        self._stop(RunChange(status=Status.PENDING, is_release=True))

    def need_attention(self, error: DurableRecoveryError) -> None:
        """Stop for a person: the journal and the code differ, or an operation is in doubt."""
        change = RunChange(
            status=Status.NEEDS_ATTENTION, is_release=True, blocked_operation=error.operation_id, error=str(error)[:4096]
        )
        self._stop(change, error)

    def abandon(self, reason: str) -> None:
        """Stop at once and record nothing more: the lease is gone, or the process ends."""
        self._on_refused(RunLost(self.run_id, reason))

    # Calls from workflow code (on the run's loop).

    def call(self, scope: TaskScope, spec: CallSpec, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """Number a call now; its body starts when it is awaited and everything before it is released."""
        self.check_open()
        index = scope.next_index()
        text = spec.arguments(args, kwargs)
        call = Call(spec, scope.path, index, args, kwargs, text, codec.digest(text))
        self.register(call)
        return call

    def register(self, call: Call) -> None:
        """Verify a call against the journal and remember it."""
        if call.key not in self.journal.operations:
            self._count_operation()
        self.verify(call)
        self.calls[call.key] = call
        self.open[call.key] = call

    def verify(self, call: Call) -> None:
        """Raise and stop the run if the journal has another operation in this call's place."""
        op = self.journal.operations.get(call.key)
        if op is None:
            return
        why = recovery.mismatch(op, call.spec.kind, call.spec.name, call.digest, call.shown_arguments)
        if why is not None:
            raise self.fault(DurableRecoveryError(f"run {self.run_id}: {why}", self.operation_id(call.key)))

    async def wait(self, call: Call) -> Any:
        """Wait for a call's outcome, in its recorded turn. A cancelled wait gives the call up."""
        self.check_open()
        future = call.future = self.loop.create_future()
        if not call.context:
            call.context = contextvars.copy_context()
        self.to_start.append(call)
        try:
            outcome: Outcome = await future
        except asyncio.CancelledError:
            self.check_open_or_cancelled()
            self._give_up(call)
            raise
        return self.reveal(outcome, call.spec)

    async def wait_recorded(self, call: Call) -> Any:
        """Wait for the turn of an outcome that is recorded already; nothing starts."""
        self.check_open()
        future = call.future = self.loop.create_future()
        try:
            outcome: Outcome = await future
        except asyncio.CancelledError:
            self.check_open_or_cancelled()
            self._give_up(call)
            raise
        return self.reveal(outcome, call.spec)

    async def wait_arrived(self, call: Call, outcome: Outcome) -> Any:
        """A completion that workflow code itself brought about (a nested workflow's): it takes its turn like any other."""
        self.check_open()
        if outcome.kind is OutcomeKind.CANCELLED:
            self._give_up(call)
            raise asyncio.CancelledError
        self.arrived.append((call, outcome, ()))
        return await self.wait_recorded(call)

    def outcome_of(self, call: Call, value: Any) -> Outcome:
        """A value as it is recorded."""
        return encode_value(call, value)

    def error_outcome(self, call: Call, error: BaseException) -> Outcome | None:
        """An error as it is recorded; None for what is not an outcome (this drive ends, or the process does)."""
        if self.is_closed or self._fault is not None:
            return None
        if isinstance(error, asyncio.CancelledError):
            return Outcome(OutcomeKind.CANCELLED, None)
        if isinstance(error, Exception):
            return Outcome(OutcomeKind.ERROR, codec.encode_error(error))
        return None

    def check_open_or_cancelled(self) -> None:
        """In place of a cancellation that this drive itself caused: `RunLost`."""
        if self.is_closed or self._fault is not None:
            raise RunLost(self.run_id, "the run is no longer driven here") from None

    def wait_exclusive(self, call: Call) -> Any:
        """A synchronous call: its body runs in a thread, the calling task is frozen and nothing else of the workflow moves."""
        self.check_open()
        op = self.journal.operations.get(call.key)
        if op is not None and op.is_completed:
            if self._cursor < len(self._replay) and self._replay[self._cursor] == call.key:
                self._cursor += 1
                self.loop.now_s = max(self.loop.now_s, op.clock_s)
                call.is_settled = True
                self.open.pop(call.key, None)
                return self.reveal(Outcome(OutcomeKind(op.outcome or OutcomeKind.VALUE), op.data), call.spec)
            raise self.fault(
                DurableRecoveryError(
                    f"run {self.run_id}: {op.name!r} at {call.key} is not called at its recorded place",
                    self.operation_id(call.key),
                )
            )
        call.context = contextvars.copy_context()
        call.is_exclusive = True
        self._exclusive = call
        self.loop.is_held = True
        self.to_start.append(call)
        return self.wait_frozen(call)

    def wait_frozen(self, call: Call) -> Any:
        """The same for synchronous code: the calling task is frozen meanwhile, the others go on."""
        self.check_open()

        def keep(frozen: Any) -> None:
            call.frozen = frozen

        return self.reveal(self.loop.freeze(keep), call.spec)

    def reveal(self, outcome: Any, spec: CallSpec) -> Any:
        """An outcome's value or error. A record that no longer fits the declared type stops the run."""
        try:
            return outcome.reveal(spec)
        except SerializationError as error:
            if outcome.kind is OutcomeKind.VALUE:
                raise self.fault(
                    DurableRecoveryError(f"run {self.run_id}: the result of {spec.name!r} does not fit: {error}")
                ) from None
            raise

    def completed_at_once(self, call: Call, make: Callable[[], str]) -> Outcome:
        """A call that is recorded and returns without waiting (`now()`, `patched()`)."""
        op = self.journal.operations.get(call.key)
        if op is not None and op.is_completed:
            return Outcome(OutcomeKind(op.outcome or OutcomeKind.VALUE), op.data)
        return self.complete(call, Outcome(OutcomeKind.VALUE, make()))

    def check_open(self) -> None:
        """Raise `RunLost` once this drive has ended, is being torn down, or has found a difference."""
        if self.is_closed or self._fault is not None:
            raise RunLost(self.run_id, "the run is no longer driven here")

    def fault(self, error: DurableRecoveryError) -> RunLost:
        """Stop the run for a person; returns what to raise in the workflow code that found out.

        Nothing the code does from here on is recorded; the pump stops the run when the code has come to rest.
        """
        self._fault = self._fault or error
        if not self._is_pumping:
            self.real_loop.call_soon(self.need_attention, error)
        return RunLost(self.run_id, str(error))

    def fault_from_body(self, error: DurableRecoveryError) -> RunLost:
        """The same from a body, in whatever thread."""
        self.real_loop.call_soon_threadsafe(self.need_attention, error)
        return RunLost(self.run_id, str(error))

    def record_from_body(self, record: Record) -> None:
        """Take a fact from whatever thread; written with the next entry."""
        self.real_loop.call_soon_threadsafe(self._record_and_flush, record)

    def _record_and_flush(self, record: Record) -> None:
        if not self.is_closed:
            self.record(record)
            self.flush()

    def operation_id(self, key: str) -> str:
        return keys.operation_id(self.run_id, key)

    def _count_operation(self) -> None:
        self._operation_count += 1
        most = self.settings.limits.max_operations
        if self._operation_count > most:
            raise DurableLimitError(f"run {self.run_id} has more than {most} operations (limits.max_operations)")

    def _give_up(self, call: Call) -> None:
        """The code cancelled this call: it is recorded as cancelled before the code goes on."""
        if call.is_settled or call.is_given_up:
            return
        call.is_given_up = True
        self.open.pop(call.key, None)
        op = self.journal.operations.get(call.key)
        if op is None or not op.is_completed:
            self.complete(call, Outcome(OutcomeKind.CANCELLED, None))
        self.bodies.stop(call)

    # Recording.

    def record(self, record: Record) -> None:
        """Take a fact into the journal and into the entry of this pump."""
        if self._fault is not None and not self.is_closed:
            return
        journal = self.journal
        journal.apply(StoredRecord(self.run_id, journal.last_seq + 1, *record, 0.0))
        self._batch.append(record)

    def complete(self, call: Call, outcome: Outcome) -> Outcome:
        """Record how an operation ended; returns what the code is to see (a result too large is an error)."""
        spec = call.spec
        data = outcome.data
        if data is not None and len(data) > self.settings.limits.max_payload_bytes:
            error = DurableLimitError(
                f"the result of {spec.name!r} has {len(data)} bytes, more than limits.max_payload_bytes"
            )
            outcome = Outcome(OutcomeKind.ERROR, codec.encode_error(error))
        self.record(
            Record(
                RecordType.COMPLETED,
                call.path,
                call.index,
                spec.kind,
                spec.name,
                call.digest,
                spec.recovery,
                call.attempt,
                outcome.kind,
                outcome.data,
                None,
                self.loop.now_s,
            )
        )
        return outcome

    def begin(self, call: Call, wait_s: float | None = None) -> None:
        """Record that an operation (or its next attempt) begins."""
        spec = call.spec
        self.record(
            Record(
                RecordType.STARTED,
                call.path,
                call.index,
                spec.kind,
                spec.name,
                call.digest,
                spec.recovery,
                call.attempt,
                None,
                call.shown_arguments,
                wait_s,
                self.clock(),
            )
        )

    def ask(self, question: Question) -> None:
        """Store a question with this pump's entry."""
        self._asked.append(question)

    def mark_delivered(self, interrupt_id: str) -> None:
        self._delivered.append(interrupt_id)

    def flush(self, change: RunChange | None = None) -> int:
        """Hand over what was recorded since the last flush, as one entry. Returns the entry number everything is under."""
        if self._batch or change is not None or self._asked or self._delivered:
            entry = Entry(
                lane=self.lane,
                records=tuple(self._batch),
                change=change,
                questions=tuple(self._asked),
                delivered=tuple(self._delivered),
            )
            self._batch.clear()
            self._asked.clear()
            self._delivered.clear()
            self.store.append(entry)
            if self.plan.is_inline:
                self.store.flush_inline()
        return self.lane.enqueued

    def flush_later(self) -> int:
        """The number of the entry that what was recorded so far will be under, once this pump flushes."""
        has_more = self._batch or self._asked or self._delivered
        return self.lane.enqueued + 1 if has_more else self.lane.enqueued

    def after_commit(self, n: int, action: Callable[..., None], *args: Any) -> None:
        """Run `action` once entry `n` is durable (at once if it is)."""
        if self.lane.committed >= n:
            action(*args)
        else:
            self.barriers.append((n, action, args))

    def _on_commit(self) -> None:
        committed = self.lane.committed
        while self.barriers and self.barriers[0][0] <= committed:
            _, action, args = self.barriers.popleft()
            action(*args)

    def watch(self) -> asyncio.Future[DriveEnd | None]:
        """Resolves with the end, or with None when the run is quiet with a question open."""
        watcher: asyncio.Future[DriveEnd | None] = self.real_loop.create_future()
        if self.ended.done():
            watcher.set_result(self.ended.result())
        elif self.is_paused:
            watcher.set_result(None)
        else:
            self._watchers.append(watcher)
        return watcher

    def _tell(self, end: DriveEnd | None) -> None:
        watchers, self._watchers = self._watchers, []
        for watcher in watchers:
            if not watcher.done():
                watcher.set_result(end)

    def _on_refused(self, error: BaseException) -> None:
        """An entry was refused: whatever comes later of this run is dropped, here and in the writer."""
        if self.ended.done():
            return
        self._teardown()
        self.bodies.stop_all()
        self._finish(DriveEnd(status=None, is_lost=True, error=error))
        while self.barriers:  # whoever waits for a commit goes on, into `RunLost`
            _, action, args = self.barriers.popleft()
            action(*args)

    # The pump.

    def pump(self) -> None:
        """Run the code until it is quiet, releasing completions one at a time. Called from callbacks of the real loop."""
        if self.is_closed or self._is_pumping or self.root is None or self._final is not None:
            return
        self._is_pumping = True
        self.is_paused = False
        try:
            self._pump()
        except Exception as error:
            log.exception("run %s: the engine failed", self.run_id)
            self._on_refused(error)
        finally:
            self._is_pumping = False

    def _pump(self) -> None:
        loop, root = self.loop, self.root
        assert root is not None
        while True:
            loop.drain()
            if self._fault is not None:
                self.need_attention(self._fault)
                return
            if self._exclusive is not None and not self._ready_exclusive():
                break
            if root.done():
                self._root_done(root)
                return
            if self._cursor < len(self._replay):
                if not self._release_recorded():
                    return
            elif not self.is_live and not self._go_live():
                return
            elif self.arrived:
                self._release_arrived()
            else:
                break
        self.bodies.start(self.to_start)
        self.flush()
        if self.is_quiet():
            self._quiet()

    def _ready_exclusive(self) -> bool:
        """Bring the synchronous call's completion to the front, if it has come: it is the next one released."""
        if not self.is_live:
            return True
        for position, (call, _, _) in enumerate(self.arrived):
            if call is self._exclusive:
                self.arrived.rotate(-position)
                first = self.arrived.popleft()
                self.arrived.rotate(position)
                self.arrived.appendleft(first)
                return True
        return False

    def _release_recorded(self) -> bool:
        key = self._replay[self._cursor]
        call = self.calls.get(key)
        op = self.journal.operations[key]
        if call is None:
            self.need_attention(
                DurableRecoveryError(
                    f"run {self.run_id}: the journal has {op.kind} {op.name!r} at {key}, which the code no longer calls",
                    self.operation_id(key),
                )
            )
            return False
        is_awaited = call.future is not None or call.frozen is not None or call.timer is not None
        if not is_awaited and not call.is_settled or call.is_exclusive:
            self.need_attention(
                DurableRecoveryError(
                    f"run {self.run_id}: {op.kind} {op.name!r} at {key} was awaited when it was recorded, and is not now",
                    self.operation_id(key),
                )
            )
            return False
        self._cursor += 1
        if op.clock_s > self.loop.now_s:
            self.loop.now_s = op.clock_s
        self._settle(call, Outcome(OutcomeKind(op.outcome or OutcomeKind.VALUE), op.data))
        return True

    def _go_live(self) -> bool:
        """Everything recorded is released. Before anything new begins, doubts and differences stop the run."""
        doubtful = self.journal.in_doubt()
        if doubtful is not None:
            self.need_attention(
                DurableRecoveryError(
                    f"run {self.run_id}: {doubtful.kind} {doubtful.name!r} was begun and its end is not known; it is "
                    "recovery='manual', so a person decides: repeat it with repeat_operation="
                    f"{self.operation_id(doubtful.key)!r}, or cancel the run",
                    self.operation_id(doubtful.key),
                )
            )
            return False
        for call in self.to_start:
            op = self.journal.operations.get(call.key)
            if op is not None and op.outcome == OutcomeKind.CANCELLED and not call.is_given_up:
                self.need_attention(
                    DurableRecoveryError(
                        f"run {self.run_id}: the code had cancelled {op.kind} {op.name!r} at {call.key}, and now awaits it",
                        self.operation_id(call.key),
                    )
                )
                return False
        self.is_live = True
        self.questions.go_live()
        return True

    def _release_arrived(self) -> None:
        call, outcome, delivered = self.arrived.popleft()
        if call.is_given_up:
            self.note_late(call, outcome)
            return
        self.loop.now_s = max(self.loop.now_s, self.clock())
        self._delivered.extend(delivered)
        self._settle(call, self.complete(call, outcome))

    def _settle(self, call: Call, outcome: Outcome) -> None:
        if call.is_settled or call.is_given_up:
            return
        call.is_settled = True
        self.open.pop(call.key, None)
        if call.frozen is not None:
            frozen, call.frozen = call.frozen, None
            if call.is_exclusive:
                self._exclusive = None
                self.loop.is_held = False
            self.loop.thaw(frozen, outcome)
        elif call.timer is not None:
            self.timers.fire(call)
        elif call.future is not None and not call.future.done():
            call.future.set_result(outcome)

    def arrive(self, call: Call, outcome: Outcome, delivered: tuple[str, ...] = ()) -> None:
        """A completion from outside the code: released in order of arrival."""
        self.arrived.append((call, outcome, delivered))
        self.pump()

    def note_late(self, call: Call, outcome: Outcome) -> None:
        """What a body returned after the code had given the call up: for people only."""
        if not self.is_closed:
            self.record(
                Record(RecordType.NOTE, call.path, call.index, call.spec.kind, "late_result", None, None, 0,
                       outcome.kind, outcome.data, None, self.loop.now_s)
            )  # fmt: skip

    def clock(self) -> float:
        """Seconds of run time, as recorded with completions; survives restarts."""
        return self._clock_base + time.monotonic()

    # Quiet and the end.

    def is_quiet(self) -> bool:
        """Nothing of this run moves in this process."""
        return not (
            self.bodies.is_busy
            or self.barriers
            or self.arrived
            or self.loop.is_ready()
            or self._final is not None
            or self._stopping is not None
        )

    def _quiet(self) -> None:
        due_s = self.timers.next_due_s()
        has_question = self.questions.is_open()
        if due_s is None and not has_question:
            self._fail_stuck()
            return
        if due_s is not None and due_s < self.settings.stay_s:
            if has_question:
                self.after_commit(self.lane.enqueued, self._pause_here)
            return
        self._final = (RunChange(status=Status.WAITING, is_release=True, due_in_s=due_s), None, None)
        self._write_end()

    def _pause_here(self) -> None:
        if not self.is_closed and self.is_quiet():
            self.is_paused = True
            self._tell(None)

    def _fail_stuck(self) -> None:
        error = PerdureError(
            "the workflow waits for something that nothing in it can bring about (an event nobody sets, an abandoned call)"
        )
        self._end_with(Status.FAILED, codec.encode_error(error), error)

    def _root_done(self, root: asyncio.Task[Any]) -> None:
        """The runner returned or raised. Bodies still running are awaited and recorded before the end is."""
        status, data, error = self._result_of(root)
        if self.journal_is_ahead():
            return
        self._end_with(status, data, error)

    def journal_is_ahead(self) -> bool:
        """The code ended before the journal did: it is another program than the one recorded."""
        if self._cursor >= len(self._replay):
            return False
        op = self.journal.operations[self._replay[self._cursor]]
        self.need_attention(
            DurableRecoveryError(
                f"run {self.run_id}: the code ended, but the journal goes on with {op.kind} {op.name!r} at {op.key}",
                self.operation_id(op.key),
            )
        )
        return True

    def _result_of(self, root: asyncio.Task[Any]) -> tuple[Status, str | None, BaseException | None]:
        error: BaseException | None
        if root.cancelled():
            error = asyncio.CancelledError("the workflow cancelled itself")
        else:
            error = root.exception()
        if isinstance(error, RunLost):
            error = PerdureError(f"the workflow raised RunLost by itself: {error}")
        if error is None:
            left = [call.spec.name for call in self.open.values() if call.spec.kind != Kind.TIMER]
            if not left:
                return self._encode_result(root.result())
            error = UnawaitedOperation(left)
        return Status.FAILED, codec.encode_error(error), error

    def _encode_result(self, value: Any) -> tuple[Status, str | None, BaseException | None]:
        try:
            data = self.plan.runner.encode_output(value)
            if len(data) > self.settings.limits.max_payload_bytes:
                raise DurableLimitError(f"the result has {len(data)} bytes, more than limits.max_payload_bytes")
        except PerdureError as error:
            return Status.FAILED, codec.encode_error(error), error
        return Status.COMPLETED, data, None

    def _end_with(self, status: Status, data: str | None, error: BaseException | None) -> None:
        self._final = (
            RunChange(status=status, is_release=True, error=None if error is None else _summary(error)),
            data,
            error,
        )
        self.to_start.clear()
        self._teardown()
        self.bodies.drop_unstarted()
        if not self.bodies.is_running:
            self._write_end()

    def body_ended(self, call: Call, outcome: Outcome | None) -> None:
        """A body ended after the code did: recorded for the audit and for what a retry may find; then the end."""
        if outcome is not None and not call.is_given_up:
            self.complete(call, outcome)
        if not self.bodies.is_running and self._final is not None and not self.ended.done():
            self._write_end()

    def _stop(self, change: RunChange, error: BaseException | None = None) -> None:
        """End without the code's consent: what it does from here on is discarded."""
        if self.is_closed:
            return
        self._final = (change, None, error)
        self._stopping = change
        self._teardown()
        self.bodies.drop_unstarted()
        if change.status == Status.CANCELLED:
            self.bodies.stop_all()
        if not self.bodies.is_running:
            self._write_end()

    def _write_end(self) -> None:
        assert self._final is not None
        change, data, error = self._final
        if change.status in (Status.COMPLETED, Status.FAILED):
            cause = self._cause(error)
            self.record(
                Record(RecordType.STATUS, outcome=change.status, data=data, name=cause, clock_s=max(self.loop.now_s, self.clock()))
            )  # fmt: skip
        elif change.status != Status.WAITING or not self.is_closed:
            self.record(
                Record(RecordType.STATUS, outcome=change.status, data=_why(error), clock_s=max(self.loop.now_s, self.clock()))
            )  # fmt: skip
        n = self.flush(change)
        self.after_commit(n, self._end_committed)

    def _end_committed(self) -> None:
        if self.ended.done():
            return
        assert self._final is not None
        _, data, error = self._final
        status = Status(self.lane.final_status or self._final[0].status)
        self._teardown()
        if status == Status.CANCELLED:
            data = error = None
        self._finish(DriveEnd(status=status, data=data, error=error))

    def _cause(self, error: BaseException | None) -> str | None:
        """The key of the operation whose recorded error failed the run: what a retry has to get past."""
        seen: set[int] = set()
        while error is not None and id(error) not in seen:
            seen.add(id(error))
            key = getattr(error, "perdure_operation", None)
            if isinstance(key, str):
                return key
            error = error.__cause__ or error.__context__
        return None

    def _finish(self, end: DriveEnd) -> None:
        self.is_closed = True
        if not self.ended.done():
            self.ended.set_result(end)
            self._tell(end)

    def _teardown(self) -> None:
        """Unwind the code. Journal calls raise `RunLost`, a frozen question raises `InterruptSignal`; results are discarded."""
        if self.is_closed:
            return
        self.is_closed = True
        self.loop.is_held = False
        self.timers.stop()
        for call in list(self.open.values()):
            if call.frozen is not None:
                frozen, call.frozen = call.frozen, None
                self.loop.thaw(frozen, self._parting(call))
        for _ in range(_TEARDOWN_ROUNDS):
            for task in list(self.loop.tasks):
                task.cancel()
            self.loop.drain()
            if not self.loop.tasks:
                return
        for task in self.loop.tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        log.warning("run %s: %d tasks refuse to end at a pause; they are left behind", self.run_id, len(self.loop.tasks))

    def _parting(self, call: Call) -> BaseException:
        if call.spec.kind == Kind.INTERRUPT:
            return InterruptSignal(call.spec.name, call.kwargs)
        return RunLost(self.run_id, "the run is no longer driven here")

    def loop_error(self, context: dict[str, Any]) -> None:
        """What asyncio would print: an exception nobody retrieved."""
        if not self.is_closed:
            with contextlib.suppress(Exception):
                log.warning("run %s: %s", self.run_id, context.get("message"), exc_info=context.get("exception"))

    # From the engine.

    def timer_made(self, handle: RunTimer, delay_s: float) -> None:
        self.timers.made(handle, delay_s)

    def answers_came(self, rows: list[InterruptRow]) -> None:
        """Answers stored since the load, in order of arrival."""
        if not self.is_closed:
            self.questions.came(rows)
            self.pump()


def _summary(error: BaseException) -> str:
    return f"{type(error).__qualname__}: {error}"[:4096]


def _why(error: BaseException | None) -> str | None:
    return None if error is None else codec.encode(str(error)[:4096])

