"""Which way a run goes on: conditions on edges, condition nodes and their labels, ways recorded once."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.chains import NO, YES, line, load, points

from perdure import Chain, ChainRoutingError, ChainTemplateError, interrupt

ran: list[Any] = []


@pytest.fixture(autouse=True)
def fresh() -> None:
    ran.clear()


def goes(name: str) -> Any:
    def go() -> None:
        ran.append(name)

    return go


def fork_in_the_road(name: str, **options: Any) -> Chain:
    """`start` leads to `left`, `right` and `else`, however the test says."""
    chain = Chain(name, **options).add_node("start", fn=lambda x: {"x": x + 1})
    for way in ("left", "right", "else"):
        chain.add_node(way, fn=goes(way))
    return chain


@pytest.mark.parametrize(("x", "way"), [(0, "left"), (5, "right"), (50, "else")])
async def test_rule_the_first_condition_that_holds_is_taken_else_the_edge_without(store_url: str, x: int, way: str):
    chain = fork_in_the_road("ways")
    chain.connect("start", "else").connect("start", "left", condition="x < 5")
    chain.connect("start", "right", condition=lambda state: state["x"] < 10)
    result = await chain.arun({"x": x}, store=store_url)
    assert ran == [way]
    assert set(result.node_results) == {"start", way}


async def test_rule_of_several_conditions_that_hold_only_the_first_is_taken(store_url: str):
    chain = fork_in_the_road("first wins")
    for way in ("right", "left", "else"):
        chain.connect("start", way, condition="True")
    await chain.arun({"x": 1}, store=store_url)
    assert ran == ["right"]


async def test_rule_edges_without_conditions_are_all_taken(store_url: str):
    chain = fork_in_the_road("all")
    for way in ("left", "right", "else"):
        chain.connect("start", way)
    await chain.arun({"x": 1}, store=store_url)
    assert sorted(ran) == ["else", "left", "right"]


async def test_rule_a_condition_sees_the_state_after_the_node_the_input_and_the_results(store_url: str):
    chain = fork_in_the_road("scopes")
    chain.connect("start", "left", condition="state.x == 1").connect("start", "else")
    chain.connect("start", "right", condition="input.x == 1 and node_results.start.x == 2 and {{state.x}} == 2")
    await chain.arun({"x": 1}, store=store_url)
    assert ran == ["right"]


async def test_rule_where_no_condition_holds_the_run_ends_there(store_url: str):
    chain = fork_in_the_road("ends here").connect("start", "left", condition="x > 100")
    chain.connect("start", "right", condition="x > 1000").connect("left", "else")
    result = await chain.arun({"x": 1}, store=store_url)
    assert (result.output, result.final_state, ran) == ({"x": 2}, {"x": 2}, [])


def test_rule_with_strict_routing_that_is_an_error_naming_node_and_ways(store_url: str):
    chain = fork_in_the_road("strict", strict_routing=True).connect("start", "left", condition="x > 100")
    chain.connect("start", "right", condition="x > 1000").connect("left", "else")
    with pytest.raises(ChainRoutingError, match=r"'start'.*'left', 'right'"):
        chain.run({"x": 1}, execution_id="r1", store=store_url)
    assert points(store_url, "r1")[-1].status == "failed"
    assert load(store_url, "r1").run.status == "failed"
    again = fork_in_the_road("strict", strict_routing=True).connect("start", "left", condition="x > 1")
    again.connect("start", "right", condition="x > 1000").connect("left", "else")
    assert again.retry("r1", store=store_url).status == "completed"
    assert ran == ["left", "else"]


async def test_rule_a_node_without_edges_ends_a_strict_chain_too(store_url: str):
    assert (await line("strict line", goes("a"), strict_routing=True).arun(store=store_url)).status == "completed"


# --- condition nodes ------------------------------------------------------------------------------------


def decided(name: str, *labels: str, **given: Any) -> Chain:
    chain = Chain(name).add_node("check", type="condition", **given)
    for label in labels:
        chain.add_node(f"to {label}", fn=goes(label)).connect("check", f"to {label}", label=label)
    return chain


@pytest.mark.parametrize(
    ("value", "labels", "way"),
    [
        (True, ["true", "false"], ["true"]),
        (False, ["true", "false"], ["false"]),
        ("b", ["a", "b"], ["b"]),
        ({"matched": "b", "why": "it is"}, ["a", "b"], ["b"]),
        (2, ["1", "2"], ["2"]),
        (None, ["None", "a"], ["None"]),
        ("c", ["a", "default"], ["default"]),
        ("c", ["a", ""], [""]),
        ("", ["a", ""], [""]),
        ("c", ["a", "b"], []),
    ],
    ids=repr,
)
async def test_rule_a_function_decides_by_the_label_it_returns(store_url: str, value: Any, labels: Any, way: Any):
    chain = decided("by function", *labels, fn=lambda: value)
    result = await chain.arun({"x": 1}, store=store_url)
    assert ran == way
    assert (result.node_results["check"], result.final_state) == (value, {"x": 1})


@pytest.mark.parametrize(("amount", "way"), [(5, "small"), (500, "large"), (50, "default")])
async def test_rule_conditions_decide_by_the_first_handle_that_holds(store_url: str, amount: int, way: str):
    conditions = [
        {"expression": "amount < 10", "handle": "small"},
        {"expression": "state.amount > 100", "handle": "large"},
        {"expression": "state.amount > 200", "handle": "small"},
    ]
    chain = decided("by expressions", "small", "large", "default", conditions=conditions)
    result = await chain.arun({"amount": amount}, store=store_url)
    assert (ran, result.node_results["check"]) == ([way], {"matched": way})


def test_rule_a_label_without_an_edge_is_an_error_in_a_strict_chain(store_url: str):
    chain = Chain("strict labels", strict_routing=True).add_node("check", type="condition", fn=lambda: "c")
    chain.add_node("a", fn=goes("a")).connect("check", "a", label="a")
    with pytest.raises(ChainRoutingError, match=r"'check' has decided 'c'.*'a'"):
        chain.run(store=store_url)


# --- data is data ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    ["1 != 0", "True", "x' or '1' == '1", "{{state.secret}}", "__import__('os').abort()", '" == "" or "'],
)
async def test_rule_a_value_of_the_state_is_never_read_as_a_condition(store_url: str, text: str):
    chain = Chain("injected").add_node("start", fn=lambda: None).add_node("vip", fn=goes("vip"))
    chain.add_node("normal", fn=goes("normal")).connect("start", "normal")
    chain.connect("start", "vip", condition="state.answer == 'yes' or state.answer in ['y', 'ja']")
    await chain.arun({"answer": text, "secret": "yes"}, store=store_url)
    assert ran == ["normal"]


def test_rule_a_condition_over_a_path_that_is_not_there_names_it(store_url: str):
    chain = fork_in_the_road("missing path").connect("start", "left", condition="state.y.z > 1")
    chain.connect("start", "right").connect("start", "else", condition="state.y | default(0) > 1")
    with pytest.raises(ChainTemplateError, match=r"y\.z"):
        chain.run({"x": 1}, store=store_url)
    assert ran == []


# --- decided once ---------------------------------------------------------------------------------------


def test_rule_a_way_is_decided_once_however_often_the_run_is_resumed(store_url: str):
    """The condition would say something else now: the way taken is the recorded one."""
    answers = [True]

    def is_left(state: dict[str, Any]) -> bool:
        ran.append("asked")
        return answers[0]

    def asks() -> bool:
        return interrupt("go on?").approved

    chain = fork_in_the_road("once").add_node("asks", fn=asks).connect("start", "left", condition=is_left)
    chain.connect("start", "right").connect("left", "asks").connect("asks", "else")
    paused = chain.run({"x": 1}, store=store_url)
    answers[0] = False
    result = chain.resume(paused.execution_id, resume_value=YES, store=store_url)
    assert ran == ["asked", "left", "else"]
    assert result.status == "completed"  # type: ignore[attr-defined]


def test_rule_a_condition_that_fails_is_asked_again_and_the_node_is_not(store_url: str):
    fails = [True]

    def start() -> int:
        ran.append("start")
        return 1

    def breaks(state: dict[str, Any]) -> bool:
        if fails.pop() if fails else False:
            raise LookupError("no rate today")
        return True

    chain = Chain("breaking condition").add_node("start", fn=start).add_node("then", fn=goes("then"))
    chain.connect("start", "then", condition=breaks)
    with pytest.raises(LookupError, match="no rate"):
        chain.run(execution_id="r1", store=store_url)
    assert chain.retry("r1", store=store_url).status == "completed"
    assert ran == ["start", "then"]


async def test_rule_what_a_condition_does_to_the_state_nobody_sees(store_url: str):
    def changes(state: dict[str, Any]) -> bool:
        state["items"].append(9)
        state["new"] = 1
        return True

    chain = Chain("changing condition").add_node("start", fn=lambda: None)
    chain.add_node("then", fn=lambda items: {"seen": items}).connect("start", "then", condition=changes)
    result = await chain.arun({"items": [1]}, store=store_url)
    assert result.final_state == {"items": [1], "seen": [1]}


@pytest.mark.parametrize(("answer", "way"), [(YES, "go"), (NO, "stop")])
def test_rule_after_a_person_only_a_condition_leads_on_from_a_no(store_url: str, answer: Any, way: str):
    chain = Chain("person").add_node("ask", type="hitl").add_node("go", fn=goes("go")).add_node("stop", fn=goes("stop"))
    chain.connect("ask", "go").connect("ask", "stop", condition="not ask.approved")
    paused = chain.run(store=store_url)
    chain.resume(paused.execution_id, resume_value=answer, store=store_url)
    assert ran == [way]


def test_rule_without_a_way_for_it_a_no_ends_the_run(store_url: str):
    chain = Chain("plain no", strict_routing=True).add_node("ask", type="hitl").add_node("go", fn=goes("go"))
    chain.connect("ask", "go")
    paused = chain.run(store=store_url)
    result: Any = chain.resume(paused.execution_id, resume_value=NO, store=store_url)
    assert (result.status, result.output, ran) == ("completed", {"approved": False, "metadata": {}}, [])
