"""The demo's director: starts the program in `expenses`, kills it, starts it again, and looks at what is
left.

It never takes part in the work: claims are processed by other processes only, and what it knows of them it
reads from the store and the ledger. What it has to say goes to a `Stage`; how that looks is not decided here.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import perdure
from perdure.core import codec
from perdure.core.records import InterruptRow, RecordType, RunFilter, RunRow
from perdure.examples import bank, proof
from perdure.examples.expenses import RUNNER, Submission, Submissions, submissions
from perdure.examples.rows import read_rows
from perdure.store.base import Store

_PAGE = 1000
_LOOK_S = 0.2


class DemoError(perdure.PerdureError):
    """The demo cannot go on: its worker ended by itself, with an error."""

    code = "demo"


class Stage(Protocol):
    """Where the demo says what happens."""

    def say(self, text: str) -> None:
        """One thing that has happened."""
        ...

    def progress(self, counts: Mapping[str, int], total: int) -> None:
        """How many claims are in which state."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the demo works on."""

    file: Path
    folder: Path
    store: str
    submitted: Submissions

    @property
    def ids(self) -> frozenset[str]:
        return frozenset(claim.run_id for claim in self.submitted.claims)


@dataclass(frozen=True, slots=True)
class Kill:
    """When to kill a worker: after so many payments; `is_held` means between the ledger's line and the record
    of it.
    """

    after: int
    is_held: bool


@dataclass(slots=True, kw_only=True)
class Tally:
    """What became of the worker processes."""

    started: int = 0
    kills: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What is left: every claim, what was performed and what only read again, the proof."""

    decisions: dict[str, int]
    malformed: list[tuple[int, str, str]]
    duplicates: list[tuple[int, int]]
    pending: list[str]
    performed: int
    replayed: int
    euros: str
    checks: list[proof.Check]

    @property
    def is_proven(self) -> bool:
        return all(check.is_true for check in self.checks)


def prepare(file: Path, folder: Path, store: str | None) -> Plan:
    """Read the file and make the folder. Raises `FileProblem` if the file cannot be used; nothing is made
    then.
    """
    rows = read_rows(file)
    folder.mkdir(parents=True, exist_ok=True)
    account = str(folder.resolve())
    return Plan(
        file=file.resolve(),
        folder=Path(account),
        store=store or f"sqlite:///{account}/claims.db",
        submitted=submissions(rows, account),
    )


def kills_for(claims: Sequence[Submission], *, is_started: bool) -> list[Kill]:
    """Four kills spread over the payments that need no answer, the second at the worst moment. Fewer for a
    short file.
    """
    if is_started:
        return []
    count = sum(_is_paid_unasked(claim) for claim in claims)
    share = count // 8
    if share == 0:
        return [Kill(1, True)] if count else []
    return [Kill(share, False), Kill(share, True), Kill(share, False), Kill(share, False)]


def _is_paid_unasked(claim: Submission) -> bool:
    due = proof.due_of(claim.order["cells"])
    return due.euros is not None and not due.is_asked


# --- the worker processes ---------------------------------------------------------------------------------


async def work(plan: Plan, store: Store, kills: Iterable[Kill], stage: Stage, tally: Tally, *, is_new: bool) -> None:
    """Start a worker, kill it, start the next; the last one may finish. Returns when nothing is left but
    questions.

    `is_new` workers submit the file's claims first; others are ordinary workers, as `perdure worker` starts
    them.
    """
    command = _program(plan) if is_new else _worker(plan)
    async with _watched(plan, store, stage):
        for kill in kills:
            if not await _run_and_kill(plan, command, kill, stage, tally):
                return
        await _run_to_the_end(plan, command, stage, tally)


def _program(plan: Plan) -> list[str]:
    return [
        "-m",
        "perdure.examples.expenses",
        str(plan.file),
        "--account",
        str(plan.folder),
    ]


def _worker(plan: Plan) -> list[str]:
    return ["-m", "perdure", "worker", "--runner", RUNNER, "--until-idle"]


async def _run_and_kill(plan: Plan, command: list[str], kill: Kill, stage: Stage, tally: Tally) -> bool:
    """Whether it could be killed; a worker that had too little to do has ended before."""
    told, tell = os.pipe()
    wait, hold = os.pipe()
    try:
        hold_at = kill.after if kill.is_held else 0
        gate = {bank.GATE_VARIABLE: f"{tell},{wait},{hold_at}"}
        process = await _start(plan, command, tally, gate, (tell, wait))
        os.close(tell)
        tell = -1
        try:
            is_reached = await _reached(told, kill)
        except BaseException:
            await _stop(process)
            raise
        if not is_reached:
            await _ended(plan, process)
            return False
        process.send_signal(signal.SIGKILL)
        await process.wait()
    finally:
        for each in (told, tell, wait, hold):
            if each >= 0:
                os.close(each)
    when = "between the ledger's line and the record of it" if kill.is_held else f"after {kill.after} payments"
    tally.kills.append(when)
    stage.say(f"worker {process.pid} killed (SIGKILL) {when}")
    return True


async def _reached(told: int, kill: Kill) -> bool:
    """Wait until the worker has told of enough payments; False if it ended first."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(os.dup(told), "rb", buffering=0)
    )
    try:
        seen = 0
        while signs := await reader.read(256):
            seen += len(signs)
            if b"!" in signs or (not kill.is_held and seen >= kill.after):
                return True
        return False
    finally:
        transport.close()


async def _run_to_the_end(plan: Plan, command: list[str], stage: Stage, tally: Tally) -> None:
    process = await _start(plan, command, tally)
    await _ended(plan, process)
    stage.say(f"worker {process.pid} has nothing left to do")


async def _start(
    plan: Plan,
    command: list[str],
    tally: Tally,
    gate: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
) -> asyncio.subprocess.Process:
    tally.started += 1
    with _log(plan).open("ab") as log:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            *command,
            # Not as an argument: an address may hold a password, and everybody may list processes.
            env={**os.environ, "PERDURE_STORE": plan.store, **(gate or {})},
            pass_fds=pass_fds,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )


async def _ended(plan: Plan, process: asyncio.subprocess.Process) -> None:
    """Wait for a worker's own end. If the demo is stopped meanwhile, so is the worker, in good order."""
    try:
        code = await process.wait()
    except BaseException:
        await _stop(process)
        raise
    if code != 0:
        raise DemoError(f"the worker ended with {code}; the end of {_log(plan)}:\n{_tail(_log(plan))}")


async def _stop(process: asyncio.subprocess.Process) -> None:
    """The demo itself is being stopped: no worker outlives it."""
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    await process.wait()


def _log(plan: Plan) -> Path:
    return plan.folder / "workers.log"


def _tail(path: Path) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-20:])


# --- looking at the store ---------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def _watched(plan: Plan, store: Store, stage: Stage) -> AsyncIterator[None]:
    """Report progress while something runs."""
    watching = asyncio.create_task(_watch(plan, store, stage))
    try:
        yield
    finally:
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching
    stage.progress(await counts(plan, store), len(plan.submitted.claims))


async def _watch(plan: Plan, store: Store, stage: Stage) -> None:
    while True:
        stage.progress(await counts(plan, store), len(plan.submitted.claims))
        await asyncio.sleep(_LOOK_S)


async def counts(plan: Plan, store: Store) -> dict[str, int]:
    """How many of the demo's claims are in which state."""
    return dict(Counter(row.status for row in await rows(plan, store)))


async def rows(plan: Plan, store: Store) -> list[RunRow]:
    """The demo's runs. A store may hold many others."""
    found: list[RunRow] = []
    after: str | None = None
    while True:
        page = await store.run_list(RunFilter(runner="expense_claim", after=after, limit=_PAGE))
        found += [row for row in page if row.run_id in plan.ids]
        if len(page) < _PAGE or len(found) >= len(plan.ids):
            return found
        after = page[-1].run_id


async def pending(plan: Plan, store: Store) -> list[InterruptRow]:
    """The demo's open questions, oldest first."""
    return [row for row in await store.interrupt_list(limit=100_000) if row.run_id in plan.ids]


async def answer(store: Store, row: InterruptRow, *, is_approved: bool, answered_by: str) -> None:
    """Answer one question. From here on the answer is in the store, and a worker goes on with the run."""
    said = codec.encode({"approved": is_approved, "metadata": {}})
    await store.interrupt_answer(row.run_id, {row.interrupt_id: said}, answered_by=answered_by)


async def report(plan: Plan, store: Store) -> Report:
    """Load every run of the demo and prove what must hold."""
    outcomes: dict[str, dict[str, Any]] = {}
    answers: dict[str, bool] = {}
    waiting: list[str] = []
    performed = replayed = 0
    for row in await rows(plan, store):
        loaded = await store.run_load(row.run_id)
        done, again = _performed(loaded.records)
        performed, replayed = performed + done, replayed + again
        waiting += [each.run_id for each in loaded.interrupts if each.status == "pending"]
        answers |= {each.run_id: codec.decode(each.answer)["approved"] for each in loaded.interrupts if each.answer}
        if row.status == "completed":
            ends = [record.data for record in loaded.records if record.type == RecordType.STATUS]
            outcomes[row.run_id] = codec.decode(ends[-1] or "null")
    ledger = bank.payments(plan.folder)
    world = proof.World(
        claims=plan.submitted.claims,
        answers=answers,
        outcomes=outcomes,
        ledger=ledger,
        requests=bank.requests(plan.folder),
        receipts=[path.name for path in (plan.folder / "receipts").glob("*.txt")],
    )
    return Report(
        decisions=dict(Counter(str(outcome["decision"]) for outcome in outcomes.values())),
        malformed=_malformed(plan, outcomes),
        duplicates=plan.submitted.duplicates,
        pending=waiting,
        performed=performed,
        replayed=replayed,
        euros=f"{sum(proof.Decimal(payment.amount) for payment in ledger):.2f}",
        checks=proof.prove(world),
    )


def _performed(records: Sequence[Any]) -> tuple[int, int]:
    """Operations whose outcome is recorded; and how often one was read again by a worker that took the run
    over.
    """
    done = again = 0
    for record in records:
        # Paths that begin with @ are the records of idempotency keys: the same act as the call's.
        if record.type == RecordType.COMPLETED and not record.path.startswith("@"):
            done += 1
        elif record.type == RecordType.STATUS and record.outcome == "running":
            again += done
    return done, again


def _malformed(plan: Plan, outcomes: Mapping[str, Mapping[str, Any]]) -> list[tuple[int, str, str]]:
    """(line, field, problem) of every row that could not be processed, in the order of the file."""
    found = [(row.line, "row", row.problem or "") for row in plan.submitted.broken]
    for claim in plan.submitted.claims:
        outcome = outcomes.get(claim.run_id, {})
        if outcome.get("decision") == "malformed":
            found.append((claim.line, outcome["field"], outcome["problem"]))
    return sorted(found)
