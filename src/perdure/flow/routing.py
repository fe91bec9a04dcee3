"""Where a node leads: which of its edges are taken. Decides by the state after the node; what was decided is recorded,
so that nobody is sent another way later, whatever conditions say then."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from perdure.core import codec, lineage
from perdure.core.condition import Condition
from perdure.core.lineage import Visit
from perdure.core.records import Kind, Recovery
from perdure.engine.calls import Call, CallSpec
from perdure.engine.drive import Drive
from perdure.errors import ChainCycleError, ChainRoutingError, PerdureError
from perdure.flow.nodes import Edge, NodeType
from perdure.flow.plan import Plan, PlannedNode

if TYPE_CHECKING:
    from perdure.flow.front import Front


def _no_body() -> None:
    raise PerdureError("a route has no body")


_ROUTE = CallSpec(kind=Kind.ROUTE, name="route", function=_no_body, recovery=Recovery.SAFE)


class Routing:
    """The ways taken in one run of a chain."""

    def __init__(self, plan: Plan, drive: Drive) -> None:
        self._plan = plan
        self._drive = drive
        self._counts: collections.Counter[tuple[str, str]] = collections.Counter()
        """How often each cycle edge was come to, over the whole run."""

    def targets(self, node: PlannedNode, visit: Visit, value: Any, front: Front) -> list[str]:
        """The nodes a visit leads to. Raises `ChainCycleError`, `ChainRoutingError`, or what a condition raises."""
        edges = self._plan.leaving[node.given.id]
        if not edges:
            return []
        if all(edge.condition is None and not edge.is_cycle for edge in edges) and node.given.type not in _DECIDING:
            return list(dict.fromkeys(edge.target for edge in edges))
        return self._recorded(node, edges, visit, value, front)

    def _recorded(self, node: PlannedNode, edges: Sequence[Edge], visit: Visit, value: Any, front: Front) -> list[str]:
        drive = self._drive
        call = Call(_ROUTE, visit.key, 0)
        drive.calling.register(call)
        drive.open.pop(call.key, None)
        for edge in edges:
            if edge.is_cycle:
                self._counts[edge.source, edge.target] += 1
        outcome = drive.calling.completed_at_once(
            call, lambda: codec.encode(self._decide(node, edges, visit, value, front))
        )
        return drive.calling.reveal(call, outcome)["to"]

    def _decide(
        self, node: PlannedNode, edges: Sequence[Edge], visit: Visit, value: Any, front: Front
    ) -> dict[str, Any]:
        scope = {"state": visit.after, "input": front.input, "node_results": front.results}
        for edge in edges:
            if edge.is_cycle and self._goes_round(edge, scope):
                counts = {f"{edge.source} -> {edge.target}": self._counts[edge.source, edge.target]}
                return {"to": [edge.target], "counts": counts}
        onward = [edge for edge in edges if not edge.is_cycle]
        taken = self._taken(node, onward, value, scope)
        if not taken and onward and self._plan.is_strict and node.given.type is not NodeType.HITL:
            raise ChainRoutingError(_no_way(node, onward, value))
        return {"to": list(dict.fromkeys(edge.target for edge in taken))}

    def _goes_round(self, edge: Edge, scope: Mapping[str, Any]) -> bool:
        if edge.condition is not None and not _holds(edge.condition, scope):
            return False
        if edge.exit_condition is not None and _holds(edge.exit_condition, scope):
            return False
        most = edge.max_iterations or 0
        if self._counts[edge.source, edge.target] >= most:
            why = "it has no exit condition" if edge.exit_condition is None else "its exit condition is still false"
            raise ChainCycleError(
                f"the cycle {edge.source!r} -> {edge.target!r} has run {most} times, its max_iterations, and {why}"
            )
        return True

    def _taken(self, node: PlannedNode, edges: Sequence[Edge], value: Any, scope: Mapping[str, Any]) -> list[Edge]:
        """Of several edges with conditions the first one that holds; else the one without. Without any: all."""
        if node.given.type is NodeType.CONDITION:
            return _labelled(edges, _label(value))
        conditional = [edge for edge in edges if edge.condition is not None]
        unconditional = [edge for edge in edges if edge.condition is None]
        for edge in conditional:
            if _holds(edge.condition, scope):
                return [edge]
        if node.given.type is NodeType.HITL and not value["approved"]:
            return []  # nobody goes on without a yes, unless an edge says so
        return unconditional[:1] if conditional else unconditional


_DECIDING = frozenset({NodeType.CONDITION, NodeType.HITL})


def _holds(condition: Any, scope: Mapping[str, Any]) -> bool:
    if isinstance(condition, Condition):
        return condition.holds(scope)
    return bool(condition(lineage.own(dict(scope["state"]))))  # its own: what it does to it nobody sees


def _label(value: Any) -> str:
    """What a condition node has decided: its `matched`, or what its function returned (a bool: `true` or `false`)."""
    if isinstance(value, Mapping) and "matched" in value:
        value = value["matched"]
    return str(value).lower() if isinstance(value, bool) else str(value)


def _labelled(edges: Sequence[Edge], label: str) -> list[Edge]:
    for wanted in (label, "default", ""):
        found = [edge for edge in edges if edge.label == wanted]
        if found:
            return found
    return []


def _no_way(node: PlannedNode, edges: Sequence[Edge], value: Any) -> str:
    if node.given.type is NodeType.CONDITION:
        labels = ", ".join(repr(edge.label) for edge in edges)
        return f"node {node.given.id!r} has decided {_label(value)!r}, and no edge has that label (there are {labels})"
    ways = ", ".join(repr(edge.target) for edge in edges)
    return f"no condition of the edges from {node.given.id!r} (to {ways}) holds, and there is no edge without one"
