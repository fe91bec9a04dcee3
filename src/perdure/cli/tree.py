"""A run's journal as a tree: operations below the operation whose workflow or body called them; and what has become of
a chain's nodes. Pure.

Decides what belongs below what from paths alone (see `core.keys`); shows values as they were recorded.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from perdure.cli.values import decoded, moment
from perdure.core import codec, keys, topology
from perdure.core.fold import Journal, Operation
from perdure.core.records import InterruptRow, Kind, OutcomeKind
from perdure.core.topology import Topology
from perdure.errors import PerdureError

_TASK = re.compile(r"(?:^|/)~\d+$")


@dataclass(slots=True, kw_only=True)
class Node:
    """One operation, what was asked in it, and what was called in it."""

    operation: Operation
    questions: list[InterruptRow]
    children: list[Node] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        """The node as JSON."""
        op = self.operation
        return {
            "key": op.key,
            "kind": op.kind,
            "name": op.name,
            "status": status_of(op),
            "recovery": op.recovery,
            "attempt": op.attempt,
            "outcome": op.outcome,
            "arguments": decoded(op.arguments),
            "value": decoded(op.data) if op.outcome == OutcomeKind.VALUE else None,
            "error": error_of(op),
            "questions": [row.interrupt_id for row in self.questions],
            "started_at": moment(op.started_at or None),
            "ended_at": moment(op.ended_at),
            "operations": [child.document() for child in self.children],
        }


def build(journal: Journal) -> list[Node]:
    """The operations that workflow code itself called in the order they began, with all below them."""
    nodes = {
        key: Node(operation=op, questions=list(journal.interrupts.get((op.path, op.index), {}).values()))
        for key, op in journal.operations.items()
    }
    top: list[Node] = []
    in_order = sorted(nodes.values(), key=lambda node: node.operation.started_seq)
    # An idempotency key's own record belongs to the first call with that key.
    calls = {(op.name, op.digest): nodes[op.key] for node in reversed(in_order) if _is_call(op := node.operation)}
    for node in in_order:
        op = node.operation
        owner = nodes.get(owner_key(op.path, nodes)) if _is_call(op) else calls.get((op.name, op.digest))
        (top if owner is None else owner.children).append(node)
    return top


def owner_key(path: str, known: Container[str]) -> str:
    """The key of the operation that a path lies in; "" for the run's own function, its tasks, and a chain's nodes."""
    while match := _TASK.search(path):
        path = path[: match.start()]
    path = path.removesuffix("!")
    # The last segment of a node's path, and of a named question's, is the name of its own.
    return path if path in known else path.rpartition("/")[0]


def _is_call(op: Operation) -> bool:
    return not op.path.startswith("@")


def status_of(op: Operation) -> str:
    """The operation's state in one word; of a completed one its outcome says more."""
    return str(op.outcome) if op.is_completed and op.outcome != OutcomeKind.VALUE else str(op.phase)


def error_of(op: Operation) -> dict[str, Any] | None:
    """Type and message of the error the operation ended with, or of its last failed attempt."""
    text = op.data if op.outcome == OutcomeKind.ERROR else op.error
    found = decoded(text)
    if isinstance(found, dict) and "type" in found:
        return {"type": found["type"], "message": found.get("message", "")}
    return None if found is None else {"type": "unknown", "message": str(found)}


def question_document(row: InterruptRow) -> dict[str, Any]:
    """A question with its answer: what was asked, who answered what and when."""
    answer = decoded(row.answer)
    return {
        "interrupt_id": row.interrupt_id,
        "operation": keys.operation_key(row.path, row.index),
        "status": row.status,
        "reason": decoded(row.reason),
        "context": decoded(row.context),
        "asked_at": moment(row.created_at),
        "answer": answer,
        "answered_by": row.answered_by,
        "answered_at": moment(row.answered_at),
        "delivered_at": moment(row.delivered_at),
    }


# --- a chain ----------------------------------------------------------------------------------------------

_OPEN = frozenset({"started", "retrying"})


def shape_of(journal: Journal) -> Topology | None:
    """The chain's shape as the run recorded it; None if there is none, or none that can be read."""
    op = journal.operations.get(keys.operation_key(keys.TOPOLOGY, 0))
    try:
        return None if op is None else topology.from_document(codec.decode(op.data or "null"))
    except PerdureError:
        return None


def node_statuses(journal: Journal, shape: Topology, run_status: str) -> dict[str, str]:
    """A word for each node that has been begun, by `topology.node_key`: what became of its last visit. One in which
    something waits for a person is `suspended`. In a run that has completed, the others are `skipped`."""
    found: dict[str, str] = {}
    for op in sorted(journal.operations.values(), key=lambda op: op.started_seq):
        if op.kind == Kind.NODE and "!" not in op.path:
            status = status_of(op)
            found[_node_key(op.path)] = "failed" if status == OutcomeKind.ERROR else status
    for key in [key for key, word in found.items() if word == "suspended"]:
        for outer in _outer_keys(key):
            if found.get(outer) in _OPEN:
                found[outer] = "suspended"
    if run_status == "completed":
        found = {**dict.fromkeys(_node_keys(shape, ""), "skipped"), **found}
    return found


def _node_key(path: str) -> str:
    key = ""
    for name in path.split("/")[::2]:
        key = topology.node_key(unquote(name), key)
    return key


def _outer_keys(key: str) -> Iterator[str]:
    while "/" in key:
        key = key.rpartition("/")[0]
        yield key


def _node_keys(shape: Topology, outer: str) -> Iterator[str]:
    for node in shape.nodes:
        key = topology.node_key(node.id, outer)
        yield key
        if node.inner is not None:
            yield from _node_keys(node.inner, key)


def shape_document(shape: Topology, status: dict[str, str], outer: str = "") -> dict[str, Any]:
    """The shape as JSON, each node with what became of it."""
    keys_ = {node.id: topology.node_key(node.id, outer) for node in shape.nodes}
    return {
        "nodes": [
            {
                "id": node.id,
                "type": node.type,
                "label": node.label or None,
                "status": status.get(keys_[node.id]),
                "inner": None if node.inner is None else shape_document(node.inner, status, keys_[node.id]),
            }
            for node in shape.nodes
        ],
        "edges": [
            {
                "source": edge.source,
                "target": edge.target,
                "label": edge.label or None,
                "condition": edge.condition,
                "max_iterations": edge.max_iterations,
                "exit_condition": edge.exit_condition,
            }
            for edge in shape.edges
        ],
    }
