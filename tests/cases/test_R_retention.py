"""Retention: pruning with no age at all, and everything that can still go on goes on."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.support import chain_shop, shop
from tests.support.chain_shop import child
from tests.support.chains import YES, checkpointer_of, line, load, point, points, questions, runs

from perdure import Chain, DurableNotFoundError, PerdureError, interrupt, workflow

NOW = timedelta(0)


@pytest.fixture
def ledger(tmp_path: Path) -> str:
    return str(tmp_path / "ledger")


def prune(url: str, **options: bool) -> int:
    with checkpointer_of(url) as checkpointer:
        return checkpointer.prune(NOW, **options)


def sets() -> dict[str, Any]:
    return {"items": ["x" * 100] * 20}


def asks() -> bool:
    return interrupt("go?").approved


def adds(items: list[str]) -> dict[str, Any]:
    return {"items": [*items, "one more"]}


def asking() -> Chain:
    return line("r2", sets, asks, adds)


def test_R2_paused_chains_survive_any_prune_with_their_states(store_url: str) -> None:
    """One question open, or one of two answered: nothing of them is deleted, no base that later states need."""
    asking().run(execution_id="paused", store=store_url)
    before = load(store_url, "paused")
    assert prune(store_url, include_failed=True) == 0
    assert load(store_url, "paused").records == before.records
    result: Any = asking().resume("paused", resume_value=YES, store=store_url)
    assert result.final_state["items"][-1] == "one more"
    assert [len(one.state["items"]) for one in points(store_url, "paused") if one.state] == [20, 20, 20, 21, 21]
    assert prune(store_url) == 1
    with pytest.raises(DurableNotFoundError):
        load(store_url, "paused")


def test_R2_failed_chains_survive_unless_asked_for(store_url: str) -> None:
    fails = [True]

    def fragile() -> int:
        if fails.pop() if fails else False:
            raise ConnectionError("gone")
        return 1

    chain = line("r2 failed", sets, fragile)
    for run_id in ("one", "two"):
        fails[:] = [True]
        with pytest.raises(ConnectionError):
            chain.run(execution_id=run_id, store=store_url)
    assert prune(store_url) == 0
    assert chain.retry("one", store=store_url).output == 1
    assert prune(store_url, include_failed=True) == 2
    assert runs(store_url) == []


def test_R2_a_fork_needs_nothing_of_its_pruned_source(store_url: str) -> None:
    """Its states, its question and what it inherited are its own; and a source outlives its fork."""
    chain = asking()
    chain.run(execution_id="source", store=store_url)
    chain.resume("source", resume_value=YES, store=store_url)
    at = point(store_url, "source", "sets")
    fork = chain.fork("source", checkpoint_id=at.checkpoint_id, modified_state={"more": 1}, store=store_url)
    assert prune(store_url) == 1
    assert [row.run_id for row in runs(store_url)] == [fork.execution_id]
    states = [one.state for one in points(store_url, fork.execution_id)]
    assert [len(state["items"]) for state in states if state] == [20, 20]
    result: Any = chain.resume(fork.execution_id, resume_value=YES, store=store_url)
    assert (len(result.final_state["items"]), result.final_state["more"]) == (21, 1)
    second = chain.fork(fork.execution_id, checkpoint_id=point(store_url, fork.execution_id, "sets").checkpoint_id,
                        store=store_url)  # fmt: skip
    assert second.status == "paused"
    assert prune(store_url) == 1
    last: Any = chain.resume(second.execution_id, resume_value=YES, store=store_url)
    assert last.status == "completed"


def test_R2_a_chain_that_another_process_runs_survives(store_url: str, ledger: str) -> None:
    """Also one whose process has died: it is nobody's, and not over."""
    state = {"ledger": ledger}
    with child("run", store_url, hold=("before two",), runner="chain_three", input=state, execution_id="r2") as one:
        one.expect("holding before two")
        assert prune(store_url, include_failed=True) == 0
        one.kill()
    assert prune(store_url, include_failed=True) == 0
    result = chain_shop.three_effects.run(state, execution_id="r2", store=store_url)
    assert result.status == "completed"
    assert shop.effects(ledger) == ["one", "two", "three"]
    assert prune(store_url) == 1


async def test_R2_a_finished_parent_of_a_child_that_is_live_survives(store_url: str) -> None:
    """A node starts another run and does not wait for it: the prune takes one of them at a time, by what it is."""
    inner = line("r2 inner", asks)

    async def starts() -> str:
        return (await inner.arun(execution_id="child", store=store_url)).status

    result = await line("r2 outer", starts).arun(execution_id="parent", store=store_url)
    assert result.output == "paused"
    await asyncio.to_thread(prune, store_url)
    assert (await inner.aresume("child", resume_value=YES, store=store_url)).output is True
    with pytest.raises(PerdureError):
        await inner.aresume("child", resume_value=YES, store=store_url)


def test_R2_what_is_resumed_while_a_prune_looks_is_not_deleted(store_url: str) -> None:
    """Prunes go round and round while chains are answered one after the other: each that was answered ends, and no
    question is lost."""
    chain = asking()
    ids = [f"r{n}" for n in range(6)]
    for run_id in ids:
        chain.run(execution_id=run_id, store=store_url)

    async def both() -> list[str]:
        ended: list[str] = []

        async def answers() -> None:
            for run_id in ids:
                ended.append((await chain.aresume(run_id, resume_value=YES, store=store_url)).status)

        answering = asyncio.create_task(answers())
        while not answering.done():
            await asyncio.to_thread(prune, store_url)
        await answering
        return ended

    assert asyncio.run(both()) == ["completed"] * len(ids)
    prune(store_url)
    assert runs(store_url) == []


def test_R2_a_workflows_runs_follow_the_same_rules(store_url: str) -> None:
    @workflow(name="r2.flow")
    async def flow() -> bool:
        return interrupt("go?").approved

    flow.run(execution_id="paused", store=store_url)
    assert prune(store_url) == 0
    assert len(questions(store_url, "paused")) == 1
    assert flow.resume("paused", resume_value=YES, store=store_url).output is True
    assert prune(store_url) == 1
