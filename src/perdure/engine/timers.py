"""The timers of a run's loop. Decides which fire: each is recorded with its delay, and its firing is a completion
like any other.

A timer is an operation of kind `timer`. Its deadline survives a crash: what is left of its delay is counted from its
record.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from perdure.core.records import Kind, OutcomeKind, Recovery
from perdure.engine.calls import Call, CallSpec, Outcome
from perdure.engine.runloop import RunTimer
from perdure.errors import PerdureError

if TYPE_CHECKING:
    from perdure.engine.drive import Drive


def _never() -> None:
    raise PerdureError("a timer has no body")


_TIMER = CallSpec(kind=Kind.TIMER, name="timer", function=_never, recovery=Recovery.SAFE)


class Timers:
    """The timers of one drive: those the code waits for, and the real loop's handles that make them fire."""

    def __init__(self, drive: Drive) -> None:
        self.drive = drive
        self._armed: dict[Call, tuple[RunTimer, asyncio.TimerHandle]] = {}

    def made(self, handle: RunTimer, delay_s: float) -> None:
        """The code set a timer (`asyncio.sleep`, `timeout`, `wait`): record it, or find what is left of it."""
        drive = self.drive
        drive.check_open()
        task = asyncio.current_task(drive.loop)
        scope = task.scope if task is not None else drive.loop.callback_scope  # type: ignore[attr-defined]
        call = Call(_TIMER, scope.path, scope.next_index())
        call.timer = handle
        drive.calling.register(call)
        op = drive.journal.operations.get(call.key)
        handle.on_cancel = lambda: self._cancelled(call)
        if op is None:
            drive.recorder.begin(call, delay_s)
            left_s = delay_s
        elif op.is_completed:
            return  # released in its recorded turn
        else:
            left_s = (op.wait_s if op.wait_s is not None else delay_s) - (drive.recorder.clock() - op.clock_s)
        armed = drive.real_loop.call_later(max(0.0, left_s), self._due, call)
        self._armed[call] = (handle, armed)

    def fire(self, call: Call) -> None:
        """Its completion is released: run the code's callback."""
        entry = self._armed.pop(call, None)
        if entry is not None:
            entry[1].cancel()
        handle = call.timer
        if isinstance(handle, RunTimer) and not handle.cancelled():
            handle.on_cancel = None
            self.drive.loop.now_s = max(self.drive.loop.now_s, handle.when())
            self.drive.loop.push(handle)

    def next_due_s(self) -> float | None:
        """Seconds until the next timer or attempt of the run is due; None if it waits for people only."""
        now = self.drive.real_loop.time()
        ours = min((armed.when() - now for _, armed in self._armed.values()), default=None)
        attempt = self.drive.bodies.next_due_s()
        due = [value for value in (ours, attempt) if value is not None]
        return max(0.0, min(due)) if due else None

    def stop(self) -> None:
        """The drive ends: nothing fires here any more."""
        for _, armed in self._armed.values():
            armed.cancel()
        self._armed.clear()

    def _due(self, call: Call) -> None:
        drive = self.drive
        entry = self._armed.get(call)
        if entry is None or drive.is_closed:
            return
        del self._armed[call]
        drive.arrive(call, Outcome(OutcomeKind.VALUE, None))

    def _cancelled(self, call: Call) -> None:
        """The code no longer waits for it. Nothing is recorded: the code will do the same at every replay."""
        if self.drive.is_closed:
            return
        self.drive.open.pop(call.key, None)
        entry = self._armed.pop(call, None)
        if entry is not None:
            entry[1].cancel()
        call.is_given_up = True
