"""The command setup-checkpointer: creates the schema of a store, or brings it up to date."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli import session
from perdure.cli.options import DbPath, Json
from perdure.cli.output import emit_lines
from perdure.errors import InvalidInputError

if TYPE_CHECKING:
    from perdure.checkpointers.sql import SqlCheckpointer


class Backend(StrEnum):
    """Where checkpoints are kept."""

    SQLITE = "sqlite"
    POSTGRES = "postgres"


def setup_checkpointer(
    backend: Annotated[Backend, typer.Option("--backend", help="Which database.")] = Backend.SQLITE,
    connection_string: Annotated[
        str | None,
        typer.Option(
            "--connection-string",
            metavar="DSN",
            help="postgresql://user@host/db, or host=... dbname=...; for sqlite a file.",
            show_default=False,
        ),
    ] = None,
    schema: Annotated[
        str | None,
        typer.Option("--schema", metavar="NAME", help="Postgres: where the tables live. Default: perdure."),
    ] = None,
    db_path: DbPath = None,
    is_json: Json = False,
) -> None:
    """Create the tables of a store, or bring them up to date. Safe to repeat, and to run in many places at once."""
    checkpointer = _sqlite(connection_string, schema, db_path) if backend is Backend.SQLITE else None
    checkpointer = checkpointer or _postgres(connection_string, schema, db_path)
    with checkpointer:
        checkpointer.setup()
        document = _document(checkpointer)
    was, now = document["was_version"], document["schema_version"]
    done = {0: "created", now: "nothing to do"}.get(was, f"brought up to date from version {was}")
    emit_lines(is_json, document, [f"{document['store']}: {done}; schema version {now}"])


def _document(checkpointer: SqlCheckpointer) -> dict[str, Any]:
    from perdure.store import migrate

    store = checkpointer.store
    newest = migrate.migrations(store.kind)[-1].version
    return {
        "backend": store.kind,
        "store": session.redacted(store.url),
        "was_version": store.found_version,
        "schema_version": newest,
    }


def _sqlite(connection_string: str | None, schema: str | None, db_path: str | None) -> SqlCheckpointer:
    from perdure.checkpointers.sqlite import SQLiteCheckpointer

    if schema is not None:
        raise InvalidInputError("--schema", "is for Postgres; an SQLite file has no schemas")
    if connection_string is not None and db_path is not None:
        raise InvalidInputError("--db-path", "is given beside --connection-string; use one of the two")
    given = db_path if connection_string is None else _file(connection_string)
    return SQLiteCheckpointer(given)


def _file(connection_string: str) -> str:
    if not session.is_file(connection_string) or "=" in connection_string:
        raise InvalidInputError("--connection-string", "names no file; for Postgres add --backend postgres")
    return str(session.sqlite_file(connection_string))


def _postgres(connection_string: str | None, schema: str | None, db_path: str | None) -> SqlCheckpointer:
    from perdure.checkpointers.postgres import PostgresCheckpointer

    if db_path is not None:
        raise InvalidInputError("--db-path", "is for SQLite; a Postgres store is named by --connection-string")
    if connection_string is None:
        raise InvalidInputError("--connection-string", "is missing: postgresql://user@host/db, or host=... dbname=...")
    if schema is None:
        return PostgresCheckpointer(connection_string)
    return PostgresCheckpointer(connection_string, schema=schema)
