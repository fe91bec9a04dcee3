"""Once per run and key: the record under which an `@idempotent` body runs, wherever in the run it is called.

Decides who runs the body: the first caller of a key does, callers at the same time wait for it and share its value,
and a call to a key from inside its own body is refused. Only values are recorded here; after an exception the next
call runs the body under the same operation id. The three callers (a task on the loop, a thread, the loop's own
thread) do the same in their own ways.
"""

from __future__ import annotations

import asyncio
import contextvars
import warnings
from collections.abc import Callable
from typing import Any

from perdure.core import keys
from perdure.engine import inner
from perdure.engine.bodies import encode_value
from perdure.engine.calls import Call, CallSpec, Outcome
from perdure.engine.context import BodyScope, place
from perdure.engine.drive import Drive
from perdure.errors import IdempotencyError, InterruptSignal, RunLost


def call_of(
    scope: BodyScope, spec: CallSpec, digest: str, args: tuple[Any, ...], kwargs: dict[str, Any], shown: str
) -> Call:
    """The call under which the key is recorded. Refuses a key that is being computed by the caller itself."""
    path = keys.idempotency_path(spec.name, digest)
    enclosing: BodyScope | None = scope
    while enclosing is not None:
        if enclosing.call.path == path:
            raise IdempotencyError(
                f"{spec.name} calls itself with the same key {shown}; its result cannot depend on itself"
            )
        enclosing = enclosing.parent
    return Call(spec, path, 0, args, kwargs, shown, digest)


async def run(scope: BodyScope, call: Call) -> Any:
    """From async code on the real loop."""
    if asyncio.get_running_loop() is not scope.drive.real_loop:
        return await inner.elsewhere(scope.drive, run(scope, call))
    outcome = await _begin(scope, call)
    if outcome is None:
        body = BodyScope(scope.drive, call, scope)
        context = contextvars.copy_context()
        context.run(place.set, body)
        task = scope.drive.real_loop.create_task(_invoke(call), context=context)
        outcome = await _finish_async(scope, call, body, task)
    return outcome.reveal(call.spec)


async def _invoke(call: Call) -> Any:
    return await call.spec.function(*call.args, **call.kwargs)


def run_in_thread(scope: BodyScope, call: Call) -> Any:
    """From a sync body in a worker thread: the journal is touched on the loop, the body runs here."""
    loop = scope.drive.real_loop
    outcome = asyncio.run_coroutine_threadsafe(_begin(scope, call), loop).result()
    if outcome is None:
        body = BodyScope(scope.drive, call, scope)
        result = _run_here(call, body)
        outcome = asyncio.run_coroutine_threadsafe(_finish(scope, call, body, result), loop).result()
    return outcome.reveal(call.spec)


def run_blocking(scope: BodyScope, call: Call) -> Any:
    """From sync code on the loop's own thread: blocks the loop for its commits, so it warns once per function."""
    warnings.warn(
        f"{call.spec.name} is a sync @idempotent function called on the event loop: the loop stands still "
        "while it commits; make "
        "it `async def`, or call it from a sync step",
        RuntimeWarning,
        stacklevel=4,
    )
    drive = scope.drive
    if call.path in drive.keys_running:
        raise IdempotencyError(f"{call.spec.name} is running with the same key in a task this call would block")
    outcome = inner.recorded(drive, call)
    if outcome is None:
        drive.check_open()
        drive.recorder.begin(call)
        drive.store.wait_committed(drive.lane, drive.recorder.flush())
        body = BodyScope(drive, call, scope)
        result = _run_here(call, body)
        outcome = _record(scope, call, body, result)
        drive.store.wait_committed(drive.lane, drive.recorder.flush())
    return outcome.reveal(call.spec)


class _Result:
    """What a body did: a value or an exception."""

    __slots__ = ("error", "value")

    def __init__(self, value: Any = None, error: BaseException | None = None) -> None:
        self.value = value
        self.error = error


def _run_here(call: Call, body: BodyScope) -> _Result:
    context = contextvars.copy_context()
    context.run(place.set, body)
    run: Callable[[], Any] = lambda: call.spec.function(*call.args, **call.kwargs)
    try:
        return _Result(context.run(run))
    except BaseException as error:
        return _Result(error=error)
    finally:
        body.is_closed = True


async def _begin(scope: BodyScope, call: Call) -> Outcome | None:
    """The recorded value; or None when this caller is to run the body, with its start durable."""
    drive = scope.drive
    while True:
        scope.check_open(scope.line()) if asyncio.current_task() in scope.lines else drive.check_open()
        running = drive.keys_running.get(call.path)
        if running is not None:
            await asyncio.shield(running)
            continue
        outcome = inner.recorded(drive, call)
        if outcome is not None:
            return outcome
        break
    drive.keys_running[call.path] = drive.real_loop.create_future()
    try:
        await inner.begin(drive, call)
    except BaseException:
        _release(drive, call)
        raise
    return None


def _release(drive: Drive, call: Call) -> None:
    running = drive.keys_running.pop(call.path, None)
    if running is not None and not running.done():
        running.set_result(None)


async def _finish_async(scope: BodyScope, call: Call, body: BodyScope, task: asyncio.Task[Any]) -> Outcome:
    try:
        result = _Result(await task)
    except asyncio.CancelledError as error:
        if task.done() and not task.cancelled() and task.exception() is None:
            # The caller was cancelled in the moment its body had ended: what the body did is recorded all the same.
            await _finish(scope, call, body, _Result(task.result()))
            raise
        result = _Result(error=error)
    except BaseException as error:
        result = _Result(error=error)
    finally:
        body.is_closed = True
    return await _finish(scope, call, body, result)


async def _finish(scope: BodyScope, call: Call, body: BodyScope, result: _Result) -> Outcome:
    try:
        outcome = _record(scope, call, body, result)
    finally:
        _release(scope.drive, call)
    await inner.learnt(scope)
    return outcome


def _record(scope: BodyScope, call: Call, body: BodyScope, result: _Result) -> Outcome:
    """Record a value; an exception is passed on, and the key is free for another try under the same operation id."""
    drive, error = scope.drive, result.error
    if body.open_slot:
        inner.check_recordable(drive)
        drive.recorder.suspend(call)
        raise error if isinstance(error, InterruptSignal) else InterruptSignal("asked inside", {})
    if error is None:
        outcome = encode_value(call, result.value)
        return inner.settle(drive, call, outcome)
    if isinstance(error, Exception) and not isinstance(error, InterruptSignal | RunLost):
        inner.check_recordable(drive)
        drive.recorder.fail_attempt(call, error, 0.0)
        drive.recorder.flush()
    raise error
