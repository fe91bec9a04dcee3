"""Setting up a schema on Postgres: by many at once, again, half-way, with less rights, from a newer
version."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from tests.support.batches import started
from tests.support.proxy import proxied
from tests.support.sessions import session, value

from perdure.errors import DurableStorageError, InvalidInputError
from perdure.store import migrate, postgres_url
from perdure.store.postgres import PostgresDriver
from perdure.store.rows import COLUMNS

_SET_UP = """
import sys
from perdure.store.postgres import PostgresDriver
driver = PostgresDriver(sys.argv[1])
driver.setup()
driver.close()
"""


@pytest.fixture
def watcher(postgres_dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with session(postgres_dsn) as connection:
        yield connection


def set_up(url: str) -> None:
    driver = PostgresDriver(url)
    try:
        driver.setup()
    finally:
        driver.close()


def test_setup_by_eight_processes_at_once(postgres_dsn: str, watcher: psycopg.Connection[Any]) -> None:
    """One migrates, the others wait, all succeed."""
    starts = [
        subprocess.Popen([sys.executable, "-c", _SET_UP, postgres_dsn], stderr=subprocess.PIPE, text=True)
        for _ in range(8)
    ]
    outcomes = [(process.communicate()[1], process.returncode) for process in starts]
    assert outcomes == [("", 0)] * 8
    assert value(watcher, "SELECT value FROM meta WHERE key = 'schema_version'") == "1"


def test_setup_waits_for_a_migrator_and_finds_its_work_done(
    postgres_dsn: str, watcher: psycopg.Connection[Any]
) -> None:
    """A rolled-back first attempt leaves nothing; the next one does it all."""
    driver = PostgresDriver(postgres_dsn)
    broken = migrate.Migration(version=1, name="broken", sql="CREATE TABLE run (id TEXT); SELECT 1/0")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(migrate, "migrations", lambda dialect: (broken,))
        with pytest.raises(InvalidInputError, match="division by zero"):
            driver.setup()
    assert value(watcher, "SELECT to_regnamespace('perdure')") is None
    driver.setup()
    driver.setup()
    driver.close()
    assert value(watcher, "SELECT count(*) FROM run") == 0


def test_setup_again_needs_no_right_to_create(postgres_dsn: str, watcher: psycopg.Connection[Any]) -> None:
    """A role that may only use the tables can open a store that is up to date."""
    set_up(postgres_dsn)
    role = "perdure_user"
    watcher.execute(f"CREATE ROLE {role} LOGIN")
    try:
        watcher.execute(f"GRANT USAGE ON SCHEMA perdure TO {role}")
        watcher.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA perdure TO {role}")
        url = postgres_dsn.replace("postgresql://postgres@", f"postgresql://{role}@")
        driver = PostgresDriver(url)
        driver.setup()
        started(driver)
        driver.close()
    finally:
        watcher.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_setup_refuses_a_newer_store(postgres_dsn: str, watcher: psycopg.Connection[Any]) -> None:
    """A store that a later version has migrated is not touched."""
    set_up(postgres_dsn)
    watcher.execute("UPDATE meta SET value = '999' WHERE key = 'schema_version'")
    with pytest.raises(DurableStorageError, match="999"):
        set_up(postgres_dsn)


def test_setup_keeps_schemas_apart(postgres_dsn: str, watcher: psycopg.Connection[Any]) -> None:
    """Two stores in one database share nothing."""
    first = PostgresDriver(postgres_dsn)
    second = PostgresDriver(postgres_dsn + "&schema=Other_2")
    for driver in (first, second):
        driver.setup()
    started(second, run_id="there")
    assert first.read(lambda session: session.one("run_get", {"id": "there"})) is None
    assert second.read(lambda session: session.one("run_get", {"id": "there"})) is not None
    assert value(watcher, 'SELECT count(*) FROM "Other_2".record') == 1
    first.close()
    second.close()


def test_schema_has_the_columns_the_code_names(postgres_dsn: str, watcher: psycopg.Connection[Any]) -> None:
    """Tables and `rows.py` agree."""
    set_up(postgres_dsn)
    rows = watcher.execute(
        "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'perdure'"
    ).fetchall()
    columns = {f"{table}.{name}" for table, name in rows}
    named = {name for names in COLUMNS.values() for name in names}
    assert named - columns == set()


def test_updates_of_a_step_touch_no_index(postgres_dsn: str, watcher: psycopg.Connection[Any]) -> None:
    """No column that changes with every entry is in an index."""
    set_up(postgres_dsn)
    definitions = watcher.execute("SELECT indexdef FROM pg_indexes WHERE tablename = 'run'").fetchall()
    assert definitions
    for (definition,) in definitions:
        assert not re.search(r"\b(seq|entry_n|updated_at)\b", definition), definition


# --- the address ----------------------------------------------------------------------------------------


def test_url_parameters_are_ours_or_libpqs() -> None:
    """Ours are taken out; what is left reaches libpq unchanged."""
    parsed = postgres_url.parse(
        "postgres://u:p%40w@host:5433/base?schema=mine&application_name=a%20b&prepare=0&direct=none"
    )
    assert parsed.conninfo == "postgresql://u:p%40w@host:5433/base?application_name=a%20b"
    assert (parsed.schema, parsed.prepare, parsed.direct) == ("mine", False, "")
    assert psycopg.conninfo.conninfo_to_dict(parsed.conninfo)["application_name"] == "a b"


@pytest.mark.parametrize("query", ["schema=a-b", "schema=1a", "schema=", 'schema=a"b', "schema=a%0a", "prepare=yes"])
def test_url_with_a_wrong_parameter_is_refused(query: str) -> None:
    """A schema's name goes into SQL: nothing but a plain name is taken."""
    with pytest.raises(InvalidInputError):
        postgres_url.parse(f"postgresql://host/base?{query}")


def test_url_is_shown_without_passwords() -> None:
    """Neither in the user part, nor as a parameter, nor in the direct DSN."""
    shown = postgres_url.redacted(
        "postgresql://u:secret1@host/base?password=secret2&direct=postgresql://u:secret3@h/b&schema=s"
    )
    assert "secret" not in shown
    assert shown.startswith("postgresql://u:***@host/base?")


def test_open_without_a_server_says_so() -> None:
    """A server that is not there is a typed error at once."""
    with pytest.raises(DurableStorageError, match="cannot be opened"):
        PostgresDriver("postgresql://nobody@127.0.0.1:1/none?connect_timeout=2")


def test_psycopg_missing_says_what_to_install() -> None:
    """Postgres users without the extra are told its name."""
    code = (
        "import sys\n"
        "sys.modules['psycopg'] = None\n"
        "from perdure.errors import DurableStorageError\n"
        "from perdure.store.postgres import PostgresDriver\n"
        "try:\n"
        "    PostgresDriver('postgresql://host/base')\n"
        "except DurableStorageError as error:\n"
        "    assert \"pip install 'perdure[postgres]'\" in str(error), error\n"
        "else:\n"
        "    raise AssertionError\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# --- behind a pooler ------------------------------------------------------------------------------------


def test_pooler_is_recognised(postgres_dsn: str) -> None:
    """Behind a pooler nothing is prepared, set or locked in a session; a direct DSN brings the locks back."""
    with proxied(postgres_dsn, is_pooler=True) as proxy, proxied(postgres_dsn) as plain:
        pooled = PostgresDriver(proxy.dsn)
        pooled.setup()
        started(pooled)
        assert pooled.worker_lock("w1").startswith("none")
        assert not pooled.worker_lock_held("w1")
        helped = PostgresDriver(f"{proxy.dsn}&direct={postgres_dsn.replace('&', '%26')}")
        assert not helped.worker_lock("w1").startswith("none")
        assert helped.worker_lock_held("w1")
        straight = PostgresDriver(plain.dsn)
        assert not straight.worker_lock("w2").startswith("none")
        with pytest.raises(InvalidInputError, match="pooler"):
            PostgresDriver(f"{proxy.dsn}&direct={proxy.dsn.replace('&', '%26')}")
        for driver in (pooled, helped, straight):
            driver.close()


def test_pooler_sees_no_session_state(postgres_dsn: str) -> None:
    """What a pooled client leaves behind on a server connection: no prepared statement, no setting, no
    lock."""
    with proxied(postgres_dsn, is_pooler=True) as proxy:
        driver = PostgresDriver(proxy.dsn)
        driver.setup()
        run = started(driver)
        driver.transact(lambda session: session.one("run_get", {"id": run.run_id}))
        writer = driver._connection()
        left = writer.execute(
            "SELECT (SELECT count(*) FROM pg_prepared_statements),"
            " (SELECT count(*) FROM pg_settings WHERE source = 'session'),"
            " (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()),"
            " (SELECT count(*) FROM pg_listening_channels())"
        ).fetchone()
        assert left == (0, 0, 0, 0)
        driver.close()
