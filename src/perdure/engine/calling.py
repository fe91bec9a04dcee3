"""Calls from workflow code: numbered when they are made, verified against the journal, waited for in their recorded
turn.

Decides what a call gets (its recorded outcome, a wait, an error) and what a cancelled wait means; the drive decides
when. Used by `flow` and by other runners; every method here runs on the run's loop.
"""

from __future__ import annotations

import asyncio
import contextvars
import copy
from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any

from perdure.core import codec, keys, recovery
from perdure.core.records import OutcomeKind
from perdure.engine.bodies import encode_value
from perdure.engine.calls import Call, CallSpec, Outcome
from perdure.engine.context import Around, TaskScope
from perdure.errors import (
    DurableLimitError,
    DurableRecoveryError,
    SerializationError,
    UnawaitedOperation,
)

if TYPE_CHECKING:
    from perdure.engine.drive import Drive


_UNWIND_ROUNDS = 1000
CODE_DIFFERS = "restore the code and resume, or guard the change with patched(); answers given are kept"
"""What to do about code that no longer fits a journal."""


def mark_cause(error: BaseException, key: str) -> None:
    """Remember on an exception which operation's recorded error it is: what a retry has to get past."""
    error.perdure_operation = key  # type: ignore[attr-defined]


_IMMUTABLE = frozenset({str, int, float, bool, type(None), bytes, complex})


def own_copy(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments as the body gets them: its own, so that what it does to them is not seen once and never at replay."""
    if not kwargs and all(type(arg) in _IMMUTABLE for arg in args):
        return args, kwargs
    return copy.deepcopy(args), copy.deepcopy(kwargs)


class PendingCall(Coroutine[Any, Any, Any]):
    """A call that has been made, to be awaited. One that is thrown away before it began (its task was cancelled, it was
    closed) is given up like any other cancelled call; a plain coroutine could not tell."""

    __slots__ = ("_call", "_calling", "_coro", "_is_begun")

    def __init__(self, calling: Calling, call: Call, coro: Coroutine[Any, Any, Any]) -> None:
        self._calling = calling
        self._call = call
        self._coro = coro
        self._is_begun = False

    def __await__(self) -> Generator[Any, None, Any]:
        self._is_begun = True
        return self._coro.__await__()

    def send(self, value: Any) -> Any:
        self._is_begun = True
        return self._coro.send(value)

    def throw(self, *exception: Any) -> Any:
        self._give_up_unbegun()
        return self._coro.throw(*exception)

    def close(self) -> None:
        self._give_up_unbegun()
        self._coro.close()

    def _give_up_unbegun(self) -> None:
        if not self._is_begun and not self._calling.is_void:
            self._is_begun = True
            self._calling.give_up(self._call)


class Calling:
    """The calls of one drive."""

    def __init__(self, drive: Drive) -> None:
        self.drive = drive

    def call(self, scope: TaskScope, spec: CallSpec, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """Number a call now; its body starts when it is awaited and everything before it is released."""
        self.drive.check_open()
        index = scope.next_index()
        limits = self.drive.settings.limits
        text = limits.check_payload(f"the arguments of {spec.name!r}", spec.arguments(args, kwargs))
        call = Call(spec, scope.path, index, *own_copy(args, kwargs), text, codec.digest(text))
        self.register(call)
        return call

    def register(self, call: Call) -> None:
        """Verify a call against the journal and remember it."""
        if call.key not in self.drive.journal.operations:
            self._count_operation()
        self.verify(call)
        self.drive.calls[call.key] = call
        self.drive.open[call.key] = call

    def verify(self, call: Call) -> None:
        """Raise and stop the run if the journal has another operation in this call's place."""
        op = self.drive.journal.operations.get(call.key)
        if op is None:
            return
        why = recovery.mismatch(op, call.spec.kind, call.spec.name, call.digest, call.shown_arguments)
        if why is not None:
            raise self.drive.fault(
                DurableRecoveryError(
                    f"run {self.drive.run_id}: {why}; {CODE_DIFFERS}", self.drive.operation_id(call.key)
                )
            )

    async def wait(self, call: Call) -> Any:
        """Wait for a call's outcome, in its recorded turn. A cancelled wait gives the call up."""
        self._start(call)
        return await self.wait_recorded(call)

    def begin(self, call: Call) -> asyncio.Future[Outcome]:
        """The same for who waits for many calls at once: a future of the outcome. Who no longer waits gives it up."""
        self._start(call)
        return self.expect(call)

    def expect(self, call: Call) -> asyncio.Future[Outcome]:
        """The future of a call that has no body, or whose body is started elsewhere."""
        self.drive.check_open()
        call.future = self.drive.loop.create_future()
        return call.future

    def _start(self, call: Call) -> None:
        self.drive.check_open()
        if not call.context:
            call.context = contextvars.copy_context()
        self.drive.to_start.append(call)

    async def wait_recorded(self, call: Call) -> Any:
        """Wait for an outcome in its turn, of a call that is started already or recorded."""
        future = self.expect(call)
        try:
            outcome = await future
        except asyncio.CancelledError:
            self.drive.check_open_or_cancelled()
            self.give_up(call)
            raise
        return self.reveal(call, outcome)

    async def wait_arrived(self, call: Call, outcome: Outcome) -> Any:
        """A completion that workflow code itself brought about (a nested workflow's): it takes its turn like any
        other."""
        self.drive.check_open()
        if outcome.kind is OutcomeKind.CANCELLED:
            self.give_up(call)
            raise asyncio.CancelledError
        self.drive.arrived.append((call, outcome, ()))
        return await self.wait_recorded(call)

    @property
    def is_void(self) -> bool:
        return self.drive.is_void

    def pending(self, call: Call, coro: Coroutine[Any, Any, Any] | None = None) -> PendingCall:
        """What workflow code awaits; `coro` does the waiting where it is more than `wait`."""
        return PendingCall(self, call, self.wait(call) if coro is None else coro)

    async def unwind_cancelled(self, around: Around) -> None:
        """Let tasks of a nested workflow that it has cancelled end before it is looked at what it has left open."""
        for _ in range(_UNWIND_ROUNDS):
            tasks = [task for task in self.drive.loop.tasks if task.scope.around is around]
            if not any(task.cancelling() and not task.done() for task in tasks):
                return
            await asyncio.sleep(0)

    def check_awaited(self, call: Call) -> None:
        """A nested workflow has returned: raise if calls of it are still open."""
        left = [c.spec.name for c in self.drive.open.values() if keys.is_below(c.path, call.key) and c.timer is None]
        if left:
            raise UnawaitedOperation(left)

    def outcome_of(self, call: Call, value: Any) -> Outcome:
        """A value as it is recorded."""
        return encode_value(call, value)

    def error_outcome(self, call: Call, error: BaseException) -> Outcome | None:
        """An error as it is recorded; None for what is not an outcome (this drive ends, or the process does)."""
        if self.drive.is_void:
            return None
        if isinstance(error, asyncio.CancelledError):
            return Outcome(OutcomeKind.CANCELLED, None)
        if isinstance(error, Exception):
            return Outcome(OutcomeKind.ERROR, codec.encode_error(error))
        return None

    def wait_exclusive(self, call: Call) -> Any:
        """A synchronous call: its body runs in a thread, the calling task is frozen and nothing else of the workflow
        moves."""
        drive = self.drive
        drive.check_open()
        op = drive.journal.operations.get(call.key)
        if op is not None and op.is_completed:
            outcome = drive.release_now(call)
            # Not the next one in order: it had asked a question, and others went on meanwhile.
            return self.wait_frozen(call) if outcome is None else self.reveal(call, outcome)
        call.context = contextvars.copy_context()
        call.is_exclusive = True
        drive.to_start.append(call)
        if drive.next_recorded() is None:
            drive.hold(call)
        return self.wait_frozen(call)

    def wait_frozen(self, call: Call) -> Any:
        """The same for synchronous code: the calling task is frozen meanwhile, the others go on."""
        self.drive.check_open()

        def keep(frozen: Any) -> None:
            call.frozen = frozen

        def give_up() -> None:
            call.frozen = None
            self.drive.let_go(call)
            self.give_up(call)

        return self.reveal(call, self.drive.loop.freeze(keep, give_up))

    def reveal(self, call: Call, outcome: Any) -> Any:
        """An outcome's value or error. A record that no longer fits the declared type stops the run."""
        try:
            return outcome.reveal(call.spec)
        except SerializationError as error:
            if outcome.kind is OutcomeKind.VALUE:
                raise self.drive.fault(
                    DurableRecoveryError(
                        f"run {self.drive.run_id}: the result of {call.spec.name!r} does not fit: {error}",
                        self.drive.operation_id(call.key),
                    )
                ) from None
            mark_cause(error, call.key)
            raise
        except Exception as error:
            mark_cause(error, call.key)
            raise

    def completed_at_once(self, call: Call, make: Callable[[], str]) -> Outcome:
        """A call that is recorded and returns without waiting (`now()`, `patched()`)."""
        op = self.drive.journal.operations.get(call.key)
        if op is not None and op.is_completed:
            return Outcome(OutcomeKind(op.outcome or OutcomeKind.VALUE), op.data)
        return self.drive.complete(call, Outcome(OutcomeKind.VALUE, make()))

    def _count_operation(self) -> None:
        drive = self.drive
        most = drive.settings.limits.max_operations
        if max(len(drive.journal.operations), len(drive.calls)) >= most:
            raise DurableLimitError(f"run {drive.run_id} has more than {most} operations (limits.max_operations)")

    def give_up(self, call: Call) -> None:
        """The code cancelled this call: it is recorded as cancelled before the code goes on."""
        if call.is_settled or call.is_given_up:
            return
        call.is_given_up = True
        self.drive.open.pop(call.key, None)
        op = self.drive.journal.operations.get(call.key)
        if op is None or not op.is_completed:
            self.drive.complete(call, Outcome(OutcomeKind.CANCELLED, None))
        self.drive.recorder.mark_abandoned(self.drive.questions.give_up(call))
        self.drive.bodies.stop(call)
