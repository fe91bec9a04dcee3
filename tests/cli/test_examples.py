"""The pure parts of the expense example: amounts, rows, claims, the proof, and the sample they must bear."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.examples import bank, proof, sample
from perdure.examples.amounts import AmountError, parse_amount
from perdure.examples.claims import ClaimProblem, identity, in_euros, parse_claim
from perdure.examples.expenses import Submission, submissions
from perdure.examples.rows import FileProblem, parse_rows, read_rows

HEADER = b"receipt,employee,date,category,amount,currency,description\n"
CELLS = {"employee": "Ada", "date": "2026-03-01", "category": "meals", "amount": "12.50", "currency": "EUR"}


# --- amounts ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value", "currency"),
    [
        ("1,234.50", "1234.50", None),
        ("1.234,50", "1234.50", None),
        ("1 234,50", "1234.50", None),
        ("1\u00a0234,50", "1234.50", None),
        ("1'234.50", "1234.50", None),
        ("1\u2019234.50", "1234.50", None),
        ("1,234,567.8", "1234567.80", None),
        ("1.234", "1234.00", None),
        ("12,5", "12.50", None),
        ("12", "12.00", None),
        ("007", "7.00", None),
        ("EUR 12", "12.00", "EUR"),
        ("12 €", "12.00", "EUR"),
        ("usd12.10", "12.10", "USD"),
        ("$45.10", "45.10", "USD"),
        ("¥3,000", "3000.00", "JPY"),
        ("Fr. 12.05", "12.05", "CHF"),
        ("(12.00)", "-12.00", None),
        ("-12.00", "-12.00", None),
        ("\u221212.00", "-12.00", None),
        ("12.00-", "-12.00", None),
        ("-$5", "-5.00", "USD"),
        ("$-5", "-5.00", "USD"),
        ("(EUR 5)", "-5.00", "EUR"),
    ],
)
def test_amounts_as_people_write_them(text: str, value: str, currency: str | None) -> None:
    assert parse_amount(text) == (Decimal(value), currency)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  ",
        "twelve",
        "EUR",
        "NaN",
        "1e3",
        "0x10",
        "0.123",
        "1.2345",
        "1,234,56",
        "12,34,567.00",
        "1.234,5.6",
        "1,2.3,4",
        ".50",
        "--5",
        "-5-",
        "(5",
        "5 - 3",
        "EUR 5 USD",
        "5 apples",
        "\u0663",
        "9" * 30,
    ],
)
def test_what_is_no_amount_or_may_be_two_is_refused(text: str) -> None:
    with pytest.raises(AmountError):
        parse_amount(text)


@given(st.decimals(min_value=Decimal("0.01"), max_value=Decimal("999999999.99"), places=2))
def test_every_usual_way_to_write_an_amount_means_the_same(value: Decimal) -> None:
    english = f"{value:,.2f}"
    ways = [
        english,
        english.translate(str.maketrans(",.", ".,")),
        english.replace(",", " "),
        f"EUR {value}",
        f"€{english}",
    ]

    assert {parse_amount(way)[0] for way in ways} == {value}


# --- rows -------------------------------------------------------------------------------------------------


def _rows(content: bytes) -> list[tuple[int, str | None, str | None]]:
    """(line, employee, problem) of each row."""
    return [(row.line, row.cells.get("employee"), row.problem) for row in parse_rows(content)]


def test_cells_may_hold_delimiters_quotes_and_line_ends() -> None:
    content = HEADER + b'R1,"Okafor, ""Ada""",2026-03-01,meals,1,EUR,"two\r\nlines"\r\nR2,Ben,2026-03-01,meals,1,EUR,\n'

    assert _rows(content) == [(2, 'Okafor, "Ada"', None), (4, "Ben", None)]
    assert next(parse_rows(content)).cells["description"] == "two lines"


def test_each_line_is_read_in_its_own_encoding() -> None:
    content = b"\xef\xbb\xbf" + HEADER + "R1,Zoë,,,,,\n".encode() + "R2,Zoë,,,,,\n".encode("cp1252") + b"R3,\x81,,,,,\n"

    assert _rows(content) == [(2, "Zoë", None), (3, "Zoë", None), (4, "\x81", None)]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_marks_and_delimiters_are_recognised(encoding: str, delimiter: str) -> None:
    text = (HEADER.decode() + "R1,Zoë,,,,,\n").replace(",", delimiter)

    assert _rows(text.encode(encoding)) == [(2, "Zoë", None)]


def test_a_quote_that_is_never_closed_costs_its_own_row_only() -> None:
    content = HEADER + b'R1,"Ada,x\n' + b'R2,"B, Ben",2026-03-01,meals,1,EUR,\n' + b"R3,Cem,,,,,\n"

    rows = _rows(content)

    assert [(line, employee) for line, employee, _ in rows] == [(2, None), (3, "B, Ben"), (4, "Cem")]
    assert rows[0][2] is not None


def test_a_quote_at_the_end_of_the_file_is_reported() -> None:
    assert _rows(HEADER + b'R1,"Ada')[0][2] == "a quote is opened and never closed"


def test_rows_of_another_length() -> None:
    rows = list(parse_rows(HEADER + b"R1,Ada\n\n   \nR2,Ben,,,,,,,\nR3,Cem,,,,,,one,more\n"))

    assert [(row.line, row.problem) for row in rows] == [
        (2, None),
        (5, None),
        (6, "has 9 cells, the header has 7"),
    ]
    assert rows[0].cells["amount"] == ""


@pytest.mark.parametrize("content", [b"", b"\n \n", b"\xef\xbb\xbf", b"name,sum\nAda,1\n", b"\x00\x01\x02"])
def test_a_file_without_the_columns_is_refused_as_a_whole(content: bytes) -> None:
    with pytest.raises(FileProblem):
        list(parse_rows(content))


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileProblem, match="No such file"):
        read_rows(tmp_path / "none.csv")


@given(st.binary(max_size=400))
def test_no_content_is_lost_or_breaks_the_reader(content: bytes) -> None:
    rows = list(parse_rows(HEADER + content))

    for row in rows:
        assert row.problem or row.cells
        assert row.line >= 2
    assert len({row.line for row in rows}) == len(rows)


# --- claims -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"employee": ""}, "employee"),
        ({"date": ""}, "date"),
        ({"date": "soon"}, "date"),
        ({"date": "2026-02-30"}, "date"),
        ({"date": "03/04/2026"}, "date"),
        ({"date": "31.11.2026"}, "date"),
        ({"category": ""}, "category"),
        ({"amount": ""}, "amount"),
        ({"amount": "x"}, "amount"),
        ({"amount": "0"}, "amount"),
        ({"amount": "(1.00)"}, "amount"),
        ({"currency": ""}, "currency"),
        ({"currency": "XBT"}, "currency"),
        ({"amount": "USD 5"}, "currency"),
    ],
)
def test_a_problem_names_its_field(changed: dict[str, str], field: str) -> None:
    with pytest.raises(ClaimProblem) as caught:
        parse_claim(CELLS | changed)

    assert caught.value.field == field


@pytest.mark.parametrize("text", ["2026-03-25", "25.03.2026", "25/3/2026", "3/25/2026"])
def test_dates_that_can_only_be_one_day(text: str) -> None:
    assert parse_claim(CELLS | {"date": text}).date.isoformat() == "2026-03-25"


def test_euros_are_exact_to_the_cent() -> None:
    assert in_euros(parse_claim(CELLS | {"amount": "1,000", "currency": "JPY"})) == Decimal("6.10")
    # 2.925 and 5.265: halves go to the even cent.
    assert in_euros(parse_claim(CELLS | {"amount": "2.50", "currency": "GBP"})) == Decimal("2.92")
    assert in_euros(parse_claim(CELLS | {"amount": "4.50", "currency": "GBP"})) == Decimal("5.26")


def test_two_ways_to_write_one_claim_are_one_claim() -> None:
    same = CELLS | {"employee": "ADA", "category": "Meals", "amount": "€12,50", "date": "2026-3-1"}

    assert identity(same) == identity(CELLS)
    assert identity(CELLS | {"receipt": "R-1"}) != identity(CELLS)
    assert identity(CELLS | {"amount": "x"}) != identity(CELLS | {"amount": "y"})


def test_a_duplicate_is_no_second_run_and_another_account_is_another_run() -> None:
    row = b"R1,Ada,2026-03-01,meals,12.50,EUR,lunch\n"
    rows = list(parse_rows(HEADER + row + b"r1,ADA,2026-03-01,Meals,12.5,eur,Lunch\n" + row))

    here, there = submissions(rows, "/here"), submissions(rows, "/there")

    assert here.duplicates == [(3, 2), (4, 2)]
    assert len(here.claims) == 1
    assert here.claims[0].run_id != there.claims[0].run_id


# --- the bank and the proof -------------------------------------------------------------------------------


def test_the_bank_pays_once_for_a_key(tmp_path: Path) -> None:
    for _ in range(3):
        bank.transfer(str(tmp_path), key="r1/3", to="Ada", amount=Decimal("5.00"))
    bank.transfer(str(tmp_path), key="r2/3", to="Ada", amount=Decimal("5.00"))

    assert [payment.key for payment in bank.payments(tmp_path)] == ["r1/3", "r2/3"]
    assert len(bank.requests(tmp_path)) == 4


def _world(**changed: object) -> proof.World:
    claim = Submission(line=2, run_id="r1", order={"cells": CELLS})
    asked = Submission(line=3, run_id="r2", order={"cells": CELLS | {"amount": "100"}})
    paid = bank.Payment(key="r1/3", to="Ada", amount="12.50", pid=1)
    true: dict[str, object] = {
        "claims": [claim, asked],
        "answers": {"r2": False},
        "outcomes": {"r1": {"euros": Decimal("12.50"), "receipt": "r1.txt"}, "r2": {"decision": "denied"}},
        "ledger": [paid],
        "requests": [paid, paid],
        "receipts": ["r1.txt"],
    }
    return proof.World(**(true | changed))  # type: ignore[arg-type]


def test_the_proof_holds_for_what_is_right() -> None:
    assert [check.name for check in proof.prove(_world()) if not check.is_true] == []


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        (
            {"ledger": [bank.Payment(key=f"r1/{n}", to="Ada", amount="6.25", pid=1) for n in (3, 4)]},
            "each claim is paid at most once",
        ),
        ({"ledger": [], "receipts": []}, "paid are those that should be"),
        ({"answers": {"r2": True}}, "paid are those that should be"),
        (
            {"ledger": [bank.Payment(key="r1/3", to="Ada", amount="12.51", pid=1)]},
            "the ledger adds up to the cent",
        ),
        (
            {"requests": [bank.Payment(key=f"r1/{n}", to="A", amount="1", pid=1) for n in (3, 4)]},
            "a repeated payment has its first key",
        ),
        ({"outcomes": {}}, "runs and ledger say the same"),
        ({"receipts": []}, "each payment has its receipt"),
    ],
)
def test_the_proof_finds_what_is_wrong(changed: dict[str, object], name: str) -> None:
    assert name in [check.name for check in proof.prove(_world(**changed)) if not check.is_true]


# --- the sample -------------------------------------------------------------------------------------------


def test_the_sample_is_what_its_program_makes() -> None:
    assert sample.PATH.read_bytes() == sample.make_sample()


def test_the_sample_has_the_ordinary_mess_in_it() -> None:
    content = sample.PATH.read_bytes()
    rows = read_rows(sample.PATH)
    asked = submissions(rows, "/account")
    problems = set()
    for claim in asked.claims:
        due = proof.due_of(claim.order["cells"])
        problems.add(due.problem.field if due.problem else "asked" if due.is_asked else "paid")

    assert len(rows) > 290
    assert problems == {"asked", "paid", "amount", "employee", "date", "currency"}
    assert len(asked.duplicates) == 3
    assert len(asked.broken) == 2
    assert content.startswith(b"\xef\xbb\xbf")
    with pytest.raises(UnicodeDecodeError):
        content.decode()
    assert any("see attachment" in row.cells.get("description", "") for row in rows)
