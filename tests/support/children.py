"""Real processes for tests that kill or stop a worker. A child tells what it does by lines on its output.

`python -m tests.support.children STORE_URL RUN_ID WORKFLOW` runs one workflow; a body says `in body` and then waits for
a line.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from perdure import EngineSettings, idempotent, open_engine, step, workflow
from perdure.checkpointers.foreign import ForeignStore
from perdure.core.resume import Resume
from tests.support import third_party

ROOT = Path(__file__).parents[2]
LEASE_S = 0.6


def _say_and_wait(what: str) -> str:
    print(what, flush=True)
    return sys.stdin.readline().strip()


@step(name="children.before")
async def before() -> str:
    return "before"


@step(name="children.stay")
def stay() -> str:
    return "stayed " + _say_and_wait("in body")


@step(name="children.stay_manually", recovery="manual")
def stay_manually() -> str:
    return "stayed " + _say_and_wait("in body")


@idempotent(name="children.effect")
def effect() -> str:
    return "effect " + _say_and_wait("in body")


@workflow(name="children.staying")
async def staying() -> list[str]:
    return [await before(), await stay()]


@workflow(name="children.staying_manually")
async def staying_manually() -> list[str]:
    return [await before(), await stay_manually()]


@workflow(name="children.effecting")
async def effecting() -> list[str]:
    return [await before(), effect()]


@workflow(name="children.asking")
async def asking() -> bool:
    from perdure import interrupt

    await before()
    return interrupt("go on?").approved


FLOWS = {flow.name: flow for flow in (staying, staying_manually, effecting, asking)}


class Child:
    """One start of a worker."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    @property
    def pid(self) -> int:
        return self.process.pid

    def wait_for(self, line: str) -> None:
        """Read until the child says this."""
        assert self.process.stdout is not None
        said: list[str] = []
        for text in self.process.stdout:
            said.append(text.strip())
            if said[-1] == line:
                return
        raise AssertionError(f"the child ended ({self.process.wait()}) and said {said}, not {line!r}")

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def rest(self) -> list[str]:
        """What else it says until it ends."""
        assert self.process.stdout is not None
        said = [line.strip() for line in self.process.stdout]
        self.process.wait()
        return said

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def child(url: str | ForeignStore, run_id: str, flow: str, *args: str) -> Iterator[Child]:
    """A process that runs one workflow; killed at the end if it is still there."""
    address = third_party.address_of(url) if isinstance(url, ForeignStore) else url
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.children", address, run_id, flow, *args],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "PATH": "/usr/bin:/bin"},
    )
    try:
        yield Child(process)
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()


async def _main(url: str, run_id: str, name: str, answer: str = "") -> None:
    settings = EngineSettings(lease_s=LEASE_S, poll_s=0.02, grace_s=5.0)
    async with open_engine(third_party.opened_at(url) or url, settings=settings) as engine:
        try:
            result = await engine.run(FLOWS[name], execution_id=run_id)
            if answer:
                await engine.answer(run_id, Resume(approved=answer == "yes"))
                _say_and_wait("answered")
            print(f"{result.status} {result.output}", flush=True)
        except BaseException as error:
            print(f"raised {type(error).__name__}: {error}", flush=True)


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
