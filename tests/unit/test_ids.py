"""Ids: order, what is accepted, and file names."""

import string
import threading
from uuid import UUID

import pytest

from perdure.core import ids
from perdure.errors import InvalidInputError


def test_run_ids_are_uuid7_and_grow():
    made = [ids.run_id() for _ in range(10_000)]  # more than one millisecond has room to count
    assert made == sorted(set(made))
    for text in made[::1000]:
        parsed = UUID(text)
        assert (parsed.version, str(parsed)) == (7, text)
        assert parsed.variant == "specified in RFC 4122"


def test_run_ids_grow_when_the_clock_goes_back(monkeypatch):
    before = ids.run_id()
    monkeypatch.setattr(ids.time, "time_ns", lambda: 0)
    assert ids.run_id() > before


def test_run_ids_of_threads_differ():
    made: list[list[str]] = [[] for _ in range(4)]
    threads = [
        threading.Thread(target=lambda mine=mine: mine.extend(ids.run_id() for _ in range(2000))) for mine in made
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({text for mine in made for text in mine}) == 8000
    assert all(mine == sorted(mine) for mine in made)


def test_interrupt_ids_tell_questions_apart():
    assert ids.interrupt_id("r", "k", 0) == ids.interrupt_id("r", "k", 0)
    variants = [
        ("r", "k", 0),
        ("r", "k", "0"),
        ("r", "k0", ""),
        ("rk", "", 0),
        ("r", "k", 1),
        ("r", '","', 0),
    ]
    made = {ids.interrupt_id(*variant) for variant in variants}
    assert len(made) == len(variants)
    assert all(text.startswith("q_") and len(text) == 26 for text in made)


def test_interrupt_ids_are_pinned():
    assert ids.interrupt_id("r", "k", 0) == "q_0414fb0c5dd745031ae2837e"


@pytest.mark.parametrize("value", ["a", "order 7", "é", "x" * 256, "CON", "a:b*", "../x", "\U0001f600"])
def test_ordinary_ids_are_taken_as_they_are(value):
    assert ids.check_id(value, "execution_id") == value


@pytest.mark.parametrize(
    "value",
    ["", " ", "\t\n", "x" * 257, "a\x00b", "a\nb", "\x7f", "a\x85", "\ud800", None, 7, b"a"],
    ids=ascii,
)
def test_law_11_bad_ids_name_the_field(value):
    with pytest.raises(InvalidInputError, match="session_id") as caught:
        ids.check_id(value, "session_id")
    assert caught.value.field == "session_id"


AWKWARD = [
    *(
        "a:b",
        "a*b",
        "a?b",
        "<",
        ">",
        "|",
        '"',
        "/",
        "\\",
        "..",
        ".",
        "a.",
        "a ",
        " a",
        "CON",
        "con",
        "Con",
        "nul",
    ),
    *(
        "COM1",
        "com1",
        "lpt9",
        "aux",
        "con.txt",
        "A",
        "a",
        "aB",
        "Ab",
        "ab",
        "AB",
        "x" * 300,
        "x" * 301,
        "x" * 64,
    ),
    *(
        "é",
        "e\u0301",
        "\ud800",
        "\x00",
        "-",
        "_",
        "-a",
        "",
        "id",
        "a=b",
        "ß",
        "SS",
        "ss",
        "x" * 65,
        "COM\u00b9",
    ),
]


def test_case_l8_file_names_are_legal_and_unique():
    names = [ids.file_name(value) for value in AWKWARD]
    assert len({name.casefold() for name in names}) == len(AWKWARD)
    allowed = set(string.ascii_lowercase + string.digits + "-_=")
    devices = {"con", "prn", "aux", "nul", *(f"{d}{n}" for d in ("com", "lpt") for n in range(10))}
    for name in names:
        assert set(name) <= allowed
        assert 0 < len(name) <= 64
        assert name not in devices


def test_a_file_name_does_not_make_another():
    """The name of an awkward id is itself an id that somebody may use."""
    assert ids.file_name(ids.file_name("CON")) != ids.file_name("CON")


def test_plain_ids_stay_readable():
    text = ids.run_id()
    assert ids.file_name(text) == text
    assert ids.file_name("Order: 7").startswith("order-7=")
