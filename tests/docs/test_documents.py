"""What the README and the guides show happens, in the order shown, in an empty directory, as a reader would do it.

A Python block that begins with `# name.py` is what the page tells the reader to save under that name (in the
quickstart: the one that defines a workflow, as `refund.py`); other Python blocks are scripts. Shell blocks marked
`bash` are run; those marked `sh` choose or install something and are not. A `text` block is what the block before it
prints: `…` stands for what differs each time, runs of spaces count as one.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer

from perdure.cli import main
from perdure.cli.exits import MEANINGS

ROOT = Path(__file__).parents[2]
GUIDES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/guides/*.md"))
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")))
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# (\w+\.py)\n")
LINK = re.compile(r"\]\(([^)\s]+)\)")
COMMAND = re.compile(r"^perdure [a-z-]+.*$|`(perdure [a-z-]+[^`]*)`", re.MULTILINE)


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


def _run(command: list[str], folder: Path, environment: dict[str, str], *, is_merged: bool = False) -> str:
    """What a command prints; with `is_merged` what a terminal shows, errors and warnings included."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if is_merged else subprocess.PIPE,
        text=True,
    )
    assert done.returncode == 0, f"{command[-1]}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def _matches(expected: str, printed: str) -> bool:
    """Whether the expected lines are printed; one that is only an ellipsis stands for any number of lines."""
    pattern = "".join(rf"\n{_line_pattern(line)}" for line in expected.splitlines())
    lines = "".join("\n" + " ".join(line.split()) for line in printed.splitlines())
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


@pytest.mark.parametrize("page", GUIDES)
def test_a_guide_does_what_it_says_on_either_store(
    tmp_path: Path, environment: dict[str, str], store_url: str, page: str
) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    environment["PERDURE_STORE"] = "sqlite:///runs.db" if store_url.startswith("sqlite:") else store_url
    printed = ""
    for block in _blocks(page):
        match block.language:
            case "python" if name := FILE.match(block.code):
                (folder / name[1]).write_text(block.code)
            case "python":
                printed = _run([sys.executable, "-c", block.code], folder, environment, is_merged=True)
            case "bash":
                printed = _run(["bash", "-ec", block.code], folder, environment, is_merged=True)
            case "text":
                assert _matches(block.code, printed), f"expected:\n{block.code}\nprinted:\n{printed}"


def test_the_guides_are_listed_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()

    assert len(GUIDES) >= 4
    assert [page for page in GUIDES if f"({page})" not in readme] == []


@pytest.mark.parametrize("page", PAGES)
def test_links_of_a_page_lead_somewhere(page: str) -> None:
    text = FENCE.sub("", (ROOT / page).read_text())
    targets = [target for target in LINK.findall(text) if not target.startswith(("http://", "https://"))]

    assert [target for target in targets if not _leads_somewhere(page, target)] == []


def _leads_somewhere(page: str, target: str) -> bool:
    name, _, heading = target.partition("#")
    path = (ROOT / page).parent / name if name else ROOT / page
    return path.exists() and (not heading or heading in _anchors(path))


def _anchors(page: Path) -> set[str]:
    """Headings as a link names them: lower case, without punctuation, hyphens for spaces."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_a_page_names_commands_and_options_that_there_are(page: str) -> None:
    named = [found[1] or found[0] for found in COMMAND.finditer((ROOT / page).read_text())]

    assert [command for command in named if not _is_command(command)] == []


def _is_command(text: str) -> bool:
    name = text.split()[1]
    if name not in main._COMMANDS:
        return False
    group: Any = typer.main.get_command(main.build([name]))
    known = {option for parameter in group.commands[name].params for option in parameter.opts}
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", _before_pipe(text))) <= known | {"--help"}


def _before_pipe(text: str) -> str:
    """The command itself: not what is quoted, what it is piped into, or what follows."""
    return re.split(r"[|&;'\"]", re.sub(r"'[^']*'|\"[^\"]*\"", "", text))[0]


@pytest.mark.parametrize(
    ("text", "is_known"),
    [
        ("perdure inspect RUN --json | python -m json.tool --indent 2", True),
        ("perdure inspect RUN --jsn", False),
        ("perdure inspct RUN", False),
    ],
)
def test_the_check_of_commands_can_fail(text: str, is_known: bool) -> None:
    assert _is_command(text) is is_known


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


def test_the_chain_of_the_readme_does_what_it_says(tmp_path: Path, environment: dict[str, str]) -> None:
    blocks = _blocks("README.md")
    program = next(block.code for block in blocks if block.language == "python" and "Chain" in block.code)
    expected = next(block.code for block in blocks if block.language == "text")

    printed = _run([sys.executable, "-c", program], tmp_path, environment)

    assert _matches(expected, printed), printed


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
        ("…\nd\n", "a\nb\nc\nd\n", True),
        ("…\ne\n", "a\nb\nc\nd\n", False),
        ("a\n", "b\na\n", False),
        ("a\nc\n", "a\nb\nc\n", False),
    ],
)
def test_the_comparison_of_outputs_can_fail(expected: str, printed: str, is_match: bool) -> None:
    assert _matches(expected, printed) is is_match
