"""Ids stay whole, control characters stay visible, every error has its exit code."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from perdure import errors
from perdure.cli import tree
from perdure.cli.exits import MEANINGS, Exit, exit_code
from perdure.cli.main import run
from perdure.cli.output import table, visible

ID = "claim-0123456789-abcdefghijklmnopqrstuvwxyz"


@pytest.mark.parametrize("width", [60, 80, 120, 1000])
def test_an_id_is_never_cut_and_stays_on_one_line(width: int) -> None:
    out = io.StringIO()
    console = Console(file=out, width=width)
    rows = [(ID, "a reason that is long enough to be folded " * 5)] * 2

    console.print(table(console, ("run", "reason"), rows))

    assert out.getvalue().count(ID) == 2


def test_an_id_wider_than_the_terminal_is_folded_and_not_cut() -> None:
    out = io.StringIO()
    console = Console(file=out, width=20)

    console.print(table(console, ("run", "reason"), [(ID, "why")]))

    assert ID in re.sub(r"[^\w-]|why", "", out.getvalue())


def _shown(width: int, rows: list[tuple[str, ...]]) -> list[str]:
    out = io.StringIO()
    console = Console(file=out, width=width)
    console.print(table(console, ("run", "question", "status", "reason", "at"), rows, ids=2))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_where_a_table_does_not_fit_each_row_is_a_block() -> None:
    row = ("r1", "q_0123456789abcdef01234567", "waiting", "why not", "2026-01-02T03:04:05.678Z")

    assert _shown(40, [row]) == [
        "run  r1",
        "  question  q_0123456789abcdef01234567",
        "  status    waiting",
        "  reason    why not",
        "  at        2026-01-02T03:04:05.678Z",
        "",
    ]


def test_only_the_longest_column_gives_way() -> None:
    row = ("r1", "q_0123456789abcdef01234567", "waiting", "because " * 9 + "of it", "2026-01-02T03:04:05.678Z")

    lines = _shown(100, [row])

    assert len([line for line in lines if "because" in line]) > 1
    assert all(any(part in line for line in lines) for part in (row[1], row[2], row[4]))


def test_control_characters_are_written_out() -> None:
    assert visible("a\x1b[2Jb\x00\u202e\ud800\n") == "a\\x1b[2Jb\\x00\\u202e\\ud800\n"


ERRORS = [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, errors.PerdureError)]


@pytest.mark.parametrize("cls", ERRORS, ids=lambda cls: cls.__name__)
def test_every_error_has_an_exit_code_of_its_own_kind(cls: type[BaseException]) -> None:
    assert exit_code(cls.__new__(cls)) not in (Exit.OK, Exit.DEFECT)


def test_without_a_command_it_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 0

    assert capsys.readouterr().out.startswith("Usage: perdure")


def test_the_references_exit_codes() -> None:
    assert exit_code(errors.AlreadyResumed("r", "m")) == 2
    assert exit_code(errors.ChainCheckpointError("m")) == 1
    assert exit_code(KeyError()) == Exit.DEFECT


def test_the_help_lists_every_command_and_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0

    shown = capsys.readouterr().out
    for name in (
        "demo",
        "run",
        "resume",
        "list-pending",
        "inspect",
        "runs",
        "fork",
        "cancel",
        "retry",
        "worker",
        "doctor",
    ):
        assert re.search(rf"^  {name} ", shown, re.MULTILINE)
    for code in MEANINGS:
        assert re.search(rf"^ +{int(code)}  ", shown, re.MULTILINE)


@pytest.mark.parametrize(
    "arguments", [["no-such-command"], ["resume"], ["runs", "--limit", "0"], ["runs", "--no-such-option"]]
)
def test_a_usage_error_is_not_taken_for_an_answered_question(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == Exit.INVALID

    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("perdure: ")


@pytest.mark.parametrize(
    ("path", "owner"),
    [
        ("", ""),
        ("~0", ""),
        ("~0/~1", ""),
        ("3", "3"),
        ("3!", "3"),
        ("3!/~0", "3"),
        ("3/~1", "3"),
        ("~0/2", "~0/2"),
        ("~0/2!/~1", "~0/2"),
        ("3/1", "3/1"),
        ("3/?ask", "3"),
        ("?ask", ""),
        ("review", ""),
        ("sub/0/review", "sub/0"),
        ("sub/0/review/1", "sub/0/review/1"),
        ("sub/0/review/1!", "sub/0/review/1"),
    ],
)
def test_where_an_operation_hangs_in_the_tree(path: str, owner: str) -> None:
    assert tree.owner_key(path, {"3", "~0/2", "3/1", "sub/0", "sub/0/review/1"}) == owner
