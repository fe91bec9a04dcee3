"""DESIGN §7: who owns a run, when others may take it, and what a lost owner can still do (nothing)."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest
from tests.support.children import LEASE_S, asking, child, effecting, staying, staying_manually
from tests.support.engines import FAST, HASTY, Gate, opened, record_that, records_of, row_of, shape

from perdure import (
    DurableRecoveryError,
    DurableStorageError,
    EngineSettings,
    Resume,
    RunLost,
    open_engine,
    step,
    workflow,
)
from perdure.engine.engine import Engine
from perdure.engine.host import digest_of_input

QUICK = EngineSettings(lease_s=LEASE_S, poll_s=0.02, grace_s=5.0)
gate = Gate()
seen: list[str] = []


@pytest.fixture(autouse=True)
def fresh() -> None:
    global gate
    gate = Gate()
    seen.clear()


@step(name="ownership.hold")
async def hold() -> str:
    try:
        await gate.stand()
        seen.append("went on")
        return "held"
    except BaseException as error:
        seen.append(type(error).__name__)
        raise


@step(name="ownership.after")
async def after() -> str:
    seen.append("after")
    return "after"


@workflow(name="ownership.holding")
async def holding() -> list[str]:
    return [await hold(), await after()]


async def take_over(taker: Engine, run_id: str, owner: Engine) -> None:
    """Claim a run as if its owner were known to be dead."""
    claims = await taker.store.run_claim(taker.host.worker_id, run_ids=[run_id], dead_workers=[owner.host.worker_id])
    assert [claim.run_id for claim in claims] == [run_id]


async def test_rule_each_claim_takes_a_new_fence(engine: Engine, store_url: str):
    run_id = await engine.start(holding)
    await gate.reached.wait()
    first = await row_of(engine, run_id)
    async with opened(store_url) as taker:
        await take_over(taker, run_id, engine)
        second = await row_of(taker, run_id)
    assert second.fence == first.fence + 1
    assert (first.worker_id, second.worker_id) == (engine.host.worker_id, taker.host.worker_id)


async def test_rule_nothing_a_lost_owner_does_is_recorded(engine: Engine, store_url: str):
    """Its body runs on until it ends; the completion is refused, the drive ends, no later body starts."""
    run_id = await engine.start(holding)
    await gate.reached.wait()
    drive = engine.host.drives[run_id]
    async with opened(store_url) as taker:
        await take_over(taker, run_id, engine)
        before = shape(await records_of(taker, run_id))
        gate.open()
        end = await drive.ended
        assert shape(await records_of(taker, run_id)) == before
    assert end.is_lost
    assert isinstance(end.error, RunLost)
    assert seen == ["went on"]


async def test_rule_a_caller_that_waits_for_a_lost_run_gets_the_new_owners_result(engine: Engine, store_url: str):
    waiting = asyncio.ensure_future(engine.run(holding, execution_id="r1"))
    await gate.reached.wait()
    async with opened(store_url) as taker:
        first, gate.reached = gate.reached, asyncio.Event()
        assert first.is_set()
        claims = await taker.host.claim({holding.name: holding}, run_ids=["r1"], dead_workers=[engine.host.worker_id])
        assert len(claims) == 1
        await gate.reached.wait()
        gate.open()
        assert (await waiting).output == ["held", "after"]
    completed = [r for r in await records_of(engine, "r1") if r.type == "completed"]
    assert len(completed) == 2


async def test_rule_a_worker_whose_row_was_ended_stops_its_runs(store_url: str):
    """A peer has buried it: its heartbeat finds out, its runs are abandoned, nothing of them is recorded."""
    async with opened(store_url, QUICK) as buried, opened(store_url, FAST) as other:
        run_id = await buried.start(holding)
        await gate.reached.wait()
        drive = buried.host.drives[run_id]
        await other.store.worker_end(buried.host.worker_id)
        end = await drive.ended
        assert end.is_lost
        assert (await row_of(other, run_id)).status == "pending"
        gate.open()
        assert (await other.run(holding, execution_id=run_id)).output == ["held", "after"]


async def test_rule_shutdown_starts_nothing_records_what_ends_and_gives_the_run_back(engine: Engine, store_url: str):
    async with opened(store_url) as first:
        run_id = await first.start(holding)
        await gate.reached.wait()
        closing = asyncio.ensure_future(first.close())
        await asyncio.sleep(0)
        gate.open()
        await closing
    row = await row_of(engine, run_id)
    assert (row.status, row.worker_id) == ("pending", None)
    assert seen == ["went on"], "the body was awaited, the next one was not started"
    assert (await engine.run(holding, execution_id=run_id)).output == ["held", "after"]
    assert seen == ["went on", "after"], "what ended within the grace period was recorded"


async def test_rule_close_is_idempotent_and_a_closed_engine_starts_nothing(engine: Engine):
    await engine.close()
    await engine.close()
    with pytest.raises(Exception, match="closed"):
        await engine.run(holding)


async def test_rule_two_workers_never_run_one_run_at_the_same_time(engine: Engine, store_url: str):
    """Several workers look for the same runs; each run is claimed once."""

    @step
    async def body(n: int) -> int:
        seen.append(f"body {n}")
        return n

    @workflow
    async def flow(n: int) -> int:
        return await body(n)

    async with opened(store_url) as first:
        for n in range(10):
            await first.store.run_fork(new_run(f"r{n}", flow.name, n), [], [])
    async with opened(store_url) as second, opened(store_url) as third:
        await asyncio.gather(*(worker.recover([flow]) for worker in (engine, second, third)))
    assert sorted(seen) == sorted(f"body {n}" for n in range(10))
    assert [(await row_of(engine, f"r{n}")).fence for n in range(10)] == [(await row_of(engine, "r0")).fence] * 10


def new_run(run_id: str, runner: str, value: int):  # type: ignore[no-untyped-def]
    from perdure.core.records import NewRun
    from perdure.engine.host import digest_of_input

    return NewRun(
        run_id=run_id,
        root_id=run_id,
        runner=runner,
        kind="workflow",
        version=None,
        input_digest=digest_of_input(str(value)),
        input_data=str(value),
    )


# --- real processes -----------------------------------------------------------------------------------


async def test_rule_a_killed_workers_run_is_recovered_at_once_by_its_successor(store_url: str):
    with child(store_url, "r1", staying.name) as worker:
        await asyncio.to_thread(worker.wait_for, "in body")
        worker.kill()
    with child(store_url, "r1", staying.name) as successor:
        await asyncio.to_thread(successor.wait_for, "in body")
        successor.say("here")
        assert await asyncio.to_thread(successor.rest) == ["completed ['before', 'stayed here']"]


async def test_rule_a_manual_body_killed_in_its_midst_is_in_doubt_and_repeated_only_by_decision(
    store_url: str,
):
    with child(store_url, "r1", staying_manually.name) as worker:
        await asyncio.to_thread(worker.wait_for, "in body")
        worker.kill()
    async with opened(store_url, QUICK) as engine:
        await engine.recover([staying_manually])
        row = await row_of(engine, "r1")
        assert (row.status, row.blocked_operation) == ("needs_attention", "r1/1")
        with pytest.raises(DurableRecoveryError) as caught:
            await engine.resume(staying_manually, "r1")
        assert caught.value.operation_id == "r1/1"


async def test_rule_an_idempotent_function_killed_in_its_midst_is_in_doubt(store_url: str):
    with child(store_url, "r1", effecting.name) as worker:
        await asyncio.to_thread(worker.wait_for, "in body")
        worker.kill()
    async with opened(store_url, QUICK) as engine:
        await engine.recover([effecting])
        assert (await row_of(engine, "r1")).status == "needs_attention"


async def test_rule_a_stopped_worker_records_nothing_after_another_has_finished(store_url: str):
    """SIGSTOP past its lease, another one finishes, SIGCONT: its body ends, and the journal does not change."""
    with child(store_url, "r1", staying.name) as stopped:
        await asyncio.to_thread(stopped.wait_for, "in body")
        os.kill(stopped.pid, signal.SIGSTOP)
        with child(store_url, "r1", staying.name) as other:
            await asyncio.to_thread(other.wait_for, "in body")
            other.say("other")
            assert await asyncio.to_thread(other.rest) == ["completed ['before', 'stayed other']"]
        async with opened(store_url) as reader:
            before = await records_of(reader, "r1")
            os.kill(stopped.pid, signal.SIGCONT)
            stopped.say("stopped")
            said = await asyncio.to_thread(stopped.rest)
            assert await records_of(reader, "r1") == before
        assert all("stayed stopped" not in line for line in said)


async def test_rule_an_answer_survives_the_process_that_took_it(store_url: str):
    with child(store_url, "r1", asking.name, "yes") as worker:
        await asyncio.to_thread(worker.wait_for, "answered")
        worker.kill()
    async with opened(store_url, QUICK) as engine:
        assert (await engine.run(asking, execution_id="r1")).output is True
        with pytest.raises(Exception, match="completed"):
            await engine.resume(asking, "r1", resume_value=Resume(approved=False))


async def test_rule_a_worker_that_left_is_no_owner(engine: Engine, store_url: str):
    async with opened(store_url) as first:
        run_id = await first.start(holding)
        await gate.reached.wait()
        await record_that(first, run_id, type="started", name="hold")
        gate.open()
    assert (await row_of(engine, run_id)).worker_id in (None, engine.host.worker_id)
    workers = await engine.store.worker_list()
    assert [worker.worker_id for worker in workers] == [engine.host.worker_id]


async def test_rule_a_worker_that_lost_its_lease_joins_again(store_url: str):
    """A laptop's lid, a paused machine: its callers get what others made of their runs, and it takes new ones."""
    async with opened(store_url, QUICK) as buried, opened(store_url, FAST) as other:
        old_id = buried.host.worker_id
        following = asyncio.ensure_future(buried.run(holding, execution_id="r"))
        await gate.reached.wait()
        drive = buried.host.drives["r"]
        async with asyncio.timeout(20):
            await other.store.worker_end(old_id)
            await drive.ended
            gate.open()
            assert (await other.run(holding, execution_id="r")).output == ["held", "after"]
            assert (await following).output == ["held", "after"]
            assert (await buried.run(holding)).output == ["held", "after"]
        assert buried.host.worker_id != old_id
        assert buried.host.worker_id in [row.worker_id for row in await other.store.worker_list()]
    async with opened(store_url) as last:
        assert [row.worker_id for row in await last.store.worker_list()] == [last.host.worker_id]


async def test_rule_who_loses_the_race_to_create_an_id_leaves_the_run_alone(engine: Engine, store_url: str):
    """Its creation is refused, and that says nothing about the run of the other, which is just nobody's."""
    gate.open()
    async with opened(store_url) as other:
        await other.run(asking, execution_id="r")
        await other.answer("r", Resume(approved=True))
    before = await row_of(engine, "r")
    input_data = asking.encode_input(None)
    refused = engine.host.create(asking, "r", input_data, digest_of_input(input_data))
    async with asyncio.timeout(20):
        await refused.ended
        await asyncio.gather(*engine.host._tasks)
        after = await row_of(engine, "r")
        assert (after.status, after.fence, after.error) == (before.status, before.fence, None)
        assert (await engine.run(asking, execution_id="r")).output is True


async def test_rule_two_workers_start_the_same_ids_and_one_leaves(store_url: str):
    """Whoever lost the race follows the winner's runs, and takes them over when it leaves."""
    names = [f"r{n}" for n in range(20)]
    async with asyncio.timeout(60), opened(store_url, FAST) as staying:
        async with opened(store_url, HASTY) as leaving:
            gone = [asyncio.ensure_future(leaving.run(holding, execution_id=name)) for name in names]
            waiting = [asyncio.ensure_future(staying.run(holding, execution_id=name)) for name in names]
            await gate.reached.wait()
        gate.open()
        results = await asyncio.gather(*waiting)
        await asyncio.gather(*gone, return_exceptions=True)
        rows = [await row_of(staying, name) for name in names]
    assert [result.output for result in results] == [["held", "after"]] * len(names)
    assert {row.status for row in rows} == {"completed"}


async def test_rule_callers_of_an_engine_that_closes_get_its_error(store_url: str):
    """They follow another worker's runs; nobody cancelled them, so they are not cancelled."""
    async with asyncio.timeout(60), opened(store_url) as owner:
        names = [await owner.start(holding, execution_id=f"r{n}") for n in range(5)]
        follower = await open_engine(store_url, settings=FAST)
        callers = [asyncio.ensure_future(follower.run(holding, execution_id=name)) for name in names]
        await gate.reached.wait()
        await follower.close()
        ends = await asyncio.gather(*callers, return_exceptions=True)
        gate.open()
        assert [(await owner.run(holding, execution_id=name)).output for name in names] == [["held", "after"]] * 5
    assert [type(end) for end in ends] == [DurableStorageError] * 5


@pytest.mark.parametrize("turns", [0, 1, 5, None], ids=["at once", "soon", "later", "claiming"])
async def test_rule_runs_that_are_being_claimed_when_an_engine_closes_are_given_back(store_url: str, turns: int | None):
    """Wherever the close meets the claims: callers get a result or the engine's error, every run goes on elsewhere."""
    async with asyncio.timeout(60):
        async with opened(store_url, HASTY) as first:
            names = [await first.start(holding, execution_id=f"r{n}") for n in range(10)]
            await gate.reached.wait()
        closing = await open_engine(store_url, settings=HASTY)
        callers = [asyncio.ensure_future(closing.run(holding, execution_id=name)) for name in names]
        while turns is None and not closing.host._claiming.locked():
            await asyncio.sleep(0)
        for _ in range(turns or 0):
            await asyncio.sleep(0)
        await closing.close()
        ends = await asyncio.gather(*callers, return_exceptions=True)
        gate.open()
        async with opened(store_url, FAST) as last:
            outputs = [(await last.run(holding, execution_id=name)).output for name in names]
    assert {type(end) for end in ends} == {DurableStorageError}
    assert outputs == [["held", "after"]] * len(names)
