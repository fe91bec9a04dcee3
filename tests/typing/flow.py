"""Checked by the type checker, never run: what users write has the types they expect."""

from datetime import datetime
from typing import assert_type

import perdure
from perdure import Resume, RunResult, Workflow


@perdure.step
async def price(item: str, count: int = 1) -> float:
    return 1.0 * count


@perdure.step
def tax(amount: float) -> float:
    return amount * 0.2


@perdure.step(retries=3, timeout=5.0, recovery="manual", errors=[KeyError])
async def order(item: str) -> str:
    return item


@perdure.step(recovery="safe")
def look(item: str) -> int:
    return len(item)


def plain(amount: float, currency: str) -> str:
    return f"{amount} {currency}"


async def fetch(url: str) -> bytes:
    return url.encode()


@perdure.idempotent
async def pay(amount: float) -> str:
    return "paid"


@perdure.idempotent(recovery="idempotent", key_fn=lambda user, amount: user)
def charge(user: str, amount: float) -> dict[str, float]:
    return {user: amount}


@perdure.workflow
async def purchase(item: str) -> float:
    assert_type(await price(item, count=2), float)
    assert_type(await tax(1.0), float)
    assert_type(await order(item), str)
    assert_type(await look(item), int)
    assert_type(await perdure.step(plain, 1.0, "EUR"), str)
    assert_type(await perdure.step(fetch, "x"), bytes)
    assert_type(await pay(1.0), str)
    assert_type(charge("me", 1.0), dict[str, float])
    assert_type(perdure.interrupt("ok?", {"item": item}), Resume)
    assert_type(perdure.now(), datetime)
    assert_type(perdure.random(), float)
    assert_type(perdure.patched("new"), bool)
    return 1.0


@perdure.workflow(name="outer", version="2")
async def outer(item: str) -> str:
    assert_type(await purchase(item), float)
    return "done"


@perdure.workflow
async def nothing() -> int:
    return 1


assert_type(purchase, Workflow[str, float])
assert_type(outer, Workflow[str, str])
assert_type(nothing, Workflow[None, int])
assert_type(purchase.run("item"), RunResult[float])
assert_type(purchase.run("item").output, float | None)

price(1)  # pyright: ignore[reportArgumentType, reportUnusedCoroutine]  # an argument of the wrong type is found
purchase.run(1)  # pyright: ignore[reportArgumentType]  # so is an input
