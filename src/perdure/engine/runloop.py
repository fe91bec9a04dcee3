"""The run's loop: a small deterministic event loop on which a workflow's tasks run.

Decides in which order the workflow's callbacks run (first in, first out, nothing else), numbers tasks at creation,
and freezes a task that waits in a synchronous call. It has no sockets, threads or subprocesses, and its clock moves
only when the drive releases a completion. The drive calls `drain()` from callbacks of the real loop.

The code runs in a greenlet, so that a synchronous call (`interrupt()`) can stop its task where it stands: no
`finally` runs, no lock is released, no sibling sees anything, and the task goes on at the answer's place in the
recorded order.
"""

from __future__ import annotations

import asyncio
import collections
import contextvars
import sys
import threading
from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, NoReturn

import greenlet

from perdure.engine.context import TaskScope

if TYPE_CHECKING:
    from perdure.engine.drive import Drive


_MAX_CALLBACKS = 100_000
"""In one drain, without a completion: the same number for the same code, whatever the machine."""


class RunTask(asyncio.Task[Any]):
    """A task of the workflow, with its place in the run.

    A task frozen in a synchronous call waits for no future, so asyncio could only cancel it at its next `await`. Its
    cancellations are counted here and thrown into the frozen call.
    """

    scope: TaskScope
    thaw_cancelled: Callable[[], None] | None = None
    """Set while the task is frozen: gives its call up and lets it go on into `CancelledError`."""
    _own_cancels = 0

    def cancel(self, msg: Any | None = None) -> bool:
        thaw, self.thaw_cancelled = self.thaw_cancelled, None
        if thaw is None:
            return super().cancel(msg)
        self._own_cancels += 1
        thaw()
        return True

    def cancelling(self) -> int:
        return super().cancelling() + self._own_cancels

    def uncancel(self) -> int:
        if self._own_cancels:
            self._own_cancels -= 1
            return self.cancelling()
        return super().uncancel()


class RunTimer(asyncio.TimerHandle):
    """A recorded timer; `on_cancel` tells the drive that nobody waits any more."""

    on_cancel: Callable[[], None] | None = None

    def cancel(self) -> None:
        if not self.cancelled() and self.on_cancel is not None:
            self.on_cancel()
        super().cancel()


class Frozen:
    """A task stopped inside a synchronous call, with the stack it stopped on."""

    __slots__ = ("stack", "task")

    def __init__(self, stack: greenlet.greenlet, task: asyncio.Task[Any]) -> None:
        self.stack = stack
        self.task = task


class RunLoop(asyncio.AbstractEventLoop):
    """Runs the tasks of one drive. Not thread-safe; touched only from the real loop's thread."""

    def __init__(self, drive: Drive, context: contextvars.Context) -> None:
        self._drive = drive
        self._thread_id = drive.thread_id
        self._context = context
        self._ready: collections.deque[asyncio.Handle] = collections.deque()
        self._stack: greenlet.greenlet | None = None
        self._root_scope = TaskScope(drive, "")
        self.callback_scope = TaskScope(drive, "~callbacks")
        """Numbers what plain callbacks of the loop make; they have no task."""
        self.is_spinning = False
        """One drain has run so many callbacks that it will never end."""
        self.is_held = False
        """While a synchronous call's body runs, no callback does."""
        self.now_s = 0.0
        self._left = 0
        self.tasks: set[RunTask] = set()

    # What the drive does with it.

    def drain(self) -> None:
        """Run callbacks until none is ready. Frozen tasks stay frozen."""
        if self._ready:
            self._left = _MAX_CALLBACKS
            self.is_spinning = False
            self._inside(self._drain_on_stack)

    def thaw(self, frozen: Frozen, value: object) -> None:
        """Let a frozen task go on: its synchronous call returns `value`, or raises it if it is an exception."""
        self._left = _MAX_CALLBACKS
        self._inside(lambda: self._switch(frozen.stack, value))

    def dispose(self) -> None:
        """End the stack that waits for work. Its frame keeps the drive alive, and no collector sees it. Not from
        code on it."""
        stack, self._stack = self._stack, None
        if stack is not None and not stack.dead:
            stack.parent = greenlet.getcurrent()
            stack.throw()

    def leave(self, gone: Drive) -> None:
        """The drive has ended; `gone` answers in its place."""
        self._drive = gone
        self._context = contextvars.Context()
        self._root_scope = TaskScope(gone, "")
        self.callback_scope = TaskScope(gone, "~callbacks")

    def is_ready(self) -> bool:
        """Whether a callback waits to be run."""
        return bool(self._ready)

    def freeze(self, keep: Callable[[Frozen], None], give_up: Callable[[], None]) -> object:
        """Stop the calling task here until `thaw`, after handing what is needed for that to `keep`. If the task is
        cancelled meanwhile, `give_up` is called and `CancelledError` raised here."""
        task = asyncio.current_task(self)
        stack = greenlet.getcurrent()
        assert isinstance(task, RunTask) and stack.parent is not None
        if self._stack is stack:
            self._stack = None  # the others go on on a new stack
        frozen = Frozen(stack, task)

        def thaw_cancelled() -> None:
            give_up()
            self.call_soon(self.thaw, frozen, asyncio.CancelledError())

        task.thaw_cancelled = thaw_cancelled
        keep(frozen)
        asyncio._leave_task(self, task)
        value = stack.parent.switch()
        asyncio._enter_task(self, task)
        task.thaw_cancelled = None
        if isinstance(value, BaseException):
            raise value
        return value

    def current_scope(self) -> TaskScope:
        """The scope of the running task; code in plain callbacks has no place of its own."""
        if threading.get_ident() != self._thread_id:
            raise RuntimeError("a durable call from a thread that workflow code made: put the thread into a step")
        task = asyncio.current_task(self)
        if task is None:
            raise RuntimeError("a durable call needs a task: it was made from a plain callback of the run's loop")
        return task.scope  # type: ignore[attr-defined]

    def enter_scope(self, scope: TaskScope) -> None:
        """Let the running task number its calls elsewhere (inside a nested workflow), or back where it was."""
        task = asyncio.current_task(self)
        assert isinstance(task, RunTask)
        task.scope = scope

    def push(self, handle: asyncio.Handle) -> None:
        """Make a callback ready (a fired timer)."""
        self._ready.append(handle)

    def _inside(self, work: Callable[[], None]) -> None:
        """Run `work` with this loop as the running one; asynchronous generators of user code are not the real
        loop's. A task of the real loop that we are in is left meanwhile: a thread runs one task at a time."""
        outer = asyncio._get_running_loop()
        task = None if outer is None else asyncio.current_task(outer)
        if outer is not None and task is not None:
            asyncio._leave_task(outer, task)
        hooks = sys.get_asyncgen_hooks()
        asyncio._set_running_loop(self)
        sys.set_asyncgen_hooks(None, None)
        try:
            work()
        finally:
            asyncio._set_running_loop(outer)
            sys.set_asyncgen_hooks(*hooks)
            if outer is not None and task is not None:
                asyncio._enter_task(outer, task)

    def _drain_on_stack(self) -> None:
        while self._ready and not self.is_held and not self.is_spinning:
            stack = self._stack
            if stack is None or stack.dead:
                stack = self._stack = greenlet.greenlet(self._work)
            self._switch(stack, None)

    def _switch(self, stack: greenlet.greenlet, value: object) -> None:
        stack.parent = greenlet.getcurrent()
        stack.switch(value)

    def _work(self, _: object) -> None:
        me = greenlet.getcurrent()
        ready = self._ready
        while True:
            while ready:
                self._left -= 1
                if self._left <= 0:
                    self.is_spinning = True
                    break
                handle = ready.popleft()
                if not handle._cancelled:
                    handle._run()
                if self._stack is not me:
                    return  # this stack was frozen meanwhile, another one does the work now
            assert me.parent is not None
            me.parent.switch()

    # What asyncio asks of a loop.

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.now_s + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        handle = RunTimer(when, callback, args, self, context)
        self._drive.timer_made(handle, max(0.0, when - self.now_s))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Called by `TimerHandle.cancel`."""

    def time(self) -> float:
        return self.now_s

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Coroutine[Any, Any, Any] | Generator[Any, None, Any],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
        **_: Any,
    ) -> asyncio.Task[Any]:
        _refuse_as_completed()
        parent = asyncio.current_task(self)
        scope: TaskScope = parent.scope.child() if parent is not None else self.callback_scope.child()  # type: ignore[attr-defined]
        if context is not None:
            # A task frozen in a question stays inside its context, and a context can be entered only once.
            context = context.copy()
        task = RunTask(coro, loop=self, name=name, context=context)
        task.scope = scope
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def create_root(self, coro: Coroutine[Any, Any, Any]) -> RunTask:
        """The task of the runner itself, at path ""."""
        task = RunTask(coro, loop=self, context=self._context)
        task.scope = self._root_scope
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def get_debug(self) -> bool:
        return False

    def set_debug(self, enabled: bool) -> None:
        """Debug mode of a run's loop does not exist."""

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def get_task_factory(self) -> None:
        return None

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self._drive.loop_error(context)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self._drive.loop_error(context)


def _refuse_as_completed() -> None:
    """`as_completed` puts coroutines into a set first: tasks would be numbered by memory address."""
    frame = sys._getframe(2)
    for _ in range(5):
        if frame is None or not frame.f_code.co_filename.endswith("tasks.py"):
            return
        if frame.f_code.co_name in ("as_completed", "__init__"):
            raise RuntimeError(
                "as_completed() of coroutines starts them in an order that cannot be replayed; give it tasks: "
                "[asyncio.create_task(c) for c in ...]"
            )
        frame = frame.f_back


_FORBIDDEN = (
    "run_in_executor",
    "call_soon_threadsafe",
    "create_connection",
    "create_server",
    "create_datagram_endpoint",
    "getaddrinfo",
    "getnameinfo",
    "create_unix_connection",
    "create_unix_server",
    "subprocess_exec",
    "subprocess_shell",
    "connect_read_pipe",
    "connect_write_pipe",
    "add_reader",
    "remove_reader",
    "add_writer",
    "remove_writer",
    "sock_recv",
    "sock_recv_into",
    "sock_recvfrom",
    "sock_sendall",
    "sock_sendto",
    "sock_connect",
    "sock_accept",
    "sock_sendfile",
    "sendfile",
    "start_tls",
    "connect_accepted_socket",
    "add_signal_handler",
    "remove_signal_handler",
    "run_until_complete",
    "run_forever",
    "stop",
    "close",
    "set_task_factory",
)
"""What a loop of asyncio has beside tasks and timers. None of it can be replayed."""


def _forbidden(name: str) -> Callable[..., NoReturn]:
    def method(self: RunLoop, *args: object, **kwargs: object) -> NoReturn:
        raise RuntimeError(
            f"{name}() inside a workflow: sockets, threads and subprocesses are not replayed; put it in a step, "
            "`await step(function, ...)`"
        )

    method.__name__ = name
    return method


for _name in _FORBIDDEN:
    setattr(RunLoop, _name, _forbidden(_name))
