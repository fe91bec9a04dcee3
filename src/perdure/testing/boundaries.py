"""What the journals of chains say at each boundary: the state, the node's input, the question.

Compares it with what happened and with what the last process was told. Pure; called by `audit`.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator

from perdure.core import codec
from perdure.core.checkpoints import RUN_END, Checkpoint, checkpoints, decoded_state
from perdure.core.keys import operation_id
from perdure.testing.facts import Facts, Row, loaded, tokens_of, without_tokens
from perdure.testing.ledger import Line
from perdure.testing.programs import COMPOSED

_CHAIN = "chain"


def of(facts: Facts) -> Iterator[str]:
    """Every checkpoint of every chain, without tokens. Failed ones are left out: what fails once a process fails as
    often as there are processes."""
    for run in _chains(facts):
        for checkpoint in checkpoints(loaded(facts, run)):
            if checkpoint.status != "failed":
                yield _shown(checkpoint)


def _shown(checkpoint: Checkpoint) -> str:
    said = {
        "run": checkpoint.execution_id,
        "operation": checkpoint.operation,
        "node_id": checkpoint.node_id,
        "step_type": checkpoint.step_type,
        "status": checkpoint.status,
        "state": checkpoint.state,
        "node_input": checkpoint.node_input,
        "iteration": checkpoint.iteration,
        "interrupt_reason": checkpoint.interrupt_reason,
        "interrupt_context": checkpoint.interrupt_context,
    }
    return json.dumps(without_tokens(said))


def _chains(facts: Facts) -> list[Row]:
    return [run for run in facts.runs if run["kind"] == _CHAIN]


def violations(facts: Facts) -> Iterator[str]:
    """Everything that does not hold of states."""
    lines: dict[str, list[Line]] = defaultdict(list)
    for line in facts.lines:
        lines[line.operation_id].append(line)
    for run in _chains(facts):
        found = checkpoints(loaded(facts, run))
        yield from _inputs(found, lines)
        yield from _ends(found, facts, run)


def _inputs(found: list[Checkpoint], lines: dict[str, list[Line]]) -> Iterator[str]:
    """The input that a checkpoint shows is what the node consumed, before anything that it got inside."""
    for checkpoint in found:
        of_operation = lines.get(operation_id(checkpoint.execution_id, checkpoint.operation))
        if checkpoint.status != "completed" or not of_operation or "consumed" not in checkpoint.node_input:
            continue
        if of_operation[-1].label in COMPOSED:
            continue
        shown, consumed = _tokens(checkpoint.node_input["consumed"]), _tokens(of_operation[-1].consumed)
        if consumed[: len(shown)] != shown:
            yield f"node {checkpoint.operation} consumed {consumed}, its checkpoint shows {shown}"


def _ends(found: list[Checkpoint], facts: Facts, run: Row) -> Iterator[str]:
    """What the last process was told of the end is what the journal says."""
    outcome = facts.outcome.get(run["id"], {})
    if "completed" not in outcome:
        return
    end = found[-1]
    if end.step_type != RUN_END or _text(decoded_state(end)) != _text(outcome["state"]):
        yield f"run {run['id']} ends with the state {end.state}, the last process was told {outcome['state']}"
    outputs = {one.node_id: one.output for one in found if one.step_type == "node" and "/" not in one.path}
    for node_id, value in outcome["results"].items():
        recorded = codec.decode(outputs.get(node_id) or "null")
        if _text(recorded) != _text(value):
            yield f"node {node_id} of run {run['id']} is recorded with {recorded}, the last process was told {value}"


def _tokens(value: object) -> list[str]:
    return tokens_of(_text(value))


def _text(value: object) -> str:
    return json.dumps(value)
