"""The programs of the explorer that are workflow functions: each shows one shape of concurrency, failure or question,
with effects in a ledger. Those that are chains are in `chains`.

Every effect consumes tokens that earlier ones returned and returns a fresh one. What is compared afterwards
must not depend on time: where two things race, the program makes sure that the same one wins in every
execution.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from perdure.core.resume import Resume
from perdure.core.retry import RetryPolicy
from perdure.flow.asking import interrupt
from perdure.flow.chain import Chain
from perdure.flow.idempotent import idempotent
from perdure.flow.steps import step
from perdure.flow.values import now, sleep, uuid4
from perdure.flow.workflow import Workflow, workflow
from perdure.testing.ledger import ledger

INPUT = "tok-input"
REFUSED = "-refused"
"""What a refusal adds to the token that came with it."""
COMPOSED = frozenset({"whole", "approved", "buy"})
"""Labels of steps that consume what calls inside them returned, not what they were called with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A workflow or a chain, and what the person does with it: answers by reason, and whether a failure is retried or
    resumed; `ends` is how it ends then.

    `patches`: which keys of a chain's state get a fresh token with the answer to which reason. `shape`: what a random
    chain is made from, since it has to be made again in each process.
    """

    runner: Workflow[Any, Any] | Chain
    value: Any = INPUT
    answers: Mapping[str, bool] = field(default_factory=dict)
    patches: Mapping[str, str] = field(default_factory=dict)
    shape: Any = None
    is_retried: bool = False
    is_resumed: bool = False
    is_forked: bool = False
    is_cancelled: bool = False
    ends: str = "completed"

    @property
    def name(self) -> str:
        return self.runner.name


# --- effects --------------------------------------------------------------------------------------------


@step(name="look", recovery="safe")
async def look(label: str, consumed: list[str]) -> str:
    return ledger().effect(label, consumed)


@step(name="put")
async def put(label: str, consumed: list[str]) -> str:
    return ledger().effect(label, consumed)


@step(name="put_in_thread")
def put_in_thread(label: str, consumed: list[str]) -> str:
    return ledger().effect(label, consumed)


@step(name="pay", recovery="manual")
async def pay(label: str, consumed: list[str]) -> str:
    return ledger().effect(label, consumed)


@step(name="flaky")
async def flaky(label: str, consumed: list[str], times: int) -> str:
    ledger().fail(label, consumed, times)
    return ledger().effect(label, consumed)


@step(name="put_after")
async def put_after(label: str, consumed: list[str], other: str) -> str:
    """Goes on until another effect has happened."""
    while not ledger().has(other):  # noqa: ASYNC110  # the other may act in another process
        await asyncio.sleep(0.002)
    return ledger().effect(label, consumed)


@step(name="hang")
async def hang(label: str, consumed: list[str]) -> str:
    token = ledger().effect(label, consumed)
    await asyncio.Event().wait()
    return token


def token_of(answer: Resume) -> str:
    """What the person gave with the answer; a refusal is told apart."""
    return answer.metadata["token"] if answer.approved else answer.metadata["token"] + REFUSED


async def ask(reason: str) -> str:
    return token_of(interrupt(reason, {"of": reason}))


# --- one thing after the other --------------------------------------------------------------------------


@workflow(name="linear")
async def linear(value: str) -> list[str]:
    first = await look("first", [value])
    second = await look("second", [first])
    third = await put("third", [second, f"tok-uuid-{uuid4().hex}"])
    now()
    fourth = await pay("fourth", [third])
    fifth = await put_in_thread("fifth", [fourth])
    return [first, second, third, fourth, await look("sixth", [fifth])]


@workflow(name="loop")
async def loop(value: str) -> list[str]:
    tokens = [value]
    while len(tokens) < 5:
        tokens.append(await put(f"turn{len(tokens)}", tokens[-2:]))
    return tokens


@workflow(name="two_questions")
async def two_questions(value: str) -> list[str]:
    before = await put("before", [value])
    one = await ask("first?")
    between = await pay("between", [before, one])
    two = await ask("second?")
    return [between, await put("after", [between, two])]


@workflow(name="sleeping")
async def sleeping(value: str) -> list[str]:
    before = await put("before", [value])
    await sleep(0.03)
    between = await put("between", [before])
    await asyncio.sleep(0.02)
    return [before, between, await put("after", [between])]


@workflow(name="inner")
async def inner(value: str) -> str:
    first = await put("inner-first", [value])
    answer = await ask("inner?")
    return await pay("inner-second", [first, answer])


@workflow(name="nested")
async def nested(value: str) -> list[str]:
    before = await put("before", [value])
    middle = await inner(before)
    both = await asyncio.gather(inner_twice(middle), put("beside", [middle]))
    return [middle, *both, await put("after", list(both))]


@workflow(name="inner_twice")
async def inner_twice(value: str) -> str:
    return await put("twice-second", [await put("twice-first", [value])])


# --- several things at once -----------------------------------------------------------------------------


@workflow(name="gather_with_pause")
async def gather_with_pause(value: str) -> list[str]:
    async def asking() -> str:
        before = await put("before", [value])
        return await pay("asked", [before, await ask("go on?")])

    async def plain(label: str) -> str:
        return await put(f"{label}-second", [await put(f"{label}-first", [value])])

    three = await asyncio.gather(plain("left"), asking(), plain("right"))
    return [*three, await put("joined", list(three))]


@workflow(name="group_with_questions")
async def group_with_questions(value: str) -> list[str]:
    async def one(label: str) -> str:
        answer = await ask(f"{label}?")
        return await put(label, [value, answer])

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(label)) for label in ("red", "green", "blue")]
    tokens = [task.result() for task in tasks]
    return [*tokens, await put("joined", tokens)]


@workflow(name="race_of_steps")
async def race_of_steps(value: str) -> list[str]:
    fast = asyncio.create_task(put("fast", [value]))
    slow = asyncio.create_task(put_after("slow", [value], "reaction"))
    done, _ = await asyncio.wait({fast, slow}, return_when=asyncio.FIRST_COMPLETED)
    won = [task.result() for task in (fast, slow) if task in done]
    reaction = await put("reaction", won)
    return [*won, reaction, await put("both", [reaction, await slow])]


@workflow(name="question_loses")
async def question_loses(value: str) -> list[str]:
    return await _race_with_question(value, 0.03)


@workflow(name="question_wins")
async def question_wins(value: str) -> list[str]:
    return await _race_with_question(value, 3600.0)


async def _race_with_question(value: str, timer_s: float) -> list[str]:
    before = await put("before", [value])
    question = asyncio.create_task(ask("in time?"))
    timer = asyncio.create_task(sleep(timer_s))
    done, pending = await asyncio.wait({question, timer}, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    answer = [question.result()] if question in done else []
    return [before, *answer, await pay("after", [before, *answer])]


@workflow(name="timeout")
async def timeout(value: str) -> list[str]:
    before = await put("before", [value])
    hanging = asyncio.create_task(hang("hang", [before]))
    begun = await put_after("begun", [before], "hang")  # so that what is cancelled has always begun
    try:
        async with asyncio.timeout(0.03):
            begun = await hanging
    except TimeoutError:
        begun = await put("instead", [begun])
    return [begun, await put("after", [begun])]


# --- errors ---------------------------------------------------------------------------------------------


@workflow(name="handled_error")
async def handled_error(value: str) -> list[str]:
    before = await put("before", [value])
    try:
        before = await flaky("doomed", [before], 1000)
    except ValueError:
        before = await put("cleanup", [before])
    return [before, await pay("after", [before])]


@workflow(name="failing")
async def failing(value: str) -> list[str]:
    before = await put("before", [value])
    raise ValueError(f"no way on from {len([before])}")


@step(name="assemble", retries=RetryPolicy(max_attempts=3, initial_delay_s=0.01, jitter=0.0))
async def assemble(label: str, consumed: list[str]) -> str:
    one = await put("part-one", consumed)
    two = await flaky("part-two", [one], 1)
    ledger().fail(label, [one, two], 1)
    return ledger().effect(label, [one, two])


@workflow(name="retried_step")
async def retried_step(value: str) -> list[str]:
    whole = await assemble("whole", [value])
    return [whole, await put("after", [whole])]


@workflow(name="failing_branches")
async def failing_branches(value: str) -> list[str]:
    before = await put("before", [value])
    three = await asyncio.gather(flaky("left", [before], 1), put("middle", [before]), flaky("right", [before], 1))
    return [*three, await pay("joined", list(three))]


# --- forks, keys, questions in bodies -------------------------------------------------------------------


@workflow(name="forked")
async def forked(value: str) -> list[str]:
    before = await put("before", [value])
    answer = await ask("fork?")
    after = await put("after", [before, answer])
    return [before, after, await pay("end", [after])]


@workflow(name="cancelled")
async def cancelled(value: str) -> list[str]:
    before = await put("before", [value])
    return [await put("never", [before, await ask("never answered?")])]


@idempotent(name="charge")
async def charge(label: str, consumed: list[str]) -> str:
    return ledger().effect(label, consumed)


@idempotent(name="refund", recovery="idempotent")
async def refund(label: str, consumed: list[str]) -> str:
    return ledger().effect(label, consumed)


@step(name="buy")
async def buy(label: str, consumed: list[str]) -> str:
    known = await charge("charge", consumed)
    fresh = await refund("refund-in-step", [known])
    return ledger().effect(label, [known, fresh])


@workflow(name="keyed")
async def keyed(value: str) -> list[str]:
    before = await put("before", [value])
    first = await charge("charge", [before])
    again = await charge("charge", [before])
    both = await asyncio.gather(refund("refund", [first]), refund("refund", [again]))
    bought = await buy("buy", [before])
    return [first, again, *both, await put("after", [*both, bought])]


@idempotent(name="charge_now")
def charge_now(label: str, consumed: list[str]) -> str:
    return ledger().effect(label, consumed)


@idempotent(name="refund_now", recovery="idempotent")
def refund_now(label: str, consumed: list[str]) -> str:
    return ledger().effect(label, consumed)


@step(name="buy_now")
def buy_now(label: str, consumed: list[str]) -> str:
    known = charge_now("charge", consumed)
    fresh = refund_now("refund-in-step", [known])
    return ledger().effect(label, [known, fresh])


@workflow(name="keyed_sync")
async def keyed_sync(value: str) -> list[str]:
    before = await put("before", [value])
    first = charge_now("charge", [before])
    again = charge_now("charge", [before])
    back = refund_now("refund", [first, again])
    bought = await buy_now("buy", [before])
    return [first, again, back, await put("after", [back, bought])]


@step(name="approve")
async def approve(label: str, consumed: list[str]) -> str:
    one = await put("before-question", consumed)
    answer = token_of(interrupt("in body?", {"one": "thing"}))
    two = await refund("after-question", [one, answer])
    second = token_of(interrupt("again in body?"))
    return ledger().effect(label, [two, second])


@workflow(name="question_in_step")
async def question_in_step(value: str) -> list[str]:
    both = await asyncio.gather(approve("approved", [value]), put("beside", [value]))
    return [*both, await put("after", list(both))]


WORKFLOWS: Sequence[Program] = (
    Program(runner=linear),
    Program(runner=gather_with_pause, answers={"go on?": True}),
    Program(runner=group_with_questions, answers={"red?": True, "green?": False, "blue?": True}),
    Program(runner=race_of_steps),
    Program(runner=question_loses),
    Program(runner=question_wins, answers={"in time?": True}),
    Program(runner=timeout),
    Program(runner=two_questions, answers={"first?": True, "second?": False}),
    Program(runner=handled_error),
    Program(runner=failing, ends="failed"),
    Program(runner=retried_step),
    Program(runner=failing_branches, is_retried=True),
    Program(runner=nested, answers={"inner?": True}),
    Program(runner=loop),
    Program(runner=sleeping),
    Program(runner=forked, answers={"fork?": True}, is_forked=True),
    Program(runner=cancelled, is_cancelled=True, ends="cancelled"),
    Program(runner=keyed),
    Program(runner=keyed_sync),
    Program(runner=question_in_step, answers={"in body?": True, "again in body?": False}),
)
