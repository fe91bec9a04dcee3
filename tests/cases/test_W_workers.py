"""Ownership with several workers: who may run a run, how death is told from slowness, what a lost owner
may still do."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support import shop
from tests.support.child import Child, child
from tests.support.database import execute

from perdure import (
    DurableConflictError,
    Engine,
    EngineSettings,
    InvalidInputError,
    open_engine,
    workflow,
)


@pytest.fixture
def ledger(tmp_path: Path) -> str:
    return str(tmp_path / "ledger")


@contextlib.contextmanager
def held(url: str, ledger: str, place: str = "before one", **options: Any) -> Iterator[Child]:
    """A process that owns run `w` and is inside a body of it."""
    options = {"runner": "shop_three_effects", "execution_id": "w", "input": {"ledger": ledger}} | options
    with child("run", url, hold=(place,), **options) as owner:
        owner.expect(f"holding {place}")
        yield owner


async def _owner(engine: Engine, run_id: str = "w") -> str:
    row = await engine.store.run_get(run_id)
    assert row is not None
    assert row.worker_id is not None
    return row.worker_id


async def _beats(engine: Engine, worker_id: str) -> int:
    return next(row.beat for row in await engine.store.worker_list() if row.worker_id == worker_id)


async def _never_dead_for(engine: Engine, worker_id: str, beats: int) -> None:
    """Watch a worker as a claimant does, for so many of its heartbeats."""
    last = await _beats(engine, worker_id) + beats
    while await _beats(engine, worker_id) < last:
        assert worker_id not in await engine.host.dead_workers()
        await asyncio.sleep(engine.host.settings.poll_s)


async def test_W1_lost_claim_executes_nothing(store_url: str, ledger: str) -> None:
    """Two recoverers have both found the run of a dead worker: one claim takes it, the other gets nothing
    to run."""
    with held(store_url, ledger) as owner:
        owner.kill()
    async with open_engine(store_url) as one, open_engine(store_url) as two:
        dead = [await _owner(one)]
        claims = await asyncio.gather(
            *(engine.store.run_claim(engine.host.worker_id, run_ids=["w"], dead_workers=dead) for engine in (one, two))
        )
    assert sorted(len(claim) for claim in claims) == [0, 1]


@pytest.mark.timeout(180)
async def test_W1_racing_recoverers_run_the_body_once(store_url: str, ledger: str) -> None:
    """Three processes recover one run at once: each effect happens once."""
    with held(store_url, ledger) as owner:
        owner.kill()
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(child("work", store_url, wait=True)) for _ in range(3)]
        for worker in workers:
            await asyncio.to_thread(worker.expect, "open")
        for worker in workers:
            worker.go()
        for worker in workers:
            await asyncio.to_thread(worker.result)
    assert shop.effects(ledger) == ["one", "two", "three"]


@pytest.mark.timeout(180)
async def test_W4_concurrent_starts_of_one_id(store_url: str, ledger: str) -> None:
    """Twenty tasks and two processes start one id at once: the body runs once, and all get its result."""
    order = {"ledger": ledger}
    options: dict[str, Any] = {
        "runner": "shop_three_effects",
        "execution_id": "w",
        "input": order,
        "wait": True,
    }
    async with open_engine(store_url) as engine:
        with child("run", store_url, **options) as one, child("run", store_url, **options) as two:
            for other in (one, two):
                await asyncio.to_thread(other.expect, "open")
            one.go()
            two.go()
            results = await asyncio.gather(
                *(engine.run(shop.three_effects, order, execution_id="w") for _ in range(20))
            )
            outputs = [result.output for result in results]
            for other in (one, two):
                outputs.append((await asyncio.to_thread(other.result))["output"])
        with pytest.raises(DurableConflictError):
            await engine.run(shop.three_effects, {"ledger": ledger, "other": 1}, execution_id="w")
    assert outputs == [["one", "two", "three"]] * 22
    assert shop.effects(ledger) == ["one", "two", "three"]


async def test_W5_dead_worker_without_a_row(store_url: str, ledger: str) -> None:
    """The row of a dead worker is gone: its run is found all the same."""
    with held(store_url, ledger) as owner:
        owner.kill()
    execute(store_url, "DELETE FROM worker")
    async with open_engine(store_url) as engine:
        await engine.recover([shop.three_effects])
    assert shop.effects(ledger) == ["one", "two", "three"]


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From its call on we are on another machine than the processes begun before: their lock files are out of sight."""

    def leave() -> None:
        monkeypatch.setenv("TMPDIR", str(tmp_path))
        monkeypatch.setattr(tempfile, "tempdir", None)

    return leave


async def test_W5_dead_worker_of_another_machine(postgres_dsn: str, ledger: str, elsewhere: Callable[[], None]) -> None:
    """Where no lock file says so, a worker is dead when its session is gone and its heartbeat missing, long before its
    lease is over."""
    with held(postgres_dsn, ledger) as owner:
        elsewhere()
        async with open_engine(postgres_dsn, settings=EngineSettings(lease_s=3600.0)) as engine:
            owner_id = await _owner(engine)
            await _never_dead_for(engine, owner_id, beats=2)
            row = next(row for row in await engine.store.worker_list() if row.worker_id == owner_id)
            owner.kill()
            while (proof := await engine.store.worker_probe(row)) == "alive":  # until the server has seen it
                await asyncio.sleep(0.01)
            assert proof == "lost"
            await engine.recover([shop.three_effects])
    assert shop.effects(ledger) == ["one", "two", "three"]


async def test_W5_run_of_a_dead_worker_of_another_machine_is_cancelled_at_once(
    postgres_dsn: str, ledger: str, elsewhere: Callable[[], None]
) -> None:
    """An engine that has just been opened has not seen the heartbeat stand still; it looks for as long as it takes."""
    with held(postgres_dsn, ledger) as owner:
        elsewhere()
        async with open_engine(postgres_dsn, settings=EngineSettings(lease_s=3600.0)) as engine:
            assert await engine.cancel("w") == "running", "its owner lives, and will end it"
            owner.kill()
            while await engine.cancel("w") != "cancelled":  # until the server has seen it
                await asyncio.sleep(0.01)
    assert shop.effects(ledger) == []


async def test_W5_restart_is_another_worker(store_url: str, ledger: str) -> None:
    """A restarted worker is somebody else, so its heartbeat keeps nothing alive that its former self
    owned."""
    with held(store_url, ledger) as first:
        former = next(line for line in first.lines if line.startswith("open"))
        first.kill()
    with child("work", store_url) as second:
        await asyncio.to_thread(second.result)
    assert next(line for line in second.lines if line.startswith("open")) != former
    assert shop.effects(ledger) == ["one", "two", "three"]


async def test_W5_old_and_new_overlap(store_url: str, ledger: str) -> None:
    """While the old instance drains, the new one takes nothing of it; when the old one has died,
    everything."""
    with held(store_url, ledger) as old:
        async with open_engine(store_url) as engine:
            working = asyncio.create_task(engine.recover([shop.three_effects]))
            await _never_dead_for(engine, await _owner(engine), beats=2)
            assert shop.effects(ledger) == []
            old.kill()
            await working
    assert shop.effects(ledger) == ["one", "two", "three"]


def test_W6_lease_that_makes_no_sense_is_refused() -> None:
    """A lease of nothing is refused when it is set."""
    for lease_s in (0, -1.0):
        with pytest.raises(InvalidInputError):
            EngineSettings(lease_s=lease_s)


@pytest.mark.parametrize("runner", ["shop_three_effects", "shop_blocking"])
async def test_W6_W7_long_bodies_keep_their_lease(store_url: str, ledger: str, runner: str) -> None:
    """A body longer than two leases, in a thread or blocking the loop itself, is never taken for dead: it
    runs once."""
    settings = {"lease_s": 1.0}
    place = "before one" if runner == "shop_three_effects" else "blocking blocked"
    with held(store_url, ledger, place, runner=runner, settings=settings) as owner:
        async with open_engine(store_url, settings=EngineSettings(**settings)) as engine:
            # The period is at most a fifth of the lease, so these beats are more than two leases.
            await _never_dead_for(engine, await _owner(engine), beats=12)
        owner.go()
        result = await asyncio.to_thread(owner.result)
    assert result["status"] == "completed"
    assert len(shop.effects(ledger)) == (3 if runner == "shop_three_effects" else 1)


async def test_W7_heartbeat_survives_an_error(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A heartbeat that cannot be written is not the last one."""
    async with open_engine(store_url, settings=EngineSettings(lease_s=1.0)) as watcher:
        failed: list[str] = []
        real = watcher.store.worker_beat

        def fail_once(worker_id: str) -> bool:
            if not failed:
                failed.append(worker_id)
                raise OSError("network unreachable")
            return real(worker_id)

        monkeypatch.setattr(watcher.store, "worker_beat", fail_once)
        async with open_engine(watcher.store, settings=EngineSettings(lease_s=1.0)) as engine:
            await _never_dead_for(watcher, engine.host.worker_id, beats=3)
            assert failed
            assert not engine.host.is_closing


@pytest.mark.timeout(180)
async def test_W8_frozen_owner_records_nothing_after_its_lease(store_url: str, ledger: str) -> None:
    """Frozen past its lease, replaced, and thawed: nothing of the old owner is recorded, and it begins no
    other effect."""
    settings = {"lease_s": 1.0}
    with held(store_url, ledger, "after one", settings=settings) as owner:
        owner.freeze()
        async with open_engine(store_url, settings=EngineSettings(**settings)) as engine:
            first = await _owner(engine)
            await engine.recover([shop.three_effects])
            result = await engine.run(shop.three_effects, {"ledger": ledger}, execution_id="w")
            before = await engine.store.record_list("w")
            row = await engine.store.run_get("w")
            owner.thaw()
            owner.go()
            said = await asyncio.to_thread(owner.result)
            assert await engine.store.record_list("w") == before
            assert await engine.store.run_get("w") == row
            assert first not in [worker.worker_id for worker in await engine.store.worker_list()]
    assert result.output == ["one", "two", "three"]
    assert said["output"] == ["one", "two", "three"]
    assert [(entry["what"], entry["pid"] == owner.process.pid) for entry in shop.entries(ledger)] == [
        ("one", True), ("one", False), ("two", False), ("three", False)
    ]  # fmt: skip


@pytest.mark.parametrize("skew_s", [600.0, -600.0])
async def test_W10_skewed_clock_takes_no_live_lease(
    store_url: str, ledger: str, monkeypatch: pytest.MonkeyPatch, skew_s: float
) -> None:
    """A worker whose clock is ten minutes off takes nothing from a live one, and takes a dead one's run as
    any other."""
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + skew_s)
    with held(store_url, ledger) as owner:
        async with open_engine(store_url) as engine:
            await _never_dead_for(engine, await _owner(engine), beats=2)
            claims = await engine.store.run_claim(engine.host.worker_id, runners=["shop_three_effects"])
            assert claims == []
            owner.kill()
            await engine.recover([shop.three_effects])
    assert shop.effects(ledger) == ["one", "two", "three"]


@pytest.mark.parametrize("skew_s", [7200.0, -7200.0])
async def test_W10_due_times_use_the_database_clock(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch, skew_s: float
) -> None:
    """A sleep of an hour is due in an hour, however wrong the clock of who stores or reads it is.

    Where the database is a file, its clock is the machine's, and nobody's can differ.
    """

    @workflow
    async def sleeps_long(_: None) -> None:
        await asyncio.sleep(3600)

    real = time.time
    async with open_engine(postgres_dsn) as engine:
        await engine.start(sleeps_long, execution_id="w")
        await _until_status(engine, "w", "waiting")
    monkeypatch.setattr(time, "time", lambda: real() + skew_s)
    async with open_engine(postgres_dsn) as engine:
        assert await engine.store.run_claim(engine.host.worker_id, runners=[sleeps_long.name]) == []
        due_s = await engine.store.run_due_in([sleeps_long.name])
    assert due_s is not None
    assert 3500 < due_s <= 3600


async def _until_status(engine: Engine, run_id: str, status: str) -> None:
    async for event in engine.stream(run_id):
        if event.data.get("status") == status:
            return
    raise AssertionError(f"the run ended before it was {status}")
