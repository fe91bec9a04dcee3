"""The command setup-checkpointer: what it makes, that it may be repeated, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.conftest import Ended
from tests.support import database

from perdure.cli.exits import Exit

Perdure = Callable[..., Ended]


def test_sqlite_is_created_once_and_may_be_set_up_again(perdure: Perdure, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "local.db"
    command = ("setup-checkpointer", "--backend", "sqlite", "--db-path", str(path))
    first = perdure(*command)
    assert (first.code, first.out) == (Exit.OK, f"sqlite:///{path}: created; schema version 1\n")
    again = perdure(*command, "--json")
    assert again.json == {
        "backend": "sqlite",
        "store": f"sqlite:///{path}",
        "was_version": 1,
        "schema_version": 1,
    }
    assert perdure(*command).out.endswith(": nothing to do; schema version 1\n")
    assert database.execute(f"sqlite:///{path}", "PRAGMA user_version") == [(1,)]


def test_sqlite_is_the_default_and_the_configured_file(perdure: Perdure, tmp_path: Path) -> None:
    assert perdure("setup-checkpointer").code == Exit.OK
    assert (tmp_path / ".perdure" / "local.db").exists()
    assert perdure("setup-checkpointer", "--connection-string", "sqlite:///other.db").code == Exit.OK
    assert (tmp_path / "other.db").exists()


def test_postgres_is_created_in_its_schema(perdure: Perdure, postgres_dsn: str) -> None:
    command = ("setup-checkpointer", "--backend", "postgres", "--connection-string", postgres_dsn, "--schema", "mine")
    first, again = perdure(*command, "--json"), perdure(*command, "--json")
    assert (first.json["was_version"], first.json["schema_version"]) == (0, 1)
    assert (again.json["was_version"], again.json["schema_version"]) == (1, 1)
    assert first.json["backend"] == "postgres"
    assert database.execute(postgres_dsn, "SELECT count(*) FROM mine.run") == [(0,)]
    perdure("setup-checkpointer", "--backend", "postgres", "--connection-string", postgres_dsn)
    assert database.execute(postgres_dsn, "SELECT count(*) FROM perdure.run") == [(0,)]


def test_no_password_is_shown(perdure: Perdure) -> None:
    for given in ("postgresql://ann:secret@127.0.0.1:1/x", "host=127.0.0.1 port=1 user=ann password=secret"):
        ended = perdure("setup-checkpointer", "--backend", "postgres", "--connection-string", given, "--json")
        assert ended.code == Exit.STORAGE
        assert "secret" not in ended.out + ended.err


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--backend", "postgres"), "--connection-string"),
        (("--backend", "postgres", "--connection-string", "x://h/d"), "connection_string"),
        (("--backend", "postgres", "--connection-string", "postgresql://h/d", "--schema", "a-b"), "schema"),
        (("--backend", "postgres", "--db-path", "x.db"), "--db-path"),
        (("--backend", "mysql"), "--backend"),
        (("--schema", "x"), "--schema"),
        (("--connection-string", "postgresql://h/d"), "--backend postgres"),
        (("--connection-string", "host=h dbname=d"), "--backend postgres"),
        (("--connection-string", "a.db", "--db-path", "b.db"), "--db-path"),
    ],
)
def test_what_is_wrong_is_named(perdure: Perdure, tmp_path: Path, options: tuple[str, ...], named: str) -> None:
    ended = perdure("setup-checkpointer", *options)
    assert ended.code == Exit.INVALID
    assert named in ended.err
    assert list(tmp_path.iterdir()) == []
