"""`SQLiteCheckpointer` and `PostgresCheckpointer`: the protocols, over what people put and what runs have recorded."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from tests.support import database, keeping, kept

from perdure import Resume, interrupt, open_engine, step, workflow
from perdure.checkpointers import latest_forkable, latest_resumable
from perdure.checkpointers.postgres import PostgresCheckpointer
from perdure.checkpointers.protocol import (
    Checkpoint,
    Checkpointer,
    PendingInterrupt,
    QuarantinableCheckpointer,
    ReplicatedCheckpointer,
)
from perdure.checkpointers.sql import SqlCheckpointer
from perdure.checkpointers.sqlite import SQLiteCheckpointer
from perdure.core.records import NewRun
from perdure.errors import (
    AlreadyResumed,
    DurableConflictError,
    DurableNotFoundError,
    DurableStorageError,
    InvalidInputError,
    RunBusy,
    SerializationError,
)

ZERO = timedelta(0)


@pytest.fixture
def saver(store_url: str) -> Iterator[SqlCheckpointer]:
    """A checkpointer on an empty store of either kind."""
    with keeping.checkpointer(store_url) as found:
        yield found


async def _double(n: int) -> dict[str, int]:
    return {"doubled": 2 * n}


async def _fail(n: int) -> None:
    raise ValueError("no such order")


@workflow(name="cp_review")
async def review(n: int) -> dict[str, Any]:
    found = await step(_double, n)
    answer = interrupt("approve?", {"amount": n})
    return {**found, "approved": answer.approved}


@workflow(name="cp_failing")
async def failing(n: int) -> None:
    await step(_fail, n)


def _run(saver: SqlCheckpointer, run_id: str, runner: Any = review, **resume: Any) -> Any:
    """Start a run on the checkpointer's store, or answer it."""

    async def main() -> Any:
        async with open_engine(saver.store) as engine:
            if resume:
                return await engine.resume(runner, run_id, **resume)
            return await engine.run(runner, 21, execution_id=run_id)

    return asyncio.run(main())


# --- the protocols --------------------------------------------------------------------------------------


def test_it_satisfies_the_protocols(saver: SqlCheckpointer) -> None:
    assert isinstance(saver, Checkpointer)
    assert isinstance(saver, ReplicatedCheckpointer)
    assert isinstance(saver, QuarantinableCheckpointer)


def test_what_was_put_comes_out(saver: SqlCheckpointer) -> None:
    given = Checkpoint(
        checkpoint_id="c1",
        parent_checkpoint_id="c0",
        chain_name="custom\0",
        execution_id="e1",
        node_id="n:1",
        node_index=4,
        step_type="node",
        status="interrupted",
        state_snapshot={"z": 1.0, "a": [1, True, None, -0.0, 1e22, 10**400], "$set": 1, "t": (Decimal("1.10"), {1, 2})},
        node_input={"text": "a\0b\ud800"},
        node_output=("a", 1),
        iteration=2,
        iteration_counters={"loop": 2},
        interrupt_reason="why",
        interrupt_context={"when": datetime(2026, 1, 2, tzinfo=UTC)},
        agent_path="agent:a",
        created_at="yesterday",
    )
    saver.put(given)
    found = saver.get_by_id("e1", "c1")
    assert found == given
    assert found is not None
    assert list(found.state_snapshot) == ["z", "a", "$set", "t"]
    assert repr(found) == repr(given)
    assert saver.get_last("e1") == given
    assert saver.list("e1") == [given]


def test_an_empty_time_becomes_that_of_the_database(saver: SqlCheckpointer) -> None:
    before = datetime.now(UTC) - timedelta(minutes=1)
    saver.put(kept.checkpoint("c1"))
    found = saver.get_last("e1")
    assert found is not None
    assert before < datetime.fromisoformat(found.created_at) < datetime.now(UTC) + timedelta(minutes=1)


def test_unknown_executions_have_nothing(saver: SqlCheckpointer) -> None:
    assert saver.get_last("nowhere") is None
    assert saver.get_by_id("nowhere", "c1") is None
    assert saver.list("nowhere") == []
    assert saver.list_pending_interrupts() == []
    assert saver.delete_pending_interrupt_atomic("nowhere") is None
    assert saver.get_writes("nowhere", "c1") == []
    saver.delete_execution("nowhere")


def test_put_of_an_existing_id_raises(saver: SqlCheckpointer) -> None:
    saver.put(kept.checkpoint("c1"))
    with pytest.raises(DurableConflictError):
        saver.put(kept.checkpoint("c1", node_id="other"))
    (found,) = saver.list("e1")
    assert found.node_id == "node"


def test_list_is_the_oldest_hundred_in_order_and_get_last_the_newest(saver: SqlCheckpointer) -> None:
    for n in range(105):
        saver.put(kept.checkpoint(f"c{n}"))
    assert [row.checkpoint_id for row in saver.list("e1")] == [f"c{n}" for n in range(100)]
    assert len(saver.list("e1", limit=1000)) == 105
    last = saver.get_last("e1")
    assert last is not None
    assert last.checkpoint_id == "c104"


def test_peer_C11_no_clock_decides_which_is_last(saver: SqlCheckpointer) -> None:
    for name, at in (("c1", "2026-01-01T00:00:00+00:00"), ("c2", "1999-01-01T00:00:00+00:00")):
        saver.put(kept.checkpoint(name, created_at=at))
    assert [row.checkpoint_id for row in saver.list("e1")] == ["c1", "c2"]
    last = saver.get_last("e1")
    assert last is not None
    assert last.checkpoint_id == "c2"


def test_put_writes(saver: SqlCheckpointer) -> None:
    saver.put(kept.checkpoint("c1"))
    saver.put_writes("e1", "c1", [("channel", 1.0), None])
    saver.put_writes("e1", "c1", [{"a\0": Decimal("1.0")}])
    assert saver.get_writes("e1", "c1") == [("channel", 1.0), None, {"a\0": Decimal("1.0")}]
    with pytest.raises(DurableNotFoundError):
        saver.put_writes("e1", "c2", [1])


# --- bad input ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"checkpoint_id": ""}, "checkpoint_id"),
        ({"execution_id": " "}, "execution_id"),
        ({"checkpoint_id": "a\0"}, "checkpoint_id"),
        ({"status": ""}, "status"),
        ({"node_index": 2**63}, "node_index"),
        ({"iteration": -(2**63)}, "iteration"),
        ({"state_snapshot": "no dict"}, "state_snapshot"),
    ],
)
def test_a_bad_checkpoint_is_refused_by_name(saver: SqlCheckpointer, change: dict[str, Any], field: str) -> None:
    given = kept.checkpoint("c1").model_copy(update=change)  # not validated
    with pytest.raises(InvalidInputError) as caught:
        saver.put(given)
    assert caught.value.field.endswith(field)
    assert saver.list("e1") == []


def test_what_cannot_be_stored_is_refused_before(saver: SqlCheckpointer) -> None:
    with pytest.raises(SerializationError, match="state_snapshot"):
        saver.put(kept.checkpoint("c1", state_snapshot={"lock": threading.Lock()}))
    with pytest.raises(SerializationError):
        saver.put_idempotent("e1", "k", object())
    assert saver.get_last("e1") is None
    assert saver.get_idempotent("e1", "k") is None


def test_bad_arguments_are_refused_by_name(saver: SqlCheckpointer) -> None:
    row = kept.checkpoint("c1")
    refused: list[tuple[str, Any]] = [
        ("checkpoint", lambda: saver.put({"checkpoint_id": "c1"})),  # type: ignore[arg-type]
        ("pending", lambda: saver.record_interrupt(row, {"reason": "x"})),  # type: ignore[arg-type]
        ("pending.execution_id", lambda: saver.record_interrupt(row, kept.pending("e2"))),
        ("execution_id", lambda: saver.get_last("")),
        ("checkpoint_id", lambda: saver.get_by_id("e1", "")),
        ("function_key", lambda: saver.get_idempotent("e1", "k" * 300)),
        ("limit", lambda: saver.list("e1", limit=-1)),
        ("limit", lambda: saver.list_pending_interrupts(limit=1.5)),  # type: ignore[arg-type]
        ("older_than", lambda: saver.prune(timedelta(seconds=-1))),
        ("older_than", lambda: saver.prune(5)),  # type: ignore[arg-type]
    ]
    for field, attempt in refused:
        with pytest.raises(InvalidInputError) as caught:
            attempt()
        assert caught.value.field == field
    assert saver.list("e1", limit=2**70) == []


# --- questions ------------------------------------------------------------------------------------------


def test_record_interrupt_and_claim(saver: SqlCheckpointer) -> None:
    given = kept.pending(context={"z": 1, "a": (1, 2)}, interrupt_id="k1")
    saver.record_interrupt(kept.checkpoint("c1", status="interrupted"), given)
    assert saver.list_pending_interrupts() == [given]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(saver.delete_pending_interrupt_atomic, ["e1"] * 8))
    assert [each for each in found if each is not None] == [given]
    assert saver.list_pending_interrupts() == []


def test_record_interrupt_gives_a_question_an_id(saver: SqlCheckpointer) -> None:
    saver.record_interrupt(kept.checkpoint("c1"), kept.pending())
    saver.record_interrupt(kept.checkpoint("c2"), kept.pending(created_at=""))
    first, second = saver.list_pending_interrupts()
    assert first.interrupt_id != second.interrupt_id
    assert first.interrupt_id.startswith("q_")
    assert datetime.fromisoformat(second.created_at).tzinfo is not None


def test_record_interrupt_stores_both_or_neither(saver: SqlCheckpointer) -> None:
    saver.put(kept.checkpoint("c1"))
    with pytest.raises(DurableConflictError):
        saver.record_interrupt(kept.checkpoint("c1"), kept.pending())
    assert saver.list_pending_interrupts() == []


# --- results under keys ---------------------------------------------------------------------------------


def test_idempotent_results_come_out_exactly(saver: SqlCheckpointer) -> None:
    value = {"value": None, "at": datetime(2026, 1, 2, tzinfo=UTC), "n": (1.0, 10**30)}
    saver.put_idempotent("e1", "pay:1", value)
    saver.put_idempotent("e1", "pay:1", {"value": "another"})
    assert saver.get_idempotent("e1", "pay:1") == value
    assert saver.get_idempotent("e1", "pay:2") is None
    assert saver.get_idempotent("e2", "pay:1") is None


# --- runs -----------------------------------------------------------------------------------------------


def test_a_run_is_seen_as_checkpoints(saver: SqlCheckpointer) -> None:
    assert _run(saver, "r1").status == "paused"
    first, second = saver.list("r1")
    assert (first.chain_name, first.execution_id, first.status, first.step_type) == (
        "cp_review", "r1", "completed", "node",
    )  # fmt: skip
    assert first.node_output == {"doubled": 42}
    assert (second.status, second.step_type, second.interrupt_reason) == ("interrupted", "hitl_pause", "approve?")
    assert second.interrupt_context == {"amount": 21}
    assert second.parent_checkpoint_id == first.checkpoint_id
    assert datetime.fromisoformat(first.created_at) <= datetime.fromisoformat(second.created_at)
    assert saver.get_last("r1") == second
    assert saver.get_by_id("r1", first.checkpoint_id) == first
    assert saver.list("r1", limit=1) == [first]

    assert _run(saver, "r1", resume_value=Resume(approved=True)).output == {"doubled": 42, "approved": True}

    last = saver.get_last("r1")
    assert last is not None
    assert (last.step_type, last.status, last.node_output) == (
        "run_end",
        "completed",
        {"doubled": 42, "approved": True},
    )
    with pytest.raises(AlreadyResumed):
        latest_resumable(saver, "r1")
    forkable = latest_forkable(saver, "r1")
    assert forkable is not None
    assert forkable.node_output == Resume(approved=True).model_dump()


def test_a_failed_run_says_what_it_raised(saver: SqlCheckpointer) -> None:
    with pytest.raises(ValueError, match="no such order"):
        _run(saver, "r1", failing)
    first, last = saver.list("r1")
    assert (first.status, first.node_output) == ("failed", {"error": "ValueError", "message": "no such order"})
    assert (last.step_type, last.status) == ("run_end", "failed")


def test_a_claimed_question_of_a_run_is_answered_through_the_engine(saver: SqlCheckpointer) -> None:
    _run(saver, "r1")
    (listed,) = saver.list_pending_interrupts()
    claimed = saver.delete_pending_interrupt_atomic("r1")
    assert claimed == listed
    assert isinstance(claimed, PendingInterrupt)
    assert (claimed.chain_name, claimed.reason, claimed.context) == ("cp_review", "approve?", {"amount": 21})
    assert saver.list_pending_interrupts() == []
    assert saver.delete_pending_interrupt_atomic("r1") is None
    assert _run(saver, "r1", resume_value=Resume(approved=False)).output == {"doubled": 42, "approved": False}


def test_what_is_put_beside_a_run_stands_where_it_was_put(saver: SqlCheckpointer) -> None:
    _run(saver, "r1")
    saver.put(kept.checkpoint("mine-1", "r1"))
    saver.put(kept.checkpoint("mine-2", "r1"))
    _run(saver, "r1", resume_value=Resume(approved=True))
    names = [row.checkpoint_id for row in saver.list("r1")]
    assert names[2:4] == ["mine-1", "mine-2"]
    assert [name.partition(":")[0] for name in names] == ["r1", "r1", "mine-1", "mine-2", "r1", "r1"]
    assert saver.get_by_id("r1", "mine-1") == saver.list("r1")[2]


def test_prune_keeps_what_waits_and_recognises_what_has_gone(saver: SqlCheckpointer) -> None:
    _run(saver, "paused")
    _run(saver, "done")
    _run(saver, "done", resume_value=Resume(approved=True))
    with pytest.raises(ValueError, match="no such order"):
        _run(saver, "broken", failing)
    saver.put(kept.checkpoint("c1"))
    assert saver.prune(timedelta(days=1)) == 0
    assert saver.prune(ZERO) == 2
    assert saver.list("done") == []
    assert saver.list("e1") == []
    assert saver.prune(ZERO) == 0
    assert saver.prune(ZERO, include_failed=True) == 1
    with pytest.raises(AlreadyResumed, match="pruned"):
        _run(saver, "done")
    assert _run(saver, "paused", resume_value=Resume(approved=True)).status == "completed"


def test_delete_execution_of_a_paused_run_and_of_one_that_goes_on(saver: SqlCheckpointer) -> None:
    _run(saver, "r1")
    saver.delete_execution("r1")
    assert saver.list("r1") == []
    assert saver.list_pending_interrupts() == []
    new = NewRun(
        run_id="r2", root_id="r2", runner="cp_review", kind="workflow", version=None, input_digest="d", input_data="21"
    )
    asyncio.run(saver.store.run_fork(new, [], []))
    with pytest.raises(RunBusy):
        saver.delete_execution("r2")
    assert asyncio.run(saver.store.run_get("r2")) is not None


# --- the plane ------------------------------------------------------------------------------------------


def test_what_is_not_synced_is_fetched_once_more(saver: SqlCheckpointer) -> None:
    saver.put(kept.checkpoint("c1", created_at="x"))
    _run(saver, "r1")
    found = saver.fetch_unsynced(10)
    assert [each["checkpoint_id"] for each in found] == ["c1", *(row.checkpoint_id for row in saver.list("r1"))]
    assert {key: value for key, value in found[0].items() if key != "project_id"} == kept.checkpoint(
        "c1", created_at="x"
    ).model_dump()
    assert found[0]["project_id"] is None
    assert saver.fetch_unsynced(1) == found[:1]
    assert saver.fetch_unsynced(10, "another") == []
    saver.mark_synced([found[0]["checkpoint_id"], "unknown"])
    saver.mark_quarantined({found[1]["checkpoint_id"]: "too large"})
    assert saver.fetch_unsynced(10) == found[2:]
    assert saver.list_quarantined("r1") == {found[1]["checkpoint_id"]: "too large"}


# --- opening --------------------------------------------------------------------------------------------


def test_it_can_be_called_from_a_running_loop_and_from_many_threads(saver: SqlCheckpointer) -> None:
    async def main() -> Checkpoint | None:
        saver.put(kept.checkpoint("c-loop"))
        return saver.get_last("e1")

    found = asyncio.run(main())
    assert found is not None
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: saver.put(kept.checkpoint(f"c{n}")), range(40)))
        counts = list(pool.map(lambda n: len(saver.list("e1")), range(8)))
    assert counts == [41] * 8


def test_setup_is_idempotent_and_a_closed_one_opens_again(saver: SqlCheckpointer) -> None:
    saver.setup()
    saver.setup()
    saver.put(kept.checkpoint("c1"))
    saver.close()
    saver.close()
    found = saver.get_last("e1")
    assert found is not None
    assert found.checkpoint_id == "c1"


def test_checkpointers_on_one_store_share_it(saver: SqlCheckpointer, store_url: str) -> None:
    other = keeping.checkpointer(store_url)
    store = saver.store
    assert other.store is store
    saver.close()
    other.put(kept.checkpoint("c1"))  # still open for the other one
    other.close()
    with pytest.raises(DurableStorageError):
        store.read_now(lambda session: None)


def test_nothing_is_created_before_the_first_use(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "local.db"
    saver = SQLiteCheckpointer(str(path))
    assert not path.parent.exists()
    with saver:
        saver.setup()
    assert path.exists()
    assert database.execute(f"sqlite:///{path}", "PRAGMA user_version") == [(1,)]


def test_the_default_is_the_configured_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PERDURE_LOCAL_DB", str(tmp_path / "a.db"))
    assert SQLiteCheckpointer().db_path == str(tmp_path / "a.db")
    monkeypatch.delenv("PERDURE_LOCAL_DB")
    monkeypatch.chdir(tmp_path)
    assert SQLiteCheckpointer().db_path == str(tmp_path / ".perdure" / "local.db")
    assert SQLiteCheckpointer("b.db").db_path == str(tmp_path / "b.db")


@pytest.mark.parametrize("path", ["", ":memory:", "a\0b", "directory/", b"bytes"])
def test_what_names_no_file_is_refused(path: Any) -> None:
    with pytest.raises(InvalidInputError) as caught:
        SQLiteCheckpointer(path)
    assert caught.value.field == "db_path"


def test_what_is_left_open_is_closed_at_exit(store_url: str) -> None:
    script = """
import sys
from tests.support import keeping, kept
saver = keeping.checkpointer(sys.argv[1])
saver.put(kept.checkpoint("c1"))
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-X", "dev", "-c", script, store_url], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    with keeping.checkpointer(store_url) as saver:
        assert len(saver.list("e1")) == 1


def test_a_forked_child_opens_its_own(store_url: str) -> None:
    script = """
import os, sys
from tests.support import keeping, kept
saver = keeping.checkpointer(sys.argv[1])
saver.put(kept.checkpoint("c1"))
pid = os.fork()
saver.put(kept.checkpoint("child" if pid == 0 else "parent"))
saver.close()
if pid:
    _, status = os.waitpid(pid, 0)
    print(os.waitstatus_to_exitcode(status))
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script, store_url], capture_output=True, text=True)
    assert done.stdout.strip() == "0", done.stderr
    with keeping.checkpointer(store_url) as saver:
        assert sorted(row.checkpoint_id for row in saver.list("e1")) == ["c1", "child", "parent"]


# --- Postgres: the connection string --------------------------------------------------------------------


def test_postgres_takes_keywords_and_a_schema(postgres_dsn: str) -> None:
    import psycopg

    parts = psycopg.conninfo.conninfo_to_dict(postgres_dsn)
    keywords = psycopg.conninfo.make_conninfo("", **parts)
    with PostgresCheckpointer(keywords, schema="Other_1") as saver:
        saver.put(kept.checkpoint("c1"))
    with PostgresCheckpointer(postgres_dsn, schema="Other_1") as same, PostgresCheckpointer(postgres_dsn) as default:
        assert len(same.list("e1")) == 1
        assert default.list("e1") == []


@pytest.mark.parametrize(
    ("connection_string", "options", "field"),
    [
        ("postgresql://h/d", {"schema": "a-b"}, "schema"),
        ("postgresql://h/d", {"schema": 'x"; DROP'}, "schema"),
        ("postgresql://h/d", {"schema": ""}, "schema"),
        ("postgresql://h/d", {"schema": "1a"}, "schema"),
        ("postgresql://h/d?schema=a-b", {}, "schema"),
        ("postgresql://h/d?schema=one", {"schema": "two"}, "schema"),
        ("postgresql://h/d", {"min_pool_size": -1}, "min_pool_size"),
        ("postgresql://h/d", {"max_pool_size": 0}, "max_pool_size"),
        ("postgresql://h/d", {"min_pool_size": 5, "max_pool_size": 4}, "min_pool_size"),
        ("postgresql://h/d", {"max_pool_size": True}, "max_pool_size"),
        ("mysql://h/d", {}, "connection_string"),
        ("", {}, "connection_string"),
        ("host = 'open", {}, "connection_string"),
    ],
)
def test_postgres_refuses_bad_parameters_by_name(connection_string: str, options: Any, field: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        PostgresCheckpointer(connection_string, **options)
    assert caught.value.field == field
    assert isinstance(caught.value, ValueError)


def test_postgres_keeps_the_schema_that_its_url_names() -> None:
    assert PostgresCheckpointer("postgresql://h/d?schema=one")._address()[1].endswith("schema=one")  # type: ignore[index]


def test_postgres_reads_with_as_many_connections_as_allowed(postgres_dsn: str) -> None:
    together = threading.Barrier(3)

    def read(saver: PostgresCheckpointer) -> None:
        def work(session: object) -> None:
            together.wait(timeout=30)  # each is in a transaction of its own now

        saver.store.read_now(work)

    with PostgresCheckpointer(postgres_dsn, min_pool_size=2, max_pool_size=3) as saver:
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(read, [saver] * 3))
        pool_ = saver.store._driver._readers  # type: ignore[attr-defined]
        assert (pool_.min_size, pool_.max_size) == (2, 3)


def test_postgres_loads_psycopg_only_when_used() -> None:
    script = """
import sys
from perdure.checkpointers.postgres import PostgresCheckpointer
from perdure.checkpointers.sqlite import SQLiteCheckpointer
PostgresCheckpointer("host=/nowhere dbname=x")
assert not {"psycopg", "psycopg_pool"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", script], check=True)
