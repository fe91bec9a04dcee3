"""What must be true after the demo, however often its worker was killed. Decides from the file, the answers
and the ledger; pure.

What should have been paid is worked out anew from the rows and the people's answers, not from what the runs
say of themselves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from perdure.examples.bank import Payment
from perdure.examples.claims import ClaimProblem, in_euros, parse_claim, why_ask
from perdure.examples.expenses import Submission


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """What a claim comes to by the rules alone: an amount and whether a person decides, or the field that is
    wrong.
    """

    euros: Decimal | None
    is_asked: bool = False
    problem: ClaimProblem | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that must be true, with the figures it was decided from."""

    name: str
    is_true: bool
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Everything the proof looks at. `answers` are approvals by run id; `outcomes` are outputs of completed
    runs.
    """

    claims: Sequence[Submission]
    answers: Mapping[str, bool]
    outcomes: Mapping[str, Mapping[str, Any]]
    ledger: Sequence[Payment]
    requests: Sequence[Payment]
    receipts: Sequence[str]


def due_of(cells: Mapping[str, str]) -> Due:
    """What a row comes to."""
    try:
        claim = parse_claim(cells)
    except ClaimProblem as problem:
        return Due(euros=None, problem=problem)
    euros = in_euros(claim)
    return Due(euros=euros, is_asked=why_ask(claim, euros) is not None)


def run_of(payment: Payment) -> str:
    """The run that paid: the key is the id of the operation, which begins with its run's."""
    return payment.key.partition("/")[0]


def prove(world: World) -> list[Check]:
    """All checks, in the order in which a doubter would ask."""
    return [
        _once(world),
        _these_and_no_others(world),
        _to_the_cent(world),
        _same_keys(world),
        _said(world),
        _receipts(world),
    ]


def expected(world: World) -> dict[str, Decimal]:
    """What must be in the ledger: run id and euros of each claim that the policy or a person let pass."""
    found: dict[str, Decimal] = {}
    for claim in world.claims:
        due = due_of(claim.order["cells"])
        if due.euros is not None and (not due.is_asked or world.answers.get(claim.run_id)):
            found[claim.run_id] = due.euros
    return found


def _once(world: World) -> Check:
    counted = Counter(map(run_of, world.ledger))
    twice = sorted(run for run, count in counted.items() if count > 1)
    detail = f"{len(world.ledger)} payments for {len(counted)} claims"
    return Check(name="each claim is paid at most once", is_true=not twice, detail=", ".join(twice) or detail)


def _these_and_no_others(world: World) -> Check:
    should, did = set(expected(world)), set(map(run_of, world.ledger))
    wrong = [f"{run} is not paid" for run in sorted(should - did)] + [f"{run} is paid" for run in sorted(did - should)]
    detail = f"{len(should)} by the rules and the answers, {len(did)} in the ledger"
    return Check(name="paid are those that should be", is_true=not wrong, detail=", ".join(wrong) or detail)


def _to_the_cent(world: World) -> Check:
    should = sum(expected(world).values(), Decimal())
    did = sum((Decimal(payment.amount) for payment in world.ledger), Decimal())
    detail = f"{should:,.2f} EUR decided, {did:,.2f} EUR in the ledger"
    return Check(name="the ledger adds up to the cent", is_true=should == did, detail=detail)


def _same_keys(world: World) -> Check:
    """A repeated request came under the key of the first: else the bank could not have recognised it."""
    by_run: dict[str, set[str]] = {}
    for request in world.requests:
        by_run.setdefault(run_of(request), set()).add(request.key)
    wrong = sorted(run for run, keys in by_run.items() if len(keys) > 1)
    repeats = len(world.requests) - len({request.key for request in world.requests})
    detail = f"{len(world.requests)} requests, {repeats} of them a repetition that the bank recognised"
    return Check(name="a repeated payment has its first key", is_true=not wrong, detail=", ".join(wrong) or detail)


def _said(world: World) -> Check:
    """Runs that say they paid and the ledger agree, amount by amount."""
    paid = {run_of(payment): payment.amount for payment in world.ledger}
    said = {run: str(output["euros"]) for run, output in world.outcomes.items() if "receipt" in output}
    wrong = sorted(run for run in paid.keys() | said.keys() if paid.get(run) != said.get(run))
    detail = f"{len(said)} completed runs say that they paid"
    return Check(name="runs and ledger say the same", is_true=not wrong, detail=", ".join(wrong) or detail)


def _receipts(world: World) -> Check:
    should = sorted(f"{run_of(payment)}.txt" for payment in world.ledger)
    detail = f"{len(world.receipts)} receipts for {len(world.ledger)} payments"
    return Check(name="each payment has its receipt", is_true=should == sorted(world.receipts), detail=detail)
