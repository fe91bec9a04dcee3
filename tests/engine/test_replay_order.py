"""DESIGN "The run's loop": asyncio's own tools, replayed exactly from every prefix of their records.

Each program notes in `seen` what it learnt, one note for each completion that is released to it. Its bodies end in an
order of the test's choosing the first time and in another order afterwards, so only the journal can bring the same
notes about again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.support.engines import HASTY, Gate, Turns, opened, record_that

from perdure import DurableRecoveryError, step, workflow
from perdure.core.checkpoints import checkpoints
from perdure.core.fold import fold
from perdure.engine.engine import Engine

NAMES = "abcde"
FIRST_ORDER = ["d", "b", "e", "a", "c"]


class World:
    """What bodies do outside the run: they end in turns, and each call gives a fresh token."""

    def __init__(self) -> None:
        self.turns = Turns(FIRST_ORDER)
        self.tokens: list[str] = []

    async def token(self, name: str) -> str:
        await self.turns.take(name)
        self.tokens.append(name)
        return f"{name}{len(self.tokens)}"


world = World()
Seen = list[Any]


@step(name="replay_order.token")
async def token(name: str) -> str:
    return await world.token(name)


async def noting(name: str, seen: Seen) -> str:
    found = await token(name)
    seen.append(found)
    return found


# --- the programs -------------------------------------------------------------------------------------


async def gather(seen: Seen) -> Any:
    return await asyncio.gather(*(noting(name, seen) for name in NAMES))


async def task_group(seen: Seen) -> Any:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(noting(name, seen)) for name in NAMES]
    return [task.result() for task in tasks]


async def as_completed(seen: Seen) -> Any:
    # Of tasks: given coroutines, Python 3.11 makes tasks of a *set* of them, in an order of its own at each execution.
    tasks = [asyncio.ensure_future(noting(name, seen)) for name in NAMES]
    return [await found for found in asyncio.as_completed(tasks)]


async def wait_first_completed(seen: Seen) -> Any:
    left = {asyncio.ensure_future(noting(name, seen)) for name in NAMES}
    order = []
    while left:
        done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
        order.append(sorted(task.result() for task in done))
    return order


async def timeout_not_reached(seen: Seen) -> Any:
    async with asyncio.timeout(3600):
        return [await noting(name, seen) for name in "ba"]


async def timeout_reached(seen: Seen) -> Any:
    never = asyncio.Event()
    try:
        async with asyncio.timeout(0.001):
            await never.wait()
    except TimeoutError:
        seen.append("too late")
    return await noting("x", seen)


async def wait_for(seen: Seen) -> Any:
    first = await asyncio.wait_for(noting("a1", seen), 3600)
    never = asyncio.Event()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(never.wait(), 0.001)
    seen.append("too late")
    return [first, await noting("x", seen)]


async def semaphore(seen: Seen) -> Any:
    two = asyncio.Semaphore(2)

    async def guarded(name: str) -> str:
        async with two:
            return await noting(name, seen)

    return await asyncio.gather(*(guarded(name) for name in "bdaec"))


async def lock(seen: Seen) -> Any:
    one = asyncio.Lock()
    held: list[str] = []

    async def guarded(name: str) -> None:
        await noting("before " + name, seen)
        async with one:
            held.append(name)
            await noting("in " + name, seen)

    await asyncio.gather(*(guarded(name) for name in "abc"))
    return held


async def event(seen: Seen) -> Any:
    ready = asyncio.Event()
    order: list[str] = []

    async def waiting(name: str) -> None:
        await ready.wait()
        order.append(await noting(name, seen))

    async def setting() -> None:
        await noting("set", seen)
        ready.set()

    await asyncio.gather(*(waiting(name) for name in NAMES), setting())
    return order


async def queue(seen: Seen) -> Any:
    work: asyncio.Queue[str] = asyncio.Queue(maxsize=2)
    done: list[tuple[int, str]] = []

    async def worker(number: int) -> None:
        while True:
            name = await work.get()
            done.append((number, await noting(name, seen)))
            work.task_done()

    workers = [asyncio.create_task(worker(number)) for number in range(3)]
    for name in "dbeac":
        await work.put(name)
    await work.join()
    for task in workers:
        task.cancel()
    await asyncio.gather(*workers, return_exceptions=True)
    return done


async def condition(seen: Seen) -> Any:
    changed = asyncio.Condition()
    order: list[str] = []

    async def waiting(name: str) -> None:
        async with changed:
            await changed.wait_for(lambda: len(seen) >= 2)
            order.append(name)
        await noting("after " + name, seen)

    async def changing(name: str) -> None:
        await noting(name, seen)
        async with changed:
            changed.notify_all()

    await asyncio.gather(waiting("first"), waiting("second"), changing("b"), changing("d"))
    return order


async def barrier(seen: Seen) -> Any:
    three = asyncio.Barrier(3)
    order: list[str] = []

    async def party(name: str) -> None:
        await noting(name, seen)
        await three.wait()
        order.append(name)

    await asyncio.gather(party("d"), party("b"), party("a1"))
    return order


async def sleeps(seen: Seen) -> Any:
    async def nap(name: str, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        seen.append(name)

    await asyncio.gather(nap("long", 0.02), nap("short", 0.001), noting("x", seen))
    return await noting("y", seen)


async def shield(seen: Seen) -> Any:
    task = asyncio.ensure_future(noting("a1", seen))
    inner = await asyncio.shield(task)
    return [inner, await noting("b1", seen)]


async def async_generator(seen: Seen) -> Any:
    async def tokens() -> Any:
        for name in NAMES[::-1]:
            yield await noting(name + "1", seen)

    return [found async for found in tokens()]


async def nested_tasks(seen: Seen) -> Any:
    async def branch(name: str) -> list[str]:
        return list(await asyncio.gather(noting(name, seen), noting(name + "!", seen)))

    return await asyncio.gather(*(branch(name) for name in "abd"))


PROGRAMS: list[Callable[[Seen], Coroutine[Any, Any, Any]]] = [
    gather,
    task_group,
    as_completed,
    wait_first_completed,
    timeout_not_reached,
    timeout_reached,
    wait_for,
    semaphore,
    lock,
    event,
    queue,
    condition,
    barrier,
    sleeps,
    shield,
    async_generator,
    nested_tasks,
]
_BY_NAME = {program.__name__: program for program in PROGRAMS}
_TURNS = {
    "timeout_not_reached": [],
    "semaphore": ["d", "b", "a", "e", "c"],
    "queue": ["b", "e", "d", "a", "c"],
    "condition": ["d", "b"],
    "barrier": ["d", "b"],
    "nested_tasks": ["d", "b", "a"],
}


@workflow(name="replayed program")
async def replayed(name: str) -> dict[str, Any]:
    seen: Seen = []
    result = await _BY_NAME[name](seen)
    return {"seen": seen, "result": result}


@pytest.mark.parametrize("name", [program.__name__ for program in PROGRAMS])
async def test_rule_the_tools_of_asyncio_replay_exactly_from_every_prefix(engine: Engine, name: str):
    global world
    world = World()
    world.turns = Turns(_TURNS.get(name, FIRST_ORDER))
    source = await engine.run(replayed, name)
    loaded = await engine.store.run_load(source.execution_id)
    seen = source.output["seen"]
    bodies = list(world.tokens)

    for checkpoint in [c for c in checkpoints(loaded) if c.step_type != "run_end"]:
        prefix = [r for r in loaded.records if r.seq <= checkpoint.seq]
        released = fold(prefix).replay_order()
        recorded = [r for r in prefix if r.type == "completed" and r.kind == "step" and r.outcome == "value"]
        world = World()
        world.turns = Turns()
        fork = await engine.fork(replayed, source.execution_id, checkpoint_id=checkpoint.checkpoint_id)

        assert fork.output["seen"][: len(recorded)] == seen[: len(recorded)], checkpoint.seq
        assert len(world.tokens) == len(bodies) - len(recorded), "each body is run once in all"
        if len(released) == len(fold(loaded.records).replay_order()):
            assert fork.output == source.output
    assert world.tokens == [], "from the last checkpoint, everything is replayed"


async def test_rule_at_replay_completions_are_released_one_at_a_time_in_recorded_order(engine: Engine, store_url: str):
    """Order of completion the first time: c, a, b. All three are recorded before the replay begins."""
    turns, gate = Turns("cab"), Gate()
    seen: list[list[str]] = []

    @step
    async def named(name: str) -> str:
        await turns.take(name)
        return name

    @step
    async def last() -> None:
        await gate.stand()

    @workflow
    async def flow() -> list[str]:
        order: list[str] = []
        seen.append(order)

        async def note(name: str) -> None:
            order.append(await named(name))

        await asyncio.gather(*(note(name) for name in "abc"))
        await last()
        return order

    async with opened(store_url, HASTY) as first:
        run_id = await first.start(flow)
        await gate.reached.wait()
    gate.open()
    await engine.resume(flow, run_id)

    assert seen == [["c", "a", "b"], ["c", "a", "b"]]


async def test_rule_no_body_starts_before_the_last_recorded_completion_is_released(engine: Engine, store_url: str):
    """The branch that was in doubt is called first, and runs only when the others' records have been given back."""
    gate = Gate()
    seen: list[str] = []

    @step
    async def quick(n: int) -> int:
        return n

    @step
    async def slow() -> str:
        seen.append("body")
        await gate.stand()
        return "slow"

    @workflow
    async def flow() -> str:
        async def others() -> None:
            for n in range(5):
                seen.append(f"released {await quick(n)}")

        found, _ = await asyncio.gather(slow(), others())
        return found

    async with opened(store_url, HASTY) as first:
        run_id = await first.start(flow)
        await gate.reached.wait()
        await record_that(first, run_id, type="completed", path="~1", index=4)
    seen.clear()
    gate.open()
    result = await engine.resume(flow, run_id)

    assert result.output == "slow"
    assert seen == [*(f"released {n}" for n in range(5)), "body"]


async def test_rule_a_record_that_nobody_asks_for_stops_the_run_and_is_named(engine: Engine, store_url: str):
    gate = Gate()
    code = {"is_new": False}

    @step
    async def reserve() -> str:
        return "reserved"

    @step
    async def last() -> None:
        await gate.stand()

    @workflow
    async def flow() -> str:
        if not code["is_new"]:
            await reserve()
            await last()
        return "done"

    async with opened(store_url, HASTY) as first:
        run_id = await first.start(flow)
        await gate.reached.wait()
    code["is_new"] = True
    with pytest.raises(DurableRecoveryError, match="reserve"):
        await engine.resume(flow, run_id)


async def test_rule_the_loops_clock_moves_only_with_the_records(engine: Engine):
    """`loop.time()` in workflow code is the run's time: a replay reads what the first execution read."""
    times: list[list[float]] = []

    @workflow
    async def flow() -> None:
        loop = asyncio.get_running_loop()
        mine: list[float] = [loop.time()]
        times.append(mine)
        for name in ("x", "y", "z"):
            await token(name)
            mine.append(loop.time())
            await asyncio.sleep(0.001)
            mine.append(loop.time())

    source = await engine.run(flow)
    await engine.fork(flow, source.execution_id)

    assert times[0] == times[1]
    assert times[0] == sorted(times[0])
    assert len(set(times[0])) > 3


@pytest.mark.parametrize("what", ["socket", "server", "subprocess", "shell", "thread", "executor", "dns"])
async def test_rule_sockets_threads_and_subprocesses_outside_a_step_raise_and_name_the_way(engine: Engine, what: str):
    async def attempt() -> Any:
        loop = asyncio.get_running_loop()
        match what:
            case "socket":
                await asyncio.open_connection("127.0.0.1", 9)
            case "server":
                await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
            case "subprocess":
                await asyncio.create_subprocess_exec("true")
            case "shell":
                await asyncio.create_subprocess_shell("true")
            case "thread":
                await asyncio.to_thread(lambda: None)
            case "executor":
                await loop.run_in_executor(None, lambda: None)
            case "dns":
                await loop.getaddrinfo("localhost", 80)

    @workflow
    async def flow() -> str:
        try:
            await attempt()
        except RuntimeError as error:
            return str(error)
        return "nothing was raised"

    assert "step" in (await engine.run(flow)).output


async def test_rule_the_same_things_work_inside_a_step(engine: Engine):
    @step
    async def body() -> str:
        process = await asyncio.create_subprocess_exec("echo", "hello", stdout=asyncio.subprocess.PIPE)
        out, _ = await process.communicate()
        return await asyncio.to_thread(lambda: out.decode().strip())

    @workflow
    async def flow() -> str:
        return await body()

    assert (await engine.run(flow)).output == "hello"
