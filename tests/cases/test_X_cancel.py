"""Cancellation: an end that was written is the end, whoever else wants another."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure import AlreadyResumed, DurableRunError, Engine, Resume, interrupt, open_engine, step, workflow


async def _ends(engine: Engine, run_id: str) -> list[str | None]:
    records = await engine.store.record_list(run_id)
    ends = ("completed", "failed", "cancelled")
    return [record.outcome for record in records if record.type == "status" and record.outcome in ends]


@pytest.mark.parametrize("fails", [False, True], ids=["returns", "raises"])
async def test_X1_cancel_at_every_moment_of_the_end(store_url: str, fails: bool) -> None:
    """Cancelled after any number of turns of the loop, from before the first step to after the end: one end
    is written, what was read of it stays true, and the caller is told the same."""

    async def work(n: int) -> int:
        return n

    @workflow(name=f"x1_short_{fails}")
    async def short(_: None) -> int:
        total = sum([await step(work, n) for n in range(2)])
        if fails:
            raise ValueError("no")
        return total

    seen: set[str] = set()
    async with open_engine(store_url) as engine:
        for turns in range(80):
            run_id = await engine.start(short, None)
            for _ in range(turns * 3):
                await asyncio.sleep(0)
            await engine.cancel(run_id)
            said: str
            try:
                said = (await engine.run(short, None, execution_id=run_id)).status
            except ValueError:
                said = "failed"
            except DurableRunError as error:
                said = error.status
            row = await engine.store.run_get(run_id)
            assert row is not None
            assert row.status == said
            assert await _ends(engine, run_id) == [said]
            assert await engine.cancel(run_id) == said
            seen.add(said)
    assert "cancelled" in seen


async def test_X1_late_finisher_cannot_undo_a_cancel(store_url: str) -> None:
    """A run cancelled while its last body runs ends as cancelled, though the body ends well; its result is
    kept for the audit."""
    inside, go = asyncio.Event(), asyncio.Event()

    async def last() -> str:
        inside.set()
        try:
            await go.wait()
        except asyncio.CancelledError:
            return "done all the same"
        return "done"

    @workflow
    async def ends_late(_: None) -> str:
        return await step(last)

    async with open_engine(store_url) as engine:
        running = asyncio.create_task(engine.run(ends_late, execution_id="x1"))
        await inside.wait()
        await engine.cancel("x1")
        go.set()
        with pytest.raises(DurableRunError, match="cancelled"):
            await running
        assert await _ends(engine, "x1") == ["cancelled"]
        for resume_value in (None, Resume(approved=True)):
            with pytest.raises(AlreadyResumed):
                await engine.resume(ends_late, "x1", resume_value=resume_value)


async def test_X1_cancel_does_not_overwrite_an_end(store_url: str) -> None:
    """Cancelling what has completed or failed changes nothing."""

    async def fail() -> None:
        raise ValueError("no")

    @workflow
    async def x1_completes(_: None) -> str:
        return "done"

    @workflow
    async def x1_fails(_: None) -> None:
        await step(fail)

    async with open_engine(store_url) as engine:
        await engine.run(x1_completes, execution_id="done")
        with pytest.raises(ValueError, match="no"):
            await engine.run(x1_fails, execution_id="failed")
        for run_id, status in (("done", "completed"), ("failed", "failed")):
            before = await engine.store.record_list(run_id)
            assert await engine.cancel(run_id) == status
            assert await engine.store.record_list(run_id) == before


async def test_X1_cancel_races_with_an_answer(store_url: str) -> None:
    """An answer and a cancel at once: either the run goes on to its end, or it is cancelled and the
    question withdrawn."""

    @workflow
    async def x1_asks(_: None) -> bool:
        return interrupt("go?", {}).approved

    async with open_engine(store_url) as engine:
        for _ in range(10):
            run_id = (await engine.run(x1_asks)).execution_id
            outcomes: list[Any] = await asyncio.gather(
                engine.resume(x1_asks, run_id, resume_value=Resume(approved=True)),
                engine.cancel(run_id),
                return_exceptions=True,
            )
            row = await engine.store.run_get(run_id)
            assert row is not None
            assert row.status in ("completed", "cancelled")
            assert await _ends(engine, run_id) == [row.status]
            if isinstance(outcomes[0], Exception):
                assert isinstance(outcomes[0], DurableRunError | AlreadyResumed)
                assert row.status == "cancelled"
            assert await engine.store.interrupt_list(run_id=run_id) == []
