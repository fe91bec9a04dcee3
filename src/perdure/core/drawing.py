"""Pictures of a chain as text: Mermaid for documents, lines for a terminal.

Decides how nodes, edges and their terms are shown. Shows any topology, also one that cannot run (an edge to a node that
does not exist leads to one marked `missing`), and any text in it: nothing in a picture is taken for its syntax.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence

from perdure.core import digraph
from perdure.core.expression import shorten
from perdure.core.topology import EdgeShape, NodeShape, Topology, node_key

_MISSING = "missing"
_MAX_LABEL_CHARS = 120


def _with_missing(topology: Topology) -> Topology:
    """The topology and, behind its nodes, those that edges name and that are not there."""
    known = {node.id for node in topology.nodes}
    ends = (end for edge in topology.edges for end in (edge.source, edge.target))
    missing = tuple(NodeShape(id=end, type=_MISSING) for end in dict.fromkeys(ends) if end not in known)
    return Topology(nodes=topology.nodes + missing, edges=topology.edges)


def _terms(edge: EdgeShape, *, is_else: bool) -> str:
    """When the edge is taken, in words; "" if it always is."""
    terms = [edge.label] if edge.label else []
    if edge.condition is not None:
        terms.append(f"if {edge.condition}")
    elif is_else and not terms:
        terms.append("else")
    if edge.max_iterations is not None:
        terms.append(f"max {edge.max_iterations}")
    if edge.exit_condition is not None:
        terms.append(f"until {edge.exit_condition}")
    return ", ".join(terms)


def _outgoing(topology: Topology) -> list[list[tuple[EdgeShape, int]]]:
    """For each node its edges, with the number of the node they lead to."""
    numbers = topology.numbers
    outgoing: list[list[tuple[EdgeShape, int]]] = [[] for _ in topology.nodes]
    for edge in topology.edges:
        outgoing[numbers[edge.source]].append((edge, numbers[edge.target]))
    return outgoing


def _has_else(edges: Sequence[tuple[EdgeShape, int]]) -> bool:
    """Whether an edge without a condition is what is left when no condition holds."""
    return any(edge.condition is not None for edge, _ in edges if not edge.is_cycle)


# --- Mermaid ---------------------------------------------------------------------------------------------

# Around a quoted label.
_SHAPES = {
    "condition": ("{", "}"),
    "hitl": ("{{", "}}"),
    "parallel": ("[[", "]]"),
    "start": ("([", "])"),
    "end": ("([", "])"),
    "agent": ("(", ")"),
    _MISSING: (">", "]"),
}
_RECTANGLE = ("[", "]")
# Types that the shape alone does not tell, or not surely.
_SILENT_TYPES = frozenset({"condition", "start", "end"})


def to_mermaid(topology: Topology, name: str = "") -> str:
    """A Mermaid flowchart with the name as its title; nested chains are subgraphs, cycle edges are dotted."""
    title = ["---", f"title: {json.dumps(_printable(name))}", "---"] if name else []
    return "\n".join([*title, "flowchart TD", *_mermaid_lines(_with_missing(topology), "n", "    ")])


def _mermaid_lines(topology: Topology, prefix: str, indent: str) -> Iterator[str]:
    # Ids of our own, since one of the chain's may be a word of Mermaid's (`end`), or no word at all.
    ids = [f"{prefix}{number}" for number in range(len(topology.nodes))]
    for mermaid_id, node in zip(ids, topology.nodes, strict=True):
        yield from _mermaid_node(mermaid_id, node, indent)
    for number, edges in enumerate(_outgoing(topology)):
        is_else = _has_else(edges)
        for edge, target in edges:
            arrow = "-.->" if edge.is_cycle else "-->"
            terms = _escaped(_terms(edge, is_else=is_else and not edge.is_cycle))
            source_id, target_id = _arrow_ends(topology.nodes[number], number == target, ids[number], ids[target])
            yield (
                f'{indent}{source_id} {arrow}|"{terms}"| {target_id}'
                if terms
                else (f"{indent}{source_id} {arrow} {target_id}")
            )


def _arrow_ends(node: NodeShape, is_loop: bool, source_id: str, target_id: str) -> tuple[str, str]:
    """Where an arrow is tied. Mermaid cannot draw one from a subgraph to itself: that one goes from last to first."""
    if not is_loop or not _is_nested(node):
        return source_id, target_id
    assert node.inner is not None
    last = len(_with_missing(node.inner).nodes) - 1
    return f"{source_id}_{last}", f"{target_id}_0"


def _is_nested(node: NodeShape) -> bool:
    return node.inner is not None and bool(node.inner.nodes)


def _mermaid_node(mermaid_id: str, node: NodeShape, indent: str) -> Iterator[str]:
    text = _escaped(node.label or node.id) or " "
    if node.inner is not None and _is_nested(node):
        yield f'{indent}subgraph {mermaid_id}["{text}"]'
        yield from _mermaid_lines(_with_missing(node.inner), f"{mermaid_id}_", indent + "    ")
        yield f"{indent}end"
        return
    opening, closing = _SHAPES.get(node.type, _RECTANGLE)
    kind = "" if node.type in _SILENT_TYPES or not node.type else f"<br/>{_escaped(node.type)}"
    yield f'{indent}{mermaid_id}{opening}"{text}{kind}"{closing}'


# What is not among these is written as its number: it may be syntax of Mermaid, of HTML, or of Markdown. So are a colon
# (behind the word `style` Mermaid drops a character) and, where Markdown would see emphasis or a list, `_ - + .` too.
_UNSAFE = re.compile(r"[^\w ,=/?!'+.-]|(?<![^\W_])_|_(?![^\W_])|^[-+](?= |$)|(?:(?<=^\d)|(?<=^\d\d))\.(?= |$)")


def _escaped(text: str) -> str:
    """The text for between quotes in Mermaid."""
    lines = shorten(text.strip(), _MAX_LABEL_CHARS).splitlines()
    return "<br/>".join(_UNSAFE.sub(lambda found: f"#{ord(found[0])};", _printable(line).strip()) for line in lines)


_BLANKED = frozenset({"Cc", "Cf", "Co", "Cn", "Zl", "Zp"})
_JOINERS = "\u200c\u200d"  # inside emoji and words


def _printable(text: str) -> str:
    """One line of nothing but text: what controls a terminal or the direction of writing is a blank, half a character
    the replacement character."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_shown(character) for character in text)


def _shown(character: str) -> str:
    if character in _JOINERS:
        return character
    category = unicodedata.category(character)
    if category == "Cs":
        return "\ufffd"
    return " " if category in _BLANKED else character


# --- a terminal ------------------------------------------------------------------------------------------

_MARKS = {
    "completed": "✓",
    "failed": "✗",
    "cancelled": "✗",
    "running": "▶",
    "started": "▶",
    "suspended": "⏸",
    "paused": "⏸",
    "waiting": "⏸",
    "interrupted": "⏸",
    "skipped": "–",
}
# A straight line of more nodes is shown as its first two and last two.
_MAX_LINE_NODES = 8
_ENDS_SHOWN = 2


def draw(topology: Topology, status: Mapping[str, str] | None = None) -> str:
    """A drawing in lines of text: each node, before those it leads to, and below it its edges.

    `status` has a word for each node that has one to be shown, by id; for nodes of nested chains (and for ids that are
    to be unambiguous beside those) by `topology.node_key`. In a long straight line of nodes with one status, only the
    ends are shown. No line ends in blanks.
    """
    return "\n".join(line.rstrip() for line in _Drawing(topology, status or {}, "").lines())


class _Drawing:
    """The lines of one chain. `outer` is the key of the node that it is in."""

    def __init__(self, topology: Topology, status: Mapping[str, str], outer: str) -> None:
        self.topology = _with_missing(topology)
        self.status = status
        self.outer = outer
        self.outgoing = _outgoing(self.topology)
        forward = digraph.successors_of(len(self.topology.nodes), self.topology.pairs(with_cycle_edges=False))
        self.order = digraph.order(forward)
        self.incoming = [0] * len(self.topology.nodes)
        for _, target in self.topology.pairs():
            self.incoming[target] += 1

    def lines(self) -> Iterator[str]:
        for stretch in self._stretches():
            hidden = len(stretch) - 2 * _ENDS_SHOWN if len(stretch) > _MAX_LINE_NODES else 0
            if not hidden:
                for number in stretch:
                    yield from self._node(number)
                continue
            for number in stretch[:_ENDS_SHOWN]:
                yield from self._node(number)
            word = self._status(stretch[0])
            yield f"  … {hidden} more, each leading to the next" + (f", all {word}" if word else "")
            for number in stretch[-_ENDS_SHOWN:]:
                yield from self._node(number)

    def _stretches(self) -> Iterator[list[int]]:
        """The nodes in order, those together of which each leads to the next and to nothing else."""
        stretch: list[int] = []
        for number in self.order:
            if stretch and not self._continues(stretch[-1], number):
                yield stretch
                stretch = []
            stretch.append(number)
        if stretch:
            yield stretch

    def _continues(self, number: int, following: int) -> bool:
        edges = self.outgoing[number]
        return (
            len(edges) == 1
            and edges[0][1] == following
            and not _terms(edges[0][0], is_else=False)
            and self.incoming[following] == 1
            and self.topology.nodes[number].inner is None
            and self._status(number) == self._status(following)
        )

    def _node(self, number: int) -> Iterator[str]:
        node, word = self.topology.nodes[number], self._status(number)
        label = f' "{_cut(node.label)}"' if node.label and node.label != node.id else ""
        mark = f"{_MARKS[word]} " if word in _MARKS else ""
        yield f"{_cut(node.id)}{label} [{_cut(node.type)}]" + (f" {mark}{_cut(word)}" if word else "")
        if node.inner is not None:
            for line in _Drawing(node.inner, self.status, node_key(node.id, self.outer)).lines():
                yield f"  │ {line}"
        edges = self.outgoing[number]
        is_else = _has_else(edges)
        for place, (edge, target) in enumerate(edges):
            corner = "└─" if place == len(edges) - 1 else "├─"
            terms = _cut(_terms(edge, is_else=is_else and not edge.is_cycle))
            arrow = "↺" if edge.is_cycle else "→"
            yield f"  {corner}{f' {terms} ' if terms else ''}{arrow} {_cut(self.topology.nodes[target].id)}"

    def _status(self, number: int) -> str:
        node_id = self.topology.nodes[number].id
        word = self.status.get(node_key(node_id, self.outer))
        if word is None and not self.outer:
            word = self.status.get(node_id)
        return word or ""


def _cut(text: str) -> str:
    return shorten(_printable(text), _MAX_LABEL_CHARS)
