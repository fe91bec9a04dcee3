"""The programs of the explorer that are chains: each shows one shape of a graph, a failure in it or a question.

Nodes act on the ledger like the steps of the other programs. What a node consumes comes from the state through its
`input_mapping`, so a checkpoint's input says the same as the ledger.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from perdure.core.retry import RetryPolicy
from perdure.flow.asking import interrupt
from perdure.flow.chain import Chain
from perdure.flow.nodes import NodeType
from perdure.testing.ledger import ledger
from perdure.testing.programs import (
    INPUT,
    Program,
    assemble,
    buy,
    charge,
    flaky,
    hang,
    inner,
    look,
    pay,
    put,
    put_after,
    put_in_thread,
    token_of,
)

STATE = {"value": INPUT}


def takes(label: str, *names: str, **more: Any) -> dict[str, Any]:
    """What an effect of this label is called with: it consumes what the state has under these names."""
    return {"label": label, "consumed": [f"{{{{state.{name}}}}}" for name in names], **more}


def _lead(chain: Chain, *ids: str) -> Chain:
    """Connect one after the other."""
    for source, target in pairwise(ids):
        chain.connect(source, target)
    return chain


def _effect(chain: Chain, id: str, *names: str, fn: Any = put, **options: Any) -> Chain:
    return chain.add_node(id, fn=fn, input_mapping=takes(id.replace("_", "-"), *names), **options)


# --- bodies of nodes that are more than one effect ------------------------------------------------------


async def ask_and_put(label: str, consumed: list[str], reasons: list[str]) -> str:
    """Ask, one question after the other, and act on the answers."""
    tokens = list(consumed)
    for reason in reasons:
        tokens.append(token_of(interrupt(reason, {"of": label})))
    return ledger().effect(label, tokens)


def ask_in_thread(label: str, consumed: list[str], reasons: list[str]) -> str:
    tokens = [*consumed, *(token_of(interrupt(reason, {"of": label})) for reason in reasons)]
    return ledger().effect(label, tokens)


async def logged(label: str, consumed: list[str]) -> dict[str, Any]:
    """An effect that is also in the log of its branch."""
    token = ledger().effect(label, consumed)
    return {label: token, "log": [token]}


async def turn(consumed: list[str], count: int) -> dict[str, Any]:
    """One time round: the counter is in the state."""
    return {"count": count + 1, "token": ledger().effect(f"turn-{count}", consumed)}


async def per_item(item: str, consumed: list[str], times: int) -> str:
    """The item `bad` fails, so many times."""
    if item == "bad":
        ledger().fail(f"item-{item}", consumed, times)
    return ledger().effect(f"item-{item}", consumed)


def _is_large(state: dict[str, Any]) -> bool:
    ledger().falter("is it large?")
    return state["size"] > 5


# --- one thing after the other --------------------------------------------------------------------------

linear = Chain("chain_linear")
_effect(linear, "first", "value", fn=look)
_effect(linear, "second", "first")
_BOTH = {"first": "{{state.first}}", "second": "{{state.second}}"}
linear.add_node("both", type="transformer", template=_BOTH, output_key="both")
_effect(linear, "third", "both.first", "both.second", fn=pay)
_effect(linear, "fourth", "third", fn=put_in_thread, output_key="four")
_effect(linear, "last", "four", fn=look)
_lead(linear, "first", "second", "both", "third", "fourth", "last")

cycle = Chain("chain_cycle", {"value": str, "token": str, "count": int})
cycle.add_node("turn", fn=turn, input_mapping={"consumed": ["{{state.token}}"], "count": "{{state.count}}"})
cycle.add_node("look_again", fn=put, input_mapping=takes("look-{{state.count}}", "token"))
_effect(cycle, "after", "token", "look_again")
cycle.connect("turn", "look_again").connect("look_again", "after")
cycle.connect("look_again", "turn", max_iterations=5, exit_condition="state.count >= 3")

deep = Chain("chain_deep")
_effect(deep, "deep_first", "middle_first")
deep.add_node("deep_ask", type=NodeType.HITL, reason="deep?", context={"of": "{{state.middle_first}}"})
_effect(deep, "deep_last", "deep_first", "deep_ask.metadata.token", fn=pay)
_lead(deep, "deep_first", "deep_ask", "deep_last")

middle = Chain("chain_middle")
_effect(middle, "middle_first", "before")
middle.add_node("deep", agent=deep)
_effect(middle, "middle_last", "deep_last")
_lead(middle, "middle_first", "deep", "middle_last")

nested = Chain("chain_nested")
_effect(nested, "before", "value")
nested.add_node("middle", agent=middle)
_effect(nested, "beside", "before")
_effect(nested, "after", "middle_last", "beside")
nested.connect("before", "middle").connect("before", "beside").connect("middle", "after").connect("beside", "after")

with_workflow = Chain("chain_with_workflow")
_effect(with_workflow, "before", "value")
with_workflow.add_node("inner", agent=inner, input="{{state.before}}")
_effect(with_workflow, "after", "inner")
_lead(with_workflow, "before", "inner", "after")

in_bodies = Chain("chain_in_bodies")
in_bodies.add_node("charge", fn=charge, input_mapping=takes("charge", "value"))
in_bodies.add_node("buy", fn=buy, input_mapping=takes("buy", "value"))
in_bodies.add_node("whole", fn=assemble, input_mapping=takes("whole", "charge", "buy"))
_lead(in_bodies, "charge", "buy", "whole")

# --- several things at once -----------------------------------------------------------------------------

fan = Chain("chain_fan", reducers={"log": operator.add})
_effect(fan, "split", "value")
for side in ("left", "middle", "right"):
    _effect(fan, side, "split", fn=logged)
    fan.connect("split", side)
_effect(fan, "right_second", "right", fn=put_in_thread)
_effect(fan, "join", "log[0]", "log[1]", "log[2]", "right_second", fn=pay)
fan.connect("right", "right_second")
for side in ("right_second", "left", "middle"):
    fan.connect(side, "join")

diamond = Chain("chain_diamond")
_effect(diamond, "top", "value")
diamond.add_node("asking", fn=ask_in_thread, input_mapping=takes("asking", "top", reasons=["go on?"]))
_effect(diamond, "plain", "top")
_effect(diamond, "plain_second", "plain")
_effect(diamond, "bottom", "asking", "plain_second", fn=pay)
_lead(diamond, "top", "asking", "bottom")
_lead(diamond, "top", "plain", "plain_second", "bottom")

three = Chain("chain_three_questions")
_effect(three, "before", "value")
_asking = Chain("chain_asking")
_asking.add_node("green_ask", type="hitl", reason="green?")
_effect(_asking, "green", "before", "green_ask.metadata.token")
_lead(_asking, "green_ask", "green")


async def ask_red(before: str) -> str:
    return await ask_and_put("red", [before], ["red?"])


def ask_blue(before: str) -> str:
    return ask_in_thread("blue", [before], ["blue?"])


_BRANCHES = {"red": ask_red, "green": _asking, "blue": ask_blue}
three.add_node("three", type="parallel", branches=_BRANCHES, output_key="three")
_effect(three, "after", "three.red", "three.green", "three.blue")
_lead(three, "before", "three", "after")

mapped = Chain("chain_mapped")
_effect(mapped, "before", "value")
mapped.add_node(
    "each",
    type="parallel",
    over="{{state.items}}",
    fn=per_item,
    input_mapping={"consumed": ["{{state.before}}"], "times": "{{state.times}}"},
    failure_mode="continue",
    max_concurrency=2,
    output_key="each",
)
_effect(mapped, "after", "each[0]", "each[2]")
_lead(mapped, "before", "each", "after")

mapped_again = Chain("chain_mapped_again")
mapped_again.add_node(
    "each",
    type="parallel",
    over="{{state.items}}",
    fn=per_item,
    input_mapping={"consumed": ["{{state.value}}"], "times": "{{state.times}}"},
)
_effect(mapped_again, "after", "each[0]", "each[1]", "each[2]")
_lead(mapped_again, "each", "after")

# --- ways that are taken, and ways that are not ---------------------------------------------------------

routed = Chain("chain_routed")
_effect(routed, "before", "value")
_effect(routed, "large", "before", fn=pay)
_effect(routed, "small", "before", fn=pay)
_effect(routed, "after", "large")
routed.add_node("which", type="condition", conditions=[{"expression": "state.size > 100", "handle": "huge"}])
_effect(routed, "huge", "after")
_effect(routed, "ordinary", "after")
routed.connect("before", "large", condition=_is_large).connect("before", "small")
routed.connect("large", "after").connect("small", "after").connect("after", "which")
routed.connect("which", "huge", label="huge").connect("which", "ordinary", label="default")

refused = Chain("chain_refused")
_effect(refused, "before", "value")
refused.add_node("review", type=NodeType.HITL, reason="review?", context={"before": "{{state.before}}"}, bind=True)
_effect(refused, "approved", "before", fn=pay)
_effect(refused, "refused", "before", "review.metadata.token")
refused.connect("before", "review").connect("review", "approved")
refused.connect("review", "refused", condition="not state.review.approved")

stopped = Chain("chain_stopped")
_effect(stopped, "before", "value")
stopped.add_node("review", type=NodeType.HITL, reason="review?")
_effect(stopped, "never", "before", fn=pay)
_lead(stopped, "before", "review", "never")

# --- questions, changes by people, failures -------------------------------------------------------------

two_questions = Chain("chain_two_questions")
_effect(two_questions, "before", "value")
two_questions.add_node(
    "twice", fn=ask_and_put, input_mapping=takes("twice", "before", reasons=["first?", "second?"]), output_key="two"
)
_effect(two_questions, "after", "two")
_lead(two_questions, "before", "twice", "after")

patched = Chain("chain_patched")
_effect(patched, "before", "value")
patched.add_node("asking", fn=ask_and_put, input_mapping=takes("asking", "before", "given", reasons=["which?"]))
_effect(patched, "plain", "before")
_effect(patched, "after", "asking", "plain", "given")
_lead(patched, "before", "asking", "after")
_lead(patched, "before", "plain", "after")

first_fails = Chain("chain_first_fails")
first_fails.add_node("first", fn=flaky, input_mapping=takes("first", "value", times=1))
_effect(first_fails, "second", "first")
_lead(first_fails, "first", "second")

branches_fail = Chain("chain_branches_fail")
_effect(branches_fail, "before", "value")
for side in ("left", "right"):
    branches_fail.add_node(side, fn=flaky, input_mapping=takes(side, "before", times=1))
    branches_fail.connect("before", side).connect(side, "after")
_effect(branches_fail, "plain", "before")
_effect(branches_fail, "after", "left", "plain", "right", fn=pay)
_lead(branches_fail, "before", "plain", "after")

retried_node = Chain("chain_retried_node")
retried_node.add_node(
    "again",
    fn=flaky,
    input_mapping=takes("again", "value", times=2),
    retries=RetryPolicy(max_attempts=3, initial_delay_s=0.01, jitter=0.0),
)
_effect(retried_node, "after", "again")
_lead(retried_node, "again", "after")

fails = Chain("chain_fails")
_effect(fails, "before", "value")
fails.add_node("doomed", fn=flaky, input_mapping=takes("doomed", "before", times=1000))
_effect(fails, "never", "doomed")
_lead(fails, "before", "doomed", "never")

fast = Chain("chain_fast")
fast.add_node(
    "race",
    type="parallel",
    branches={
        "hangs": _lead(_effect(Chain("chain_hangs"), "hang", "value", fn=hang)),
        "fails": _lead(
            Chain("chain_races")
            .add_node("begun", fn=put_after, input_mapping=takes("begun", "value", other="hang"))
            .add_node("doomed", fn=flaky, input_mapping=takes("doomed", "begun", times=1000)),
            "begun",
            "doomed",
        ),
    },
    failure_mode="fail_fast",
)

forked = Chain("chain_forked")
_effect(forked, "before", "value")
forked.add_node("asking", fn=ask_and_put, input_mapping=takes("asking", "before", reasons=["fork?"]))
_effect(forked, "after", "asking", fn=pay)
_lead(forked, "before", "asking", "after")

cancelled = Chain("chain_cancelled")
_effect(cancelled, "before", "value")
cancelled.add_node("asking", fn=ask_and_put, input_mapping=takes("asking", "before", reasons=["never answered?"]))
_lead(cancelled, "before", "asking")


def _program(runner: Chain, **options: Any) -> Program:
    return Program(**{"runner": runner, "value": STATE, **options})


_ITEMS = {**STATE, "items": ["good", "bad", "better"]}

CHAINS: Sequence[Program] = (
    _program(linear),
    _program(fan),
    _program(diamond, answers={"go on?": True}),
    _program(routed, value={**STATE, "size": 9}, is_resumed=True),
    _program(cycle, value={**STATE, "token": INPUT, "count": 0}),
    _program(nested, answers={"deep?": True}),
    _program(two_questions, answers={"first?": True, "second?": False}),
    _program(three, answers={"red?": True, "green?": True, "blue?": False}),
    _program(first_fails, is_retried=True),
    _program(forked, answers={"fork?": True}, is_forked=True),
    _program(refused, answers={"review?": False}),
    _program(stopped, answers={"review?": False}),
    _program(patched, value={**STATE, "given": INPUT}, answers={"which?": True}, patches={"which?": "given"}),
    _program(mapped, value={**_ITEMS, "times": 1000}),
    _program(mapped_again, value={**_ITEMS, "times": 1}, is_retried=True),
    _program(with_workflow, answers={"inner?": True}),
    _program(in_bodies),
    _program(branches_fail, is_resumed=True),
    _program(retried_node),
    _program(fails, ends="failed"),
    _program(fast, ends="failed"),
    _program(cancelled, is_cancelled=True, ends="cancelled"),
)
