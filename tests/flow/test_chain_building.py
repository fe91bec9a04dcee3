"""Building a chain: what is refused at the door, naming the field, and what keeps a chain from running."""

from __future__ import annotations

import asyncio
import operator
from typing import Any

import pytest
from tests.support.chains import YES, Echo, line

from perdure import (
    Chain,
    ChainError,
    ChainTemplateError,
    DurableLimitError,
    Engine,
    FunctionTool,
    InvalidInputError,
    NodeType,
    SerializationError,
    node,
)
from perdure.core.records import RunFilter


def one() -> int:
    return 1


def takes(x: Any) -> Any:
    return x


BAD_NODES: list[tuple[str, dict[str, Any]]] = [
    ("id", {"id": 5, "fn": one}),
    ("id", {"id": "", "fn": one}),
    ("id", {"id": "a\n", "fn": one}),
    ("id", {"id": "x" * 257, "fn": one}),
    ("id", {"id": "$tuple", "fn": one}),
    ("tool", {"fn": 5}),
    ("tool", {"tool": 5}),
    ("tool", {"type": "tool"}),
    ("agent", {"agent": 5}),
    ("agent", {"type": "agent"}),
    ("agent", {"agent": one}),
    ("node", {"node": one}),
    ("type", {}),
    ("type", {"type": "loop", "fn": one}),
    ("type", {"type": 5, "fn": one}),
    ("fn", {"tool": one, "fn": one}),
    ("fn", {"fn": type}),
    ("fn", {"type": "hitl", "fn": one}),
    ("fn", {"type": "start", "fn": one}),
    ("agent", {"type": "end", "agent": Echo()}),
    ("name", {"fn": one, "name": 5}),
    ("output_key", {"fn": one, "output_key": 5}),
    ("output_key", {"fn": one, "output_key": ""}),
    ("output_key", {"fn": one, "output_key": "$set"}),
    ("input_mapping", {"fn": one, "input_mapping": 5}),
    ("input_mapping", {"fn": one, "input_mapping": {"x": 1}}),
    ("input_schema", {"fn": one, "input_schema": 5}),
    ("output_schema", {"fn": one, "output_schema": "int"}),
    ("output_schema", {"fn": one, "output_schema": {"type": "nope"}}),
    ("speed", {"fn": one, "speed": 1}),
    ("recovery", {"fn": one, "recovery": "maybe"}),
    ("retries", {"fn": one, "retries": -1}),
    ("timeout", {"fn": one, "timeout": -1}),
    ("errors", {"fn": one, "errors": 5}),
    ("errors", {"fn": one, "errors": ["KeyError"]}),
    ("reason", {"type": "hitl", "reason": 5}),
    ("reason", {"type": "hitl", "reason": " "}),
    ("reason", {"type": "hitl", "context": 5}),
    ("bind", {"type": "hitl", "bind": "yes"}),
    ("template", {"type": "transformer"}),
    ("conditions", {"type": "condition"}),
    ("conditions", {"type": "condition", "conditions": 5}),
    ("conditions", {"type": "condition", "conditions": ["state.x"]}),
    ("conditions", {"type": "condition", "conditions": [{"expression": "True", "handle": 5}]}),
    ("agents", {"type": "parallel"}),
    ("agents", {"type": "parallel", "agents": 5}),
    ("agents", {"type": "parallel", "agents": [one, one]}),
    ("tool", {"type": "parallel", "agents": [5]}),
    ("branches", {"type": "parallel", "branches": 5}),
    ("branches", {"type": "parallel", "branches": {"": one}}),
    ("over", {"type": "parallel", "over": "{{state.x}}"}),
    ("over", {"type": "parallel", "over": 5, "fn": takes}),
    ("over", {"type": "parallel", "fn": takes}),
    ("failure_mode", {"type": "parallel", "agents": [one], "failure_mode": "ignore"}),
    ("max_concurrency", {"type": "parallel", "agents": [one], "max_concurrency": 0}),
    ("max_concurrency", {"type": "parallel", "agents": [one], "max_concurrency": True}),
]


@pytest.mark.parametrize(("field", "given"), BAD_NODES, ids=[f"{n}-{field}" for n, (field, _) in enumerate(BAD_NODES)])
def test_rule_a_node_that_cannot_be_is_refused_by_its_field_and_not_added(field: str, given: dict[str, Any]):
    chain = Chain("bad")
    with pytest.raises(InvalidInputError) as refused:
        chain.add_node(**{"id": "a", **given})
    assert refused.value.field == field
    assert chain.validate() == ["the chain has no nodes"]


@pytest.mark.parametrize(
    ("path", "given"),
    [
        ("{{state.", {"fn": takes, "input_mapping": {"x": "{{state."}}),
        ("order.id", {"fn": takes, "input_mapping": {"x": "{{order.id}}"}}),
        ("{{x", {"type": "transformer", "template": "{{x"}),
        ("{{", {"type": "end", "output": "{{"}),
        ("x.y", {"type": "hitl", "reason": "{{x.y}}"}),
        ("x.y", {"type": "hitl", "context": {"deep": ["{{x.y}}"]}}),
        ("x.y", {"agent": Echo(), "input": "{{x.y}}"}),
        ("x.y", {"type": "parallel", "over": "{{x.y}}", "fn": takes}),
        ("1 +", {"type": "condition", "conditions": [{"expression": "1 +", "handle": "a"}]}),
        ("import os", {"type": "condition", "conditions": [{"expression": "import os", "handle": "a"}]}),
    ],
    ids=range(10),
)
def test_rule_a_malformed_template_or_expression_is_refused_by_its_text(path: str, given: dict[str, Any]):
    chain = Chain("bad")
    with pytest.raises(ChainTemplateError) as refused:
        chain.add_node("a", **given)
    assert refused.value.path == path
    assert chain.validate() == ["the chain has no nodes"]


def test_rule_what_a_person_would_see_must_be_recordable_when_the_node_is_added():
    with pytest.raises(SerializationError, match=r"\$\.thing"):
        Chain("bad").add_node("ask", type="hitl", context={"thing": object()})


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("name", {"name": 5}),
        ("name", {"name": ""}),
        ("state_schema", {"state_schema": 5}),
        ("state_schema", {"state_schema": {}}),
        ("state_schema", {"state_schema": {"a": 5}}),
        ("state_schema", {"state_schema": int}),
        ("state_schema", {"state_schema": {"type": "object", "properties": 5}}),
        ("checkpoint_enabled", {"checkpoint_enabled": "no"}),
        ("strict_routing", {"strict_routing": "no"}),
        ("reducers", {"reducers": 5}),
        ("reducers", {"reducers": {"a": 5}}),
        ("reducers", {"reducers": {5: operator.add}}),
    ],
)
def test_rule_a_chain_that_cannot_be_is_refused_by_its_field(field: str, given: dict[str, Any]):
    with pytest.raises(InvalidInputError) as refused:
        Chain(**{"name": "bad", **given})
    assert refused.value.field == field


async def _is_large(state: dict[str, Any]) -> bool:
    return True


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("source", {"source": 5}),
        ("target", {"target": None}),
        ("label", {"label": 5}),
        ("condition", {"condition": 5}),
        ("condition", {"condition": _is_large}),
        ("exit_condition", {"exit_condition": 5, "max_iterations": 2}),
        ("max_iterations", {"max_iterations": 0}),
        ("max_iterations", {"max_iterations": True}),
        ("max_iterations", {"max_iterations": "3"}),
    ],
)
def test_rule_an_edge_that_cannot_be_is_refused_by_its_field(field: str, given: dict[str, Any]):
    chain = line("bad", one)
    with pytest.raises(InvalidInputError) as refused:
        chain.connect(**{"source": "one", "target": "one", **given})
    assert refused.value.field == field
    assert chain.validate() == []


@pytest.mark.parametrize("text", ["1 +", "state.x ==", "__import__('os')", " ", "x; y"])
def test_rule_a_condition_that_cannot_be_read_is_refused_when_it_is_given(text: str):
    chain = line("bad", one)
    with pytest.raises(ChainTemplateError):
        chain.connect("one", "one", condition=text)
    assert chain.validate() == []


# --- what cannot run ------------------------------------------------------------------------------------


def _chain(*nodes: str) -> Chain:
    chain = Chain("shaped")
    for name in nodes:
        chain.add_node(name, fn=one)
    return chain


UNRUNNABLE = {
    "no nodes": _chain(),
    "'a' is there 2 times": _chain("a", "b", "a").connect("a", "b"),
    "there is no such node": _chain("a").connect("a", "ghost"),
    "'ghost' -> 'a' leads from 'ghost'": _chain("a").connect("ghost", "a"),
    "a -> b -> a has no bound": _chain("s", "a", "b").connect("s", "a").connect("a", "b").connect("b", "a"),
    "a -> a has no bound": _chain("a").connect("a", "a"),
    "'c' is never reached": _chain("c", "d")
    .add_node("s", type="start")
    .connect("c", "d")
    .connect("d", "c", max_iterations=2),
    "no max_iterations": _chain("a", "b").connect("a", "b", exit_condition="x"),
    "closes no cycle": _chain("a", "b").connect("a", "b", max_iterations=2),
    "is there 2 times": _chain("a", "b").connect("a", "b").connect("a", "b"),
    "at most one can be taken": _chain("a", "b", "c", "d")
    .connect("a", "b", condition="x")
    .connect("a", "c")
    .connect("a", "d"),
    "in 'inner': the chain has no nodes": Chain("outer").add_node("inner", agent=Chain("inner")),
}


async def test_rule_what_cannot_run_says_why_and_stores_nothing(engine: Engine, store_url: str):
    for problem, chain in UNRUNNABLE.items():
        assert any(problem in said for said in chain.validate()), chain.validate()
        with pytest.raises(ChainError, match="cannot run") as refused:
            await chain.arun({}, store=store_url)
        assert problem in str(refused.value)
    assert await engine.store.run_list(RunFilter()) == []


def test_rule_all_problems_are_named_at_once(store_url: str):
    chain = _chain("a", "a").connect("a", "ghost").connect("a", "a")
    with pytest.raises(ChainError) as refused:
        chain.run({}, store=store_url)
    assert all(problem in str(refused.value) for problem in chain.validate())
    assert len(chain.validate()) >= 3


def test_rule_a_chain_may_be_built_further_after_it_has_run(store_url: str):
    chain = line("grows", one)
    assert chain.run(store=store_url).node_results == {"one": 1}
    chain.add_node("two", fn=lambda one: one + 1).connect("one", "two")
    assert chain.run(store=store_url).node_results == {"one": 1, "two": 2}
    chain.add_node("one", fn=one)
    with pytest.raises(ChainError, match="2 times"):
        chain.run(store=store_url)


# --- the input ------------------------------------------------------------------------------------------


async def test_rule_a_bad_state_or_id_is_refused_by_its_field_with_nothing_stored(engine: Engine, store_url: str):
    bad_states: list[Any] = [5, [], "text", {5: 1}, {"": 1}, {"$set": 1}]
    bad_ids: list[Any] = [5, "", " ", "a\n", "x" * 300]
    bad = [("initial_state", {"initial_state": state}) for state in bad_states]
    bad += [("execution_id", {"execution_id": run_id}) for run_id in bad_ids]
    for field, given in bad:
        with pytest.raises(InvalidInputError) as refused:
            await line("door", one).arun(**given, store=store_url)
        assert refused.value.field == field
    with pytest.raises(SerializationError, match=r"\$\.deep\[1\]\.thing"):
        await line("door", one).arun({"deep": [0, {"thing": object()}]}, store=store_url)
    with pytest.raises(DurableLimitError, match="max_payload_bytes"):
        await line("door", one).arun({"large": "x" * 2_000_000}, store=store_url)
    assert await engine.store.run_list(RunFilter()) == []


@pytest.mark.parametrize("store", [5, "ftp://x", b"x"], ids=repr)
def test_rule_a_bad_store_is_refused_by_its_field(store: Any):
    with pytest.raises(InvalidInputError) as refused:
        line("door", one).run({}, store=store)
    assert refused.value.field == "store"


# --- ids ------------------------------------------------------------------------------------------------


ODD = [
    "a/b", "~1", "%", "0", "!", " x ", "é", "~", "a~b", "!0", "?q", "@x", "%2F", "é/ñ", "state", "input",
    "node_results", "x" * 256, "run_end", "1", "00", "-1", ".", "..", "a b", '"', "'", "\\", "{{x}}", "日本", "😀", "A",
    "a",
]  # fmt: skip


def test_rule_node_ids_may_have_any_character(store_url: str):
    """Every id keeps its own result, in order, over a pause and in another process."""
    chain = Chain("odd ids")
    for position, name in enumerate(ODD):
        chain.add_node(name, fn=lambda name=name: f"of {name}")
        if position:
            chain.connect(ODD[position - 1], name)
    chain.add_node("ask", type="hitl").connect(ODD[-1], "ask")
    paused = chain.run(store=store_url)
    assert paused.final_state == {name: f"of {name}" for name in ODD}
    result = asyncio.run(chain.aresume(paused.execution_id, resume_value=YES, store=store_url))
    assert {name: result.node_results[name] for name in ODD} == paused.final_state
    assert list(result.final_state) == [*ODD, "ask"]


def test_rule_ids_that_look_like_paths_of_each_other_stay_apart(store_url: str):
    """A node of a nested chain never meets one of the outer chain that has the path of it for an id."""
    inner = Chain("inner").add_node("x", fn=lambda: {"a": "inner"})
    outer = Chain("outer").add_node("in", agent=inner).add_node("in/0/x", fn=lambda: {"b": "outer"})
    outer.connect("in", "in/0/x")
    result = outer.run(store=store_url)
    assert result.final_state == {"a": "inner", "b": "outer"}


# --- kinds ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", list(NodeType))
def test_rule_a_type_may_be_given_as_its_name(kind: NodeType):
    needed: dict[str, dict[str, Any]] = {
        "agent": {"agent": Echo()},
        "tool": {"tool": FunctionTool("t", one)},
        "condition": {"fn": one},
        "parallel": {"agents": [one]},
        "transformer": {"template": "x"},
    }
    for given in (kind, str(kind)):
        chain = Chain("kinds").add_node("a", type=given, **needed.get(kind, {}))
        assert chain.topology.nodes[0].type == kind


def test_rule_members_have_the_names_of_the_reference():
    assert NodeType.tool is NodeType.TOOL
    assert NodeType.hitl == "hitl"


def test_rule_a_decorated_function_brings_its_own_settings_and_stays_a_function(store_url: str):
    @node(output_key="total")
    def add(a: int, b: int) -> int:
        return a + b

    @node
    def plain(total: int) -> dict[str, int]:
        return {"twice": total * 2}

    assert add(1, 2) == 3
    chain = Chain("decorated").add_node("add", node=add).add_node("plain", node=plain).connect("add", "plain")
    assert chain.run({"a": 1, "b": 2}, store=store_url).final_state == {"a": 1, "b": 2, "total": 3, "twice": 6}
    other = Chain("decorated otherwise").add_node("add", node=add, output_key="sum")
    assert other.run({"a": 1, "b": 2}, store=store_url).final_state == {"a": 1, "b": 2, "sum": 3}


def test_rule_a_function_tool_is_checked_when_it_is_made():
    with pytest.raises(InvalidInputError, match="fn"):
        FunctionTool("t", 5)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="name"):
        FunctionTool("", one)


def test_rule_a_drawing_shows_nodes_edges_and_labels():
    chain = Chain("drawn").add_node("check", type="condition", fn=one).add_node("left", fn=one, name="Go left")
    chain.add_node("right", fn=one).connect("check", "left", label="yes").connect("check", "right", label="no")
    drawn = chain.to_mermaid()
    assert drawn.splitlines()[0].startswith(("flowchart", "%%", "---", "graph"))
    assert all(text in drawn for text in ("check", "Go left", "right", "yes", "no"))
    assert repr(chain) == "<chain drawn: 3 nodes>"
