"""Proof of life on one machine: each worker holds `flock` on a file of its own. Decides alive, dead or
unknown.

The kernel gives the lock back when the process is gone, however it went. The lock is taken before the
worker's row is written, so a row without a held lock is proof of death, provided that host, boot and inode
agree. What is not certain is `unknown`, and the lease decides.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re

from perdure.core.records import WorkerRow
from perdure.errors import DurableStorageError
from perdure.store import driver

_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,64}")


class Presence:
    """The lock files beside one database."""

    def __init__(self, database: str) -> None:
        self._database = database
        self._held: dict[str, int] = {}

    def lock(self, worker_id: str) -> str:
        """Take the worker's lock; returns `path|inode`. `DurableStorageError` if it cannot be taken."""
        path = self._path(worker_id)
        try:
            handle, inode = _lock_file(path)
            while _inode(path) != inode:  # swept away between opening and locking
                os.close(handle)
                handle, inode = _lock_file(path)
        except OSError as error:
            raise DurableStorageError(f"cannot lock {path} for worker {worker_id}: {error}") from error
        self._held[worker_id] = handle
        return f"{path}|{inode}"

    def unlock(self, worker_id: str) -> None:
        """Remove the file, then give the lock back: nobody can lock a file that is about to vanish."""
        handle = self._held.pop(worker_id, None)
        if handle is None:
            return
        _remove(self._path(worker_id))
        os.close(handle)

    def probe(self, worker: WorkerRow) -> str:
        """`alive`, `dead` or `unknown`."""
        verdict, handle = self._try(worker)
        if handle is not None:
            os.close(handle)
        return verdict

    def sweep(self, worker: WorkerRow) -> None:
        """Remove the file of a dead worker. A held one stays: its owner removes it."""
        _, handle = self._try(worker)
        if handle is not None:
            _remove(self._path(worker.worker_id))
            os.close(handle)

    def forget(self) -> None:
        """In a forked child: close the descriptors, which share the parent's locks and would outlive it."""
        for handle in self._held.values():
            os.close(handle)
        self._held.clear()

    def close(self) -> None:
        for worker_id in list(self._held):
            self.unlock(worker_id)

    def _try(self, worker: WorkerRow) -> tuple[str, int | None]:
        boot = driver.boot_id()
        if not worker.lock or not boot or (worker.host, worker.boot_id) != (driver.host_name(), boot):
            return "unknown", None
        try:
            handle = os.open(self._path(worker.worker_id), os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            # Also when the file is missing: whoever removed it may have removed it under a living worker.
            return "unknown", None
        if worker.lock.rpartition("|")[2] != str(os.fstat(handle).st_ino):
            os.close(handle)
            return "unknown", None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(handle)
            return ("alive" if isinstance(error, BlockingIOError) else "unknown"), None
        return "dead", handle

    def _path(self, worker_id: str) -> str:
        # An id may hold anything; a file name may not.
        name = worker_id if _PLAIN.fullmatch(worker_id) else hashlib.sha256(worker_id.encode()).hexdigest()
        return f"{self._database}.worker-{name}"


def remove_free(path: str) -> None:
    """Remove a lock file unless somebody holds it. Raises `OSError` if it is held or gone."""
    handle = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(path)
    finally:
        os.close(handle)


def _lock_file(path: str) -> tuple[int, int]:
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise
    return handle, os.fstat(handle).st_ino


def _inode(path: str) -> int | None:
    try:
        return os.stat(path).st_ino
    except FileNotFoundError:
        return None


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass
