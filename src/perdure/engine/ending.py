"""How a drive ends: quiet, completed, failed, cancelled, given back, or stopped for a person.

Decides which end, and that it is written once, after what led to it. The entry of the end is the last one of the
drive; what the store made of it (a cancel that came first, an answer that came meanwhile) is what counts.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perdure.core import codec, keys
from perdure.core.records import Kind, RunChange
from perdure.core.states import Status
from perdure.engine.calls import Call, Outcome
from perdure.errors import DurableRecoveryError, PerdureError, RunLost, UnawaitedOperation

if TYPE_CHECKING:
    from perdure.engine.drive import Drive


log = logging.getLogger("perdure")

_LEAST_STAY_S = 0.05
"""A timer that is due now fires here, whatever the setting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriveEnd:
    """How a drive ended. `status` is what the store now says; `is_lost` means that somebody else decides."""

    status: Status | None
    is_lost: bool = False
    data: str | None = None
    error: BaseException | None = None


class Ending:
    """The end of one drive."""

    def __init__(self, drive: Drive) -> None:
        self.drive = drive
        self._final: tuple[RunChange, str | None, BaseException | None] | None = None
        self._is_written = False

    @property
    def has_begun(self) -> bool:
        """The end is decided: nothing of the code runs any more."""
        return self._final is not None

    @property
    def is_written(self) -> bool:
        """The entry of the end is made: nothing of this drive comes after it."""
        return self._is_written

    def quiet(self) -> None:
        due_s = self.drive.timers.next_due_s()
        has_question = self.drive.questions.is_open()
        if due_s is None and not has_question:
            self._fail_stuck()
            return
        if due_s is not None and due_s <= max(self.drive.settings.stay_s, _LEAST_STAY_S):
            if has_question:
                self.drive.recorder.after_commit(self.drive.lane.enqueued, self._pause_here)
            return
        self._final = (RunChange(status=Status.WAITING, is_release=True, due_in_s=due_s), None, None)
        self._write_end()

    def _pause_here(self) -> None:
        if not self.drive.is_closed and self.drive.is_quiet():
            self.drive.is_paused = True
            self.drive.tell(None)

    def fail_spinning(self) -> None:
        """Callbacks kept making callbacks: on the run's loop nothing else can ever happen then."""
        error = PerdureError(
            "the workflow spins: it waits for something with sleep(0), or schedules itself; await it instead"
        )
        self._end_with(Status.FAILED, codec.encode_error(error), error)

    def _fail_stuck(self) -> None:
        error = PerdureError(
            "the workflow waits for something that nothing in it can bring about (an event nobody sets, an "
            "abandoned call)"
        )
        self._end_with(Status.FAILED, codec.encode_error(error), error)

    def root_done(self, root: asyncio.Task[Any]) -> None:
        """The runner returned or raised. Bodies still running are awaited and recorded before the end is."""
        status, data, error = self._result_of(root)
        if self._is_journal_ahead():
            return
        self._end_with(status, data, error)

    def _is_journal_ahead(self) -> bool:
        """The code ended before the journal did: it is another program than the one recorded."""
        drive = self.drive
        op = drive.next_recorded()
        # Bodies that ran when the code raised were recorded after it: they are known, and nobody waits for them.
        if op is None or all(key in drive.calls for key in drive.left_to_release()):
            return False
        drive.need_attention(
            DurableRecoveryError(
                f"run {drive.run_id}: the code ended, but the journal goes on with {op.kind} {op.name!r} at {op.key}",
                drive.operation_id(op.key),
            )
        )
        return True

    def _result_of(self, root: asyncio.Task[Any]) -> tuple[Status, str | None, BaseException | None]:
        cancelled = asyncio.CancelledError("the workflow cancelled itself")
        error = cancelled if root.cancelled() else root.exception()
        if isinstance(error, RunLost):
            error = PerdureError(f"the workflow raised RunLost by itself: {error}")
        if error is None:
            left = [call.spec.name for call in self.drive.open.values() if call.spec.kind != Kind.TIMER]
            if not left:
                return self._encode_result(root.result())
            error = UnawaitedOperation(left)
        return Status.FAILED, codec.encode_error(error), error

    def _encode_result(self, value: Any) -> tuple[Status, str | None, BaseException | None]:
        try:
            data = self.drive.settings.limits.check_payload("the result", self.drive.plan.runner.encode_output(value))
        except PerdureError as error:
            return Status.FAILED, codec.encode_error(error), error
        return Status.COMPLETED, data, None

    def _end_with(self, status: Status, data: str | None, error: BaseException | None) -> None:
        self._final = (
            RunChange(status=status, is_release=True, error=None if error is None else _summary(error)),
            data,
            error,
        )
        self.drive.to_start.clear()
        self.drive.tear_down()
        self.drive.bodies.drop_unstarted()
        self.drive.bodies.stop_safe()
        self._write_when_still()

    def _write_when_still(self) -> None:
        """Bodies that run are awaited; what has ended so far is written now, in case we die meanwhile."""
        self._record_arrived()
        if self.drive.bodies.is_running:
            self.drive.recorder.flush()
        else:
            self._write_end()

    def _record_arrived(self) -> None:
        """Completions that had come and were not released: the code will not see them now, a later attempt will."""
        drive = self.drive
        while drive.arrived:
            call, outcome, delivered = drive.arrived.popleft()
            drive.recorder.mark_delivered(delivered)
            if not call.is_given_up:
                drive.complete(call, outcome)

    def body_ended(self, call: Call, outcome: Outcome | None) -> None:
        """A body ended after the code did: recorded for the audit and for what a retry may find; then the end."""
        if outcome is not None and not call.is_given_up:
            self.drive.complete(call, outcome)
        if not self.drive.bodies.is_running and self._final is not None and not self._is_written:
            self._write_end()

    def stop(self, change: RunChange, error: BaseException | None = None) -> None:
        """End without the code's consent: what it does from here on is discarded."""
        if self.drive.is_closed or self._is_written:
            return
        self._final = (change, None, error)
        self.drive.tear_down()
        self.drive.recorder.is_muted = False  # bodies that still run beside a difference are recorded all the same
        self.drive.bodies.drop_unstarted()
        if change.status == Status.CANCELLED:
            self.drive.bodies.stop_all()
        self._write_when_still()

    def _write_end(self) -> None:
        assert self._final is not None
        change, data, error = self._final
        self._is_written = True
        self.drive.recorder.is_muted = False
        if change.status in (Status.COMPLETED, Status.FAILED):
            self.drive.recorder.status(change.status, data, _cause(error), self._state())
        elif change.status is Status.WAITING:
            self.drive.recorder.status(change.status, None, None, self._state())
        else:
            self.drive.recorder.status(change.status, _why(error))
        n = self.drive.recorder.flush(change)
        self.drive.recorder.after_commit(n, self._end_committed)

    def _state(self) -> str | None:
        tell = self.drive.tell_state
        try:
            return None if tell is None else tell()
        except Exception:  # what people see of the state is worth less than the end of the run
            log.exception("run %s: its state cannot be told", self.drive.run_id)
            return None

    def _end_committed(self) -> None:
        if self.drive.ended.done():
            return
        assert self._final is not None
        _, data, error = self._final
        status = Status(self.drive.lane.final_status or self._final[0].status)
        self.drive.tear_down()
        if status == Status.CANCELLED:
            data = error = None
        self.drive.finish(DriveEnd(status=status, data=data, error=error))


def _summary(error: BaseException) -> str:
    return keys.storable(f"{type(error).__qualname__}: {error}"[:4096])


def _why(error: BaseException | None) -> str | None:
    return None if error is None else codec.encode(str(error)[:4096])


def _cause(error: BaseException | None) -> str | None:
    """The key of the operation whose recorded error failed the run: what a retry has to get past."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        key = getattr(error, "perdure_operation", None)
        if isinstance(key, str):
            return key
        error = error.__cause__ or error.__context__
    return None
