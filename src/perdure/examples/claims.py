"""What an expense claim is: its fields, what they are worth, what the policy says. Decides; does nothing.

Pure, so that the workflow, the program that submits claims and the proof at the end of the demo all say the
same.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from decimal import ROUND_HALF_EVEN, Decimal

from perdure.examples.amounts import CENT, AmountError, parse_amount

RATES = {
    "EUR": Decimal("1"),
    "USD": Decimal("0.92"),
    "GBP": Decimal("1.17"),
    "CHF": Decimal("1.05"),
    "JPY": Decimal("0.0061"),
    "SEK": Decimal("0.088"),
}
"""Euros for one unit. Fixed: a demo whose result depends on the day proves nothing."""

LIMITS = {"travel": 500, "hotel": 350, "equipment": 200, "meals": 80, "training": 400}
"""What is paid without asking, in euros, by category. In a category that is not listed everything is asked.
"""


class ClaimProblem(ValueError):
    """A claim cannot be processed: which field, and what is wrong with it."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(field, problem)
        self.field = field
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.field}: {self.problem}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A claim with every field understood."""

    receipt: str
    employee: str
    date: date
    category: str
    amount: Decimal
    currency: str
    description: str


def parse_claim(cells: Mapping[str, str]) -> Claim:
    """The claim in a row's cells. Raises `ClaimProblem` for the first field that cannot be understood."""
    amount, currency = _money(cells.get("amount", ""), cells.get("currency", ""))
    return Claim(
        receipt=cells.get("receipt", "").upper(),
        employee=_required(cells, "employee"),
        date=_date(_required(cells, "date")),
        category=_required(cells, "category").lower(),
        amount=amount,
        currency=currency,
        description=cells.get("description", ""),
    )


def in_euros(claim: Claim) -> Decimal:
    """The claim's amount in euros, to the cent."""
    return (claim.amount * RATES[claim.currency]).quantize(CENT, rounding=ROUND_HALF_EVEN)


def why_ask(claim: Claim, euros: Decimal) -> str | None:
    """Why a person must decide, or None if the policy pays."""
    limit = LIMITS.get(claim.category)
    if limit is None:
        return f"there is no rule for {claim.category}"
    return f"more than {limit} EUR for {claim.category}" if euros > limit else None


def identity(cells: Mapping[str, str]) -> str:
    """Twelve hex digits: the same for two rows that claim the same thing, however they write it."""
    try:
        claim = parse_claim(cells)
    except ClaimProblem:
        said: list[str] = sorted(f"{column}={cell}" for column, cell in cells.items())
    else:
        said = [
            claim.receipt,
            claim.employee.casefold(),
            claim.date.isoformat(),
            claim.category,
            str(claim.amount),
            claim.currency,
            claim.description.casefold(),
        ]
    return hashlib.sha256(json.dumps(said).encode("utf-8", "surrogatepass")).hexdigest()[:12]


def _required(cells: Mapping[str, str], column: str) -> str:
    cell = cells.get(column, "")
    if not cell:
        raise ClaimProblem(column, "is missing")
    return cell


def _money(amount_text: str, currency_text: str) -> tuple[Decimal, str]:
    if not amount_text:
        raise ClaimProblem("amount", "is missing")
    try:
        amount, beside = parse_amount(amount_text)
    except AmountError as error:
        raise ClaimProblem("amount", str(error)) from error
    currency = currency_text.upper() or beside
    if currency is None:
        raise ClaimProblem("currency", "is missing")
    if beside is not None and beside != currency:
        raise ClaimProblem("currency", f"is {currency}, but the amount says {beside}")
    if currency not in RATES:
        raise ClaimProblem("currency", f"there is no rate for {currency}")
    if amount <= 0:
        raise ClaimProblem("amount", f"{amount} is not more than zero, so there is nothing to pay")
    return amount, currency


_ISO = re.compile(r"(\d{4})-(\d{1,2})-(\d{1,2})", re.ASCII)
_DOTTED = re.compile(r"(\d{1,2})\.(\d{1,2})\.(\d{4})", re.ASCII)
_SLASHED = re.compile(r"(\d{1,2})/(\d{1,2})/(\d{4})", re.ASCII)


def _date(text: str) -> date:
    year, month, day = _date_parts(text)
    try:
        return date(year, month, day)
    except ValueError:
        raise ClaimProblem("date", f"there is no day {text}") from None


def _date_parts(text: str) -> tuple[int, int, int]:
    if match := _ISO.fullmatch(text):
        return int(match[1]), int(match[2]), int(match[3])
    if match := _DOTTED.fullmatch(text):
        return int(match[3]), int(match[2]), int(match[1])
    if match := _SLASHED.fullmatch(text):
        first, second, year = int(match[1]), int(match[2]), int(match[3])
        if first > 12 or first == second:
            return year, second, first
        if second > 12:
            return year, first, second
        raise ClaimProblem("date", f"{text} may be two days; write {year}-MM-DD")
    raise ClaimProblem("date", f"{text!r} is not a date; write YYYY-MM-DD")
