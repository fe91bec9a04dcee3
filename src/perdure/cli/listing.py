"""The commands that list: runs, list-pending. They read; they never create a store, and one bad row hides no
other.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli import options, session
from perdure.cli.output import complain, emit, table
from perdure.cli.values import decoded, moment
from perdure.core import keys
from perdure.core.records import InterruptRow, RunFilter, RunRow
from perdure.core.states import Status
from perdure.errors import InvalidInputError
from perdure.store.kept import KeptQuestion, OpenQuestion

if TYPE_CHECKING:
    from rich.console import Console

Limit = Annotated[int, typer.Option("--limit", min=1, max=10_000, help="At most so many.")]


def list_pending(
    limit: Limit = 100,
    store: options.Store = None,
    db_path: options.DbPath = None,
    is_json: options.Json = False,
) -> None:
    """List the questions that wait for an answer, oldest first: those of runs, and those kept by a checkpointer's own
    callers."""
    url = session.store_url(store, db_path)

    async def work() -> list[OpenQuestion]:
        if _is_missing(url):
            return []
        async with session.reading(url) as opened:
            of_runs = await opened.interrupt_list(status="pending", limit=limit + 1)
            listed = await asyncio.to_thread(opened.checkpoints.pending_list, limit=limit + 1)
            kept = [asked for asked in listed if isinstance(asked, KeptQuestion)]
            return sorted([*of_runs, *kept], key=lambda asked: asked.created_at)

    rows = session.run_async(work)
    questions = [question_of(row) if isinstance(row, InterruptRow) else _kept_question(row) for row in rows[:limit]]
    has_more = len(rows) > limit
    emit(is_json, {"pending": questions, "has_more": has_more}, lambda out: _show_pending(out, questions))
    if has_more:
        complain(f"there are more than {limit}; see the rest with --limit")


def runs(
    status: Annotated[
        str | None, typer.Option("--status", help="Only runs of this status.", show_default=False)
    ] = None,
    runner: Annotated[
        str | None,
        typer.Option("--runner", metavar="NAME", help="Only runs of the runner of this name.", show_default=False),
    ] = None,
    after: Annotated[
        str | None,
        typer.Option("--after", metavar="RUN_ID", help="Go on after this run.", show_default=False),
    ] = None,
    limit: Limit = 100,
    store: options.Store = None,
    db_path: options.DbPath = None,
    is_json: options.Json = False,
) -> None:
    """List runs, newest first."""
    if status is not None and status not in set(Status):
        raise InvalidInputError("--status", f"{status!r} is none of {', '.join(Status)}")
    url = session.store_url(store, db_path)

    async def work() -> list[RunRow]:
        if _is_missing(url):
            return []
        async with session.reading(url) as opened:
            return await opened.run_list(RunFilter(status=status, runner=runner, after=after, limit=limit + 1))

    rows = session.run_async(work)
    has_more = len(rows) > limit
    page = [run_of(row) for row in rows[:limit]]
    document = {"runs": page, "next": page[-1]["run_id"] if has_more else None}
    emit(is_json, document, lambda out: _show_runs(out, page))
    if has_more:
        complain(f"there are more; see them with --after {page[-1]['run_id']}")


def question_of(row: InterruptRow) -> dict[str, Any]:
    """A question as the listing shows it."""
    return {
        "run_id": row.run_id,
        "interrupt_id": row.interrupt_id,
        "runner": row.runner,
        "node_id": keys.node_id(row.path, row.index),
        "agent_path": None,
        "reason": decoded(row.reason),
        "context": decoded(row.context),
        "created_at": moment(row.created_at),
    }


def _kept_question(row: KeptQuestion) -> dict[str, Any]:
    said = decoded(row.content)
    content = said if isinstance(said, dict) else {}
    return {
        "run_id": row.run_id,
        "interrupt_id": row.interrupt_id,
        "runner": content.get("chain_name", ""),
        "node_id": content.get("node_id", ""),
        "agent_path": content.get("agent_path"),
        "reason": content.get("reason"),
        "context": content.get("context"),
        "created_at": moment(row.created_at),
    }


def run_of(row: RunRow) -> dict[str, Any]:
    """A run as listings and inspect show it."""
    return {
        "run_id": row.run_id,
        "runner": row.runner,
        "kind": row.kind,
        "version": row.version,
        "status": row.status,
        "attempt": row.attempt,
        "epoch": row.epoch,
        "cancel_requested": bool(row.cancel_requested),
        "blocked_operation": row.blocked_operation,
        "error": row.error,
        "worker_id": row.worker_id,
        "fence": row.fence,
        "parent_id": row.parent_id,
        "forked_from": row.forked_from,
        "forked_seq": row.forked_seq,
        "due_at": moment(row.due_at),
        "created_at": moment(row.created_at),
        "updated_at": moment(row.updated_at),
        "ended_at": moment(row.ended_at),
    }


def _is_missing(url: str) -> bool:
    file = session.missing_file(url)
    if file is not None:
        complain(f"there is no store at {file} yet (another one: --store, or PERDURE_STORE)")
    return file is not None


def _show_pending(out: Console, questions: list[dict[str, Any]]) -> None:
    if not questions:
        out.print("No question is open.")
        return
    columns = ("run", "question", "runner", "reason", "context", "asked at")
    names = ("run_id", "interrupt_id", "runner", "reason", "context", "created_at")
    out.print(table(out, columns, [[question[name] for name in names] for question in questions], ids=2))


def _show_runs(out: Console, page: list[dict[str, Any]]) -> None:
    if not page:
        out.print("No runs.")
        return
    columns = ("run", "runner", "status", "created", "updated", "note")
    rows = [
        (run["run_id"], run["runner"], run["status"], run["created_at"], run["updated_at"], _note(run)) for run in page
    ]
    out.print(table(out, columns, rows))


def _note(run: dict[str, Any]) -> str:
    """The one thing to know about a run beside its status."""
    if run["blocked_operation"]:
        return f"blocked by {run['blocked_operation']}"
    if run["error"]:
        return str(run["error"])
    if run["forked_from"]:
        return f"forked from {run['forked_from']}"
    return "cancel requested" if run["cancel_requested"] and run["status"] != "cancelled" else ""
