"""`interrupt` and its context variables, at the reference's path."""

from perdure.core.resume import Resume
from perdure.errors import AlreadyResumed, InterruptSignal
from perdure.flow.asking import interrupt
from perdure.flow.variables import _agent_path, _execution_id, _resume_value

__all__ = ["AlreadyResumed", "InterruptSignal", "Resume", "_agent_path", "_execution_id", "_resume_value", "interrupt"]
