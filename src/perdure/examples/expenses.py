"""Expense claims: the program that `perdure demo` runs and kills. Read `expense_claim` first.

It is written as if nothing could go wrong: no status column, no "already paid" flag, no code for continuing.
Kill the process anywhere and start it again; what was done stays done, questions stay open until somebody
answers.

    python -m perdure.examples.expenses claims.csv --store sqlite:///claims.db --account ./account
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import perdure
from perdure.examples import bank
from perdure.examples.claims import Claim, ClaimProblem, identity, in_euros, parse_claim, why_ask
from perdure.examples.rows import Row, read_rows

RUNNER = "perdure.examples.expenses:expense_claim"


# --- the workflow ---------------------------------------------------------------------------------------


@perdure.workflow(name="expense_claim")
async def expense_claim(order: dict[str, Any]) -> dict[str, Any]:
    """One claim, from a row of a file to a receipt. `order` has the row's cells and the account that pays."""
    try:
        claim = await validate(order["cells"])
    except ClaimProblem as problem:
        return {"decision": "malformed", "field": problem.field, "problem": problem.problem}

    euros = await convert(claim)
    decision, decided_by = "within policy", "policy"
    if reason := why_ask(claim, euros):
        answer = perdure.interrupt("Approve this expense claim?", question(claim, euros, reason))
        decision = "approved" if answer.approved else "denied"
        decided_by = "a person"
    if decision == "denied":
        return {"decision": decision, "decided_by": decided_by, "euros": euros}

    payment = await pay(order["account"], claim.employee, euros)
    receipt = await file_receipt(order["account"], order["claim"], payment)
    return {"decision": decision, "decided_by": decided_by, "euros": euros, "receipt": receipt}


@perdure.step(recovery="safe", errors=[ClaimProblem])
async def validate(cells: dict[str, str]) -> Claim:
    """Safe: nothing outside notices, so after a crash it may simply run again."""
    return parse_claim(cells)


@perdure.step(recovery="safe")
async def convert(claim: Claim) -> Decimal:
    """A step, although it only multiplies: the rate of the day must be the recorded one for ever."""
    return in_euros(claim)


@perdure.idempotent(recovery="idempotent")
async def pay(account: str, employee: str, euros: Decimal) -> str:
    """The one thing that must not happen twice.

    Nobody can know whether a process that died here had paid. So it asks again, under the same operation id,
    and the provider recognises what it has already done.
    """
    key = perdure.operation_id()
    return await asyncio.to_thread(bank.transfer, account, key=key, to=employee, amount=euros)


@perdure.step
async def file_receipt(account: str, claim_id: str, text: str) -> str:
    """Idempotent by nature: the same file with the same content."""
    return await asyncio.to_thread(_write_receipt, Path(account) / "receipts", claim_id, text)


def question(claim: Claim, euros: Decimal, reason: str) -> dict[str, Any]:
    """What the approver sees, and what the record will say that they saw."""
    return {
        "employee": claim.employee,
        "claimed": f"{claim.amount} {claim.currency}",
        "euros": str(euros),
        "for": f"{claim.category}: {claim.description}",
        "date": claim.date.isoformat(),
        "why": reason,
    }


def _write_receipt(folder: Path, claim_id: str, text: str) -> str:
    folder.mkdir(exist_ok=True)
    draft = folder / f".{claim_id}.{os.getpid()}"
    draft.write_text(text + "\n", encoding="utf-8")
    draft.replace(folder / f"{claim_id}.txt")
    return f"{claim_id}.txt"


# --- from rows to runs ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A row that becomes a run: its id says what it claims, so that submitting it again changes nothing."""

    line: int
    run_id: str
    order: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Submissions:
    """What a file asks for. `broken` rows could not be split into cells; `duplicates` are (line, line of the
    first).
    """

    claims: list[Submission]
    duplicates: list[tuple[int, int]]
    broken: list[Row]


def submissions(rows: Sequence[Row], account: str) -> Submissions:
    """The runs that these rows ask for. Two rows that claim the same thing are one run."""
    # Part of the id, so that two accounts in one database do not take each other's claims for their own.
    batch = hashlib.sha256(account.encode("utf-8", "surrogateescape")).hexdigest()[:6]
    first: dict[str, Submission] = {}
    duplicates: list[tuple[int, int]] = []
    for row in rows:
        if row.problem:
            continue
        run_id = f"claim-{batch}-{identity(row.cells)}"
        if earlier := first.get(run_id):
            duplicates.append((row.line, earlier.line))
            continue
        order = {"claim": run_id, "account": account, "cells": row.cells}
        first[run_id] = Submission(line=row.line, run_id=run_id, order=order)
    return Submissions(claims=list(first.values()), duplicates=duplicates, broken=[row for row in rows if row.problem])


async def process(claims: Sequence[Submission], store: str) -> None:
    """Submit every claim and work until nothing is left but questions. Started again, it goes on where it
    was.
    """
    async with perdure.open_engine(store) as engine:
        for claim in claims:
            # Refused if an earlier file claimed the same in other words: that run stands.
            with contextlib.suppress(perdure.DurableConflictError):
                await engine.start(expense_claim, claim.order, execution_id=claim.run_id)
        await engine.work([expense_claim], until_idle=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Process expense claims; start it again after a crash.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--store", default=None, help="default: PERDURE_STORE, or ./.perdure/local.db")
    parser.add_argument("--account", type=Path, required=True, help="directory of the ledger and the receipts")
    given = parser.parse_args()
    given.account.mkdir(parents=True, exist_ok=True)
    asked = submissions(read_rows(given.file), str(given.account.resolve()))
    asyncio.run(process(asked.claims, given.store or perdure.get_config().store_url))


if __name__ == "__main__":
    main()
