"""DESIGN "Existing ids", "Terminal" and "Changed code": what an id that is already there means."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.engines import (
    HASTY,
    Gate,
    ids_of,
    opened,
    question_count,
    questions_of,
    records_of,
    row_of,
    shape,
    status_that,
)

from perdure import (
    AlreadyResumed,
    ChainCheckpointError,
    ChainResumeError,
    DurableConflictError,
    DurableRecoveryError,
    DurableRunError,
    Resume,
    RunBusy,
    interrupt,
    patched,
    step,
    workflow,
)
from perdure.engine.engine import Engine
from perdure.flow.workflow import Workflow

YES = Resume(approved=True)
NO = Resume(approved=False)
gate = Gate()
ran: list[Any] = []
code: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def fresh() -> None:
    global gate
    gate = Gate()
    ran.clear()
    code.clear()


@step(name="existing_ids.note")
async def note(n: int) -> int:
    ran.append(n)
    return n


@step(name="existing_ids.hold")
async def hold() -> str:
    ran.append("hold")
    await gate.stand()
    return "held"


@step(name="existing_ids.hold_manually", recovery="manual")
async def hold_manually() -> str:
    ran.append("manual")
    await gate.stand()
    return "held"


@workflow(name="existing_ids.counting")
async def counting(n: int) -> int:
    return await note(n)


@workflow(name="existing_ids.holding")
async def holding(n: int) -> str:
    await note(n)
    return await hold()


@workflow(name="existing_ids.holding_manually")
async def holding_manually() -> str:
    return await hold_manually()


@workflow(name="existing_ids.asking")
async def asking() -> bool:
    await note(1)
    return interrupt("go on?").approved


@workflow(name="existing_ids.failing")
async def failing() -> None:
    await note(1)
    raise ValueError("on purpose")


# --- existing ids -------------------------------------------------------------------------------------


async def test_rule_a_completed_run_gives_its_result_again(engine: Engine):
    first = await engine.run(counting, 5, execution_id="r1")
    second = await engine.run(counting, 5, execution_id="r1")
    assert first.output == second.output == 5
    assert ran == [5]


async def test_rule_a_failed_run_raises_its_error_again(engine: Engine):
    for _ in range(2):
        with pytest.raises(ValueError, match="on purpose"):
            await engine.run(failing, execution_id="r1")
    assert ran == [1]


async def test_rule_a_paused_run_gives_its_pause_again(engine: Engine):
    first = await engine.run(asking, execution_id="r1")
    second = await engine.run(asking, execution_id="r1")
    assert ids_of(first) == ids_of(second)
    assert (first.status, second.status) == ("paused", "paused")


async def test_rule_a_run_that_needs_attention_says_so_again(engine: Engine, store_url: str):
    async with opened(store_url, HASTY) as first:
        run_id = await first.start(holding_manually)
        await gate.reached.wait()
    for _ in range(2):
        with pytest.raises(DurableRecoveryError) as caught:
            await engine.run(holding_manually, execution_id=run_id)
        assert caught.value.operation_id == f"{run_id}/0"


async def test_rule_a_cancelled_run_says_so(engine: Engine):
    await engine.run(asking, execution_id="r1")
    await engine.cancel("r1")
    with pytest.raises(DurableRunError) as caught:
        await engine.run(asking, execution_id="r1")
    assert caught.value.status == "cancelled"


async def test_rule_a_run_that_is_run_here_is_waited_for(engine: Engine):
    run_id = await engine.start(holding, 1)
    await gate.reached.wait()
    waiting = [asyncio.ensure_future(engine.run(holding, 1, execution_id=run_id)) for _ in range(3)]
    gate.open()
    assert [result.output for result in await asyncio.gather(*waiting)] == ["held"] * 3
    assert ran == [1, "hold"]


async def test_rule_a_run_that_is_run_elsewhere_is_waited_for_on_committed_rows(engine: Engine, store_url: str):
    async with opened(store_url) as other:
        run_id = await other.start(holding, 1)
        await gate.reached.wait()
        waiting = asyncio.ensure_future(engine.run(holding, 1, execution_id=run_id))
        gate.open()
        assert (await waiting).output == "held"
    assert ran == [1, "hold"]
    assert engine.host.drives == {}


async def test_rule_a_run_that_nobody_owns_is_claimed_and_goes_on(engine: Engine, store_url: str):
    async with opened(store_url, HASTY) as first:
        run_id = await first.start(holding, 1)
        await gate.reached.wait()
    gate.open()
    assert (await engine.run(holding, 1, execution_id=run_id)).output == "held"
    assert ran == [1, "hold", "hold"]


@pytest.mark.parametrize("other", [6, None, "5", 5.0])
async def test_rule_other_input_under_an_existing_id_is_a_conflict_and_changes_nothing(engine: Engine, other: Any):
    await engine.run(anything, 5, execution_id="r1")
    before = await records_of(engine, "r1")
    with pytest.raises(DurableConflictError, match="r1"):
        await engine.run(anything, other, execution_id="r1")
    assert await records_of(engine, "r1") == before


@workflow(name="existing_ids.anything")
async def anything(value: Any) -> Any:
    return value


async def test_rule_an_id_of_another_runner_is_a_conflict(engine: Engine):
    await engine.run(counting, 5, execution_id="r1")
    with pytest.raises(DurableConflictError, match="counting"):
        await engine.run(holding, 5, execution_id="r1")


async def test_rule_two_starts_of_one_id_at_the_same_time_are_one_run(engine: Engine, store_url: str):
    async with opened(store_url) as other:
        results = await asyncio.gather(
            *(who.run(counting, 5, execution_id="r1") for who in (engine, other, engine, other))
        )
    assert [result.output for result in results] == [5] * 4
    assert ran == [5]


@pytest.mark.parametrize("call", ["resume", "fork", "retry"])
async def test_rule_run_busy_is_for_resume_fork_and_retry_of_a_run_that_is_really_running(
    engine: Engine, store_url: str, call: str
):
    run_id = await engine.start(holding, 1)
    await gate.reached.wait()
    before = shape(await records_of(engine, run_id))
    async with opened(store_url) as other:
        with pytest.raises(RunBusy):
            await getattr(other, call)(holding, run_id)
    assert shape(await records_of(engine, run_id)) == before
    gate.open()
    assert (await engine.run(holding, 1, execution_id=run_id)).output == "held"


async def test_rule_a_worker_claims_only_runs_whose_runner_it_was_given(engine: Engine, store_url: str):
    async with opened(store_url, HASTY) as first:
        run_id = await first.start(holding, 1)
        await gate.reached.wait()
    gate.open()
    await engine.recover([counting, asking])
    assert (await row_of(engine, run_id)).status == "pending"
    await engine.recover([counting, holding])
    assert (await row_of(engine, run_id)).status == "completed"


@pytest.mark.parametrize("call", ["resume", "fork", "retry"])
async def test_rule_an_unknown_id_is_refused(engine: Engine, call: str):
    with pytest.raises(ChainCheckpointError, match="nothing-here"):
        await getattr(engine, call)(counting, "nothing-here")


async def test_rule_resume_by_another_runner_consumes_nothing(engine: Engine):
    paused = await engine.run(asking, execution_id="r1")
    with pytest.raises(DurableRecoveryError, match="asking"):
        await engine.resume(counting, "r1", resume_value=YES)
    assert [q.status for q in await questions_of(engine, "r1")] == ["pending"]
    assert (await engine.resume(asking, paused.execution_id, resume_value=YES)).output is True


# --- terminal -----------------------------------------------------------------------------------------


async def test_rule_the_terminal_transaction_withdraws_open_questions_and_keeps_them(engine: Engine):
    await engine.run(asking, execution_id="r1")
    await engine.cancel("r1")
    assert [q.status for q in await questions_of(engine, "r1")] == ["withdrawn"]
    assert await engine.store.interrupt_list() == []


async def test_rule_answering_a_withdrawn_question_is_already_resumed(engine: Engine):
    paused = await engine.run(asking, execution_id="r1")
    await engine.cancel("r1")
    before = await records_of(engine, "r1")
    for address in (None, ids_of(paused)[0]):
        with pytest.raises(AlreadyResumed):
            await engine.resume(asking, "r1", resume_value=YES, interrupt_id=address)
    assert await records_of(engine, "r1") == before


async def test_rule_resuming_a_finished_run_is_already_resumed(engine: Engine):
    await engine.run(counting, 5, execution_id="r1")
    before = await records_of(engine, "r1")
    for value in (None, YES):
        with pytest.raises(AlreadyResumed):
            await engine.resume(counting, "r1", resume_value=value)
    assert await records_of(engine, "r1") == before


async def test_rule_a_retry_reopens_withdrawn_questions_under_the_same_id(engine: Engine):
    code["is_broken"] = True

    @step
    async def fail_at_first() -> int:
        await gate.stand()
        if code["is_broken"]:
            raise ValueError("broken")
        return 7

    @step
    async def ask() -> bool:
        return interrupt("go on?").approved

    @workflow
    async def flow() -> list[Any]:
        return list(await asyncio.gather(ask(), fail_at_first()))

    run_id = await engine.start(flow)
    await gate.reached.wait()
    paused = await engine.store.interrupt_list(run_id=run_id)
    while not paused:
        await asyncio.sleep(0)
        paused = await engine.store.interrupt_list(run_id=run_id)
    gate.open()
    await status_that(engine, run_id, "failed")
    assert [q.status for q in await questions_of(engine, run_id)] == ["withdrawn"]

    code["is_broken"] = False
    again = await engine.retry(flow, run_id)
    assert ids_of(again) == [q.interrupt_id for q in paused]
    assert (await engine.resume(flow, run_id, resume_value=YES)).output == [True, 7]


@pytest.mark.parametrize("where", ["workflow", "body"])
async def test_rule_a_retry_asks_again_what_a_failed_group_gave_up(engine: Engine, where: str):
    code["is_broken"] = True

    @step
    async def fail_at_first() -> int:
        await gate.stand()
        if code["is_broken"]:
            raise ValueError("broken")
        return 7

    @step
    async def ask_in_body() -> bool:
        return interrupt("go on?").approved

    async def ask_directly() -> bool:
        return interrupt("go on?").approved

    async def asking() -> bool:
        return await (ask_directly() if where == "workflow" else ask_in_body())

    async def failing() -> int:
        return await fail_at_first()

    @workflow
    async def flow() -> list[Any]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(asking()), group.create_task(failing())]
        return [task.result() for task in tasks]

    run_id = await engine.start(flow)
    await gate.reached.wait()
    await question_count(engine, run_id, 1)
    gate.open()
    await status_that(engine, run_id, "failed")
    (asked,) = await questions_of(engine, run_id)
    assert asked.status == "abandoned"
    with pytest.raises(AlreadyResumed):
        await engine.resume(flow, run_id, resume_value=YES, interrupt_id=asked.interrupt_id)

    code["is_broken"] = False
    again = await engine.retry(flow, run_id)
    assert ids_of(again) == [asked.interrupt_id]
    assert (await engine.resume(flow, run_id, resume_value=YES)).output == [True, 7]


async def test_rule_an_answer_that_was_not_consumed_is_delivered_after_a_retry(engine: Engine, store_url: str):
    """Answered, then the run failed before its code came to the question's call: the decision is not lost."""
    code["is_broken"] = False

    @step
    async def ask() -> bool:
        ran.append("ask")
        answer = interrupt("go on?").approved
        if code["is_broken"]:
            raise ValueError("after the answer")
        return answer

    @workflow
    async def flow() -> bool:
        return await ask()

    await engine.run(flow, execution_id="r1")
    code["is_broken"] = True
    with pytest.raises(ValueError, match="after the answer"):
        await engine.resume(flow, "r1", resume_value=NO)
    code["is_broken"] = False
    assert (await engine.retry(flow, "r1")).output is False


@pytest.mark.parametrize("flow", [counting, failing], ids=lambda flow: flow.name)
async def test_rule_cancelling_a_finished_run_changes_nothing(engine: Engine, flow: Workflow):
    try:
        await engine.run(flow, 5 if flow is counting else None, execution_id="r1")
    except ValueError:
        pass
    row, before = await row_of(engine, "r1"), await records_of(engine, "r1")
    assert await engine.cancel("r1") == row.status
    assert await row_of(engine, "r1") == row
    assert await records_of(engine, "r1") == before


# --- changed code -------------------------------------------------------------------------------------


def versioned(version: str | None, accepts: tuple[str, ...] = ()) -> Workflow:
    @workflow(name="existing_ids.versioned", version=version, accepts=list(accepts))
    async def flow() -> str:
        await note(1)
        answer = interrupt("go on?").approved
        return f"{version} {answer}"

    return flow


async def test_rule_another_version_is_refused_before_anything_runs(engine: Engine):
    await engine.run(versioned("1"), execution_id="r1")
    ran.clear()
    with pytest.raises(DurableRecoveryError, match=r"'1'.*'2'"):
        await engine.resume(versioned("2"), "r1", resume_value=YES)
    assert ran == []


async def test_rule_an_answer_given_with_the_wrong_version_is_refused_and_the_question_stays(engine: Engine):
    await engine.run(versioned("1"), execution_id="r1")
    with pytest.raises(DurableRecoveryError):
        await engine.resume(versioned("2"), "r1", resume_value=YES)
    assert [row.status for row in await engine.store.interrupt_list(run_id="r1")] == ["pending"]
    assert (await engine.resume(versioned("1"), "r1", resume_value=YES)).output == "1 True"


async def test_rule_accepts_continues_runs_of_an_older_version(engine: Engine):
    await engine.run(versioned("1"), execution_id="r1")
    result = await engine.resume(versioned("2", ("1",)), "r1", resume_value=YES)
    assert result.output == "2 True"


async def test_rule_a_difference_ahead_of_the_frontier_is_fine(engine: Engine, store_url: str):
    code["after"] = 2

    @workflow
    async def flow() -> list[int]:
        found = [await note(1)]
        await hold()
        return [*found, await note(code["after"])]

    async with opened(store_url, HASTY) as first:
        run_id = await first.start(flow)
        await gate.reached.wait()
    code["after"] = 3
    gate.open()
    assert (await engine.resume(flow, run_id)).output == [1, 3]


def patched_flow(is_new_code: bool) -> Workflow:
    @workflow(name="existing_ids.patched")
    async def flow() -> list[Any]:
        found: list[Any] = []
        if is_new_code and patched("check first"):
            found.append(await note(100))
        found.append(await note(1))
        found.append(interrupt("go on?").approved)
        if is_new_code and patched("check last"):
            found.append(await note(200))
        return found

    return flow


async def test_rule_patched_is_false_where_the_run_has_recorded_more_and_true_ahead(engine: Engine):
    await engine.run(patched_flow(False), execution_id="r1")
    result = await engine.resume(patched_flow(True), "r1", resume_value=YES)
    assert result.output == [1, True, 200]
    assert ran == [1, 200]


async def test_rule_patched_is_true_for_new_runs_and_remembered(engine: Engine):
    paused = await engine.run(patched_flow(True), execution_id="r1")
    result = await engine.resume(patched_flow(True), paused.execution_id, resume_value=YES)
    assert result.output == [100, 1, True, 200]


async def test_rule_patched_takes_no_index(engine: Engine):
    """A run that was paused before and after the patch has its operations at the same keys."""
    await engine.run(patched_flow(False), execution_id="old")
    await engine.run(patched_flow(True), execution_id="new")
    old = [(r.path, r.index) for r in await records_of(engine, "old") if r.kind == "step"]
    new = [(r.path, r.index) for r in await records_of(engine, "new") if r.kind == "step"]
    assert old[0] == new[0] == ("", 0)


async def test_rule_a_refused_resume_consumes_nothing(engine: Engine):
    code["name"] = 1

    @workflow
    async def flow() -> bool:
        await note(code["name"])
        return interrupt("go on?").approved

    await engine.run(flow, execution_id="r1")
    code["name"] = 2
    with pytest.raises(DurableRecoveryError):
        await engine.resume(flow, "r1", resume_value=NO)
    [question] = await questions_of(engine, "r1")
    assert (question.status, question.delivered_at) == ("answered", None)
    code["name"] = 1
    assert (await engine.resume(flow, "r1")).output is False
    assert ran == [1]


async def test_rule_nothing_to_repeat_is_said(engine: Engine):
    await engine.run(asking, execution_id="r1")
    with pytest.raises(ChainResumeError, match="in doubt"):
        await engine.resume(asking, "r1", repeat_operation="r1/0")
