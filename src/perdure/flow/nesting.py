"""One operation whose body is workflow code: a nested workflow, a nested chain, a node with branches of its own.

Decides nothing: it runs in the caller's task, numbers its calls under the operation's key, and takes its turn like any
other completion. When it is complete, what is inside is skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from perdure.core.records import OutcomeKind
from perdure.engine.calls import Call
from perdure.engine.context import TaskScope
from perdure.engine.drive import Drive
from perdure.errors import RunLost


async def run_nested(drive: Drive, call: Call, function: Callable[..., Coroutine[Any, Any, Any]]) -> Any:
    """Run `function` with the call's arguments inside the operation, or return what is recorded of it."""
    op = drive.journal.operations.get(call.key)
    if op is not None and op.is_completed and op.outcome != OutcomeKind.CANCELLED:
        return await drive.calling.wait_recorded(call)
    scope = drive.loop.current_scope()
    if op is None or op.attempt == 0:
        drive.recorder.begin(call)
    inside = TaskScope(drive, call.key)
    drive.loop.enter_scope(inside)
    try:
        value = await function(*call.args, **call.kwargs)
        await drive.calling.unwind_cancelled(inside.around)
        drive.calling.check_awaited(call)
        outcome = drive.calling.outcome_of(call, value)
    except (RunLost, GeneratorExit):
        raise
    except BaseException as error:
        outcome = drive.calling.error_outcome(call, error)
        if outcome is None:
            raise
    finally:
        inside.around.is_ended = True
        drive.loop.enter_scope(scope)
    return await drive.calling.wait_arrived(call, outcome)
