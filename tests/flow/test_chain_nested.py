"""Chains and workflows as nodes: one run, their records below the node, their state the outer one's or their own."""

from __future__ import annotations

import asyncio
import operator
from typing import Any

import pytest
from tests.support.chains import YES, line, load, points, questions, runs

from perdure import Chain, ChainError, ChainStateError, Engine, interrupt, step, workflow
from perdure.core.records import RunFilter

ran: list[Any] = []


@pytest.fixture(autouse=True)
def fresh() -> None:
    ran.clear()


def noted(name: str, value: Any = None) -> Any:
    def run() -> Any:
        ran.append(name)
        return value

    run.__name__ = name
    return run


# --- state ----------------------------------------------------------------------------------------------


async def test_rule_a_nested_chain_goes_on_from_the_state_and_gives_back_what_it_wrote(store_url: str):
    inner = line("inner", noted("a", {"x": 2}), noted("b", {"y": 3}), noted("same", {"z": 0}))
    outer = Chain("outer").add_node("in", agent=inner).add_node("after", fn=lambda state: {"seen": state})
    result = await outer.connect("in", "after").arun({"x": 1, "z": 0}, store=store_url)
    assert result.node_results["in"] == {"x": 2, "y": 3}
    assert result.output == {"seen": {"x": 2, "z": 0, "y": 3}}


async def test_rule_with_an_output_key_the_result_is_the_output_of_the_chain(store_url: str):
    inner = line("inner", noted("a", {"x": 2}), noted("b", 7))
    result = await Chain("outer").add_node("in", agent=inner, output_key="r").arun({"x": 1}, store=store_url)
    assert result.final_state == {"x": 1, "r": 7}


async def test_rule_with_an_input_of_its_own_it_sees_nothing_else(store_url: str):
    inner = Chain("inner").add_node("look", fn=lambda state: {"seen": state})
    outer = Chain("outer").add_node("in", agent=inner, input_mapping={"a": "{{state.x}}"})
    assert (await outer.arun({"x": 1, "y": 2}, store=store_url)).final_state == {
        "x": 1, "y": 2, "seen": {"a": 1},
    }  # fmt: skip
    other = Chain("outer of text").add_node("in", agent=inner, input="{{state.x}}!")
    assert (await other.arun({"x": 1}, store=store_url)).output == {"seen": {"input": "1!"}}
    nothing = Chain("outer of nothing").add_node("in", agent=inner, input="{{state.x}}")
    assert (await nothing.arun({"x": None}, store=store_url)).output == {"seen": {"input": None}}


async def test_rule_a_nested_chain_keeps_its_own_reducers_and_schema(store_url: str):
    inner = Chain("inner", state_schema={"n": int, "log": list}, reducers={"log": operator.add})
    inner.add_node("a", fn=lambda: {"n": 2, "log": ["a"]}).add_node("b", fn=lambda: {"log": ["b"]}).connect("a", "b")
    result = await Chain("outer").add_node("in", agent=inner).arun({"n": 1, "log": []}, store=store_url)
    assert result.final_state == {"n": 2, "log": ["a", "b"]}
    with pytest.raises(ChainStateError, match="log"):
        await Chain("outer").add_node("in", agent=inner).arun({"n": 1}, store=store_url)


async def test_rule_one_chain_may_be_nested_twice_and_in_a_cycle(store_url: str):
    inner = Chain("inner").add_node("add", fn=lambda n: {"n": n + 1})
    outer = Chain("outer").add_node("one", agent=inner).add_node("two", agent=inner).connect("one", "two")
    outer.connect("two", "one", max_iterations=5, exit_condition="n >= 6")
    result = await outer.arun({"n": 0}, store=store_url)
    assert result.final_state == {"n": 6}


async def test_rule_the_context_and_the_input_of_templates_are_the_runs(store_url: str):
    inner = Chain("inner").add_node("ctx", fn=lambda context: {"c": context})
    inner.add_node("in", type="transformer", template="{{input.x}} {{state.x}}").connect("ctx", "in")
    outer = Chain("outer").add_node("set", fn=lambda: {"x": 2}).add_node("nested", agent=inner).connect("set", "nested")
    result = await outer.arun({"x": 1}, context="the context", store=store_url)
    assert (result.final_state["c"], result.final_state["in"]) == ("the context", "2 2")


# --- one run --------------------------------------------------------------------------------------------


def nest(depth: int, innermost: Chain) -> Chain:
    """The chain inside so many others, each with a node before and behind it."""
    chain = innermost
    for level in range(depth):
        outer = Chain(f"level {level}").add_node("before", fn=noted(f"before {level}"))
        outer.add_node("nested", agent=chain).add_node("behind", fn=noted(f"behind {level}"))
        chain = outer.connect("before", "nested").connect("nested", "behind")
    return chain


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_rule_a_question_inside_pauses_the_run_and_nothing_runs_twice(store_url: str, depth: int):
    innermost = Chain("innermost").add_node("charge", fn=noted("charge", {"paid": 1}))
    innermost.add_node("ask", type="hitl", reason="ship {{state.paid}}?").connect("charge", "ask")
    chain = nest(depth, innermost)
    paused = chain.run(execution_id="r1", store=store_url)
    assert (paused.status, len(paused.pending_interrupts)) == ("paused", 1)
    assert paused.pending_interrupts[0]["reason"] == "ship 1?"
    before = list(ran)
    assert before == [*(f"before {n}" for n in reversed(range(depth))), "charge"]
    result: Any = chain.resume("r1", resume_value=YES, store=store_url)
    assert result.status == "completed"
    assert ran == [*before, *(f"behind {n}" for n in range(depth))]
    assert [row.status for row in questions(store_url, "r1")] == ["answered"]
    assert [row.run_id for row in runs(store_url)] == ["r1"]


def test_rule_records_of_nested_nodes_are_below_the_node(store_url: str):
    chain = nest(2, line("innermost", noted("a", {"x": 1})))
    result = chain.run(store=store_url)
    found = points(store_url, result.execution_id)
    assert [(one.node_id, one.path) for one in found if one.path] == [
        ("before", "before"),
        ("before", "nested/0/before"),
        ("a", "nested/0/nested/0/a"),
        ("nested", "nested/0/nested"),
        ("behind", "nested/0/behind"),
        ("nested", "nested"),
        ("behind", "behind"),
    ]
    assert set(result.node_results) == {"before", "nested", "behind"}
    again = chain.run(execution_id=result.execution_id, store=store_url)
    assert again.node_results == result.node_results


def test_rule_checkpoints_inside_have_the_state_inside(store_url: str):
    inner = line("inner", noted("a", {"x": 2}), noted("b", {"y": 3}))
    sharing = Chain("sharing").add_node("in", agent=inner)
    own = Chain("own").add_node("in", agent=inner, input_mapping={"p": "{{state.x}}"})
    for chain, first, second in (
        (sharing, {"x": 2}, {"x": 2, "y": 3}),
        (own, {"p": 1, "x": 2}, {"p": 1, "x": 2, "y": 3}),
    ):
        result = chain.run({"x": 1}, store=store_url)
        states = {one.path: one.state for one in points(store_url, result.execution_id)}
        assert (states["in/0/a"], states["in/0/b"]) == (first, second)
        assert states["in"] == result.final_state


def test_rule_a_failure_inside_fails_the_run_and_is_retried_inside(store_url: str):
    fails = [True]

    def fragile() -> dict[str, int]:
        ran.append("fragile")
        if fails.pop() if fails else False:
            raise ConnectionError("gone")
        return {"x": 1}

    chain = nest(2, line("innermost", noted("first"), fragile))
    with pytest.raises(ConnectionError):
        chain.run(execution_id="r1", store=store_url)
    before = list(ran)
    assert chain.retry("r1", store=store_url).final_state == {"x": 1}
    assert ran == [*before, "fragile", "behind 0", "behind 1"]


def test_rule_a_fork_may_begin_inside_a_nested_chain(store_url: str):
    """With the state of the fork point, a change of it, and nothing that came after."""
    inner = line("inner", noted("a", {"x": 2}), noted("b", {"y": 3}))
    inner.add_node("c", fn=lambda x, y: {"z": x + y}).connect("b", "c")
    outer = Chain("outer").add_node("before", fn=noted("before")).add_node("in", agent=inner)
    outer.add_node("behind", fn=noted("behind")).connect("before", "in").connect("in", "behind")
    outer.run({"x": 1}, execution_id="r1", store=store_url)
    at = next(one for one in points(store_url, "r1") if one.path == "in/0/b")
    ran.clear()
    fork = outer.fork("r1", checkpoint_id=at.checkpoint_id, modified_state={"x": 10}, store=store_url)
    assert fork.final_state == {"x": 10, "y": 3, "z": 13}
    assert ran == ["behind"]
    assert points(store_url, "r1")[-1].state == {"x": 2, "y": 3, "z": 5}


def tower(levels: int) -> Chain:
    chain = line("innermost", noted("a", {"x": 1}))
    for level in range(levels - 1):
        chain = Chain(f"level {level}").add_node("in", agent=chain)
    return chain


async def test_rule_chains_may_be_thirty_deep_and_more_are_refused_at_the_door(engine: Engine, store_url: str):
    assert (await tower(30).arun(store=store_url)).final_state == {"x": 1}
    assert tower(31).validate() == ["chains are nested more than 30 deep"]
    with pytest.raises(ChainError, match="30 deep"):
        await tower(31).arun(store=store_url)
    assert (len(await engine.store.run_list(RunFilter())), ran) == (1, ["a"])


# --- problems -------------------------------------------------------------------------------------------


def test_rule_problems_of_a_nested_chain_are_named_with_its_node():
    inner = Chain("inner").add_node("a", fn=noted("a")).connect("a", "ghost")
    problems = nest(2, inner).validate()
    assert len(problems) == 1
    assert problems[0].startswith("in 'nested': in 'nested': edge 'a' -> 'ghost'")
    with pytest.raises(ChainError, match="in 'nested'"):
        nest(2, inner).encode_input({})


def test_rule_a_chain_inside_itself_is_a_problem_with_a_name():
    snake, middle = Chain("snake").add_node("a", fn=noted("a")), Chain("middle")
    middle.add_node("par", type="parallel", branches={"s": snake})
    snake.add_node("tail", agent=middle).connect("a", "tail")
    assert snake.validate() == ["it is inside itself: 'snake' -> 'middle' -> 'snake'"]
    with pytest.raises(ChainError, match="inside itself"):
        snake.encode_input({})


# --- workflows ------------------------------------------------------------------------------------------


@step(name="chain_nested.charge")
async def charge(amount: int) -> str:
    ran.append(f"charge {amount}")
    return f"charged {amount}"


@workflow(name="chain_nested.paying")
async def paying(order: dict[str, Any]) -> dict[str, Any]:
    receipt = await charge(order["amount"])
    return {"receipt": receipt, "ok": interrupt("ship?", {"receipt": receipt}).approved}


def test_rule_a_workflow_is_a_node_with_steps_and_questions_of_its_own(store_url: str):
    chain = Chain("with workflow").add_node("pay", agent=paying).add_node("end", fn=lambda receipt, ok: [receipt, ok])
    chain.connect("pay", "end")
    paused = chain.run({"amount": 5}, execution_id="r1", store=store_url)
    assert paused.pending_interrupts[0]["context"] == {"receipt": "charged 5"}
    result = asyncio.run(chain.aresume("r1", resume_value=YES, store=store_url))
    assert (result.output, ran) == (["charged 5", True], ["charge 5"])
    kinds = {r.kind for r in load(store_url, "r1").records if r.type == "completed"}
    assert {"step", "interrupt", "node"} <= kinds


async def test_rule_a_chain_called_inside_a_node_is_a_run_of_its_own(store_url: str):
    """It is code of the body, not of the chain: its run has an id, and its pause is no pause of this run."""
    inner = line("inner of a body", noted("a", 7))

    async def calls() -> Any:
        return (await inner.arun(execution_id="inner run", store=store_url)).output

    result = await line("calling", calls).arun(execution_id="outer run", store=store_url)
    assert result.output == 7
    assert (await inner.arun(execution_id="inner run", store=store_url)).output == 7
    assert ran == ["a"]
