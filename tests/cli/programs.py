"""Runners for the tests of the command line, found there as `tests.cli.programs:<name>` and as a file."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, ClassVar

import perdure


@perdure.step(name="cli_pay")
async def pay(order: dict[str, Any]) -> str:
    if path := order.get("ledger"):
        with open(path, "a") as ledger:
            ledger.write(f"{order['id']}\n")
    return f"paid {order['amount']} for {order['id']}"


@perdure.workflow(name="cli_refund")
async def refund(order: dict[str, Any]) -> dict[str, Any]:
    answer = perdure.interrupt("Approve this refund?", {"id": order["id"], "amount": order["amount"]})
    if not answer.approved:
        return {"status": "denied", "said": answer.metadata}
    return {"status": await pay(order), "said": answer.metadata}


@perdure.workflow(name="cli_two_questions")
async def two_questions(_: dict[str, Any]) -> list[bool]:
    import asyncio

    async def ask(which: str) -> bool:
        return perdure.interrupt(f"Is {which} right?", {"which": which}).approved

    return list(await asyncio.gather(ask("left"), ask("right")))


@perdure.workflow(name="cli_prints")
async def prints(_: str) -> str:
    print("said by the workflow")
    return "done"


@perdure.step(name="cli_flaky")
async def flaky(path: str) -> str:
    if not Path(path).exists():
        raise ValueError("the file is not there yet")
    return "found"


@perdure.workflow(name="cli_fails")
async def fails(path: str) -> str:
    return await flaky(path)


@perdure.step(name="cli_dies", recovery="manual")
async def dies(path: str) -> str:
    """Has its effect, and the first process that runs it dies before anybody records that."""
    with open(path, "a") as ledger:
        ledger.write("done\n")
    if len(Path(path).read_text().splitlines()) == 1:
        os._exit(9)
    return "done twice"


@perdure.workflow(name="cli_in_doubt")
async def in_doubt(path: str) -> str:
    return await dies(path)


@perdure.step(name="cli_dies_safely")
async def dies_once(path: str) -> str:
    with open(path, "a") as ledger:
        ledger.write("begun\n")
    if len(Path(path).read_text().splitlines()) == 1:
        os._exit(9)
    return "got through"


@perdure.workflow(name="cli_crashes")
async def crashes(path: str) -> str:
    return await dies_once(path)


@perdure.step(name="cli_waits")
async def wait_for_line(path: str) -> str:
    """Say that it has begun, and wait for somebody to write into a named pipe."""
    import asyncio

    print("begun", file=sys.stderr, flush=True)
    return await asyncio.to_thread(lambda: Path(path).read_text())


@perdure.workflow(name="cli_waiting")
async def waiting(path: str) -> str:
    return await wait_for_line(path)


# --- chains -----------------------------------------------------------------------------------------------


def load(order_id: str) -> dict[str, Any]:
    return {"items": [{"sku": "a", "price": 5}, {"sku": "b", "price": 7}], "total": 12}


def ship(total: int, items: list[dict[str, Any]], note: str = "no note") -> str:
    return f"shipped {','.join(item['sku'] for item in items)} for {total} ({note})"


def _order_chain() -> perdure.Chain:
    keys = {"total": {"type": "integer"}, "note": {"type": "string"}}
    chain = perdure.Chain("cli_order", state_schema={"type": "object", "properties": keys, "required": ["order_id"]})
    chain.add_node("load", fn=load)
    chain.add_node("approve", type="hitl", reason="Ship this?", context={"total": "{{state.total}}"})
    chain.add_node("ship", fn=ship, output_key="shipped")
    chain.add_node("refuse", fn=lambda: "refused")
    chain.connect("load", "approve")
    chain.connect("approve", "ship", condition="state.approve.approved")
    return chain.connect("approve", "refuse")


order = _order_chain()


def _nested_chain() -> perdure.Chain:
    """Goes round: a turn asks from inside a chain that shares its state, and one that does not."""
    sharing = perdure.Chain("cli_sharing")
    sharing.add_node("grow", fn=lambda log: {"log": [*log, {"from": "inside"}]})
    sharing.add_node("ask", type="hitl", reason="Again?")
    sharing.connect("grow", "ask")
    apart = perdure.Chain("cli_apart")
    apart.add_node("look", fn=lambda count: {"log": ["of its own"], "count": count * 10})
    apart.add_node("ask", type="hitl", reason="Apart?")
    apart.connect("look", "ask")
    chain = perdure.Chain("cli_nested")
    chain.add_node("begin", fn=lambda: {"log": [{"from": "outside"}], "count": 1})
    chain.add_node("share", agent=sharing)
    chain.add_node("apart", agent=apart, input_mapping={"count": "{{state.count}}"})
    chain.add_node("turn", fn=lambda count: {"count": count + 1})
    chain.connect("begin", "share")
    chain.connect("share", "apart")
    chain.connect("apart", "turn")
    return chain.connect("turn", "turn", max_iterations=5, exit_condition="state.count >= 3")


nested = _nested_chain()


def obey(path: str) -> str:
    """Do what the file says: end the process, or end well. Without a file it fails."""
    if Path(path).read_text() == "die":
        os._exit(9)
    return "done"


obeying = perdure.Chain("cli_obeying")
obeying.add_node("begin", fn=lambda: {"both": {"left": 0, "right": 0}})
obeying.add_node("work", fn=obey).connect("begin", "work")

branching = perdure.Chain("cli_branching").add_node("begin", fn=lambda: None)
for side in ("left", "right"):
    branching.add_node(side, fn=lambda side=side: {side: {"n": 1}})
    branching.add_node(f"ask_{side}", type="hitl", reason=side)
    branching.connect("begin", side).connect(side, f"ask_{side}")
malformed = perdure.Chain("cli_malformed").add_node("a", fn=load).connect("a", "b")


def make_refund() -> object:
    return refund


def make_nothing() -> object:
    return None


def needs_an_argument(_: object) -> object:
    return refund


async def make_later() -> object:
    return refund


class Factory:
    """Calling it would make a mark. Nobody may."""

    called: ClassVar[list[str]] = []

    def __init__(self) -> None:
        Factory.called.append("class")

    def __call__(self) -> object:
        Factory.called.append("object")
        return refund


factory = object.__new__(Factory)
a_number = 42
