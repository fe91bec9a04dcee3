"""What a workflow may not take from the machine unrecorded: the time, chance, a wait, which version of the code it
began with."""

from __future__ import annotations

import asyncio
import random as _random
import uuid as _uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from perdure.core import codec, ids, keys
from perdure.core.records import Kind, Recovery
from perdure.engine.calls import Call, CallSpec
from perdure.engine.context import BodyScope, TaskScope, current
from perdure.errors import PerdureError
from perdure.flow.steps import seconds


def _nothing() -> None:
    raise PerdureError("a recorded value has no body")


def _spec(name: str, kind: Kind = Kind.VALUE) -> CallSpec:
    return CallSpec(kind=kind, name=name, function=_nothing, recovery=Recovery.SAFE)


_NOW, _RANDOM, _UUID = _spec("now"), _spec("random"), _spec("uuid4")


def _recorded(spec: CallSpec, make: Callable[[], Any]) -> Any:
    """The recorded value in workflow code; a fresh one elsewhere (a body's own outcome is what is recorded there)."""
    scope = current()
    if not isinstance(scope, TaskScope):
        return make()
    drive = scope.drive
    drive.check_open()
    call = Call(spec, scope.path, scope.next_index())
    drive.calling.register(call)
    drive.open.pop(call.key, None)
    return drive.calling.reveal(call, drive.calling.completed_at_once(call, lambda: codec.encode(make())))


def now() -> datetime:
    """The time (UTC), recorded: the same at every replay."""
    return _recorded(_NOW, lambda: datetime.now(UTC))


def random() -> float:
    """A random number in [0, 1), recorded."""
    return _recorded(_RANDOM, _random.random)


def uuid4() -> _uuid.UUID:
    """A random UUID, recorded."""
    return _recorded(_UUID, _uuid.uuid4)


async def sleep(delay: timedelta | float) -> None:
    """Wait, for days if need be: the deadline is stored, and a run that only waits holds no worker."""
    await asyncio.sleep(seconds("delay", delay) or 0.0)


def patched(name: str) -> bool:
    """Whether this run takes the new way: for code changed while runs are in flight.

    True for runs that come to this place for the first time with the new code, False for those that had recorded
    operations beyond it. Decided at the first call and remembered for the run.
    """
    scope = current()
    if scope is None or isinstance(scope, BodyScope):
        raise PerdureError("patched() belongs into workflow code")
    ids.check_id(name, "name")
    drive = scope.drive
    drive.check_open()
    known = drive.journal.patches.get(name)
    if known is not None:
        return known
    is_new = drive.journal.highest_index.get(scope.path, -1) < scope.index
    call = Call(_spec(name, Kind.PATCH), keys.patch_path(name), 0)
    drive.calling.completed_at_once(call, lambda: codec.encode(is_new))
    return is_new


def operation_id() -> str:
    """The id of the operation whose body is running: the same at every repetition. Hand it to providers as
    idempotency key."""
    scope = current()
    if not isinstance(scope, BodyScope):
        raise PerdureError("operation_id() belongs into the body of a step or of an @idempotent function")
    return scope.drive.operation_id(scope.call.key)
