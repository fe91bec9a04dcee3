"""What is kept by hand, from many processes and through their deaths: each question is claimed once, and a transaction
is there whole or not at all."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import Iterator

import pytest
from tests.support import database, keeping, kept, runs
from tests.support.child import Child

from perdure.store.kept import CLAIM_S
from perdure.store.sql_store import SqlStore

_PROCESSES, _QUESTIONS = 6, 200


@contextlib.contextmanager
def _process(verb: str, url: str, **options: str) -> Iterator[Child]:
    found = Child("tests.support.keeping", verb, url, json.dumps(options))
    try:
        yield found
    finally:
        found.close()


@contextlib.contextmanager
def _opened(url: str) -> Iterator[SqlStore]:
    store = keeping.opened(url)
    try:
        yield store
    finally:
        store.close_now()


# --- many processes -------------------------------------------------------------------------------------


def _ask(store: SqlStore) -> set[str]:
    """Questions of runs and kept ones, half and half, one to an execution."""

    async def ask_runs() -> None:
        await runs.register(store, runs.WORKER)
        await asyncio.gather(*(runs.waiting(store, f"r{n}", f"q{n}") for n in range(_QUESTIONS // 2)))

    asyncio.run(ask_runs())
    for n in range(_QUESTIONS // 2):
        store.checkpoints.checkpoint_put(kept.row(f"c{n}", f"e{n}"), kept.question(f"k{n}", f"c{n}", f"e{n}"))
    return {f"{kind}{n}" for kind in "qk" for n in range(_QUESTIONS // 2)}


def _claimed(url: str) -> list[list[str]]:
    """What each process got."""
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(_process("claim", url)) for _ in range(_PROCESSES)]
        for process in processes:
            process.expect("ready")
        for process in processes:
            process.go()
        return [process.result() for process in processes]


@pytest.mark.timeout(300)
def test_peer_A7_many_processes_claim_each_question_once(store_url: str) -> None:
    """No error, none claimed twice, none claimed by nobody."""
    with _opened(store_url) as store:
        asked = _ask(store)
    got = Counter(name for each in _claimed(store_url) for name in each)
    assert set(got) == asked
    assert set(got.values()) == {1}
    with _opened(store_url) as store:
        assert store.checkpoints.pending_list(limit=10) == []


@pytest.mark.timeout(300)
def test_peer_E5_many_processes_set_up_one_new_store(store_url: str) -> None:
    assert _claimed(store_url) == [[]] * _PROCESSES


# --- death in the middle --------------------------------------------------------------------------------


def _rows(url: str) -> dict[str, int]:
    tables = (
        "run", "record", "interrupt", "execution", "checkpoint", "checkpoint_write", "pending_interrupt", "idempotent",
        "replica", "tombstone",
    )  # fmt: skip
    return {table: database.execute(url, f"SELECT count(*) FROM {table}")[0][0] for table in tables}


def _whole_run(store: SqlStore) -> None:
    """A run that is over, with rows in every table."""
    asyncio.run(kept.ended(store, "r1"))
    store.checkpoints.checkpoint_put(kept.row("c1", "r1"), kept.question("k1", "c1", "r1"))
    store.checkpoints.write_put("r1", "c1", ["1"])
    store.checkpoints.idempotent_put("r1", "k", "1")
    store.replica.quarantine_mark({"r1:2": "no"})


def _deaths(url: str, operation: str) -> list[dict[str, int]]:
    """Rows after each process: all but the last one died in the middle."""
    seen: list[dict[str, int]] = []
    with _process("die", url, operation=operation) as process:
        while (said := process.expect("")) == "died":
            seen.append(_rows(url))
            process.go()
        assert said == "lived 0", process.lines
        seen.append(_rows(url))
    return seen


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("operation", "tombstones"), [("prune", 1), ("delete", 0)])
def test_a_run_is_deleted_whole_or_not_at_all(store_url: str, operation: str, tombstones: int) -> None:
    with _opened(store_url) as store:
        _whole_run(store)
    before = _rows(store_url)
    *died, lived = _deaths(store_url, operation)
    assert len(died) > 8
    assert died == [before] * len(died)
    assert lived == dict.fromkeys(before, 0) | {"tombstone": tombstones}


@pytest.mark.timeout(300)
def test_a_checkpoint_and_its_question_are_stored_both_or_neither(store_url: str) -> None:
    with _opened(store_url):
        pass
    *died, lived = _deaths(store_url, "put")
    assert len(died) > 4
    nothing = dict.fromkeys(lived, 0)
    assert died == [nothing] * len(died)
    assert lived == nothing | {"execution": 1, "checkpoint": 1, "pending_interrupt": 1}


@pytest.mark.timeout(300)
def test_peer_A1_a_claimer_that_dies_loses_nothing(store_url: str) -> None:
    """Before its commit nothing is claimed; after it, the claim lapses."""
    with _opened(store_url) as store:
        asyncio.run(runs.waiting(store, "r1", "q1"))
    *died, _ = _deaths(store_url, "claim")
    assert died
    with _opened(store_url) as store:
        assert store.checkpoints.pending_list(limit=10) == []  # the last one has it, and is gone
        ((at,),) = database.execute(store_url, "SELECT claimed_at FROM interrupt")
        (asked,) = store.checkpoints.pending_list(limit=10, now=at + CLAIM_S)
        again = store.checkpoints.pending_claim("r1", now=at + CLAIM_S)
    assert again is not None
    assert again.interrupt_id == asked.interrupt_id == "q1"


@pytest.mark.timeout(120)
def test_a_paused_run_of_a_killed_worker_can_be_deleted(store_url: str) -> None:
    with _process("hold", store_url) as owner:
        owner.expect("holding")
        with _opened(store_url) as store:
            owner.kill()
            (worker,) = asyncio.run(store.worker_list())
            assert asyncio.run(store.worker_probe(worker)) == "dead"
            store.maintenance.execution_delete("r1")
            assert asyncio.run(store.run_get("r1")) is None
