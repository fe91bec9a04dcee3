"""Calls made inside a body: looked up in the journal, run on the real loop, recorded when they end.

Decides nothing about order: the body's own completion is what is ordered. Identity is the task of the body (numbered
at first use) and the index in it. A question inside a call inside a body suspends the outermost operation.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Coroutine
from typing import Any

from perdure.core import codec, recovery, retry
from perdure.core.records import OutcomeKind, Recovery
from perdure.engine.bodies import encode_value, launch
from perdure.engine.calls import Call, CallSpec, Outcome
from perdure.engine.context import BodyScope, Line, place, signal_of
from perdure.engine.drive import Drive
from perdure.errors import DurableRecoveryError, InterruptSignal, PerdureError, RunLost


def make(scope: BodyScope, spec: CallSpec, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Call, Line]:
    """Number a call made inside a body, and verify it against the journal."""
    line = scope.line()
    scope.check_open(line)
    index = line.next_index()
    text = spec.arguments(args, kwargs)
    call = Call(spec, line.path, index, args, kwargs, text, codec.digest(text))
    verify(scope.drive, call)
    return call, line


def verify(drive: Drive, call: Call) -> None:
    """As in workflow code: another operation in this place stops the run."""
    op = drive.journal.operations.get(call.key)
    if op is None:
        return
    why = recovery.mismatch(op, call.spec.kind, call.spec.name, call.digest, call.shown_arguments)
    if why is not None:
        raise drive.fault_from_body(DurableRecoveryError(f"run {drive.run_id}: {why}", drive.operation_id(call.key)))


def recorded(drive: Drive, call: Call) -> Outcome | None:
    """What the journal has of it; a doubt stops the run."""
    op = drive.journal.operations.get(call.key)
    action = recovery.decide(op)
    if action is recovery.Action.RETURN:
        assert op is not None
        return Outcome(OutcomeKind(op.outcome or OutcomeKind.VALUE), op.data)
    if action is recovery.Action.DOUBT:
        raise drive.fault_from_body(
            DurableRecoveryError(
                f"run {drive.run_id}: {call.spec.name!r} was begun and its end is not known; it is "
                "recovery='manual', so a "
                f"person decides: repeat it with repeat_operation={drive.operation_id(call.key)!r}, or cancel the run",
                drive.operation_id(call.key),
            )
        )
    if op is not None:
        call.attempt = op.attempt + 1 if action is recovery.Action.WAIT else max(1, op.attempt)
    return None


async def run(scope: BodyScope, call: Call, line: Line) -> Any:
    """Perform a call inside a body, attempts included, or return what is recorded."""
    drive = scope.drive
    if asyncio.get_running_loop() is not drive.real_loop:
        return await elsewhere(drive, run(scope, call, line))
    scope.check_open(line)
    outcome = recorded(drive, call)
    if outcome is None:
        while outcome is None:
            await begin(drive, call)
            outcome = await _attempt(scope, call)
        await learnt(scope)
    return outcome.reveal(call.spec)


async def elsewhere(drive: Drive, coro: Coroutine[Any, Any, Any]) -> Any:
    """A body that runs a loop of its own (`asyncio.run` in a thread) made the call: it belongs on the real loop."""
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coro, drive.real_loop))


async def learnt(scope: BodyScope) -> None:
    """A body acts on what it has learnt, so that is durable before it goes on, unless all bodies around it are `safe`
    (law 2)."""
    enclosing: BodyScope | None = scope
    while enclosing is not None:
        if enclosing.call.spec.recovery != Recovery.SAFE:
            await committed(scope.drive)
            return
        enclosing = enclosing.parent


async def begin(drive: Drive, call: Call) -> None:
    """Record that it begins and wait until that, and all before it, is durable (law 2)."""
    drive.check_open()
    drive.recorder.begin(call)
    await committed(drive)


async def committed(drive: Drive) -> None:
    """Flush, and wait in the real loop until it is durable; `RunLost` if the run is lost meanwhile."""
    n = drive.recorder.flush()
    if drive.lane.committed < n:
        done: asyncio.Future[None] = drive.real_loop.create_future()
        drive.recorder.after_commit(n, _resolve, done)
        await done
    drive.check_open()


def _resolve(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)


async def _attempt(scope: BodyScope, call: Call) -> Outcome | None:
    """One attempt; None if another one is to follow."""
    drive, spec = scope.drive, call.spec
    inner = BodyScope(drive, call, scope)
    context = contextvars.copy_context()
    context.run(place.set, inner)
    try:
        body = launch(drive, call, context)
        value = await asyncio.wait_for(body, spec.timeout_s) if spec.timeout_s is not None else await body
        if inner.open_slot:
            raise signal_of(next(iter(inner.open_slot.values())))
        outcome = encode_value(call, value)
    except InterruptSignal:
        drive.recorder.suspend(call)
        raise
    except (RunLost, asyncio.CancelledError):
        raise
    except Exception as error:
        return await _failed(drive, call, error)
    finally:
        inner.is_closed = True
    return settle(drive, call, outcome)


def settle(drive: Drive, call: Call, outcome: Outcome) -> Outcome:
    """Record an end; the journal's version is what the caller gets."""
    drive.check_open()
    outcome = drive.complete(call, outcome)
    drive.recorder.flush()
    return outcome


async def _failed(drive: Drive, call: Call, error: Exception) -> Outcome | None:
    spec = call.spec
    delay_s = None
    if spec.retry is not None and not isinstance(error, PerdureError):
        delay_s = retry.next_attempt(spec.retry, call.attempt, error, random.random())
    if delay_s is None:
        return settle(drive, call, Outcome(OutcomeKind.ERROR, codec.encode_error(error)))
    drive.check_open()
    drive.recorder.fail_attempt(call, error, delay_s)
    for op in recovery.trailing_errors(drive.journal, call.key):
        drive.recorder.record(recovery.drop(op))
    drive.recorder.flush()
    await asyncio.sleep(delay_s)
    call.attempt += 1
    return None
