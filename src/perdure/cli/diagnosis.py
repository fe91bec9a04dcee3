"""The command doctor: whether the store can be used, who is alive, and what nobody takes care of."""

from __future__ import annotations

import importlib.metadata
import platform
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli import options, session
from perdure.cli.exits import Exit
from perdure.cli.output import emit, table
from perdure.cli.runners import load_runners
from perdure.core.records import RunFilter, RunRow
from perdure.core.states import CLAIMABLE, TERMINAL, Status
from perdure.errors import DurableStorageError

if TYPE_CHECKING:
    from rich.console import Console

    from perdure.store.base import Store

_PACKAGES = ("perdure", "greenlet", "pydantic", "typer", "rich", "psycopg", "psycopg-pool")
_LOW_BYTES = 200 * 1024 * 1024
_MAX_RUNS = 10_000
_PROOFS = {
    "alive": ("ok", "alive"),
    "unknown": ("ok", "its lease decides"),
    "lost": ("warn", "its session is gone; the next worker takes its runs unless it comes back at once"),
    "dead": ("warn", "dead; the next worker takes its runs"),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at; `level` is ok, warn or fail."""

    check: str
    level: str
    detail: str


def doctor(
    runners: Annotated[
        list[str] | None,
        typer.Option(
            "--runner",
            metavar="PLACE:NAME",
            help="A runner that your workers have; names runs that have none.",
            show_default=False,
        ),
    ] = None,
    store: options.Store = None,
    db_path: options.DbPath = None,
    is_json: options.Json = False,
) -> None:
    """Look at the installation and the store: versions, file system, workers, runs that nobody continues."""
    url = session.store_url(store, db_path)
    names = [runner.name for runner in load_runners(runners or [])]
    findings = [_versions(), *_file(url)]
    if not any(finding.level == "fail" for finding in findings) and session.missing_file(url) is None:
        findings += session.run_async(lambda: _store(url, names))
    has_failed = any(finding.level == "fail" for finding in findings)
    document = {"is_well": not has_failed, "findings": [asdict(finding) for finding in findings]}
    emit(is_json, document, lambda out: _show(out, findings))
    if has_failed:
        raise typer.Exit(Exit.STORAGE)


def _show(out: Console, findings: Sequence[Finding]) -> None:
    rows = [(finding.check, finding.level, finding.detail) for finding in findings]
    out.print(table(out, ("check", "", "detail"), rows, ids=2))


def _versions() -> Finding:
    found = [f"Python {platform.python_version()}"]
    for name in _PACKAGES:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            found.append(f"{name} not installed")
    return Finding("versions", "ok", ", ".join(found))


def _file(url: str) -> list[Finding]:
    """About the file of an SQLite store."""
    if not session.is_file(url):
        return []
    from perdure.store import filesystem

    if missing := session.missing_file(url):
        return [Finding("store", "warn", f"there is none at {missing} yet; the first run creates it")]
    file = session.sqlite_file(url).resolve()
    kind = filesystem.network_type(str(file), filesystem.current_mountinfo())
    free = shutil.disk_usage(file.parent).free
    return [
        Finding("file", "ok", f"{file}, {_size(file)}"),
        Finding("file system", "fail" if kind else "ok", f"{kind}: SQLite is corrupted there" if kind else "local"),
        Finding("free space", "warn" if free < _LOW_BYTES else "ok", f"{free // 1024 // 1024} MiB"),
    ]


def _size(file: Path) -> str:
    return f"{file.stat().st_size // 1024} KiB"


async def _store(url: str, names: Sequence[str]) -> list[Finding]:
    """About what the store holds."""
    try:
        async with session.reading(url) as opened:
            workers = await _workers(opened)
            has_worker = any(finding.check == "worker" and finding.level == "ok" for finding in workers)
            readable = Finding("store", "ok", f"{opened.kind} at {session.redacted(url)} can be read")
            return [readable, *workers, *await _runs(opened, names, has_worker=has_worker)]
    except DurableStorageError as error:
        return [Finding("store", "fail", str(error))]


async def _workers(opened: Store) -> list[Finding]:
    findings = []
    for each in await opened.worker_list():
        proof = await opened.worker_probe(each)
        place = f"pid {each.pid} on {each.host}, {each.run_count} run{'' if each.run_count == 1 else 's'}"
        if proof in ("dead", "lost") and each.run_count == 0:
            continue  # nothing is left to be done about it
        level, says = _PROOFS[proof]
        findings.append(Finding("worker", level, f"{place}: {says}"))
    return findings or [Finding("workers", "ok", "none at the moment")]


async def _runs(opened: Store, names: Sequence[str], *, has_worker: bool) -> list[Finding]:
    rows = [
        row
        for status in Status
        if status not in TERMINAL
        for row in await opened.run_list(RunFilter(status=status, limit=_MAX_RUNS))
    ]
    questions = await opened.interrupt_list(status="pending", limit=_MAX_RUNS)
    attention = [row.run_id for row in rows if row.status == Status.NEEDS_ATTENTION]
    waiting = sum(row.status in CLAIMABLE for row in rows)
    return [
        Finding("open runs", "ok", _counts(rows)),
        Finding("left lying", *_left_lying(0 if has_worker else waiting)),
        Finding("open questions", "ok", str(len(questions))),
        Finding("attention", "warn" if attention else "ok", ", ".join(attention) or "no run needs a person"),
        *_without_runner(rows, names),
    ]


def _left_lying(count: int) -> tuple[str, str]:
    """Runs that could go on at once if there were a worker."""
    if count == 0:
        return "ok", "no run waits for a worker"
    return "warn", f"{count} runs could go on, but no worker is alive: start perdure worker"


def _counts(rows: Sequence[RunRow]) -> str:
    counted = Counter((row.runner, row.status) for row in rows)
    return ", ".join(f"{count} {runner} {status}" for (runner, status), count in sorted(counted.items())) or "none"


def _without_runner(rows: Sequence[RunRow], names: Sequence[str]) -> list[Finding]:
    """Runs that none of the named runners is for. Without names there is nothing to compare with."""
    if not names:
        return []
    counted = Counter(row.runner for row in rows if row.runner not in names)
    said = ", ".join(f"{count} of {name}" for name, count in sorted(counted.items()))
    if not counted:
        return [Finding("runners", "ok", "every open run has its runner")]
    return [Finding("no runner here", "warn", said)]
