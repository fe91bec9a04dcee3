"""Idempotent effects: never a weaker key, never a mark that blocks for ever or is freed too early, never
somebody else's result."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.support import shop
from tests.support.child import child

from perdure import DurableRecoveryError, IdempotencyError, RunBusy, idempotent, open_engine, step, workflow


@pytest.fixture
def ledger(tmp_path: Path) -> str:
    return str(tmp_path / "ledger")


class _Card:
    def __init__(self, number: str) -> None:
        self.number = number

    __hash__ = None  # type: ignore[assignment]


_paid: list[str] = []


@idempotent(name="i1_pay")
async def _pay(card: Any, amount: int) -> str:
    _paid.append(card.number)
    return f"{card.number}: {amount}"


async def test_I1_key_that_cannot_be_computed_is_an_error(store_url: str) -> None:
    """Two calls with objects that have no stable form: both refused, no result is shared, nothing runs."""
    _paid.clear()

    @workflow
    async def i1_pays(_: None) -> list[str]:
        said = []
        for card in (_Card("a"), _Card("b")):
            try:
                said.append(await _pay(card, 5))
            except IdempotencyError as error:
                said.append(f"refused: {error}")
        return said

    async with open_engine(store_url) as engine:
        result = await engine.run(i1_pays)
    assert all(text.startswith("refused: ") and "i1_pay" in text for text in result.output)
    assert _paid == []


@pytest.mark.parametrize("place", ["before pay", "after pay", "before receipt"])
@pytest.mark.parametrize("policy", ["manual", "idempotent"])
async def test_I4_kill_after_mark_effect_or_result(store_url: str, ledger: str, place: str, policy: str) -> None:
    """Killed after the mark, after the effect, after the result is stored: the policy decides the first two,
    the third is done.

    The mark never says "in progress" to whoever comes after the death, and no time frees it.
    """
    runner = {"manual": shop.pay_once, "idempotent": shop.pay_again_run}[policy]
    with child(
        "run", store_url, hold=(place,), runner=runner.name, execution_id="i4",
        input={"ledger": ledger, "amount": 5},
    ) as first:  # fmt: skip
        await asyncio.to_thread(first.expect, f"holding {place}")
        first.kill()
    async with open_engine(store_url) as engine:
        await engine.recover([runner])
        row = await engine.store.run_get("i4")
        assert row is not None
        paid = [entry for entry in shop.entries(ledger) if entry["what"] == "pay 5"]
        if policy == "manual" and place != "before receipt":
            assert row.status == "needs_attention"
            assert len(paid) == (place == "after pay")
            with pytest.raises(DurableRecoveryError):
                await engine.resume(runner, "i4")
            return
    assert row.status == "completed"
    assert len(paid) == (2 if place == "after pay" else 1)
    assert len({entry["operation"] for entry in paid}) == 1
    assert shop.effects(ledger)[-1] == "receipt"


async def test_I4_second_worker_waits_for_a_live_first(store_url: str, ledger: str) -> None:
    """While the owner of the mark lives, another worker is told so or waits; the effect happens once and
    both get it."""
    with child(
        "run", store_url, hold=("before pay",), runner="shop_pay_once", execution_id="i4",
        input={"ledger": ledger, "amount": 5},
    ) as first:  # fmt: skip
        await asyncio.to_thread(first.expect, "holding before pay")
        async with open_engine(store_url) as engine:
            with pytest.raises(RunBusy):
                await engine.resume(shop.pay_once, "i4")
            waiting = asyncio.create_task(engine.run(shop.pay_once, {"ledger": ledger, "amount": 5}, execution_id="i4"))
            first.go()
            assert (await asyncio.to_thread(first.result))["output"] == 5
            assert (await waiting).output == 5
    assert shop.effects(ledger) == ["pay 5", "receipt"]


_sent: list[tuple[str, str]] = []


@idempotent(name="i5_charge", key_fn=lambda key: key)
async def _charge(key: str) -> str:
    _sent.append(("charge", key))
    return f"charge {key}"


@idempotent(name="i5_refund", key_fn=lambda key: key)
async def _refund(key: str) -> str:
    _sent.append(("refund", key))
    return f"refund {key}"


async def test_I5_key_is_scoped_by_run_and_operation(store_url: str) -> None:
    """One key in two runs and two operations: four effects, four results."""
    _sent.clear()

    @workflow
    async def i5_pays(_: str) -> list[str]:
        return [await _charge("k"), await _refund("k"), await _charge("k")]

    async with open_engine(store_url) as engine:
        results = [(await engine.run(i5_pays, tenant)).output for tenant in ("ann", "bob")]
    assert results == [["charge k", "refund k", "charge k"]] * 2
    assert _sent == [("charge", "k"), ("refund", "k")] * 2


async def test_I5_failures_are_not_kept_for_the_key(store_url: str) -> None:
    """A failure is not the result that later callers of the key get."""
    attempts: list[int] = []

    @idempotent(name="i5_flaky", key_fn=str)
    async def flaky(key: str) -> int:
        attempts.append(1)
        if len(attempts) == 1:
            raise ConnectionError("once")
        return len(attempts)

    async def tries() -> int:
        try:
            return await flaky("k")
        except ConnectionError:
            return await flaky("k")

    @workflow
    async def i5_tries(_: None) -> int:
        return await step(tries)

    async with open_engine(store_url) as engine:
        assert (await engine.run(i5_tries)).output == 2
