"""Nodes whose body is workflow code: nested chains and workflows, and nodes that run several things at once.

Decides what such a node's result is, and what the failure of one branch means to the others. Their operations are
below the node's own, so each is recorded, repeated or asked about by itself.
"""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Sequence
from functools import partial
from typing import Any

from perdure.core import keys, snapshots
from perdure.engine.calls import Call, Outcome
from perdure.errors import ChainError, ChainStateError
from perdure.flow.front import Beginning, Front, Open, begin_state
from perdure.flow.nesting import run_nested
from perdure.flow.node_bodies import Checks, GetMoment, agent_input
from perdure.flow.plan import CHAIN_TYPE, Branch

_NO_INPUT: Any = object()
_SWALLOWING = frozenset({"continue", "any_success"})


async def run(front: Front, open_: Open) -> Any:
    """The node's result: recorded, or made by running what is inside."""
    return await run_nested(front.drive, open_.call, partial(_inside, front, open_))


async def _inside(front: Front, open_: Open, moment_of: GetMoment) -> Any:
    inside = _parallel if open_.node.branches else _runner
    return Checks(open_.node.given).output(await inside(front, open_, moment_of))


async def _runner(front: Front, open_: Open, moment_of: GetMoment) -> Any:
    runner, given = open_.node.runner, open_.node.given
    if runner.kind != CHAIN_TYPE:
        return await runner.drive(agent_input(given, moment_of()))
    if given.options.input is not None or given.input_mapping is not None:
        return await _chain(front, open_, runner, agent_input(given, moment_of()), open_.call.key)
    return await _chain(front, open_, runner, _NO_INPUT, open_.call.key)


async def _chain(front: Front, open_: Open, chain: Any, value: Any, key: str) -> Any:
    """A nested chain. Without an input of its own it goes on from the state, and gives back what it wrote."""
    plan, visit, is_sharing = chain.plan, open_.visit, value is _NO_INPUT
    state = visit.before if is_sharing else value if isinstance(value, dict) else {"input": value}
    if plan.schema is not None:
        state = begin_state(front.drive, key, plan.schema, state)
    stored = partial(front.stored, visit.parents[0])
    around = front.outermost if is_sharing else None
    inner = Front(plan, front.drive, key, state, Beginning(stored, front.context, around))
    if is_sharing:
        open_.inner.append(inner)
    try:
        await inner.run()
    except Exception:
        if open_.node.given.options.failure_mode in _SWALLOWING:
            inner.stop()  # the chain goes on without it: what is open in it may not
        raise
    return inner.written(front.plan.reducers) if is_sharing and open_.node.given.output_key is None else inner.output()


# --- several at once ------------------------------------------------------------------------------------


async def _parallel(front: Front, open_: Open, moment_of: GetMoment) -> Any:
    options = open_.node.given.options
    branches = open_.node.branches
    if options.over is not None:
        items = moment_of().render(options.over)
        if not isinstance(items, list | tuple):
            raise ChainStateError("over", f"node {open_.node.given.id!r} needs a list, and has {type(items).__name__}")
        names: Sequence[str] = [str(number) for number in range(len(items))]
        # A path of its own for each item: they are beside each other, none comes after another.
        work = [(branches[0], f"{branches[0].name}-{n}", (moment_of, item)) for n, item in enumerate(items)]
    else:
        names = [branch.name for branch in branches]
        work = [(branch, branch.name, (moment_of,)) for branch in branches]
    slots = _Slots(options.max_concurrency)
    # A coroutine that is made only when its turn comes is never left behind unawaited.
    tasks = [front.drive.loop.create_task(_limited(slots, front, open_, *one)) for one in work]
    try:
        results = await _all(tasks, is_fast=options.failure_mode == "fail_fast")
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        raise
    return _result(open_, names, results)


class _Slots:
    """How many branches are open at once. What the journal has begun is open already, and asks nobody."""

    def __init__(self, most: int | None) -> None:
        self._free = most
        self._queue: collections.deque[asyncio.Future[None]] = collections.deque()

    async def take(self, *, is_begun: bool) -> None:
        if self._free is None:
            return
        if not is_begun and self._free <= 0:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._queue.append(turn)
            await turn  # whoever gave its slot back has given it to us
            return
        self._free -= 1

    def give(self) -> None:
        if self._free is None:
            return
        self._free += 1
        while self._free > 0 and self._queue:
            turn = self._queue.popleft()
            if not turn.done():
                self._free -= 1
                turn.set_result(None)


async def _limited(slots: _Slots, front: Front, open_: Open, branch: Branch, name: str, args: tuple[Any, ...]) -> Any:
    path = keys.node_path(open_.call.key, name)
    op = front.drive.journal.operations.get(keys.operation_key(path, 0))
    if op is not None and op.is_completed:
        return await _branch(front, open_, branch, path, args)
    await slots.take(is_begun=op is not None)
    try:
        return await _branch(front, open_, branch, path, args)
    finally:
        slots.give()


async def _all(tasks: Sequence[asyncio.Task[Any]], *, is_fast: bool) -> list[Any]:
    """Values and exceptions in the order of the tasks. `is_fast`: the first failure ends the others."""
    pending = set(tasks)
    while pending:
        when = asyncio.FIRST_EXCEPTION if is_fast else asyncio.ALL_COMPLETED
        done, pending = await asyncio.wait(pending, return_when=when)
        if is_fast and any(not task.cancelled() and task.exception() is not None for task in done):
            for task in pending:
                task.cancel()
            is_fast = False
    return [asyncio.CancelledError() if task.cancelled() else task.exception() or task.result() for task in tasks]


def _result(open_: Open, names: Sequence[str], results: Sequence[Any]) -> Any:
    given = open_.node.given
    errors = [one for one in results if isinstance(one, BaseException)]
    for error in errors:
        if not isinstance(error, Exception | asyncio.CancelledError):
            raise error  # this drive ends, or the process does
    failures = [error for error in errors if isinstance(error, Exception)]
    match given.options.failure_mode:
        case "raise" | "fail_fast" if errors:
            raise failures[0] if failures else errors[0]
        case "any_success" if len(errors) == len(results) and results:
            told = "; ".join(f"{name}: {_told(error)}" for name, error in zip(names, errors, strict=True))
            raise ChainError(f"everything that node {given.id!r} ran has failed: {told}")
    is_kept = given.options.failure_mode != "any_success"
    shown = [
        (name, {"error": _told(one)} if isinstance(one, BaseException) else one)
        for name, one in zip(names, results, strict=True)
        if is_kept or not isinstance(one, BaseException)
    ]
    return dict(shown) if given.options.branches else [one for _, one in shown]


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


async def _branch(front: Front, open_: Open, branch: Branch, path: str, args: tuple[Any, ...]) -> Any:
    drive = front.drive
    call = Call(branch.spec, path, 0, args)
    call.tell_state = partial(_said, front, open_, call)
    drive.calling.register(call)
    if branch.runner is None:
        return await drive.calling.wait(call)
    return await run_nested(drive, call, partial(_branch_inside, front, open_, branch, call.key))


async def _branch_inside(front: Front, open_: Open, branch: Branch, key: str, moment_of: GetMoment, *item: Any) -> Any:
    value = item[0] if item else agent_input(open_.node.given, moment_of())
    if branch.runner.kind == CHAIN_TYPE:
        return await _chain(front, open_, branch.runner, value, key)
    return await branch.runner.drive(value)


def _said(front: Front, open_: Open, call: Call, outcome: Outcome | None) -> snapshots.Said:
    """A branch changes nothing by itself: the state is the one its node began with."""
    visit = open_.visit
    return snapshots.store_before(front.stored(visit.parents[0]), call.key, visit.before)[0]
