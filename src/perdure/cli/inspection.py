"""The command inspect: everything recorded about one run, as a tree, with its checkpoints, questions and
answers; one checkpoint in full; or what differs between two.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli import options, session, states, tree
from perdure.cli.listing import run_of
from perdure.cli.output import STYLES, cell, emit, table, visible
from perdure.cli.states import Changed, Point
from perdure.cli.values import decoded, moment, shown
from perdure.core import drawing, keys
from perdure.core.fold import Journal, fold
from perdure.core.records import InterruptRow, Loaded
from perdure.errors import ChainCheckpointError, InvalidInputError
from perdure.store.kept import Execution

if TYPE_CHECKING:
    from rich.console import Console
    from rich.tree import Tree

    from perdure.store.sql_store import SqlStore

_MAX_SHOWN = 200
_EVERY = 2**31 - 1

Checkpoint = Annotated[
    str | None,
    typer.Option("--checkpoint", metavar="ID", help="Only this one, in full: an id or a number.", show_default=False),
]
Diff = Annotated[
    tuple[str, str] | None,
    typer.Option("--diff", metavar="A B", help="What differs between the states of two.", show_default=False),
]


def inspect(
    run_id: options.RunId,
    is_full: Annotated[bool, typer.Option("--state", help="The whole state at each checkpoint.")] = False,
    checkpoint: Checkpoint = None,
    diff: Diff = None,
    store: options.Store = None,
    db_path: options.DbPath = None,
    is_json: options.Json = False,
) -> None:
    """Show a run: a chain's nodes, the journal as a tree, the checkpoints with what each changed of the state, the
    questions with who answered what and when. With --json, every state in full."""
    if sum((is_full, checkpoint is not None, diff is not None)) > 1:
        raise InvalidInputError("--diff", "--state and --checkpoint are three views: use one of them")
    url = session.store_url(store, db_path)
    if file := session.missing_file(url):
        raise ChainCheckpointError(f"no run {run_id}: there is no store at {file}")
    if diff is not None:
        _show_diff(_load(url, run_id, lambda _: ()), diff, is_json)
    elif checkpoint is not None:
        found = _load(url, run_id, lambda points: [states.find(points, checkpoint, run_id)])
        _show_checkpoint(found, checkpoint, is_json)
    else:
        # Without --json nothing is asked of the store for each checkpoint.
        found = _load(url, run_id, lambda points: points if is_json else ())
        emit(is_json, found.document(), lambda out: _show(out, found, is_full))


# --- what there is ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Everything that the store has under an id, read once. `journal` is None if no run has the id."""

    execution_id: str
    execution: Execution
    points: list[Point]
    changed: Mapping[str, Changed]
    journal: Journal | None
    writes: Mapping[str, list[str]]

    @property
    def loaded(self) -> Loaded | None:
        return self.execution.run

    @property
    def questions(self) -> list[InterruptRow]:
        return [] if self.loaded is None else list(self.loaded.interrupts)

    def find(self, wanted: str) -> Point:
        return states.find(self.points, wanted, self.execution_id)

    def changes(self, point: Point) -> str:
        """What a checkpoint changed of the state, on one line."""
        return str(self.changed.get(point.checkpoint_id) or "")

    def checkpoint_document(self, point: Point) -> dict[str, Any]:
        writes = [decoded(text) for text in self.writes.get(point.checkpoint_id, ())]
        return point.document(self.changed.get(point.checkpoint_id), writes)

    def document(self) -> dict[str, Any]:
        """Everything about the execution, as JSON. `run` is null if all of it was put by hand."""
        journal = self.journal
        return {
            "execution_id": self.execution_id,
            "run": None if self.loaded is None or journal is None else run_document(self.loaded, journal),
            "topology": self._topology(),
            "operations": [] if journal is None else [node.document() for node in tree.build(journal)],
            "checkpoints": [self.checkpoint_document(point) for point in self.points],
            "questions": [tree.question_document(row) for row in self.questions],
        }

    def _topology(self) -> dict[str, Any] | None:
        if self.loaded is None or self.journal is None or (shape := tree.shape_of(self.journal)) is None:
            return None
        return tree.shape_document(shape, tree.node_statuses(self.journal, shape, self.loaded.run.status))


def _load(url: str, run_id: str, wants_writes: Callable[[list[Point]], Any]) -> Found:
    """Read an execution; what steps wrote only of the checkpoints that are asked for. Raises `ChainCheckpointError`
    for an id that the store does not have."""

    def read(opened: SqlStore) -> tuple[Execution, list[Point], dict[str, list[str]]]:
        execution = opened.checkpoints.execution_load(run_id, limit=_EVERY)
        if execution.run is None and not execution.kept:
            raise ChainCheckpointError(_missing(run_id, opened))
        points = states.points_of(execution)
        ids = [point.checkpoint_id for point in wants_writes(points)]
        return execution, points, {each: opened.checkpoints.write_list(run_id, each) for each in ids}

    async def work() -> tuple[Execution, list[Point], dict[str, list[str]]]:
        async with session.reading(url) as opened:
            return await asyncio.to_thread(read, opened)

    execution, points, writes = session.run_async(work)
    loaded = execution.run
    return Found(
        execution_id=run_id,
        execution=execution,
        points=points,
        changed=states.changes_of(points, execution),
        journal=None if loaded is None else fold(loaded.records, loaded.interrupts),
        writes=writes,
    )


def _missing(run_id: str, opened: SqlStore) -> str:
    tombstone = opened.maintenance.tombstone_get(run_id)
    if tombstone is None:
        return f"no run {run_id} in this store"
    ended, pruned = moment(tombstone.ended_at), moment(tombstone.pruned_at)
    return f"no run {run_id} any more: it was {tombstone.status} at {ended}, and pruned at {pruned}"


def run_document(loaded: Loaded, journal: Journal) -> dict[str, Any]:
    """The run itself, with what it began and ended with, as JSON."""
    status = loaded.run.status
    outcome = journal.result_data if status in ("completed", "failed") else None
    return run_of(loaded.run) | {
        "input": decoded(journal.input_data),
        "output": decoded(outcome) if status == "completed" else None,
        "failure": _failure(outcome) if status == "failed" else None,
    }


def _failure(text: str | None) -> dict[str, Any] | None:
    found = decoded(text)
    if not isinstance(found, dict):
        return None
    return {name: found.get(name) for name in ("type", "message", "traceback")}


# --- a run, for people ------------------------------------------------------------------------------------


def _show(out: Console, found: Found, is_full: bool) -> None:
    loaded, journal = found.loaded, found.journal
    if loaded is not None and journal is not None:
        _show_run(out, loaded, journal)
    else:
        last = found.points[-1]
        count = len(found.points)
        text = f"Execution {visible(found.execution_id)}: put by hand, {count} checkpoints, {last.status}"
        out.print(text, style="bold", soft_wrap=True)
    if is_full:
        for point in found.points:
            _show_state(out, point)
    else:
        _show_checkpoints(out, found)
    _show_questions(out, [tree.question_document(row) for row in found.questions])


def _show_run(out: Console, loaded: Loaded, journal: Journal) -> None:
    run = run_document(loaded, journal)
    out.print(
        f"Run {visible(run['run_id'])}: {run['kind']} {visible(run['runner'])}, {run['status']}",
        style="bold",
        soft_wrap=True,
    )
    for label, value in _facts(run):
        out.print(f"  {label:<11} {visible(value)}", soft_wrap=True)
    if (shape := tree.shape_of(journal)) is not None:
        drawn = drawing.draw(shape, tree.node_statuses(journal, shape, run["status"]))
        out.print()
        out.print(visible(drawn), soft_wrap=True)
    out.print()
    out.print(_tree(journal))


def _facts(run: dict[str, Any]) -> list[tuple[str, str]]:
    failure = run["failure"] or {}
    facts = [
        ("input", shown(run["input"])),
        ("output", shown(run["output"]) if run["status"] == "completed" else ""),
        ("failed with", f"{failure.get('type')}: {failure.get('message')}" if failure else ""),
        ("blocked by", run["blocked_operation"] or ""),
        ("needs", run["error"] if run["status"] == "needs_attention" else ""),
        ("version", run["version"] or ""),
        ("attempt", str(run["attempt"]) if run["attempt"] > 1 else ""),
        ("forked from", f"{run['forked_from']}:{run['forked_seq']}" if run["forked_from"] else ""),
        ("worker", run["worker_id"] or ""),
        ("created", run["created_at"] or ""),
        ("due", run["due_at"] or ""),
        ("ended", run["ended_at"] or ""),
    ]
    return [(label, str(value)) for label, value in facts if value]


def _tree(journal: Journal) -> Tree:
    from rich.tree import Tree

    root = Tree("Journal")
    nodes = tree.build(journal)
    for node in nodes:
        _grow(root, node)
    if not nodes:
        root.add("nothing recorded yet")
    return root


def _grow(branch: Tree, node: tree.Node) -> None:
    from rich.text import Text

    op = node.operation
    status = tree.status_of(op)
    line = Text(f"{op.key}  {op.kind} {visible(op.name)}  ")
    line.append(status, style=STYLES.get(status, ""))
    if op.attempt > 1:
        line.append(f"  attempt {op.attempt}")
    if said := _said(op):
        line.append(f"  {visible(said)}", style="dim")
    grown = branch.add(line)
    for row in node.questions:
        grown.add(Text(visible(_asked(tree.question_document(row)))))
    for child in node.children:
        _grow(grown, child)


def _said(op: Any) -> str:
    """What the operation ended with, on one line. The whole of it is in --json."""
    if op.path == keys.TOPOLOGY:
        return ""  # it is drawn above
    if error := tree.error_of(op):
        text = f"{error['type']}: {error['message']}"
    elif op.is_completed and op.outcome == "value":
        text = shown(decoded(op.data))
    else:
        return ""
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "…"


def _asked(question: dict[str, Any]) -> str:
    said = f"{question['interrupt_id']}  {cell(question['reason'])}"
    answer = question["answer"]
    if not isinstance(answer, dict):
        return f"{said}  {question['status']}"
    verdict = "approved" if answer.get("approved") else "denied"
    return f"{said}  {verdict} by {question['answered_by'] or 'unknown'} at {question['answered_at']}"


def _show_checkpoints(out: Console, found: Found) -> None:
    """One line each; of those that have a state, with what they changed of it."""
    if not found.points:
        return
    out.print()
    rows = [
        (point.checkpoint_id, point.place, point.step_type, point.status, found.changes(point), point.created_at)
        for point in found.points
    ]
    columns = ("checkpoint", "node", "type", "status", "changed", "at")
    if not found.changed:
        columns, rows = columns[:4] + columns[5:], [row[:4] + row[5:] for row in rows]
    out.print(table(out, columns, rows))


def _show_questions(out: Console, found: list[dict[str, Any]]) -> None:
    if not found:
        return
    out.print()
    columns = ("question", "status", "reason", "context", "asked at", "answer", "by", "at")
    names = (
        "interrupt_id",
        "status",
        "reason",
        "context",
        "asked_at",
        "answer",
        "answered_by",
        "answered_at",
    )
    out.print(table(out, columns, [[each[name] for name in names] for each in found]))


# --- states, for people -----------------------------------------------------------------------------------


def _show_checkpoint(found: Found, wanted: str, is_json: bool) -> None:
    """One checkpoint with everything there is about it."""
    point = found.find(wanted)
    document = found.checkpoint_document(point)

    def show(out: Console) -> None:
        _show_heading(out, point)
        facts = [
            ("builds on", point.parent_id),
            ("agent path", point.agent_path),
            ("visit", point.iteration or None),
            ("counters", shown(document["iteration_counters"]) if document["iteration_counters"] else None),
            ("reason", cell(document["interrupt_reason"]) or None),
            ("context", None if point.context is None else shown(document["interrupt_context"])),
            ("changed", found.changes(point) or None),
            ("created", point.created_at),
        ]
        for label, value in facts:
            if value is not None:
                out.print(f"  {label:<11} {visible(str(value))}", soft_wrap=True)
        _show_value(out, "Input", document["node_input"], point.node_input is not None)
        _show_value(out, "State", document["state_snapshot"], point.state is not None)
        _show_value(out, "Output", document["node_output"], point.output is not None)
        for value in document["writes"]:
            _show_value(out, "Write", value, True)

    emit(is_json, {"execution_id": found.execution_id, "checkpoint": document}, show)


def _show_heading(out: Console, point: Point) -> None:
    kind = f" {point.step_type}," if point.step_type and point.step_type != point.place else ""
    text = f"Checkpoint {visible(point.checkpoint_id)}: {visible(point.place)},{kind} {visible(point.status)}"
    out.print(text, style="bold", soft_wrap=True)


def _show_state(out: Console, point: Point) -> None:
    out.print()
    _show_heading(out, point)
    _print_json(out, states.value_of(point.state)) if point.state is not None else out.print("no state")


def _show_value(out: Console, name: str, value: Any, is_there: bool) -> None:
    if is_there:
        out.print(name, style="bold")
        _print_json(out, value)


def _print_json(out: Console, value: Any) -> None:
    out.print(visible(json.dumps(value, indent=2, ensure_ascii=False)), soft_wrap=True)


_MARKS = {"added": "+", "removed": "-", "changed": "~", "reordered": "↕"}


def _show_diff(found: Found, wanted: tuple[str, str], is_json: bool) -> None:
    """What leads from the state at one checkpoint to that at another."""
    old, new = (found.find(each) for each in wanted)
    for point in (old, new):
        if point.state is None:
            raise InvalidInputError("--diff", f"checkpoint {point.checkpoint_id} has no state: only a chain's have one")
    differences = states.differences(old.state, new.state)

    def show(out: Console) -> None:
        heading = f"From {old.checkpoint_id} ({old.place}) to {new.checkpoint_id} ({new.place})"
        out.print(visible(heading), style="bold", soft_wrap=True)
        width = max((len(each.path) for each in differences), default=0)
        for each in differences:
            before, after = each.texts()
            said = f"{before} → {after}" if before and after else before or after
            out.print(visible(f"{_MARKS[each.change]} {each.path:<{width}}  {said}"), soft_wrap=True)
        if not differences:
            out.print("The states are the same.")

    document = {
        "execution_id": found.execution_id,
        "from": old.checkpoint_id,
        "to": new.checkpoint_id,
        "differences": [each.document() for each in differences],
    }
    emit(is_json, document, show)
