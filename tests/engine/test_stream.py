"""Streams of committed events: in order, without gaps or repetitions, from any cursor."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.engines import Gate, opened, records_of

from perdure import ChainCheckpointError, Event, Resume, interrupt, step, workflow
from perdure.engine.engine import Engine

gate = Gate()


@pytest.fixture(autouse=True)
def fresh() -> None:
    global gate
    gate = Gate()


@step(name="stream.note")
async def note(n: int) -> int:
    return n


@step(name="stream.hold")
async def hold() -> None:
    await gate.stand()


@workflow(name="stream.counting")
async def counting() -> list[int]:
    return [await note(n) for n in range(5)]


@workflow(name="stream.holding")
async def holding() -> int:
    await hold()
    return await note(7)


@workflow(name="stream.asking")
async def asking() -> bool:
    return interrupt("go on?").approved


async def all_events(engine: Engine, run_id: str, after: int = 0) -> list[Event]:
    return [event async for event in engine.stream(run_id, after=after)]


async def test_rule_a_stream_shows_every_record_once_in_order_and_ends_with_the_run(engine: Engine):
    result = await engine.run(counting)
    events = await all_events(engine, result.execution_id)
    records = await records_of(engine, result.execution_id)
    assert [(e.sequence, e.type) for e in events] == [(r.seq, r.type) for r in records]
    assert [e.sequence for e in events] == list(range(1, len(events) + 1))
    assert events[-1].data["status"] == "completed"


async def test_rule_a_cursor_continues_without_gap_or_repetition(engine: Engine):
    result = await engine.run(counting)
    everything = await all_events(engine, result.execution_id)
    for cut in range(len(everything) + 1):
        assert await all_events(engine, result.execution_id, after=cut) == everything[cut:]


async def test_rule_a_stream_follows_a_run_that_goes_on(engine: Engine):
    run_id = await engine.start(holding)
    await gate.reached.wait()
    seen: list[str] = []

    async def follow() -> None:
        async for event in engine.stream(run_id):
            seen.append(event.type)

    following = asyncio.ensure_future(follow())
    gate.open()
    await following
    assert seen[0] == "submitted"
    assert seen[-1] == "status"
    assert seen.count("completed") == 2


async def test_rule_a_stream_follows_a_run_of_another_worker(engine: Engine, store_url: str):
    async with opened(store_url) as other:
        run_id = await other.start(holding)
        await gate.reached.wait()
        following = asyncio.ensure_future(all_events(engine, run_id))
        gate.open()
        events = await following
    assert events[-1].data["status"] == "completed"


async def test_rule_a_stream_goes_on_over_a_pause(engine: Engine):
    paused = await engine.run(asking)
    following = asyncio.ensure_future(all_events(engine, paused.execution_id))
    await engine.resume(asking, paused.execution_id, resume_value=Resume(approved=True), answered_by="clerk")
    types = [event.type for event in await following]
    assert types.index("suspended") < types.index("answered") < types.index("completed")


async def test_rule_what_an_event_says(engine: Engine):
    result = await engine.run(counting)
    completed = next(e for e in await all_events(engine, result.execution_id) if e.type == "completed")
    assert completed.run_id == result.execution_id
    assert completed.data["operation"] == "0"
    assert (completed.data["kind"], completed.data["outcome"], completed.data["data"]) == ("step", "value", 0)
    assert completed.created_at > 0


@pytest.mark.parametrize("cursor", [-1, 10_000, "3", 1.5, True])
async def test_rule_a_cursor_that_makes_no_sense_is_refused(engine: Engine, cursor: Any):
    result = await engine.run(counting)
    with pytest.raises(TypeError, match="after"):
        await all_events(engine, result.execution_id, after=cursor)


async def test_rule_a_stream_of_an_unknown_run_is_refused(engine: Engine):
    with pytest.raises(ChainCheckpointError):
        await all_events(engine, "nothing-here")


async def test_rule_leaving_a_stream_early_disturbs_nothing(engine: Engine):
    run_id = await engine.start(holding)
    await gate.reached.wait()
    stream = engine.stream(run_id)
    first = await anext(stream)
    await stream.aclose()  # type: ignore[attr-defined]
    gate.open()
    assert first.type == "submitted"
    assert (await engine.run(holding, execution_id=run_id)).output == 7
