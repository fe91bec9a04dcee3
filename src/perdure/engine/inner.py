"""Calls made inside a body: looked up in the journal, run on the real loop, recorded when they end.

Decides nothing about order: the body's own completion is what is ordered. Identity is the name with the arguments,
and which of several equal calls it is. A question inside a call inside a body suspends the outermost operation.

What a body has done is recorded for as long as the end of the run is not; only then its caller hears that the run is
lost.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Coroutine
from typing import Any

from perdure.core import codec, recovery, retry
from perdure.core.fold import Phase
from perdure.core.records import OutcomeKind, Recovery
from perdure.engine import doubts
from perdure.engine.bodies import encode_value, launch
from perdure.engine.calling import own_copy
from perdure.engine.calls import Call, CallSpec, Outcome
from perdure.engine.context import BodyScope, Line, place, signal_of
from perdure.engine.drive import Drive
from perdure.errors import InterruptSignal, PerdureError, RunLost


def make(scope: BodyScope, spec: CallSpec, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Call, Line]:
    """A call made inside a body, in its place in the journal."""
    line = scope.line()
    scope.check_open(line)
    text = spec.arguments(args, kwargs)
    digest = codec.digest(text)
    path, index = scope.place_of(line, spec, digest)
    return Call(spec, path, index, *own_copy(args, kwargs), text, digest), line


def recorded(drive: Drive, call: Call) -> Outcome | None:
    """What the journal has of it; a doubt stops the run."""
    op = drive.journal.operations.get(call.key)
    action = recovery.decide(op)
    if action is recovery.Action.RETURN:
        assert op is not None
        return Outcome(OutcomeKind(op.outcome or OutcomeKind.VALUE), op.data)
    if action is recovery.Action.DOUBT:
        raise drive.fault_from_body(doubts.in_doubt(drive.run_id, call.spec.name, call.key))
    if op is not None:
        call.attempt = op.attempt + 1 if action is recovery.Action.WAIT else max(1, op.attempt)
    return None


async def run(scope: BodyScope, call: Call, line: Line) -> Any:
    """Perform a call inside a body, attempts included, or return what is recorded."""
    drive = scope.drive
    if asyncio.get_running_loop() is not drive.real_loop:
        return await elsewhere(drive, run(scope, call, line))
    scope.check_open(line)
    await _thread_is_over(drive, call)
    scope.check_open(line)
    outcome = recorded(drive, call)
    if outcome is None:
        await _until_due(drive, call)
        while outcome is None:
            await begin(drive, call)
            outcome = await _attempt(scope, call)
        await learnt(scope)
    return outcome.reveal(call.spec)


async def _until_due(drive: Drive, call: Call) -> None:
    """What is left of the delay after an attempt that failed in an earlier process, or before the body was begun
    again."""
    op = drive.journal.operations.get(call.key)
    if op is not None and op.phase is Phase.RETRYING:
        await asyncio.sleep(op.left_s(drive.recorder.clock()))


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
    check_recordable(drive)
    drive.recorder.begin(call)
    try:
        await committed(drive)
    except BaseException:
        # Its body has not run, and nobody shall have to ask whether it has.
        if drive.can_record:
            drive.recorder.record(recovery.drop(drive.journal.operations[call.key]))
            drive.recorder.flush()
        raise


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
    drive = scope.drive
    inner = BodyScope(drive, call, scope)
    context = contextvars.copy_context()
    context.run(place.set, inner)
    body = launch(drive, call, context)
    try:
        if await (_task if call.spec.is_async else _thread)(drive, call, body):
            return await _timed_out(drive, call, body)
        value = body.result()
        if inner.open_slot:
            raise signal_of(next(iter(inner.open_slot.values())))
        outcome = encode_value(call, value)
    except InterruptSignal:
        if drive.can_record:
            drive.recorder.suspend(call)
        raise
    except (RunLost, asyncio.CancelledError):
        raise
    except Exception as error:
        return await _failed(drive, call, error)
    finally:
        inner.is_closed = True
    return settle(drive, call, outcome)


async def _task(drive: Drive, call: Call, body: asyncio.Future[Any]) -> bool:
    """Wait until an async body has ended; whether that was because its time was up."""
    limit = asyncio.timeout(call.spec.timeout_s)
    try:
        async with limit:
            await body
    except asyncio.CancelledError:
        if body.done():
            _ended_alone(drive, call, body)
        raise
    except BaseException:
        # Its own, and the caller finds it in the body; or the end of its time.
        pass
    return limit.expired()


async def _thread(drive: Drive, call: Call, body: asyncio.Future[Any]) -> bool:
    """Wait until a sync body has ended or its time is up, which does not stop its thread; whether it is up."""
    try:
        await asyncio.wait({body}, timeout=call.spec.timeout_s)
    except asyncio.CancelledError:
        _leave_behind(drive, call, body)
        raise
    if body.done():
        return False
    _leave_behind(drive, call, body)
    return True


def _leave_behind(drive: Drive, call: Call, body: asyncio.Future[Any]) -> None:
    """Nobody waits for this thread; its call is not begun again before it has ended."""
    if body.done():
        _ended_alone(drive, call, body)
        return
    drive.late_threads[call.key] = body
    body.add_done_callback(lambda _: _ended_alone(drive, call, body))


def _ended_alone(drive: Drive, call: Call, body: asyncio.Future[Any]) -> None:
    """A body ended after its caller had gone: recorded, or noted if its attempt was recorded as failed."""
    drive.late_threads.pop(call.key, None)
    if drive.ended.done():
        drive.dispose()
    error = None if body.cancelled() else body.exception()
    if body.cancelled() or not drive.can_record or not isinstance(error, Exception | None):
        return
    if drive.journal.operations[call.key].phase is not Phase.STARTED:
        if error is None:
            drive.note_late(call, encode_value(call, body.result()))
    elif error is None:
        drive.complete(call, encode_value(call, body.result()))
    else:
        drive.recorder.fail_attempt(call, error, 0.0)
    drive.recorder.flush()


async def _thread_is_over(drive: Drive, call: Call) -> None:
    thread = drive.late_threads.get(call.key)
    if thread is not None:
        await asyncio.wait({thread})


def settle(drive: Drive, call: Call, outcome: Outcome) -> Outcome:
    """Record an end; the journal's version is what the caller gets. Raises `RunLost` if the caller is past, after it
    is recorded."""
    check_recordable(drive)
    outcome = drive.complete(call, outcome)
    drive.recorder.flush()
    drive.check_open()
    return outcome


def check_recordable(drive: Drive) -> None:
    """Raise `RunLost` if nothing can be recorded any more."""
    if not drive.can_record:
        raise RunLost(drive.run_id, "its end is written")


async def _timed_out(drive: Drive, call: Call, body: asyncio.Future[Any]) -> Outcome | None:
    """Its time is up: an attempt has failed, unless nobody may try again without knowing what it has done."""
    op = drive.journal.operations[call.key]
    if (op.recovery or call.spec.recovery) == Recovery.MANUAL:
        raise drive.fault_from_body(doubts.out_of_time(drive.run_id, call.spec.name, call.key))
    return await _failed(drive, call, doubts.time_is_up(call.spec))


async def _failed(drive: Drive, call: Call, error: Exception) -> Outcome | None:
    spec = call.spec
    delay_s = None
    if spec.retry is not None and not isinstance(error, PerdureError):
        delay_s = retry.next_attempt(spec.retry, call.attempt, error, random.random())
    if delay_s is None:
        return settle(drive, call, Outcome(OutcomeKind.ERROR, codec.encode_error(error)))
    check_recordable(drive)
    drive.recorder.fail_attempt(call, error, delay_s)
    for op in recovery.trailing_errors(drive.journal, call.key):
        drive.recorder.record(recovery.drop(op))
    drive.recorder.flush()
    drive.check_open()
    await asyncio.sleep(delay_s)
    await _thread_is_over(drive, call)
    drive.check_open()
    call.attempt += 1
    return None
