"""Connections to Postgres. Decides how one is opened, and whether a pooler stands between; owns none of
them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.store.postgres_errors import load_psycopg, translate

if TYPE_CHECKING:
    import psycopg

_DEFAULTS = {
    "connect_timeout": 10,
    # A half-open connection is found out within some 15 s, idle or with data on its way.
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 4,
    "tcp_user_timeout": 15000,
    "application_name": "perdure",
}


def conninfo(url: str) -> str:
    """The URL with our defaults for what it leaves open."""
    psycopg = load_psycopg()
    try:
        given = psycopg.conninfo.conninfo_to_dict(url)
    except psycopg.Error as error:
        raise translate(error) from error
    return psycopg.conninfo.make_conninfo("", **{**_DEFAULTS, **given, "client_encoding": "utf8"})


def database(info: str) -> str:
    """The database that a connection string leads to, as it is called there."""
    return str(load_psycopg().conninfo.conninfo_to_dict(info).get("dbname") or "")


def connect(info: str) -> psycopg.Connection[Any]:
    """Open a connection in autocommit. `StoreLost` (not ambiguous) if the server cannot be reached."""
    psycopg = load_psycopg()
    try:
        return psycopg.connect(info, autocommit=True, prepare_threshold=None)
    except psycopg.Error as error:
        raise translate(error) from error


def is_pooled(connection: psycopg.Connection[Any]) -> bool:
    """Whether something between us and the server hands out server connections: what greeted us is not
    what answers."""
    answer = simple(connection, "SELECT pg_backend_pid()")
    return int(answer or 0) != connection.info.backend_pid


def tune(connection: psycopg.Connection[Any]) -> None:
    """Settings of a connection that is ours alone.

    Plans are made once, maybe while the tables are still empty, and must be right for full ones: whatever is
    written is found by its key, so no plan may read a table, and none is worth compiling.
    """
    simple(
        connection,
        "SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET jit = off",
    )


def simple(connection: psycopg.Connection[Any], sql: str) -> str | None:
    """Send statements without parameters in one round trip; the first value of the last one. Raises
    `psycopg.Error`.

    The wait is one libpq call outside the GIL.
    """
    result = checked(connection.pgconn.exec_(sql.encode()))
    value = result.get_value(0, 0) if result.ntuples else None
    return None if value is None else value.decode()


def checked(result: Any) -> Any:
    """The result of a libpq call if it is one, else the `psycopg.Error` it stands for is raised."""
    psycopg = load_psycopg()
    if result.status in (psycopg.pq.ExecStatus.TUPLES_OK, psycopg.pq.ExecStatus.COMMAND_OK):
        return result
    error = psycopg.errors.error_from_result(result, encoding="utf-8")
    if error.sqlstate is None:
        # Whatever the server says has a SQLSTATE, so these are libpq's own words: the connection broke. Its
        # state is no witness: it is still called good when the server went away between two statements.
        raise psycopg.OperationalError(str(error))
    raise error
