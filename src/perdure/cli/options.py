"""Options that several commands share: one spelling, one help text."""

from __future__ import annotations

from typing import Annotated

import typer

Store = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        help="sqlite:///file.db, a file path, or postgresql://user@host/db."
        " Default: PERDURE_STORE, else ./.perdure/local.db",
    ),
]
DbPath = Annotated[
    str | None, typer.Option("--db-path", metavar="PATH", help="A SQLite file; the same as --store PATH.")
]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, nothing else.")]
RunId = Annotated[str, typer.Argument(metavar="RUN_ID", show_default=False)]
Runner = Annotated[
    str,
    typer.Option(
        "--runner",
        metavar="PLACE:NAME",
        help="The runner: module:name or path/file.py:name.",
        show_default=False,
    ),
]
Runners = Annotated[
    list[str],
    typer.Option(
        "--runner",
        metavar="PLACE:NAME",
        help="A runner: module:name or path/file.py:name. May be repeated.",
        show_default=False,
    ),
]
