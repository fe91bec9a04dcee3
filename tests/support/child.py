"""A real process that runs workflows of `tests.support.shop`, held at named places so that it can be
killed there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[2]


class Child:
    """One process: commands go in as arguments, lines come out. Reading waits for a line, never for a
    time."""

    def __init__(self, module: str, *arguments: str, hold: tuple[str, ...] = ()) -> None:
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(_ROOT / "src"), str(_ROOT)]),
            "PERDURE_TEST_HOLD": json.dumps(hold),
            "PYTHONUNBUFFERED": "1",
        }
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            env=environment,
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def expect(self, beginning: str) -> str:
        """The next line that begins so, without that beginning. Fails with everything the process said if
        it ends before."""
        assert self.process.stdout is not None
        for raw in self.process.stdout:
            line = raw.rstrip("\n")
            self.lines.append(line)
            if line.startswith(beginning):
                return line.removeprefix(beginning).strip()
        said = "\n".join(self.lines)
        raise AssertionError(f"the process ended ({self.process.wait()}) before it said {beginning!r}:\n{said}")

    def go(self) -> None:
        """Let it pass the place where it is held."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def result(self) -> Any:
        """What the command returned; the process has ended then."""
        value = json.loads(self.expect("result "))
        self.end()
        return value

    def error(self) -> str:
        """The class and message of what the command raised; the process has ended then."""
        said = self.expect("error ")
        self.end()
        return said

    def end(self) -> int:
        """Wait for it to end by itself; returns its exit code."""
        out, _ = self.process.communicate()
        self.lines.extend(out.splitlines())
        return self.process.returncode

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.process.kill()
        self.process.communicate()

    def freeze(self) -> None:
        """SIGSTOP, and wait until it stands still."""
        os.kill(self.process.pid, signal.SIGSTOP)
        _, status = os.waitpid(self.process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)

    def thaw(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)

    def close(self) -> None:
        if self.process.poll() is None:
            self.kill()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


@contextmanager
def child(verb: str, url: str, *, hold: tuple[str, ...] = (), **options: Any) -> Iterator[Child]:
    """A process that is gone at the end of the block, whatever happened in it."""
    with _closing(Child("tests.support.shop", verb, url, json.dumps(options), hold=hold)) as process:
        yield process


@contextmanager
def storm(url: str, **options: Any) -> Iterator[Child]:
    """The same for a process of `tests.support.storm`."""
    with _closing(Child("tests.support.storm", url, json.dumps(options))) as process:
        yield process


@contextmanager
def _closing(process: Child) -> Iterator[Child]:
    try:
        yield process
    finally:
        process.close()
