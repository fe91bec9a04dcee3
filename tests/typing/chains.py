"""Checked by the type checker, never run: what users write with chains has the types they expect."""

import operator
from collections.abc import AsyncIterator, Iterator
from typing import Any, assert_type

import perdure
from perdure import Chain, ChainResult, FunctionTool, NodeType, Resume, SQLiteCheckpointer, node


@node(output_key="total")
def add(a: int, b: int = 1) -> int:
    return a + b


@node
async def fetch(url: str) -> bytes:
    return url.encode()


@perdure.step(retries=2)
async def price(item: str) -> float:
    return 1.0


@perdure.idempotent
def pay(amount: float) -> str:
    return "paid"


def is_large(state: dict[str, Any]) -> bool:
    return state["amount"] > 100


class Agent:
    name = "agent"

    async def arun(self, value: Any, *, context: Any = None) -> str:
        return str(value)


inner = Chain("inner", {"amount": float}).add_node("price", fn=price)
chain = (
    Chain("orders", checkpointer=SQLiteCheckpointer("orders.db"), reducers={"log": operator.add}, strict_routing=True)
    .add_node("add", node=add)
    .add_node("fetch", node=fetch, input_mapping={"url": "{{state.url}}"})
    .add_node("pay", tool=FunctionTool("pay", pay, "pays"), retries=3, timeout=5.0, errors=[KeyError])
    .add_node("agent", agent=Agent(), input="{{state.total}}", output_schema=str)
    .add_node("in", agent=inner)
    .add_node("ask", type=NodeType.hitl, reason="ok?", context={"total": "{{state.total}}"}, bind=True)
    .add_node("end", type="end", output="{{state.total}}")
    .connect("add", "fetch", condition=is_large, label="large")
    .connect("add", "pay", condition="state.total > 5")
    .connect("fetch", "add", max_iterations=3, exit_condition=is_large)
)
assert_type(chain, Chain)
assert_type(chain.validate(), list[str])
assert_type(chain.to_mermaid(), str)
assert_type(chain.run({"a": 1}), ChainResult)
assert_type(chain.run({"a": 1}, execution_id="r1", context=object(), store="sqlite:///x.db").output, Any)
assert_type(chain.run().final_state, dict[str, Any])
assert_type(chain.run().pending_interrupt, dict[str, Any] | None)
assert_type(chain.run().pending_interrupts, list[dict[str, Any]])
assert_type(chain.execute({}), ChainResult)
assert_type(chain.fork("r1", checkpoint_id="r1:4", input={"a": 2}, modified_state={"b": 1}, new_id="r2"), ChainResult)
assert_type(chain.retry("r1"), ChainResult)
assert_type(chain.cancel("r1", cancelled_by="ann"), str)
assert_type(chain.stream({}, after=3), Iterator[perdure.Event])


async def uses() -> None:
    assert_type(await chain.arun({"a": 1}), ChainResult)
    assert_type(await chain.resume("r1", resume_value=Resume(approved=True)), ChainResult)
    assert_type(await chain.aresume("r1", resume_value={"q": Resume(approved=True)}, interrupt_id=None), ChainResult)
    assert_type(await chain.afork("r1", modified_state={"a": 1}), ChainResult)
    assert_type(await chain.aretry("r1"), ChainResult)
    assert_type(await chain.acancel("r1"), str)
    assert_type(chain.astream({}), AsyncIterator[perdure.Event])


chain.run(5)  # pyright: ignore[reportArgumentType]  # a state is a mapping
chain.add_node("x", type=5)  # pyright: ignore[reportArgumentType]  # a type is a word
chain.connect("a", "b", max_iterations="3")  # pyright: ignore[reportArgumentType]  # a bound is a number
add("x")  # a decorated function keeps being called as it is; its parameters are not checked
