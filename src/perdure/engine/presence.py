"""This process as a worker: its row, its heartbeat thread, and what happens when the lease can no longer be renewed.

Decides when this process has lost its own lease: well before a peer may take it (DESIGN "Ownership"). Heartbeats come
from a thread of their own, so that a blocked loop does not stop them; an error of one beat does not end the next.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable

from perdure.core import ids
from perdure.core.records import WorkerRow
from perdure.store.base import Store
from perdure.store.driver import boot_id, host_name

log = logging.getLogger("perdure")

_BEATS_PER_LEASE = 5


def new_worker() -> WorkerRow:
    """A row for this start of this process; reads a file, so not on a loop. The id is fresh per start: a restarted
    worker does not look like its old self."""
    return WorkerRow(
        worker_id=ids.run_id(),
        host=host_name(),
        boot_id=boot_id(),
        pid=os.getpid(),
        beat=0,
        lock=None,
        started_at=0.0,
        ended_at=None,
    )


class Presence:
    """The heartbeat of one worker."""

    def __init__(
        self, store: Store, worker_id: str, lease_s: float, on_lost: Callable[[str], None], is_gone: Callable[[], bool]
    ) -> None:
        self._store = store
        self._worker_id = worker_id
        self._lease_s = lease_s
        self._on_lost = on_lost
        self._is_gone = is_gone
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="perdure-heartbeat", daemon=True)

    @property
    def beat_s(self) -> float:
        """Seconds between two heartbeats: never more than a fifth of the lease."""
        return min(self._lease_s / _BEATS_PER_LEASE, self._store.beat_s)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop beating; returns at once, the thread ends by itself."""
        self._stopped.set()

    def _beat(self) -> None:
        last_s = time.monotonic()
        while not self._stopped.wait(self.beat_s):
            if self._is_gone():
                self._leave()
                return
            try:
                is_ours = self._store.worker_beat(self._worker_id)
            except Exception as error:
                log.warning("a heartbeat failed: %s", error)
            else:
                if not is_ours:
                    self._lost("its worker row was ended by a peer")
                    return
                last_s = time.monotonic()
            if time.monotonic() - last_s > self._lease_s * 2 / 3:
                self._lost("the lease could not be renewed")
                return

    def _leave(self) -> None:
        """The event loop has ended without closing its engine: nothing drives our runs, so they are given back."""
        log.warning("worker %s: its event loop has ended; its runs are given back", self._worker_id)
        try:
            asyncio.run(self._store.worker_end(self._worker_id))
        except Exception as error:
            log.warning("worker %s could not be ended: %s", self._worker_id, error)

    def _lost(self, why: str) -> None:
        if not self._stopped.is_set():
            log.error("worker %s stops its runs: %s", self._worker_id, why)
            self._on_lost(why)
