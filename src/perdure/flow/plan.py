"""A chain read once for running: its nodes with their calls, its edges by source, what gathers branches. Decides what
can run at all; the runs of a chain share one plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from perdure.core import codec, digraph, lineage, topology
from perdure.core.topology import EdgeShape, NodeShape, Topology
from perdure.engine.calls import CallSpec
from perdure.errors import ChainError
from perdure.flow.nodes import Edge, NodeGiven, NodeType, shown_condition
from perdure.flow.schemas import StateSchema

CHAIN_TYPE = "chain"
"""How a nested chain is shown; `add_node` knows it as an agent."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Branch:
    """One of the things that a parallel node runs: the call of a body, or a runner that is workflow code itself."""

    name: str
    spec: CallSpec
    runner: Any = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlannedNode:
    """A node as it is run. `rank` is its place in the order of declaration; `runner` is a nested chain or workflow,
    `branches` are a parallel node's (its only one, if it maps over a list)."""

    given: NodeGiven
    rank: int
    spec: CallSpec
    inputs: Mapping[str, Any]
    runner: Any = None
    branches: Sequence[Branch] = ()

    @property
    def is_composite(self) -> bool:
        """Whether its body is workflow code, with operations of its own."""
        return self.runner is not None or bool(self.branches)

    def contributes(self, value: Any) -> Mapping[str, Any]:
        """What its result says to the state: under `output_key`; a dict's own keys; anything else under its id."""
        if self.given.output_key is not None:
            return {self.given.output_key: value}
        if value is None or self.given.type in _SILENT:
            return {}
        if type(value) is dict and self.given.type is not NodeType.HITL and all(map(_is_key, value)):
            return value
        return {self.given.id: value}


_SILENT = frozenset({NodeType.START, NodeType.END, NodeType.CONDITION})
"""What they return leads the way and is seen in `node_results`; it is no part of the state."""


def _is_key(name: object) -> bool:
    return type(name) is str and not name.startswith("$")


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """A chain that can run."""

    name: str
    nodes: Mapping[str, PlannedNode]
    edges: Sequence[Edge]
    reducers: Mapping[str, lineage.Reducer]
    schema: StateSchema | None
    is_strict: bool
    topology: Topology
    leaving: Mapping[str, list[Edge]] = field(init=False)

    def __post_init__(self) -> None:
        leaving: dict[str, list[Edge]] = {node_id: [] for node_id in self.nodes}
        for edge in self.edges:
            leaving[edge.source].append(edge)
        object.__setattr__(self, "leaving", leaving)

    @cached_property
    def starts(self) -> tuple[str, ...]:
        """Where a run begins."""
        return topology.starts(self.topology)

    @cached_property
    def reach(self) -> digraph.Reach:
        """Which nodes may still lead to which."""
        return topology.reach(self.topology)

    @cached_property
    def gathering(self) -> frozenset[str]:
        """Nodes to which more than one visit may lead: joins, and what lies behind a cycle."""
        sources: dict[str, set[str]] = {}
        for edge in self.edges:
            sources.setdefault(edge.target, set()).add(edge.source)
        has_cycle = any(edge.is_cycle for edge in self.edges)  # asked once: a long line has as many edges as nodes
        return frozenset(
            target
            for target, found in sources.items()
            if len(found) > 1 or (has_cycle and any(self._is_behind_cycle(source, target) for source in found))
        )

    def _is_behind_cycle(self, source: str, target: str) -> bool:
        return self.reach.leads(source, source) and not self.reach.leads(target, source)

    @cached_property
    def recorded_topology(self) -> str:
        """The topology as it is stored with a run."""
        return codec.encode(topology.document(self.topology))


def shape_of(nodes: Sequence[PlannedNode], edges: Sequence[Edge]) -> Topology:
    """The topology of nodes and edges."""
    return Topology(
        nodes=tuple(
            NodeShape(
                id=node.given.id,
                type=CHAIN_TYPE if _is_chain(node.runner) else str(node.given.type),
                inputs=node.inputs or None,
                inner=node.runner.topology if _is_chain(node.runner) else None,
                output_key=node.given.output_key,
                label="" if node.given.label == node.given.id else node.given.label,
            )
            for node in nodes
        ),
        edges=tuple(
            EdgeShape(
                source=edge.source,
                target=edge.target,
                label=edge.label,
                condition=shown_condition(edge.condition),
                max_iterations=edge.max_iterations,
                exit_condition=shown_condition(edge.exit_condition),
            )
            for edge in edges
        ),
    )


def _is_chain(runner: Any) -> bool:
    return runner is not None and getattr(runner, "kind", None) == CHAIN_TYPE


def refuse(name: str, problems: Sequence[str]) -> None:
    """Raise if a chain cannot run, with everything that keeps it from that."""
    if problems:
        raise ChainError(f"chain {name!r} cannot run: " + "; ".join(problems))
