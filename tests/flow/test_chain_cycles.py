"""Cycles: bounded over the whole run, left when their exit condition holds after the node, behind them once."""

from __future__ import annotations

import asyncio
import operator
from typing import Any

import pytest
from tests.support.chains import YES, load, points

from perdure import Chain, ChainCycleError, interrupt

ran: list[Any] = []


@pytest.fixture(autouse=True)
def fresh() -> None:
    ran.clear()


def work(n: int) -> dict[str, int]:
    ran.append(n)
    return {"n": n + 1}


def loop(name: str, bound: int, exit_condition: Any = None, **options: Any) -> Chain:
    """`work` and `check`, round and round, then `after`."""
    chain = Chain(name, **options).add_node("work", fn=work).add_node("check", fn=lambda: None)
    chain.add_node("after", fn=lambda n: {"end": n}).connect("work", "check").connect("check", "after")
    return chain.connect("check", "work", max_iterations=bound, exit_condition=exit_condition)


@pytest.mark.parametrize("condition", ["n >= 3", lambda state: state["n"] >= 3], ids=["text", "function"])
async def test_rule_a_cycle_is_left_when_its_exit_condition_holds_after_the_node(store_url: str, condition: Any):
    result = await loop("exits", 10, condition).arun({"n": 0}, store=store_url)
    assert (ran, result.final_state) == ([0, 1, 2], {"n": 3, "end": 3})


async def test_rule_a_cycle_whose_exit_holds_at_once_runs_once(store_url: str):
    result = await loop("at once", 10, "n >= 1").arun({"n": 0}, store=store_url)
    assert (ran, result.output) == ([0], {"end": 1})


async def test_rule_the_exit_sees_the_state_after_the_node_not_before(store_url: str):
    chain = Chain("self loop").add_node("work", fn=work).add_node("after", fn=lambda n: {"end": n})
    chain.connect("work", "work", max_iterations=10, exit_condition="n == 2").connect("work", "after")
    assert (await chain.arun({"n": 0}, store=store_url)).final_state == {"n": 2, "end": 2}
    assert ran == [0, 1]


def test_rule_a_bound_that_is_reached_is_an_error_that_names_the_cycle(store_url: str):
    """`max_iterations` is how often the loop may run, its first time counted."""
    with pytest.raises(ChainCycleError, match=r"'check' -> 'work' has run 3 times") as failed:
        loop("bounded", 3, "n >= 100").run({"n": 0}, execution_id="r1", store=store_url)
    assert type(failed.value) is ChainCycleError
    assert ran == [0, 1, 2]
    assert load(store_url, "r1").run.status == "failed"
    with pytest.raises(ChainCycleError):
        loop("bounded", 3, "n >= 100").run({"n": 0}, execution_id="r1", store=store_url)
    assert ran == [0, 1, 2]


def test_rule_a_run_at_its_bound_goes_on_when_the_bound_is_raised(store_url: str):
    with pytest.raises(ChainCycleError):
        loop("raised", 2, "n >= 4").run({"n": 0}, execution_id="r1", store=store_url)
    result = loop("raised", 4, "n >= 4").retry("r1", store=store_url)
    assert (ran, result.final_state) == ([0, 1, 2, 3], {"n": 4, "end": 4})


async def test_rule_a_cycle_with_a_condition_goes_round_only_while_that_holds(store_url: str):
    chain = Chain("conditional").add_node("work", fn=work).add_node("after", fn=lambda n: {"end": n})
    chain.connect("work", "work", condition="n < 4", max_iterations=10).connect("work", "after")
    assert (await chain.arun({"n": 0}, store=store_url)).final_state == {"n": 4, "end": 4}


async def test_rule_what_lies_behind_a_cycle_runs_once(store_url: str):
    """Also if an earlier node of the cycle leads there each time round."""
    chain = Chain("behind", reducers={"log": operator.add}).add_node("work", fn=work)
    chain.add_node("check", fn=lambda: None)
    chain.add_node("after", fn=lambda: {"log": ["after"]}).add_node("end", fn=lambda: {"log": ["end"]})
    chain.connect("work", "check").connect("check", "work", max_iterations=5, exit_condition="n >= 3")
    chain.connect("work", "after").connect("check", "after").connect("after", "end")
    result = await chain.arun({"n": 0, "log": []}, store=store_url)
    assert result.final_state == {"n": 3, "log": ["after", "end"]}


async def test_rule_a_cycle_inside_a_cycle_counts_over_the_whole_run(store_url: str):
    """The inner bound is for the run, not for each round of the outer one."""

    def chain(inner_bound: int) -> Chain:
        made = Chain("inner and outer").add_node("outer", fn=lambda o: {"o": o + 1, "i": 0})
        made.add_node("inner", fn=lambda i: {"i": i + 1}).add_node("check", fn=lambda: ran.append("round"))
        made.connect("outer", "inner").connect("inner", "check")
        made.connect("inner", "inner", max_iterations=inner_bound, exit_condition="i == 2")
        return made.connect("check", "outer", max_iterations=5, exit_condition="o == 3")

    assert (await chain(6).arun({"o": 0}, store=store_url)).final_state == {"o": 3, "i": 2}
    assert ran == ["round"] * 3
    with pytest.raises(ChainCycleError, match="'inner' -> 'inner'"):
        await chain(2).arun({"o": 0}, store=store_url)


async def test_rule_a_cycle_through_a_fork_and_a_join_merges_each_round(store_url: str):
    chain = Chain("fanning cycle", reducers={"log": operator.add})
    for name in ("split", "a", "b", "join"):
        chain.add_node(name, fn=lambda name=name: {"log": [name]})
    chain.add_node("count", fn=lambda n: {"n": n + 1})
    chain.connect("split", "a").connect("split", "b").connect("a", "join").connect("b", "join").connect("join", "count")
    chain.connect("count", "split", max_iterations=3, exit_condition="n == 2")
    result = await chain.arun({"n": 0, "log": []}, store=store_url)
    assert result.final_state["log"] == ["split", "a", "b", "join"] * 2


# --- over pauses and restarts ---------------------------------------------------------------------------


def test_rule_iterations_are_counted_over_pauses(store_url: str):
    """A question each time round, each answered in another process: the bound is reached when it says."""

    def asks(n: int) -> dict[str, Any]:
        ran.append(n)
        assert interrupt("again?", {"n": n}).approved
        return {"n": n + 1}

    chain = Chain("asking cycle").add_node("asks", fn=asks)
    chain.connect("asks", "asks", max_iterations=3, exit_condition="n >= 100")
    paused: Any = chain.run({"n": 0}, execution_id="r1", store=store_url)
    seen = []
    for _ in range(2):
        seen.append(paused.pending_interrupts[0]["interrupt_id"])
        paused = chain.resume("r1", resume_value=YES, store=store_url)
    assert paused.status == "paused"
    with pytest.raises(ChainCycleError, match="3 times"):
        chain.resume("r1", resume_value=YES, store=store_url)
    assert ran == [0, 0, 1, 1, 2, 2]
    assert len(set(seen)) == 2


def test_rule_checkpoints_number_the_visits_and_have_the_counts(store_url: str):
    result = loop("counted", 5, "n >= 3").run({"n": 0}, store=store_url)
    found = points(store_url, result.execution_id)
    assert [(one.node_id, one.iteration, one.state["n"]) for one in found if one.state] == [
        ("work", 0, 1), ("check", 0, 1), ("work", 1, 2), ("check", 1, 2), ("work", 2, 3), ("check", 2, 3),
        ("after", 0, 3), ("run_end", 0, 3),
    ]  # fmt: skip
    assert [dict(one.iteration_counters) for one in found if one.node_id == "work"] == [
        {}, {"check -> work": 1}, {"check -> work": 2},
    ]  # fmt: skip
    assert dict(found[-1].iteration_counters)["check -> work"] == 2


def test_rule_a_failure_in_a_later_round_is_retried_in_that_round(store_url: str):
    fails = [2]

    def fragile(n: int) -> dict[str, int]:
        ran.append(n)
        if n in fails:
            fails.remove(n)
            raise ConnectionError("gone")
        return {"n": n + 1}

    chain = Chain("fragile cycle").add_node("fragile", fn=fragile)
    chain.connect("fragile", "fragile", max_iterations=9, exit_condition="n == 4")
    with pytest.raises(ConnectionError):
        chain.run({"n": 0}, execution_id="r1", store=store_url)
    result = chain.retry("r1", store=store_url)
    assert (ran, result.final_state) == ([0, 1, 2, 2, 3], {"n": 4})


def test_rule_a_fork_in_a_cycle_goes_on_from_its_round(store_url: str):
    chain = loop("forked cycle", 3, "n >= 3")
    chain.run({"n": 0}, execution_id="r1", store=store_url)
    second = [one for one in points(store_url, "r1") if one.node_id == "work"][1]
    ran.clear()
    fork = chain.fork("r1", checkpoint_id=second.checkpoint_id, store=store_url)
    assert (ran, fork.final_state) == ([2], {"n": 3, "end": 3})
    with pytest.raises(ChainCycleError):  # the rounds before the fork count
        chain.fork("r1", checkpoint_id=second.checkpoint_id, modified_state={"n": -5}, store=store_url)


async def test_rule_a_long_cycle_is_no_deeper_than_a_short_one(store_url: str):
    chain = Chain("long").add_node("work", fn=lambda n: {"n": n + 1})
    chain.connect("work", "work", max_iterations=600, exit_condition="n == 500")
    assert (await chain.arun({"n": 0}, store=store_url)).final_state == {"n": 500}


def test_rule_two_cycles_from_one_node_are_taken_in_order_of_declaration(store_url: str):
    chain = Chain("two cycles", reducers={"log": operator.add})
    for name in ("a", "b", "end"):
        chain.add_node(name, fn=lambda name=name: {"log": [name]})
    chain.connect("a", "b").connect("b", "end")
    chain.connect("b", "b", max_iterations=9, exit_condition=lambda state: state["log"].count("b") % 2 == 0)
    chain.connect("b", "a", max_iterations=9, exit_condition=lambda state: len(state["log"]) > 5)
    result = asyncio.run(chain.arun({"log": []}, store=store_url))
    assert result.final_state["log"] == ["a", "b", "b", "a", "b", "b", "end"]
