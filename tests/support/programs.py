"""Programs as data: what hypothesis draws and shrinks, interpreted by one workflow function.

A program is a tree of nodes. Each node records a trace of what the code saw; the trace is the run's result, so two
executions that saw the same things in the same order return the same. Steps return nothing of chance.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from perdure import (
    Engine,
    Resume,
    idempotent,
    interrupt,
    now,
    operation_id,
    patched,
    random,
    sleep,
    step,
    uuid4,
    workflow,
)
from perdure.engine.results import RunResult

performed: list[str] = []
"""Operation ids of the bodies that have begun in this process."""


def forget() -> None:
    """As a new process would be."""
    performed.clear()
    _has_failed.clear()


@dataclass(frozen=True, slots=True)
class Node:
    """One statement. `kind` says which; `label` makes its name; `count` is a number of times; `children`
    are blocks of it."""

    kind: str
    label: int = 0
    count: int = 1
    children: tuple[Node, ...] = ()


class Failure(Exception):
    """What failing steps raise; not declared, so that the code sees an OperationError."""


@step(name="program_step")
async def do(label: int) -> int:
    performed.append(operation_id())
    await asyncio.sleep(0)
    return label * 3 + 1


@step(name="program_thread")
def do_in_thread(label: int) -> int:
    performed.append(operation_id())
    return label * 5 + 1


@step(name="program_safe", recovery="safe")
async def do_safe(label: int) -> int:
    performed.append(operation_id())
    return label * 7 + 1


@step(name="program_fail")
async def fail(label: int) -> int:
    performed.append(operation_id())
    await asyncio.sleep(0)
    raise Failure(f"step {label}")


_has_failed: set[str] = set()


@step(name="program_flaky")
async def fail_once(label: int) -> int:
    """Raises at its first execution in this process, whichever attempt of the run that is."""
    performed.append(operation_id())
    if operation_id() not in _has_failed:
        _has_failed.add(operation_id())
        raise ConnectionError(f"step {label}")
    return label * 13 + 1


@step(name="program_slow")
async def slow(label: int) -> int:
    """For what is cancelled long before it ends. It does end, since a run that fails awaits its running bodies."""
    performed.append(operation_id())
    await asyncio.sleep(0.5)
    return label


@step(name="program_ask")
async def ask_inside(label: int) -> bool:
    performed.append(operation_id())
    return interrupt(f"inside {label}?", {"label": label}).approved


@step(name="program_body")
async def body_with_steps(label: int) -> list[int]:
    """Steps inside a step, one after the other and side by side."""
    performed.append(operation_id())
    first = await do(label)
    rest = await asyncio.gather(do(label + 1), do_in_thread(label + 2))
    return [first, *rest]


@idempotent(name="program_effect", recovery="idempotent")
async def effect(label: int) -> int:
    performed.append(operation_id())
    return label * 11 + 1


Trace = list[Any]


async def block(nodes: tuple[Node, ...] | list[Node], trace: Trace) -> None:
    for node in nodes:
        await _KINDS[node.kind](node, trace)


async def _step(node: Node, trace: Trace) -> None:
    trace.append(["step", await do(node.label)])


async def _thread(node: Node, trace: Trace) -> None:
    trace.append(["thread", await do_in_thread(node.label)])


async def _safe(node: Node, trace: Trace) -> None:
    trace.append(["safe", await do_safe(node.label)])


async def _effect(node: Node, trace: Trace) -> None:
    trace.append(["effect", await effect(node.label)])


async def _body(node: Node, trace: Trace) -> None:
    trace.append(["body", await body_with_steps(node.label)])


async def _fail(node: Node, trace: Trace) -> None:
    try:
        await fail(node.label)
    except Exception as error:
        trace.append(["caught", str(error)])
        await block(node.children, trace)


async def _flaky(node: Node, trace: Trace) -> None:
    """Fails the run, which is then retried."""
    trace.append(["flaky", await fail_once(node.label)])


async def _loop(node: Node, trace: Trace) -> None:
    for n in range(node.count):
        trace.append(["round", n])
        await block(node.children, trace)


async def _branch(node: Node, trace: Trace) -> None:
    """Which way is decided by what a step returned."""
    if (await do(node.label)) % 2:
        await block(node.children[:1], trace)
    else:
        await block(node.children[1:], trace)


async def _gather(node: Node, trace: Trace) -> None:
    parts: list[Trace] = [[] for _ in node.children]
    await asyncio.gather(*(block([child], part) for child, part in zip(node.children, parts, strict=True)))
    trace.append(["gather", parts])


async def _group(node: Node, trace: Trace) -> None:
    """Tasks that write into one trace: the order in which they went on is part of it."""
    order: Trace = []

    async def branch(n: int, child: Node) -> None:
        await block([child], order)
        order.append(["end of", n])

    async with asyncio.TaskGroup() as group:
        for n, child in enumerate(node.children):
            group.create_task(branch(n, child))
    trace.append(["group", order])


async def _race(node: Node, trace: Trace) -> None:
    """The first of several; the losers go on and are awaited."""
    tasks = [asyncio.ensure_future(block([child], [])) for child in node.children]
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    trace.append(["first", sorted(tasks.index(task) for task in done)])
    await asyncio.gather(*tasks)


async def _timeout(node: Node, trace: Trace) -> None:
    try:
        async with asyncio.timeout(0.002):
            await slow(node.label)
    except TimeoutError:
        trace.append(["timed out", node.label])


async def _cancel(node: Node, trace: Trace) -> None:
    """A task that is cancelled while its step runs."""
    task = asyncio.ensure_future(slow(node.label))
    await do(node.label)
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        trace.append(["cancelled", node.label])


async def _sleep(node: Node, trace: Trace) -> None:
    await sleep(0.001 * node.count)
    trace.append(["slept", node.count])


async def _ask(node: Node, trace: Trace) -> None:
    trace.append(["answer", interrupt(f"direct {node.label}?", {"label": node.label}).approved])


async def _ask_inside(node: Node, trace: Trace) -> None:
    trace.append(["answer inside", await ask_inside(node.label)])


async def _nested(node: Node, trace: Trace) -> None:
    trace.append(["nested", await nested(_as_data(node.children))])


async def _values(node: Node, trace: Trace) -> None:
    """Recorded chance and time: seen the same at every replay, so they count only by their use."""
    first, second = random(), random()
    trace.append(["values", first != second, uuid4() != uuid4(), now() <= now()])
    if first < 0.5:
        await do(node.label)
    trace.append(["patched", patched(f"p{node.label}")])


_KINDS = {
    "step": _step, "thread": _thread, "safe": _safe, "effect": _effect, "body": _body, "fail": _fail, "loop": _loop,
    "branch": _branch, "gather": _gather, "group": _group, "race": _race, "timeout": _timeout, "cancel": _cancel,
    "sleep": _sleep, "ask": _ask, "ask inside": _ask_inside, "nested": _nested, "values": _values, "flaky": _flaky,
}  # fmt: skip


def _as_data(nodes: tuple[Node, ...]) -> list[Any]:
    return [[node.kind, node.label, node.count, _as_data(node.children)] for node in nodes]


def _from_data(data: list[Any]) -> tuple[Node, ...]:
    return tuple(Node(kind, label, count, _from_data(children)) for kind, label, count, children in data)


@workflow(name="program_nested")
async def nested(data: list[Any]) -> Trace:
    trace: Trace = []
    await block(_from_data(data), trace)
    return trace


@workflow(name="program")
async def program(data: list[Any]) -> Trace:
    """Interprets a program; returns its trace."""
    trace: Trace = []
    await block(_from_data(data), trace)
    return trace


def _has(node: Node, kind: str) -> bool:
    return node.kind == kind or any(_has(child, kind) for child in node.children)


def as_input(nodes: list[Node]) -> list[Any]:
    """A program as the workflow's input; labels are numbered through, so that each statement is one of a
    kind."""
    counter = iter(range(1, 10_000))
    has_timeout = any(_has(node, "timeout") for node in nodes)

    def number(node: Node, is_in_group: bool = False) -> Node:
        # A task group cancels its other tasks when one fails; what was cancelled is another subject than a retry. Of a
        # run that fails, what still runs is awaited and recorded; so it would be a race which ends first, the run or
        # the time of a time limit.
        kind = "step" if node.kind == "flaky" and (is_in_group or has_timeout) else node.kind
        is_in_group = is_in_group or node.kind == "group"
        label = next(counter) * 10
        return Node(kind, label, node.count, tuple(number(child, is_in_group) for child in node.children))

    return _as_data(tuple(number(node) for node in nodes))


_LEAVES = (
    "step",
    "thread",
    "safe",
    "effect",
    "body",
    "timeout",
    "cancel",
    "sleep",
    "ask",
    "ask inside",
    "values",
    "flaky",
)

_leaf = st.builds(Node, kind=st.sampled_from(_LEAVES), count=st.integers(1, 3))


def _inner(children: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    several = st.lists(children, min_size=1, max_size=3).map(tuple)
    two = st.tuples(children, children)
    return st.one_of(
        st.builds(Node, kind=st.sampled_from(["gather", "group", "race", "nested", "fail"]), children=several),
        st.builds(Node, kind=st.just("loop"), count=st.integers(1, 3), children=several),
        st.builds(Node, kind=st.just("branch"), children=two),
    )


programs = st.lists(st.recursive(_leaf, _inner, max_leaves=6), min_size=1, max_size=4).map(as_input)
"""Programs of a few statements, nested up to some levels."""


def answers(result: RunResult) -> dict[str, Resume]:
    """Every question gets the answer that its label calls for, whenever and by whomever it is answered."""
    return {
        question["interrupt_id"]: Resume(approved=question["context"]["label"] % 20 == 0)
        for question in result.pending_interrupts
    }


async def finish(engine: Engine, data: list[Any], run_id: str) -> Any:
    """Run to the end: answer what is asked, retry what has failed."""
    result = await _tried(engine, run_id, engine.run(program, data, execution_id=run_id))
    while result.status == "paused":
        result = await _tried(engine, run_id, engine.resume(program, run_id, resume_value=answers(result)))
    return result.output


async def _tried(engine: Engine, run_id: str, work: Awaitable[RunResult]) -> RunResult:
    while True:
        try:
            return await work
        except ConnectionError:
            work = engine.retry(program, run_id)
