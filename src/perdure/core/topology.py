"""The shape of a chain: nodes and edges as frozen values, what is wrong with one, and what changed between two.

Decides which shapes can run, which nodes begin, how a shape is stored with a run, and whether a changed chain may go on
with a run that an earlier one began. Knows nothing of how nodes run. An edge with `max_iterations` is a *cycle edge*:
without those edges a chain must be acyclic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from perdure.core import digraph
from perdure.core.condition import compile_condition
from perdure.core.digraph import Reach
from perdure.errors import ChainTemplateError, DurableRecoveryError

FORMAT = 1
"""The format that `document` writes; it is stored with every run of a chain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeShape:
    """A node. `inputs` are templates by parameter name (None: nothing to say); `inner` is a nested chain's shape.

    `type` is a word such as `tool`, `condition` or `start`; `label` is for people, "" being the id.
    """

    id: str
    type: str
    inputs: Mapping[str, Any] | None = None
    inner: Topology | None = None
    output_key: str | None = None
    label: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeShape:
    """An edge. Conditions are texts; that of a callable is its name in angle brackets, `<is_large>`."""

    source: str
    target: str
    label: str = ""
    condition: str | None = None
    max_iterations: int | None = None
    exit_condition: str | None = None

    @property
    def is_cycle(self) -> bool:
        return self.max_iterations is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Nodes and edges, in the order of their declaration."""

    nodes: tuple[NodeShape, ...]
    edges: tuple[EdgeShape, ...]

    @property
    def numbers(self) -> dict[str, int]:
        """Node id -> its place in `nodes` (the first, if it is there twice)."""
        return {node.id: number for number, node in reversed(list(enumerate(self.nodes)))}

    def pairs(self, *, with_cycle_edges: bool = True) -> list[tuple[int, int]]:
        """The edges between nodes that exist, as places in `nodes`."""
        numbers = self.numbers
        return [
            (numbers[edge.source], numbers[edge.target])
            for edge in self.edges
            if edge.source in numbers and edge.target in numbers and (with_cycle_edges or not edge.is_cycle)
        ]


def starts(topology: Topology) -> tuple[str, ...]:
    """Where a run begins, in order of declaration: nodes of type `start`, and nodes to which nothing leads.

    In a chain without a node of type `start`, cycle edges do not count: its first node may be one that a cycle leads
    back to.
    """
    has_start = any(node.type == "start" for node in topology.nodes)
    targets = {target for _, target in topology.pairs(with_cycle_edges=has_start)}
    return tuple(node.id for number, node in enumerate(topology.nodes) if node.type == "start" or number not in targets)


def reach(topology: Topology) -> Reach:
    """Which node leads to which, cycle edges included. Cheap to make; computed at the first question."""
    return Reach([node.id for node in topology.nodes], topology.pairs())


# --- what is wrong ---------------------------------------------------------------------------------------


def problems(topology: Topology) -> list[str]:
    """Everything that keeps the chain from running, a sentence each, naming nodes and edges; [] if it can run.

    Those of nested chains are included, behind the name of their node.
    """
    return [
        *_node_problems(topology),
        *_edge_problems(topology),
        *_cycle_problems(topology),
        *_branch_problems(topology),
        *_condition_problems(topology),
        *_inner_problems(topology),
    ]


def _node_problems(topology: Topology) -> Iterator[str]:
    if not topology.nodes:
        yield "the chain has no nodes"
    for node_id, count in Counter(node.id for node in topology.nodes).items():
        if count > 1:
            yield f"node {node_id!r} is there {count} times: ids are unique in a chain"


def _edge_problems(topology: Topology) -> Iterator[str]:
    known = {node.id for node in topology.nodes}
    for edge in topology.edges:
        for end, node_id in (("from", edge.source), ("to", edge.target)):
            if node_id not in known:
                yield f"edge {_named(edge)} leads {end} {node_id!r}, and there is no such node"
        if edge.max_iterations is not None and edge.max_iterations < 1:
            yield f"edge {_named(edge)} has max_iterations {edge.max_iterations}: it must be at least 1"
        if edge.exit_condition is not None and not edge.is_cycle:
            yield f"edge {_named(edge)} has an exit_condition but no max_iterations: only cycles have an exit"


def _cycle_problems(topology: Topology) -> Iterator[str]:
    forward = digraph.successors_of(len(topology.nodes), topology.pairs(with_cycle_edges=False))
    unbounded = [part for part in digraph.components(forward) if digraph.is_cyclic(forward, part)]
    for component in sorted(unbounded, key=min):
        cycle = digraph.shortest_cycle(forward, min(component), component)
        way = " -> ".join(topology.nodes[number].id for number in cycle)
        yield f"the cycle {way} has no bound: give one of its edges max_iterations"
    every = digraph.successors_of(len(topology.nodes), topology.pairs())
    numbers = topology.numbers
    # What cannot be reached because its way in is an unbounded cycle has been named by that.
    begun = [numbers[node_id] for node_id in starts(topology)] + [number for part in unbounded for number in part]
    reached = digraph.reachable(every, begun)
    for number, node in enumerate(topology.nodes):
        if number not in reached and numbers[node.id] == number:
            yield f"node {node.id!r} is never reached: no path leads to it from a start"
    back = [edge for edge in topology.edges if edge.is_cycle and edge.source in numbers and edge.target in numbers]
    if not back:
        return
    component_of = {number: at for at, part in enumerate(digraph.components(every)) for number in part}
    for edge in back:
        if component_of[numbers[edge.source]] != component_of[numbers[edge.target]]:
            yield f"edge {_named(edge)} has max_iterations but closes no cycle: nothing leads from {edge.target!r} back"


def _branch_problems(topology: Topology) -> Iterator[str]:
    outgoing = _outgoing(topology)
    for node in topology.nodes:
        edges = outgoing.get(node.id, [])
        if len(edges) < 2:
            continue
        if node.type == "condition":
            for label, count in Counter(edge.label for edge in edges).items():
                if count > 1:
                    yield f"{count} edges from condition {node.id!r} have the label {label!r}: labels tell them apart"
            continue
        for edge, count in Counter(edge for edge in edges if not _names_callable(edge)).items():
            if count > 1:
                yield f"edge {_named(edge)} is there {count} times"
        yield from _default_problems(node, [edge for edge in edges if not edge.is_cycle])


def _default_problems(node: NodeShape, edges: Sequence[EdgeShape]) -> Iterator[str]:
    defaults = [edge for edge in edges if edge.condition is None]
    if len(defaults) > 1 and len(defaults) < len(edges):
        targets = ", ".join(repr(edge.target) for edge in defaults)
        yield (
            f"node {node.id!r} has edges with conditions and {len(defaults)} without (to {targets}): "
            "at most one can be taken when no condition holds"
        )


def _names_callable(edge: EdgeShape) -> bool:
    """Whether two edges that look alike may differ: two functions can have one name, as all lambdas do."""
    return any(is_callable_name(text) for text in (edge.condition, edge.exit_condition))


def is_callable_name(condition: str | None) -> bool:
    """Whether the text stands for a callable: `<is_large>`. It is no condition that could be read, then."""
    return condition is not None and condition.startswith("<") and condition.endswith(">")


def _condition_problems(topology: Topology) -> Iterator[str]:
    for edge in topology.edges:
        for name, text in (("condition", edge.condition), ("exit_condition", edge.exit_condition)):
            if text is None or is_callable_name(text):
                continue
            try:
                compile_condition(text)
            except ChainTemplateError as error:
                yield f"edge {_named(edge)} has a malformed {name}: {error}"


def _inner_problems(topology: Topology) -> Iterator[str]:
    for node in topology.nodes:
        if node.inner is not None:
            yield from (f"in {node.id!r}: {problem}" for problem in problems(node.inner))


def _outgoing(topology: Topology) -> dict[str, list[EdgeShape]]:
    outgoing: dict[str, list[EdgeShape]] = {}
    for edge in topology.edges:
        outgoing.setdefault(edge.source, []).append(edge)
    return outgoing


def _named(edge: EdgeShape) -> str:
    return f"{edge.source!r} -> {edge.target!r}"


# --- storing ---------------------------------------------------------------------------------------------


def document(topology: Topology) -> list[Any]:
    """The shape as lists: `[1, nodes, edges]`. JSON can express it if it can the values in `inputs`.

    A node is `[id, type, inputs, inner, output_key, label]`, `inner` being `[nodes, edges]`; an edge is `[source,
    target, label, condition, max_iterations, exit_condition]`, its ends being places in the nodes (or ids of nodes that
    do not exist). What is default at the end of a list is left out, and None in its middle.
    """
    return [FORMAT, *_content(topology)]


def from_document(recorded: Any) -> Topology:
    """The shape that `document` was given. Raises `DurableRecoveryError` for another format, or what is none."""
    if not isinstance(recorded, list) or not recorded or type(recorded[0]) is not int:
        raise DurableRecoveryError("the recorded shape of the chain cannot be read")
    if recorded[0] != FORMAT:
        raise DurableRecoveryError(
            f"the shape of the chain was recorded in format {recorded[0]}, and this version of Perdure reads {FORMAT}"
        )
    try:
        return _topology(*recorded[1:])
    except (TypeError, ValueError, IndexError) as error:
        raise DurableRecoveryError(f"the recorded shape of the chain cannot be read: {error}") from error


def _content(topology: Topology) -> list[Any]:
    numbers = topology.numbers
    nodes = [
        _trimmed(
            node.id,
            node.type,
            None if node.inputs is None else dict(node.inputs),
            None if node.inner is None else _content(node.inner),
            node.output_key,
            node.label or None,
        )
        for node in topology.nodes
    ]
    edges = [
        _trimmed(
            numbers.get(edge.source, edge.source),
            numbers.get(edge.target, edge.target),
            edge.label or None,
            edge.condition,
            edge.max_iterations,
            edge.exit_condition,
        )
        for edge in topology.edges
    ]
    return [nodes, edges]


def _trimmed(*values: Any) -> list[Any]:
    kept = list(values)
    while kept[-1] is None:
        kept.pop()
    return kept


def _topology(nodes: list[list[Any]], edges: list[list[Any]]) -> Topology:
    shapes = tuple(_node(*fields) for fields in nodes)
    return Topology(nodes=shapes, edges=tuple(_edge(shapes, *fields) for fields in edges))


def _node(
    node_id: str,
    type_: str,
    inputs: dict[str, Any] | None = None,
    inner: list[Any] | None = None,
    output_key: str | None = None,
    label: str | None = None,
) -> NodeShape:
    nested = None if inner is None else _topology(*inner)
    return NodeShape(id=node_id, type=type_, inputs=inputs, inner=nested, output_key=output_key, label=label or "")


def _edge(
    nodes: Sequence[NodeShape],
    source: int | str,
    target: int | str,
    label: str | None = None,
    condition: str | None = None,
    max_iterations: int | None = None,
    exit_condition: str | None = None,
) -> EdgeShape:
    return EdgeShape(
        source=nodes[source].id if isinstance(source, int) else source,
        target=nodes[target].id if isinstance(target, int) else target,
        label=label or "",
        condition=condition,
        max_iterations=max_iterations,
        exit_condition=exit_condition,
    )


# --- what changed ----------------------------------------------------------------------------------------


def node_key(node_id: str, outer: str = "") -> str:
    """The name of a node in `begun`: its id, percent-encoded, behind those of the nodes whose chains it is in."""
    named = quote(node_id, safe="", errors="surrogatepass")
    return f"{outer}/{named}" if outer else named


def difference(recorded: Topology, current: Topology, begun: Mapping[str, bool]) -> str | None:
    """How the chain differs from the recorded one where the run has been already; None if it can go on.

    `begun` has the keys (`node_key`) of the nodes that were begun in the run, True for those that have completed. What
    a begun node is and what leads to it may not change, nor where a completed one leads (what its conditions say and
    how high a bound is may: the way taken is recorded). Everything else is ahead of the run and may: also a new cycle
    edge back to a begun node from one that has not completed. A sentence that names what was recorded and what is
    there now.
    """
    return next(_differences(recorded, current, begun, ""), None)


def _differences(recorded: Topology, current: Topology, begun: Mapping[str, bool], outer: str) -> Iterator[str]:
    if recorded == current:
        return
    now = {node.id: node for node in current.nodes}
    known = {node.id for node in recorded.nodes}
    been = [node for node in recorded.nodes if node_key(node.id, outer) in begun]
    sources_then, sources_now = _sources(recorded), _sources(current)
    outgoing_then, outgoing_now = _outgoing(recorded), _outgoing(current)
    # What leads to nodes is compared for all of them first: "a step was inserted" says more than "an edge is gone".
    for node in been:
        name = _placed(node.id, outer)
        if (there := now.get(node.id)) is None:
            yield f"node {name} was begun in this run, and is not in the chain any more"
            continue
        yield from _kind_differences(name, node, there)
        yield from _source_differences(name, sources_then.get(node.id, []), sources_now.get(node.id, []), known)
    for node in been:
        if begun[node_key(node.id, outer)]:
            then = outgoing_then.get(node.id, [])
            yield from _outgoing_differences(_placed(node.id, outer), then, outgoing_now.get(node.id, []))
    for node in been:
        there = now.get(node.id)
        if node.inner is not None and there is not None and there.inner is not None:
            yield from _differences(node.inner, there.inner, begun, node_key(node.id, outer))


def _placed(node_id: str, outer: str) -> str:
    return f"{node_id!r} in {outer}" if outer else repr(node_id)


def _sources(topology: Topology) -> dict[str, list[str]]:
    """What leads to each node. Not by cycle edges: nothing waits for them, and what leads on from their sources is
    compared when those have completed."""
    sources: dict[str, list[str]] = {}
    for edge in topology.edges:
        if not edge.is_cycle:
            sources.setdefault(edge.target, []).append(edge.source)
    return sources


def _kind_differences(name: str, then: NodeShape, now: NodeShape) -> Iterator[str]:
    if then.type != now.type:
        yield f"node {name} was recorded with the type {then.type!r}, and has {now.type!r} now"
    elif (then.inner is None) != (now.inner is None):
        was, is_ = ("with a nested chain", "none") if then.inner is not None else ("without a nested chain", "one")
        yield f"node {name} was recorded {was}, and has {is_} now"


def _source_differences(name: str, then: Sequence[str], now: Sequence[str], known: Iterable[str]) -> Iterator[str]:
    for source in now:
        if source not in then and source not in known:
            yield f"a step was inserted before {name}, which this run has begun: {source!r} leads to it now"
    for source in now:
        if source not in then:
            yield f"node {name} was begun in this run without an edge from {source!r}, and has one now"
    for source in then:
        if source not in now:
            yield f"node {name} was begun in this run with an edge from {source!r}, and has none now"


def _outgoing_differences(name: str, then: Sequence[EdgeShape], now: Sequence[EdgeShape]) -> Iterator[str]:
    gone, come = _without(then, now), _without(now, then)
    for edge in gone:
        if (other := next((each for each in come if each.target == edge.target), None)) is not None:
            was, is_ = _terms(edge, other), _terms(other, edge)
            yield f"node {name} has completed: its edge to {edge.target!r} was recorded with {was}, and has {is_} now"
        else:
            yield f"node {name} has completed: its edge to {edge.target!r} was recorded, and is gone now"
    for edge in come:
        yield f"node {name} has completed: an edge to {edge.target!r} was not recorded, and is there now"


def _without(edges: Sequence[EdgeShape], others: Sequence[EdgeShape]) -> list[EdgeShape]:
    """The edges that are not among the others, as far as a run that has passed them can tell."""
    left = Counter(map(_as_passed, others))
    found = []
    for edge in edges:
        if left[_as_passed(edge)] > 0:
            left[_as_passed(edge)] -= 1
        else:
            found.append(edge)
    return found


def _as_passed(edge: EdgeShape) -> tuple[str, str, bool, bool]:
    """Which way was taken is recorded, so what its condition says now, or how high its bound is, may be mended."""
    return (edge.target, edge.label, edge.condition is None, edge.is_cycle)


def _terms(edge: EdgeShape, other: EdgeShape) -> str:
    """What the edge has where the other one has something else."""
    terms = [
        f"{name} {getattr(edge, name)!r}"
        for name in ("label", "condition", "max_iterations", "exit_condition")
        if getattr(edge, name) != getattr(other, name)
    ]
    return ", ".join(terms)
