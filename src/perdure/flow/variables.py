"""Context variables that tell running code where it is. Set for readers; nothing of Perdure decides by them."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perdure.core.resume import Resume

_execution_id: ContextVar[str | None] = ContextVar("_execution_id", default=None)
_resume_value: ContextVar[Resume | None] = ContextVar("_resume_value", default=None)
_agent_path: ContextVar[str | None] = ContextVar("_agent_path", default=None)
_current_checkpointer: ContextVar[Any | None] = ContextVar("_current_checkpointer", default=None)
