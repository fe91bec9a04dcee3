"""Calls made inside a body: which record belongs to which, their time limits, and what is kept when a run ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.support.engines import HASTY, Gate, Turns, journal_of, opened, record_that, records_of

from perdure import DurableRecoveryError, Resume, RetryPolicy, idempotent, interrupt, step, workflow
from perdure.engine.engine import Engine

AT_ONCE = RetryPolicy(max_attempts=4, initial_delay_s=0.0, max_delay_s=0.0)
ran: list[Any] = []
gate = Gate()
broken: set[str] = set()


class Departure:
    """Tells bodies of both sorts that the code around them is torn down: the run ends, or its worker leaves."""

    def __init__(self) -> None:
        self.on_loop = asyncio.Event()
        self.in_thread = threading.Event()

    def tell(self) -> None:
        self.on_loop.set()
        self.in_thread.set()


departure: Departure


@pytest.fixture(autouse=True)
def fresh() -> None:
    global gate, departure
    gate, departure = Gate(), Departure()
    ran.clear()
    broken.clear()


@step(name="inside.leaf")
async def leaf(n: int) -> int:
    ran.append(n)
    return n


@step(name="inside.flaky")
async def flaky(name: str) -> str:
    ran.append(name)
    if name in broken:
        raise ValueError(name)
    return name


async def stay_async() -> str:
    ran.append("began")
    gate.reached.set()
    await departure.on_loop.wait()
    return "done"


def stay_sync(loop: asyncio.AbstractEventLoop) -> str:
    ran.append("began")
    loop.call_soon_threadsafe(gate.reached.set)
    departure.in_thread.wait(30)
    return "done"


loops: dict[str, asyncio.AbstractEventLoop] = {}

key_async = idempotent(name="inside.key_async")(stay_async)
inner_async = step(name="inside.inner_async", recovery="manual")(stay_async)


@idempotent(name="inside.key_sync")
def key_sync() -> str:
    return stay_sync(loops["real"])


@step(name="inside.inner_sync", recovery="manual")
def inner_sync() -> str:
    return stay_sync(loops["real"])


@step(name="inside.outer")
async def outer(kind: str) -> str:
    return await {"async step": inner_async, "sync step": inner_sync, "async key": key_async}[kind]()


@step(name="inside.outer_sync")
def outer_sync(kind: str) -> str:
    return {"sync key": key_sync}[kind]()


def body_of(kind: str) -> Callable[[str], Awaitable[str]]:
    return outer_sync if kind == "sync key" else outer


KINDS = ["async step", "sync step", "async key", "sync key"]


# --- what has ended is recorded -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
async def test_rule_what_ends_inside_a_body_while_the_worker_leaves_is_recorded(
    engine: Engine, store_url: str, kind: str
):
    loops["real"] = asyncio.get_running_loop()

    @workflow
    async def flow(kind: str) -> str:
        try:
            return await body_of(kind)(kind)
        finally:
            departure.tell()

    async with opened(store_url) as first:
        run_id = await first.start(flow, kind)
        await gate.reached.wait()
    assert (await engine.run(flow, kind, execution_id=run_id)).output == "done"
    assert ran == ["began"]


@pytest.mark.parametrize("kind", KINDS)
async def test_rule_what_ends_inside_a_body_beside_a_failing_run_is_recorded(engine: Engine, kind: str):
    loops["real"] = asyncio.get_running_loop()

    @step
    async def until_it_has_begun() -> None:
        await gate.reached.wait()

    @workflow
    async def flow(kind: str) -> str:
        async def beside() -> str:
            try:
                return await body_of(kind)(kind)
            finally:
                departure.tell()

        task = asyncio.ensure_future(beside())
        await until_it_has_begun()
        raise KeyError(f"the code's own mistake, {task.done()}")

    with pytest.raises(KeyError, match="False"):
        await engine.run(flow, kind, execution_id="r1")
    inside = [op for op in (await journal_of(engine, "r1")).operations.values() if "!" in op.path or "@" in op.path]
    assert [(op.outcome, op.data) for op in inside] == [("value", '"done"')]


async def test_rule_a_key_whose_body_asks_while_the_worker_leaves_waits_for_its_answer(engine: Engine, store_url: str):
    @idempotent(name="inside.asking")
    async def asking() -> bool:
        await stay_async()
        return interrupt("pay?").approved

    @workflow
    async def flow() -> bool:
        try:
            return await asking()
        finally:
            departure.tell()

    async with opened(store_url) as first:
        run_id = await first.start(flow)
        await gate.reached.wait()
    paused = await engine.run(flow, execution_id=run_id)
    assert [question["reason"] for question in paused.pending_interrupts] == ["pay?"]
    result = await engine.resume(flow, run_id, resume_value=Resume(approved=True))
    assert result.output is True


async def test_rule_a_thread_whose_caller_has_gone_is_waited_for_and_not_run_again(engine: Engine):
    loops["real"] = asyncio.get_running_loop()

    @step(timeout=0.05, retries=AT_ONCE)
    async def impatient() -> str:
        return await inner_sync()

    @workflow
    async def flow() -> str:
        return await impatient()

    run_id = await engine.start(flow)
    await record_that(engine, run_id, type="attempt_failed", name="impatient")
    departure.tell()
    assert (await engine.run(flow, execution_id=run_id)).output == "done"
    assert ran == ["began"]


async def test_rule_a_call_that_was_cancelled_before_its_body_began_is_not_in_doubt(engine: Engine, store_url: str):
    @step(recovery="manual")
    async def pay() -> None:
        ran.append("paid")

    @step
    async def around() -> str:
        try:
            async with asyncio.timeout(0):
                await pay()
        except TimeoutError:
            await gate.stand()
        return "not paid"

    @workflow
    async def flow() -> str:
        return await around()

    async with opened(store_url, HASTY) as first:
        run_id = await first.start(flow)
        await gate.reached.wait()
    gate.open()
    assert (await engine.run(flow, execution_id=run_id)).output == "not paid"
    assert ran == []


# --- time limits --------------------------------------------------------------------------------------


async def test_rule_a_manual_call_inside_a_body_that_takes_too_long_stops_the_run(engine: Engine):
    @step(timeout=0.01, retries=AT_ONCE, recovery="manual")
    async def pay() -> None:
        ran.append("pay")
        await asyncio.Event().wait()

    @step
    async def around() -> str:
        try:
            await pay()
        except TimeoutError as error:
            return str(error)
        return ""

    @workflow
    async def flow() -> str:
        return await around()

    with pytest.raises(DurableRecoveryError, match="longer than its limit"):
        await engine.run(flow)
    assert ran == ["pay"]


async def test_rule_a_timeout_error_of_its_own_is_an_error_like_any_other(engine: Engine):
    @step(timeout=30.0, retries=AT_ONCE, recovery="manual")
    async def pay() -> str:
        ran.append("pay")
        if len(ran) == 1:
            raise TimeoutError("the bank's")
        return "paid"

    @step
    async def around() -> str:
        return await pay()

    @workflow
    async def flow() -> str:
        return await around()

    assert (await engine.run(flow)).output == "paid"
    assert ran == ["pay", "pay"]


async def test_rule_no_attempt_of_a_sync_call_inside_a_body_starts_beside_a_thread_of_it(engine: Engine):
    release = threading.Event()
    inside: list[int] = []

    @step(timeout=0.01, retries=AT_ONCE)
    def slow_once() -> int:
        inside.append(1)
        ran.append(len(inside))
        if len(ran) == 1:
            release.wait(30)
        inside.pop()
        return len(ran)

    @step
    async def around() -> int:
        return await slow_once()

    @workflow
    async def flow() -> int:
        return await around()

    run_id = await engine.start(flow)
    await record_that(engine, run_id, type="attempt_failed")
    release.set()
    result = await engine.run(flow, execution_id=run_id)
    assert result.output is not None
    assert result.output >= 2
    assert set(ran) == {1}


# --- identity -----------------------------------------------------------------------------------------


async def test_rule_the_delay_before_an_attempt_inside_a_body_survives_the_worker(engine: Engine, store_url: str):
    """The body begins again at once, and comes to the call again: its next attempt is as late as it was to be."""

    @step(name="inside.lucky", retries=RetryPolicy(max_attempts=2, initial_delay_s=1.0, max_delay_s=1.0, jitter=0.0))
    async def second_time_lucky() -> str:
        ran.append("attempt")
        if len(ran) == 1:
            raise OSError("first")
        return "lucky"

    @step(name="inside.around_lucky")
    async def around() -> str:
        return await second_time_lucky()

    @workflow(name="inside.waits_on")
    async def flow() -> str:
        return await around()

    async with opened(store_url, HASTY) as first:
        run_id = await first.start(flow)
        failed = await record_that(first, run_id, type="attempt_failed")
    assert (await engine.run(flow, execution_id=run_id)).output == "lucky"
    again = [r for r in await records_of(engine, run_id) if (r.type, r.attempt, r.path) == ("started", 2, failed.path)]
    assert [r.clock_s - failed.clock_s >= 1.0 for r in again] == [True]
    assert ran == ["attempt", "attempt"]


async def test_rule_tasks_of_a_body_may_come_in_another_order_after_a_crash(engine: Engine, store_url: str):
    turns = Turns((1, 2, 3))

    async def branch(n: int) -> int:
        await turns.take(n)
        return await leaf(n)

    @step
    async def together() -> list[int]:
        found = list(await asyncio.gather(*(branch(n) for n in (1, 2, 3))))
        await gate.stand()
        return found

    @workflow
    async def flow() -> list[int]:
        return await together()

    async with opened(store_url, HASTY) as first:
        run_id = await first.start(flow)
        await gate.reached.wait()
    turns = Turns((3, 1, 2))
    gate.open()
    assert (await engine.run(flow, execution_id=run_id)).output == [1, 2, 3]
    assert sorted(ran) == [1, 2, 3]


async def test_rule_the_next_call_takes_a_place_nobody_has(engine: Engine, store_url: str):
    """Of three tasks only the last one was recorded; the others come first the next time."""
    turns = Turns((3,))
    hold = Gate()

    async def branch(n: int) -> int:
        await turns.take(n)
        if n != 3:
            await hold.opened.wait()
        return await leaf(n)

    @step
    async def together() -> list[int]:
        async def last() -> int:
            found = await branch(3)
            await gate.stand()
            return found

        return list(await asyncio.gather(branch(1), branch(2), last()))

    @workflow
    async def flow() -> list[int]:
        return await together()

    async with opened(store_url, HASTY) as first:
        run_id = await first.start(flow)
        await gate.reached.wait()
    turns = Turns((1, 2, 3))
    hold.open()
    gate.open()
    assert (await engine.run(flow, execution_id=run_id)).output == [1, 2, 3]
    assert sorted(ran) == [1, 2, 3]
    keys = [key for key in (await journal_of(engine, run_id)).operations if "!" in key]
    assert len(keys) == 3


async def test_rule_equal_calls_are_as_many_as_were_made(engine: Engine, store_url: str):
    @step
    async def thrice() -> list[int]:
        found = [await leaf(7), await leaf(7)]
        await gate.stand()
        return [*found, await leaf(7)]

    @workflow
    async def flow() -> list[int]:
        return await thrice()

    async with opened(store_url, HASTY) as first:
        run_id = await first.start(flow)
        await gate.reached.wait()
    gate.open()
    assert (await engine.run(flow, execution_id=run_id)).output == [7, 7, 7]
    assert ran == [7, 7, 7]


async def test_rule_calls_at_every_depth_are_found_again(engine: Engine, store_url: str):
    turns = Turns((1, 2))

    @step
    async def middle(n: int) -> list[int]:
        return [await leaf(n), await leaf(n + 10)]

    async def branch(n: int) -> list[int]:
        await turns.take(n)
        return await middle(n)

    @step
    async def together() -> list[list[int]]:
        found = list(await asyncio.gather(branch(1), branch(2)))
        await gate.stand()
        return found

    @workflow
    async def flow() -> list[list[int]]:
        return await together()

    async with opened(store_url, HASTY) as first:
        run_id = await first.start(flow)
        await gate.reached.wait()
    turns = Turns((2, 1))
    gate.open()
    assert (await engine.run(flow, execution_id=run_id)).output == [[1, 11], [2, 12]]
    assert sorted(ran) == [1, 2, 11, 12]


async def test_rule_what_a_task_of_a_body_did_about_an_error_stays_decided(engine: Engine):
    """The next attempt's tasks come in another order; the payment that failed is not tried beside the one made
    instead."""
    broken.update({"pay", "last"})
    orders = [("a", "b"), ("b", "a")]

    @step(retries=RetryPolicy(max_attempts=2, initial_delay_s=0.0, max_delay_s=0.0))
    async def around() -> list[str]:
        turns = Turns(orders.pop(0))

        async def pays() -> str:
            await turns.take("a")
            try:
                return await flaky("pay")
            except ValueError:
                return await flaky("instead")

        async def other() -> str:
            await turns.take("b")
            return await flaky("other")

        found = list(await asyncio.gather(pays(), other()))
        if orders:
            try:
                return [*found, await flaky("last")]
            finally:
                broken.clear()
        return [*found, await flaky("last")]

    @workflow
    async def flow() -> list[str]:
        return await around()

    assert (await engine.run(flow)).output == ["instead", "other", "last"]
    assert sorted(ran) == ["instead", "last", "last", "other", "pay"]


async def test_rule_a_failed_task_of_a_body_is_tried_again_though_others_went_on_after_it(engine: Engine):
    broken.add("a")
    goes_on = Gate()

    @step(retries=AT_ONCE)
    async def around() -> list[str]:
        async def first() -> Any:
            try:
                return await flaky("a")
            finally:
                goes_on.open()

        async def second() -> Any:
            found = await flaky("b")
            await goes_on.opened.wait()
            return [found, await flaky("c")]

        tasks = [asyncio.ensure_future(first()), asyncio.ensure_future(second())]
        await asyncio.wait(tasks)
        broken.clear()
        return [tasks[0].result(), *tasks[1].result()]

    @workflow
    async def flow() -> list[str]:
        return await around()

    assert (await engine.run(flow)).output == ["a", "b", "c"]
    assert sorted(ran) == ["a", "a", "b", "c"]
