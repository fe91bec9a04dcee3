"""Rules about the repository itself: what it must have, what must not be in it, and that its tools bite."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from blockbuster import BlockingError

import perdure

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "perdure"
MODULES = sorted(PACKAGE.rglob("*.py"))
MAX_MODULE_LINES = 500
# For child processes: the tests run before the package is installed, too.
WITH_SOURCES = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
# What `import perdure` must not load: each costs more than the package itself.
HEAVY = {"fastapi", "psycopg", "psycopg_pool", "pydantic", "pydantic_ai", "rich", "typer", "uvicorn"}
# Directories that exist on one developer's machine only.
MACHINE_PATH = re.compile(r"(?<![\w.~$}/-])/(?:home|root|Users|work)/\w")
LEAVES_DIRECTORY = re.compile(r"(?<![\w./])(?:\.\./)+[\w.][\w./-]*")
TRACKER_NUMBER = re.compile(r"\b[Ii]ssue #?\d")


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _repository_files() -> list[Path]:
    """Every file git tracks or would add."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    ).stdout.decode()
    return [path for name in listed.split("\0") if name and (path := ROOT / name).is_file()]


def _texts() -> list[tuple[Path, str]]:
    texts = []
    for path in _repository_files():
        content = path.read_bytes()
        if b"\0" not in content:
            texts.append((path, content.decode("utf-8", errors="replace")))
    return texts


# --- what is there -------------------------------------------------------------------------------------


def test_changelog_has_an_unreleased_section_and_the_package_version_is_a_release() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text()
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]

    assert re.search(r"^## \[Unreleased\]$", changelog, re.MULTILINE)
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)


@pytest.mark.parametrize(
    "name", ["README.md", "CONTRIBUTING.md", "LICENSE", "docs/architecture.md", "docs/glossary.md"]
)
def test_what_a_newcomer_looks_for_is_there(name: str) -> None:
    assert (ROOT / name).read_text().strip()


@pytest.mark.parametrize("path", sorted(ROOT.glob("docs/decisions/*.md")), ids=_name)
def test_a_decision_says_context_choice_price_and_when_to_look_again(path: Path) -> None:
    headings = re.findall(r"^## (.+)$", path.read_text(), re.MULTILINE)

    assert re.fullmatch(r"\d{4}-[a-z0-9-]+\.md", path.name)
    assert headings == ["Context", "Choice", "Price", "When to look again"]


def test_every_package_has_its_line_on_the_map() -> None:
    architecture = (ROOT / "docs" / "architecture.md").read_text()
    packages = {path.parent.name for path in PACKAGE.glob("*/*.py")}

    assert {name for name in packages if f"`{name}/`" not in architecture} == set()


def test_every_dependency_has_its_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = [
        *project["dependencies"],
        *(d for ds in project["optional-dependencies"].values() for d in ds),
    ]
    explained = (ROOT / "docs" / "dependencies.md").read_text()
    names = {re.split(r"[\[<>=~ ]", dependency)[0] for dependency in declared}

    assert {name for name in names if f"`{name}`" not in explained} == set()


def test_make_help_lists_every_target() -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    shown = subprocess.run(
        ["make", "--no-print-directory"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout

    assert targets
    assert {target for target in targets if not re.search(rf"^\W*{target}\b", shown, re.MULTILINE)} == set()


# --- code in documents ---------------------------------------------------------------------------------


def _fences() -> list[Any]:
    """(language, code) of every fenced block in the Markdown files, with file and line as its id."""
    fences = []
    for path, text in _texts():
        if path.suffix != ".md":
            continue
        for match in re.finditer(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            line = text.count("\n", 0, match.start()) + 1
            fences.append(pytest.param(match[1], match[2], id=f"{_name(path)}:{line}"))
    return fences


def _parse_python(code: str) -> None:
    compile(code, "<fence>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST)


def _parse_shell(code: str) -> None:
    checked = subprocess.run(["bash", "-n"], input=code, text=True, capture_output=True)
    assert checked.returncode == 0, checked.stderr


PARSERS = {
    "bash": _parse_shell,
    "json": json.loads,
    "python": _parse_python,
    "sh": _parse_shell,
    "sql": str.strip,
    "text": str.strip,
    "toml": tomllib.loads,
}


@pytest.mark.parametrize(("language", "code"), _fences())
def test_code_in_documents_parses(language: str, code: str) -> None:
    PARSERS[language](code)


# --- the package ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_every_module_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text()))


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_no_module_is_larger_than_a_head(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MAX_MODULE_LINES


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_no_module_is_a_drawer(path: Path) -> None:
    assert path.stem not in {"common", "helpers", "misc", "util", "utils"}


def test_import_perdure_loads_nothing_heavy() -> None:
    code = "import sys, json, perdure; print(json.dumps([name.partition('.')[0] for name in sys.modules]))"
    loaded = subprocess.run(
        [sys.executable, "-c", code],
        env=WITH_SOURCES,
        check=True,
        capture_output=True,
        text=True,
    ).stdout

    assert "perdure" in json.loads(loaded)
    assert HEAVY.intersection(json.loads(loaded)) == set()


def test_imports_point_down() -> None:
    checked = subprocess.run(
        [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"],
        cwd=ROOT,
        env=WITH_SOURCES,
        capture_output=True,
        text=True,
    )

    assert checked.returncode == 0, checked.stdout + checked.stderr


# --- what must not be there ----------------------------------------------------------------------------


def test_no_file_knows_the_machine_it_was_written_on() -> None:
    assert [(_name(path), found[0]) for path, text in _texts() if (found := MACHINE_PATH.search(text))] == []


def test_no_file_points_outside_the_repository() -> None:
    """A relative path may go up, but never past the top: what lies beside a checkout is not the project's."""
    outside = [
        (_name(path), found)
        for path, text in _texts()
        for found in LEAVES_DIRECTORY.findall(text)
        if not (path.parent / found).resolve().is_relative_to(ROOT)
    ]

    assert outside == []


def test_no_file_cites_a_tracker_by_bare_number() -> None:
    """Why something is so belongs in the text; a bare number means nothing to who has another tracker."""
    assert [(_name(path), found[0]) for path, text in _texts() if (found := TRACKER_NUMBER.search(text))] == []


@pytest.mark.parametrize(
    ("pattern", "text", "is_found"),
    [
        (MACHINE_PATH, "see /" + "home/me/notes", True),
        (MACHINE_PATH, "GET https://example.org/home/page", False),
        (MACHINE_PATH, "the path /runs/work/steps", False),
        (LEAVES_DIRECTORY, "see .." + "/elsewhere/notes.md", True),
        (LEAVES_DIRECTORY, "and so on .../ again", False),
        (TRACKER_NUMBER, "fixes iss" + "ue 12", True),
        (TRACKER_NUMBER, "owner/repo#12", False),
    ],
)
def test_the_patterns_find_what_they_look_for(pattern: re.Pattern[str], text: str, is_found: bool) -> None:
    assert bool(pattern.search(text)) is is_found


# --- the detector of blocking calls --------------------------------------------------------------------


def _sleep_in(path: Path) -> Callable[[], None]:
    """A function that blocks, as if it stood in the file at `path`."""
    namespace: dict[str, Any] = {}
    exec(compile("import time\ndef block():\n    time.sleep(0)\n", str(path), "exec"), namespace)
    return namespace["block"]


async def test_the_package_may_not_block_the_loop() -> None:
    with pytest.raises(BlockingError):
        _sleep_in(Path(perdure.__path__[0]) / "module.py")()


async def test_a_test_may_block_its_own_loop() -> None:
    time.sleep(0)
    _sleep_in(Path(__file__))()


def test_a_synchronous_caller_may_be_blocked() -> None:
    _sleep_in(Path(perdure.__path__[0]) / "module.py")()
