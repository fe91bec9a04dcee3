"""What callers get of a run: the same from memory, from the records and in another process; and its checkpoints."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import operator
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from tests.support.chains import YES, checkpointer_of, line, load, points

from perdure import Chain, ChainResult, interrupt
from perdure.core.checkpoints import decoded_state

RICH: dict[str, Any] = {
    "decimal": Decimal("1.10"), "datetime": dt.datetime(2024, 2, 29, 12, 30, tzinfo=dt.UTC), "date": dt.date.min,
    "time": dt.time(12, 30), "delta": dt.timedelta(days=1, seconds=2), "uuid": uuid.UUID(int=7), "bytes": b"\x00\xff",
    "tuple": (1, (2, "x")), "set": {1, 2}, "frozen": frozenset({"a"}), "path": Path("a/b"), "complex": 1 + 2j,
    "int": 10**30, "float": -0.0, "large": 1e22, "inf": float("inf"), "none": None, "text": "\x00 \ud800 é 😀",
    "nested": [{"a": (Decimal("0.1"),), "$tuple": [1]}], "": {}, "order": {"z": 1, "a": 2, "m": 3},
}  # fmt: skip
KEYS = {name: value for name, value in RICH.items() if name}


def same(given: Any, wanted: Any) -> bool:
    """Equal in value, type and order at every depth."""
    if type(given) is not type(wanted):
        return False
    if isinstance(wanted, dict):
        return list(given) == list(wanted) and all(same(given[key], wanted[key]) for key in wanted)
    if isinstance(wanted, list | tuple):
        return len(given) == len(wanted) and all(same(*pair) for pair in zip(given, wanted, strict=True))
    if isinstance(wanted, float):
        return repr(given) == repr(wanted)
    return given == wanted


def test_rule_what_goes_in_comes_out_from_memory_from_records_and_over_a_pause(store_url: str):
    seen: list[Any] = []

    def passes(state: dict[str, Any]) -> dict[str, Any]:
        return {f"{name} too": value for name, value in state.items()}

    def asks() -> None:
        interrupt("go?")

    def looks(state: dict[str, Any]) -> None:
        seen.append(state)

    wanted = {**KEYS, **{f"{name} too": value for name, value in KEYS.items()}}
    chain = line("rich", passes, asks, looks)
    paused = chain.run(KEYS, execution_id="r1", store=store_url)
    done: Any = chain.resume("r1", resume_value=YES, store=store_url)
    again = chain.run(KEYS, execution_id="r1", store=store_url)
    for state in (
        paused.final_state,
        done.final_state,
        again.final_state,
        seen[0],
        decoded_state(points(store_url, "r1")[-1]),
    ):
        assert same(state, wanted)
    for result in (paused, done, again):
        assert same(result.node_results["passes"], {f"{name} too": value for name, value in KEYS.items()})


def test_rule_the_same_run_gives_the_same_result_to_whoever_asks(store_url: str):
    inner = line("inner", lambda_y)
    chain = Chain("asked").add_node("a", fn=lambda: {"x": (1,)}).add_node("in", agent=inner)
    chain.add_node("b", fn=lambda x: [x]).connect("a", "in").connect("in", "b")
    first = chain.run({"n": 1}, execution_id="r1", store=store_url)
    again = chain.run({"n": 1}, execution_id="r1", store=store_url)
    assert first == again
    assert (first.final_state, first.node_results) == (
        {"n": 1, "x": (1,), "y": 2, "b": [(1,)]}, {"a": {"x": (1,)}, "in": {"y": 2}, "b": [(1,)]},
    )  # fmt: skip


def lambda_y() -> dict[str, int]:
    return {"y": 2}


def test_rule_a_result_names_its_run_and_can_be_dumped(store_url: str):
    result = line("dumped", lambda_y).run({"n": 1}, store=store_url)
    assert isinstance(result, ChainResult)
    assert json.loads(result.model_dump_json()) == {
        "output": {"y": 2}, "final_state": {"n": 1, "y": 2}, "execution_id": result.execution_id,
        "node_results": {"lambda_y": {"y": 2}}, "status": "completed", "pending_interrupt": None,
        "pending_interrupts": [], "trace_id": None,
    }  # fmt: skip


def test_rule_a_paused_result_has_no_output_and_what_was_done(store_url: str):
    def asks(y: int) -> bool:
        return interrupt("go?", {"y": y}).approved

    result = line("paused", lambda_y, asks).run({"n": 1}, store=store_url)
    assert (result.status, result.output, result.final_state) == ("paused", None, {"n": 1, "y": 2})
    assert result.node_results == {"lambda_y": {"y": 2}}
    assert result.pending_interrupt == result.pending_interrupts[0]
    assert result.pending_interrupt is not None
    assert {name: result.pending_interrupt[name] for name in ("reason", "context", "node_id", "agent_path")} == {
        "reason": "go?", "context": {"y": 2}, "node_id": "asks", "agent_path": None,
    }  # fmt: skip


async def test_rule_what_a_node_returns_is_kept_in_one_of_three_ways(store_url: str):
    """A dict of keys is merged, None is nothing, anything else is kept under the node's id."""
    chain = Chain("kept")
    returned: dict[str, Any] = {
        "dict": {"x": 1}, "empty": {}, "none": None, "list": [1], "zero": 0, "numbers": {1: "a"}, "tags": {"$x": 1},
    }  # fmt: skip
    for name, value in returned.items():
        chain.add_node(name, fn=lambda value=value: value)
    result = await chain.arun({"n": 0}, store=store_url)
    assert result.final_state == {"n": 0, "x": 1, "list": [1], "zero": 0, "numbers": {1: "a"}, "tags": {"$x": 1}}
    assert result.node_results == returned


def test_rule_checkpoints_say_what_each_node_was_given_and_gave(store_url: str):
    def add(a: int, b: int = 5) -> dict[str, int]:
        return {"sum": a + b}

    def show(sum: int) -> str:
        return str(sum)

    chain = Chain("viewed").add_node("add", fn=add)
    chain.add_node("show", fn=show, input_mapping={"sum": "{{state.sum}}"}, output_key="text").connect("add", "show")
    result = chain.run({"a": 1}, store=store_url)
    first, second, end = points(store_url, result.execution_id)
    assert (first.node_input, first.output, first.state) == ({"a": 1}, '{"sum":6}', {"a": 1, "sum": 6})
    assert (second.node_input, second.output) == ({"sum": 6}, '"6"')
    assert second.state == end.state == {"a": 1, "sum": 6, "text": "6"}
    assert [one.parent_checkpoint_id for one in (first, second, end)] == [
        None, first.checkpoint_id, second.checkpoint_id,
    ]  # fmt: skip
    assert [(one.step_type, one.status, one.node_index) for one in (first, second, end)] == [
        ("node", "completed", 0), ("node", "completed", 1), ("run_end", "completed", 2),
    ]  # fmt: skip
    assert {one.chain_name for one in (first, second, end)} == {"viewed"}


@pytest.mark.parametrize("is_whole", [True, False], ids=["whole list", "reducer"])
def test_rule_states_are_stored_as_differences_and_read_whole(store_url: str, is_whole: bool):
    """A message each round: what is stored grows with what was said, and every checkpoint has the whole state."""
    size, text = 100, "x" * 500

    def says_all(messages: list[str], n: int) -> dict[str, Any]:
        return {"messages": [*messages, f"{n} {text}"], "n": n + 1}

    def says(n: int) -> dict[str, Any]:
        return {"messages": [f"{n} {text}"], "n": n + 1}

    chain = Chain("talk", reducers={} if is_whole else {"messages": operator.add})
    chain.add_node("say", fn=says_all if is_whole else says)
    chain.connect("say", "say", max_iterations=size + 1, exit_condition=f"n == {size}")
    result = asyncio.run(chain.arun({"messages": [], "n": 0}, store=store_url))
    stored = sum(len(r.state or "") + len(r.data or "") for r in load(store_url, result.execution_id).records)
    assert stored < 3 * size * len(text)
    found = [one for one in points(store_url, result.execution_id) if one.node_id == "say"]
    assert [len(one.state["messages"]) for one in found if one.state] == list(range(1, size + 1))
    assert found[-1].state == result.final_state


def test_rule_a_chain_keeps_its_runs_with_its_checkpointer_and_people_see_them_there(store_url: str):
    """Runs, questions and states of a chain that was given a checkpointer, and of nobody else's store."""

    def asks(y: int) -> bool:
        return interrupt("go?", {"y": y}).approved

    with checkpointer_of(store_url) as checkpointer:
        chain = line("kept", lambda_y, asks, checkpointer=checkpointer)
        paused = chain.run({"n": 1}, execution_id="r1")
        (asked,) = checkpointer.list_pending_interrupts()
        assert (asked.execution_id, asked.chain_name, asked.node_id, asked.reason, asked.context) == (
            "r1", "kept", "asks", "go?", {"y": 2},
        )  # fmt: skip
        assert asked.interrupt_id == paused.pending_interrupts[0]["interrupt_id"]
        result: Any = chain.resume("r1", resume_value=YES)
        assert (result.output, checkpointer.list_pending_interrupts()) == (True, [])
        found = checkpointer.list("r1")
        last = checkpointer.get_last("r1")
    assert [(one.node_id, one.status, one.state_snapshot) for one in found] == [
        ("lambda_y", "completed", {"n": 1, "y": 2}),
        ("asks", "interrupted", {"n": 1, "y": 2}),
        ("asks", "completed", {"n": 1, "y": 2, "asks": True}),
        ("run_end", "completed", {"n": 1, "y": 2, "asks": True}),
    ]
    assert last == found[-1]
    assert found[1].interrupt_reason == "go?"
    assert found[2].node_input == {"y": 2}
    assert [one.node_id for one in points(store_url, "r1")] == [one.node_id for one in found]
