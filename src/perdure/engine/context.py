"""Where the running code is: the scope that numbers its calls. Decides identity (DESIGN "Identity"), nothing else.

A call's place is taken when the call is made. In workflow code the scope belongs to the task (numbered at creation by
the run's loop). Inside a body, whose tasks may come in any order, a call is the one recorded with the same name and
arguments, and where there is none it takes the next free number; equal calls are interchangeable.
"""

from __future__ import annotations

import asyncio
import collections
import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING

from perdure.core import codec, keys
from perdure.errors import InterruptSignal, PerdureError, RunLost

if TYPE_CHECKING:
    from perdure.core.fold import Operation
    from perdure.core.records import InterruptRow, Question
    from perdure.engine.calls import Call, CallSpec
    from perdure.engine.drive import Drive


class Around:
    """The innermost workflow around a task: what is named by a key, and not by a number, is below its path."""

    __slots__ = ("is_ended", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        self.is_ended = False


class TaskScope:
    """The place of one task of a workflow: its path, its next call, its next child."""

    __slots__ = ("around", "children", "drive", "index", "path")

    def __init__(self, drive: Drive, path: str, around: Around | None = None) -> None:
        self.drive = drive
        self.path = path
        self.around = around or Around(path)
        self.index = 0
        self.children = 0

    def next_index(self) -> int:
        if self.around.is_ended:
            raise PerdureError(
                f"a call after the nested workflow {self.around.path} has returned: its caller is past it"
            )
        index = self.index
        self.index = index + 1
        return index

    def child(self) -> TaskScope:
        """The scope of a task created here."""
        child = self.children
        self.children = child + 1
        return TaskScope(self.drive, keys.task_path(self.path, child), self.around)


class BodyScope:
    """The inside of one operation's body: its calls, its questions. Threads and tasks of the body share it."""

    __slots__ = (
        "_recorded",
        "_runs",
        "_used",
        "asked",
        "call",
        "drive",
        "is_closed",
        "lines",
        "lock",
        "open_slot",
        "parent",
    )

    def __init__(self, drive: Drive, call: Call, parent: BodyScope | None = None) -> None:
        self.drive = drive
        self.call = call
        self.parent = parent
        self.asked: list[Question] = []
        """New questions of this body and of the bodies inside it; stored when the outermost one has unwound."""
        self.open_slot: dict[str, InterruptRow | Question] = {}
        """The open question each task of the body has run into."""
        self.lines: dict[object, Line] = {}
        self.is_closed = False
        self.lock = threading.Lock()
        self._recorded: dict[tuple[str, str, str | None], list[Operation]] | None = None
        self._used: dict[str, int] = {}
        self._runs: collections.Counter[tuple[str, str]] = collections.Counter()

    @property
    def answers(self) -> dict[str, InterruptRow]:
        """Questions of this operation by slot, with their answers."""
        return self.drive.journal.interrupts.get((self.call.path, self.call.index)) or {}

    def run_id_for(self, runner: str, input_digest: str) -> str:
        """The id of a run that this body starts and does not name: the same at every repetition, so that what the run
        has done is found again. Several with the same input are numbered."""
        with self.lock:
            number = self._runs[runner, input_digest]
            self._runs[runner, input_digest] += 1
        operation = self.drive.operation_id(self.call.key)
        return f"{operation}:{codec.digest_of([runner, input_digest, number])[:16]}"

    def outermost(self) -> BodyScope:
        """The body that workflow code called; bodies inside it suspend with it."""
        scope = self
        while scope.parent is not None:
            scope = scope.parent
        return scope

    def has_run_into(self, question: InterruptRow | Question, line: int) -> None:
        """Remember an open question, here and in every enclosing body: they pause, whatever they do with the signal."""
        self.open_slot[str(line)] = question
        scope = self.parent
        while scope is not None:
            scope.open_slot.setdefault("inside", question)
            scope = scope.parent

    def check_open(self, line: Line) -> None:
        """Raise if the run goes no further here, the operation has ended, or this task of it has already asked."""
        self.drive.check_open()
        self.check_may_ask(line)

    def check_may_ask(self, line: Line) -> None:
        """The same for a question: a body that ends while its worker leaves may still ask, which is recorded."""
        if not self.drive.can_record:
            raise RunLost(self.drive.run_id, "its end is written")
        if self.is_closed:
            raise PerdureError(f"a journal call after its operation {self.call.key} has ended")
        question = self.open_slot.get(str(line.number)) or self.open_slot.get("inside")
        if question is not None:
            raise signal_of(question)

    def line(self) -> Line:
        """The numbering of the calling task (or thread) of this body; the body's own task comes first."""
        who = _caller()
        with self.lock:
            line = self.lines.get(who)
            if line is None:
                line = self.lines[who] = Line(len(self.lines))
            return line

    def place_of(self, line: Line, spec: CallSpec, digest: str) -> tuple[str, int]:
        """Path and index of a call made here: those of its record, if an earlier attempt or process has made it."""
        with self.lock:
            recorded = self._take(line, (spec.kind, spec.name, digest))
            if recorded is not None:
                # The task goes on where it was: what it does after an error is seen to come after it.
                line.path, index = recorded.path, recorded.index
            else:
                line.path = line.path or self._free_path()
                highest = self.drive.journal.highest_index.get(line.path, -1)
                index = max(highest, self._used.get(line.path, -1)) + 1
            self._used[line.path] = max(index, self._used.get(line.path, -1))
            return line.path, index

    def _take(self, line: Line, wanted: tuple[str, str, str | None]) -> Operation | None:
        """The first recorded call like this that nobody has taken yet; one of the same task before others."""
        if self._recorded is None:
            self._recorded = {}
            for op in self.drive.journal.inside.get(keys.body_path(self.call.key), ()):
                self._recorded.setdefault((op.kind, op.name, op.digest), []).append(op)
        alike = self._recorded.get(wanted)
        if not alike:
            return None
        return alike.pop(next((n for n, op in enumerate(alike) if op.path == line.path), 0))

    def _free_path(self) -> str:
        body, number = keys.body_path(self.call.key), 0
        path = body
        while path in self._used or path in self.drive.journal.highest_index:
            path, number = keys.task_path(body, number), number + 1
        return path


class Line:
    """One task inside a body: where its calls are recorded, and how many questions it has asked."""

    __slots__ = ("number", "path", "questions")

    def __init__(self, number: int) -> None:
        self.path: str | None = None
        self.number = number
        self.questions = 0


def signal_of(question: InterruptRow | Question) -> InterruptSignal:
    """The exception that unwinds the code which asked."""
    reason, context = codec.decode(question.reason), codec.decode(question.context)
    return InterruptSignal(str(reason), context if isinstance(context, dict) else {})


def _caller() -> object:
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    return task if task is not None else threading.get_ident()


class Running:
    """How many drives this process has: a call without a run from a thread is suspicious only while there are some."""

    drive_count = 0


# The drive in workflow code, the body's scope inside a body, None outside a run.
place: ContextVar[Drive | BodyScope | None] = ContextVar("perdure_place", default=None)


def current() -> TaskScope | BodyScope | None:
    """The scope of the calling code; None outside a run."""
    here = place.get()
    if here is None or isinstance(here, BodyScope):
        return here
    return here.loop.current_scope()
