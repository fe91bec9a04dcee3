"""Amounts of money as people write them. Decides what a text means, or that it may mean two things; pure.

Money is `Decimal` from here on; a float never sees it.
"""

from __future__ import annotations

import re
from decimal import Decimal

CENT = Decimal("0.01")

SYMBOLS = {
    "€": "EUR",
    "$": "USD",
    "US$": "USD",
    "£": "GBP",
    "¥": "JPY",
    "Fr.": "CHF",
    "SFr.": "CHF",
    "kr": "SEK",
}
"""What is written beside a number, and the currency it stands for. Three capital letters stand for
themselves.
"""

_SPACES = " \u00a0\u2009\u202f\t"
_SIGNS = str.maketrans({"\u2212": "-", "\u2013": "-", "\u2019": "'"})
_PARTS = re.compile(rf"(?P<before>[^0-9]*)(?P<number>[0-9][0-9.,'{_SPACES}]*)(?P<after>[^0-9]*)")
_MAX_DIGITS = 15
_DIGITS = re.compile("[0-9]+")


class AmountError(ValueError):
    """The text is no amount, or may be two different ones; the message says why."""


def parse_amount(text: str) -> tuple[Decimal, str | None]:
    """The amount with two decimals, and the currency written beside it (None if there is none).

    Understood: `1,234.50`, `1.234,50`, `1 234,50`, `1'234.50`, `EUR 12`, `12 €`, `$45.10`, and `(12.00)`,
    `-12.00` and `12.00-` as negative. Raises `AmountError` for all else; nothing is guessed.
    """
    bare, is_negative = _without_sign(text.translate(_SIGNS).strip(_SPACES + "\r\n"))
    match = _PARTS.fullmatch(bare)
    if match is None:
        raise AmountError("is empty" if not bare else f"{text!r} is not an amount")
    currency = _currency(text, match["before"].strip(_SPACES), match["after"].strip(_SPACES))
    value = _number(text, match["number"].strip(_SPACES))
    return (-value if is_negative else value), currency


def _without_sign(text: str) -> tuple[str, bool]:
    """The text without what makes it negative. The sign may stand before or behind the currency."""
    if text.startswith("(") and text.endswith(")"):
        return text[1:-1].strip(_SPACES), True
    if text.count("-") == 1:
        before, _, after = text.partition("-")
        is_outside = not _DIGITS.search(before) or not _DIGITS.search(after)
        if is_outside:
            return (before + after).strip(_SPACES), True
    return text, False


def _currency(text: str, before: str, after: str) -> str | None:
    if before and after:
        raise AmountError(f"{text!r} has something on both sides of the number")
    mark = before or after
    if not mark:
        return None
    if mark in SYMBOLS:
        return SYMBOLS[mark]
    if re.fullmatch("[A-Za-z]{3}", mark):
        return mark.upper()
    raise AmountError(f"{text!r}: {mark!r} is not a currency")


def _number(text: str, number: str) -> Decimal:
    whole, decimals = _split(text, number)
    groups = re.split(rf"[.,'{_SPACES}]", whole)
    is_grouped = len(groups) > 1
    if is_grouped and not (1 <= len(groups[0]) <= 3 and all(len(group) == 3 for group in groups[1:])):
        raise AmountError(f"{text!r} is not grouped in thousands")
    if is_grouped and groups[0].startswith("0"):
        raise AmountError(f"{text!r} has more than two decimals")
    digits = "".join(groups)
    if len(digits) > _MAX_DIGITS:
        raise AmountError(f"{text!r} is more money than there is")
    return Decimal(f"{digits}.{decimals or '0'}").quantize(CENT)


def _split(text: str, number: str) -> tuple[str, str]:
    """Whole part (perhaps grouped) and decimals. A single separator before three digits groups: money has no
    third decimal.
    """
    marks = re.findall(rf"[.,'{_SPACES}]", number)
    if not marks:
        return number, ""
    last = marks[-1]
    whole, _, tail = number.rpartition(last)
    grouping = set(marks[:-1])
    if last not in ".," or last in grouping or (not grouping and len(tail) == 3):
        grouping.add(last)
        whole, tail = number, ""
    elif not 1 <= len(tail) <= 2:
        raise AmountError(f"{text!r} has {len(tail)} decimals")
    if len(grouping) > 1:
        raise AmountError(f"{text!r} mixes separators")
    return whole, tail
