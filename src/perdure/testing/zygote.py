"""Cheap processes: one that has imported everything and opened nothing forks a child per job.

`Zygote` is the parent's end; `python -m perdure.testing.zygote` is the other: jobs come in as lines of
JSON, and what became of children goes out. Each child is a process of its own, opens its store after the
fork, and is really killed.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import subprocess
import sys
import threading
import traceback
from dataclasses import asdict
from typing import Any

from perdure.testing.roles import Job, perform

_FAILED = 3


class Child:
    """One forked process, as seen by the parent."""

    def __init__(self, zygote: Zygote, number: int) -> None:
        self._zygote = zygote
        self._number = number
        self._ended = threading.Event()
        self._code: int | None = None

    def wait(self, timeout_s: float) -> int | None:
        """Its exit status (negative: the signal that killed it), or None if it is still running."""
        self._ended.wait(timeout_s)
        return self._code

    def signal(self, number: int) -> None:
        """Send it a signal, if it has not ended."""
        self._zygote.send({"signal": number, "child": self._number})

    def ended(self, code: int) -> None:
        self._code = code
        self._ended.set()


class Zygote:
    """A running fork server. Threads may share it; `close` kills what is left."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._children: dict[int, Child] = {}
        self._count = 0
        self._process = subprocess.Popen(
            [sys.executable, "-m", "perdure.testing.zygote"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self._reader = threading.Thread(target=self._read, name="zygote", daemon=True)
        self._reader.start()

    def spawn(self, job: Job, *, log: str) -> Child:
        """Fork a child that does the job; `log` is where its output goes."""
        with self._lock:
            self._count += 1
            child = self._children[self._count] = Child(self, self._count)
            self._write({"job": asdict(job), "child": self._count, "log": log})
        return child

    def send(self, command: dict[str, Any]) -> None:
        with self._lock:
            self._write(command)

    def _write(self, command: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            news = json.loads(line)
            with self._lock:
                child = self._children.pop(news["child"])
            child.ended(news["code"])

    def close(self) -> None:
        """End it and its children. Idempotent."""
        if self._process.poll() is None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()


class _Server:
    """The process that forks. One thread; everything it waits for is a file descriptor."""

    def __init__(self) -> None:
        self._pids: dict[int, int] = {}
        self._wake, write = os.pipe()
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # A child must not die of a stop that comes before it can handle it.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def serve(self) -> None:
        pending = b""
        while True:
            readable, _, _ = select.select([0, self._wake], [], [])
            if self._wake in readable:
                os.read(self._wake, 4096)
                self._reap()
            if 0 in readable:
                data = os.read(0, 65536)
                if not data:
                    break
                *lines, pending = (pending + data).split(b"\n")
                for line in lines:
                    self._command(json.loads(line))
        for pid in self._pids:
            os.kill(pid, signal.SIGKILL)

    def _command(self, command: dict[str, Any]) -> None:
        if "job" in command:
            self._fork(command["child"], Job(**command["job"]), command["log"])
            return
        for pid, number in self._pids.items():
            if number == command["child"]:
                os.kill(pid, command["signal"])

    def _fork(self, number: int, job: Job, log: str) -> None:
        pid = os.fork()
        if pid:
            self._pids[pid] = number
            return
        code = _FAILED
        try:
            _detach(log)
            perform(job)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)

    def _reap(self) -> None:
        while self._pids:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            news = {"child": self._pids.pop(pid), "code": os.waitstatus_to_exitcode(status)}
            os.write(1, (json.dumps(news) + "\n").encode())


def _detach(log: str) -> None:
    """In the child: the server's pipes are not ours."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDONLY)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(null, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)


def _import_drivers() -> None:
    """What a child would import otherwise, each for itself."""
    import perdure.store.sqlite
    from perdure.store import queries

    queries.load("sqlite")
    try:
        import psycopg_pool  # noqa: F401  # optional dependency: perdure[postgres]

        import perdure.store.postgres  # noqa: F401

        queries.load("postgres")
    except ModuleNotFoundError:
        pass


def main() -> None:
    _import_drivers()
    gc.freeze()
    _Server().serve()


if __name__ == "__main__":
    main()
