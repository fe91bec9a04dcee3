"""A run's journal as a tree: operations below the operation whose workflow or body called them. Pure.

Decides what belongs below what from paths alone (see `core.keys`); shows values as they were recorded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from perdure.cli.values import decoded, moment
from perdure.core import keys
from perdure.core.fold import Journal, Operation
from perdure.core.records import InterruptRow, OutcomeKind

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
        owner = nodes.get(owner_key(op.path)) if _is_call(op) else calls.get((op.name, op.digest))
        (top if owner is None else owner.children).append(node)
    return top


def owner_key(path: str) -> str:
    """The key of the operation that a path lies in; "" for the run's own function and its tasks."""
    while match := _TASK.search(path):
        path = path[: match.start()]
    return path.removesuffix("!")


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
