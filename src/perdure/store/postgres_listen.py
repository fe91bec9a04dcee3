"""Hearing of other processes' commits. Decides when to tell: at a notification, after every
(re)connection, and at least once per poll interval, so that a lost notification or a dead connection costs
no more than that.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from perdure.store.driver import StoreLost
from perdure.store.postgres_connect import connect, simple
from perdure.store.postgres_errors import load_psycopg

if TYPE_CHECKING:
    import psycopg

POLL_S = 1.0
_RECONNECT_S = 0.1


class Listener(threading.Thread):
    """Calls `callback` from its own thread until stopped. Without `info` (no direct connection) it only
    polls.

    `own_pid` gives the backend of this process' writer, whose notifications are told already.
    """

    def __init__(
        self,
        info: str | None,
        channel: str,
        callback: Callable[[], None],
        own_pid: Callable[[], int | None],
        *,
        poll_s: float = POLL_S,
    ) -> None:
        super().__init__(name="perdure-listen", daemon=True)
        self._info = info
        self._channel = channel
        self._callback = callback
        self._own_pid = own_pid
        self._poll_s = poll_s
        self._is_stopped = False
        self._wake, self._waker = socket.socketpair()
        self._waker.setblocking(False)

    def stop(self) -> None:
        """Tell the thread to end; it calls nobody any more. Returns at once, so that a loop may call it."""
        self._is_stopped = True
        with contextlib.suppress(OSError):
            self._waker.send(b"x")

    def stop_and_wait(self) -> None:
        """The same, and wait for it, unless the callback itself is the caller. Idempotent."""
        self.stop()
        if self.is_alive() and threading.current_thread() is not self:
            self.join()

    def run(self) -> None:
        try:
            while not self._is_stopped:
                self._listen_once()
        finally:
            self._wake.close()
            self._waker.close()

    def _listen_once(self) -> None:
        """Listen for as long as the connection lives; or wait for one poll interval if there is none."""
        psycopg = load_psycopg()
        connection = self._connect()
        if connection is None:
            self._pause(self._poll_s)
            self._tell()
            return
        try:
            with connection:
                simple(connection, f'LISTEN "{self._channel}"')
                self._tell()  # after LISTEN: what was committed before it has notified nobody
                while not self._is_stopped:
                    self._wait(connection)
        except psycopg.Error:
            self._pause(_RECONNECT_S)

    def _connect(self) -> psycopg.Connection[Any] | None:
        if self._info is None:
            return None
        try:
            return connect(self._info)
        except StoreLost:
            return None

    def _wait(self, connection: psycopg.Connection[Any]) -> None:
        raw = connection.pgconn
        deadline = time.monotonic() + self._poll_s
        is_heard = False
        while not is_heard and not self._is_stopped and (left := deadline - time.monotonic()) > 0:
            if raw.socket in select.select([raw.socket, self._wake], [], [], left)[0]:
                raw.consume_input()
                is_heard = self._drain(raw)
        self._tell()

    def _drain(self, raw: Any) -> bool:
        """Take all notifications that are there; whether one of them is news."""
        own, is_heard = self._own_pid(), False
        while (notification := raw.notifies()) is not None:
            is_heard = is_heard or notification.be_pid != own
        return is_heard

    def _pause(self, seconds: float) -> None:
        select.select([self._wake], [], [], seconds)

    def _tell(self) -> None:
        if not self._is_stopped:
            self._callback()
