"""Chains for tests that need several processes, run by the command of `tests.support.shop`: effects are lines of a
ledger, bodies may be held at a named place."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from perdure import Chain, idempotent, interrupt
from tests.support import shop
from tests.support.child import Child


def effect(what: str, **result: Any) -> Any:
    """A node's function with an effect, in a thread."""

    def run(ledger: str) -> dict[str, Any]:
        shop.gate(f"before {what}")
        shop.note(ledger, what)
        shop.gate(f"after {what}")
        return result

    return run


def in_line(name: str, **functions: Any) -> Chain:
    """Nodes one after the other."""
    chain, before = Chain(name), ""
    for node_id, function in functions.items():
        chain.add_node(node_id, **function) if isinstance(function, dict) else chain.add_node(node_id, fn=function)
        if before:
            chain.connect(before, node_id)
        before = node_id
    return chain


def _ask(amount: int = 10) -> dict[str, Any]:
    answer = interrupt("pay?", {"amount": amount})
    return {"paid": answer.approved, **answer.metadata}


def _use(tool: str) -> str:
    return f"{tool}:{interrupt('use the tool?', {'tool': tool}).metadata.get('note')}"


@idempotent(name="chain_shop_pay", recovery="idempotent")
def _pay(ledger: str, amount: int) -> int:
    shop.gate("before pay")
    shop.note(ledger, f"pay {amount}")
    return amount


three_effects = in_line("chain_three", one=effect("one"), two=effect("two"), three=effect("three"))
approve = in_line(
    "chain_approve", prepare=effect("prepare"), ask=_ask, pay=effect("pay"), receipt=effect("receipt", done=True)
)
three_questions = Chain("chain_questions").add_node("use", type="parallel", over="{{state.tools}}", fn=_use)
pay_again = in_line("chain_pay_again", pay=_pay, receipt=effect("receipt", done=True))
inner = in_line("chain_inner", charge=effect("charge"), ask=_ask)
middle = in_line("chain_middle", reserve=effect("reserve"), inner={"agent": inner}, note=effect("note"))
outer = in_line("chain_outer", open=effect("open"), middle={"agent": middle}, close=effect("close"))


class Asking:
    """A user's agent that asks before it answers."""

    name = "asking"

    async def arun(self, value: dict[str, Any]) -> str:
        answer = interrupt("send?", {"to": value["to"]})
        return f"sent to {value['to']}: {answer.approved}"


with_agent = in_line("chain_agent", draft=effect("draft"), agent={"agent": Asking()}, archive=effect("archive"))

CHAINS = (three_effects, approve, three_questions, pay_again, inner, middle, outer, with_agent)
shop.RUNNERS.update({chain.name: chain for chain in CHAINS})  # type: ignore[dict-item]


@contextmanager
def child(verb: str, url: str, *, hold: tuple[str, ...] = (), **options: Any) -> Iterator[Child]:
    """A process that knows these chains, gone at the end of the block, whatever happened in it."""
    process = Child("tests.support.chain_shop", verb, url, json.dumps(options), hold=hold)
    try:
        yield process
    finally:
        process.close()


if __name__ == "__main__":
    # One module under one name, so that names of functions are claimed once.
    from tests.support import chain_shop

    chain_shop.shop.main()
