"""Engines and the event loops they belong to: what is left when a run, an engine or a loop has ended."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.engines import Gate, opened

from perdure import EngineSettings, Resume, interrupt, open_engine, step, workflow
from perdure.engine.engine import Engine

ROOT = Path(__file__).parents[2]
HALF_A_SECOND = EngineSettings(lease_s=0.5, poll_s=0.02, grace_s=2.0)
gate = Gate()


@pytest.fixture(autouse=True)
def fresh() -> None:
    global gate
    gate = Gate()


@step(name="loops.hold")
async def hold() -> str:
    await gate.stand()
    return "held"


@workflow(name="loops.holding")
async def holding() -> str:
    return await hold()


@workflow(name="loops.asking")
async def asking() -> bool:
    await hold()
    return interrupt("go on?").approved


@workflow(name="loops.failing")
async def failing() -> None:
    await hold()
    raise KeyError("own")


async def freed(thing: weakref.ref[Any], *, collects: bool = True) -> None:
    """Wait until nothing holds on to it any more, not even itself unless the collector `collects`."""
    async with asyncio.timeout(20):
        while thing() is not None:
            await asyncio.sleep(0)
            if collects:
                gc.collect()


@pytest.mark.parametrize("flow", [holding, asking, failing], ids=lambda flow: flow.name)
async def test_rule_a_run_that_has_left_memory_leaves_nothing_behind(engine: Engine, flow: Any):
    """Its journal, arguments and results are freed with it, whether it completed, asked or failed."""
    run_id = await engine.start(flow)
    drive = engine.host.drives[run_id]
    left = weakref.ref(drive)
    await gate.reached.wait()
    gate.open()
    await drive.ended
    del drive
    await freed(left)


@pytest.fixture
def no_collector() -> Iterator[None]:
    """What is freed is freed because nothing refers to it, not even itself."""
    gc.disable()
    yield
    gc.enable()


async def ended(engine: Engine, flow: Any) -> weakref.ref[Any]:
    """Run it to its end; a weak reference to its drive."""
    drive = engine.host.drives[await engine.start(flow)]
    await drive.ended
    return weakref.ref(drive)


@pytest.mark.usefixtures("no_collector")
async def test_rule_the_memory_of_a_completed_run_is_free_at_its_end(engine: Engine):
    """Else many short runs would make the collector stop the loop for as long as all of them together."""
    gate.open()
    await freed(await ended(engine, holding), collects=False)


@pytest.mark.usefixtures("no_collector")
async def test_rule_the_memory_of_a_run_is_free_when_its_last_thread_has_ended(engine: Engine):
    @step(name="loops.slow", timeout=0.05)
    def slow() -> None:
        released.wait(30)

    @workflow(name="loops.overtaken")
    async def overtaken() -> str:
        try:
            await slow()
        except TimeoutError:
            return "overtaken"
        return "never"

    released = threading.Event()
    left = await ended(engine, overtaken)
    assert left() is not None, "its thread goes on"
    released.set()
    await freed(left, collects=False)


async def test_rule_workflow_code_runs_in_no_task_of_the_real_loop(engine: Engine):
    """A thread runs one task at a time (Python 3.14 insists), though a body hands its result on inside its own."""
    real = asyncio.get_running_loop()

    @step(name="loops.plain")
    async def plain() -> bool:
        return asyncio.current_task() is not None

    @workflow(name="loops.alone")
    async def alone() -> list[bool]:
        found = [asyncio.current_task(real) is None]
        for _ in range(3):
            found += [await plain(), asyncio.current_task(real) is None]
        return found

    assert (await engine.run(alone)).output == [True] * 7


async def test_rule_a_body_that_cancelled_itself_is_forgotten_with_its_run(engine: Engine):
    """Whether the loop is being closed under it is looked at a second later: of a lost run nobody looks."""

    @step(name="loops.self_cancelled")
    async def self_cancelled() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    @workflow(name="loops.doubted")
    async def doubted() -> None:
        await self_cancelled()

    drive = engine.host.drives[await engine.start(doubted)]
    while not drive.bodies._cancelled:
        await asyncio.sleep(0)
    (looks,) = drive.bodies._cancelled.values()
    drive.abandon("lost")
    await drive.ended
    while not looks.cancelled():
        await asyncio.sleep(0)


async def test_rule_what_a_task_left_behind_does_at_its_end_meets_no_error(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
):
    """It refused to end at a pause; when it is collected, its time limit is cancelled and its own clean-up runs."""
    unraisable: list[object] = []
    cleaned: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)

    async def stubborn() -> None:
        try:
            async with asyncio.timeout(3600):
                while True:
                    try:
                        await asyncio.Event().wait()
                    except asyncio.CancelledError:
                        pass
        finally:
            cleaned.append("up")

    @workflow(name="loops.leaving")
    async def leaving() -> None:
        task = asyncio.create_task(stubborn())
        await asyncio.sleep(0)
        interrupt("go on?")
        await task

    assert (await engine.run(leaving)).status == "paused"
    async with asyncio.timeout(20):
        while not cleaned:
            await asyncio.sleep(0)
            gc.collect()
    assert unraisable == []


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with Python 3.12")
async def test_rule_a_body_may_run_while_its_task_is_made(engine: Engine):
    """On a loop with eager tasks: each step is performed once, and its result is what it returned."""
    asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined]
    ran: list[int] = []

    @step(name="loops.eager", retries=2)
    async def eager(n: int) -> int:
        ran.append(n)
        return n

    @workflow(name="loops.eagerly")
    async def eagerly() -> list[int]:
        return [await eager(n) for n in range(3)]

    assert (await engine.run(eagerly)).output == ran == [0, 1, 2]


def test_rule_runs_of_a_loop_that_ended_without_closing_its_engine_are_taken_up(store_url: str):
    """Its heart stops with the loop, so that a later loop of the same process does not wait for it for ever."""

    async def forget() -> str:
        engine = await open_engine(store_url, settings=HALF_A_SECOND)
        run_id = await engine.start(holding)
        await gate.reached.wait()
        return run_id

    async def later(run_id: str) -> str:
        async with asyncio.timeout(20), opened(store_url, HALF_A_SECOND) as engine:
            return (await engine.run(holding, execution_id=run_id)).output

    with asyncio.Runner() as runner:
        run_id = runner.run(forget())
    fresh_gate()
    assert asyncio.run(later(run_id)) == "held"


def test_rule_the_engine_of_a_loop_is_closed_even_if_its_first_caller_gave_up(store_url: str):
    """A client that goes away while the engine opens leaves no worker behind when the loop ends."""

    async def give_up_and_go_on() -> None:
        first = asyncio.ensure_future(holding.arun(execution_id="first", store=store_url))
        await asyncio.sleep(0)
        first.cancel()
        second = asyncio.ensure_future(holding.arun(execution_id="second", store=store_url))
        await gate.reached.wait()
        gate.open()
        assert (await second).output == "held"

    async def workers_left() -> list[str]:
        async with opened(store_url) as engine:
            rows = await engine.store.worker_list()
            return [row.worker_id for row in rows if row.worker_id != engine.host.worker_id]

    asyncio.run(give_up_and_go_on())
    assert asyncio.run(workers_left()) == []


def fresh_gate() -> None:
    """A gate for the next loop that lets everybody through."""
    global gate
    gate = Gate()
    gate.open()


_STUCK = """
import asyncio, sys, threading
from perdure import open_engine, step, workflow
from perdure.core.settings import EngineSettings

@step(name="stuck", timeout=0.05)
def stuck():
    threading.Event().wait()

@workflow(name="w")
async def w():
    try:
        await stuck()
    except TimeoutError:
        return "late"

async def main():
    async with open_engine(sys.argv[1], settings=EngineSettings(grace_s=0.0)) as engine:
        print((await engine.run(w)).output, flush=True)

asyncio.run(main())
print("main has ended", flush=True)
"""


def test_rule_a_thread_that_never_ends_does_not_keep_the_process(tmp_path: Path):
    """Its step has timed out, its run has ended: nobody waits for it, not even the interpreter at its exit."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _STUCK, f"sqlite:///{tmp_path / 'perdure.db'}"],
            cwd=ROOT,
            env={"PYTHONPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        pytest.fail(f"the process stays: {error.stdout!r}")
    assert done.stdout.splitlines() == ["late", "main has ended"]
    assert done.returncode == 0


async def test_rule_an_answer_after_the_drive_was_freed_goes_on(engine: Engine):
    """What was freed is loaded again: nothing but the store is needed."""
    gate.open()
    paused = await engine.run(asking)
    gc.collect()
    result = await engine.resume(asking, paused.execution_id, resume_value=Resume(approved=True))
    assert result.output is True
