"""Threads for sync bodies: one each, idle ones used again. Daemons, so that a body that never returns does not keep the
process from ending; `concurrent.futures` joins its threads at exit."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

_IDLE_S = 10.0

_Work = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Any]", Callable[[], Any]]


class StepThreads:
    """As many threads as bodies run at a time; each waits a while for another body before it ends."""

    def __init__(self) -> None:
        self._idle: list[SimpleQueue[_Work | None]] = []
        self._lock = threading.Lock()

    def submit(self, loop: asyncio.AbstractEventLoop, work: Callable[[], Any]) -> asyncio.Future[Any]:
        """Run `work` in a thread; the future belongs to `loop`."""
        future: asyncio.Future[Any] = loop.create_future()
        with self._lock:
            inbox = self._idle.pop() if self._idle else None
        if inbox is None:
            inbox = SimpleQueue()
            threading.Thread(target=self._serve, args=(inbox,), name="perdure-step", daemon=True).start()
        inbox.put((loop, future, work))
        return future

    def close(self) -> None:
        """Let idle threads end. Bodies that run go on."""
        with self._lock:
            idle, self._idle = self._idle, []
        for inbox in idle:
            inbox.put(None)

    def _serve(self, inbox: SimpleQueue[_Work | None]) -> None:
        item = inbox.get()
        while item is not None:
            _perform(*item)
            del item  # an idle thread keeps nothing of the run alive
            with self._lock:
                self._idle.append(inbox)
            item = self._next(inbox)

    def _next(self, inbox: SimpleQueue[_Work | None]) -> _Work | None:
        with contextlib.suppress(Empty):
            return inbox.get(timeout=_IDLE_S)
        with self._lock:
            if inbox in self._idle:
                self._idle.remove(inbox)
                return None
        return inbox.get()  # it was taken just now: its work is on the way


def _perform(loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any], work: Callable[[], Any]) -> None:
    result, error = None, None
    try:
        result = work()
    except BaseException as raised:
        error = raised
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
        loop.call_soon_threadsafe(_settle, future, result, error)


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
