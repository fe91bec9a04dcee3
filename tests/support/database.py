"""A look at a store's tables from outside, for tests that must break or read what no API offers."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

import psycopg


def execute(url: str, statement: str) -> list[tuple[Any, ...]]:
    """Run one statement, valid in both dialects, in a transaction of its own; returns its rows, if it has
    any."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection, connection:
            return connection.execute(statement).fetchall()
    with psycopg.connect(url, options="-c search_path=perdure") as connection:
        cursor = connection.execute(statement)  # type: ignore[arg-type]
        return cursor.fetchall() if cursor.description else []
