"""Runs the bodies of operations on the real loop or in threads: when they start, their attempts, their time limits.

Decides, with `core.recovery` and `core.retry`, whether a body runs, runs again or may not. A body that is not `safe`
starts only after everything enqueued before it is durable, a `manual` one after its own `started` record, too (law
2).
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import random
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from perdure.core import codec, recovery, retry
from perdure.core.fold import Operation
from perdure.core.records import OutcomeKind, Recovery
from perdure.engine import doubts
from perdure.engine.calls import Call, Outcome
from perdure.engine.context import BodyScope, place
from perdure.errors import InterruptSignal, PerdureError, RunLost, SerializationError

if TYPE_CHECKING:
    from perdure.engine.drive import Drive

_CLOSING_S = 1.0
"""A loop that is being closed takes less than this from cancelling its tasks to closing its engines."""


class Bodies:
    """The bodies of one drive."""

    def __init__(self, drive: Drive) -> None:
        self.drive = drive
        self._running: dict[Call, asyncio.Future[Any]] = {}
        self._due: dict[Call, asyncio.TimerHandle] = {}
        self._starting: set[Call] = set()
        self._late: set[asyncio.Future[Any]] = set()
        self._cancelled: dict[Call, asyncio.TimerHandle] = {}
        """Bodies that somebody cancelled: in doubt until it is clear that the loop goes on."""

    @property
    def is_running(self) -> bool:
        """A body runs or is about to; one that waits for its next attempt does not count."""
        return bool(self._running or self._starting or self._cancelled)

    @property
    def is_any_left(self) -> bool:
        """A body runs, or a thread that nobody waits for."""
        return bool(self._running or self._late)

    def next_due_s(self) -> float | None:
        """Seconds until the next attempt of any operation is due."""
        now = self.drive.real_loop.time()
        return min((max(0.0, handle.when() - now) for handle in self._due.values()), default=None)

    def start(self, calls: list[Call]) -> None:
        """Start what the code has called since the last time, in the order of the calls."""
        if not calls:
            return
        started, calls[:] = calls[:], []
        for call in started:
            if call.is_given_up or call.is_settled:
                continue
            self._start(call)

    def _start(self, call: Call) -> None:
        op = self.drive.journal.operations.get(call.key)
        match recovery.decide(op):
            case recovery.Action.RUN:
                self._begin(call, op)
            case recovery.Action.WAIT:
                assert op is not None
                call.attempt = op.attempt + 1
                self._schedule(call, op.left_s(self.drive.recorder.clock()))
            case recovery.Action.PARK:
                self.drive.let_go(call)
                self.drive.questions.park(call)
            case recovery.Action.RETURN | recovery.Action.DOUBT:
                # Recorded outcomes were released before anything starts; doubts stopped the run then.
                raise AssertionError(f"operation {call.key} cannot start")

    def _begin(self, call: Call, op: Operation | None = None) -> None:
        """Record that the body begins, and start it behind the barrier its policy asks for."""
        drive = self.drive
        drive.hold(call)
        if op is not None:
            call.attempt = max(call.attempt, op.attempt, 1)
        policy = op.recovery if op is not None and op.recovery else call.spec.recovery
        self._starting.add(call)
        if policy == Recovery.SAFE and call.attempt == 1 and op is None:
            self._run(call)
            return
        drive.recorder.begin(call)
        n = drive.recorder.next_entry()
        drive.recorder.after_commit(n, self._run, call)

    def again(self, call: Call) -> None:
        """Run the body from its top under the same operation id: a question of it was answered."""
        self._starting.add(call)
        self.drive.hold(call)
        self.drive.recorder.begin(call)
        self.drive.recorder.after_commit(self.drive.recorder.next_entry(), self._run, call)

    def _run(self, call: Call) -> None:
        drive = self.drive
        if call not in self._starting:
            return
        self._starting.discard(call)
        if drive.is_closed or call.is_given_up:
            return
        scope = call.scope = BodyScope(drive, call)
        context = (call.context or contextvars.Context()).copy()
        context.run(place.set, scope)
        call.is_timed_out = False
        body = call.body = launch(drive, call, context, self._returned)
        self._running[call] = body
        call.on_done = functools.partial(self._done, call)
        body.add_done_callback(call.on_done)
        if call.spec.timeout_s is not None:
            handle = drive.real_loop.call_later(call.spec.timeout_s, self._time_out, call, body)
            body.add_done_callback(lambda _: handle.cancel())

    def _time_out(self, call: Call, body: asyncio.Future[Any]) -> None:
        if body.done() or call.is_given_up:
            return
        call.is_timed_out = True
        if call.spec.is_async:
            body.cancel()
            return
        # The thread cannot be stopped: the attempt has failed now, the next one waits until the thread has ended.
        self._leave_behind(call, body)
        self._failed(call, doubts.time_is_up(call.spec), body)

    def _leave_behind(self, call: Call, body: asyncio.Future[Any]) -> None:
        """A thread whose result nobody waits for any more: the run may pause and end without it."""
        self._late.add(body)
        self._running.pop(call, None)

    # How a body ended.

    def _returned(self, call: Call, value: Any) -> None:
        """An async body has returned, and its task is about to end. The run goes on here and now, in this turn of the
        loop: to be called back in the next one costs a cheap step a tenth of its time. All but the usual case is left
        to `_done`, which also comes after what the body has told the loop."""
        drive, scope = self.drive, call.scope
        if drive.is_closed or drive.told or call.is_given_up or call.is_timed_out or scope is None or scope.open_slot:
            return
        body = asyncio.current_task()
        if body is None or self._running.get(call) is not body:  # an eager task, that ran while it was made
            return
        outcome = encode_value(call, value)
        assert call.on_done is not None
        self._running.pop(call).remove_done_callback(call.on_done)
        scope.is_closed = True
        # Nothing that the run starts shall find itself inside this body.
        contextvars.Context().run(drive.arrive, call, outcome)

    def _done(self, call: Call, body: asyncio.Future[Any]) -> None:
        drive = self.drive
        if body not in self._late:
            self._running.pop(call, None)
        scope = call.scope
        if scope is not None and scope.call.body is body:
            scope.is_closed = True
        if drive.ended.done():
            self._late.discard(body)
            _retrieve(body)
            drive.dispose()
            return
        if body in self._late:
            self._late.discard(body)
            drive.note_late(call, self._outcome(call, body))
            drive.pump()
            return
        if scope is not None and scope.open_slot and not call.is_given_up:
            self._suspend(call, scope, body)
            return
        if self._was_cancelled_by_others(call, body):
            self._cancelled[call] = drive.real_loop.call_later(_CLOSING_S, self._cancelled_itself, call)
            return
        if call.is_timed_out:
            self._failed(call, doubts.time_is_up(call.spec))
            return
        error = None if body.cancelled() else body.exception()
        if isinstance(error, RunLost):
            self._after_end(call, None)
            return
        if error is not None and not call.is_given_up and isinstance(error, Exception):
            self._failed(call, error)
            return
        self._ended(call, self._outcome(call, body))

    def _cancelled_itself(self, call: Call) -> None:
        """The loop still runs, so it was not closed under the body: the body, or something in it, cancelled its
        task."""
        if self._cancelled.pop(call, None) is not None:
            error = asyncio.CancelledError("the body cancelled itself")
            self._ended(call, Outcome(OutcomeKind.ERROR, codec.encode_error(error)))

    def _was_cancelled_by_others(self, call: Call, body: asyncio.Future[Any]) -> bool:
        """Not this run cancelled the body: its loop is being closed under it, or it did so itself."""
        if not body.cancelled() or call.is_given_up or call.is_timed_out or self.drive.is_closed:
            return False
        return isinstance(body, asyncio.Task) and body.cancelling() > 0

    def _outcome(self, call: Call, body: asyncio.Future[Any]) -> Outcome:
        if body.cancelled():
            if call.is_given_up or self.drive.is_closed:
                return Outcome(OutcomeKind.CANCELLED, None)
            return Outcome(OutcomeKind.ERROR, codec.encode_error(asyncio.CancelledError("the body cancelled itself")))
        error = body.exception()
        if error is not None:
            return Outcome(OutcomeKind.ERROR, codec.encode_error(error))
        return encode_value(call, body.result())

    def _ended(self, call: Call, outcome: Outcome) -> None:
        drive = self.drive
        if drive.is_closed:
            self._after_end(call, outcome)
        else:
            drive.arrive(call, outcome)

    def _after_end(self, call: Call, outcome: Outcome | None) -> None:
        if self.drive.is_closed:
            if outcome is not None and outcome.kind is OutcomeKind.CANCELLED:
                outcome = None  # stopped by us: in doubt, or to be repeated, as its policy says
            self.drive.ending.body_ended(call, outcome)

    def _failed(self, call: Call, error: BaseException, still: asyncio.Future[Any] | None = None) -> None:
        """An attempt failed: another one if the policy says so. `still` is a thread that has not ended yet."""
        drive = self.drive
        if call.is_timed_out and self._policy(call) == Recovery.MANUAL:
            drive.need_attention(doubts.out_of_time(drive.run_id, call.spec.name, call.key))
            return
        spec = call.spec
        delay_s = None
        if spec.retry is not None and not isinstance(error, PerdureError | InterruptSignal):
            delay_s = retry.next_attempt(spec.retry, call.attempt, error, random.random())
        if delay_s is None:
            self._ended(call, Outcome(OutcomeKind.ERROR, codec.encode_error(error)))
            return
        drive.recorder.fail_attempt(call, error, delay_s)
        for op in recovery.trailing_errors(drive.journal, call.key):
            drive.recorder.record(recovery.drop(op))
        if drive.is_closed:
            self._after_end(call, None)  # the next attempt is the next worker's, or a retry's
            return
        call.attempt += 1
        self._schedule(call, delay_s, still)
        drive.pump()

    def _policy(self, call: Call) -> str:
        op = self.drive.journal.operations.get(call.key)
        return (op.recovery if op is not None else None) or call.spec.recovery

    def _schedule(self, call: Call, delay_s: float, still: asyncio.Future[Any] | None = None) -> None:
        loop = self.drive.real_loop
        self._due[call] = loop.call_later(delay_s, self._next_attempt, call, still)

    def _next_attempt(self, call: Call, still: asyncio.Future[Any] | None) -> None:
        drive = self.drive
        if drive.is_closed or call.is_given_up:
            self._due.pop(call, None)
            return
        if still is not None and not still.done():
            still.add_done_callback(lambda _: self._next_attempt(call, None))
            return
        self._due.pop(call, None)
        self._begin(call)
        drive.pump()

    def _suspend(self, call: Call, scope: BodyScope, body: asyncio.Future[Any]) -> None:
        """The body has asked and unwound: one entry stores that and its questions. What it returned is discarded."""
        drive = self.drive
        _warn_if_swallowed(call, body)
        drive.let_go(call)
        if drive.is_closed and drive.ended.done():
            return
        drive.questions.suspend(call, scope)
        if drive.is_closed:
            drive.ending.body_ended(call, None)
        else:
            drive.pump()

    # Stopping.

    def stop(self, call: Call) -> None:
        """The code gave this call up: its body is cancelled; a thread goes on, its result is noted as late."""
        handle = self._due.pop(call, None)
        if handle is not None:
            handle.cancel()
        if call.body is None or call.body.done():
            return
        if call.spec.is_async:
            call.body.cancel()
        else:
            self._leave_behind(call, call.body)

    def stop_all(self) -> None:
        """Cancel every body that can be, and wait for no thread."""
        for call, body in list(self._running.items()):
            if call.spec.is_async:
                body.cancel()
            else:
                self._leave_behind(call, body)

    def _forget_start(self, call: Call) -> None:
        """It is recorded to have begun and has not: nobody shall have to ask whether its effect happened."""
        op = self.drive.journal.operations.get(call.key)
        if op is not None and op.is_in_doubt and self.drive.can_record:
            self.drive.recorder.record(recovery.drop(op))

    def stop_safe(self) -> None:
        """Cancel bodies that may be cut short without harm: the run ends and nobody wants their results."""
        for call, body in list(self._running.items()):
            if call.spec.is_async and self._policy(call) == Recovery.SAFE:
                body.cancel()

    def drop_unstarted(self) -> None:
        """Forget what waits behind a barrier or for its next attempt: the run ends or goes elsewhere."""
        for call in self._starting:
            self._forget_start(call)
        self._starting.clear()
        for handle in self._cancelled.values():
            handle.cancel()
        self._cancelled.clear()
        for handle in self._due.values():
            handle.cancel()
        self._due.clear()


def encode_value(call: Call, value: Any) -> Outcome:
    """A body's result as it is recorded; what cannot be stored is recorded as the error it is, so it is not
    repeated."""
    spec = call.spec
    try:
        if inspect.isgenerator(value) or inspect.isasyncgen(value):
            raise SerializationError("$", f"a {type(value).__name__} is not a value; return a list")
        text, revealed = codec.record(value, spec.declared)
        return Outcome(OutcomeKind.VALUE, text, revealed)
    except SerializationError as error:
        failure = error if spec.unstorable is None else spec.unstorable(f"{spec.name}: {error}")
        return Outcome(OutcomeKind.ERROR, codec.encode_error(failure))


def launch(
    drive: Drive, call: Call, context: contextvars.Context, returned: Callable[[Call, Any], None] | None = None
) -> asyncio.Future[Any]:
    """Start a body: an async one as a task of the real loop, a sync one in a thread, both in their own context. An
    async one tells `returned` its result, still inside its task."""
    spec, loop = call.spec, drive.real_loop
    if spec.is_async:
        return loop.create_task(_call_async(call, returned), context=context)
    work = functools.partial(_call_sync, spec.function, call.args, call.kwargs)
    return drive.plan.threads.submit(loop, lambda: context.run(work))


async def _call_async(call: Call, returned: Callable[[Call, Any], None] | None) -> Any:
    value = await call.spec.function(*call.args, **call.kwargs)
    if returned is not None:
        returned(call, value)
    return value


def _call_sync(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        value = function(*args, **kwargs)
    except StopIteration as error:  # a future cannot carry it; coroutines do the same (PEP 479)
        raise RuntimeError("the function raised StopIteration") from error
    if inspect.isawaitable(value):
        if inspect.iscoroutine(value):
            value.close()
        raise TypeError(f"{function!r} is not an async function but returned an awaitable; make it `async def`")
    return value


def _retrieve(body: asyncio.Future[Any]) -> None:
    if not body.cancelled():
        body.exception()


def _is_signal(error: BaseException | None) -> bool:
    """Whether the signal came out, by itself or in the group that a task group makes of it."""
    if isinstance(error, BaseExceptionGroup):
        return any(_is_signal(inner) for inner in error.exceptions)
    return isinstance(error, InterruptSignal | RunLost)


def _warn_if_swallowed(call: Call, body: asyncio.Future[Any]) -> None:
    if body.cancelled():
        return
    error = body.exception()
    if _is_signal(error):
        return
    came = "returned" if error is None else f"raised {type(error).__name__}"
    warnings.warn(
        f"{call.spec.name} asked a question and then {came}: something in it caught InterruptSignal; the run "
        "is paused all the "
        "same, and what it returned is discarded",
        RuntimeWarning,
        stacklevel=2,
    )
