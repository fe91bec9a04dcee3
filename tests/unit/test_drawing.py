"""Pictures of chains: what they show, and that no text in a chain can break one."""

from __future__ import annotations

import json
import re
import unicodedata
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.drawing import draw, to_mermaid
from perdure.core.topology import EdgeShape, NodeShape, Topology, node_key


def node(node_id: str, type_: str = "tool", **more: Any) -> NodeShape:
    return NodeShape(id=node_id, type=type_, **more)


def edge(source: str, target: str, **more: Any) -> EdgeShape:
    return EdgeShape(source=source, target=target, **more)


REVIEW = Topology(
    nodes=(node("ask", "hitl"), node("note", "transformer")),
    edges=(edge("ask", "note"), edge("note", "ask", max_iterations=2)),
)
REFUND = Topology(
    nodes=(
        node("begin", "start"),
        node("load", "tool", label="Load the order"),
        node("check", "condition"),
        node("review", "chain", inner=REVIEW),
        node("pay", "agent"),
        node("both", "parallel"),
        node("end", "end"),
    ),
    edges=(
        edge("begin", "load"),
        edge("load", "check"),
        edge("check", "review", label="large"),
        edge("check", "pay", label="small"),
        edge("review", "pay", condition="approved and amount > 100"),
        edge("review", "end"),
        edge("review", "review", max_iterations=3),
        edge("pay", "both"),
        edge("pay", "pay", max_iterations=5, exit_condition="paid"),
        edge("both", "gone"),
    ),
)


def line_of(count: int) -> Topology:
    ids = [f"n{number}" for number in range(count)]
    return Topology(nodes=tuple(map(node, ids)), edges=tuple(edge(*pair) for pair in pairwise(ids)))


# --- Mermaid ---------------------------------------------------------------------------------------------


def test_a_flowchart() -> None:
    assert (
        to_mermaid(REFUND, 'refund "v2"')
        == r"""
---
title: "refund \"v2\""
---
flowchart TD
    n0(["begin"])
    n1["Load the order<br/>tool"]
    n2{"check"}
    subgraph n3["review"]
        n3_0{{"ask<br/>hitl"}}
        n3_1["note<br/>transformer"]
        n3_0 --> n3_1
        n3_1 -.->|"max 2"| n3_0
    end
    n4("pay<br/>agent")
    n5[["both<br/>parallel"]]
    n6(["end"])
    n7>"gone<br/>missing"]
    n0 --> n1
    n1 --> n2
    n2 -->|"large"| n3
    n2 -->|"small"| n4
    n3 -->|"if approved and amount #62; 100"| n4
    n3 -->|"else"| n6
    n3_1 -.->|"max 3"| n3_0
    n4 --> n5
    n4 -.->|"max 5, until paid"| n4
    n5 --> n7
""".strip()
    )


def test_a_flowchart_without_a_name_has_no_title() -> None:
    assert to_mermaid(line_of(2)) == 'flowchart TD\n    n0["n0<br/>tool"]\n    n1["n1<br/>tool"]\n    n0 --> n1'


def test_a_nested_chain_without_nodes_is_a_node() -> None:
    empty = Topology(nodes=(), edges=())
    drawn = to_mermaid(Topology(nodes=(node("a", "chain", inner=empty),), edges=(edge("a", "a", max_iterations=1),)))

    assert drawn == 'flowchart TD\n    n0["a<br/>chain"]\n    n0 -.->|"max 1"| n0'


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("end", "end"),
        ('say "hi"', "say #34;hi#34;"),
        ("a\nb\r\nc", "a<br/>b<br/>c"),
        ("<script>", "#60;script#62;"),
        ("a & b; #35;", "a #38; b#59; #35;35#59;"),
        ("[x](y) {z} |", "#91;x#93;#40;y#41; #123;z#125; #124;"),
        ("`a` *b* __c__ d_e", "#96;a#96; #42;b#42; #95;#95;c#95;#95; d_e"),
        ("%%{init}%%", "#37;#37;#123;init#125;#37;#37;"),
        ("style a:b", "style a#58;b"),
        ("1. first", "1#46; first"),
        ("- item", "#45; item"),
        ("1.5 - 2 + x", "1.5 - 2 + x"),
        ("naïve 支付 😀", "naïve 支付 #128512;"),
        ("\ud83d|\u202e|\0|\t.", "\ufffd#124; #124; #124; ."),
        ("", " "),
        ("x" * 130, "x" * 119 + "#8230;"),
    ],
)
def test_a_label_is_text_whatever_is_in_it(text: str, label: str) -> None:
    drawn = to_mermaid(Topology(nodes=(node(text, "end"),), edges=(edge(text, text, label=text),)))

    arrow = f'n0 -->|"{label.replace(chr(0xFFFD), "#65533;")}"| n0' if text else "n0 --> n0"
    assert drawn.splitlines()[1:] == [f'    n0(["{label.replace(chr(0xFFFD), "#65533;")}"])', f"    {arrow}"]


# What may stand between quotes: letters, a few signs, line breaks and characters by number.
_LABEL = r'"(?:[\w ,=/?!\'+.-]|#\d+;|<br/>)+"'
_BRACKETS = ("[ ]", "( )", "([ ])", "[[ ]]", "{ }", "{{ }}", "> ]")
_NODE = "|".join(re.escape(opening) + _LABEL + re.escape(closing) for opening, closing in map(str.split, _BRACKETS))
_LINE = re.compile(
    rf" +(?:n[\d_]+(?:{_NODE})|subgraph n[\d_]+\[{_LABEL}\]|end|n[\d_]+ (?:-->|-\.->)(?:\|{_LABEL}\|)? n[\d_]+)"
)

SYNTAX = '" ` [ ] ( ) { } <b> | end subgraph %% --- --> #quot; #35; &amp; ; ::: __ * 1. - ü 😀 \\ a 0'
PIECES = st.sampled_from([*SYNTAX.split(), " ", "\n", "\r", "\0", "\u2028", "\u202e", "\ud83d"])
TEXTS = st.lists(PIECES, max_size=6).map("".join)
TYPES = st.sampled_from(["tool", "condition", "hitl", "parallel", "start", "end", "agent", "chain", "", 'o"d'])


@st.composite
def topologies(draw: st.DrawFn, depth: int = 0) -> Topology:
    ids = draw(st.lists(TEXTS, min_size=0 if depth else 1, max_size=4))
    inner = st.none() if depth else st.none() | topologies(depth=1)
    shapes = [node(each, draw(TYPES), label=draw(TEXTS), inner=draw(inner)) for each in ids]
    terms = st.none() | TEXTS
    edges = [
        edge(
            draw(st.sampled_from(ids)),
            draw(st.sampled_from(ids) | TEXTS),
            label=draw(TEXTS),
            condition=draw(terms),
            max_iterations=draw(st.none() | st.integers(1, 3)),
            exit_condition=draw(terms),
        )
        for _ in range(draw(st.integers(0, 4)) if ids else 0)
    ]
    return Topology(nodes=tuple(shapes), edges=tuple(edges))


@given(topologies(), TEXTS)
def test_any_chain_is_a_flowchart_of_known_lines(topology: Topology, name: str) -> None:
    lines = to_mermaid(topology, name).split("\n")
    if name:
        assert lines[0] == lines[2] == "---"
        assert isinstance(json.loads(lines[1].removeprefix("title: ")), str)
        del lines[:3]

    assert lines[0] == "flowchart TD"
    assert [line for line in lines[1:] if not _LINE.fullmatch(line)] == []
    assert [line.split()[0] for line in lines].count("subgraph") == lines.count("    end")
    assert len([line for line in lines if re.match(r"    n[\d_]+ -", line)]) == len(topology.edges)


# --- a terminal ------------------------------------------------------------------------------------------


def test_a_drawing() -> None:
    status = {
        "begin": "completed",
        "load": "completed",
        "check": "failed",
        "review": "paused",
        "review/ask": "suspended",
    }

    assert (
        draw(REFUND, {**status, "pay": "queued"})
        == """
begin [start] ✓ completed
  └─→ load
load "Load the order" [tool] ✓ completed
  └─→ check
check [condition] ✗ failed
  ├─ large → review
  └─ small → pay
review [chain] ⏸ paused
  │ ask [hitl] ⏸ suspended
  │   └─→ note
  │ note [transformer]
  │   └─ max 2 ↺ ask
  ├─ if approved and amount > 100 → pay
  ├─ else → end
  └─ max 3 ↺ review
pay [agent] queued
  ├─→ both
  └─ max 5, until paid ↺ pay
both [parallel]
  └─→ gone
end [end]
gone [missing]
""".strip()
    )


def test_a_drawing_of_nothing_is_empty() -> None:
    assert draw(Topology(nodes=(), edges=())) == ""


def test_nodes_stand_before_those_they_lead_to() -> None:
    topology = Topology(nodes=tuple(map(node, "dcba")), edges=(edge("a", "b"), edge("b", "c"), edge("c", "d")))

    assert re.findall(r"^(\w) \[", draw(topology), re.MULTILINE) == ["a", "b", "c", "d"]


def test_a_chain_that_cannot_run_is_drawn_too() -> None:
    topology = Topology(nodes=(node("a"), node("b"), node("a")), edges=(edge("a", "b"), edge("b", "a"), edge("x", "a")))

    assert draw(topology).splitlines() == [
        *["a [tool]", "x [missing]", "  └─→ a", "a [tool]", "  └─→ b", "b [tool]", "  └─→ a"],
    ]


def test_a_long_straight_line_shows_its_ends() -> None:
    assert (
        draw(line_of(1000))
        == """
n0 [tool]
  └─→ n1
n1 [tool]
  └─→ n2
  … 996 more, each leading to the next
n998 [tool]
  └─→ n999
n999 [tool]
""".strip()
    )


@pytest.mark.parametrize(("count", "is_short"), [(3, True), (8, True), (9, False)])
def test_a_short_line_shows_every_node(count: int, is_short: bool) -> None:
    assert ("…" not in draw(line_of(count))) is is_short


def test_what_differs_in_a_long_line_is_never_hidden() -> None:
    status = {f"n{number}": "completed" for number in range(400)} | {"n400": "failed"}
    drawn = draw(line_of(1000), status)

    assert "  … 396 more, each leading to the next, all completed\n" in drawn
    assert "\nn400 [tool] ✗ failed\n  └─→ n401\n" in drawn
    assert "  … 595 more, each leading to the next\n" in drawn


@pytest.mark.parametrize(
    "changed",
    [
        edge("n500", "n501", condition="m > 5"),
        edge("n500", "n501", label="five hundred"),
        edge("n500", "n501", max_iterations=5),
        edge("n500", "n700"),
    ],
)
def test_an_edge_that_says_something_is_never_hidden(changed: EdgeShape) -> None:
    line = line_of(1000)
    edges = tuple(changed if each.source == "n500" else each for each in line.edges)
    drawn = draw(Topology(nodes=line.nodes, edges=edges))

    assert "\nn500 [tool]\n  └─" in drawn
    assert len(drawn.splitlines()) < 40


def test_a_node_that_is_also_reached_from_elsewhere_is_never_hidden() -> None:
    line = line_of(100)
    drawn = draw(Topology(nodes=(node("x"), *line.nodes), edges=(*line.edges, edge("x", "n50"))))

    assert drawn.startswith("x [tool]\n  └─→ n50\n")
    assert "\nn50 [tool]\n  └─→ n51\n" in drawn


def test_a_nested_chain_in_a_long_line_is_never_hidden() -> None:
    line = line_of(100)
    shapes = [node(each.id, inner=REVIEW) if each.id == "n50" else each for each in line.nodes]

    assert "\n  │ ask [hitl]\n" in draw(Topology(nodes=tuple(shapes), edges=line.edges))


def test_a_status_is_found_by_id_and_by_key() -> None:
    inner = Topology(nodes=(node("b"),), edges=())
    topology = Topology(nodes=(node("a b"), node("a", inner=inner), node("a/b")), edges=())

    assert draw(topology, {"a b": "x"}).splitlines()[0] == "a b [tool] x"
    assert "b [tool] x" not in draw(topology, {"b": "x"})
    drawn = draw(topology, {node_key("b", node_key("a")): "inner", node_key("a/b"): "outer"})
    assert drawn.splitlines() == ["a b [tool]", "a [tool]", "  │ b [tool] inner", "a/b [tool] outer"]


def test_long_texts_are_cut() -> None:
    topology = Topology(nodes=(node("x" * 500, "t" * 500, label="l" * 500),), edges=())

    assert draw(topology) == f'{"x" * 119}… "{"l" * 119}…" [{"t" * 119}…]'


@given(topologies(), st.dictionaries(TEXTS, TEXTS, max_size=3))
def test_any_chain_is_drawn_in_lines_of_plain_text(topology: Topology, status: dict[str, str]) -> None:
    drawn = draw(topology, status)

    assert draw(topology, status) == drawn
    assert all(line == line.rstrip() for line in drawn.split("\n"))
    # Nothing that a terminal would take for a command, nor half a character.
    assert {unicodedata.category(character) for character in drawn} & {"Cc", "Cf", "Cs", "Zl", "Zp"} <= (
        {"Cc"} if "\n" in drawn else set()
    )
    assert drawn.count("→") + drawn.count("↺") >= len(topology.edges)
    assert len(drawn.split("\n")) >= len(topology.nodes)
