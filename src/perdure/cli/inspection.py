"""The command inspect: everything recorded about one run, as a tree, with its checkpoints, questions and
answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.cli import options, session, tree
from perdure.cli.listing import run_of
from perdure.cli.output import STYLES, cell, emit, table, visible
from perdure.cli.values import decoded, moment, shown
from perdure.core.checkpoints import Checkpoint, checkpoints
from perdure.core.fold import Journal, fold
from perdure.core.records import Loaded
from perdure.errors import ChainCheckpointError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.tree import Tree

_MAX_SHOWN = 200


def inspect(
    run_id: options.RunId,
    store: options.Store = None,
    db_path: options.DbPath = None,
    is_json: options.Json = False,
) -> None:
    """Show a run: its journal as a tree, its checkpoints, its questions with who answered what and when."""
    url = session.store_url(store, db_path)
    if file := session.missing_file(url):
        raise ChainCheckpointError(f"no run {run_id}: there is no store at {file}")

    async def work() -> Loaded:
        async with session.reading(url) as opened:
            return await opened.run_load(run_id)

    loaded = session.run_async(work)
    document = document_of(loaded)
    emit(is_json, document, lambda out: _show(out, loaded, document))


def document_of(loaded: Loaded) -> dict[str, Any]:
    """Everything about the run, as JSON."""
    journal = fold(loaded.records, loaded.interrupts)
    outcome = journal.result_data if loaded.run.status in ("completed", "failed") else None
    return {
        "run": run_of(loaded.run)
        | {
            "input": decoded(journal.input_data),
            "output": decoded(outcome) if loaded.run.status == "completed" else None,
            "failure": _failure(outcome) if loaded.run.status == "failed" else None,
        },
        "operations": [node.document() for node in tree.build(journal)],
        "checkpoints": [_checkpoint(each) for each in checkpoints(loaded)],
        "questions": [tree.question_document(row) for row in loaded.interrupts],
    }


def _failure(text: str | None) -> dict[str, Any] | None:
    found = decoded(text)
    if not isinstance(found, dict):
        return None
    return {name: found.get(name) for name in ("type", "message", "traceback")}


def _checkpoint(checkpoint: Checkpoint) -> dict[str, Any]:
    return {
        "checkpoint_id": checkpoint.checkpoint_id,
        "parent_checkpoint_id": checkpoint.parent_checkpoint_id,
        "node_id": checkpoint.node_id,
        "node_index": checkpoint.node_index,
        "step_type": checkpoint.step_type,
        "status": checkpoint.status,
        "created_at": moment(checkpoint.created_at),
    }


# --- for people -------------------------------------------------------------------------------------------


def _show(out: Console, loaded: Loaded, document: dict[str, Any]) -> None:
    run = document["run"]
    out.print(
        f"Run {visible(run['run_id'])}: {run['kind']} {visible(run['runner'])}, {run['status']}",
        style="bold",
        soft_wrap=True,
    )
    for label, value in _facts(run):
        out.print(f"  {label:<11} {visible(value)}", soft_wrap=True)
    out.print()
    out.print(_tree(fold(loaded.records, loaded.interrupts)))
    _show_checkpoints(out, document["checkpoints"])
    _show_questions(out, document["questions"])


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


def _show_checkpoints(out: Console, found: list[dict[str, Any]]) -> None:
    if not found:
        return
    out.print()
    names = ("checkpoint_id", "node_id", "step_type", "status", "created_at")
    out.print(
        table(
            out,
            ("checkpoint", "node", "type", "status", "at"),
            [[each[name] for name in names] for each in found],
        )
    )


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
