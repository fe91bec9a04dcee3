"""The main job, as a user runs it: its own processes are killed, and this is what is left when it is done."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
EXPENSES = "perdure.examples.expenses:expense_claim"
HEADER = "receipt,employee,date,category,amount,currency,description\n"
FEW = HEADER + (
    "R1,Ada,2026-03-01,meals,12.50,EUR,lunch\n"
    "R2,Ben,2026-03-02,hotel,900.00,EUR,three nights\n"
    "R3,Cem,2026-03-03,travel,EUR 2000,,flight\n"
    "R4,Dan,2026-03-04,meals,,EUR,dinner\n"
    "R1,Ada,01.03.2026,meals,€12.50,,lunch\n"
)


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PERDURE_")}
    return {**kept, "PYTHONPATH": str(ROOT / "src")}


def _perdure(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "perdure", *arguments],
        cwd=folder,
        env=_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )


def _demo(folder: Path, *arguments: str) -> dict[str, Any]:
    done = _perdure(folder, "demo", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def _ledger(report: dict[str, Any]) -> list[dict[str, Any]]:
    path = Path(report["directory"]) / "ledger.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def few(tmp_path: Path) -> Path:
    """A file of three good claims, two of which are asked about, a broken one and a duplicate."""
    path = tmp_path / "few.csv"
    path.write_text(FEW)
    return path


def test_the_sample_is_processed_through_kills_and_nothing_is_paid_twice(tmp_path: Path, store_url: str) -> None:
    report = _demo(tmp_path, "--store", store_url, "--approve-all")

    assert report["is_proven"] is True
    assert len(report["checks"]) == 6
    assert report["pending"] == []
    assert report["decisions"]["approved"] > 10
    assert len(report["malformed"]) > 10
    assert len(report["duplicates"]) == 3
    # Four while the file was processed, one after the answers; each time a further worker came.
    killed = report["workers"]["killed"]
    assert len(killed) == 5
    assert sum("between the ledger's line and the record" in kill for kill in killed) == 2
    assert report["workers"]["started"] == len(killed) + 2
    assert report["operations"]["replayed"] > 0
    # Looked at with nothing of the demo's own.
    ledger = _ledger(report)
    assert max(Counter(line["key"].partition("/")[0] for line in ledger).values()) == 1
    assert len({line["pid"] for line in ledger}) >= 5
    assert str(sum(Decimal(line["amount"]) for line in ledger)) == report["paid_euros"]


def test_without_a_terminal_questions_stay_open_and_it_says_how_to_go_on(few: Path, tmp_path: Path) -> None:
    done = _perdure(tmp_path, "demo", "--input", str(few))

    assert done.returncode == 0, done.stderr
    assert re.search(r"2  wait for an answer", done.stdout)
    assert "line    5  amount: is missing" in done.stdout
    assert "line    6  claims the same as line 2" in done.stdout
    commands = re.findall(r"^  \w[\w ]+?  +(perdure .+)$", done.stdout, re.MULTILINE)
    for command in commands:
        followed = subprocess.run(
            command.replace("perdure", f"{sys.executable} -m perdure", 1),
            shell=True,
            cwd=tmp_path,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        assert followed.returncode == 0, (command, followed.stderr)
    # "answer one" approved the first, "approve all" the other.
    assert "2  approved" in followed.stdout
    assert len(commands) == 5


def test_what_is_over_a_limit_is_denied_and_silence_is_no_approval(few: Path, tmp_path: Path) -> None:
    denied = _demo(tmp_path, "--input", str(few), "--dir", "d", "--deny-over", "1000")
    assert denied["decisions"] == {"denied": 1, "malformed": 1, "within policy": 1}
    assert len(denied["pending"]) == 1

    approved = _demo(tmp_path, "--input", str(few), "--dir", "d", "--approve-all")

    assert approved["decisions"] == {"approved": 1, "denied": 1, "malformed": 1, "within policy": 1}
    assert [line["amount"] for line in _ledger(approved)] == ["12.50", "900.00"]
    again = _demo(tmp_path, "--input", str(few), "--dir", "d", "--approve-all")
    assert (_ledger(again), again["decisions"]) == (_ledger(approved), approved["decisions"])
    assert again["workers"]["killed"] == []


def test_two_demos_in_one_store_are_two(few: Path, tmp_path: Path, store_url: str) -> None:
    one = _demo(tmp_path, "--input", str(few), "--dir", "one", "--store", store_url)
    two = _demo(tmp_path, "--input", str(few), "--dir", "two", "--store", store_url, "--approve-all")

    assert len(one["pending"]) == 2
    assert len(_ledger(two)) == 3
    assert len(_ledger(one)) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--input", "none.csv"), "No such file"),
        (("--input", "other.csv"), "no column employee"),
        (("--deny-over", "much"), "--deny-over"),
        (("--dir", "other.csv"), "--dir"),
    ],
)
def test_what_cannot_be_used_is_refused_before_anything_is_made(
    arguments: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")

    done = _perdure(tmp_path, "demo", *arguments)

    assert done.returncode == 3
    assert said in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["other.csv"]


@pytest.mark.parametrize("content", [HEADER, HEADER + "R4,Dan,2026-03-04,meals,,EUR,dinner\n", HEADER + 'R,"Ada'])
def test_a_file_without_a_payable_claim_is_no_error(content: str, tmp_path: Path) -> None:
    (tmp_path / "none.csv").write_text(content)

    report = _demo(tmp_path, "--input", "none.csv")

    assert report["is_proven"] is True
    assert report["paid_euros"] == "0.00"


# --- at a terminal ----------------------------------------------------------------------------------------


class _Terminal:
    """A demo at a terminal of its own."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "perdure", "demo", *arguments],
            cwd=folder,
            env={**_environment(), "TERM": "xterm", "COLUMNS": "200"},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        self.shown = ""

    def expect(self, pattern: str) -> None:
        """Read until the pattern has been shown; what was read up to there is not matched again."""
        while not (match := re.search(pattern, self.shown)):
            self.shown += self._read() or f"<ended before {pattern!r}>"
            assert "<ended before" not in self.shown, self.shown
        self.shown = self.shown[match.end() :]

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def end(self) -> int:
        while self._read():
            pass
        os.close(self._master)
        return self.process.wait()

    def _read(self) -> str:
        try:
            return os.read(self._master, 65536).decode(errors="replace")
        except OSError:  # Linux's way to say that nobody has the other end open any more
            return ""


def test_at_a_terminal_the_person_decides(few: Path, tmp_path: Path) -> None:
    terminal = _Terminal(tmp_path, "--input", str(few), "--dir", "d")
    terminal.expect(r"approve\? ")
    terminal.type("maybe\n")
    terminal.expect(r"approve\? ")
    terminal.type("y\n")
    terminal.expect(r"\[2/2\][\s\S]*approve\? ")
    terminal.type("n\n")
    terminal.expect("1  approved")
    terminal.expect("1  denied")
    assert terminal.end() == 0

    assert len(_demo(tmp_path, "--input", str(few), "--dir", "d")["pending"]) == 0


def test_the_end_of_the_input_is_no_answer(few: Path, tmp_path: Path) -> None:
    terminal = _Terminal(tmp_path, "--input", str(few), "--dir", "d")
    terminal.expect(r"approve\? ")
    terminal.type("\x04")
    terminal.expect("2  wait for an answer")

    assert terminal.end() == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_while_a_person_is_asked(few: Path, tmp_path: Path, number: signal.Signals) -> None:
    terminal = _Terminal(tmp_path, "--input", str(few), "--dir", "d")
    terminal.expect(r"approve\? ")
    terminal.type("y\n")
    terminal.expect(r"\[2/2\][\s\S]*approve\? ")
    os.kill(terminal.process.pid, number)
    terminal.expect("go on with: perdure demo")
    assert terminal.end() == 128 + number

    report = _demo(tmp_path, "--input", str(few), "--dir", "d")

    assert (report["decisions"]["approved"], len(report["pending"])) == (1, 1)


@pytest.mark.parametrize("limit", ["100 USD", "-1", "x", "1e5", ""])
def test_a_limit_is_a_number_of_euros(few: Path, tmp_path: Path, limit: str) -> None:
    done = _perdure(tmp_path, "demo", "--input", str(few), "--deny-over", limit)

    assert done.returncode == 3
    assert not (tmp_path / "perdure-demo").exists()


def test_a_demo_that_is_stopped_leaves_no_worker_behind_and_goes_on_later(tmp_path: Path) -> None:
    terminal = _Terminal(tmp_path, "--dir", "d")
    terminal.expect("worker [0-9]+ killed")
    os.kill(terminal.process.pid, signal.SIGINT)
    terminal.expect("SIGINT")
    assert terminal.end() == 130

    report = _demo(tmp_path, "--dir", "d", "--approve-all")

    assert report["is_proven"] is True
    assert report["pending"] == []
