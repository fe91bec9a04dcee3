"""Many processes on one store: nothing is lost, claimed twice, or met by a locked database; the server may come and go.

Short by default; PERDURE_EXPLORE=all makes the load last a minute.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.support import shop
from tests.support.child import Child, child, storm
from tests.support.postgres import PostgresServer

from perdure import EngineSettings, open_engine
from perdure.core.records import RunRow

_IS_LONG = os.environ.get("PERDURE_EXPLORE") == "all"
_LOAD_S = 60.0 if _IS_LONG else 4.0
_PROCESSES, _THREADS = 8, 4


def _effect_count(ledger: Path) -> int:
    return len(shop.entries(ledger))


def _begun(processes: Sequence[Child]) -> list[str]:
    """Stop them, and wait until everything is worked off; ids of the runs they have begun."""
    for process in processes:
        process.go()
    begun: list[str] = []
    for process in processes:
        begun.extend(json.loads(process.expect("begun ")))
        assert process.end() == 0, process.lines
    return begun


async def _rows(url: str, run_ids: list[str]) -> list[RunRow | None]:
    async with open_engine(url) as engine:
        return [await engine.store.run_get(run_id) for run_id in run_ids]


async def _claims(url: str, run_ids: list[str]) -> Counter[int]:
    """How often runs were taken: number of claims -> number of runs."""
    async with open_engine(url) as engine:
        counts: Counter[int] = Counter()
        for run_id in run_ids:
            records = await engine.store.record_list(run_id)
            counts[sum(r.type == "status" and r.outcome == "running" for r in records)] += 1
        return counts


def _assert_all_done_once(url: str, begun: list[str], ledger: Path) -> None:
    rows = asyncio.run(_rows(url, begun))
    assert all(row is not None and row.status == "completed" for row in rows)
    expected = Counter(f"{run_id}:{n}" for run_id in begun for n in range(2))
    assert Counter(shop.effects(ledger)) == expected


@pytest.mark.timeout(600)
def test_many_processes_share_one_sqlite_file(tmp_path: Path) -> None:
    """Eight processes of four threads each start, claim and end runs in one file: no error, none lost,
    none taken twice."""
    url, ledger = f"sqlite:///{tmp_path / 'perdure.db'}", tmp_path / "ledger"
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(storm(url, ledger=str(ledger), threads=_THREADS)) for _ in range(_PROCESSES)]
        for process in processes:
            process.expect("working")
        threading.Event().wait(_LOAD_S)  # the load is a time, as the promise is
        begun = _begun(processes)
        said = [line for process in processes for line in process.lines]
    assert len(begun) > _PROCESSES * _THREADS
    assert not [line for line in said if "locked" in line or "Traceback" in line or line.startswith("away")], said
    _assert_all_done_once(url, begun, ledger)
    claims = asyncio.run(_claims(url, begun))
    # Runs begun by their own engine are created running; the others were claimed by one worker, once.
    assert set(claims) <= {0, 1}
    assert claims[1] > 0


@pytest.mark.timeout(600)
def test_postgres_restarted_twice_under_load(postgres_server: PostgresServer, tmp_path: Path) -> None:
    """The server is restarted and then crashed while four processes work: everything completes, nothing is performed
    twice, since nobody died."""
    url, ledger = postgres_server.dsn(), tmp_path / "ledger"
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(storm(url, ledger=str(ledger), threads=2)) for _ in range(4)]
        for process in processes:
            process.expect("working")
        more = 2000 if _IS_LONG else 100
        for mode in ("fast", "immediate"):
            reached = _effect_count(ledger) + more
            _wait_for(ledger, reached)
            postgres_server.restart(mode)
        _wait_for(ledger, _effect_count(ledger) + more)
        begun = _begun(processes)
    _assert_all_done_once(url, begun, ledger)


def _wait_for(ledger: Path, count: int) -> None:
    """Until so many effects have happened; bounded by the test's time limit."""
    while _effect_count(ledger) < count:
        threading.Event().wait(0.02)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("frozen_count", [5])
async def test_frozen_worker_records_nothing_after_its_lease(store_url: str, tmp_path: Path, frozen_count: int) -> None:
    """A worker with several runs is stopped past its lease; another ends them; continued, it changes not
    one row."""
    ledger, settings = tmp_path / "ledger", {"lease_s": 1.0}
    with child("hold many", store_url, ledger=str(ledger), count=frozen_count, settings=settings) as frozen:
        await asyncio.to_thread(frozen.expect, "all inside")
        frozen.freeze()
        run_ids = [f"frozen-{n}" for n in range(frozen_count)]
        async with open_engine(store_url, settings=EngineSettings(lease_s=1.0)) as engine:
            await engine.recover([shop.burst])
            before = [await engine.store.run_load(run_id) for run_id in run_ids]
            assert [loaded.run.status for loaded in before] == ["completed"] * frozen_count
            frozen.thaw()
            frozen.go()
            await asyncio.to_thread(frozen.result)
            after = [await engine.store.run_load(run_id) for run_id in run_ids]
    assert [loaded.records for loaded in after] == [loaded.records for loaded in before]
    assert [loaded.run for loaded in after] == [loaded.run for loaded in before]
    effects = Counter(entry["what"] for entry in shop.entries(ledger) if entry["pid"] != frozen.process.pid)
    assert effects == Counter(f"frozen-{n}:{k}" for n in range(frozen_count) for k in range(2))
