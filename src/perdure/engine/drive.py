"""Drives one claimed run: executes its runner against its journal, one completion at a time.

Decides when the next completion is released, when bodies may start, when the run is quiet and how it ends. What
happens inside a body is `bodies`, questions are `questions`; what is written and when it is durable is the store's.

A drive lives in the real loop's thread. It replays first (recorded completions, in recorded order), then lives
(completions in order of arrival, each recorded when it is released). One pump is one journal entry, so what a
completion led to is durable together with it. It ends exactly once, with a `DriveEnd`.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import contextvars
import logging
import threading
from collections.abc import Callable
from typing import Any, cast

from perdure.core import keys
from perdure.core.fold import Operation
from perdure.core.records import InterruptRow, Kind, OutcomeKind, RunChange
from perdure.core.states import Status
from perdure.engine import doubts
from perdure.engine.bodies import Bodies
from perdure.engine.calling import CODE_DIFFERS, Calling
from perdure.engine.calls import Call, Outcome
from perdure.engine.context import place
from perdure.engine.ending import DriveEnd, Ending
from perdure.engine.gone import Gone
from perdure.engine.plan import DrivePlan
from perdure.engine.questions import Questions
from perdure.engine.recorder import Recorder
from perdure.engine.runloop import RunLoop, RunTimer
from perdure.engine.timers import Timers
from perdure.errors import DurableRecoveryError, DurableStorageError, InterruptSignal, RunLost

log = logging.getLogger("perdure")

_TEARDOWN_ROUNDS = 100


class Drive:
    """One execution of a run, from its claim until it is paused, ended, given back or lost."""

    def __init__(self, plan: DrivePlan) -> None:
        self.plan = plan
        self.lane = plan.lane
        self.run_id = plan.lane.run_id
        self.thread_id = threading.get_ident()
        self.journal = plan.journal
        self.store = plan.store
        self.settings = plan.settings
        self.real_loop = plan.loop
        self.calls: dict[str, Call] = {}
        self.open: dict[str, Call] = {}
        self.to_start: list[Call] = []
        self.arrived: collections.deque[tuple[Call, Outcome, tuple[str, ...]]] = collections.deque()
        self.bodies = Bodies(self)
        self.questions = Questions(self)
        self.timers = Timers(self)
        self.calling = Calling(self)
        self.ending = Ending(self)
        self.ended: asyncio.Future[DriveEnd] = plan.loop.create_future()
        self.keys_running: dict[str, asyncio.Future[None]] = {}
        """Idempotency keys whose body runs now."""
        self.late_threads: dict[str, asyncio.Future[Any]] = {}
        """Sync calls inside bodies, by key, whose caller has gone while the thread goes on."""
        self.told: collections.deque[object] = collections.deque()
        """What bodies have said that the loop has not come to yet."""
        self.is_paused = False
        """Quiet with a question open, in memory because something else is due soon."""
        self._watchers: list[asyncio.Future[DriveEnd | None]] = []
        self.is_closed = False
        self.is_live = False
        self._fault: DurableRecoveryError | None = None
        self._exclusive: Call | None = None
        self._is_pumping = False
        self._replay: list[str] = []
        self._cursor = 0
        self._context = contextvars.Context()
        self.recorder = Recorder(
            plan.lane,
            plan.journal,
            plan.store,
            plan.settings.limits,
            age_s=plan.age_s,
            is_inline=plan.is_inline,
        )
        self.loop = RunLoop(self, self._context)
        self.root: asyncio.Task[Any] | None = None
        self.tell_state: Callable[[], str | None] | None = None
        """What the runner says of its state for the record of the end, or of a pause."""
        plan.lane.loop = plan.loop
        plan.lane.on_commit = self._committed
        plan.lane.on_refused = self._on_refused

    # Life.

    def start(self) -> None:
        """Begin in a callback of the real loop. Call once."""
        self.real_loop.call_soon(self._begin)

    def _begin(self) -> None:
        if self.is_closed:
            return
        if self.plan.is_cancelled:
            self.ending.stop(RunChange(status=Status.CANCELLED, is_release=True))
            return
        self._context.run(place.set, self)
        self._context.run(self.plan.runner.enter, self.run_id)
        self._replay = self.journal.replay_order()
        self.questions.load()
        try:
            value = self.plan.runner.decode_input(self.journal.recorded_input())
            coro = self.plan.runner.drive(value)
        except Exception as error:
            self.need_attention(DurableRecoveryError(f"run {self.run_id}: its input does not fit: {error}"))
            return
        self.root = self.loop.create_root(coro)
        self.pump()

    def cancel(self) -> None:
        """End as cancelled: code is discarded, bodies are stopped, what they had completed is recorded for the
        audit."""
        self.ending.stop(RunChange(status=Status.CANCELLED, is_release=True))

    def release(self) -> None:
        """Give the run back (shutdown): start nothing, let started bodies end within the grace period, record them."""
        if self.is_live and self.is_quiet():
            due_s = self.timers.next_due_s()
            self.ending.stop(RunChange(status=Status.WAITING, is_release=True, due_in_s=due_s))
        else:
            self.ending.stop(RunChange(status=Status.PENDING, is_release=True))

    def need_attention(self, error: DurableRecoveryError) -> None:
        """Stop for a person: the journal and the code differ, or an operation is in doubt."""
        change = RunChange(
            status=Status.NEEDS_ATTENTION,
            is_release=True,
            blocked_operation=error.operation_id,
            error=keys.storable(str(error)[:4096]),
        )
        self.ending.stop(change, error)

    def abandon(self, reason: str) -> None:
        """Stop at once and record nothing more: the lease is gone, or the process ends."""
        self._on_refused(RunLost(self.run_id, reason))

    # What the code may still do.

    @property
    def is_void(self) -> bool:
        """What the code does is discarded: this drive has ended, or has found a difference."""
        return self.is_closed or self._fault is not None

    @property
    def can_record(self) -> bool:
        """What a body has done can still be recorded: the end is not written, and the run is ours."""
        return not (self.ended.done() or self.ending.is_written)

    def check_open(self) -> None:
        """Raise `RunLost` if what the code does is discarded."""
        if self.is_void:
            raise RunLost(self.run_id, "the run is no longer driven here")

    def check_open_or_cancelled(self) -> None:
        """In place of a cancellation that this drive itself caused: `RunLost`."""
        if self.is_void:
            raise RunLost(self.run_id, "the run is no longer driven here") from None

    def fault(self, error: DurableRecoveryError) -> RunLost:
        """Stop the run for a person; returns what to raise in the workflow code that found out.

        Nothing the code does from here on is recorded; the pump stops the run when the code has come to rest.
        """
        self._fault = self._fault or error
        self.recorder.is_muted = True
        if not self._is_pumping:
            self.real_loop.call_soon(self.need_attention, error)
        return RunLost(self.run_id, str(error))

    def fault_from_body(self, error: DurableRecoveryError) -> RunLost:
        """The same from a body, in whatever thread."""
        self.told.append(error)
        self.real_loop.call_soon_threadsafe(self.need_attention, error)
        return RunLost(self.run_id, str(error))

    def note_from_body(self, call: Call, what: str, data: str) -> None:
        """Note something for people from whatever thread."""
        self.told.append(data)
        self.real_loop.call_soon_threadsafe(self._note, call, what, data)

    def _note(self, call: Call, what: str, data: str) -> None:
        self.told.popleft()
        if not self.is_closed:
            self.recorder.note(call, what, None, data)
            self.recorder.flush()

    def operation_id(self, key: str) -> str:
        return keys.operation_id(self.run_id, key)

    def complete(self, call: Call, outcome: Outcome) -> Outcome:
        """Record how an operation ended, at the run's logical time."""
        return self.recorder.complete(call, outcome, self.loop.now_s)

    # Watchers.

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

    def tell(self, end: DriveEnd | None) -> None:
        watchers, self._watchers = self._watchers, []
        for watcher in watchers:
            if not watcher.done():
                watcher.set_result(end)

    def _committed(self) -> None:
        self.recorder.committed()
        if not self.bodies.is_running and not self.recorder.has_barriers:
            self.pump()  # a commit may have been all that the run was waiting for

    def _on_refused(self, error: BaseException) -> None:
        """An entry was refused: whatever comes later of this run is dropped, here and in the writer."""
        if self.ended.done():
            return
        self.tear_down()
        self.bodies.stop_all()
        self.finish(DriveEnd(status=None, is_lost=True, error=error))
        self.recorder.give_up()

    # The pump.

    def pump(self) -> None:
        """Run the code until it is quiet, releasing completions one at a time. Called from callbacks of the real
        loop."""
        if self.is_closed or self._is_pumping or self.root is None or self.ending.has_begun:
            return
        self._is_pumping = True
        self.is_paused = False
        try:
            self._pump()
        except DurableStorageError as error:
            self._on_refused(error)
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
            if loop.is_spinning:
                self.ending.fail_spinning()
                return
            if self._fault is not None:
                self.need_attention(self._fault)
                return
            if self._exclusive is not None and not self._ready_exclusive():
                break
            if root.done():
                self.ending.root_done(root)
                return
            op = self.next_recorded()
            if op is not None:
                if not self._release_recorded(op):
                    return
            elif not self.is_live and not self._go_live():
                return
            elif self.arrived:
                self._release_arrived()
            else:
                break
        self.bodies.start(self.to_start)
        self.recorder.flush()
        if self.is_quiet():
            self.ending.quiet()

    def next_recorded(self) -> Operation | None:
        """The next completion to be released, while the journal is ahead of the code."""
        if self._cursor >= len(self._replay):
            return None
        return self.journal.operations[self._replay[self._cursor]]

    def left_to_release(self) -> list[str]:
        """Keys of the recorded completions that have not been released."""
        return self._replay[self._cursor :]

    def release_now(self, call: Call) -> Outcome | None:
        """A synchronous call takes its recorded outcome, if it is the next one in order; else None."""
        op = self.next_recorded()
        if op is None or op.key != call.key:
            return None
        self._cursor += 1
        self.loop.now_s = max(self.loop.now_s, op.clock_s)
        call.is_settled = True
        self.open.pop(call.key, None)
        return _recorded(op)

    def hold(self, call: Call) -> None:
        """A synchronous call runs: nothing else of the workflow moves until it has ended, or asks."""
        if call.is_exclusive:
            self._exclusive = call
            self.loop.is_held = True

    def let_go(self, call: Call) -> None:
        """The held synchronous call is over, or waits for a person: the workflow moves again."""
        if self._exclusive is call:
            self._exclusive = None
            self.loop.is_held = False

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

    def _release_recorded(self, op: Operation) -> bool:
        call = self.calls.get(op.key)
        if call is None:
            self._differs(
                op, f"the journal has {op.kind} {op.name!r} at {op.key}, which the code no longer calls; {CODE_DIFFERS}"
            )
            return False
        is_awaited = call.future is not None or call.frozen is not None or call.timer is not None
        if not is_awaited and not call.is_settled:
            self._differs(
                op,
                f"{op.kind} {op.name!r} at {op.key} was awaited when it was recorded, and is not now; {CODE_DIFFERS}",
            )
            return False
        self._cursor += 1
        if op.clock_s > self.loop.now_s:
            self.loop.now_s = op.clock_s
        self._settle(call, _recorded(op))
        return True

    def _go_live(self) -> bool:
        """Everything recorded is released. Before anything new begins, doubts and differences stop the run."""
        doubtful = self.journal.in_doubt()
        if doubtful is not None:
            self.need_attention(doubts.in_doubt(self.run_id, doubtful.name, doubtful.key))
            return False
        for call in (*self.to_start, *self.open.values()):
            op = self.journal.operations.get(call.key)
            if op is not None and op.outcome == OutcomeKind.CANCELLED and not call.is_given_up:
                self._differs(op, f"the code had cancelled {op.kind} {op.name!r} at {op.key}, and now awaits it")
                return False
        self.is_live = True
        self.questions.go_live()
        return True

    def _differs(self, op: Operation, why: str) -> None:
        self.need_attention(DurableRecoveryError(f"run {self.run_id}: {why}", self.operation_id(op.key)))

    def _release_arrived(self) -> None:
        call, outcome, delivered = self.arrived.popleft()
        if call.is_given_up:
            self.recorder.mark_delivered(delivered)
            self.note_late(call, outcome)
            return
        self.loop.now_s = max(self.loop.now_s, self.recorder.clock())
        if delivered:
            self.recorder.mark_delivered(delivered)
        self._settle(call, self.complete(call, outcome))

    def _settle(self, call: Call, outcome: Outcome) -> None:
        if call.is_settled or call.is_given_up:
            return
        call.is_settled = True
        self.open.pop(call.key, None)
        if call.frozen is not None:
            frozen, call.frozen = call.frozen, None
            self.let_go(call)
            self.loop.thaw(frozen, outcome)
        elif call.timer is not None:
            self.timers.fire(call)
        elif call.future is not None and not call.future.done():
            call.future.set_result(outcome)
        call.release()

    def arrive(self, call: Call, outcome: Outcome, delivered: tuple[str, ...] = ()) -> None:
        """A completion from outside the code: released in order of arrival."""
        self.arrived.append((call, outcome, delivered))
        self.pump()

    def note_late(self, call: Call, outcome: Outcome) -> None:
        """What a body returned after the code had given the call up: for people only."""
        if not self.is_closed:
            self.recorder.note(call, "late_result", outcome.kind, outcome.data)

    # Quiet and the end.

    def is_quiet(self) -> bool:
        """Nothing of this run moves in this process."""
        return not (
            self.bodies.is_running
            or self.recorder.has_barriers
            or self.arrived
            or self.loop.is_ready()
            or self.ending.has_begun
        )

    def finish(self, end: DriveEnd) -> None:
        self.is_closed = True
        if not self.ended.done():
            self.ended.set_result(end)
            self.tell(end)
            self.real_loop.call_soon(self.dispose)

    def dispose(self) -> None:
        """Take apart what refers to itself, so that the memory of a completed run is free at once and no collector has
        to look for it. While a body or a thread of it goes on, nothing: its end comes back here."""
        self.loop.dispose()
        if self.bodies.is_any_left or self.late_threads:
            return
        self.bodies.drop_unstarted()
        gone = cast(Drive, Gone(self.run_id))
        for part in (self.bodies, self.questions, self.timers, self.calling, self.ending):
            part.drive = gone
        self.loop.leave(gone)
        for call in self.calls.values():
            call.release()
        self.lane.on_commit = self.lane.on_refused = self.root = None
        self._context = contextvars.Context()

    def tear_down(self) -> None:
        """Unwind the code. Journal calls raise `RunLost`, a frozen question raises `InterruptSignal`; results are
        discarded."""
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
            if self.loop.is_spinning:
                break
        for task in self.loop.tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        log.warning(
            "run %s: %d tasks refuse to end at a pause; they are left behind", self.run_id, len(self.loop.tasks)
        )

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


def _recorded(op: Operation) -> Outcome:
    return Outcome(OutcomeKind(op.outcome or OutcomeKind.VALUE), op.data)
