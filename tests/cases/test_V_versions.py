"""Changed code, old records, and forks: what still fits goes on, what differs is named, branches share
only their prefix."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pydantic
import pytest

from perdure import DurableRecoveryError, Resume, Workflow, interrupt, open_engine, patched, step, workflow
from perdure.core.checkpoints import checkpoints


async def _prepare() -> str:
    return "prepared"


async def _check() -> str:
    return "checked"


async def _ship(what: str) -> str:
    return f"shipped {what}"


async def _ask_then_ship(_: None) -> str:
    prepared = await step(_prepare)
    assert interrupt("ship?", {}).approved
    return await step(_ship, prepared)


async def _ask_then_ship_with_more_behind(_: None) -> str:
    prepared = await step(_prepare)
    assert interrupt("ship?", {}).approved
    checked = await step(_check)
    return await step(_ship, f"{prepared} {checked}")


async def _ask_then_ship_with_more_before(_: None) -> str:
    checked = await step(_check)
    prepared = await step(_prepare)
    assert interrupt("ship?", {}).approved
    return await step(_ship, f"{prepared} {checked}")


def _version(body: Any, **options: Any) -> Workflow:
    """The workflow `v_ships` as some version of its code has it."""

    async def v_ships(value: None) -> str:
        return await body(value)

    return workflow(name="v_ships", **options)(v_ships)


async def test_V2_edit_ahead_of_the_pause_goes_on(store_url: str) -> None:
    """Code that changed only beyond what is recorded continues the paused run."""
    async with open_engine(store_url) as engine:
        run_id = (await engine.run(_version(_ask_then_ship))).execution_id
    async with open_engine(store_url) as engine:
        later = _version(_ask_then_ship_with_more_behind)
        result = await engine.resume(later, run_id, resume_value=Resume(approved=True))
    assert result.output == "shipped prepared checked"


async def test_V2_edit_behind_the_pause_is_named_and_hurts_nobody_else(store_url: str) -> None:
    """A step inserted before the pause: the error names the recorded and the current one; new runs of the new
    code go on, and the old run goes on with the old code."""
    old, new = _version(_ask_then_ship), _version(_ask_then_ship_with_more_before)
    async with open_engine(store_url) as engine:
        run_id = (await engine.run(old)).execution_id
        with pytest.raises(DurableRecoveryError) as refused:
            await engine.resume(new, run_id, resume_value=Resume(approved=True))
        assert "_prepare" in str(refused.value)
        assert "_check" in str(refused.value)
        row = await engine.store.run_get(run_id)
        assert row is not None
        assert row.status == "needs_attention"
        other = (await engine.run(new)).execution_id
        assert (await engine.resume(new, other, resume_value=Resume(approved=True))).output == (
            "shipped prepared checked"
        )
        assert (await engine.resume(old, run_id)).output == "shipped prepared"


async def test_V2_declared_versions_strand_nobody_silently(store_url: str) -> None:
    """A version that is not accepted says so at the run; one that is listed goes on."""
    one, two = _version(_ask_then_ship, version="1"), _version(_ask_then_ship, version="2")
    two_and_one = _version(_ask_then_ship, version="2", accepts=["1"])
    async with open_engine(store_url) as engine:
        run_id = (await engine.run(one)).execution_id
        with pytest.raises(DurableRecoveryError, match="version '1'"):
            await engine.resume(two, run_id, resume_value=Resume(approved=True))
        row = await engine.store.run_get(run_id)
        assert row is not None
        assert row.status == "waiting"
        resumed = await engine.resume(two_and_one, run_id, resume_value=Resume(approved=True))
        assert resumed.output == "shipped prepared"


async def test_V2_patched_code_serves_old_and_new_runs(store_url: str) -> None:
    """`patched()` is the way to change what is recorded already: old runs keep the old way, new ones take
    the new."""

    async def both(_: None) -> str:
        checked = await step(_check) if patched("check first") else "unchecked"
        prepared = await step(_prepare)
        assert interrupt("ship?", {}).approved
        return await step(_ship, f"{prepared} {checked}")

    async with open_engine(store_url) as engine:
        old = (await engine.run(_version(_ask_then_ship))).execution_id
        new = (await engine.run(_version(both))).execution_id
        outputs = [
            (await engine.resume(_version(both), run_id, resume_value=Resume(approved=True))).output
            for run_id in (old, new)
        ]
    assert outputs == ["shipped prepared unchecked", "shipped prepared checked"]


# --- old values, new code ---------------------------------------------------------------------------------


@dataclass
class _OldOrder:
    a: int


@dataclass
class _NewOrder:
    a: int
    b: int = 1


class _OldModel(pydantic.BaseModel):
    a: int


class _NewModel(pydantic.BaseModel):
    a: int
    b: int = 1


class _StricterModel(pydantic.BaseModel):
    a: int
    c: int


class _RenamedModel(pydantic.BaseModel):
    aa: int = 0


for _version_of_it in (_OldOrder, _NewOrder):
    _version_of_it.__name__ = _version_of_it.__qualname__ = "Order"
for _version_of_it in (_OldModel, _NewModel, _StricterModel, _RenamedModel):
    _version_of_it.__name__ = _version_of_it.__qualname__ = "Model"


def _typed(input_type: Any, result_type: Any) -> Workflow:
    """The workflow `v_typed` with these declared types."""

    async def make(a: int) -> Any:
        return result_type(a=a)

    make.__annotations__["return"] = result_type

    async def v_typed(order: Any) -> Any:
        made = await step(make, order.a)
        assert interrupt("go?", {}).approved
        return [getattr(order, "b", None), getattr(made, "b", None), type(made).__name__]

    v_typed.__annotations__["order"] = input_type
    return workflow(name="v_typed")(v_typed)


@pytest.mark.parametrize(("old", "new"), [(_OldOrder, _NewOrder), (_OldModel, _NewModel)], ids=["dataclass", "model"])
async def test_V4_new_fields_get_their_defaults(store_url: str, old: Any, new: Any) -> None:
    """Input and results recorded before a field existed are rebuilt with its default."""
    async with open_engine(store_url) as engine:
        run_id = (await engine.run(_typed(old, old), old(a=5))).execution_id
    async with open_engine(store_url) as engine:
        result = await engine.resume(_typed(new, new), run_id, resume_value=Resume(approved=True))
    assert result.output == [1, 1, new.__name__]


@pytest.mark.parametrize(("new", "name"), [(_StricterModel, "c"), (_RenamedModel, "a")], ids=["added", "removed"])
async def test_V4_fields_that_no_longer_fit_are_named(store_url: str, new: Any, name: str) -> None:
    """A required field that old records lack, or one that is gone, stops the run with an error that names it;
    the old code goes on."""
    old = _typed(_OldModel, _OldModel)
    async with open_engine(store_url) as engine:
        run_id = (await engine.run(old, _OldModel(a=5))).execution_id
        with pytest.raises(DurableRecoveryError, match=rf"\b{name}\b"):
            await engine.resume(_typed(new, new), run_id, resume_value=Resume(approved=True))
        assert (await engine.resume(old, run_id)).output == [None, None, "Model"]


async def test_V4_failed_run_is_retried_with_mended_code(store_url: str) -> None:
    """A run that failed in its second step goes on from there with the bug mended; the first step does not
    run again."""
    ran: list[str] = []
    code = {"is_mended": False}

    async def first() -> int:
        ran.append("first")
        return 4

    async def second(n: int) -> float:
        ran.append("second")
        return n / (2 if code["is_mended"] else 0)

    @workflow
    async def divides(_: None) -> float:
        return await step(second, await step(first))

    async with open_engine(store_url) as engine:
        with pytest.raises(ZeroDivisionError):
            await engine.run(divides, execution_id="v4")
    code["is_mended"] = True
    async with open_engine(store_url) as engine:
        result = await engine.retry(divides, "v4")
    assert result.output == 2.0
    assert ran == ["first", "second", "second"]


async def test_V4_run_failed_in_a_task_group_is_retried(store_url: str) -> None:
    """The failure of one task of a group cancelled the others: a retry that forgets the failure runs them again."""
    fails, patience = [True], asyncio.Event()

    async def fragile() -> str:
        if fails.pop() if fails else False:
            raise ConnectionError("once")
        return "fragile"

    async def patient() -> str:
        await patience.wait()
        return "patient"

    @workflow
    async def v4_group(_: None) -> list[str]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(step(patient)), group.create_task(step(fragile))]
        return [task.result() for task in tasks]

    async with open_engine(store_url) as engine:
        with pytest.raises(ExceptionGroup):
            await engine.run(v4_group, execution_id="v4")
        patience.set()
        result = await engine.retry(v4_group, "v4")
    assert result.output == ["patient", "fragile"]


# --- forks ------------------------------------------------------------------------------------------------


async def test_V5_branches_share_only_their_prefix(store_url: str) -> None:
    """A fork at the second step: what is recorded afterwards is in one branch only, and the original's
    rows do not change."""
    ran: list[int] = []

    async def work(n: int) -> int:
        ran.append(n)
        return n * 10 + len(ran)

    @workflow
    async def four_steps(_: None) -> list[int]:
        return [await step(work, n) for n in range(4)]

    async with open_engine(store_url) as engine:
        original = await engine.run(four_steps)
        before = await engine.store.run_load(original.execution_id)
        at = checkpoints(before)[1]
        fork = await engine.fork(four_steps, original.execution_id, checkpoint_id=at.checkpoint_id)
        after = await engine.store.run_load(original.execution_id)
        forked = await engine.store.run_load(fork.execution_id)
    assert (after.records, after.run) == (before.records, before.run)
    assert fork.output[:2] == original.output[:2]
    assert fork.output[2:] != original.output[2:]
    assert ran == [0, 1, 2, 3, 2, 3]
    assert {record.run_id for record in forked.records} == {fork.execution_id}


@pytest.mark.parametrize("is_nested", [False, True], ids=["flat", "nested"])
async def test_V5_fork_before_a_question_asks_again(store_url: str, is_nested: bool) -> None:
    """Going back before an answered question asks anew under the fork's id; the old answer is not used,
    nested or not."""

    async def work() -> str:
        return "worked"

    async def asks(_: None) -> bool:
        await step(work)
        approved = interrupt("go?", {}).approved
        await step(work)
        return approved

    inner = workflow(name=f"v5_inner_{is_nested}")(asks)

    async def outer(value: None) -> bool:
        return await inner(value)

    runner = workflow(name="v5_outer")(outer) if is_nested else inner
    async with open_engine(store_url) as engine:
        run_id = (await engine.run(runner)).execution_id
        done = await engine.resume(runner, run_id, resume_value=Resume(approved=True))
        loaded = await engine.store.run_load(run_id)
        first = next(c for c in checkpoints(loaded) if c.node_id.endswith("work"))
        fork = await engine.fork(runner, run_id, checkpoint_id=first.checkpoint_id)
        assert fork.status == "paused"
        asked = await engine.store.interrupt_list(run_id=run_id, status=None)
        assert fork.pending_interrupts[0]["interrupt_id"] not in {row.interrupt_id for row in asked}
        other = await engine.resume(runner, fork.execution_id, resume_value=Resume(approved=False))
        assert (await engine.store.run_load(run_id)).records == loaded.records
    assert (done.output, other.output) == (True, False)


async def test_V5_fork_after_an_answer_keeps_it(store_url: str) -> None:
    """A fork after the answer does not ask again."""

    async def work() -> str:
        return "worked"

    @workflow
    async def v5_asks_first(_: None) -> bool:
        approved = interrupt("go?", {}).approved
        await step(work)
        return approved

    async with open_engine(store_url) as engine:
        run_id = (await engine.run(v5_asks_first)).execution_id
        await engine.resume(v5_asks_first, run_id, resume_value=Resume(approved=True))
        fork = await engine.fork(v5_asks_first, run_id)
    assert (fork.status, fork.output) == ("completed", True)
