"""Somebody else's write lock on a store, held by another connection for as long as the test wants."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from perdure.checkpointers.foreign import ForeignStore
from tests.support.third_party import path_of


@contextmanager
def write_lock(url: str | ForeignStore) -> Iterator[None]:
    """While it is held nobody can write to the store; readers go on."""
    if isinstance(url, ForeignStore):
        url = f"sqlite:///{path_of(url)}"
    with _postgres_lock(url) if url.startswith("postgres") else _sqlite_lock(url):
        yield


@contextmanager
def _sqlite_lock(url: str) -> Iterator[None]:
    connection = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
    try:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")
    finally:
        connection.close()


@contextmanager
def _postgres_lock(url: str) -> Iterator[None]:
    with psycopg.connect(url, options="-c search_path=perdure") as connection:
        connection.execute("LOCK TABLE run IN EXCLUSIVE MODE")
        yield
        connection.rollback()
