"""Human approval: each question its own id, each answer one question, nothing lost and nothing repeated."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.support import shop
from tests.support.child import child

import perdure
from perdure import (
    AlreadyResumed,
    AmbiguousAnswer,
    ChainResumeError,
    Resume,
    interrupt,
    open_engine,
    step,
    workflow,
)
from perdure.core.checkpoints import checkpoints


@pytest.fixture
def ledger(tmp_path: Path) -> str:
    return str(tmp_path / "ledger")


async def _questions(url: str, run_id: str, status: str | None = "pending") -> list[Any]:
    async with open_engine(url) as engine:
        return await engine.store.interrupt_list(run_id=run_id, status=status)


async def test_H1_parallel_questions_have_ids_of_their_own(store_url: str) -> None:
    """Three calls that ask at once: three ids, the same after a restart, and each call gets its own
    answer."""
    order = {"tools": ["a", "b", "c"]}
    with child("run", store_url, runner="shop_three_questions", input=order, execution_id="h1") as first:
        asked = await asyncio.to_thread(first.result)
    assert len(set(asked["pending"])) == 3
    async with open_engine(store_url) as engine:
        again = await engine.run(shop.three_questions, order, execution_id="h1")
        assert [q["interrupt_id"] for q in again.pending_interrupts] == asked["pending"]
        by_tool = {q["context"]["tool"]: q["interrupt_id"] for q in again.pending_interrupts}
        for tool in ("c", "a", "b"):
            result = await engine.resume(
                shop.three_questions,
                "h1",
                resume_value=Resume(approved=True, metadata={"note": f"for {tool}"}),
                interrupt_id=by_tool[tool],
            )
    assert result.output == ["a:for a", "b:for b", "c:for c"]


async def test_H2_bare_answer_with_two_open_is_refused(store_url: str) -> None:
    """An answer without an address while two questions are open is a typed error and consumes nothing; a
    map answers both."""
    async with open_engine(store_url) as engine:
        paused = await engine.run(shop.three_questions, {"tools": ["x", "y"]})
        run_id = paused.execution_id
        before = await engine.store.record_list(run_id)
        with pytest.raises(AmbiguousAnswer) as refused:
            await engine.resume(shop.three_questions, run_id, resume_value=Resume(approved=True))
        ids = [question["interrupt_id"] for question in paused.pending_interrupts]
        assert sorted(refused.value.interrupt_ids) == sorted(ids)
        assert await engine.store.record_list(run_id) == before
        answers = {
            q["interrupt_id"]: Resume(approved=True, metadata={"note": q["context"]["tool"] * 2})
            for q in paused.pending_interrupts
        }
        result = await engine.resume(shop.three_questions, run_id, resume_value=answers)
    assert result.output == ["x:xx", "y:yy"]


async def test_H4_used_answer_is_not_given_to_the_next_question(store_url: str) -> None:
    """After the first answer, going on without one leaves the second question open; its own answer ends
    the run."""
    entered: list[str] = []

    @workflow
    async def two_questions(_: None) -> list[str]:
        first = interrupt("first?", {})
        entered.append("between")
        second = interrupt("second?", {})
        return [first.metadata["v"], second.metadata["v"]]

    async with open_engine(store_url) as engine:
        run_id = (await engine.run(two_questions)).execution_id
        paused = await engine.resume(two_questions, run_id, resume_value=Resume(approved=True, metadata={"v": "1"}))
        (question,) = paused.pending_interrupts
        assert question["reason"] == "second?"
        for _ in range(2):
            with pytest.raises(ChainResumeError):
                await engine.resume(two_questions, run_id)
        assert [q.reason for q in await engine.store.interrupt_list(run_id=run_id)] == ['"second?"']
        passed = len(entered)
        again = await engine.run(two_questions, None, execution_id=run_id)
        assert (again.status, len(entered)) == ("paused", passed)
        result = await engine.resume(two_questions, run_id, resume_value=Resume(approved=True, metadata={"v": "2"}))
    assert result.output == ["1", "2"]


async def test_H4_used_answer_is_not_given_to_the_next_question_of_a_body(store_url: str) -> None:
    """The same for two questions inside one step."""

    async def ask_twice() -> list[bool]:
        return [interrupt("first?", {}).approved, interrupt("second?", {}).approved]

    @workflow
    async def asking_body(_: None) -> list[bool]:
        return await step(ask_twice)

    async with open_engine(store_url) as engine:
        run_id = (await engine.run(asking_body)).execution_id
        paused = await engine.resume(asking_body, run_id, resume_value=Resume(approved=True))
        assert [q["reason"] for q in paused.pending_interrupts] == ["second?"]
        with pytest.raises(ChainResumeError):
            await engine.resume(asking_body, run_id)
        result = await engine.resume(asking_body, run_id, resume_value=Resume(approved=False))
    assert result.output == [True, False]


@pytest.mark.parametrize("depth", [2, 3])
async def test_H5_question_in_a_nested_workflow_repeats_nothing(store_url: str, ledger: str, depth: int) -> None:
    """Recorded work of a nested workflow is found again by its own path: charged once, asked once."""
    runner = {2: shop.middle, 3: shop.outer}[depth]
    async with open_engine(store_url) as engine:
        run_id = (await engine.run(runner, {"ledger": ledger})).execution_id
    async with open_engine(store_url) as engine:
        result = await engine.resume(runner, run_id, resume_value=Resume(approved=True))
        questions = await engine.store.interrupt_list(run_id=run_id, status=None)
    assert result.output == "shipped True"
    assert len(questions) == 1
    assert (
        shop.effects(ledger)
        == {
            2: ["reserve", "charge"],
            3: ["open", "reserve", "charge", "close"],
        }[depth]
    )


async def test_H5_fork_of_a_nested_pause_repeats_nothing(store_url: str, ledger: str) -> None:
    """Nor does a client that names the checkpoint explicitly: the fork asks under its own id and charges
    nothing again."""
    async with open_engine(store_url) as engine:
        run_id = (await engine.run(shop.outer, {"ledger": ledger})).execution_id
        loaded = await engine.store.run_load(run_id)
        last = checkpoints(loaded)[-1]
        fork = await engine.fork(shop.outer, run_id, checkpoint_id=last.checkpoint_id)
        assert fork.status == "paused"
        (asked,) = await engine.store.interrupt_list(run_id=run_id)
        assert fork.pending_interrupts[0]["interrupt_id"] != asked.interrupt_id
        result = await engine.resume(shop.outer, fork.execution_id, resume_value=Resume(approved=True))
        original = await engine.store.interrupt_list(run_id=run_id)
    assert result.output == "shipped True"
    assert [row.status for row in original] == ["pending"]
    assert shop.effects(ledger) == ["open", "reserve", "charge", "close"]


async def test_H6_answer_survives_a_kill_before_the_body_runs(store_url: str, ledger: str) -> None:
    """Killed after the answer is stored and before its effect: the same answer is delivered, nobody is
    asked again."""
    async with open_engine(store_url) as engine:
        run_id = (await engine.run(shop.approve, {"ledger": ledger})).execution_id
    answer = {"approved": True, "metadata": {"by": "ann"}}
    with child(
        "resume", store_url, hold=("before pay",), runner="shop_approve", execution_id=run_id, answer=answer
    ) as first:
        await asyncio.to_thread(first.expect, "holding before pay")
        first.kill()
    async with open_engine(store_url) as engine:
        await engine.recover([shop.approve])
        result = await engine.run(shop.approve, {"ledger": ledger}, execution_id=run_id)
        questions = await engine.store.interrupt_list(run_id=run_id, status=None)
    assert result.output == {"paid": True, "by": "ann"}
    assert [row.status for row in questions] == ["answered"]
    assert shop.effects(ledger) == ["prepare", "pay", "receipt"]


async def test_H6_answer_survives_a_start_that_fails(store_url: str) -> None:
    """An answer given where the run cannot be driven is kept for the next attempt, and the failed attempt
    shows."""
    calls: list[str] = []

    async def work_after() -> str:
        calls.append("work")
        return "done"

    async def other_work() -> str:
        calls.append("other")
        return "other"

    first_step = work_after
    code = {"first": other_work}

    @workflow(name="h6_changing")
    async def changing(_: None) -> list[Any]:
        before = await step(code["first"])
        approved = interrupt("go?", {}).approved
        return [before, approved, await step(work_after)]

    async with open_engine(store_url) as engine:
        run_id = (await engine.run(changing)).execution_id
        code["first"] = first_step
        with pytest.raises(perdure.DurableRecoveryError, match="other_work"):
            await engine.resume(changing, run_id, resume_value=Resume(approved=True))
        row = await engine.store.run_get(run_id)
        assert row is not None
        assert row.status == "needs_attention"
        assert "other_work" in (row.error or "")
        (question,) = await engine.store.interrupt_list(run_id=run_id, status=None)
        assert (question.status, question.delivered_at) == ("answered", None)
        code["first"] = other_work
        result = await engine.resume(changing, run_id)
    assert result.output == ["other", True, "done"]
    assert calls == ["other", "work"]


@pytest.mark.timeout(180)
def test_H8_racing_resumers_one_wins(store_url: str, ledger: str) -> None:
    """Five threads and two processes answer one question at once: one wins, the others learn so, the
    effect happens once."""
    order = {"ledger": ledger}
    paused = shop.approve.run(order, store=store_url)
    run_id, answer = paused.execution_id, Resume(approved=True)
    outcomes: list[str] = []
    together = threading.Barrier(6)

    def resume() -> None:
        together.wait()
        try:
            outcomes.append(shop.approve.resume(run_id, resume_value=answer, store=store_url).status)
        except AlreadyResumed:
            outcomes.append("AlreadyResumed")

    options: dict[str, Any] = {
        "runner": "shop_approve", "execution_id": run_id, "answer": {"approved": True}, "wait": True
    }  # fmt: skip
    with child("resume", store_url, **options) as one, child("resume", store_url, **options) as two:
        for other in (one, two):
            other.expect("open")
        threads = [threading.Thread(target=resume) for _ in range(5)]
        for thread in threads:
            thread.start()
        together.wait()
        one.go()
        two.go()
        for thread in threads:
            thread.join()
        for other in (one, two):
            other.end()
            said = other.lines[-1]
            outcomes.append("completed" if said.startswith("result") else said.split()[1].rstrip(":"))
    assert sorted(outcomes) == ["AlreadyResumed"] * 6 + ["completed"]
    assert shop.effects(ledger) == ["prepare", "pay", "receipt"]


async def test_H10_recovery_that_runs_into_a_question_pauses(store_url: str, ledger: str) -> None:
    """A body that died before it asked asks when recovery runs it again: a pause like any other."""
    with child(
        "run",
        store_url,
        hold=("before ask",),
        runner="shop_asking",
        input={"ledger": ledger},
        execution_id="h10",
    ) as first:
        await asyncio.to_thread(first.expect, "holding before ask")
        first.kill()
    async with open_engine(store_url) as engine:
        await engine.recover([shop.asking])
        row = await engine.store.run_get("h10")
        assert row is not None
        assert row.status == "waiting"
        assert len(await engine.store.interrupt_list(run_id="h10")) == 1
        result = await engine.resume(shop.asking, "h10", resume_value=Resume(approved=True))
    assert result.output == "approved True"
    assert shop.effects(ledger).count("approved True") == 1


async def test_H10_resume_and_retry_and_fork_may_pause(store_url: str) -> None:
    """Resume of a crashed run, retry of a failed one and a fork end in a question as a first run does."""
    fails = [True]

    async def may_fail() -> str:
        if fails.pop() if fails else False:
            raise ValueError("not yet")
        return f"asked {interrupt('go?', {}).approved}"

    @workflow
    async def fails_then_asks(_: None) -> str:
        return await step(may_fail)

    async with open_engine(store_url) as engine:
        with pytest.raises(ValueError, match="not yet"):
            await engine.run(fails_then_asks, execution_id="h10b")
        retried = await engine.retry(fails_then_asks, "h10b")
        assert retried.status == "paused"
        fork = await engine.fork(fails_then_asks, "h10b")
        assert fork.status == "paused"
        for run_id in ("h10b", fork.execution_id):
            result = await engine.resume(fails_then_asks, run_id, resume_value=Resume(approved=True))
            assert result.output == "asked True"
