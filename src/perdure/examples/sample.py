"""Makes `data/claims.csv`, the demo's sample: some 300 claims with the ordinary mess of such files, the same
bytes every time.

    python -m perdure.examples.sample > src/perdure/examples/data/claims.csv

The file mixes encodings on purpose (a mark at its start, UTF-8, some lines from an old Windows program), so
it is bytes.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import TypeVar

PATH = Path(__file__).parent / "data" / "claims.csv"
_HEADER = "Receipt,Employee,Date,Category,Amount,Currency,Description"
_ROWS = 288
_EMPLOYEES = [
    "Ada Okafor", "Ben Sørensen", "Chloé Dubois", "Dmitri Vlasov", "Elif Yılmaz", "Fatima Haddad",
    "Günter Weiß", "Hana Sato", "Iker Etxeberria", "Jana Nováková", "Kofi Mensah", "Lucía Peña",
]  # fmt: skip
_WHAT: dict[str, Sequence[str]] = {
    "travel": ("train to Lyon", "taxi, airport", "flight to Oslo", "parking", "tram tickets"),
    "hotel": ("two nights in Ghent", "one night, fair", "three nights in Osaka"),
    "meals": ("lunch with a customer", "team dinner", "coffee, workshop", "breakfast on the way"),
    "equipment": ("keyboard", 'monitor, 27"', "USB-C hub", "desk lamp"),
    "training": ("SQL course", "conference ticket", "first-aid course"),
}
_TYPICAL = {"travel": 120, "hotel": 180, "meals": 32, "equipment": 70, "training": 150}
_PER_EURO = {"EUR": 1.0, "USD": 1.08, "GBP": 0.85, "JPY": 160.0, "CHF": 0.95, "SEK": 11.3}
_CURRENCIES = ["EUR"] * 8 + ["USD", "USD", "GBP", "GBP", "JPY", "CHF", "SEK"]

_T = TypeVar("_T")


def make_sample() -> bytes:
    """The whole file."""
    dice = random.Random(20260301)
    rows = [_row(dice, number) for number in range(1, _ROWS + 1)]
    lines = [_encoded(dice, row) for row in rows]
    for position, line in sorted(_spoilt(rows), reverse=True):
        lines.insert(position, line)
    return b"\xef\xbb\xbf" + b"\r\n".join([_HEADER.encode(), *lines]) + b"\r\n"


def _pick(dice: random.Random, options: Sequence[_T]) -> _T:
    # Only random() is promised to give the same numbers in every version of Python.
    return options[int(dice.random() * len(options))]


def _row(dice: random.Random, number: int) -> list[str]:
    category = _pick(dice, list(_WHAT))
    currency = _pick(dice, _CURRENCIES)
    spread = 0.3 + dice.random() * 1.2
    if dice.random() < 0.07:
        spread *= 5
    amount = Decimal(str(round(_TYPICAL[category] * spread * _PER_EURO[currency], 2)))
    if currency == "JPY":
        amount = amount.quantize(Decimal(1))
    written, column = _money(dice, amount, currency)
    description = _pick(dice, _WHAT[category])
    if dice.random() < 0.04:
        description += "\nsee attachment"
    if dice.random() < 0.03:
        category = "entertainment"
    return [f"R-{number:04d}", _pick(dice, _EMPLOYEES), _date(dice), category, written, column, description]


def _money(dice: random.Random, amount: Decimal, currency: str) -> tuple[str, str]:
    """The amount as somebody wrote it, and what stands in the currency column."""
    english = f"{amount:,}"
    swapped = english.translate(str.maketrans(",.", ".,"))
    forms = [
        (str(amount), currency),
        (str(amount), currency),
        (english, currency),
        (swapped, currency.lower()),
        (english.replace(",", " "), currency),
        (f"{currency} {amount}", ""),
        (f"{swapped} {currency}", currency),
    ]
    symbol = {"EUR": "€", "USD": "$", "GBP": "£", "JPY": "¥"}.get(currency)
    if symbol:
        forms.append((f"{symbol}{english}", ""))
    return _pick(dice, forms)


def _date(dice: random.Random) -> str:
    month, day = 1 + int(dice.random() * 3), 1 + int(dice.random() * 28)
    forms = [f"2026-{month:02d}-{day:02d}"] * 3 + [f"{day:02d}.{month:02d}.2026"]
    if day > 12:
        forms += [f"{day}/{month}/2026", f"{month}/{day}/2026"]
    return _pick(dice, forms)


def _quoted(cell: str) -> str:
    if any(char in cell for char in ',"\n') or cell != cell.strip():
        return '"' + cell.replace('"', '""') + '"'
    return cell


def _encoded(dice: random.Random, row: Sequence[str]) -> bytes:
    text = ",".join(map(_quoted, row))
    encoding = "cp1252" if dice.random() < 0.15 else "utf-8"
    try:
        return text.encode(encoding)
    except UnicodeEncodeError:  # the old program cannot write every name
        return text.encode()


def _spoilt(rows: Sequence[Sequence[str]]) -> list[tuple[int, bytes]]:
    """Rows that are wrong, or there twice, each with the place where it goes."""

    def line(number: int, **changed: str) -> bytes:
        columns = ["receipt", "employee", "date", "category", "amount", "currency", "description"]
        cells = dict(zip(columns, rows[number], strict=True)) | {"receipt": f"X-{number:04d}"} | changed
        return ",".join(_quoted(cells[column]) for column in columns).encode()

    def again(number: int, **changed: str) -> bytes:
        return line(number, **({"receipt": rows[number][0]} | changed))

    return [
        (20, line(20, amount="")),
        (35, line(35, amount="twelve")),
        (48, again(47)),
        (60, line(60, employee="")),
        (75, line(75, amount="(12.00)", currency="EUR")),
        (90, line(90, date="2026-02-30")),
        (110, line(110, date="03/04/2026")),
        (130, line(130, amount="EUR 12", currency="USD")),
        (140, again(139, employee=rows[139][1].upper(), category=rows[139][3].title())),
        (150, line(150, currency="XBT", amount="0.5")),
        (170, b'X-0170,Ada Okafor,2026-02-03,meals,"12.00,EUR,a quote that never ends'),
        (185, b"X-0185,Ben"),
        (200, line(200, amount="1.2345", currency="EUR")),
        (215, line(215) + b",one,cell,too,many"),
        (230, line(230, amount="1.234,5.6", currency="EUR")),
        (245, b""),
        (260, again(12)),
        (275, line(275, amount="0.00", currency="EUR")),
    ]


if __name__ == "__main__":
    sys.stdout.buffer.write(make_sample())
