"""`@idempotent`: the key, the record, and what happens when a process dies between the effect and its
record."""

from __future__ import annotations

import asyncio
import itertools
import threading
import warnings
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.support import shop
from tests.support.child import child

from perdure import (
    DurableRecoveryError,
    Engine,
    IdempotencyError,
    Resume,
    idempotent,
    interrupt,
    open_engine,
    operation_id,
    step,
    workflow,
)

calls: list[Any] = []
"""What bodies were called with, in this test."""


@pytest.fixture(autouse=True)
def _no_calls_yet() -> None:
    calls.clear()


@pytest.fixture
def ledger(tmp_path: Path) -> str:
    return str(tmp_path / "ledger")


@pytest.fixture
async def engine(store_url: str) -> AsyncIterator[Engine]:
    async with open_engine(store_url) as engine:
        yield engine


@idempotent(name="d_charge")
async def charge(amount: Any, currency: str = "EUR") -> Any:
    calls.append((amount, currency))
    return {"amount": amount, "n": len(calls)}


@idempotent(name="d_refund")
async def refund(amount: Any, currency: str = "EUR") -> Any:
    calls.append(("refund", amount))
    return len(calls)


# --- the key ----------------------------------------------------------------------------------------------


async def test_peer_D_forms_of_one_call_are_one_key(engine: Engine) -> None:
    """Positional, keyword and defaulted arguments of the same call: the body runs once."""

    @workflow
    async def forms(_: None) -> list[Any]:
        return [
            await charge(5),
            await charge(amount=5),
            await charge(5, "EUR"),
            await charge(currency="EUR", amount=5),
        ]

    result = await engine.run(forms)
    assert calls == [(5, "EUR")]
    assert result.output == [{"amount": 5, "n": 1}] * 4


async def test_peer_D_equal_looking_arguments_are_different_keys(engine: Engine) -> None:
    """1, True, "1" and 1.0 are four calls."""

    @workflow
    async def alike(_: None) -> None:
        for value in (1, True, "1", 1.0):
            await charge(value)

    await engine.run(alike)
    assert [(type(amount), amount) for amount, _ in calls] == [
        (int, 1),
        (bool, True),
        (str, "1"),
        (float, 1.0),
    ]


async def test_peer_D_key_is_scoped_by_function_and_run(engine: Engine) -> None:
    """Equal arguments of another function, or in another run, are another key."""

    @workflow
    async def two_functions(_: None) -> None:
        await charge(5)
        await refund(5)

    await engine.run(two_functions)
    await engine.run(two_functions)
    assert calls == [(5, "EUR"), ("refund", 5)] * 2


async def test_peer_D_key_fn_decides_and_is_scoped(engine: Engine) -> None:
    """`key_fn` names the key among calls of its function; two functions with one key string do not share."""

    @idempotent(key_fn=lambda order: order["id"], name="d_by_id")
    async def by_id(order: dict[str, Any]) -> int:
        calls.append(("by_id", order["n"]))
        return order["n"]

    @idempotent(key_fn=lambda order: order["id"], name="d_by_id_too")
    async def by_id_too(order: dict[str, Any]) -> int:
        calls.append(("by_id_too", order["n"]))
        return order["n"]

    @workflow
    async def keyed(_: None) -> list[int]:
        one, two = {"id": "x", "n": 1}, {"id": "x", "n": 2}
        return [await by_id(one), await by_id(two), await by_id_too(two)]

    result = await engine.run(keyed)
    assert result.output == [1, 1, 2]
    assert calls == [("by_id", 1), ("by_id_too", 2)]


class _Opaque:
    """An object whose only identity is its address."""


async def test_peer_D_unstable_argument_raises_before_the_body(engine: Engine) -> None:
    """An object by address or an open file has no key: the call raises, the body does not run."""

    @workflow
    async def unstable(_: None) -> list[str]:
        seen = []
        for value in (_Opaque(), open(__file__), lambda: None, threading.Lock()):  # noqa: SIM115
            try:
                await charge(value)
            except IdempotencyError as error:
                seen.append(str(error))
            finally:
                getattr(value, "close", lambda: None)()
        return seen

    result = await engine.run(unstable)
    assert len(result.output) == 4
    assert all("d_charge" in text for text in result.output)
    assert calls == []


class _Account:
    def __init__(self, number: str) -> None:
        self.number = number

    def __idempotency_key__(self) -> str:
        return self.number

    @idempotent(name="d_account_debit")
    async def debit(self, amount: int) -> int:
        calls.append((self.number, amount))
        return amount


class _Nameless:
    @idempotent(name="d_nameless_debit")
    async def debit(self, amount: int) -> int:
        calls.append(amount)
        return amount


async def test_peer_D_self_counts_through_its_declared_key(engine: Engine) -> None:
    """Two objects with one declared key are one; another key is another call; no declared key is an error."""

    @workflow
    async def methods(_: None) -> str:
        for account in (_Account("a"), _Account("a"), _Account("b")):
            await account.debit(5)
        try:
            await _Nameless().debit(5)
        except IdempotencyError as error:
            return str(error)
        return "no error"

    result = await engine.run(methods)
    assert "_Nameless" in result.output
    assert calls == [("a", 5), ("b", 5)]


def test_peer_D_lambdas_and_closures_raise_at_decoration() -> None:
    """What a function closes over is not part of its key, so it needs a `key_fn` or a name."""
    captured = object()

    def closes_over(amount: int) -> Any:
        return captured, amount

    for function in (lambda amount: amount, closes_over):
        with pytest.raises(IdempotencyError):
            idempotent(function)
        assert idempotent(function, key_fn=str, name=f"d_{function.__name__}") is not None


async def test_peer_D_recursion_on_one_key_raises(engine: Engine) -> None:
    """A body that calls itself with its own key cannot wait for itself."""

    @workflow
    async def recursive(_: None) -> str:
        try:
            return await _recurse(3)
        except IdempotencyError as error:
            return str(error)

    result = await engine.run(recursive)
    assert "calls itself" in result.output
    assert calls == [3]


@idempotent(name="d_recurse", recovery="idempotent")
async def _recurse(n: int) -> str:
    calls.append(n)
    return await _recurse(n)


# --- one body, one record ---------------------------------------------------------------------------------


@pytest.mark.parametrize("is_in_step", [False, True], ids=["workflow", "body"])
async def test_peer_D_concurrent_calls_share_one_body(engine: Engine, is_in_step: bool) -> None:
    """Ten calls at once with one key: the body runs once and all get its outcome."""

    async def ten() -> list[Any]:
        return list(await asyncio.gather(*(charge(5) for _ in range(10))))

    @workflow
    async def concurrently(_: None) -> list[Any]:
        return await step(ten) if is_in_step else await ten()

    result = await engine.run(concurrently)
    assert calls == [(5, "EUR")]
    assert result.output == [{"amount": 5, "n": 1}] * 10


@idempotent(name="d_sync_charge")
def sync_charge(amount: int) -> int:
    calls.append((amount, threading.current_thread() is threading.main_thread()))
    return amount * 2


async def test_peer_D_threads_share_one_body(engine: Engine) -> None:
    """A sync function from several threads of one step: the run is found through the context, the body
    runs once."""

    async def from_threads() -> list[int]:
        return list(await asyncio.gather(*(asyncio.to_thread(sync_charge, 5) for _ in range(4))))

    @workflow
    async def threaded(_: None) -> list[int]:
        return await step(from_threads)

    result = await engine.run(threaded)
    assert result.output == [10] * 4
    assert calls == [(5, False)]


async def test_peer_D_sync_call_in_workflow_and_in_sync_step(engine: Engine) -> None:
    """A sync function called directly, and from a sync step: one key, one body."""

    def in_step() -> int:
        return sync_charge(7)

    @workflow
    async def both(_: None) -> list[int]:
        return [sync_charge(7), await step(in_step), sync_charge(amount=7)]

    result = await engine.run(both)
    assert result.output == [14] * 3
    assert len(calls) == 1


def test_peer_D_sync_call_on_the_loop_warns_once(store_url: str) -> None:
    """On the loop's own thread it blocks for its commits: it works, and says so once."""

    async def on_the_loop() -> list[int]:
        return [sync_charge(8), sync_charge(8)]

    @workflow
    async def blocks() -> list[int]:
        return await step(on_the_loop)

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("default")  # as in a program: once for a place
        result = blocks.run(store=store_url)
    assert result.output == [16, 16]
    assert len(calls) == 1
    assert [w.category for w in warned if "d_sync_charge" in str(w.message)] == [RuntimeWarning]


async def test_peer_D_outside_a_run_the_body_simply_runs() -> None:
    """No run, no record: each call runs the body."""
    assert [await charge(5), await charge(5)] == [{"amount": 5, "n": 1}, {"amount": 5, "n": 2}]


async def test_peer_D_thread_without_a_run_warns_once(engine: Engine) -> None:
    """A plain thread, which has no run in its context, while runs are active: the body runs, and it is
    said once."""

    @idempotent(name="d_lost_charge")
    def lost_charge(amount: int) -> int:
        calls.append(amount)
        return amount

    def in_a_plain_thread() -> None:
        for _ in range(2):
            thread = threading.Thread(target=lost_charge, args=(5,))
            thread.start()
            thread.join()

    @workflow
    async def loses_its_context(_: None) -> None:
        await step(in_a_plain_thread)

    with pytest.warns(RuntimeWarning, match="d_lost_charge") as warned:
        await engine.run(loses_its_context)
    assert calls == [5, 5]
    assert len(warned) == 1


async def test_peer_D_none_is_a_result(engine: Engine) -> None:
    """A stored None is a hit, not a miss."""

    @workflow
    async def none_twice(_: None) -> list[Any]:
        return [await _returns_none("x"), await _returns_none("x")]

    result = await engine.run(none_twice)
    assert result.output == [None, None]
    assert calls == ["x"]


@idempotent(name="d_none")
async def _returns_none(value: str) -> None:
    calls.append(value)


async def test_peer_D_first_call_and_hit_return_the_same(engine: Engine) -> None:
    """Both are the decoded record, so that a replay cannot differ; a change of one is not a change of the
    other."""

    @workflow
    async def twice(_: None) -> list[Any]:
        first = await _returns_items("x")
        first["items"].append("changed")
        return [first, await _returns_items("x")]

    result = await engine.run(twice)
    assert result.output == [{"items": [1, (2, 3), "changed"]}, {"items": [1, (2, 3)]}]


@idempotent(name="d_items")
async def _returns_items(value: str) -> dict[str, Any]:
    return {"items": [1, (2, 3)]}


async def test_peer_D_after_an_exception_the_body_runs_again_under_its_id(engine: Engine) -> None:
    """Only values are recorded for a key: inside a step the next call tries again, under the same
    operation id."""

    async def tries_thrice() -> str:
        for _ in range(2):
            try:
                await _flaky("x")
            except ConnectionError:
                continue
        return await _flaky("x")

    @workflow
    async def flaky_run(_: None) -> str:
        return await step(tries_thrice)

    result = await engine.run(flaky_run)
    assert result.output == "sent"
    assert len(calls) == 3
    assert len(set(calls)) == 1


@idempotent(name="d_flaky")
async def _flaky(value: str) -> str:
    calls.append(operation_id())
    if len(calls) < 3:
        raise ConnectionError("no answer")
    return "sent"


async def test_peer_D_question_inside_an_idempotent_body(engine: Engine) -> None:
    """A body that asks pauses the run and runs again from its top after the answer; the value is recorded
    once."""

    @workflow
    async def asks(_: None) -> list[Any]:
        return [await _asks_and_pays(5), await _asks_and_pays(5)]

    paused = await engine.run(asks)
    assert paused.status == "paused"
    result = await engine.resume(asks, paused.execution_id, resume_value=Resume(approved=True))
    assert result.output == [True, True]
    assert calls == [5]


@idempotent(name="d_asks")
async def _asks_and_pays(amount: int) -> bool:
    approved = interrupt("pay?", {"amount": amount}).approved
    calls.append(amount)
    return approved


# --- results that cannot be stored ------------------------------------------------------------------------


@pytest.mark.parametrize("is_in_step", [False, True], ids=["workflow", "body"])
async def test_peer_D_unstorable_result_is_recorded_as_error(engine: Engine, is_in_step: bool) -> None:
    """The effect has happened: it is recorded as completed with `IdempotencyError`, and never repeated."""

    async def thrice() -> list[str]:
        seen = []
        for _ in range(3):
            try:
                await _returns_unstorable(5)
            except IdempotencyError as error:
                seen.append(str(error))
        return seen

    @workflow
    async def unstorable(_: None) -> list[str]:
        return await step(thrice) if is_in_step else await thrice()

    result = await engine.run(unstorable)
    assert len(result.output) == 3
    assert calls == [5]


async def test_peer_D_retry_does_not_repeat_an_unstorable_result(engine: Engine) -> None:
    """Nor does a new attempt of the run."""

    @workflow
    async def fails_unstorable(_: None) -> None:
        await _returns_unstorable(6)

    for attempt in (engine.run, engine.retry):
        options: dict[str, Any] = {"execution_id": "d_unstorable"}
        with pytest.raises(IdempotencyError):
            await attempt(fails_unstorable, **options)
    assert calls == [6]


@idempotent(name="d_unstorable")
async def _returns_unstorable(amount: int) -> Any:
    calls.append(amount)
    return {"socket": object()}


async def test_peer_D_generator_is_refused_before_it_is_consumed(engine: Engine) -> None:
    """A generator or an open file is no value: refused, with nothing taken out of it."""
    made: list[Any] = []

    @idempotent(name="d_generator", key_fn=str)
    async def returns_generator(kind: str) -> Any:
        made.append(itertools.count() if kind == "count" else (n for n in (made.append(n) or n for n in range(3))))
        return made[0]

    @workflow
    async def generators(_: None) -> str:
        try:
            await returns_generator("generator")
        except IdempotencyError as error:
            return str(error)
        return "no error"

    result = await engine.run(generators)
    assert "generator" in result.output
    assert len(made) == 1
    assert next(made[0]) == 0


# --- crashes ----------------------------------------------------------------------------------------------


async def test_peer_D_key_is_stable_across_processes(store_url: str, ledger: str) -> None:
    """Paid in one process, killed after the record: another process finds the key and does not pay again."""
    with child(
        "run", store_url, hold=("before receipt",), runner="shop_pay_once", execution_id="d",
        input={"ledger": ledger, "amount": 5},
    ) as first:  # fmt: skip
        await asyncio.to_thread(first.expect, "holding before receipt")
        first.kill()
    async with open_engine(store_url) as engine:
        result = await engine.resume(shop.pay_once, "d")
    assert result.output == 5
    assert shop.effects(ledger) == ["pay 5", "receipt"]


@pytest.mark.parametrize("place", ["before pay", "after pay"])
async def test_peer_D_manual_crash_inside_stops_for_a_person(store_url: str, ledger: str, place: str) -> None:
    """Killed inside a `manual` body: in doubt, whatever it had done; only a person's decision repeats it,
    under the same id."""
    with child(
        "run", store_url, hold=(place,), runner="shop_pay_once", execution_id="d",
        input={"ledger": ledger, "amount": 5},
    ) as first:  # fmt: skip
        await asyncio.to_thread(first.expect, f"holding {place}")
        first.kill()
    done = 0 if place == "before pay" else 1
    async with open_engine(store_url) as engine:
        for _ in range(2):
            with pytest.raises(DurableRecoveryError) as doubt:
                await engine.resume(shop.pay_once, "d")
            assert doubt.value.operation_id
        assert len(shop.entries(ledger)) == done
        row = await engine.store.run_get("d")
        assert row is not None
        assert (row.status, row.blocked_operation) == ("needs_attention", doubt.value.operation_id)
        result = await engine.resume(shop.pay_once, "d", repeat_operation=doubt.value.operation_id)
    assert result.output == 5
    paid = [entry for entry in shop.entries(ledger) if entry["what"] == "pay 5"]
    assert len(paid) == done + 1
    assert len({entry["operation"] for entry in paid}) == 1


@pytest.mark.parametrize("place", ["before pay", "after pay"])
async def test_peer_D_idempotent_crash_inside_repeats_under_the_same_id(
    store_url: str, ledger: str, place: str
) -> None:
    """Killed inside a body whose provider knows the id: it runs again by itself, and the ids are equal."""
    with child(
        "run", store_url, hold=(place,), runner="shop_pay_again_run", execution_id="d",
        input={"ledger": ledger, "amount": 5},
    ) as first:  # fmt: skip
        await asyncio.to_thread(first.expect, f"holding {place}")
        first.kill()
    async with open_engine(store_url) as engine:
        result = await engine.resume(shop.pay_again_run, "d")
    assert result.output == 5
    paid = [entry for entry in shop.entries(ledger) if entry["what"] == "pay 5"]
    assert len(paid) == (1 if place == "before pay" else 2)
    assert len({entry["operation"] for entry in paid}) == 1


async def test_peer_D_fork_shares_what_was_recorded_before_it(engine: Engine) -> None:
    """A fork finds the keys recorded up to its point, and is a new execution after it."""

    @workflow
    async def pays_around(_: None) -> list[Any]:
        before = await charge("before")
        approved = interrupt("go?", {}).approved
        return [before["n"], approved, (await charge("before"))["n"], (await charge("after"))["n"]]

    run_id = (await engine.run(pays_around)).execution_id
    fork = await engine.fork(pays_around, run_id)
    original = await engine.resume(pays_around, run_id, resume_value=Resume(approved=True))
    forked = await engine.resume(pays_around, fork.execution_id, resume_value=Resume(approved=False))
    assert original.output == [1, True, 1, 2]
    assert forked.output == [1, False, 1, 3]
    assert [amount for amount, _ in calls] == ["before", "after", "after"]
