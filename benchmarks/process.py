"""One measurement: fresh directory, fresh database, fresh process. Nothing here knows a contender's API."""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import postgres
from benchmarks.child import Task, effects_path
from benchmarks.plan import Contender, Size

ROOT = Path(__file__).resolve().parent.parent
LEASE_S = 5.0
TIMEOUT_S = 180.0
_STATISTICS_S = 0.6  # a Postgres backend reports its counters with this delay at most, and when it ends


class MeasurementFailed(Exception):
    """The child ended without its figures, or hung; the message carries the end of its error output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Where measurements run: the interpreters, the disk, the server (None when Postgres is not measured)."""

    own_python: str
    peers_python: str
    data: Path
    server: postgres.Server | None

    def measure(self, contender: Contender, size: Size) -> dict[str, Any]:
        """Run the contender's workload once: its figures by name. Raises ``MeasurementFailed``."""
        if size.counts:
            return self._growth(contender, size)
        task = self._prepare(contender, size)
        if contender.is_staged:
            with self._child(contender, task._replace(workload="setup")) as child:
                _wait_for(child, "DONE")
        match contender.workload:
            case "w4" | "w4chain":
                return self._cold_resume(contender, task)
            case "w5":
                return self._kill_and_recover(contender, task)
            case _:
                return self._plain(contender, task)

    def _prepare(self, contender: Contender, size: Size) -> Task:
        directory = self.data / contender.name
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        url = ""
        if contender.store == "postgres":
            assert self.server is not None, "plans with Postgres start its server"
            url = self.server.database_create(f"bench_{contender.name}")
        return Task(
            workload=contender.workload,
            stage="",
            store=contender.store,
            mode=contender.mode,
            directory=str(directory),
            url=url,
            amount=size.amount,
            concurrency=size.concurrency,
            steps=size.steps,
            lease_s=LEASE_S,
        )

    def _plain(self, contender: Contender, task: Task) -> dict[str, Any]:
        before = postgres.counters(task.url) if task.url else None
        with self._child(contender, task) as child:
            figures = _wait_for(child, "RESULT")
        if before is not None and "steps_per_s" in figures:
            time.sleep(_STATISTICS_S)
            after = postgres.counters(task.url)
            figures["wal_syncs_per_step"] = round((after.wal_syncs - before.wal_syncs) / figures["count"], 2)
            figures["transactions_per_step"] = round((after.transactions - before.transactions) / figures["count"], 2)
        return figures

    def _growth(self, contender: Contender, size: Size) -> dict[str, Any]:
        """What a store has grown by since it was empty, and the seconds of the run, for each count. `growth` is from
        a quarter of the steps to all of them: 4 is linear."""
        kb: dict[int, float] = {}
        seconds: dict[int, float] = {}
        for count in size.counts:
            task = self._prepare(contender, replace(size, amount=count))
            with self._child(contender, task._replace(stage="empty")) as child:
                _wait_for(child, "DONE")
            empty_bytes = _stored_bytes(task)
            with self._child(contender, task) as child:
                seconds[count] = _wait_for(child, "RESULT")["wall_s"]
            kb[count] = round((_stored_bytes(task) - empty_bytes) / 1024, 1)
        most, quarter = size.counts[-1], size.counts[-1] // 4
        return {
            "kb": kb[most],
            **{f"kb_{count}": value for count, value in kb.items()},
            **{f"s_{count}": value for count, value in seconds.items()},
            "growth": round(kb[most] / kb[quarter], 2),
            "s_growth": round(seconds[most] / seconds[quarter], 2),
        }

    def _cold_resume(self, contender: Contender, task: Task) -> dict[str, Any]:
        """Pause in one process, then time a second one from its spawn to its exit."""
        with self._child(contender, task._replace(stage="pause")) as child:
            _wait_for(child, "PAUSED")
        begun = time.perf_counter()
        with self._child(contender, task._replace(stage="resume")) as child:
            figures = _wait_for(child, "DONE")
            done_s = time.perf_counter() - begun
        exit_s = time.perf_counter() - begun
        return {"exit_ms": round(exit_s * 1e3, 1), "done_ms": round(done_s * 1e3, 1), **figures}

    def _kill_and_recover(self, contender: Contender, task: Task) -> dict[str, Any]:
        """``kill -9`` with every run in flight and half of all effects begun, then time a fresh process."""
        with self._child(contender, task._replace(stage="start")) as child:
            _wait_for_half(child, task)
            child.send_signal(signal.SIGKILL)
            child.wait()
        before = _marks(task)
        recorded = self._recorded(contender, task)
        begun = time.perf_counter()
        with self._child(contender, task._replace(stage="recover")) as child:
            figures = _wait_for(child, "DONE")
            recover_s = time.perf_counter() - begun
        after = _marks(task)
        return {"recover_s": round(recover_s, 3), **_repeats(task, before, after, recorded), **figures}

    def _recorded(self, contender: Contender, task: Task) -> set[str] | None:
        """The ``run step`` pairs whose record was durable at the kill, for contenders that can tell."""
        if not contender.reads_records:
            return None
        if task.store == "sqlite":  # a copy, or reading would do part of the recovery's work
            copy = Path(task.directory) / "copy"
            copy.mkdir()
            for file in Path(task.directory).glob("*.db*"):
                if not file.name.endswith("-shm"):
                    shutil.copy(file, copy)
            task = task._replace(directory=str(copy))
        with self._child(contender, task._replace(stage="durable")) as child:
            figures = _wait_for(child, "DONE")
        return set(figures["steps"])

    @contextmanager
    def _child(self, contender: Contender, task: Task) -> Iterator[subprocess.Popen[str]]:
        """The process of one stage; it must end by itself, unless the block killed it."""
        python = self.peers_python if contender.is_peer else self.own_python
        # Not -m: the contender's module keeps its real name, whichever process imports it.
        code = f"from benchmarks.child import main; from {contender.module} import WORKLOADS; main(WORKLOADS)"
        errors = Path(task.directory) / "stderr.log"
        with errors.open("ab") as stderr:
            child = subprocess.Popen(
                [python, "-c", code, json.dumps(task._asdict())],
                cwd=task.directory,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )
        watchdog = threading.Timer(TIMEOUT_S, child.kill)
        watchdog.start()
        try:
            yield child
            assert child.stdout is not None
            child.stdout.read()
            code_returned = child.wait()
            if code_returned not in (0, -signal.SIGKILL):
                raise MeasurementFailed(f"exit code {code_returned}")
        except MeasurementFailed as failed:
            raise MeasurementFailed(
                f"{contender.label} {task.workload} {task.stage} on {task.store}: {failed}; "
                f"{errors.read_text(errors='replace')[-1500:]}"
            ) from None
        finally:
            watchdog.cancel()
            if child.poll() is None:
                child.kill()
                child.wait()


def _stored_bytes(task: Task) -> int:
    """What the store takes on disk, everything in its main files. Its processes have ended."""
    if task.url:
        return postgres.stored_bytes(task.url)
    for file in Path(task.directory).glob("*.db"):
        connection = sqlite3.connect(file)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        connection.close()
    kinds = (".db", ".db-wal", ".db-journal")
    return sum(file.stat().st_size for file in Path(task.directory).iterdir() if file.name.endswith(kinds))


def _wait_for(child: subprocess.Popen[str], word: str) -> dict[str, Any]:
    """Blocks until the child reports ``word``: the figures that came with it."""
    assert child.stdout is not None
    for line in child.stdout:
        if line.startswith(word):
            return json.loads(line[len(word) :])
    raise MeasurementFailed(f"ended or hung before {word}")


def _wait_for_half(child: subprocess.Popen[str], task: Task) -> None:
    while child.poll() is None:
        begun = [mark for mark in _marks(task) if mark.endswith(" start")]
        runs = {mark.split()[0] for mark in begun}
        if len(begun) >= task.amount * task.steps // 2 and len(runs) == task.amount:
            return
        time.sleep(0.01)
    raise MeasurementFailed("ended before half of its effects had begun")


def _marks(task: Task) -> list[str]:
    path = effects_path(task.directory)
    if not os.path.exists(path):
        return []
    with open(path) as file:
        return file.read().splitlines()


def _repeats(task: Task, before: list[str], after: list[str], recorded: set[str] | None) -> dict[str, Any]:
    """What ran more than once, and how much of that need not have."""

    def steps(marks: list[str], what: str) -> list[str]:
        return [mark.rsplit(" ", 1)[0] for mark in marks if mark.endswith(f" {what}")]

    starts = Counter(steps(after, "start"))
    finished = set(steps(before, "end"))
    twice = {step for step, times in starts.items() if times > 1}
    if len(starts) != task.amount * task.steps:
        raise MeasurementFailed(f"{len(starts)} of {task.amount * task.steps} steps ever ran")
    figures = {
        "in_flight": len(set(steps(before, "start")) - finished),
        "ran_twice": sum(times - 1 for times in starts.values()),
        "twice_finished": len(twice & finished),
    }
    if recorded is not None:
        figures["recorded"] = len(recorded)
        figures["twice_recorded"] = len(twice & recorded)
    return figures
