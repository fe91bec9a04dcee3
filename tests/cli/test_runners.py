"""What --runner takes, and that nothing else is ever called."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.cli import programs

from perdure.cli.runners import load_runner, load_runners
from perdure.errors import InvalidInputError

FILE = str(Path(programs.__file__ or ""))


@pytest.mark.parametrize(
    "spec",
    ["tests.cli.programs:refund", f"{FILE}:refund", "tests.cli.programs:make_refund", f"{FILE}:make_refund"],
)
def test_a_runner_is_found_in_a_module_or_a_file_or_made_by_a_factory(spec: str) -> None:
    assert load_runner(spec).name == "cli_refund"


def test_the_current_directory_is_importable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here_only.py").write_text("from tests.cli.programs import refund\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    assert load_runner("here_only:refund").name == "cli_refund"


def test_a_file_finds_the_modules_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "beside.py").write_text("from tests.cli.programs import refund\n")
    (tmp_path / "app" / "entry.py").write_text("from beside import refund\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    assert load_runner("app/entry.py:refund").name == "cli_refund"


@pytest.mark.parametrize("spec", ["ends:refund", "ends.py:refund"])
def test_a_module_that_ends_the_program_is_refused_aloud(
    spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ends.py").write_text("import sys\nsys.exit(0)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    with pytest.raises(InvalidInputError, match="cannot be imported: SystemExit"):
        load_runner(spec)


def test_a_file_that_is_called_like_a_known_module_hides_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("from tests.cli.programs import refund\n")
    monkeypatch.setattr(sys, "path", list(sys.path))
    known = sys.modules["json"]

    assert load_runner(f"{tmp_path / 'json.py'}:refund").name == "cli_refund"
    assert sys.modules["json"] is known


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("refund", "must be module:name"),
        (":refund", "must be module:name"),
        ("tests.cli.programs:", "must be module:name"),
        ("tests.cli.no_such:refund", "no module"),
        ("no_such_file.py:refund", "no file"),
        ("tests.cli.programs:no_such", "its runners: branching"),
        ("tests.cli.programs:a_number", "a int"),
        ("tests.cli.programs:Factory", "the class"),
        ("tests.cli.programs:factory", "a callable of type Factory"),
        ("tests.cli.programs:needs_an_argument", "neither a runner nor"),
        ("tests.cli.programs:make_later", "an async function"),
        ("tests.cli.programs:make_nothing", "returned a NoneType"),
        ("os:getcwd", "neither a runner nor"),
        ("os:abort", "neither a runner nor"),
        ("tests.cli.programs:refund.name", "a str"),
    ],
)
def test_peer_H5_what_is_no_runner_is_refused(spec: str, said: str) -> None:
    with pytest.raises(InvalidInputError, match="--runner") as caught:
        load_runner(spec)

    assert said in str(caught.value)
    assert programs.Factory.called == []


def test_a_module_that_cannot_be_imported_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_program.py").write_text("import no_such_module_at_all\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    with pytest.raises(InvalidInputError, match="imports no_such_module_at_all, which is not there"):
        load_runner("broken_program:refund")


def test_two_runners_of_one_name_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="cli_refund"):
        load_runners(["tests.cli.programs:refund", "tests.cli.programs:make_refund"])
