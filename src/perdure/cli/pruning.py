"""The command prune: deletes what ended long ago, after it has said how much that is."""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli import options, session
from perdure.cli.durations import parse_duration
from perdure.cli.output import complain, emit_lines
from perdure.errors import InvalidInputError

if TYPE_CHECKING:
    from perdure.store.kept import Pruned


def prune(
    older_than: Annotated[
        str,
        typer.Option(
            "--older-than", metavar="TIME", help="What ended longer ago: 90s, 45m, 12h, 30d, 2w.", show_default=False
        ),
    ],
    include_failed: Annotated[
        bool, typer.Option("--include-failed", help="Failed runs, too; they could still be retried.")
    ] = False,
    is_dry: Annotated[bool, typer.Option("--dry-run", help="Say how much would go, and delete nothing.")] = False,
    is_sure: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    store: options.Store = None,
    db_path: options.DbPath = None,
    is_json: options.Json = False,
) -> None:
    """Delete runs that have ended, whole, with all that was recorded.

    Never what is live, asleep, waits for an answer or needs a person, nor a tree of runs with such a one in it. The id
    of each run stays, so that its submission is recognised when it comes once more.
    """
    age = parse_duration(older_than, "--older-than")
    if not is_dry and not is_sure and (is_json or not sys.stdin.isatty()):
        raise InvalidInputError("--yes", "is missing, and there is nobody to ask; --dry-run says how much would go")
    url = session.store_url(store, db_path)
    if (missing := session.missing_file(url)) is not None:
        complain(f"there is no store at {missing} yet (another one: --store, or PERDURE_STORE)")
        _say(is_json, _nothing(), is_dry)
        return
    found = session.run_async(lambda: _prune(url, age, include_failed, is_dry=True))
    if is_dry or found.count == 0 or not (is_sure or _is_agreed(found)):
        _say(is_json, found if is_dry else _nothing(), is_dry)
        return
    _say(is_json, session.run_async(lambda: _prune(url, age, include_failed, is_dry=False)), is_dry)


async def _prune(url: str, age: timedelta, include_failed: bool, *, is_dry: bool) -> Pruned:
    from perdure.store.kept import PruneRequest
    from perdure.store.open import open_store

    request = PruneRequest(older_than_s=age.total_seconds(), has_failed=include_failed, is_dry=is_dry)
    opened = await asyncio.to_thread(open_store, url)
    try:
        return await asyncio.to_thread(opened.maintenance.prune, request)
    finally:
        await opened.close()


def _nothing() -> Pruned:
    from perdure.store.kept import Pruned

    return Pruned(run_count=0, execution_count=0)


def _is_agreed(found: Pruned) -> bool:
    """Whether the person at the terminal says yes, in full."""
    try:
        return session.ask(f"Delete {_counted(found)} for good? [yes/no] ").strip().lower() == "yes"
    except EOFError:
        return False


def _say(is_json: bool, found: Pruned, is_dry: bool) -> None:
    document = {"is_dry_run": is_dry, "runs": found.run_count, "executions": found.execution_count}
    verb = "would be deleted" if is_dry else "deleted"
    emit_lines(is_json, document, [f"{_counted(found)} {verb}"])


def _counted(found: Pruned) -> str:
    parts = [f"{found.run_count} run{'' if found.run_count == 1 else 's'}"]
    if found.execution_count:
        parts.append(f"{found.execution_count} kept by hand")
    return " and ".join(parts)
