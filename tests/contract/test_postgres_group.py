"""What a group does on Postgres when others write at the same time, or its answer is lost."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from tests.support.batches import batch, change, creation, lane, question, started, step, write
from tests.support.proxy import proxied
from tests.support.sessions import Blocked, backend_pid, session, value

from perdure.core.records import Record, RunChange
from perdure.core.states import TERMINAL, Status
from perdure.errors import DurableConflictError, InvalidInputError, RunLost
from perdure.store.driver import StoreBusy, StoreLost, settle
from perdure.store.postgres import PostgresDriver

Connection = psycopg.Connection[Any]


@pytest.fixture
def driver(postgres_dsn: str) -> Iterator[PostgresDriver]:
    driver = PostgresDriver(postgres_dsn + "&application_name=driver")
    try:
        driver.setup()
        yield driver
    finally:
        driver.close()


@pytest.fixture
def other(postgres_dsn: str) -> Iterator[Connection]:
    """The session that comes in between."""
    with session(postgres_dsn) as connection:
        yield connection


@pytest.fixture
def watcher(postgres_dsn: str) -> Iterator[Connection]:
    with session(postgres_dsn) as connection:
        yield connection


def journal(connection: Connection, run_id: str) -> list[tuple[Any, ...]]:
    rows = connection.execute("SELECT seq, type, outcome FROM record WHERE run_id = %s ORDER BY seq", (run_id,))
    return rows.fetchall()


def test_group_numbers_records_without_gaps(driver: PostgresDriver, other: Connection) -> None:
    """However records reach the store, alone or in arrays, a run's numbers are 1, 2, 3..."""
    ours, theirs = started(driver), started(driver)
    for count in (1, 2, 4, 5, 300):
        write(driver, batch(ours, count))
    write(driver, batch(ours, 3), batch(theirs, 2))
    assert [row[0] for row in journal(other, ours.run_id)] == list(range(1, 317))
    assert [row[0] for row in journal(other, theirs.run_id)] == [1, 2, 3]
    assert value(other, "SELECT seq FROM run WHERE id = %s", ours.run_id) == 316


def test_group_stores_texts_exactly(driver: PostgresDriver, other: Connection) -> None:
    """Scalars and arrays carry the same texts: quotes, braces, backslashes, empty, NULL, beyond ASCII."""
    texts = ['{"a":"\\u0000"}', "", "NULL", '"', "{,}", "\\", "'; --", "\n\t\x01", "ü€𝄞", None]
    records = [step(n, text) for n, text in enumerate(texts)]
    alone, together = started(driver), started(driver)
    for record in records:
        write(driver, batch(alone, [record]))
    write(driver, batch(together, records))
    for run in (alone, together):
        rows = other.execute(
            "SELECT type, path, idx, kind, name, digest, recovery, attempt, outcome, data, wait_s, clock_s, state "
            "FROM record WHERE run_id = %s AND seq > 1 ORDER BY seq",
            (run.run_id,),
        ).fetchall()
        assert [Record(*row) for row in rows] == records


@pytest.mark.parametrize("text", ["\0", "\ud800"])
@pytest.mark.parametrize("count", [1, 9])
def test_group_refuses_what_is_no_text(driver: PostgresDriver, other: Connection, text: str, count: int) -> None:
    """Text that Postgres cannot hold is an error with nothing stored, and the connection goes on."""
    run = started(driver)
    with pytest.raises(InvalidInputError):
        driver.write([batch(run, [step(n, text) for n in range(count)])])
    write(driver, batch(run))
    assert len(journal(other, run.run_id)) == 2


def test_group_claimed_meanwhile_is_refused(driver: PostgresDriver, other: Connection, watcher: Connection) -> None:
    """A claim that commits between the group's snapshot and its lock refuses the run; the others are
    stored."""
    for count in (1, 9):  # the statement for a lone lane, and the one with arrays
        lost, kept = started(driver), started(driver)
        batches = [batch(lost, count)] if count == 1 else [batch(lost, count), batch(kept, count)]
        with other.transaction():
            other.execute("UPDATE run SET fence = 2, worker_id = 'w2', entry_n = 0 WHERE id = %s", (lost.run_id,))
            writing = Blocked(lambda batches=batches: driver.write(batches), watcher, backend_pid(watcher, "driver"))
        writing.finish()
        assert isinstance(batches[0].refusal, RunLost)
        assert all(one.refusal is None for one in batches[1:])
        assert len(journal(other, lost.run_id)) == 1
        assert len(journal(other, kept.run_id)) == (1 if count == 1 else 10)


def test_group_appended_meanwhile_continues_the_numbers(
    driver: PostgresDriver, other: Connection, watcher: Connection
) -> None:
    """Records that others commit between snapshot and lock come first; ours go on after them."""
    for count in (1, 9):
        run = started(driver)
        with other.transaction():
            other.execute("UPDATE run SET seq = seq + 5 WHERE id = %s", (run.run_id,))
            group = [batch(run, count)]
            writing = Blocked(lambda group=group: driver.write(group), watcher, backend_pid(watcher, "driver"))
        writing.finish()
        assert [row[0] for row in journal(other, run.run_id)] == [1, *range(7, 7 + count)]


def test_group_does_not_sleep_over_an_answer(driver: PostgresDriver, other: Connection, watcher: Connection) -> None:
    """An answer that commits between the group's snapshot and its lock makes the wait pending (law 4)."""
    run = started(driver)
    write(driver, batch(run, 1, questions=[question(run.run_id)]))
    record, waiting = change("waiting")
    group = [batch(run, [record], change=waiting)]
    with other.transaction():
        other.execute("UPDATE run SET epoch = epoch + 1 WHERE id = %s", (run.run_id,))
        other.execute("UPDATE interrupt SET status = 'answered', answer = '{}' WHERE run_id = %s", (run.run_id,))
        writing = Blocked(lambda: driver.write(group), watcher, backend_pid(watcher, "driver"))
    writing.finish()
    assert group[0].status == "pending"
    assert journal(other, run.run_id)[-1][1:] == ("status", "pending")


def test_group_does_not_end_over_a_cancel(driver: PostgresDriver, other: Connection, watcher: Connection) -> None:
    """A cancel that commits between the group's snapshot and its lock wins over the end (law 13)."""
    run = started(driver)
    record, completed = change("completed")
    group = [batch(run, [record], change=completed)]
    with other.transaction():
        other.execute("UPDATE run SET cancel_requested = TRUE WHERE id = %s", (run.run_id,))
        writing = Blocked(lambda: driver.write(group), watcher, backend_pid(watcher, "driver"))
    writing.finish()
    assert group[0].status == "cancelled"
    assert journal(other, run.run_id)[-1][1:] == ("status", "cancelled")


def test_group_waits_when_its_answer_is_delivered(driver: PostgresDriver, other: Connection) -> None:
    """The answer that enters the run with an entry does not keep the run from waiting for the next one."""
    run = started(driver)
    write(driver, batch(run, 1, questions=[question(run.run_id, 0), question(run.run_id, 1)]))
    other.execute("UPDATE interrupt SET status = 'answered' WHERE id = %s", (f"{run.run_id}:0",))
    record, waiting = change("waiting")
    group = batch(run, [record], change=waiting, delivered=[f"{run.run_id}:0"])
    write(driver, group)
    assert group.status == "waiting"
    delivered = other.execute("SELECT delivered_at IS NOT NULL FROM interrupt ORDER BY id").fetchall()
    assert delivered == [(True,), (False,)]


@pytest.mark.parametrize("depth", ["root", "below"])
def test_group_settles_as_the_rules_say(driver: PostgresDriver, other: Connection, depth: str) -> None:
    """The statement's CASE and `settle` are the same function."""
    for status, is_cancelled, has_answer in itertools.product(Status, (False, True), (False, True)):
        if status == Status.QUEUED:
            continue  # no owner queues its own run
        run = started(driver, root_id=None if depth == "root" else started(driver).run_id)
        write(driver, batch(run, 1, questions=[question(run.run_id, 0), question(run.run_id, 1)]))
        other.execute("UPDATE run SET cancel_requested = %s WHERE id = %s", (is_cancelled, run.run_id))
        if has_answer:
            other.execute("UPDATE interrupt SET status = 'answered' WHERE id = %s", (f"{run.run_id}:0",))
        wanted = RunChange(status=status.value, is_release=True, due_in_s=60.0, blocked_operation="op", error="bad")
        group = batch(run, [Record("status", outcome=status.value)], change=wanted)
        write(driver, group)
        expected = settle(wanted, is_cancel_requested=is_cancelled, has_undelivered=has_answer)
        assert group.status == expected, (status, is_cancelled, has_answer)
        stored = other.execute(
            "SELECT status, worker_id, ended_at IS NULL, due_at IS NULL, blocked_operation, error "
            "FROM run WHERE id = %s",
            (run.run_id,),
        ).fetchone()
        assert stored == (expected, None, expected not in TERMINAL, expected != status, "op", "bad")
        assert journal(other, run.run_id)[-1][1:] == ("status", expected)
        open_count = value(other, "SELECT count(*) FROM interrupt WHERE run_id = %s AND status = 'pending'", run.run_id)
        assert open_count == (0 if expected in TERMINAL else 1 if has_answer else 2)


def test_group_of_an_ended_run_is_refused(driver: PostgresDriver, other: Connection) -> None:
    """Terminal is final, for the owner of the current fence too."""
    run = started(driver)
    record, completed = change("completed", is_release=False)
    write(driver, batch(run, [record], change=completed))
    record, failed = change("failed", is_release=False)
    again = batch(run, [record], change=failed)
    driver.write([again])
    assert isinstance(again.refusal, RunLost)
    assert journal(other, run.run_id)[-1][1:] == ("status", "completed")


def test_group_creates_a_run_once(driver: PostgresDriver, other: Connection) -> None:
    """Of two lanes that create one id, in one group or one after the other, one is refused."""
    first, second = lane("same"), lane("same")
    group = [creation(first), creation(second)]
    driver.write(group)
    third = creation(lane("same"))
    driver.write([third])
    assert group[0].refusal is None
    assert isinstance(group[1].refusal, DurableConflictError)
    assert isinstance(third.refusal, DurableConflictError)
    assert len(journal(other, "same")) == 1


def test_group_numbers_a_tree_from_its_root(driver: PostgresDriver, other: Connection) -> None:
    """Runs below a root share the root's numbers."""
    root = started(driver)
    child = started(driver, root_id=root.run_id)
    write(driver, batch(root, 2), batch(child, 2))
    write(driver, batch(child, 1))
    rows = other.execute("SELECT run_id = %s, seq FROM record ORDER BY seq", (root.run_id,)).fetchall()
    assert [seq for _, seq in rows] == list(range(1, 8))
    assert [is_root for is_root, _ in rows] == [True, False, True, True, False, False, False]


@pytest.mark.parametrize("depth", ["root", "below"])
def test_group_locks_ascending(driver: PostgresDriver, other: Connection, watcher: Connection, depth: str) -> None:
    """In whichever order its batches come, a group that waits for its first run holds none behind it.

    So two groups over the same runs cannot wait for each other.
    """
    roots = [started(driver, run_id=f"root-{n}") for n in range(5)]
    runs = roots
    if depth == "below":
        runs = [started(driver, run_id=f"child-{n}", root_id=f"root-{n}") for n in range(5)]
    group = [batch(run, 2) for run in reversed(runs)]
    with other.transaction():
        other.execute("SELECT FROM run WHERE id = 'root-0' FOR UPDATE")
        writing = Blocked(lambda: driver.write(group), watcher, backend_pid(watcher, "driver"))
        free = watcher.execute("SELECT id FROM run WHERE id <> 'root-0' FOR UPDATE SKIP LOCKED").fetchall()
        assert len(free) == (4 if depth == "root" else 9)
    writing.finish()
    assert [one.refusal for one in group] == [None] * 5


def test_group_that_is_a_deadlock_victim_is_stored_when_sent_again(
    driver: PostgresDriver, other: Connection, watcher: Connection
) -> None:
    """Somebody locks in another order than ours: the server ends one of the two, and nothing is lost."""
    first, second = started(driver, run_id="a"), started(driver, run_id="b")
    group = [batch(first, 2), batch(second, 2)]
    with other.transaction():
        other.execute("SET LOCAL deadlock_timeout = '1h'")  # so that the driver is the one to find out
        other.execute("SELECT FROM run WHERE id = 'b' FOR UPDATE")
        writing = Blocked(lambda: driver.write(group), watcher, backend_pid(watcher, "driver"))
        other.execute("SELECT FROM run WHERE id = 'a' FOR UPDATE")
    with pytest.raises(StoreBusy):
        writing.finish()
    driver.write(group)
    assert [one.refusal for one in group] == [None, None]
    assert len(journal(other, "a")) == 3


# --- answers that are lost ------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 9])
def test_group_sent_again_after_a_lost_answer_is_stored_once(postgres_dsn: str, other: Connection, count: int) -> None:
    """The server has committed, the client does not know: sending again changes nothing and says so."""
    with proxied(postgres_dsn) as proxy:
        driver = PostgresDriver(proxy.dsn + "&direct=none")
        driver.setup()
        run = started(driver)
        group = [batch(run, count)]
        proxy.drop_next_answer()
        with pytest.raises(StoreLost) as lost:
            driver.write(group)
        assert lost.value.is_ambiguous
        driver.write(group)
        assert group[0].refusal is None
        write(driver, batch(run, count))
        assert [row[0] for row in journal(other, run.run_id)] == list(range(1, 2 + 2 * count))
        driver.close()


def test_group_that_ends_and_creates_sent_again_is_stored_once(postgres_dsn: str, other: Connection) -> None:
    """A run made and a run released by a group whose answer was lost are ours when it is sent again."""
    with proxied(postgres_dsn) as proxy:
        driver = PostgresDriver(proxy.dsn + "&direct=none")
        driver.setup()
        old, new = started(driver), lane()
        record, completed = change("completed")
        group = [batch(old, [record], change=completed), creation(new, 2)]
        proxy.drop_next_answer()
        with pytest.raises(StoreLost):
            driver.write(group)
        driver.write(group)
        assert [one.refusal for one in group] == [None, None]
        assert group[0].status == "completed"
        write(driver, batch(new))
        assert len(journal(other, old.run_id)) == 2
        assert len(journal(other, new.run_id)) == 4
        driver.close()


def test_group_cut_off_at_its_lock_is_stored_when_sent_again(
    driver: PostgresDriver, other: Connection, watcher: Connection
) -> None:
    """A backend killed in mid-group has stored nothing; the driver connects afresh and stores it once."""
    run, second = started(driver), started(driver)
    group = [batch(run, 2), batch(second, 2)]
    pid = backend_pid(watcher, "driver")
    with other.transaction():
        other.execute("SELECT FROM run WHERE id = %s FOR UPDATE", (run.run_id,))
        writing = Blocked(lambda: driver.write(group), watcher, pid)
        watcher.execute("SELECT pg_terminate_backend(%s)", (pid,))
        with pytest.raises(StoreLost) as lost:
            writing.finish()
    assert lost.value.is_ambiguous
    driver.write(group)
    assert [one.refusal for one in group] == [None, None]
    assert [row[0] for row in journal(other, run.run_id)] == [1, 2, 3]


def test_transaction_cut_off_before_its_commit_is_not_ambiguous(driver: PostgresDriver, watcher: Connection) -> None:
    """Nothing was stored for certain, so the writer may try again; afterwards the driver works."""
    pid = backend_pid(watcher, "driver")

    def work(session: Any) -> None:
        watcher.execute("SELECT pg_terminate_backend(%s, 10000)", (pid,))
        session.one("run_get", {"id": "none"})

    with pytest.raises(StoreLost) as lost:
        driver.transact(work)
    assert not lost.value.is_ambiguous
    assert driver.transact(lambda session: session.one("run_get", {"id": "none"})) is None
