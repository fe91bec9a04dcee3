"""`@idempotent`: one body per run and key, wherever it is called."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from dataclasses import dataclass
from typing import Any

import pytest
from tests.support.engines import HASTY, Gate, journal_of, opened, question_count, records_of

from perdure import IdempotencyError, Resume, idempotent, interrupt, operation_id, step, workflow
from perdure.engine.engine import Engine

ran: list[Any] = []
gate = Gate()
broken: list[bool] = []


@pytest.fixture(autouse=True)
def fresh() -> None:
    global gate
    gate = Gate()
    ran.clear()
    broken.clear()


@idempotent(name="idempotent.pay")
async def pay(order: str, amount: int = 5) -> str:
    ran.append(f"pay {order} {amount}")
    return f"receipt {order}"


@idempotent(name="idempotent.pay_sync")
def pay_sync(order: str) -> str:
    ran.append(f"sync {order}")
    return f"receipt {order}"


@idempotent(name="idempotent.pay_by_id", key_fn=lambda order, **_: order["id"])
async def pay_by_id(order: dict[str, Any], **_: Any) -> str:
    ran.append(order)
    return f"receipt {order['id']}"


@idempotent(name="idempotent.flaky")
async def flaky(n: int) -> str:
    ran.append(operation_id())
    if broken:
        broken.pop()
        raise OSError("unreachable")
    return "paid"


@idempotent(name="idempotent.unstorable")
async def unstorable() -> Any:
    ran.append("unstorable")
    return object()


@idempotent(name="idempotent.ask")
async def ask(n: int) -> bool:
    ran.append("ask")
    return interrupt("pay?").approved


@step(name="idempotent.hold")
async def hold() -> None:
    await gate.stand()


async def test_rule_one_body_per_run_and_key_wherever_it_is_called(engine: Engine):
    @step
    async def in_a_step() -> str:
        return await pay("a")

    @workflow
    async def flow() -> list[str]:
        found = [await pay("a"), await in_a_step(), *await asyncio.gather(pay("a"), pay("a"))]
        return [*found, await pay("b")]

    assert (await engine.run(flow)).output == ["receipt a"] * 4 + ["receipt b"]
    assert ran == ["pay a 5", "pay b 5"]


async def test_rule_callers_of_one_key_at_the_same_time_share_one_body(engine: Engine):
    @workflow
    async def flow() -> list[str]:
        return list(await asyncio.gather(*(pay("a") for _ in range(5))))

    assert (await engine.run(flow)).output == ["receipt a"] * 5
    assert ran == ["pay a 5"]


async def test_rule_equal_arguments_are_one_key_however_they_are_given(engine: Engine):
    @workflow
    async def flow() -> None:
        await pay("a")
        await pay("a", 5)
        await pay(amount=5, order="a")

    await engine.run(flow)
    assert ran == ["pay a 5"]


async def test_rule_two_runs_have_keys_of_their_own(engine: Engine):
    @workflow
    async def flow() -> str:
        return await pay("a")

    await engine.run(flow)
    await engine.run(flow)
    assert len(ran) == 2


async def test_rule_key_fn_makes_the_key(engine: Engine):
    @workflow
    async def flow() -> list[str]:
        return [await pay_by_id({"id": "7", "noise": 1}), await pay_by_id({"id": "7", "noise": 2})]

    assert (await engine.run(flow)).output == ["receipt 7"] * 2
    assert len(ran) == 1


async def test_rule_after_an_exception_the_next_call_runs_the_body_under_the_same_id(engine: Engine):
    """Only values are recorded for a key."""
    broken.append(True)

    @workflow
    async def flow() -> list[str]:
        try:
            await flaky(1)
        except OSError as error:
            first = str(error)
        return [first, await flaky(1)]

    first = await engine.run(flow)
    assert first.output == ["unreachable", "paid"]
    assert len(ran) == 2
    assert ran[0] == ran[1]
    assert (await engine.fork(flow, first.execution_id)).output == first.output
    assert len(ran) == 2


async def test_rule_a_result_that_cannot_be_stored_is_recorded_as_that_error(engine: Engine):
    """The effect happened: it is not repeated for the sake of a result nobody can store."""

    @workflow
    async def flow() -> list[str]:
        errors = []
        for _ in range(2):
            try:
                await unstorable()
            except IdempotencyError as error:
                errors.append(type(error).__name__)
        return errors

    assert (await engine.run(flow)).output == ["IdempotencyError"] * 2
    assert ran == ["unstorable"]


async def test_rule_arguments_without_a_stable_form_are_refused_before_the_body(engine: Engine):
    @workflow
    async def flow() -> str:
        try:
            await pay(object())  # type: ignore[arg-type]
        except IdempotencyError as error:
            return str(error)
        return ""

    assert "pay" in (await engine.run(flow)).output
    assert ran == []


async def test_rule_a_key_that_is_no_text_is_refused(engine: Engine):
    @idempotent(key_fn=lambda n: n)
    async def bad_key(n: int) -> int:
        ran.append(n)
        return n

    @workflow
    async def flow() -> str:
        try:
            await bad_key(1)
        except IdempotencyError as error:
            return str(error)
        return ""

    assert "key_fn" in (await engine.run(flow)).output
    assert ran == []


async def test_rule_lambdas_and_closures_need_a_key_or_a_name():
    outside = 5
    with pytest.raises(IdempotencyError, match="key_fn"):
        idempotent(lambda: 1)
    with pytest.raises(IdempotencyError, match="key_fn"):

        @idempotent
        async def closing_over() -> int:
            return outside


async def test_rule_a_body_that_calls_its_own_key_is_refused(engine: Engine):
    @idempotent(name="idempotent.recursive")
    async def recursive(n: int) -> int:
        return await recursive(n)

    @workflow
    async def flow() -> str:
        try:
            await recursive(1)
        except IdempotencyError as error:
            return str(error)
        return ""

    assert "itself" in (await engine.run(flow)).output


async def test_rule_a_method_needs_a_stable_owner(engine: Engine):
    @dataclass
    class Shop:
        name: str

        @property
        def __idempotency_key__(self) -> str:
            return self.name

        @idempotent
        async def sell(self, item: str) -> str:
            ran.append((self.name, item))
            return f"{self.name} {item}"

    class Nameless:
        @idempotent
        async def sell(self, item: str) -> str:
            return item

    @workflow
    async def flow() -> list[str]:
        found = [await Shop("a").sell("x"), await Shop("a").sell("x"), await Shop("b").sell("x")]
        try:
            await Nameless().sell("x")
        except IdempotencyError as error:
            found.append("refused" if "__idempotency_key__" in str(error) else str(error))
        return found

    assert (await engine.run(flow)).output == ["a x", "a x", "b x", "refused"]
    assert ran == [("a", "x"), ("b", "x")]


async def test_rule_a_sync_function_called_by_workflow_code_runs_once_and_replays(engine: Engine, store_url: str):
    @workflow
    async def flow() -> list[str]:
        found = [pay_sync("a"), pay_sync("a"), pay_sync("b")]
        await hold()
        return found

    async with opened(store_url, HASTY) as first:
        run_id = await first.start(flow)
        await gate.reached.wait()
    gate.open()
    assert (await engine.run(flow, execution_id=run_id)).output == ["receipt a", "receipt a", "receipt b"]
    assert ran == ["sync a", "sync b"]


async def test_rule_a_sync_function_called_in_a_sync_step_runs_once(engine: Engine):
    @step
    def body() -> list[str]:
        return [pay_sync("a"), pay_sync("a")]

    @workflow
    async def flow() -> list[str]:
        return [*await body(), pay_sync("a")]

    assert (await engine.run(flow)).output == ["receipt a"] * 3
    assert ran == ["sync a"]


def test_rule_a_sync_function_on_the_loops_thread_works_and_warns_that_it_blocks(store_url: str):
    """Not an async test: blocking the loop is what this one documented way does."""

    @step
    async def body() -> str:
        return pay_sync("a")

    @workflow
    async def flow() -> str:
        return await body()

    with pytest.warns(RuntimeWarning, match="pay_sync"):
        assert flow.run(store=store_url).output == "receipt a"


async def test_rule_an_idempotent_body_may_ask(engine: Engine):
    @workflow
    async def flow() -> bool:
        return await ask(1)

    paused = await engine.run(flow)
    result = await engine.resume(flow, paused.execution_id, resume_value=Resume(approved=True))
    assert result.output is True
    assert ran == ["ask", "ask"]


async def test_rule_the_operation_id_of_a_key_does_not_depend_on_where_it_is_called(engine: Engine):
    broken.append(True)

    @step
    async def in_a_step() -> str:
        return await flaky(1)

    @workflow
    async def flow() -> str:
        try:
            return await flaky(1)
        except OSError:
            return await in_a_step()

    assert (await engine.run(flow)).output == "paid"
    assert ran[0] == ran[1]


async def test_rule_outside_a_run_nothing_is_recorded():
    assert await pay("a") == await pay("a") == "receipt a"
    assert contextvars.copy_context().run(pay_sync, "a") == "receipt a"
    assert ran == ["pay a 5", "pay a 5", "sync a"]


async def test_rule_an_idempotent_function_is_started_durably_before_its_body(engine: Engine):
    seen: list[list[str]] = []

    @idempotent(key_fn=lambda: "k")
    async def look() -> None:
        seen.append([r.type for r in await records_of(engine, "r1") if r.kind == "effect"])

    @workflow
    async def flow() -> None:
        await look()

    await engine.run(flow, execution_id="r1")
    assert "started" in seen[0]


# --- a sync function, called by workflow code, that asks ------------------------------------------------


@idempotent(name="idempotent.ask_sync")
def ask_sync(n: int) -> bool:
    ran.append(f"ask {n}")
    return interrupt(f"pay {n}?").approved


@step(name="idempotent.quick")
async def quick(n: int) -> int:
    ran.append(f"quick {n}")
    return n


@workflow(name="idempotent.asking_beside_a_body")
async def asking_beside_a_body() -> list[Any]:
    async def branch() -> list[Any]:
        return [await quick(1), ask_sync(1), await quick(2)]

    return list(await asyncio.gather(hold(), branch()))


async def test_rule_a_sync_function_that_asks_lets_the_others_go_on(engine: Engine, store_url: str):
    """While a person thinks, siblings' results are recorded, their steps run, and the run pauses."""
    async with asyncio.timeout(20):
        waiting = asyncio.ensure_future(engine.run(asking_beside_a_body, execution_id="r"))
        [question] = await question_count(engine, "r", 1)
        gate.open()
        paused = await waiting
        assert (paused.status, question.reason) == ("paused", '"pay 1?"')
        held = [op for op in (await journal_of(engine, "r")).operations.values() if op.name == hold.spec.name]
        assert [op.phase for op in held] == ["completed"]
        async with opened(store_url) as later:
            result = await later.resume(asking_beside_a_body, "r", resume_value=Resume(approved=True))
        assert result.output == [None, [1, True, 2]]
        assert (await engine.fork(asking_beside_a_body, "r")).output == result.output
    assert ran == ["quick 1", "ask 1", "ask 1", "quick 2"]


async def test_rule_sync_functions_of_several_tasks_ask_at_once_and_are_answered_in_any_order(
    engine: Engine, store_url: str
):
    """Each one holds up its own task only."""

    @workflow
    async def flow() -> list[Any]:
        async def branch(n: int) -> list[Any]:
            return [await quick(n), ask_sync(n)]

        return list(await asyncio.gather(*(branch(n) for n in range(3))))

    async with asyncio.timeout(20):
        paused = await engine.run(flow, execution_id="r")
        assert [q["reason"] for q in paused.pending_interrupts] == ["pay 0?", "pay 1?", "pay 2?"]
        for question in reversed(paused.pending_interrupts):
            async with opened(store_url) as later:
                answer = {question["interrupt_id"]: Resume(approved=question["reason"] == "pay 1?")}
                result = await later.resume(flow, "r", resume_value=answer)
    assert result.output == [[0, False], [1, True], [2, False]]


entered, go_on = threading.Event(), threading.Event()


@idempotent(name="idempotent.stay_in_thread")
def stay_in_thread() -> str:
    entered.set()
    go_on.wait(60)
    return "stayed"


async def test_rule_a_body_that_ends_while_a_sync_function_runs_is_recorded_when_the_run_is_given_back(store_url: str):
    """Its completion waits for its turn in memory; the worker that leaves writes it down."""

    @workflow
    async def flow() -> list[Any]:
        async def branch() -> list[Any]:
            return [await quick(1), stay_in_thread()]

        return list(await asyncio.gather(hold(), branch()))

    entered.clear()
    go_on.clear()
    try:
        async with asyncio.timeout(20), opened(store_url, HASTY) as leaving:
            await leaving.start(flow, execution_id="r")
            await asyncio.to_thread(entered.wait, 20)
            await gate.reached.wait()
            gate.open()
            while not leaving.host.drives["r"].arrived:
                await asyncio.sleep(0)
        async with opened(store_url) as later:
            held = [op for op in (await journal_of(later, "r")).operations.values() if op.name == hold.spec.name]
    finally:
        go_on.set()
    assert [op.phase for op in held] == ["completed"]
