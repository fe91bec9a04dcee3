"""The command line as tests call it: in this process for what is parsed and shown, else as a real process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from perdure.cli import main

ROOT = Path(__file__).parents[2]
PROGRAMS = "tests.cli.programs"


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def perdure(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., Ended]:
    """Run a command in this process, in an empty directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PERDURE_STORE", raising=False)
    monkeypatch.delenv("PERDURE_LOCAL_DB", raising=False)

    def call(*arguments: str) -> Ended:
        capsys.readouterr()
        code = main.run(arguments)
        captured = capsys.readouterr()
        return Ended(int(code), captured.out, captured.err)

    return call


@pytest.fixture
def process(tmp_path: Path) -> Callable[..., Ended]:
    """Run a command as a real process of its own, without a terminal, in an empty directory."""

    def call(*arguments: str, **variables: str) -> Ended:
        done = subprocess.run(
            [sys.executable, "-m", "perdure", *arguments],
            cwd=tmp_path,
            env=environment(**variables),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        return Ended(done.returncode, done.stdout, done.stderr)

    return call


def environment(**variables: str) -> dict[str, str]:
    """For child processes: the sources and the tests are importable, whatever is installed."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PERDURE_")}
    return {**kept, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]), **variables}
