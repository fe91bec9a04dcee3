"""Timers: a sleep is a stored deadline; whoever is there when it is due goes on, once."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest
from tests.support import shop
from tests.support.child import child

from perdure import Engine, EngineSettings, open_engine


@pytest.fixture
def ledger(tmp_path: Path) -> str:
    return str(tmp_path / "ledger")


async def _until(engine: Engine, run_id: str, kind: str) -> None:
    """Wait until the journal shows the event: `timer` (started) or `waiting` (parked)."""
    async for event in engine.stream(run_id):
        if kind in (event.data.get("kind"), event.data.get("status")):
            return


@pytest.mark.timeout(180)
@pytest.mark.parametrize("stay_s", [0.0, 60.0], ids=["parked", "in memory"])
async def test_S5_timer_of_a_dead_process_fires_once(store_url: str, ledger: str, stay_s: float) -> None:
    """Killed while it sleeps, parked or in memory, and overdue: with three workers it wakes at once,
    exactly once."""
    with child(
        "run", store_url, hold=("after before sleep",), runner="shop_sleeper", execution_id="s5",
        input={"ledger": ledger, "seconds": 1.0}, settings={"stay_s": stay_s},
    ) as first:  # fmt: skip
        await asyncio.to_thread(first.expect, "holding after before sleep")
        async with open_engine(store_url) as engine:
            first.go()
            await _until(engine, "s5", "timer" if stay_s else "waiting")
        first.kill()
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(child("work", store_url)) for _ in range(3)]
        for worker in workers:
            await asyncio.to_thread(worker.result)
    async with open_engine(store_url) as engine:
        records = await engine.store.record_list("s5")
    fired = [record for record in records if record.kind == "timer" and record.type == "completed"]
    assert len(fired) == 1
    assert records[-1].outcome == "completed"
    assert shop.effects(ledger) == ["before sleep", "after sleep"]


async def test_S5_deadline_is_not_begun_anew(store_url: str, ledger: str) -> None:
    """A restart does not sleep the whole time again: what is left is counted from the record, and it never
    wakes early."""
    settings = EngineSettings(stay_s=0.0)
    async with open_engine(store_url, settings=settings) as engine:
        await engine.start(shop.sleeper, {"ledger": ledger, "seconds": 3600}, execution_id="s5")
        await _until(engine, "s5", "waiting")
        first = await engine.store.run_due_in(["shop_sleeper"])
    async with open_engine(store_url, settings=settings) as engine:
        claims = await engine.store.run_claim(engine.host.worker_id, runners=["shop_sleeper"])
        second = await engine.store.run_due_in(["shop_sleeper"])
        row = await engine.store.run_get("s5")
        await engine.cancel("s5")
    assert claims == []
    assert first is not None
    assert second is not None
    assert second <= first <= 3600
    assert row is not None
    assert row.status == "waiting"
    assert shop.effects(ledger) == ["before sleep"]


async def test_S5_timer_and_its_record_are_one_transaction(store_url: str, ledger: str) -> None:
    """A run is never waiting without the due time, nor has a due time without the record of its timer."""
    async with open_engine(store_url, settings=EngineSettings(stay_s=0.0)) as engine:
        await engine.start(shop.sleeper, {"ledger": ledger, "seconds": 3600}, execution_id="s5")
        async for _ in engine.stream("s5"):
            row = await engine.store.run_get("s5")
            loaded = await engine.store.run_load("s5")
            assert row is not None
            is_timed = any(record.kind == "timer" for record in loaded.records)
            if row.status == "waiting":
                assert row.due_at is not None
                assert is_timed
                break
            assert row.due_at is None
