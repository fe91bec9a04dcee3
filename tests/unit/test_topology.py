"""Shapes of chains: what keeps one from running, how it is stored, and what may change under a run."""

from __future__ import annotations

import json
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.topology import (
    EdgeShape,
    NodeShape,
    Topology,
    difference,
    document,
    from_document,
    node_key,
    problems,
    reach,
    starts,
)
from perdure.errors import DurableRecoveryError


def node(node_id: str, type_: str = "tool", **more: Any) -> NodeShape:
    return NodeShape(id=node_id, type=type_, **more)


def edge(source: str, target: str, **more: Any) -> EdgeShape:
    return EdgeShape(source=source, target=target, **more)


def chain(nodes: str | list[NodeShape], *edges: EdgeShape | str) -> Topology:
    """Nodes by name ("a b c") or as they are, and edges ("a>b" or as they are)."""
    shapes = [node(name) for name in nodes.split()] if isinstance(nodes, str) else nodes
    arrows = [edge(*each.split(">")) if isinstance(each, str) else each for each in edges]
    return Topology(nodes=tuple(shapes), edges=tuple(arrows))


# --- what is wrong ---------------------------------------------------------------------------------------

LOOP = edge("b", "a", max_iterations=3)


@pytest.mark.parametrize(
    "topology",
    [
        chain("a"),
        chain("a b"),
        chain("a b c", "a>b", "b>c"),
        chain("a b c d", "a>b", "a>c", "b>d", "c>d"),
        chain("a b c", "a>b", LOOP, "b>c"),
        chain("a", edge("a", "a", max_iterations=1, exit_condition="n > 3")),
        chain("a b c d", "a>b", "b>c", "c>d", edge("c", "b", max_iterations=2), edge("d", "b", max_iterations=2)),
        chain("a b c", edge("a", "b", condition="n > 1"), "a>c"),
        chain("a b c", edge("a", "b", condition="n > 1"), edge("a", "b", condition="m"), "a>c"),
        chain("a b c", edge("a", "b", condition="<is_large>"), edge("a", "c", condition="<lambda>")),
        chain("a b", edge("a", "b", condition="<lambda>"), edge("a", "b", condition="<lambda>")),
        chain("a b c", "a>b", "a>c", edge("a", "a", max_iterations=2, condition="n < 3")),
        chain([node("a", "condition"), node("b"), node("c")], edge("a", "b", label="yes"), edge("a", "c", label="no")),
        chain([node("a", "condition"), node("b")], edge("a", "b", label="yes"), edge("a", "b", label="no")),
        chain([node("a", "condition"), node("b"), node("c")], edge("a", "b", label="yes"), "a>c"),
        chain([node("a", inner=chain("x y", "x>y")), node("b")], "a>b"),
    ],
)
def test_a_chain_that_can_run_has_no_problems(topology: Topology) -> None:
    assert problems(topology) == []


@pytest.mark.parametrize(
    ("topology", "expected"),
    [
        (chain(""), ["the chain has no nodes"]),
        (chain("a b a a"), ["node 'a' is there 3 times: ids are unique in a chain"]),
        (chain("a", "a>b"), ["edge 'a' -> 'b' leads to 'b', and there is no such node"]),
        (chain("a", "b>a"), ["edge 'b' -> 'a' leads from 'b', and there is no such node"]),
        (
            chain("a b", "a>b", edge("b", "a", max_iterations=0)),
            ["edge 'b' -> 'a' has max_iterations 0: it must be at least 1"],
        ),
        (
            chain("a b", edge("a", "b", exit_condition="n")),
            ["edge 'a' -> 'b' has an exit_condition but no max_iterations: only cycles have an exit"],
        ),
        (chain("a b", "a>b", "b>a"), ["the cycle a -> b -> a has no bound: give one of its edges max_iterations"]),
        (chain("a", "a>a"), ["the cycle a -> a has no bound: give one of its edges max_iterations"]),
        (
            chain("a b c d e", "a>b", "b>c", "c>b", "c>d", "d>c", "d>e"),
            ["the cycle b -> c -> b has no bound: give one of its edges max_iterations"],
        ),
        (
            chain("a b c d", "a>b", "b>a", "c>d", "d>c"),
            [
                "the cycle a -> b -> a has no bound: give one of its edges max_iterations",
                "the cycle c -> d -> c has no bound: give one of its edges max_iterations",
            ],
        ),
        (
            chain("a b c", "a>b", "b>c", "c>b", edge("c", "a", max_iterations=2)),
            ["the cycle b -> c -> b has no bound: give one of its edges max_iterations"],
        ),
        (
            chain([node("s", "start"), node("b"), node("c")], edge("b", "c"), edge("c", "b", max_iterations=2)),
            [
                "node 'b' is never reached: no path leads to it from a start",
                "node 'c' is never reached: no path leads to it from a start",
            ],
        ),
        (
            chain("a b", edge("a", "b", max_iterations=2)),
            ["edge 'a' -> 'b' has max_iterations but closes no cycle: nothing leads from 'b' back"],
        ),
        (chain("a b", "a>b", "a>b"), ["edge 'a' -> 'b' is there 2 times"]),
        (
            chain("a b", *[edge("a", "b", condition="n > 1", label="x")] * 2),
            ["edge 'a' -> 'b' is there 2 times"],
        ),
        (
            chain("a b c d", edge("a", "b", condition="n"), "a>c", edge("a", "d", label="x")),
            [
                "node 'a' has edges with conditions and 2 without (to 'c', 'd'): "
                "at most one can be taken when no condition holds"
            ],
        ),
        (
            chain([node("a", "condition"), *chain("b c").nodes], edge("a", "b", label="x"), edge("a", "c", label="x")),
            ["2 edges from condition 'a' have the label 'x': labels tell them apart"],
        ),
        (
            chain([node("a", "condition"), *chain("b").nodes], "a>b", "a>b"),
            ["2 edges from condition 'a' have the label '': labels tell them apart"],
        ),
        (
            chain("a b", edge("a", "b", condition="n >")),
            [
                "edge 'a' -> 'b' has a malformed condition: n >: at column 4: "
                "expected a path, a literal or '(', found the end"
            ],
        ),
        (
            chain("a", edge("a", "a", max_iterations=1, exit_condition="1 < n < 3")),
            [
                "edge 'a' -> 'a' has a malformed exit_condition: 1 < n < 3: at column 7: "
                "comparisons are not chained: write `a < b and b < c`, or use parentheses"
            ],
        ),
        (chain([node("a", inner=chain(""))]), ["in 'a': the chain has no nodes"]),
        (
            chain([node("a", inner=chain([node("b", inner=chain("x", "x>y"))]))]),
            ["in 'a': in 'b': edge 'x' -> 'y' leads to 'y', and there is no such node"],
        ),
        (
            chain("a a", "a>gone", edge("a", "a", max_iterations=0), edge("a", "x", condition=")")),
            [
                "node 'a' is there 2 times: ids are unique in a chain",
                "edge 'a' -> 'gone' leads to 'gone', and there is no such node",
                "edge 'a' -> 'a' has max_iterations 0: it must be at least 1",
                "edge 'a' -> 'x' leads to 'x', and there is no such node",
                "edge 'a' -> 'x' has a malformed condition: ): at column 1: "
                "expected a path, a literal or '(', found ')'",
            ],
        ),
    ],
)
def test_case_c16_what_keeps_a_chain_from_running_is_named(topology: Topology, expected: list[str]) -> None:
    assert problems(topology) == expected


# --- starts and reach ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topology", "expected"),
    [
        (chain("a b c", "a>b", "b>c"), ("a",)),
        (chain("c b a", "a>b"), ("c", "a")),
        (chain("a b", "a>b", LOOP), ("a",)),
        (chain("a", edge("a", "a", max_iterations=2)), ("a",)),
        (chain("a b", "a>b", "b>a"), ()),
        (chain([node("a"), node("s", "start"), node("t", "start")], "s>a", "a>t"), ("s", "t")),
        (chain([node("x"), node("s", "start"), node("a")], "s>a"), ("x", "s")),
        (chain([node("s", "start"), node("a"), node("b")], "s>a", "a>b", LOOP), ("s",)),
        (chain([node("s", "start"), node("a"), node("b")], "a>b", LOOP), ("s",)),
        (chain([node("s", "start"), node("a")], "s>a", edge("a", "s", max_iterations=2)), ("s",)),
        (chain(""), ()),
    ],
)
def test_where_a_run_begins(topology: Topology, expected: tuple[str, ...]) -> None:
    assert starts(topology) == expected


def test_reach_follows_cycle_edges_and_skips_what_is_not_there() -> None:
    found = reach(chain("a b c d", "a>b", "b>c", edge("c", "b", max_iterations=2), "a>d", "c>d", "d>gone"))

    assert found.leads("a", "d")
    assert found.leads("c", "b")
    assert found.leads("b", "b")
    assert not found.leads("d", "b")
    assert not found.leads("a", "a")


# --- storing ---------------------------------------------------------------------------------------------


def test_a_document_says_nothing_twice_and_nothing_that_is_default() -> None:
    topology = chain(
        [
            node("load", "start"),
            node("ask", "hitl", label="Ask them"),
            node("sub", "chain", inner=chain("x y", "x>y")),
            node("pay", inputs={"amount": "{{ state.amount }}"}, output_key="paid"),
            node("none", inputs={}),
        ],
        "load>ask",
        edge("ask", "sub", label="yes", condition="n > 1"),
        edge("sub", "ask", max_iterations=3, exit_condition="ok"),
        "sub>gone",
    )

    assert document(topology) == [
        1,
        [
            ["load", "start"],
            ["ask", "hitl", None, None, None, "Ask them"],
            ["sub", "chain", None, [[["x", "tool"], ["y", "tool"]], [[0, 1]]]],
            ["pay", "tool", {"amount": "{{ state.amount }}"}, None, "paid"],
            ["none", "tool", {}],
        ],
        [[0, 1], [1, 2, "yes", "n > 1"], [2, 1, None, None, 3, "ok"], [2, "gone"]],
    ]
    assert from_document(document(topology)) == topology


IDS = st.sampled_from(["a", "b", "c", "", "0", "end", 'q"q', "ü/ü"])
TEXTS = st.text(max_size=5)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=4,
)
EDGES = st.builds(
    EdgeShape,
    source=IDS,
    target=IDS,
    label=TEXTS,
    condition=st.none() | TEXTS,
    max_iterations=st.none() | st.integers(),
    exit_condition=st.none() | TEXTS,
)


def topologies(inner: st.SearchStrategy[Topology | None]) -> st.SearchStrategy[Topology]:
    nodes = st.builds(
        NodeShape,
        id=IDS,
        type=TEXTS,
        inputs=st.none() | st.dictionaries(TEXTS, JSON, max_size=2),
        inner=inner,
        output_key=st.none() | TEXTS,
        label=TEXTS,
    )
    return st.builds(
        Topology, nodes=st.lists(nodes, max_size=4).map(tuple), edges=st.lists(EDGES, max_size=4).map(tuple)
    )


TOPOLOGIES = topologies(st.none() | topologies(st.none()))


@given(TOPOLOGIES)
def test_any_shape_comes_back_from_json_as_it_was(topology: Topology) -> None:
    assert from_document(json.loads(json.dumps(document(topology)))) == topology


@given(TOPOLOGIES)
def test_any_shape_has_its_problems_said(topology: Topology) -> None:
    assert all(isinstance(problem, str) and problem for problem in problems(topology))


def test_a_document_is_a_copy() -> None:
    inputs = {"a": 1}
    stored = document(chain([node("a", inputs=MappingProxyType(inputs))]))
    inputs["a"] = 2

    assert stored == [1, [["a", "tool", {"a": 1}]], []]


@pytest.mark.parametrize(
    ("recorded", "message"),
    [
        ([2, [], []], "recorded in format 2, and this version of Perdure reads 1"),
        ([0, [], []], "recorded in format 0"),
        ([True, [], []], "cannot be read"),
        (["1", [], []], "cannot be read"),
        ([], "cannot be read"),
        (None, "cannot be read"),
        ({"nodes": []}, "cannot be read"),
        ([1], "cannot be read"),
        ([1, [], [], []], "cannot be read"),
        ([1, [["a"]], []], "cannot be read"),
        ([1, [["a", "tool"]], [[0]]], "cannot be read"),
        ([1, [["a", "tool"]], [[0, 1]]], "cannot be read"),
        ([1, 5, []], "cannot be read"),
    ],
)
def test_another_format_is_refused(recorded: Any, message: str) -> None:
    with pytest.raises(DurableRecoveryError, match=message):
        from_document(recorded)


# --- what changed ----------------------------------------------------------------------------------------

LINE = chain("a b c d", "a>b", "b>c", "c>d")
BRANCH = chain("a b c d", edge("a", "b", condition="n > 1"), "a>c", "b>d", "c>d")
CYCLE = chain("a b c", "a>b", edge("b", "a", max_iterations=3, exit_condition="ok"), "b>c")
NESTED = chain([node("a"), node("sub", "chain", inner=LINE), node("z")], "a>sub", "sub>z")


def nested(inner: Topology | None) -> Topology:
    return chain([node("a"), node("sub", "chain", inner=inner), node("z")], "a>sub", "sub>z")


@pytest.mark.parametrize(
    ("recorded", "current", "begun"),
    [
        pytest.param(LINE, LINE, {"a": True, "b": False}, id="nothing"),
        pytest.param(LINE, chain("x"), {}, id="nothing was begun"),
        pytest.param(LINE, chain("a b c d e", "a>b", "b>c", "c>d", "d>e"), {"a": True}, id="a step at the end"),
        pytest.param(LINE, chain("a b x d", "a>b", "b>x", "x>d"), {"a": True}, id="another step ahead"),
        pytest.param(
            LINE, chain("a b c d", "a>b", "b>d", "b>c"), {"a": True, "b": False}, id="routes from an open node"
        ),
        pytest.param(
            LINE,
            chain([node("a"), node("b"), node("c", "hitl"), node("d")], *LINE.edges),
            {"a": True, "b": True},
            id="another type ahead",
        ),
        pytest.param(
            LINE,
            chain([node("a", label="A", inputs={"x": 1}), *LINE.nodes[1:]], *LINE.edges),
            {"a": True, "b": True},
            id="label and inputs",
        ),
        pytest.param(LINE, chain("d c b a", *reversed(LINE.edges)), {"a": True, "b": True}, id="order of declaration"),
        pytest.param(
            LINE,
            chain("a b c d", *LINE.edges, edge("c", "a", max_iterations=2)),
            {"a": True, "b": True, "c": False},
            id="a cycle back from a node that has not completed",
        ),
        pytest.param(
            CYCLE,
            chain("a b c", "a>b", edge("b", "a", max_iterations=9), "b>c"),
            {"a": True, "b": False},
            id="the bound of a cycle that was not decided",
        ),
        pytest.param(
            BRANCH,
            chain("a b c d", edge("a", "b", condition="n > 1"), "a>c", "b>d", edge("c", "d", condition="x")),
            {"a": True, "b": True},
            id="the terms of an edge from a branch that was not taken",
        ),
        pytest.param(
            CYCLE,
            chain("a b c", "a>b", edge("b", "a", max_iterations=9), "b>c"),
            {"a": True, "b": True},
            id="the bound and the exit of a cycle that was decided: the way taken is recorded",
        ),
        pytest.param(
            BRANCH,
            chain("a b c d", edge("a", "b", condition="n > 2"), "a>c", "b>d", "c>d"),
            {"a": True},
            id="what a condition says that was decided",
        ),
        pytest.param(LINE, LINE, {"unknown": True, "": False}, id="keys of nothing"),
        pytest.param(
            NESTED, nested(chain("a b x", "a>b", "b>x")), {"a": True, "sub": False, "sub/a": True}, id="inner, ahead"
        ),
        pytest.param(NESTED, nested(None), {"a": True}, id="inner, not begun"),
    ],
)
def test_a_difference_ahead_of_the_run_is_none(recorded: Topology, current: Topology, begun: dict[str, bool]) -> None:
    assert difference(recorded, current, begun) is None


@pytest.mark.parametrize(
    ("recorded", "current", "begun", "expected"),
    [
        (
            LINE,
            chain("a c d", "a>c", "c>d"),
            {"a": True, "b": False},
            "node 'b' was begun in this run, and is not in the chain any more",
        ),
        (
            LINE,
            chain([node("a", "hitl"), *LINE.nodes[1:]], *LINE.edges),
            {"a": False},
            "node 'a' was recorded with the type 'tool', and has 'hitl' now",
        ),
        (
            LINE,
            chain("a b new c d", "a>b", "b>new", "new>c", "c>d"),
            {"a": True, "b": True, "c": False},
            "a step was inserted before 'c', which this run has begun: 'new' leads to it now",
        ),
        (
            chain("a b c", "a>c"),
            chain("a b c", "a>c", "b>c"),
            {"a": True, "c": False},
            "node 'c' was begun in this run without an edge from 'b', and has one now",
        ),
        (
            BRANCH,
            chain("a b c d", edge("a", "b", condition="n > 1"), "a>c", "b>d"),
            {"a": True, "b": True, "d": False},
            "node 'd' was begun in this run with an edge from 'c', and has none now",
        ),
        (
            BRANCH,
            chain("a b c d", "a>b", "a>c", "b>d", "c>d"),
            {"a": True},
            "node 'a' has completed: its edge to 'b' was recorded with condition 'n > 1', and has condition None now",
        ),
        (
            BRANCH,
            chain("a b c d", edge("a", "b", condition="n > 1", label="x"), "a>c", "b>d", "c>d"),
            {"a": True},
            "node 'a' has completed: its edge to 'b' was recorded with label '', and has label 'x' now",
        ),
        (
            CYCLE,
            chain("a b c", "a>b", "b>c"),
            {"a": True, "b": True},
            "node 'b' has completed: its edge to 'a' was recorded, and is gone now",
        ),
        (
            LINE,
            chain("a b c d", "a>b", "b>d", "c>d"),
            {"a": True, "b": True},
            "node 'b' has completed: its edge to 'c' was recorded, and is gone now",
        ),
        (
            LINE,
            chain("a b c d", *LINE.edges, "b>d"),
            {"a": True, "b": True},
            "node 'b' has completed: an edge to 'd' was not recorded, and is there now",
        ),
        (
            LINE,
            chain("a b c d", *LINE.edges, edge("b", "a", max_iterations=2)),
            {"a": True, "b": True},
            "node 'b' has completed: an edge to 'a' was not recorded, and is there now",
        ),
        (
            NESTED,
            nested(chain("a x b c d", "a>x", "x>b", "b>c", "c>d")),
            {"a": True, "sub": False, "sub/a": True, "sub/b": False},
            "a step was inserted before 'b' in sub, which this run has begun: 'x' leads to it now",
        ),
        (
            NESTED,
            nested(None),
            {"a": True, "sub": False},
            "node 'sub' was recorded with a nested chain, and has none now",
        ),
        (
            nested(None),
            NESTED,
            {"a": True, "sub": False},
            "node 'sub' was recorded without a nested chain, and has one now",
        ),
    ],
)
def test_a_difference_where_the_run_has_been_is_said(
    recorded: Topology, current: Topology, begun: dict[str, bool], expected: str
) -> None:
    assert difference(recorded, current, begun) == expected


def test_nodes_of_one_name_at_two_depths_are_two() -> None:
    inner = chain("a b", "a>b")
    recorded, current = nested(inner), nested(chain("a c", "a>c"))

    assert difference(recorded, current, {"a": True, "b": True, "sub": False}) is None
    assert difference(recorded, current, {"sub": False, "sub/b": True}) is not None


def test_ids_are_percent_encoded_in_keys() -> None:
    assert node_key("a b/ü", node_key("ou/ter")) == "ou%2Fter/a%20b%2F%C3%BC"
    slashed = chain([node("sub/a"), node("sub", "chain", inner=chain("a"))])

    assert difference(slashed, chain("x"), {"sub%2Fa": True}) == (
        "node 'sub/a' was begun in this run, and is not in the chain any more"
    )


@given(TOPOLOGIES, st.booleans())
def test_no_shape_differs_from_itself(topology: Topology, is_completed: bool) -> None:
    begun = {node_key(shape.id): is_completed for shape in topology.nodes}

    assert difference(topology, from_document(document(topology)), begun) is None


def test_a_line_of_ten_thousand_nodes() -> None:
    ids = [f"n{number}" for number in range(10_000)]
    line = chain([node(node_id) for node_id in ids], *(edge(*pair) for pair in pairwise(ids)))
    current = chain([*line.nodes, node("more")], *line.edges, edge(ids[-1], "more"))

    assert problems(line) == []
    assert starts(line) == ("n0",)
    assert from_document(document(line)) == line
    assert difference(line, current, dict.fromkeys(ids[:-1], True)) is None
    assert difference(line, current, dict.fromkeys(ids, True)) is not None
