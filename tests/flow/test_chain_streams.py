"""Streams of a chain's run: what has been committed, in order, until a pause or the end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.chains import YES, line, load
from tests.support.engines import Gate

from perdure import ChainError, DurableConflictError, InvalidInputError, interrupt

ran: list[Any] = []


@pytest.fixture(autouse=True)
def fresh() -> None:
    ran.clear()


def first() -> dict[str, int]:
    ran.append("first")
    return {"x": 1}


def asks() -> bool:
    return interrupt("go?", {"n": 1}).approved


def last(asks: bool) -> list[bool]:
    return [asks]


def shown(events: Any) -> list[tuple[str, Any]]:
    """Types, with the operation or the status."""
    return [(one.type, one.data.get("operation", one.data.get("status"))) for one in events]


def test_rule_a_stream_has_everything_committed_up_to_the_pause(store_url: str):
    chain = line("streamed", first, asks, last)
    events = list(chain.stream({}, execution_id="r1", store=store_url))
    assert [one.sequence for one in events] == list(range(1, len(events) + 1))
    assert shown(events) == [
        ("submitted", None), ("completed", "%/topology/0"), ("started", "first/0"), ("completed", "first/0"),
        ("started", "asks/0"), ("suspended", "asks/0"), ("status", "waiting"),
    ]  # fmt: skip
    assert events[3].data["data"] == {"x": 1}
    assert [one.run_id for one in events] == ["r1"] * len(events)


def test_rule_after_the_answer_the_stream_goes_on_behind_the_cursor(store_url: str):
    chain = line("streamed", first, asks, last)
    seen = list(chain.stream({}, execution_id="r1", store=store_url))
    chain.resume("r1", resume_value=YES, store=store_url)
    rest = list(chain.stream({}, execution_id="r1", after=seen[-1].sequence, store=store_url))
    assert [one.sequence for one in (*seen, *rest)] == [r.seq for r in load(store_url, "r1").records]
    assert shown(rest)[-1] == ("status", "completed")
    assert list(chain.stream({}, execution_id="r1", after=rest[-1].sequence, store=store_url)) == []
    assert list(chain.stream({}, execution_id="r1", store=store_url)) == [*seen, *rest]
    assert ran == ["first"]


async def test_rule_an_event_is_seen_while_the_run_goes_on_and_is_durable_then(store_url: str):
    gate = Gate()

    async def stands() -> str:
        await gate.stand()
        return "stood"

    chain = line("live", first, stands)
    events = chain.astream({}, execution_id="r1", store=store_url)
    async for event in events:
        if (event.type, event.data.get("operation")) == ("completed", "first/0"):
            stored = await asyncio.to_thread(load, store_url, "r1")
            assert event.sequence in {r.seq for r in stored.records}
            gate.open()
    assert gate.reached.is_set()


async def test_rule_who_stops_listening_stops_nothing_but_the_listening(store_url: str):
    gate = Gate()

    async def stands() -> str:
        await gate.stand()
        return "stood"

    chain = line("left", first, stands)
    events = chain.astream({}, execution_id="r1", store=store_url)
    async for event in events:
        if event.type == "started":
            break
    await events.aclose()  # type: ignore[attr-defined]
    gate.open()
    assert (await chain.arun({}, execution_id="r1", store=store_url)).output == "stood"
    assert ran == ["first"]


async def test_rule_several_may_listen_to_one_run(store_url: str):
    chain = line("shared", first, last_of_x)

    async def listen() -> list[int]:
        return [one.sequence async for one in chain.astream({}, execution_id="r1", store=store_url)]

    one, two, three = await asyncio.gather(listen(), listen(), listen())
    assert one == two == three
    assert ran == ["first"]


def last_of_x(x: int) -> int:
    return x


def test_rule_a_failure_is_raised_after_the_last_event(store_url: str):
    def breaks() -> None:
        raise ValueError("broken")

    seen: list[Any] = []
    with pytest.raises(ValueError, match="broken"):
        seen.extend(line("failing", first, breaks).stream({}, execution_id="r1", store=store_url))
    assert shown(seen)[-1] == ("status", "failed")
    assert seen[-2].data["outcome"] == "error"


@pytest.mark.parametrize("after", [-1, "x", 1.5, True, 1000], ids=repr)
def test_rule_a_cursor_that_is_none_is_refused(store_url: str, after: Any):
    chain = line("cursor", first)
    chain.run({}, execution_id="r1", store=store_url)
    with pytest.raises(TypeError, match="after"):
        list(chain.stream({}, execution_id="r1", after=after, store=store_url))


def test_rule_bad_input_is_refused_before_the_first_event(store_url: str):
    chain = line("door", first)
    chain.run({}, execution_id="r1", store=store_url)
    for error, given in (
        (InvalidInputError, {"initial_state": 5}),
        (InvalidInputError, {"execution_id": ""}),
        (DurableConflictError, {"initial_state": {"x": 1}, "execution_id": "r1"}),
    ):
        with pytest.raises(error):
            next(chain.stream(**given, store=store_url))  # type: ignore[arg-type]
    with pytest.raises(ChainError):
        next(line("none").stream({}, store=store_url))


def test_rule_a_sync_stream_that_is_left_half_read_leaves_the_run_to_others(store_url: str):
    chain = line("half", first, asks, last)
    events = chain.stream({}, execution_id="r1", store=store_url)
    assert next(events).type == "submitted"
    events.close()  # type: ignore[attr-defined]
    assert chain.run({}, execution_id="r1", store=store_url).status == "paused"
    assert ran == ["first"] or ran == ["first", "first"], "begun, and perhaps not recorded, when its loop was closed"
