"""Forks: an independent run that begins with what another had recorded (law 10)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.engines import Gate, ids_of, questions_of, row_of, status_that

from perdure import ChainCheckpointError, ChainError, DurableConflictError, Resume, interrupt, step, workflow
from perdure.core.checkpoints import checkpoints
from perdure.engine.engine import Engine

YES = Resume(approved=True)
NO = Resume(approved=False)
ran: list[Any] = []
gate = Gate()


@pytest.fixture(autouse=True)
def fresh() -> None:
    global gate
    gate = Gate()
    ran.clear()


@step(name="fork.note")
async def note(n: int) -> int:
    ran.append(n)
    return n


@step(name="fork.hold", recovery="manual")
async def hold(n: int) -> int:
    ran.append(f"hold {n}")
    await gate.stand()
    return n


@workflow(name="fork.counting")
async def counting(start: int) -> list[int]:
    return [await note(start + n) for n in range(4)]


@workflow(name="fork.asking")
async def asking() -> list[Any]:
    return [await note(1), interrupt("first?").approved, await note(2), interrupt("second?").approved]


async def view(engine: Engine, run_id: str) -> list[Any]:
    return checkpoints(await engine.store.run_load(run_id))


async def test_rule_a_fork_from_a_checkpoint_keeps_what_was_before_and_runs_the_rest(engine: Engine):
    await engine.run(counting, 10, execution_id="source")
    second = (await view(engine, "source"))[1]
    ran.clear()
    fork = await engine.fork(counting, "source", checkpoint_id=second.checkpoint_id)
    assert fork.output == [10, 11, 12, 13]
    assert ran == [12, 13]
    row = await row_of(engine, fork.execution_id)
    assert (row.forked_from, row.forked_seq) == ("source", second.seq)


async def test_rule_a_checkpoint_may_be_named_by_its_sequence(engine: Engine):
    await engine.run(counting, 10, execution_id="source")
    second = (await view(engine, "source"))[1]
    ran.clear()
    for name in (second.seq, str(second.seq)):
        await engine.fork(counting, "source", checkpoint_id=name)
    assert ran == [12, 13] * 2


async def test_rule_without_a_checkpoint_a_fork_begins_after_the_last_step(engine: Engine):
    await engine.run(counting, 10, execution_id="source")
    ran.clear()
    assert (await engine.fork(counting, "source")).output == [10, 11, 12, 13]
    assert ran == []


async def test_rule_a_new_input_begins_from_the_start(engine: Engine):
    await engine.run(counting, 10, execution_id="source")
    ran.clear()
    fork = await engine.fork(counting, "source", value=20, has_value=True)
    assert fork.output == [20, 21, 22, 23]
    assert ran == [20, 21, 22, 23]


async def test_rule_a_new_input_with_a_checkpoint_is_refused(engine: Engine):
    await engine.run(counting, 10, execution_id="source")
    with pytest.raises(ChainError, match="input"):
        await counting.afork("source", checkpoint_id=2, input=5, store=engine.store)


@pytest.mark.parametrize("checkpoint", ["source:9999", "other:3", 1, "nonsense", "the end"])
async def test_rule_what_is_no_checkpoint_of_the_run_is_refused_with_nothing_stored(engine: Engine, checkpoint: Any):
    from perdure.core.records import RunFilter

    await engine.run(counting, 10, execution_id="source")
    if checkpoint == "the end":
        checkpoint = (await view(engine, "source"))[-1].checkpoint_id
    with pytest.raises(ChainCheckpointError):
        await engine.fork(counting, "source", checkpoint_id=checkpoint)
    assert [row.run_id for row in await engine.store.run_list(RunFilter())] == ["source"]


async def test_rule_a_fork_may_be_given_an_id_that_is_free(engine: Engine):
    await engine.run(counting, 10, execution_id="source")
    assert (await engine.fork(counting, "source", new_id="branch")).execution_id == "branch"
    with pytest.raises(DurableConflictError):
        await engine.fork(counting, "source", new_id="branch")


async def test_rule_a_fork_of_a_paused_run_asks_again_under_ids_of_its_own(engine: Engine):
    source = await engine.run(asking, execution_id="source")
    fork = await engine.fork(asking, "source")
    assert fork.status == "paused"
    assert set(ids_of(fork)).isdisjoint(ids_of(source))
    for run_id, answer in (("source", YES), (fork.execution_id, NO)):
        await engine.resume(asking, run_id, resume_value=answer)
    result = await engine.resume(asking, "source", resume_value=YES)
    branch = await engine.resume(asking, fork.execution_id, resume_value=NO)
    assert (result.output, branch.output) == ([1, True, 2, True], [1, False, 2, False])
    assert ran == [1, 2, 2]


async def test_rule_a_fork_inherits_answers_up_to_its_point_and_none_after_it(engine: Engine):
    await engine.run(asking, execution_id="source")
    await engine.resume(asking, "source", resume_value=YES)
    await engine.resume(asking, "source", resume_value=YES)
    by_name = {c.node_id: c for c in await view(engine, "source") if c.status == "completed"}
    asked = [c for c in await view(engine, "source") if c.status == "interrupted"]

    before = await engine.fork(asking, "source", checkpoint_id=asked[0].checkpoint_id)
    assert [q["reason"] for q in before.pending_interrupts] == ["first?"]
    after = await engine.fork(asking, "source", checkpoint_id=by_name["first?"].checkpoint_id)
    assert [q["reason"] for q in after.pending_interrupts] == ["second?"]
    inherited = [q for q in await questions_of(engine, after.execution_id) if q.status == "answered"]
    assert [q.run_id for q in inherited] == [after.execution_id]


async def test_rule_a_fork_depends_on_nothing_of_its_source_afterwards(engine: Engine):
    await engine.run(asking, execution_id="source")
    fork = await engine.fork(asking, "source")
    await engine.cancel("source")
    await engine.resume(asking, fork.execution_id, resume_value=YES)
    assert (await engine.resume(asking, fork.execution_id, resume_value=YES)).output == [1, True, 2, True]
    assert (await row_of(engine, "source")).status == "cancelled"


async def test_rule_a_fork_of_a_fork_works(engine: Engine):
    await engine.run(asking, execution_id="source")
    first = await engine.fork(asking, "source")
    await engine.resume(asking, first.execution_id, resume_value=YES)
    second = await engine.fork(asking, first.execution_id)
    assert [q["reason"] for q in second.pending_interrupts] == ["second?"]
    assert (await engine.resume(asking, second.execution_id, resume_value=NO)).output == [1, True, 2, False]


async def test_rule_a_running_run_can_be_forked_from_a_named_checkpoint(engine: Engine):
    @workflow
    async def flow() -> list[int]:
        return [await note(1), await hold(2)]

    run_id = await engine.start(flow)
    await gate.reached.wait()
    while not await view(engine, run_id):
        await asyncio.sleep(0)
    first = (await view(engine, run_id))[0]
    forking = asyncio.ensure_future(engine.fork(flow, run_id, checkpoint_id=first.checkpoint_id))
    gate.open()
    assert (await forking).output == [1, 2]
    assert (await engine.run(flow, execution_id=run_id)).output == [1, 2]
    assert ran == [1, "hold 2", "hold 2"], "what was only begun in the source is begun anew in the fork"


async def test_rule_a_fork_of_a_failed_run_before_its_error_takes_another_way(engine: Engine):
    is_broken = [True]

    @step
    async def fail() -> str:
        if is_broken[0]:
            raise ValueError("broken")
        return "mended"

    @workflow
    async def flow() -> list[Any]:
        return [await note(1), await fail()]

    with pytest.raises(ValueError, match="broken"):
        await engine.run(flow, execution_id="source")
    is_broken[0] = False
    first = (await view(engine, "source"))[0]
    assert (await engine.fork(flow, "source", checkpoint_id=first.checkpoint_id)).output == [1, "mended"]
    assert (await row_of(engine, "source")).status == "failed"
    assert ran == [1]


async def test_rule_the_fork_of_a_sleeping_run_sleeps_on_with_the_delay_that_was_recorded(engine: Engine):
    from perdure import sleep

    @workflow
    async def flow() -> list[int]:
        first = await note(1)
        await sleep(3600)
        return [first, await note(2)]

    run_id = await engine.start(flow)
    await status_that(engine, run_id, "waiting")
    waiting = asyncio.ensure_future(engine.fork(flow, run_id, new_id="branch"))
    row = await status_that(engine, "branch", "waiting")
    waiting.cancel()
    assert row.due_in_s is not None
    assert row.due_in_s <= 3600
    assert ran == [1]
