"""DESIGN "Policies": what happens to an operation that was begun and has no recorded end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.support.engines import HASTY, Gate, journal_of, opened, operation_of, record_that, row_of

from perdure import DurableRecoveryError, idempotent, operation_id, step, workflow
from perdure.core.records import Recovery
from perdure.engine.engine import Engine
from perdure.flow.workflow import Workflow

gate = Gate()
calls: list[Any] = []
code: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def fresh_world() -> None:
    global gate
    gate = Gate()
    calls.clear()
    code.clear()


@step(recovery="safe")
async def safe_body(n: int) -> str:
    calls.append(n)
    await gate.stand()
    return f"safe {n}"


@step
async def default_body(n: int) -> str:
    calls.append(operation_id())
    await gate.stand()
    return "default"


@step(recovery="manual")
async def manual_body(n: int) -> str:
    calls.append(operation_id())
    await gate.stand()
    return "manual"


@idempotent
async def effect_body(n: int) -> str:
    calls.append(operation_id())
    await gate.stand()
    return "effect"


@idempotent(recovery="idempotent")
async def repeated_effect_body(n: int) -> str:
    calls.append(operation_id())
    await gate.stand()
    return "repeated"


@workflow
async def safe_flow() -> str:
    return await safe_body(code.get("n", 1))


@workflow
async def default_flow() -> str:
    return await default_body(1)


@workflow
async def manual_flow() -> str:
    return await manual_body(1)


@workflow
async def effect_flow() -> str:
    return await effect_body(1)


@workflow
async def repeated_effect_flow() -> str:
    return await repeated_effect_body(1)


async def left_in_body(url: str, flow: Workflow) -> str:
    """A run whose worker left while the body was at work: its operation is in doubt."""
    async with opened(url, HASTY) as engine:
        run_id = await engine.start(flow)
        await gate.reached.wait()
    gate.open()
    return run_id


async def test_rule_steps_default_to_idempotent_and_effects_to_manual():
    assert default_body.spec.recovery == Recovery.IDEMPOTENT
    assert effect_body.spec.recovery == Recovery.MANUAL


async def test_rule_an_operation_in_doubt_that_is_idempotent_is_repeated_under_the_same_id(
    engine: Engine, store_url: str
):
    run_id = await left_in_body(store_url, default_flow)

    result = await engine.resume(default_flow, run_id)

    assert result.output == "default"
    assert calls == [f"{run_id}/0", f"{run_id}/0"]


async def test_rule_an_idempotent_function_in_doubt_can_be_repeated_under_the_same_id(engine: Engine, store_url: str):
    run_id = await left_in_body(store_url, repeated_effect_flow)

    result = await engine.resume(repeated_effect_flow, run_id)

    assert result.output == "repeated"
    assert len(calls) == 2
    assert calls[0] == calls[1]


async def test_rule_safe_may_be_repeated_with_other_arguments(engine: Engine, store_url: str):
    run_id = await left_in_body(store_url, safe_flow)

    code["n"] = 2
    result = await engine.resume(safe_flow, run_id)

    assert result.output == "safe 2"
    assert calls == [1, 2]


async def test_rule_a_safe_operation_leaves_no_record_of_its_start(engine: Engine):
    """Nothing outside remembers it, so nothing needs to be known of one that was begun."""
    gate.open()
    run_id = (await engine.run(safe_flow)).execution_id

    types = [r.type for r in (await engine.store.run_load(run_id)).records if r.path == "" and r.kind == "step"]
    assert types == ["completed"]


@pytest.mark.parametrize("flow", [manual_flow, effect_flow], ids=lambda flow: flow.name)
async def test_rule_manual_in_doubt_stops_the_run_before_any_body_and_names_the_operation(
    engine: Engine, store_url: str, flow: Workflow
):
    run_id = await left_in_body(store_url, flow)

    with pytest.raises(DurableRecoveryError) as caught:
        await engine.resume(flow, run_id)

    row = await row_of(engine, run_id)
    assert caught.value.operation_id is not None
    assert (row.status, row.blocked_operation) == ("needs_attention", caught.value.operation_id)
    assert len(calls) == 1


@pytest.mark.parametrize("flow", [manual_flow, effect_flow], ids=lambda flow: flow.name)
async def test_rule_repeat_operation_is_the_decision_to_perform_it_again_under_the_same_id(
    engine: Engine, store_url: str, flow: Workflow
):
    run_id = await left_in_body(store_url, flow)
    with pytest.raises(DurableRecoveryError) as caught:
        await engine.resume(flow, run_id)

    result = await engine.resume(flow, run_id, repeat_operation=caught.value.operation_id)

    assert result.status == "completed"
    assert len(calls) == 2
    assert calls[0] == calls[1]


async def test_rule_resuming_again_without_a_decision_stops_again(engine: Engine, store_url: str):
    run_id = await left_in_body(store_url, manual_flow)
    for _ in range(2):
        with pytest.raises(DurableRecoveryError, match="manual_body"):
            await engine.resume(manual_flow, run_id)
    assert len(calls) == 1


async def test_rule_a_decision_is_for_one_operation_and_for_one_repetition(engine: Engine, store_url: str):
    """The id of another operation is refused; and a second doubt, after the repetition, needs a second decision."""
    run_id = await left_in_body(store_url, manual_flow)
    with pytest.raises(DurableRecoveryError):
        await engine.resume(manual_flow, run_id)
    with pytest.raises(Exception, match="blocked by"):
        await engine.resume(manual_flow, run_id, repeat_operation=f"{run_id}/7")
    assert len(calls) == 1

    again = fresh_gate()
    async with opened(store_url, HASTY) as worker:
        follow = loop_task(worker.resume, manual_flow, run_id, repeat_operation=f"{run_id}/0")
        await again.reached.wait()
        follow.cancel()
    again.open()
    with pytest.raises(DurableRecoveryError):
        await engine.resume(manual_flow, run_id)
    assert len(calls) == 2


async def test_rule_a_doubt_stops_the_run_before_any_other_body_starts(engine: Engine, store_url: str):
    started: list[str] = []
    other = Gate()

    @step
    async def sibling() -> str:
        started.append("sibling")
        await other.stand()
        return "sibling"

    @workflow
    async def both() -> list[str]:
        import asyncio

        return list(await asyncio.gather(sibling(), manual_body(1)))

    async with opened(store_url, HASTY) as first:
        run_id = await first.start(both)
        await gate.reached.wait()
        await other.reached.wait()
    other.open()
    with pytest.raises(DurableRecoveryError):
        await engine.resume(both, run_id)
    assert started == ["sibling"]


async def test_rule_a_saved_policy_is_never_relaxed_by_a_later_registration(engine: Engine, store_url: str):
    """The code now says idempotent; the record says manual, and the record holds."""

    def register(recovery: str) -> Workflow:
        @step(name="relaxed body", recovery=recovery)
        async def body() -> str:
            calls.append(recovery)
            await gate.stand()
            return recovery

        @workflow(name="relaxed flow")
        async def flow() -> str:
            return await body()

        return flow

    run_id = await left_in_body(store_url, register("manual"))
    with pytest.raises(DurableRecoveryError):
        await engine.resume(register("idempotent"), run_id)
    assert calls == ["manual"]


async def test_rule_a_manual_operation_whose_end_is_recorded_is_not_in_doubt(engine: Engine, store_url: str):
    last = Gate()

    @step
    async def stay() -> None:
        await last.stand()

    @workflow
    async def flow() -> str:
        found = await manual_body(1)
        await stay()
        return found

    gate.open()
    async with opened(store_url, HASTY) as first:
        run_id = await first.start(flow)
        await last.reached.wait()
    last.open()
    assert (await engine.resume(flow, run_id)).output == "manual"
    assert len(calls) == 1


async def test_rule_an_unknown_policy_is_refused_when_the_function_is_registered():
    with pytest.raises(ValueError, match="recovery"):
        step(recovery="sometimes")(lambda: None)


async def test_rule_the_started_record_of_a_manual_operation_shows_what_was_begun(engine: Engine, store_url: str):
    run_id = await left_in_body(store_url, manual_flow)
    op = await operation_of(engine, run_id, "0")
    assert (op.kind, op.name, op.recovery, op.arguments) == ("step", "manual_body", "manual", '{"n":1}')
    assert (await journal_of(engine, run_id)).in_doubt() is op or op.is_in_doubt
    started = await record_that_exists(engine, run_id)
    assert started.data == '{"n":1}'


async def record_that_exists(engine: Engine, run_id: str) -> Any:
    return await record_that(engine, run_id, type="started", path="", index=0)


def fresh_gate() -> Gate:
    global gate
    gate = Gate()
    return gate


def loop_task(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    import asyncio

    return asyncio.ensure_future(function(*args, **kwargs))
