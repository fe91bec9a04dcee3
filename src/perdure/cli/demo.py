"""The command demo: a file of expense claims, a worker that is killed again and again, and the proof that
nothing is paid twice.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli import options, session
from perdure.cli.exits import Exit
from perdure.cli.output import cell, complain, emit, visible
from perdure.errors import InvalidInputError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

    from perdure.cli.director import Plan, Report, Tally
    from perdure.core.records import InterruptRow
    from perdure.store.base import Store

_FOLDER = Path("perdure-demo")


def demo(
    file: Annotated[
        Path | None,
        typer.Option("--input", metavar="FILE", help="A CSV file of claims. Default: a sample.", show_default=False),
    ] = None,
    approve_all: Annotated[bool, typer.Option("--approve-all", help="Approve every question that is left.")] = False,
    deny_over: Annotated[
        str | None,
        typer.Option("--deny-over", metavar="EUR", help="Deny what is more than this many euros.", show_default=False),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--dir",
            metavar="DIR",
            help="Ledger, receipts and database. Default: a new one in ./perdure-demo",
            show_default=False,
        ),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            "--store",
            metavar="URL",
            help="Where the runs are. Default: an SQLite file in the directory.",
            show_default=False,
        ),
    ] = None,
    is_json: options.Json = False,
) -> None:
    """Process expense claims while the worker is killed (SIGKILL) again and again; then prove that each is
    paid at most once.

    Questions are asked when there is a terminal. Without one, and without --approve-all or --deny-over, they
    stay open.
    """
    from perdure.cli import director as directing
    from perdure.examples.rows import FileProblem
    from perdure.examples.sample import PATH

    limit = _euros(deny_over)
    chosen = folder or _FOLDER / datetime.now().strftime("%Y%m%d-%H%M%S-%f")
    try:
        plan = directing.prepare(file or PATH, chosen, store or os.environ.get("PERDURE_STORE"))
    except FileProblem as problem:
        raise InvalidInputError("--input", str(problem)) from problem
    except OSError as error:
        raise InvalidInputError("--dir", str(error)) from error
    show = _Show(is_quiet=is_json)
    tally = directing.Tally()
    try:
        report = session.run_async(lambda: _perform(plan, show, tally, _Decide(show, approve_all, limit)))
    except session.Stopped:
        complain(f"nothing is lost; go on with: {_again(plan)}")
        raise
    document = _document(plan, tally, report)
    emit(is_json, document, lambda out: _show_report(out, plan, tally, report))
    if not report.is_proven:
        complain("the proof has failed; please report this with the demo's directory")
        raise typer.Exit(Exit.DEFECT)


def _euros(text: str | None) -> Decimal | None:
    if text is None:
        return None
    from perdure.examples.amounts import AmountError, parse_amount

    try:
        limit, currency = parse_amount(text)
    except AmountError as error:
        raise InvalidInputError("--deny-over", str(error)) from error
    if currency not in (None, "EUR") or limit < 0:
        raise InvalidInputError("--deny-over", f"{text!r} is not a number of euros, 0 or more")
    return limit


async def _perform(plan: Plan, show: _Show, tally: Tally, decide: _Decide) -> Report:
    from perdure.cli import director as directing

    async with session.reading(plan.store) as store:
        show.say(f"{len(plan.submitted.claims)} claims in {plan.file}")
        is_started = bool(await directing.counts(plan, store))
        with show.bar("processing"):
            kills = directing.kills_for(plan.submitted.claims, is_started=is_started)
            await directing.work(plan, store, kills, show, tally, is_new=True)
        approvals = await decide.all(await directing.pending(plan, store), store)
        if approvals is not None:
            # Once more at the worst moment, now that people have decided.
            kills = [directing.Kill(1, True)] if approvals else []
            with show.bar("going on with the answers"):
                await directing.work(plan, store, kills, show, tally, is_new=False)
        return await directing.report(plan, store)


class _Decide:
    """Who answers: the options, or the person at the terminal, or nobody. Silence is no answer."""

    def __init__(self, show: _Show, approve_all: bool, deny_over: Decimal | None) -> None:
        self._show = show
        self._approve_all = approve_all
        self._deny_over = deny_over
        self._has_ended = False  # the input of the person who is asked

    async def all(self, questions: Sequence[InterruptRow], store: Store) -> int | None:
        """Answer what can be answered. The number of approvals, or None if nothing was answered."""
        from perdure.cli.director import answer
        from perdure.core import codec

        approved = denied = 0
        for number, row in enumerate(questions, 1):
            context: dict[str, Any] = codec.decode(row.context)
            verdict = self._verdict(f"{number}/{len(questions)}", context)
            if verdict is None:
                continue
            await answer(store, row, is_approved=verdict, answered_by=session.user())
            approved, denied = approved + verdict, denied + (not verdict)
        if approved or denied:
            self._show.say(f"{approved} approved and {denied} denied by {session.user()}")
        return approved if approved or denied else None

    def _verdict(self, place: str, context: Mapping[str, Any]) -> bool | None:
        if self._deny_over is not None and Decimal(context["euros"]) > self._deny_over:
            return False
        if self._approve_all:
            return True
        if self._has_ended or self._show.is_quiet or not (sys.stdin.isatty() and sys.stdout.isatty()):
            return None
        return self._ask(place, context)

    def _ask(self, place: str, context: Mapping[str, Any]) -> bool | None:
        """y, n, a for all that are left, s to skip; the end of the input leaves the rest open."""
        text = ", ".join(f"{name} {cell(value)}" for name, value in context.items())
        while True:
            try:
                typed = session.ask(f"[{place}] {text}\n      approve? [y]es [n]o [a]ll that are left [s]kip: ")
            except EOFError:
                self._has_ended = True
                print()
                return None
            typed = typed.strip().lower()
            if typed in ("a", "all"):
                self._approve_all = True
            if typed in ("y", "yes", "a", "all"):
                return True
            if typed in ("n", "no"):
                return False
            if typed in ("s", "skip"):
                return None


# --- showing ----------------------------------------------------------------------------------------------


class _Show:
    """The stage: a progress bar at a terminal, plain lines elsewhere, nothing with --json."""

    def __init__(self, *, is_quiet: bool) -> None:
        self.is_quiet = is_quiet
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._last = ""

    def say(self, text: str) -> None:
        if self.is_quiet:
            return
        if self._progress is not None:
            self._progress.console.print(f"  {visible(text)}", markup=False, highlight=False)
        else:
            print(f"  {visible(text)}", flush=True)

    def bar(self, title: str) -> _Show:
        """A context manager: while it is entered, progress is shown under this title."""
        if not self.is_quiet:
            print(title + (":" if not sys.stdout.isatty() else ""), flush=True)
        return self

    def __enter__(self) -> None:
        if self.is_quiet or not sys.stdout.isatty():
            return
        from rich.progress import BarColumn, Progress, TextColumn

        columns = (
            BarColumn(),
            TextColumn("{task.description}", markup=False),
        )
        self._progress = Progress(*columns, transient=True)
        self._task = self._progress.add_task("starting", total=None)
        self._progress.start()

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()
        self._progress = None

    def progress(self, counts: Mapping[str, int], total: int) -> None:
        done = sum(counts.get(name, 0) for name in ("completed", "failed", "cancelled"))
        text = ", ".join([f"{done}/{total}", *(f"{count} {name}" for name, count in sorted(counts.items()))])
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, total=total, completed=done, description=text)
        elif not self.is_quiet and text != self._last:
            self._last = text
            print(f"  {text}", flush=True)


def _commands(plan: Plan, report: Report) -> list[tuple[str, str]]:
    """What to do next, as commands that a shell takes as they are."""
    import shlex

    from perdure.examples.expenses import RUNNER

    at = session.address(plan.store)
    found = [("the runs", shlex.join(["perdure", "runs", *at]))]
    if example := _example(plan):
        found.append(("one of them", shlex.join(["perdure", "inspect", example, *at])))
    if report.pending:
        answer = shlex.join(
            ["perdure", "resume", report.pending[0], "--runner", RUNNER, *at, "--value", '{"approved": true}']
        )
        found += [
            ("open questions", shlex.join(["perdure", "list-pending", *at])),
            ("answer one", answer),
            ("approve all", f"{_again(plan)} --approve-all"),
        ]
    return found


def _again(plan: Plan) -> str:
    """The demo of the same claims, where it stands now."""
    import shlex

    at = session.address(plan.store)
    return shlex.join(["perdure", "demo", "--input", str(plan.file), "--dir", str(plan.folder), *at])


def _activation() -> str | None:
    """What puts `perdure` on the path, if it is in an environment that is not active."""
    import shlex
    import shutil

    script = Path(sys.prefix) / "bin" / "activate"
    if shutil.which("perdure") or not script.is_file():
        return None
    return shlex.join([".", str(script)])


def _example(plan: Plan) -> str | None:
    """A run worth looking at: one that asked, if there is one."""
    from perdure.examples.proof import due_of

    claims = plan.submitted.claims
    asked = (claim.run_id for claim in claims if due_of(claim.order["cells"]).is_asked)
    return next(asked, claims[0].run_id if claims else None)


def _document(plan: Plan, tally: Tally, report: Report) -> dict[str, Any]:
    return {
        "input": str(plan.file),
        "store": session.redacted(plan.store),
        "directory": str(plan.folder),
        "claims": len(plan.submitted.claims),
        "decisions": report.decisions,
        "pending": report.pending,
        "malformed": [{"line": line, "field": field, "problem": problem} for line, field, problem in report.malformed],
        "duplicates": [{"line": line, "first_line": first} for line, first in report.duplicates],
        "workers": {"started": tally.started, "killed": tally.kills},
        "operations": {"performed": report.performed, "replayed": report.replayed},
        "paid_euros": report.euros,
        "checks": [asdict(check) for check in report.checks],
        "is_proven": report.is_proven,
        "commands": dict(_commands(plan, report)),
    }


def _show_report(out: Console, plan: Plan, tally: Tally, report: Report) -> None:
    # Whole lines, which the terminal wraps: a command with line ends in it cannot be copied.
    line = partial(out.print, soft_wrap=True)
    line()
    line("Rows that are not claims", style="bold")
    for number, field, problem in report.malformed:
        line(f"  line {number:>4}  {field}: {visible(problem)}")
    for number, first in report.duplicates:
        line(f"  line {number:>4}  claims the same as line {first}")
    if not report.malformed and not report.duplicates:
        line("  none")
    line()
    line("Claims", style="bold")
    for decision, count in sorted(report.decisions.items()):
        line(f"  {count:>5}  {decision}")
    if not report.decisions and not report.pending:
        line("  none")
    if report.pending:
        line(f"  {len(report.pending):>5}  wait for an answer", style="yellow")
    line()
    line("Proof", style="bold")
    for check in report.checks:
        line(
            f"  {'ok  ' if check.is_true else 'FAIL'}  {check.name}: {check.detail}",
            style="" if check.is_true else "red",
        )
    worst = sum("between" in kill for kill in tally.kills)
    workers = "1 worker" if tally.started == 1 else f"{tally.started} workers"
    line(f"        {workers}, {len(tally.kills)} of them killed, {worst} between payment and record")
    line(
        f"        {report.performed} operations performed and recorded;"
        f" {report.replayed} times one was read, not performed again"
    )
    line()
    line("Look around", style="bold")
    if first := _activation():
        line(f"  {'once per shell':<15} {visible(first)}")
    line(f"  {'ledger':<15} {plan.folder / 'ledger.jsonl'}")
    for what, command in _commands(plan, report):
        line(f"  {what:<15} {visible(command)}")
