"""What a measured process knows: its task, how it reports, and the few tools its workloads share.

Every measurement runs in a fresh process that imports one contender and this module. The cold-resume workload
counts import time, so nothing heavier than ``json`` may be imported here.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

WORK_S = 0.1  # how long a step of the crash workload works


class Task(NamedTuple):
    """What one process has to do. Travels as one JSON object in ``argv[1]``."""

    workload: str
    stage: str  # "" for a workload that is one process; else pause/resume, start/recover, empty, setup, durable
    store: str  # sqlite | postgres
    mode: str  # the contender's own variant, e.g. sync or async
    directory: str  # fresh, on a real disk; the current directory of the process
    url: str  # a fresh Postgres database, or "" on SQLite
    amount: int  # steps (w1, w3) or runs (w2, w5)
    concurrency: int  # runs at a time (w2)
    steps: int  # steps of a run (w2, w5)
    lease_s: float  # for contenders that wait for a claim to expire


Workload = Callable[[Task], "dict[str, Any] | None"]


def main(workloads: dict[str, Workload]) -> None:
    """Run the task named on the command line and report what it measured."""
    task = Task(**json.loads(sys.argv[1]))
    result = workloads[task.workload](task)
    if result is not None:
        report("RESULT", result)


def report(word: str, values: dict[str, Any] | None = None) -> None:
    """One line that the parent waits for."""
    print(word, json.dumps(values or {}), flush=True)


class StepTimer:
    """Times a block of ``count`` sequential steps: wall clock and this process's own CPU."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __enter__(self) -> "StepTimer":
        self._cpu_s, self._wall_s = time.process_time(), time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self._wall_s = time.perf_counter() - self._wall_s
        self._cpu_s = time.process_time() - self._cpu_s

    def result(self) -> dict[str, Any]:
        return {
            "count": self.count,
            "wall_s": round(self._wall_s, 4),
            "steps_per_s": round(self.count / self._wall_s, 1),
            "cpu_us_per_step": round(self._cpu_s / self.count * 1e6),
        }


def latencies(seconds: Sequence[float], wall_s: float) -> dict[str, Any]:
    """Throughput and the spread of many runs."""
    ordered = sorted(seconds)

    def percentile_ms(percent: float) -> float:
        return round(ordered[round(percent / 100 * (len(ordered) - 1))] * 1e3, 2)

    return {
        "count": len(ordered),
        "wall_s": round(wall_s, 4),
        "runs_per_s": round(len(ordered) / wall_s, 1),
        "p50_ms": percentile_ms(50),
        "p99_ms": percentile_ms(99),
    }


def effect(directory: str, run: str, step: int, what: str) -> None:
    """A side effect in the world: one appended line, one ``write(2)``, so that a kill never tears it."""
    handle = os.open(effects_path(directory), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(handle, f"{run} {step} {what}\n".encode())
    os.close(handle)


def effects_path(directory: str) -> str:
    return os.path.join(directory, "effects.log")


class Gate:
    """Holds every run in its first step until all of them are in flight."""

    def __init__(self, count: int) -> None:
        import asyncio  # not at the top: the cold-resume workload pays for every import

        self._missing = count
        self._open = asyncio.Event()

    async def wait(self) -> None:
        self._missing -= 1
        if self._missing <= 0:
            self._open.set()
        await self._open.wait()


async def work(task: Task, gate: Gate | None, run: str, step: int) -> dict[str, Any]:
    """The body of a step of the crash workload: begins, works, ends; both ends leave a mark in the world."""
    import asyncio  # as above

    if gate is not None and step == 0:
        await gate.wait()
    effect(task.directory, run, step, "start")
    await asyncio.sleep(WORK_S)
    effect(task.directory, run, step, "end")
    return {"step": step}


def half(number: int, who: str) -> str:
    """512 characters, another text for each number and speaker, that no database compresses much."""
    import random  # as above

    chosen = random.Random(f"{number} {who}")
    return "".join(chosen.choices("abcdefghijklmnopqrstuvwxyz ABCDEFGHIJ", k=512))


def turns(count: int) -> list[dict[str, str]]:
    """What is said in so many steps of the growing workload: 1 KB each."""
    return [{"user": half(i, "user"), "assistant": half(i, "assistant")} for i in range(count)]


def elapsed_ms(since: float) -> float:
    return round((time.perf_counter() - since) * 1e3, 1)
