"""Writes one run's journal: collects the records of a pump into one entry, and knows what is durable.

Decides what a record says; the drive decides when. What is recorded is at once part of the journal in memory, so that
the code goes on with it; what must be durable first waits here, behind a barrier.
"""

from __future__ import annotations

import collections
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from perdure.core import codec
from perdure.core.fold import Journal
from perdure.core.records import OutcomeKind, Question, Record, RecordType, RunChange, StoredRecord
from perdure.core.settings import Limits
from perdure.core.snapshots import Said
from perdure.engine.calls import Call, Outcome
from perdure.errors import DurableLimitError
from perdure.store.base import Entry, JournalStore, Lane

log = logging.getLogger("perdure")
_NOTHING = Said(None)


class Recorder:
    """The writing end of one drive. `loop_s` is the run's logical time, recorded with completions."""

    def __init__(
        self,
        lane: Lane,
        journal: Journal,
        store: JournalStore,
        limits: Limits,
        *,
        age_s: float,
        is_inline: bool,
    ) -> None:
        self.lane = lane
        self.journal = journal
        self.is_muted = False
        """Nothing is recorded: the code has been found to differ from the journal, what it does is void."""
        self._store = store
        self._is_inline = is_inline
        self._limits = limits
        self._clock_base = journal.clock_s + age_s - time.monotonic()
        self._records: list[Record] = []
        self._questions: list[Question] = []
        self._delivered: list[str] = []
        self._abandoned: list[str] = []
        self._is_over = False
        self._barriers: collections.deque[tuple[int, Callable[..., None], tuple[Any, ...]]] = collections.deque()

    def clock(self) -> float:
        """Seconds of run time, as recorded; it goes on over restarts."""
        return self._clock_base + time.monotonic()

    # What is recorded.

    def record(self, record: Record) -> None:
        """Take a fact into the journal and into the next entry."""
        if self.is_muted:
            return
        journal = self.journal
        journal.apply(StoredRecord(self.lane.run_id, journal.last_seq + 1, *record, 0.0))
        self._records.append(record)

    def begin(self, call: Call, wait_s: float | None = None) -> None:
        """An operation (or its next attempt) begins; of a timer, `wait_s` is its delay."""
        self._record_call(RecordType.STARTED, call, None, call.shown_arguments, self.clock(), wait_s)

    def complete(self, call: Call, outcome: Outcome, loop_s: float) -> Outcome:
        """An operation has ended; returns what the code is to see (a result too large is an error)."""
        outcome = self._bounded(call, outcome)
        said = self._said(call, outcome)
        data = None if said.is_packed else outcome.data
        self._record_call(RecordType.COMPLETED, call, outcome.kind, data, loop_s, None, said.text)
        return outcome

    def suspend(self, call: Call, questions: Sequence[Question] = (), waits_for: Sequence[str] = ()) -> None:
        """An operation has asked; its new questions go into the same entry. `waits_for` are all interrupt ids it
        waits for."""
        data = codec.encode(list(waits_for)) if waits_for else None
        self._record_call(RecordType.SUSPENDED, call, None, data, self.clock(), None, self._said(call, None).text)
        self._questions.extend(questions)

    def _said(self, call: Call, outcome: Outcome | None) -> Said:
        if call.tell_state is None or self.is_muted:
            return _NOTHING
        try:
            return call.tell_state(outcome)
        except Exception:  # what people see of the state is worth less than the record of what was done
            log.exception("run %s: the state at %s cannot be told", self.lane.run_id, call.key)
            return _NOTHING

    def deliver(self, call: Call, interrupt_id: str) -> None:
        """An answer enters a suspended operation."""
        self._record_call(RecordType.DELIVERED, call, None, codec.encode(interrupt_id), self.clock(), None)

    def deliver_inside(self, path: str, index: int, interrupt_id: str) -> None:
        """The same for an operation inside the body of the one that goes on."""
        data = codec.encode(interrupt_id)
        self.record(Record(RecordType.DELIVERED, path, index, data=data, clock_s=self.clock()))

    def mark_delivered(self, interrupt_ids: Sequence[str]) -> None:
        """These answers have entered the run with the next entry."""
        self._delivered.extend(interrupt_ids)

    def mark_abandoned(self, interrupt_ids: Sequence[str]) -> None:
        """The code no longer waits for these questions; what was not even asked yet is not asked at all."""
        unwritten = {question.interrupt_id for question in self._questions}
        self._questions = [q for q in self._questions if q.interrupt_id not in interrupt_ids]
        self._abandoned.extend(i for i in interrupt_ids if i not in unwritten)

    def fail_attempt(self, call: Call, error: BaseException, delay_s: float) -> None:
        """An attempt has failed; the next one is due `delay_s` later."""
        self._record_call(
            RecordType.ATTEMPT_FAILED, call, OutcomeKind.ERROR, codec.encode_error(error), self.clock(), delay_s
        )

    def note(self, call: Call, what: str, outcome: str | None, data: str | None) -> None:
        """Something for people, ignored by replay."""
        spec = call.spec
        self.record(
            Record(
                RecordType.NOTE,
                call.path,
                call.index,
                spec.kind,
                what,
                outcome=outcome,
                data=data,
                clock_s=self.clock(),
            )
        )

    def status(self, status: str, data: str | None, cause: str | None = None, state: str | None = None) -> None:
        """The run's new status; `cause` is the key of the operation whose error failed it."""
        clock_s = self.clock()
        self.record(Record(RecordType.STATUS, outcome=status, data=data, name=cause, clock_s=clock_s, state=state))

    def _record_call(
        self,
        type: RecordType,
        call: Call,
        outcome: str | None,
        data: str | None,
        clock_s: float,
        wait_s: float | None,
        state: str | None = None,
    ) -> None:
        spec = call.spec
        self.record(
            Record(
                type,
                call.path,
                call.index,
                spec.kind,
                spec.name,
                call.digest,
                spec.recovery,
                call.attempt,
                outcome,
                data,
                wait_s,
                clock_s,
                state,
            )
        )

    def _bounded(self, call: Call, outcome: Outcome) -> Outcome:
        if outcome.data is not None:
            try:
                self._limits.check_payload(f"the result of {call.spec.name!r}", outcome.data)
            except DurableLimitError as error:
                return Outcome(OutcomeKind.ERROR, codec.encode_error(error))
        return outcome

    # When it is durable.

    def flush(self, change: RunChange | None = None) -> int:
        """Hand over what was recorded since the last flush, as one entry; returns the entry number everything is
        under."""
        if change is not None or self._has_more():
            entry = Entry(
                lane=self.lane,
                records=self._records,
                change=change,
                questions=self._questions,
                delivered=self._delivered,
                abandoned=self._abandoned,
            )
            self._records, self._questions, self._delivered, self._abandoned = [], [], [], []
            self._store.append(entry)
            if self._is_inline:
                self._store.flush_inline()
        return self.lane.enqueued

    def next_entry(self) -> int:
        """The number of the entry that what was recorded so far will be under once it is flushed."""
        return self.lane.enqueued + 1 if self._has_more() else self.lane.enqueued

    def _has_more(self) -> bool:
        return bool(self._records or self._questions or self._delivered or self._abandoned)

    def after_commit(self, n: int, action: Callable[..., None], *args: Any) -> None:
        """Run `action` once entry `n` is durable (at once if it is), or when the run has been given up."""
        if self.lane.committed >= n or self._is_over:
            action(*args)
        else:
            self._barriers.append((n, action, args))

    @property
    def has_barriers(self) -> bool:
        """Whether something waits for a commit."""
        return bool(self._barriers)

    def committed(self) -> None:
        """Entries have become durable: what waited for them goes on."""
        committed = self.lane.committed
        while self._barriers and self._barriers[0][0] <= committed:
            _, action, args = self._barriers.popleft()
            action(*args)

    def give_up(self) -> None:
        """The lane was refused: whoever waits, or will, goes on and finds the run lost."""
        self._is_over = True
        while self._barriers:
            _, action, args = self._barriers.popleft()
            action(*args)
