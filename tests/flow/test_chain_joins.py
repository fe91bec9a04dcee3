"""Branches that meet: a join waits for those that were taken, and its state does not depend on who was first."""

from __future__ import annotations

import operator
from typing import Any

import pytest
from tests.support.chains import YES, fan, line, points
from tests.support.engines import Turns

from perdure import Chain, ChainError, interrupt

ran: list[Any] = []


@pytest.fixture(autouse=True)
def fresh() -> None:
    ran.clear()


def source() -> None:
    ran.append("source")


def join(state: dict[str, Any]) -> dict[str, Any]:
    ran.append("join")
    return {"seen": state}


def named(name: str, function: Any) -> Any:
    function.__name__ = name
    return function


ORDERS = [("a", "b", "c"), ("c", "b", "a"), ("b", "c", "a")]


@pytest.mark.parametrize("order", ORDERS, ids="".join)
async def test_rule_state_merges_in_the_order_of_declaration_whoever_ends_first(store_url: str, order: Any):
    turns = Turns(order)

    def branch(name: str, value: dict[str, Any]) -> Any:
        async def run() -> dict[str, Any]:
            await turns.take(name)
            return value

        return named(name, run)

    branches = [
        branch("a", {"z": 1, "list": ["a"]}),
        branch("b", {"y": 2, "list": ["b"]}),
        branch("c", {"list": ["c"]}),
    ]
    chain = fan("merging", source, branches, join, reducers={"list": operator.add})
    result = await chain.arun({"list": []}, store=store_url)
    assert list(result.final_state) == ["list", "z", "y", "seen"]
    assert result.output == {"seen": {"list": ["a", "b", "c"], "z": 1, "y": 2}}
    assert ran == ["source", "join"]


async def test_rule_a_branch_does_not_see_what_its_siblings_write(store_url: str):
    turns = Turns(["first", "second"])

    async def first() -> dict[str, int]:
        await turns.take("first")
        return {"of_first": 1}

    async def second(state: dict[str, Any]) -> None:
        await turns.take("second")

    def after(state: dict[str, Any]) -> dict[str, Any]:
        return {"after second": state}

    chain = fan("apart", source, [first, second], join).add_node("after", fn=after)
    chain.connect("second", "after").connect("after", "join")
    result = await chain.arun({"x": 0}, store=store_url)
    assert result.final_state["after second"] == {"x": 0}
    assert result.output == {"seen": {"x": 0, "of_first": 1, "after second": {"x": 0}}}


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")], ids="".join)
def test_rule_two_branches_with_one_key_and_no_reducer_are_an_error_at_the_join(store_url: str, order: Any):
    """Naming key and nodes, whatever finished first; with a reducer the run goes on from there."""
    turns = Turns(order)

    async def a() -> dict[str, Any]:
        ran.append("a")
        await turns.take("a")
        return {"total": 1, "mine": 1}

    async def b() -> dict[str, Any]:
        ran.append("b")
        await turns.take("b")
        return {"total": 2}

    with pytest.raises(ChainError, match=r"'a' and 'b' have both written the key 'total'.*reducer"):
        fan("conflict", source, [a, b], join).run(execution_id="r1", store=store_url)
    assert "join" not in ran
    mended = fan("conflict", source, [a, b], join, reducers={"total": operator.add})
    result = mended.retry("r1", store=store_url)
    assert result.final_state["total"] == 3
    assert ran == ["source", "a", "b", "join"]


async def test_rule_branches_that_agree_with_the_state_before_write_nothing(store_url: str):
    """Who returns what was there already is in nobody's way."""
    chain = fan("agreeing", source, [named("a", lambda x: {"x": x}), named("b", lambda: {"x": 2})], join)
    assert (await chain.arun({"x": 1}, store=store_url)).final_state["x"] == 2


async def test_rule_a_branch_may_write_over_what_came_before_the_fork(store_url: str):
    chain = fan(
        "overwriting", named("source", lambda: {"x": 1}), [named("a", lambda: {"x": 2}), named("b", lambda: 0)], join
    )
    assert (await chain.arun(store=store_url)).output["seen"] == {"x": 2, "b": 0}


async def test_rule_within_a_branch_the_later_node_has_the_last_word(store_url: str):
    chain = fan("long branch", source, [named("a", lambda: {"x": 1}), named("b", lambda: {"y": 1})], join)
    chain.add_node("a2", fn=lambda x: {"x": x + 10}).connect("a", "a2").connect("a2", "join")
    assert (await chain.arun(store=store_url)).output["seen"] == {"x": 11, "y": 1}


# --- who is waited for ----------------------------------------------------------------------------------


def diamond(name: str, condition: str) -> Chain:
    """`source` leads to `a`, or to `b`; both lead to `join`."""
    chain = Chain(name).add_node("source", fn=source)
    for branch in ("a", "b"):
        chain.add_node(branch, fn=lambda branch=branch: ran.append(branch))
    chain.add_node("join", fn=join).connect("source", "a", condition=condition).connect("source", "b")
    return chain.connect("a", "join").connect("b", "join")


@pytest.mark.parametrize(("x", "way"), [(1, "a"), (2, "b")])
async def test_rule_a_join_does_not_wait_for_a_branch_not_taken(store_url: str, x: int, way: str):
    await diamond("one side", "x == 1").arun({"x": x}, store=store_url)
    assert ran == ["source", way, "join"]


async def test_rule_a_join_does_not_wait_for_a_branch_that_ended_on_the_way(store_url: str):
    chain = fan("ends early", source, [named("a", lambda: 1), named("b", lambda: 2)], join)
    chain.add_node("detour", fn=lambda: 3).connect("b", "detour", condition="False")
    again = Chain("ends early").add_node("source", fn=source)
    again.add_node("a", fn=lambda: 1).add_node("b", fn=lambda: 2).add_node("join", fn=join)
    again.connect("source", "a").connect("source", "b").connect("a", "join").connect("b", "join", condition="False")
    result = await again.arun(store=store_url)
    assert result.output == {"seen": {"a": 1}}
    assert (await chain.arun(store=store_url)).output == {"seen": {"a": 1, "b": 2}}


async def test_rule_a_join_waits_for_long_branches_and_runs_once(store_url: str):
    turns = Turns(["short", "long 3", "source of nothing"])

    async def short() -> None:
        await turns.take("short")

    async def long_3() -> int:
        await turns.take("long 3")
        return 3

    chain = Chain("long and short").add_node("source", fn=source).add_node("short", fn=short)
    for name, function in (("long 1", lambda: 1), ("long 2", lambda: 2), ("long 3", long_3)):
        chain.add_node(name, fn=function)
    chain.add_node("join", fn=join).connect("source", "short").connect("source", "long 1").connect("long 1", "long 2")
    chain.connect("long 2", "long 3").connect("long 3", "join").connect("short", "join")
    result = await chain.arun(store=store_url)
    assert result.output == {"seen": {"long 1": 1, "long 2": 2, "long 3": 3}}
    assert ran == ["source", "join"]


async def test_rule_joins_of_joins_see_everything_once(store_url: str):
    """Two diamonds that share a side: each key once, each node once."""
    chain = Chain("two diamonds", reducers={"log": operator.add})
    for name in ("s", "a", "b", "c", "ab", "bc", "end"):
        chain.add_node(name, fn=lambda name=name: {"log": [name]})
    for edge in ("s a", "s b", "s c", "a ab", "b ab", "b bc", "c bc", "ab end", "bc end"):
        chain.connect(*edge.split())
    result = await chain.arun({"log": []}, store=store_url)
    assert result.final_state == {"log": ["s", "a", "b", "c", "ab", "bc", "end"]}


async def test_rule_several_starts_and_several_ends_are_one_run(store_url: str):
    chain = Chain("wide")
    for name in ("one", "two", "three"):
        chain.add_node(name, fn=lambda name=name: {f"of {name}": name})
    result = await chain.arun({"x": 0}, store=store_url)
    assert result.final_state == {"x": 0, "of one": "one", "of two": "two", "of three": "three"}
    assert result.output == {"of three": "three"}


def test_rule_several_ends_with_one_key_are_a_conflict_too(store_url: str):
    chain = Chain("wide conflict").add_node("a", fn=lambda: {"x": 1}).add_node("b", fn=lambda: {"x": 2})
    with pytest.raises(ChainError, match="'a' and 'b' have both written the key 'x'"):
        chain.run(store=store_url)


# --- reducers -------------------------------------------------------------------------------------------


async def test_rule_a_reducer_that_changes_its_arguments_changes_nothing_else(store_url: str):
    def extend(old: list[int], new: list[int]) -> list[int]:
        old.extend(new)
        new.clear()
        return old

    branches = [named("a", lambda: {"items": [1]}), named("b", lambda: {"items": [2]})]
    chain = fan("changing reducer", named("source", lambda: {"items": [0]}), branches, join, reducers={"items": extend})
    given = {"items": [-1]}
    result = await chain.arun(given, store=store_url)
    assert result.final_state["items"] == [-1, 0, 1, 2]
    assert result.node_results["a"] == {"items": [1]}
    assert given == {"items": [-1]}


async def test_rule_a_reducer_holds_in_a_line_as_well_and_not_for_the_first_value(store_url: str):
    chain = line("adding", named("a", lambda: {"n": 1}), named("b", lambda: {"n": 2}), reducers={"n": operator.add})
    assert (await chain.arun(store=store_url)).final_state == {"n": 3}
    assert (await chain.arun({"n": 10}, store=store_url)).final_state == {"n": 13}


def test_rule_a_reducer_that_raises_fails_the_run_and_the_result_stands(store_url: str):
    fails = [True]

    def adds(old: int, new: int) -> int:
        if fails.pop() if fails else False:
            raise ArithmeticError("overflow")
        return old + new

    def a() -> dict[str, int]:
        ran.append("a")
        return {"n": 1}

    chain = line("breaking reducer", a, reducers={"n": adds})
    with pytest.raises(ArithmeticError, match="overflow"):
        chain.run({"n": 1}, execution_id="r1", store=store_url)
    assert chain.retry("r1", store=store_url).final_state == {"n": 2}
    assert ran == ["a"]


async def test_rule_a_reducer_applies_to_a_key_a_node_writes_by_output_key_or_id(store_url: str):
    chain = Chain("reduced keys", reducers={"total": operator.add, "log": operator.add})
    chain.add_node("a", fn=lambda: 2, output_key="total").add_node("log", fn=lambda: ["x"]).connect("a", "log")
    assert (await chain.arun({"total": 1, "log": ["w"]}, store=store_url)).final_state == {
        "total": 3,
        "log": ["w", "x"],
    }


# --- over a pause ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", ["a", "b"])
def test_rule_a_diamond_with_a_question_on_one_side_joins_after_the_answer(store_url: str, side: str):
    """The other side runs to its end meanwhile and not again; the join sees both."""

    def branch(name: str) -> Any:
        def run() -> dict[str, Any]:
            ran.append(name)
            return {name: interrupt(f"{name}?").approved if name == side else "done", "log": [name]}

        return named(name, run)

    chain = fan("asking diamond", source, [branch("a"), branch("b")], join, reducers={"log": operator.add})
    paused = chain.run({"log": []}, execution_id="r1", store=store_url)
    other = "b" if side == "a" else "a"
    assert (paused.status, paused.node_results[other]) == ("paused", {other: "done", "log": [other]})
    result: Any = chain.resume("r1", resume_value=YES, store=store_url)
    assert result.final_state["log"] == ["a", "b"]
    assert result.output == {"seen": {"log": ["a", "b"], side: True, other: "done"}}
    assert (ran.count(other), ran.count(side), ran.count("join")) == (1, 2, 1)
    at_join = next(one for one in points(store_url, "r1") if one.node_id == "join")
    assert at_join.state == result.final_state
