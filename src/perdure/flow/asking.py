"""`interrupt()`: ask a person and wait, for days if need be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.core import codec
from perdure.engine.context import BodyScope, current
from perdure.errors import InvalidInputError, PerdureError
from perdure.flow.variables import _resume_value

if TYPE_CHECKING:
    from perdure.core.resume import Resume

_MAX_REASON = 10_000


def interrupt(
    reason: str, context: dict[str, Any] | None = None, *, key: str | None = None, bind: bool = False
) -> Resume:
    """Ask a question and return the answer to it.

    Called by workflow code, the calling task stops here until a person answers; other tasks go on. Called inside the
    body of a step, it raises `InterruptSignal`, and after the answer the body runs again from its top: this call then
    returns. Either way the question is registered at the moment of the call, and the run pauses when nothing else of
    it moves.

    `context` is what the person sees: it must be recordable and is frozen. `key` names the question, where the order
    of calls may change. With `bind`, the context at the second call must equal what was approved, else the run needs
    attention.

    Raises `PerdureError` outside a run, `SerializationError` or `InvalidInputError` for bad arguments (nothing is
    asked then).
    """
    scope = current()
    if scope is None:
        raise PerdureError("interrupt() outside a run: it needs a workflow (or a step of one) to pause")
    _check(reason, context, key)
    drive = scope.drive
    shown = context if context is not None else {}
    if isinstance(scope, BodyScope):
        return _resume(drive.questions.ask_in_body(scope, reason, shown, key, bind))
    call, _ = drive.questions.ask_direct(scope, reason, shown, key, bind)
    return _resume_value_of(drive.calling.wait_frozen(call))


def tell_answer() -> None:
    """Set `_resume_value` for readers, in the context of a body that begins again after an answer. Nothing of Perdure
    reads it: a question finds its own answer."""
    scope = current()
    rows = scope.answers.values() if isinstance(scope, BodyScope) else ()
    answered = [row for row in rows if row.answer is not None]
    if answered:
        last = max(answered, key=lambda row: row.answer_seq or 0)
        _resume_value.set(_resume(last.answer or "null"))


def _check(reason: object, context: object, key: object) -> None:
    if not isinstance(reason, str) or not reason.strip() or len(reason) > _MAX_REASON:
        raise InvalidInputError("reason", "must be a text that is not blank")
    if context is not None and not isinstance(context, dict):
        raise InvalidInputError("context", f"must be a dict, not {type(context).__name__}")
    if key is not None and (not isinstance(key, str) or not key.strip()):
        raise InvalidInputError("key", "must be a text that is not blank")


def _resume(text: str) -> Resume:
    return _resume_value_of(codec.decode(text))


def _resume_value_of(data: Any) -> Resume:
    from perdure.core.resume import Resume  # pydantic is loaded when somebody answers

    return Resume(approved=data["approved"], metadata=data["metadata"])
