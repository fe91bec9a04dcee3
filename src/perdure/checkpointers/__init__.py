"""Checkpointers: the protocol a third party implements, and what drives runs over one. Imports nothing until a name is
asked for: pydantic alone costs as much as the rest of the package."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perdure.checkpointers.ends import RUN_END, is_run_end, latest_forkable, latest_resumable
    from perdure.checkpointers.foreign import ForeignCheckpointerWarning, ForeignStore, open_foreign
    from perdure.checkpointers.memory import MemoryCheckpointer
    from perdure.checkpointers.protocol import (
        Checkpoint,
        Checkpointer,
        PendingInterrupt,
        QuarantinableCheckpointer,
        ReplicatedCheckpointer,
    )

_WHERE = {
    "RUN_END": "ends",
    "Checkpoint": "protocol",
    "Checkpointer": "protocol",
    "ForeignCheckpointerWarning": "foreign",
    "ForeignStore": "foreign",
    "MemoryCheckpointer": "memory",
    "PendingInterrupt": "protocol",
    "QuarantinableCheckpointer": "protocol",
    "ReplicatedCheckpointer": "protocol",
    "is_run_end": "ends",
    "latest_forkable": "ends",
    "latest_resumable": "ends",
    "open_foreign": "foreign",
}

__all__ = [
    "RUN_END",
    "Checkpoint",
    "Checkpointer",
    "ForeignCheckpointerWarning",
    "ForeignStore",
    "MemoryCheckpointer",
    "PendingInterrupt",
    "QuarantinableCheckpointer",
    "ReplicatedCheckpointer",
    "is_run_end",
    "latest_forkable",
    "latest_resumable",
    "open_foreign",
]


def __getattr__(name: str) -> Any:
    where = _WHERE.get(name)
    if where is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{where}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
