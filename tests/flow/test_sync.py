"""The synchronous facade: the same runs for callers without an event loop, and the ambient engine of a loop."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure import (
    AlreadyResumed,
    DurableConflictError,
    InvalidInputError,
    Resume,
    interrupt,
    now,
    random,
    step,
    uuid4,
    workflow,
)

ran: list[Any] = []


@pytest.fixture(autouse=True)
def fresh() -> None:
    ran.clear()


@step(name="sync.note")
async def note(n: int) -> int:
    ran.append(n)
    return n


@step(name="sync.note_sync")
def note_sync(n: int) -> int:
    ran.append(n)
    return n


@workflow(name="sync.counting")
async def counting(n: int) -> list[int]:
    return [await note(n), await note_sync(n + 1)]


@workflow(name="sync.asking")
async def asking(order: dict[str, Any]) -> list[Any]:
    found = await note(order["amount"])
    return [found, interrupt("pay?", order).approved]


@workflow(name="sync.recorded_values")
async def recorded_values() -> list[Any]:
    found = [now(), random(), uuid4()]
    interrupt("go on?")
    return found


def test_rule_a_run_from_sync_code_to_its_end(store_url: str):
    result = counting.run(5, store=store_url)
    assert (result.status, result.output) == ("completed", [5, 6])
    assert counting.run(5, execution_id=result.execution_id, store=store_url).output == [5, 6]
    assert ran == [5, 6]


def test_rule_a_pause_an_answer_and_a_fork_from_sync_code(store_url: str):
    paused = asking.run({"amount": 7}, execution_id="r1", store=store_url)
    assert paused.status == "paused"
    fork = asking.fork("r1", store=store_url)
    result = asking.resume("r1", resume_value=Resume(approved=True), answered_by="me", store=store_url)
    assert result.output == [7, True]
    branch = asking.resume(fork.execution_id, resume_value=Resume(approved=False), store=store_url)
    assert branch.output == [7, False]
    with pytest.raises(AlreadyResumed):
        asking.resume("r1", resume_value=Resume(approved=True), store=store_url)
    assert ran == [7]


def test_rule_cancel_and_retry_from_sync_code(store_url: str):
    is_broken = [True]

    @workflow
    async def flow() -> int:
        if is_broken[0]:
            raise ValueError("broken")
        return await note(1)

    with pytest.raises(ValueError, match="broken"):
        flow.run(execution_id="r1", store=store_url)
    is_broken[0] = False
    assert flow.retry("r1", store=store_url).output == 1
    asking.run({"amount": 7}, execution_id="r2", store=store_url)
    assert asking.cancel("r2", store=store_url) == "cancelled"


async def test_rule_a_sync_call_inside_a_loop_raises_at_once(store_url: str):
    with pytest.raises(RuntimeError, match="'a'"):
        counting.run(5, store=store_url)
    assert ran == []


def test_rule_the_engine_of_a_loop_is_opened_once_and_closed_with_it(store_url: str):
    async def main() -> list[Any]:
        results = await asyncio.gather(*(counting.arun(n, store=store_url) for n in range(5)))
        return [result.output for result in results]

    assert asyncio.run(main()) == [[n, n + 1] for n in range(5)]
    assert asyncio.run(main()) == [[n, n + 1] for n in range(5)]


def test_rule_runs_left_by_a_loop_are_there_for_the_next(store_url: str):
    async def first() -> str:
        return (await asking.arun({"amount": 7}, store=store_url)).execution_id

    async def second(run_id: str) -> Any:
        return await asking.aresume(run_id, resume_value=Resume(approved=True), store=store_url)

    assert asyncio.run(second(asyncio.run(first()))).output == [7, True]
    assert ran == [7]


def test_rule_the_time_chance_and_ids_are_recorded(store_url: str):
    paused = recorded_values.run(store=store_url)
    first = recorded_values.fork(paused.execution_id, store=store_url)
    values = [
        recorded_values.resume(run_id, resume_value=Resume(approved=True), store=store_url).output
        for run_id in (paused.execution_id, first.execution_id)
    ]
    assert values[0] == values[1]
    assert len({str(value) for value in values[0]}) == 3


def test_rule_a_workflow_takes_one_input_or_none():
    with pytest.raises(InvalidInputError, match="one input"):

        @workflow
        async def two(a: int, b: int) -> None:
            return None

    with pytest.raises(InvalidInputError, match="async def"):

        @workflow
        def not_async() -> None:
            return None


def test_rule_two_functions_under_one_name_raise_and_ask_for_a_name():
    @step(name="sync.taken")
    async def first() -> None:
        return None

    with pytest.raises(DurableConflictError, match="name="):

        @step(name="sync.taken")
        async def second() -> None:
            return None


def test_rule_the_same_function_met_again_is_the_same_function():
    def make() -> Any:
        @step(name="sync.made again")
        async def made() -> None:
            return None

        return made

    assert make().spec.name == make().spec.name


def test_rule_no_persisted_name_contains_a_module():
    @step
    async def plain() -> None:
        return None

    @workflow
    async def flow() -> None:
        return None

    for name in (plain.spec.name, flow.name):
        assert __name__ not in name
        assert "tests" not in name
        assert "<locals>" not in name
