"""Questions to people: who asks, which answer belongs to which question, when it enters the run.

Decides identity (operation, task in its body, ordinal there, or the `key`) and delivery: an answer goes to the call
with the same identity and the same reason, once. The store keeps them; nothing here decides anything by default.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from perdure.core import codec, ids, keys
from perdure.core.fold import Phase
from perdure.core.records import (
    InterruptRow,
    Kind,
    OutcomeKind,
    Question,
    QuestionStatus,
    Recovery,
)
from perdure.engine.calls import Call, CallSpec, Outcome
from perdure.engine.context import BodyScope, TaskScope, signal_of
from perdure.errors import DurableRecoveryError, PerdureError

if TYPE_CHECKING:
    from perdure.engine.drive import Drive

DIRECT_SLOT = "0"
"""Slot of a question asked by workflow code itself: its operation is the question."""


def _no_body() -> None:
    raise PerdureError("a question has no body")


class Questions:
    """The questions of one drive."""

    def __init__(self, drive: Drive) -> None:
        self.drive = drive
        self._waiting: list[InterruptRow] = []
        self._parked: dict[tuple[str, int], Call] = {}
        self._seen: set[str] = set()
        self._ordinal: int | None = None
        self._entered: set[str] = set()
        """Answers that bodies have been given."""

    def load(self) -> None:
        """Take up answers that were stored and had not entered the run."""
        self._waiting = self.drive.journal.undelivered()
        self._seen.update(row.interrupt_id for row in self._waiting)

    def came(self, rows: list[InterruptRow]) -> None:
        """Answers stored meanwhile; each enters once, whoever tells us how often."""
        for row in rows:
            if row.interrupt_id not in self._seen:
                self._seen.add(row.interrupt_id)
                self.drive.journal.add_interrupt(row)
                self._waiting.append(row)
        if self.drive.is_live:
            self.go_live()

    def is_open(self) -> bool:
        """Whether the run waits for a person."""
        return bool(self._parked) or any(
            call.spec.kind == Kind.INTERRUPT and call.frozen is not None for call in self.drive.open.values()
        )

    def go_live(self) -> None:
        """Deliver what waits: several at once in order of arrival in the store, then path."""
        waiting, self._waiting = self._waiting, []
        for row in waiting:
            self._deliver(row)

    def _deliver(self, row: InterruptRow) -> None:
        drive = self.drive
        call = drive.calls.get(_key_of(row))
        if call is not None and call.spec.kind == Kind.INTERRUPT:
            drive.arrived.append((call, Outcome(OutcomeKind.VALUE, row.answer), (row.interrupt_id,)))
            return
        parked = self._parked.get((row.path, row.index))
        if parked is None:
            self._waiting.append(row)  # its body has not come to its question yet
            return
        self._wake(parked, row)

    def _wake(self, call: Call, row: InterruptRow) -> None:
        drive = self.drive
        self._parked = {place: parked for place, parked in self._parked.items() if parked is not call}
        if (row.path, row.index) != (call.path, call.index):
            drive.recorder.deliver_inside(row.path, row.index, row.interrupt_id)
        drive.recorder.deliver(call, row.interrupt_id)
        drive.recorder.mark_delivered((row.interrupt_id,))
        self._entered.add(row.interrupt_id)
        drive.bodies.again(call)

    def park(self, call: Call) -> None:
        """An operation whose question is open: an answer that has come runs it again, else it stays."""
        below = self._below(call)
        for row in self._waiting:
            if (row.path, row.index) in below:
                self._waiting.remove(row)
                self._wake(call, row)
                return
        for place in below:
            self._parked[place] = call

    def give_up(self, call: Call) -> list[str]:
        """The code no longer waits for this operation: the ids of its questions that nobody will take an answer of."""
        places = self._below(call)
        self._parked = {place: parked for place, parked in self._parked.items() if parked is not call}
        self._waiting = [row for row in self._waiting if (row.path, row.index) not in places]
        rows = (row for place in places for row in self.drive.journal.interrupts.get(place, {}).values())
        return [row.interrupt_id for row in rows if row.delivered_at is None and row.interrupt_id not in self._entered]

    def _below(self, call: Call) -> set[tuple[str, int]]:
        """Where the questions of an operation and of the ones inside its body are."""
        return {
            (path, index)
            for path, index in self.drive.journal.interrupts
            if (path, index) == (call.path, call.index) or keys.is_below(path, call.key)
        } | self._waited_for(call)

    def _waited_for(self, call: Call) -> set[tuple[str, int]]:
        """Where the questions are that its record names: one asked under an idempotency key is elsewhere."""
        op = self.drive.journal.operations.get(call.key)
        if op is None or op.waits_for is None:
            return set()
        waited = set(codec.decode(op.waits_for))
        rows = (row for rows in self.drive.journal.interrupts.values() for row in rows.values())
        return {(row.path, row.index) for row in rows if row.interrupt_id in waited}

    def suspend(self, call: Call, scope: BodyScope) -> None:
        """A body has asked and unwound: store that, and what it asked, with one entry."""
        drive = self.drive
        open_now = {question.interrupt_id for question in (*scope.asked, *scope.open_slot.values())}
        drive.recorder.suspend(call, scope.asked, sorted(open_now))
        for question in scope.asked:
            drive.journal.add_interrupt(_pending_row(drive.run_id, question))
        call.body = None
        if not drive.is_closed:
            self.park(call)

    # Asked directly by workflow code.

    def ask_direct(
        self, scope: TaskScope, reason: str, context: dict[str, Any], key: str | None, bind: bool
    ) -> tuple[Call, str]:
        """Register the question at the moment of the call, or find what became of it. The caller freezes its task."""
        drive = self.drive
        drive.check_open()
        text = codec.encode(context)
        drive.settings.limits.check_payload("the context of a question", text)
        frozen = codec.decode(text)
        path, index = (scope.path, scope.next_index()) if key is None else (keys.named_path(scope.around.path, key), 0)
        spec = CallSpec(kind=Kind.INTERRUPT, name=keys.storable(reason), function=_no_body, recovery=Recovery.SAFE)
        call = Call(spec, path, index, (), frozen if isinstance(frozen, dict) else {})
        call.digest = codec.digest(text)
        if call.key in drive.calls:
            raise drive.fault(
                DurableRecoveryError(
                    f"run {drive.run_id}: interrupt(key={key!r}) is asked twice", drive.operation_id(call.key)
                )
            )
        drive.calling.register(call)
        op = drive.journal.operations.get(call.key)
        row = drive.journal.interrupts.get((path, index), {}).get(DIRECT_SLOT)
        if op is None or (op.phase is Phase.DROPPED and row is None):
            # Dropped without a row: given up before it was stored, and now a retry asks.
            self._register(call, reason, text, bind)
            return call, text
        if op.phase is Phase.DROPPED:
            drive.recorder.suspend(call)  # the question is open again, or answered: the retry has seen to that
        if row is not None and row.digest != call.digest:
            self._context_differs(call, row, bind, is_direct=True)
        return call, text

    def _register(self, call: Call, reason: str, context: str, bind: bool) -> None:
        drive = self.drive
        question = self._new_question(call, DIRECT_SLOT, reason, context, bind)
        drive.recorder.suspend(call, (question,))
        drive.journal.add_interrupt(_pending_row(drive.run_id, question))

    # Asked inside a body.

    def ask_in_body(self, scope: BodyScope, reason: str, context: dict[str, Any], key: str | None, bind: bool) -> str:
        """The answer (encoded) that belongs to this call; or register the question and raise `InterruptSignal`."""
        drive = self.drive
        line = scope.line()
        text = codec.encode(context)
        drive.settings.limits.check_payload("the context of a question", text)
        with scope.lock:
            scope.check_may_ask(line)
            if key is not None:
                slot = "key:" + quote(key, safe="")
            else:
                slot = f"{line.number}.{line.questions}"
                line.questions += 1
                bind = bind or len(scope.lines) > 1
            slot, row = self._asked_anew(scope, slot, bind, codec.digest(text))
            if row is None or row.answer is None:
                question = row or self._new_question(scope.call, slot, reason, text, bind)
                if row is None:
                    scope.outermost().asked.append(question)  # type: ignore[arg-type]
                scope.has_run_into(question, line.number)
                raise signal_of(question)
        asked = codec.decode(row.reason)
        if asked != reason:
            raise drive.fault_from_body(
                DurableRecoveryError(
                    f"run {drive.run_id}: the answer of {scope.call.key} is to {asked!r}, the code now asks {reason!r}",
                    drive.operation_id(scope.call.key),
                )
            )
        if row.digest != codec.digest(text):
            self._context_differs(scope.call, row, bind, is_direct=False)
        return row.answer

    def _asked_anew(self, scope: BodyScope, slot: str, bind: bool, digest: str) -> tuple[str, InterruptRow | None]:
        """The slot and row of this question. A bound one that was answered for another context, since when a person has
        changed the state, is asked again under a slot of its own: what was approved is what runs."""
        row, first = scope.answers.get(slot), slot
        for number in range(1, len(self.drive.journal.state_patches) + 1):
            if row is None or row.answer is None or row.digest == digest or not (bind or row.bind):
                break
            slot = f"{first}~{number}"
            row = scope.answers.get(slot)
        return slot, row

    def _next_ordinal(self) -> int:
        """Questions of one moment are listed in the order they were asked."""
        if self._ordinal is None:
            self._ordinal = sum(len(rows) for rows in self.drive.journal.interrupts.values())
        self._ordinal += 1
        return self._ordinal

    def _new_question(self, call: Call, slot: str, reason: str, text: str, bind: bool) -> Question:
        return Question(
            interrupt_id=ids.interrupt_id(self.drive.run_id, call.key, slot),
            path=call.path,
            index=call.index,
            slot=slot,
            reason=codec.encode(reason),
            context=text,
            digest=codec.digest(text),
            bind=bind,
            ordinal=self._next_ordinal(),
        )

    def _context_differs(self, call: Call, row: InterruptRow, bind: bool, *, is_direct: bool) -> None:
        """What is shown now is not what the approver saw: noted, or refused if it was bound."""
        drive = self.drive
        if not (bind or row.bind):
            note = (call, "context_changed", codec.encode(row.interrupt_id))
            if is_direct:
                drive.recorder.note(*note[:2], None, note[2])
            else:
                drive.note_from_body(*note)
            return
        error = DurableRecoveryError(
            f"run {drive.run_id}: what was approved is not what would run: question {row.interrupt_id} was asked with "
            f"{row.context}, and the code now shows something else",
            drive.operation_id(_key_of(row)),
        )
        raise drive.fault(error) if is_direct else drive.fault_from_body(error)


def _key_of(row: InterruptRow) -> str:
    return keys.operation_key(row.path, row.index)


def _pending_row(run_id: str, question: Question) -> InterruptRow:
    return InterruptRow(
        interrupt_id=question.interrupt_id,
        run_id=run_id,
        path=question.path,
        index=question.index,
        slot=question.slot,
        reason=question.reason,
        context=question.context,
        digest=question.digest,
        bind=question.bind,
        ordinal=question.ordinal,
        status=QuestionStatus.PENDING,
        created_at=0.0,
        answer=None,
        answered_by=None,
        answered_at=None,
        answer_seq=None,
        delivered_at=None,
    )
