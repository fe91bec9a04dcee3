"""Crash recovery of chains: killed at every commit, what was recorded is not done again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support import chain_shop, shop
from tests.support.chain_shop import child
from tests.support.chains import YES, load, points

from perdure import DurableNotFoundError


@pytest.fixture
def ledger(tmp_path: Path) -> str:
    return str(tmp_path / "ledger")


def _recorded(url: str, run_id: str) -> set[str]:
    """The nodes whose result is on disk."""
    try:
        loaded = load(url, run_id)
    except DurableNotFoundError:
        return set()
    return {r.name or "" for r in loaded.records if r.type == "completed" and r.kind == "node"}


@pytest.mark.timeout(240)
def test_C1_chain_killed_at_every_commit_repeats_nothing_recorded(store_url: str, ledger: str) -> None:
    """In place of its first commit, its second, ...: a node recorded before the kill has had its effect once, one in
    doubt is repeated under its own id, and the checkpoints are those of a run that nobody killed."""
    clean = chain_shop.three_effects.run({"ledger": ledger}, execution_id="clean", store=store_url)
    kills = 0
    while True:
        run_id, mine = f"c1-{kills}", f"{ledger}-{kills}"
        options: dict[str, Any] = {"runner": "chain_three", "input": {"ledger": mine}, "execution_id": run_id}
        with child("run", store_url, die_at=kills + 1, **options) as one:
            code = one.end()
        if code == 0:
            break
        assert code == -9, one.lines
        kills += 1
        recorded, done = _recorded(store_url, run_id), shop.effects(mine)
        result = chain_shop.three_effects.run({"ledger": mine}, execution_id=run_id, store=store_url)
        assert result.final_state == {**clean.final_state, "ledger": mine}
        again = shop.effects(mine)[len(done) :]
        assert not recorded & set(again), (recorded, again)
        by_effect: dict[str, set[str]] = {}
        for entry in shop.entries(mine):
            by_effect.setdefault(entry["what"], set()).add(entry["operation"])
        assert by_effect == {name: {f"{run_id}/{name}/0"} for name in ("one", "two", "three")}
        assert [one.node_id for one in points(store_url, run_id)] == ["one", "two", "three", "run_end"]
    assert kills >= 4


@pytest.mark.timeout(240)
def test_C1_chain_killed_at_every_commit_of_its_resume_keeps_the_answer(store_url: str, ledger: str) -> None:
    """Once the answer is on disk nobody is asked again, wherever the process dies."""
    kills = 0
    while True:
        run_id, mine = f"c1-{kills}", f"{ledger}-{kills}"
        chain_shop.approve.run({"ledger": mine}, execution_id=run_id, store=store_url)
        options: dict[str, Any] = {"runner": "chain_approve", "execution_id": run_id, "answer": {"approved": True}}
        with child("resume", store_url, die_at=kills + 1, **options) as one:
            code = one.end()
        if code == 0:
            break
        assert code == -9, one.lines
        kills += 1
        with child("work", store_url) as worker:
            worker.result()
        if (row := load(store_url, run_id).run).status != "completed":
            assert row.status == "waiting"
            assert shop.effects(mine) == ["prepare"]
            chain_shop.approve.resume(run_id, resume_value=YES, store=store_url)
        assert load(store_url, run_id).run.status == "completed"
        assert sorted(set(shop.effects(mine))) == ["pay", "prepare", "receipt"]
        assert len({entry["operation"] for entry in shop.entries(mine)}) == 3
    assert kills >= 3
