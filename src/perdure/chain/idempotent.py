"""`idempotent` and its context variable, at the reference's path."""

from perdure.errors import IdempotencyError
from perdure.flow.idempotent import idempotent
from perdure.flow.variables import _current_checkpointer

__all__ = ["IdempotencyError", "_current_checkpointer", "idempotent"]
