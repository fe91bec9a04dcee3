"""The schema of a Postgres store. Decides when it is created or migrated; the steps are in
`migrations/postgres`.

One migrator at a time, in one transaction: processes that start together wait for it, one killed half-way
leaves nothing, and whoever comes after finds the work done. Nothing is locked, and no right to create is
needed, when all is done already.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from perdure.store import migrate
from perdure.store.postgres_connect import simple

if TYPE_CHECKING:
    import psycopg


def setup(connection: psycopg.Connection[Any], schema: str, url: str) -> int:
    """Create the schema or bring it up to date. Returns the version it had before, 0 for none. `DurableStorageError` if
    it is newer. Raises `psycopg.Error`."""
    found = _version(connection, schema)
    if not migrate.pending("postgres", found, url):
        return found
    simple(connection, f"BEGIN; SELECT pg_advisory_xact_lock({advisory_key(f'setup:{schema}')})")
    try:
        found = _migrate(connection, schema, url)
        simple(connection, "COMMIT")
    except BaseException:
        if not connection.closed:
            simple(connection, "ROLLBACK")
        raise
    return found


def advisory_key(text: str) -> int:
    """A 64-bit key for an advisory lock; locks of other applications in the same database will not have
    it."""
    return int.from_bytes(hashlib.sha256(f"perdure:{text}".encode()).digest()[:8], "big", signed=True)


def _migrate(connection: psycopg.Connection[Any], schema: str, url: str) -> int:
    if simple(connection, f"SELECT to_regnamespace('\"{schema}\"')") is None:
        simple(connection, f'CREATE SCHEMA "{schema}"')
    # Read again: another process may have done it while we waited for the lock.
    found = _version(connection, schema)
    steps = migrate.pending("postgres", found, url)
    simple(connection, f'SET LOCAL search_path TO "{schema}"')
    for step in steps:
        simple(connection, step.sql)
        simple(
            connection,
            f"INSERT INTO meta (key, value) VALUES ('schema_version', '{step.version}') "
            "ON CONFLICT (key) DO UPDATE SET value = excluded.value",
        )
    return found


def _version(connection: psycopg.Connection[Any], schema: str) -> int:
    if simple(connection, f"SELECT to_regclass('\"{schema}\".meta')") is None:
        return 0
    return int(simple(connection, f"SELECT value FROM \"{schema}\".meta WHERE key = 'schema_version'") or 0)
