"""What a package of this kind was seen to get wrong at its command line: silent approvals, crashed runs,
what counts as a runner."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

_APP = """
import os, sys
from perdure import interrupt, step, workflow

def log(what):
    with open("ledger", "a") as ledger:
        ledger.write(what + "\\n")

@step
def work(what: str) -> str:
    log(what)
    return what

@step
def hold(what: str) -> str:
    if os.environ.get("HOLD"):
        print("holding", file=sys.stderr, flush=True)
        sys.stdin.readline()
    log(what)
    return what

@workflow
async def refund(order: dict) -> dict:
    await work("check")
    answer = interrupt("refund?", {"amount": order["amount"]})
    if not answer.approved:
        return {"paid": False}
    await work("pay")
    return {"paid": True}

@workflow
async def crashes(order: dict) -> str:
    await work("before")
    await hold("middle")
    return await work("after")

def make():
    log("factory")
    return refund

def dangerous():
    log("dangerous")
    return 5

def needs(argument):
    log("needs")
    return refund

class Thing:
    def __init__(self):
        log("class")
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A user's directory with their module in it."""
    directory = tmp_path / "here"
    directory.mkdir()
    (directory / "app.py").write_text(_APP)
    return directory


def _command(*arguments: str) -> list[str]:
    return [str(Path(sys.executable).with_name("perdure")), *arguments]


def _perdure(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(_command(*arguments), cwd=place, capture_output=True, text=True, stdin=subprocess.DEVNULL)


def _json(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def _effects(place: Path) -> list[str]:
    ledger = place / "ledger"
    return ledger.read_text().splitlines() if ledger.exists() else []


_NOT_AN_ANSWER: list[list[str]] = [
    [], [], ["--value", ""], ["--value", "{}"], ["--value", "true"], ["--value", '"yes"'], ["--value", "null"],
    ["--value", "[]"],
    ["--value", '{"approved": "yes"}'], ["--value", '{"approved": 1}'], ["--value", '{"approved": null}'],
    ["--value", '{"metadata": {}}'], ["--value", '{"approved": true'],
]  # fmt: skip


def test_peer_A8_cli_approves_nothing_by_default(place: Path, store_url: str) -> None:
    """No value, an empty one, or one that merely looks like a yes: refused, and the question stays open."""
    options = ["--store", store_url]
    started = _perdure(place, "run", "--runner", "app:refund", "--input", '{"amount": 5}', "--id", "r", *options)
    assert started.returncode == 0, started.stderr
    for n, given in enumerate(_NOT_AN_ANSWER):
        runner = ["--runner", "app:refund"] if n % 2 else []
        refused = _perdure(place, "resume", "r", *given, *runner, *options)
        assert refused.returncode not in (0, 2), (given, runner, refused.stdout)
        assert refused.stderr
    assert _effects(place) == ["check"]
    answered = _perdure(place, "resume", "r", "--value", '{"approved": true}', "--runner", "app:refund", *options)
    assert answered.returncode == 0, answered.stderr
    again = _perdure(place, "resume", "r", "--value", '{"approved": true}', "--runner", "app:refund", *options)
    assert again.returncode == 2
    assert _effects(place) == ["check", "pay"]


def test_peer_H1_crashed_run_is_resumed_by_the_cli(place: Path, store_url: str) -> None:
    """Killed in the middle: `resume` without a value goes on from what is recorded."""
    options = ["--store", store_url]
    process = subprocess.Popen(
        _command("run", "--runner", "app.py:crashes", "--input", "{}", "--id", "r", *options),
        cwd=place,
        env=os.environ | {"HOLD": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            if line.startswith("holding"):
                break
        else:
            raise AssertionError("".join(said))
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == -signal.SIGKILL
    resumed = _perdure(place, "resume", "r", "--runner", "app.py:crashes", "--json", *options)
    assert resumed.returncode == 0, resumed.stderr
    assert _json(resumed)["output"] == "after"
    assert _effects(place) == ["before", "middle", "after"]


@pytest.mark.parametrize("spec", ["app:refund", "app.py:refund", "./app.py:refund", "app:make"])
def test_peer_H5_current_directory_is_importable(place: Path, tmp_path: Path, spec: str) -> None:
    """A module in the current directory, a file by its path, and a factory are found by the installed
    command."""
    url = f"sqlite:///{tmp_path / 'perdure.db'}"
    done = _perdure(place, "run", "--runner", spec, "--input", '{"amount": 5}', "--store", url, "--json")
    assert done.returncode == 0, done.stderr
    assert _json(done)["status"] == "paused"


@pytest.mark.parametrize(
    "spec",
    ["os:abort", "os:getcwd", "sys:exit", "subprocess:run", "app:dangerous", "app:needs", "app:Thing", "app:work",
     "app:nothing", "nothing:refund", "app", ":refund", "app:", "nothing.py:refund", "builtins:print"],
)  # fmt: skip
def test_peer_H5_only_runners_and_factories_are_run(place: Path, tmp_path: Path, spec: str) -> None:
    """Anything else is refused with a message that says what it is, and nothing is stored."""
    database = tmp_path / "perdure.db"
    done = _perdure(place, "run", "--runner", spec, "--input", '{"amount": 5}', "--store", f"sqlite:///{database}")
    assert done.returncode == 3, (done.returncode, done.stderr)
    assert "Traceback" not in done.stderr
    assert not database.exists()
    # A function without arguments may be a factory, so it is asked; nothing else is called.
    assert _effects(place) == (["dangerous"] if spec == "app:dangerous" else [])
