"""DESIGN "Identity": an operation's key is its path and its index there, taken when the call is made."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.engines import HASTY, Gate, Turns, journal_of, opened, records_of, row_of

from perdure import DurableRecoveryError, step, workflow
from perdure.engine.engine import Engine


@step(name="identity.number")
async def number(n: int) -> int:
    return n


@step(name="identity.pair")
async def pair(left: int, right: int = 2) -> list[int]:
    return [left, right]


async def test_rule_the_index_is_taken_when_the_call_is_made_not_when_it_is_awaited(engine: Engine):
    @workflow
    async def flow() -> list[int]:
        first, second = number(10), number(20)
        late = await second
        return [await first, late]

    result = await engine.run(flow)

    operations = (await journal_of(engine, result.execution_id)).operations
    assert result.output == [10, 20]
    assert (operations["0"].data, operations["1"].data) == ("10", "20")
    assert operations["1"].seq < operations["0"].seq, "recorded in the order of completion"


async def test_rule_tasks_are_numbered_at_creation_by_the_runs_loop(engine: Engine):
    """Paths are the tree of tasks: the k-th task created in a task, however the tasks end."""
    turns = Turns(["c", "a", "b"])

    @step
    async def named(name: str) -> str:
        await turns.take(name)
        return name

    async def twice(name: str) -> str:
        await asyncio.gather(named(name + "1"), named(name + "2"))
        return await named(name)

    @workflow
    async def flow() -> list[str]:
        return list(await asyncio.gather(twice("a"), twice("b"), twice("c")))

    result = await engine.run(flow)

    operations = (await journal_of(engine, result.execution_id)).operations
    by_key = {key: op.data for key, op in operations.items()}
    assert result.output == ["a", "b", "c"]
    # A coroutine given to gather is called, and so numbered, in the task that made it.
    assert by_key == {
        f"~{branch}/{index}": f'"{name}{suffix}"'
        for branch, name in enumerate("abc")
        for index, suffix in ((0, "1"), (1, "2"), (2, ""))
    }


async def test_rule_two_gathered_branches_never_swap_their_records(engine: Engine, store_url: str):
    """Equal names and equal arguments in two branches: each gets its own record back at replay."""
    tokens: list[str] = []
    gate, turns = Gate(), Turns(["right", "left"])

    @step
    async def token() -> str:
        tokens.append(f"token {len(tokens)}")
        return tokens[-1]

    @step
    async def wait(side: str) -> None:
        await turns.take(side)

    @step
    async def last() -> None:
        await gate.stand()

    async def branch(side: str) -> tuple[str, str]:
        await wait(side)
        return side, await token()

    @workflow
    async def flow() -> list[tuple[str, str]]:
        found = await asyncio.gather(branch("left"), branch("right"))
        await last()
        return list(found)

    async with opened(store_url, HASTY) as first:
        run_id = await first.start(flow)
        await gate.reached.wait()
    gate.open()
    result = await engine.resume(flow, run_id)

    assert result.output == [("left", "token 1"), ("right", "token 0")]
    assert tokens == ["token 0", "token 1"]


async def test_rule_another_name_at_a_recorded_place_stops_the_run_before_the_body(engine: Engine, store_url: str):
    ran: list[str] = []
    code = {"is_new": False}
    gate = Gate()

    @step
    async def reserve(n: int) -> str:
        ran.append("reserve")
        return "reserved"

    @step
    async def charge(n: int) -> str:
        ran.append("charge")
        return "charged"

    @step
    async def ship() -> None:
        await gate.stand()

    @workflow
    async def flow() -> str:
        found = await (charge(1) if code["is_new"] else reserve(1))
        await ship()
        return found

    async with opened(store_url, HASTY) as first:
        run_id = await first.start(flow)
        await gate.reached.wait()
    code["is_new"] = True
    with pytest.raises(DurableRecoveryError) as caught:
        await engine.resume(flow, run_id)

    assert "reserve" in str(caught.value)
    assert "charge" in str(caught.value)
    assert caught.value.operation_id == f"{run_id}/0"
    assert ran == ["reserve"]
    assert (await row_of(engine, run_id)).status == "needs_attention"


async def test_rule_other_arguments_at_a_recorded_place_stop_the_run_and_name_both(engine: Engine, store_url: str):
    ran: list[int] = []
    code = {"amount": 100}
    gate = Gate()

    @step
    async def charge(amount: int) -> int:
        ran.append(amount)
        return amount

    @step
    async def ship() -> None:
        await gate.stand()

    @workflow
    async def flow() -> int:
        paid = await charge(code["amount"])
        await ship()
        return paid

    async with opened(store_url, HASTY) as first:
        run_id = await first.start(flow)
        await gate.reached.wait()
    code["amount"] = 999
    with pytest.raises(DurableRecoveryError, match=r"100.*999"):
        await engine.resume(flow, run_id)
    assert ran == [100]

    code["amount"] = 100
    gate.open()
    result = await engine.resume(flow, run_id)
    assert result.output == 100
    assert ran == [100]


async def test_rule_positional_keyword_and_defaulted_forms_of_a_call_are_one_call(engine: Engine, store_url: str):
    code = {"form": 0}
    gate = Gate()

    @step
    async def ship() -> None:
        await gate.stand()

    @workflow
    async def flow() -> list[int]:
        forms = [lambda: pair(1), lambda: pair(1, 2), lambda: pair(left=1), lambda: pair(right=2, left=1)]
        found = await forms[code["form"]]()
        await ship()
        return found

    async with opened(store_url, HASTY) as first:
        run_id = await first.start(flow)
        await gate.reached.wait()
    for form in (1, 2):
        code["form"], gate.reached = form, asyncio.Event()
        async with opened(store_url, HASTY) as again:
            follow = asyncio.ensure_future(again.resume(flow, run_id))
            await gate.reached.wait()
            follow.cancel()
    code["form"] = 3
    gate.open()
    assert (await engine.resume(flow, run_id)).output == [1, 2]


async def test_rule_a_completed_nested_workflow_is_one_operation_whose_inner_records_are_skipped(
    engine: Engine, store_url: str
):
    """After its end its inner code may change: nobody asks for what is inside."""
    ran: list[str] = []
    code = {"is_new": False}
    gate = Gate()

    @step
    async def inner_step(name: str) -> str:
        ran.append(name)
        return name

    @workflow
    async def inner(name: str) -> str:
        return await inner_step("new " + name if code["is_new"] else name)

    @step
    async def last() -> None:
        await gate.stand()

    @workflow
    async def flow() -> str:
        found = await inner("a")
        await last()
        return found

    async with opened(store_url, HASTY) as first:
        run_id = await first.start(flow)
        await gate.reached.wait()
    code["is_new"] = True
    gate.open()
    result = await engine.resume(flow, run_id)

    assert result.output == "a"
    assert ran == ["a"]
    kinds = [r.kind for r in await records_of(engine, run_id) if r.type == "completed"]
    assert kinds == ["step", "workflow", "step"]


async def test_rule_an_unfinished_nested_workflow_is_verified_inside_too(engine: Engine, store_url: str):
    code = {"amount": 1}
    gate = Gate()

    @workflow
    async def inner(n: int) -> int:
        found = await number(code["amount"])
        await gate_step()
        return found

    @step
    async def gate_step() -> None:
        await gate.stand()

    @workflow
    async def flow() -> int:
        return await inner(5)

    async with opened(store_url, HASTY) as first:
        run_id = await first.start(flow)
        await gate.reached.wait()
    code["amount"] = 2
    with pytest.raises(DurableRecoveryError, match="0/0"):
        await engine.resume(flow, run_id)


async def test_rule_calls_inside_a_body_are_recorded_under_the_body(engine: Engine):
    """A step that calls steps: the inner ones are looked up under the outer one's key."""

    @step
    async def outer() -> list[int]:
        return [await number(1), await number(2)]

    @workflow
    async def flow() -> list[int]:
        return await outer()

    result = await engine.run(flow)

    assert result.output == [1, 2]
    assert list((await journal_of(engine, result.execution_id)).operations) == ["0", "0!/0", "0!/1"]
