"""DESIGN "Barriers" and law 2: what is durable when a body starts, seen from another connection."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.support.engines import opened

from perdure import interrupt, step, workflow
from perdure.core.records import StoredRecord
from perdure.engine.engine import Engine

other: Engine


@pytest.fixture(autouse=True)
async def second_connection(store_url: str) -> AsyncIterator[None]:
    """Somebody else who reads the store: sees what is committed and nothing more."""
    global other
    async with opened(store_url) as other:
        yield


async def committed(run_id: str) -> list[StoredRecord]:
    return await other.store.record_list(run_id)


@step(recovery="safe")
async def learn(n: int) -> int:
    return n


@step(name="barriers.look")
async def look(run_id: str) -> list[list[object]]:
    return [[r.type, r.name] for r in await committed(run_id) if r.name in ("learn", "look")]


@step(recovery="manual")
async def look_manually(run_id: str) -> list[list[object]]:
    return [[r.type, r.name] for r in await committed(run_id) if r.name in ("learn", "look_manually")]


async def test_rule_what_the_run_has_learnt_is_durable_before_a_body_that_is_not_safe_starts(engine: Engine):
    @workflow
    async def flow(run_id: str) -> list[list[object]]:
        for n in range(3):
            await learn(n)
        return await look(run_id)

    result = await engine.run(flow, "r1", execution_id="r1")

    assert result.output[:3] == [["completed", "learn"]] * 3


async def test_rule_a_manual_operations_own_start_is_durable_before_its_body_begins(engine: Engine):
    @workflow
    async def flow(run_id: str) -> list[list[object]]:
        await learn(0)
        return await look_manually(run_id)

    result = await engine.run(flow, "r1", execution_id="r1")

    assert result.output == [["completed", "learn"], ["started", "look_manually"]]


async def test_rule_a_question_is_shown_only_with_everything_before_it_durable(engine: Engine):
    @workflow
    async def flow() -> bool:
        for n in range(3):
            await learn(n)
        return interrupt("go on?").approved

    result = await engine.run(flow)

    records = await committed(result.execution_id)
    assert result.status == "paused"
    assert [r.name for r in records if r.type == "completed"] == ["learn"] * 3
    assert len(await other.store.interrupt_list(run_id=result.execution_id)) == 1


async def test_rule_a_result_is_returned_only_when_it_is_durable(engine: Engine):
    @workflow
    async def flow() -> int:
        return await learn(7)

    result = await engine.run(flow)

    row = await other.store.run_get(result.execution_id)
    assert row is not None
    assert row.status == "completed"
    assert (await committed(result.execution_id))[-1].data == "7"


async def test_rule_records_are_committed_in_the_order_they_were_made(engine: Engine):
    @workflow
    async def flow() -> None:
        for n in range(30):
            await learn(n)

    result = await engine.run(flow)

    records = await committed(result.execution_id)
    assert [r.seq for r in records] == list(range(1, len(records) + 1))
    assert [r.data for r in records if r.kind == "step"] == [str(n) for n in range(30)]


async def test_rule_a_run_has_a_row_before_its_first_body_starts(engine: Engine):
    """Even of a safe body: a run that nobody could find again would be lost with its process."""

    @step
    async def find(run_id: str) -> str:
        row = await other.store.run_get(run_id)
        return "nothing" if row is None else row.status

    @workflow
    async def flow(run_id: str) -> str:
        return await find(run_id)

    assert (await engine.run(flow, "r1", execution_id="r1")).output == "running"
