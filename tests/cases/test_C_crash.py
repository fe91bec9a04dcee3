"""Crash recovery: a resume, a fork or a recovery that is itself killed leaves nothing half done."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.support import shop
from tests.support.child import child

from perdure import Engine, Resume, open_engine
from perdure.core.records import RunFilter


@pytest.fixture
def ledger(tmp_path: Path) -> str:
    return str(tmp_path / "ledger")


async def _killed_everywhere(verb: str, url: str, **options: Any) -> int:
    """Run the command again and again, killed in place of its first commit, its second, ... until it gets
    through."""
    kills = 0
    while True:
        with child(verb, url, die_at=kills + 1, **options) as one:
            code = await asyncio.to_thread(one.end)
            if code == 0:
                assert one.lines[-1].startswith("result"), one.lines
                return kills
            assert code == -9, one.lines
        kills += 1


async def _forks(engine: Engine) -> list[Any]:
    return [row for row in await engine.store.run_list(RunFilter()) if row.forked_from]


@pytest.mark.timeout(240)
async def test_C8_fork_killed_at_every_write(store_url: str, ledger: str) -> None:
    """Whatever of a fork is visible after a kill is a whole run, and the original goes on as before."""
    async with open_engine(store_url) as engine:
        run_id = (await engine.run(shop.approve, {"ledger": ledger})).execution_id
        before = await engine.store.record_list(run_id)
    kills = await _killed_everywhere("fork", store_url, runner="shop_approve", execution_id=run_id)
    assert kills >= 3
    async with open_engine(store_url) as engine:
        await engine.recover([shop.approve])
        assert await engine.store.record_list(run_id) == before
        forks = await _forks(engine)
        assert forks
        for row in forks:
            assert row.status == "waiting"
            assert len(await engine.store.interrupt_list(run_id=row.run_id)) == 1
            result = await engine.resume(shop.approve, row.run_id, resume_value=Resume(approved=False))
            assert result.output == {"paid": False}
        result = await engine.resume(shop.approve, run_id, resume_value=Resume(approved=True))
    assert result.output == {"paid": True}
    assert shop.effects(ledger) == ["prepare", "pay", "receipt"]


@pytest.mark.timeout(240)
async def test_C8_recovery_killed_at_every_write(store_url: str, ledger: str) -> None:
    """A recovery may be killed at each of its writes in turn: the next one goes on from what was recorded."""
    with child(
        "run", store_url, hold=("before one",), runner="shop_three_effects", input={"ledger": ledger},
        execution_id="c8",
    ) as first:  # fmt: skip
        await asyncio.to_thread(first.expect, "holding before one")
        first.kill()
    kills = await _killed_everywhere("work", store_url)
    async with open_engine(store_url) as engine:
        result = await engine.run(shop.three_effects, {"ledger": ledger}, execution_id="c8")
        records = await engine.store.record_list("c8")
    assert kills >= 3
    assert result.output == ["one", "two", "three"]
    done = [record for record in records if record.type == "completed"]
    assert [record.index for record in done] == [0, 1, 2]
    # In doubt at a kill, an idempotent step is repeated under its own id; one that was recorded is not.
    by_effect: dict[str, set[str]] = {}
    for entry in shop.entries(ledger):
        by_effect.setdefault(entry["what"], set()).add(entry["operation"])
    assert by_effect == {"one": {"c8/0"}, "two": {"c8/1"}, "three": {"c8/2"}}


@pytest.mark.timeout(240)
async def test_C8_resume_killed_at_every_write(store_url: str, ledger: str) -> None:
    """The answer of a resume that is killed is given again until it is stored, and then it is never asked
    for again."""
    async with open_engine(store_url) as engine:
        run_id = (await engine.run(shop.approve, {"ledger": ledger})).execution_id
    kills, answer = 0, {"approved": True}
    while True:
        options: dict[str, Any] = {"execution_id": run_id, "die_at": kills + 1, "runner": "shop_approve"}
        async with open_engine(store_url) as engine:
            is_open = bool(await engine.store.interrupt_list(run_id=run_id))
            row = await engine.store.run_get(run_id)
        assert row is not None
        if row.status == "completed":
            break
        verb = "resume" if is_open else "work"
        if is_open:
            options["answer"] = answer
        else:
            options = {"die_at": kills + 1}
        with child(verb, store_url, **options) as one:
            code = await asyncio.to_thread(one.end)
            assert code in (0, -9), one.lines
        kills += code != 0
    async with open_engine(store_url) as engine:
        (question,) = await engine.store.interrupt_list(run_id=run_id, status=None)
    assert kills >= 3
    assert question.status == "answered"
    assert set(shop.effects(ledger)) == {"prepare", "pay", "receipt"}
    assert len({entry["operation"] for entry in shop.entries(ledger)}) == 3
