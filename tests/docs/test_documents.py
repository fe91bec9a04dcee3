"""What the README and the guides show happens, in the order shown, in an empty directory, as a reader would do it.

A Python block that defines a workflow is the program that the page tells the reader to save as `refund.py`; other
Python blocks are scripts. Shell blocks marked `bash` are run; those marked `sh` install something and are not. A `text`
block is what the block before it prints: `…` stands for what differs each time, runs of spaces count as one.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from perdure.cli.exits import MEANINGS

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block of a page."""

    language: str
    code: str


def _blocks(page: str) -> list[Block]:
    return [Block(match[1], match[2]) for match in FENCE.finditer((ROOT / page).read_text())]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A shell in which `perdure` and `python` are those of this checkout, and nothing of Perdure's is set."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, arguments in {"perdure": "-m perdure ", "python": ""}.items():
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments}"$@"\n')
        (programs / name).chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PERDURE_")}
    return {**kept, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT / "src")}


def _run(command: list[str], folder: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{command[-1]}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def _matches(expected: str, printed: str) -> bool:
    """Whether the expected lines are printed; one that is only an ellipsis stands for any number of lines."""
    pattern = r"\n".join(_line_pattern(line) for line in expected.splitlines())
    lines = "\n".join(" ".join(line.split()) for line in printed.splitlines())
    return re.match(pattern.replace(r"\n.*?\n", r"\n(?:.*\n)*?"), lines) is not None


def _line_pattern(line: str) -> str:
    return ".*?".join(re.escape(" ".join(part.split())) for part in re.split("…", " ".join(line.split())))


def test_the_quickstart_does_what_it_says(tmp_path: Path, environment: dict[str, str]) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    printed = ""
    for block in _blocks("docs/quickstart.md"):
        match block.language:
            case "python" if "@perdure.workflow" in block.code:
                (folder / "refund.py").write_text(block.code)
            case "python":
                printed = _run([sys.executable, "-c", block.code], folder, environment)
            case "bash":
                printed = _run(["bash", "-ec", block.code], folder, environment)
            case "text":
                assert _matches(block.code, printed), f"expected:\n{block.code}\nprinted:\n{printed}"


def test_the_readme_does_what_it_says(tmp_path: Path, environment: dict[str, str]) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    blocks = _blocks("README.md")
    (folder / "refund.py").write_text(next(block.code for block in blocks if block.language == "python"))
    shown = next(block.code for block in blocks if block.language == "bash" and "perdure run" in block.code)

    printed = _run(["bash", "-ec", shown], folder, environment)

    assert "is paused: 1 open question." in printed
    assert '"paid 120.00 for A-1001"' in printed
    assert "approved by" in printed


def test_the_quickstart_lists_every_exit_code() -> None:
    table = (ROOT / "docs/quickstart.md").read_text()

    for code, meaning in MEANINGS.items():
        assert f"| {int(code)} | {meaning} |" in table


def test_the_workflow_of_the_quickstart_is_short() -> None:
    program = next(block.code for block in _blocks("docs/quickstart.md") if block.language == "python")

    assert len([line for line in program.splitlines() if line.strip()]) <= 20


@pytest.mark.parametrize(
    ("expected", "printed", "is_match"),
    [
        ("a … c\n", "a  b c\nmore\n", True),
        ("a\n…\nd\n", "a\nb\nc\nd\n", True),
        ("a\n", "b\na\n", False),
        ("a\nc\n", "a\nb\nc\n", False),
    ],
)
def test_the_comparison_of_outputs_can_fail(expected: str, printed: str, is_match: bool) -> None:
    assert _matches(expected, printed) is is_match
