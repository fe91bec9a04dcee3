"""The command prune: how much goes, that somebody has to say so, and what is never touched."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from tests.cli.conftest import ROOT, Ended, environment
from tests.support import database, keeping, kept

from perdure.cli.durations import parse_duration
from perdure.cli.exits import Exit
from perdure.errors import InvalidInputError

REFUND = "tests.cli.programs:refund"
ORDER = '{"id": "A-1", "amount": 250}'
NOTHING = {"is_dry_run": False, "runs": 0, "executions": 0}

Perdure = Callable[..., Ended]


@pytest.fixture
def at(store_url: str) -> tuple[str, str]:
    """The option that names the test's store."""
    return ("--store", store_url)


@pytest.fixture
def store(perdure: Perdure, at: tuple[str, str], store_url: str) -> None:
    """A store with a run that is over, one that waits, and one kept by hand; all of them old."""
    for name in ("over", "waits"):
        perdure("run", "--runner", REFUND, "--input", ORDER, "--id", name, *at)
    assert perdure("cancel", "over", *at).code == Exit.OK
    with keeping.checkpointer(store_url) as saver:
        saver.put(kept.checkpoint("c1"))
    for table, columns in (("run", ("created_at", "ended_at")), ("execution", ("updated_at",))):
        for column in columns:
            database.execute(store_url, f"UPDATE {table} SET {column} = {column} - 3 * 86400")


def _runs(perdure: Perdure, at: tuple[str, str]) -> list[str]:
    return [each["run_id"] for each in perdure("runs", *at, "--json").json["runs"]]


@pytest.mark.usefixtures("store")
def test_prune_says_how_much_and_spares_what_waits(perdure: Perdure, at: tuple[str, str]) -> None:
    command = ("prune", "--older-than", "2d", *at)
    dry = perdure(*command, "--dry-run", "--json")
    assert (dry.code, dry.json) == (Exit.OK, {"is_dry_run": True, "runs": 1, "executions": 1})
    assert _runs(perdure, at) == ["waits", "over"]
    assert perdure(*command, "--dry-run").out == "1 run and 1 kept by hand would be deleted\n"
    done = perdure(*command, "--yes")
    assert (done.code, done.out) == (Exit.OK, "1 run and 1 kept by hand deleted\n")
    assert _runs(perdure, at) == ["waits"]
    assert perdure(*command, "--yes", "--json").json == NOTHING


@pytest.mark.usefixtures("store")
def test_prune_by_age(perdure: Perdure, at: tuple[str, str]) -> None:
    assert perdure("prune", "--older-than", "4d", *at, "--yes", "--json").json == NOTHING
    assert perdure("prune", "--older-than", "71h", *at, "--yes", "--json").json["runs"] == 1


@pytest.mark.usefixtures("store")
def test_prune_of_failed_runs_is_asked_for(perdure: Perdure, at: tuple[str, str], store_url: str) -> None:
    database.execute(store_url, "UPDATE run SET status = 'failed' WHERE id = 'over'")
    command = ("prune", "--older-than", "2d", *at, "--yes", "--json")
    assert perdure(*command).json["runs"] == 0
    assert perdure(*command, "--include-failed").json["runs"] == 1


@pytest.mark.usefixtures("store")
def test_a_late_duplicate_of_a_pruned_run_is_recognised(perdure: Perdure, at: tuple[str, str]) -> None:
    perdure("prune", "--older-than", "1s", *at, "--yes")
    late = perdure("run", "--runner", REFUND, "--input", ORDER, "--id", "over", *at)
    assert late.code == Exit.ALREADY_RESUMED
    assert "pruned" in late.err
    assert _runs(perdure, at) == ["waits"]


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("options", [(), ("--json",)])
def test_prune_deletes_nothing_when_nobody_said_so(
    process: Perdure, perdure: Perdure, at: tuple[str, str], options: tuple[str, ...]
) -> None:
    ended = process("prune", "--older-than", "1s", *at, *options)
    assert ended.code == Exit.INVALID
    assert "--yes" in ended.err
    assert _runs(perdure, at) == ["waits", "over"]


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize(("said", "left"), [("yes", ["waits"]), ("y", ["waits", "over"]), ("", ["waits", "over"])])
def test_prune_asks_at_a_terminal(perdure: Perdure, at: tuple[str, str], said: str, left: list[str]) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "perdure", "prune", "--older-than", "1s", *at],
        cwd=ROOT, env=environment(), stdin=theirs, stdout=subprocess.PIPE, text=True,
    ) as command:  # fmt: skip
        os.close(theirs)
        os.write(ours, f"{said}\n".encode())
        out, _ = command.communicate()
    os.close(ours)
    assert command.returncode == Exit.OK
    assert "Delete 1 run and 1 kept by hand for good?" in out
    assert _runs(perdure, at) == left


def test_prune_of_a_store_that_is_not_there_creates_none(perdure: Perdure, tmp_path: Path) -> None:
    ended = perdure("prune", "--older-than", "1d", "--yes", "--db-path", str(tmp_path / "none.db"), "--json")
    assert (ended.code, ended.json) == (Exit.OK, NOTHING)
    assert not (tmp_path / "none.db").exists()


@pytest.mark.parametrize("text", ["", "30", "d", "-1d", "1 d", "1y", "1d2h", "٣d", "1e3d", "inf"])
def test_a_length_of_time_has_a_unit(text: str, perdure: Perdure) -> None:
    with pytest.raises(InvalidInputError) as caught:
        parse_duration(text, "--older-than")
    assert caught.value.field == "--older-than"
    assert perdure("prune", f"--older-than={text}", "--yes").code == Exit.INVALID


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90s", timedelta(seconds=90)),
        ("45m", timedelta(minutes=45)),
        ("12h", timedelta(hours=12)),
        ("30d", timedelta(days=30)),
        ("2w", timedelta(weeks=2)),
        ("1.5d", timedelta(hours=36)),
        ("0s", timedelta(0)),
    ],
)
def test_lengths_of_time(text: str, expected: timedelta) -> None:
    assert parse_duration(text, "x") == expected
