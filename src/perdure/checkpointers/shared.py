"""Open stores that checkpointers of this process share. Decides that there is one per address, and when it is closed.

Two stores on one file would be two writers that wait for each other's locks. A store is closed when the last
checkpointer that holds it lets go, and what is left at the end of the process then.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from perdure.store.sql_store import SqlStore


@dataclass(slots=True, eq=False)
class Holding:
    """A share in an open store; ends with `release`."""

    store: SqlStore
    key: Hashable
    pid: int = field(default_factory=os.getpid)

    @property
    def is_of_this_process(self) -> bool:
        """False in a child made by `fork()`, which has to open the store itself."""
        return self.pid == os.getpid()


_lock = threading.Lock()
_held: dict[Hashable, list[Holding]] = {}
_is_registered = False


def hold(address: Hashable, open_it: Callable[[], SqlStore]) -> Holding:
    """A share in the store at this address, opened if nobody in this process has it. Raises what opening raises."""
    key = (os.getpid(), address)
    with _lock:
        _register()
        holders = _held.get(key)
        found = Holding(holders[0].store if holders else open_it(), key)
        _held.setdefault(key, []).append(found)
        return found


def release(holding: Holding) -> None:
    """Give a share back; the last one closes the store. Idempotent."""
    with _lock:
        holders = _held.get(holding.key, [])
        if holding not in holders:
            return
        holders.remove(holding)
        if holders:
            return
        del _held[holding.key]
        # Under the lock: who opens the address again comes after the locks of this one are gone.
        holding.store.close_now()


def _register() -> None:
    global _is_registered
    if not _is_registered:
        _is_registered = True
        atexit.register(_close_all)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=_forget)


def _close_all() -> None:
    for holders in list(_held.values()):
        for holding in list(holders):
            release(holding)


def _forget() -> None:
    """In a forked child: the stores are the parent's, and its threads may have held the lock."""
    global _lock
    _lock = threading.Lock()
    _held.clear()
