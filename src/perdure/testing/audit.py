"""Compares what the journals say with what happened in the world, and with an undisturbed run of the same
program.

Pure but for reading the tables: `violations(facts, reference)` lists in sentences what does not hold, none
if all does.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from perdure.core import codec, ids
from perdure.core.keys import operation_id, operation_key
from perdure.core.records import RecordType
from perdure.core.states import is_terminal
from perdure.testing import boundaries
from perdure.testing.facts import Facts, Row, tokens_of, without_tokens
from perdure.testing.faults import entry_name
from perdure.testing.ledger import Line
from perdure.testing.programs import COMPOSED, INPUT, REFUSED


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """What an undisturbed run of the program left, up to tokens."""

    outcome: str
    statuses: dict[str, str]
    questions: frozenset[tuple[str, str, str]]
    operations: frozenset[tuple[str, ...]]
    uses: frozenset[tuple[str, str]]
    boundaries: frozenset[tuple[str, int]]
    """Checkpoints of chains, and how often each is there."""


def reference(facts: Facts) -> Reference:
    """What others are compared with."""
    return Reference(
        outcome=_outcome(facts),
        statuses={row["id"]: row["status"] for row in facts.runs},
        questions=frozenset((row["id"], row["reason"], row["status"]) for row in facts.interrupts),
        operations=_operations(facts),
        uses=_uses(facts),
        boundaries=frozenset(Counter(boundaries.of(facts)).items()),
    )


def _outcome(facts: Facts) -> str:
    """As text, since the order of keys in a result or a state counts. That of the results by node is a matter of
    time."""
    ends = {run_id: {**end, "results": sorted(end.get("results", {}).items())} for run_id, end in facts.outcome.items()}
    return json.dumps(without_tokens(ends))


def violations(facts: Facts, reference: Reference) -> list[str]:
    """Everything that does not hold."""
    return [
        *_differences(facts, reference),
        *_orphans(facts),
        *_journals(facts),
        *_answers(facts),
        *_effects(facts),
        *_promises(facts),
        *boundaries.violations(facts),
    ]


# --- against the undisturbed run ------------------------------------------------------------------------


def _differences(facts: Facts, reference: Reference) -> Iterator[str]:
    ours = globals()["reference"](facts)
    for name in ("outcome", "statuses"):
        if getattr(ours, name) != getattr(reference, name):
            yield f"{name}: {getattr(ours, name)} instead of {getattr(reference, name)}"
    for name in ("questions", "operations", "uses", "boundaries"):
        mine, theirs = getattr(ours, name), getattr(reference, name)
        if mine != theirs:
            yield f"{name}: too many {sorted(mine - theirs)}, missing {sorted(theirs - mine)}"


def _operations(facts: Facts) -> frozenset[tuple[str, ...]]:
    """What the journals say was done: entry, kind, name; attempts and what was forgotten aside."""
    ended: dict[tuple[str, str], tuple[str, ...]] = {}
    for row in facts.records:
        key = (row["run_id"], operation_key(row["path"], row["idx"]))
        if row["type"] == RecordType.COMPLETED:
            name = entry_name(row["run_id"], _record_of(row)).rpartition(" ")[0]
            ended[key] = (name, str(row["kind"]), str(row["name"]))
        elif row["type"] == RecordType.DROPPED:
            ended.pop(key, None)
    return frozenset(ended.values())


def _uses(facts: Facts) -> frozenset[tuple[str, str]]:
    """Which effects consumed the answer to which question, and what people changed."""
    tokens = {_token(row): row["id"] for row in facts.interrupts if row["answer"] is not None} | _patched(facts)
    return frozenset(
        (tokens[known], f"{line.operation_id.partition('/')[0]} {line.label}")
        for line in facts.lines
        for token in line.consumed
        if (known := token.removesuffix(REFUSED)) in tokens
    )


def _token(row: Row) -> str:
    """The token that came with an answer."""
    return codec.decode(row["answer"])["metadata"]["token"]


def _record_of(row: Row) -> Any:
    from perdure.core.records import Record  # the shape that names are made of

    return Record(type=row["type"], path=row["path"], index=row["idx"], outcome=row["outcome"], attempt=row["attempt"])


# --- the tables by themselves ---------------------------------------------------------------------------


def _orphans(facts: Facts) -> Iterator[str]:
    known = {row["id"] for row in facts.runs}
    for table, rows in (("record", facts.records), ("interrupt", facts.interrupts)):
        for run_id in {row["run_id"] for row in rows} - known:
            yield f"{table} rows of run {run_id}, which does not exist"
    for row in facts.runs:
        if row["status"] == "running":
            yield f"run {row['id']} was left running by worker {row['worker_id']}"
        elif row["worker_id"] is not None:
            yield f"run {row['id']} is {row['status']} and still owned"
    asked = {(row["run_id"], row["path"], row["idx"]) for row in facts.records if row["type"] == "suspended"}
    for row in facts.interrupts:
        if (row["run_id"], row["path"], row["idx"]) not in asked:
            yield f"question {row['id']} of no suspended operation"


def _journals(facts: Facts) -> Iterator[str]:
    for run in facts.runs:
        records = [row for row in facts.records if row["run_id"] == run["id"]]
        if [row["seq"] for row in records] != list(range(1, run["seq"] + 1)):
            yield f"run {run['id']}: its {len(records)} records are not numbered 1 to {run['seq']}"
        statuses = [row["outcome"] for row in records if row["type"] == RecordType.STATUS]
        if statuses and statuses[-1] != run["status"]:
            yield f"run {run['id']} is {run['status']}, its journal ends with {statuses[-1]}"
        ends = [row for row in statuses if is_terminal(row)]
        if ends.count("completed") + ends.count("cancelled") > 1:
            yield f"run {run['id']} ended more than once: {ends}"
        yield from _completions(run["id"], records)


def _completions(run_id: str, records: Sequence[Row]) -> Iterator[str]:
    open_ends: Counter[str] = Counter()
    for row in records:
        key = operation_key(row["path"], row["idx"])
        if row["type"] == RecordType.COMPLETED:
            open_ends[key] += 1
            if open_ends[key] > 1:
                yield f"{operation_id(run_id, key)} completed twice (record {row['seq']})"
        elif row["type"] == RecordType.DROPPED:
            open_ends[key] -= 1
        elif row["type"] == RecordType.STARTED and open_ends[key] > 0:
            yield f"{operation_id(run_id, key)} began again after its end (record {row['seq']})"


# --- questions and answers ------------------------------------------------------------------------------


def _answers(facts: Facts) -> Iterator[str]:
    statuses = {row["id"]: row["status"] for row in facts.runs}
    places = Counter((row["run_id"], row["path"], row["idx"], row["slot"]) for row in facts.interrupts)
    for place, count in places.items():
        if count > 1:
            yield f"asked {count} times: {place}"
    for row in facts.interrupts:
        key = operation_key(row["path"], row["idx"])
        if row["id"] != ids.interrupt_id(row["run_id"], key, row["slot"]):
            yield f"question {row['id']} has another id than its place gives it"
        if row["status"] == "pending" and is_terminal(statuses.get(row["run_id"], "")):
            yield f"question {row['id']} is open, and its run has ended"
        if row["answer"] is not None:
            yield from _answer(facts, row, statuses.get(row["run_id"]) == "completed")


def _answer(facts: Facts, row: Row, is_over: bool) -> Iterator[str]:
    of_run = [record for record in facts.records if record["run_id"] == row["run_id"]]
    said = [r for r in of_run if r["type"] == "answered" and _data(r).get("interrupt_id") == row["id"]]
    if len(said) != 1:
        yield f"question {row['id']} was answered {len(said)} times"
    if is_over and row["status"] == "answered" and row["delivered_at"] is None:
        yield f"the answer to question {row['id']} was never delivered"
    place = (row["path"], row["idx"])
    values = [r for r in of_run if r["type"] == "completed" and (r["path"], r["idx"]) == place]
    if row["slot"] == "0" and [r["data"] for r in values] not in ([row["answer"]], []):
        yield f"the answer to question {row['id']} is not what the code got"


def _data(row: Row) -> dict[str, Any]:
    value = codec.decode(row["data"]) if row["data"] else None
    return value if isinstance(value, dict) else {}


def _promises(facts: Facts) -> Iterator[str]:
    """What anybody was told of a run is what became of it, tokens and all (law 1)."""
    asked = {row["id"] for row in facts.interrupts}
    for told in facts.told:
        questions = told.what.get("paused")
        if questions is None and facts.outcome.get(told.run_id) != told.what:
            yield f"process {told.incarnation} was told {told.what}, and then it was {facts.outcome.get(told.run_id)}"
        for interrupt_id in set(questions or ()) - asked:
            yield f"process {told.incarnation} was told of question {interrupt_id}, which is not stored"
    for row in facts.records:
        if row["type"] == RecordType.STATUS and row["outcome"] == "completed":
            output = facts.outcome.get(row["run_id"], {}).get("completed")
            if codec.decode(row["data"]) != output:
                yield f"run {row['run_id']} is recorded with {row['data']}, the last process was told {output}"


# --- effects --------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Operation:
    """One operation of a journal, as far as effects go."""

    recovery: str | None = None
    arguments: str | None = None
    outcome: str | None = None
    data: str | None = None
    repeats: int = 0
    kind: str | None = None


def _effects(facts: Facts) -> Iterator[str]:
    operations = _operations_by_id(facts.records)
    lines: dict[str, list[Line]] = defaultdict(list)
    for line in facts.lines:
        lines[line.operation_id].append(line)
    known = _known_tokens(facts, operations)
    yield from _labels(facts)
    yield from _happened(facts)
    for op_id, of_op in lines.items():
        op = operations.get(op_id)
        if op is None:
            yield f"{op_id} acted, and is in no journal"
            continue
        yield from _performances(op_id, op, of_op, facts.killed)
        if op.recovery != "safe":
            yield from _consumption(op_id, op, of_op, known)
    recorded = {op.data for op_id, op in operations.items() if op_id in lines}
    for op_id, op in operations.items():
        if op.outcome == "value" and op.kind in ("step", "effect") and op_id not in lines and op.data not in recorded:
            yield f"{op_id} is recorded with {op.data}, and never acted"


def _operations_by_id(records: Sequence[Row]) -> dict[str, _Operation]:
    operations: dict[str, _Operation] = defaultdict(_Operation)
    for row in records:
        op = operations[operation_id(row["run_id"], operation_key(row["path"], row["idx"]))]
        match row["type"]:
            case "started":
                op.arguments = row["data"]
                op.recovery = op.recovery or row["recovery"]
            case "completed":
                op.outcome, op.data, op.kind = row["outcome"], row["data"], row["kind"]
                op.recovery = op.recovery or row["recovery"]
            case "dropped":
                op.outcome = op.data = None
            case "repeat":
                op.repeats += 1
    return dict(operations)


def _known_tokens(facts: Facts, operations: dict[str, _Operation]) -> set[str]:
    """What the journals say the programs have learnt."""
    known = {INPUT}
    for op in operations.values():
        if op.outcome == "value" and op.data is not None:
            known.update(tokens_of(op.data))
            value = codec.decode(op.data)
            if isinstance(value, UUID):
                known.add(f"tok-uuid-{value.hex}")
    known.update(_patched(facts))
    for row in facts.interrupts:
        if row["answer"] is not None:
            known |= {_token(row), _token(row) + REFUSED}
    return known


def _patched(facts: Facts) -> dict[str, str]:
    """The tokens with which people changed the state of chains, and which change that was."""
    patches = [row for row in facts.records if row["type"] == RecordType.PATCHED]
    return {token: f"{row['run_id']} patch" for row in patches for token in tokens_of(row["data"])}


def _happened(facts: Facts) -> Iterator[str]:
    """What the journals say was returned did happen: in the world, in an answer, in a change by a person."""
    happened = {line.token for line in facts.lines} | _patched(facts).keys()
    happened |= {_token(row) for row in facts.interrupts if row["answer"] is not None}
    for row in facts.records:
        if row["type"] == RecordType.COMPLETED:
            for token in set(tokens_of(row["data"])) - happened:
                yield f"{row['run_id']}/{row['path']}/{row['idx']} is recorded with {token}, which never happened"


def _labels(facts: Facts) -> Iterator[str]:
    """What is done again is done under the same operation id."""
    by_label: dict[tuple[str, str], set[str]] = defaultdict(set)
    for line in facts.lines:
        by_label[(line.operation_id.partition("/")[0], line.label)].add(line.operation_id)
    for (run_id, label), op_ids in by_label.items():
        if len(op_ids) > 1:
            yield f"effect {label} of run {run_id} has the operation ids {sorted(op_ids)}"


def _performances(op_id: str, op: _Operation, lines: Sequence[Line], killed: frozenset[str]) -> Iterator[str]:
    """Once, unless in doubt at a kill: never again after what is recorded, once a process, repeats of
    survivors decided."""
    done = [line for line in lines if not line.is_failure]
    by_process = Counter(line.incarnation for line in done)
    for incarnation, count in by_process.items():
        if count > 1:
            yield f"{op_id} acted {count} times in process {incarnation}"
    survivors = [line for line in done if line.incarnation not in killed]
    if len(survivors) > 1:
        yield f"{op_id} acted in {[line.incarnation for line in survivors]}, which were not killed"
    if op.recovery == "manual" and len(done) > 1 + op.repeats:
        yield f"{op_id} is manual and acted {len(done)} times, with {op.repeats} decisions to repeat it"
    if op.outcome in ("value", "error"):
        yield from _last_is_recorded(op_id, op, lines)


def _last_is_recorded(op_id: str, op: _Operation, lines: Sequence[Line]) -> Iterator[str]:
    last = lines[-1]
    if last.is_failure != (op.outcome == "error") or last.token not in (op.data or ""):
        yield f"{op_id} has {op.outcome} {without_traceback(op.data)}, and acted last as {last}"


def without_traceback(data: str | None) -> str:
    """The start of a recorded outcome, for messages."""
    return (data or "")[:200]


def _consumption(op_id: str, op: _Operation, lines: Sequence[Line], known: set[str]) -> Iterator[str]:
    """Effects consume what is recorded, and what they were called with."""
    called_with = _called_with(op)
    for line in lines:
        if unknown := set(line.consumed) - known:
            yield f"{op_id} consumed {sorted(unknown)}, which no journal has"
        if called_with not in (None, line.consumed):
            yield f"{op_id} consumed {line.consumed}, its journal says {called_with}"


def _called_with(op: _Operation) -> object:
    """The tokens in a step's recorded arguments; None for steps that act on what their own calls returned."""
    arguments = codec.decode(op.arguments) if op.arguments else None
    if op.kind != "step" or not isinstance(arguments, dict) or arguments.get("label") in COMPOSED:
        return None
    return arguments.get("consumed")
