"""Perdure: durable execution for AI agents and workflows. Public names, loaded when they are used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perdure.checkpointers.protocol import Checkpoint, Checkpointer, PendingInterrupt
    from perdure.checkpointers.sqlite import SQLiteCheckpointer
    from perdure.core.resume import Resume
    from perdure.core.retry import RetryPolicy
    from perdure.core.settings import EngineSettings, Limits, get_config
    from perdure.engine.engine import Engine, open_engine
    from perdure.engine.results import RunResult
    from perdure.engine.streams import Event
    from perdure.errors import (
        AlreadyResumed,
        AmbiguousAnswer,
        ChainCheckpointError,
        ChainCycleError,
        ChainError,
        ChainResumeError,
        ChainRoutingError,
        ChainStateError,
        ChainTemplateError,
        DurableConflictError,
        DurableLimitError,
        DurableNotFoundError,
        DurableRecoveryError,
        DurableRunError,
        DurableStorageError,
        IdempotencyError,
        InterruptSignal,
        InvalidInputError,
        OperationError,
        PerdureError,
        RunBusy,
        RunLost,
        SerializationError,
        UnawaitedOperation,
    )
    from perdure.flow.asking import interrupt
    from perdure.flow.chain import Chain
    from perdure.flow.chain_result import ChainResult
    from perdure.flow.idempotent import idempotent
    from perdure.flow.nodes import NodeType, node
    from perdure.flow.steps import step
    from perdure.flow.tools import FunctionTool
    from perdure.flow.values import now, operation_id, patched, random, sleep, uuid4
    from perdure.flow.workflow import Workflow, workflow
    from perdure.store.open import open_store

__version__ = "0.1.0"

_WHERE = {
    "AlreadyResumed": "errors",
    "AmbiguousAnswer": "errors",
    "Chain": "flow.chain",
    "ChainCheckpointError": "errors",
    "ChainCycleError": "errors",
    "ChainError": "errors",
    "ChainResult": "flow.chain_result",
    "ChainResumeError": "errors",
    "ChainRoutingError": "errors",
    "ChainStateError": "errors",
    "ChainTemplateError": "errors",
    "Checkpoint": "checkpointers.protocol",
    "Checkpointer": "checkpointers.protocol",
    "DurableConflictError": "errors",
    "DurableLimitError": "errors",
    "DurableNotFoundError": "errors",
    "DurableRecoveryError": "errors",
    "DurableRunError": "errors",
    "DurableStorageError": "errors",
    "Engine": "engine.engine",
    "EngineSettings": "core.settings",
    "Event": "engine.streams",
    "FunctionTool": "flow.tools",
    "IdempotencyError": "errors",
    "InterruptSignal": "errors",
    "InvalidInputError": "errors",
    "Limits": "core.settings",
    "NodeType": "flow.nodes",
    "OperationError": "errors",
    "PendingInterrupt": "checkpointers.protocol",
    "PerdureError": "errors",
    "Resume": "core.resume",
    "RetryPolicy": "core.retry",
    "RunBusy": "errors",
    "RunLost": "errors",
    "RunResult": "engine.results",
    "SQLiteCheckpointer": "checkpointers.sqlite",
    "SerializationError": "errors",
    "UnawaitedOperation": "errors",
    "Workflow": "flow.workflow",
    "get_config": "core.settings",
    "idempotent": "flow.idempotent",
    "interrupt": "flow.asking",
    "node": "flow.nodes",
    "now": "flow.values",
    "open_engine": "engine.engine",
    "open_store": "store.open",
    "operation_id": "flow.values",
    "patched": "flow.values",
    "random": "flow.values",
    "sleep": "flow.values",
    "step": "flow.steps",
    "uuid4": "flow.values",
    "workflow": "flow.workflow",
}

__all__ = [
    "AlreadyResumed",
    "AmbiguousAnswer",
    "Chain",
    "ChainCheckpointError",
    "ChainCycleError",
    "ChainError",
    "ChainResult",
    "ChainResumeError",
    "ChainRoutingError",
    "ChainStateError",
    "ChainTemplateError",
    "Checkpoint",
    "Checkpointer",
    "DurableConflictError",
    "DurableLimitError",
    "DurableNotFoundError",
    "DurableRecoveryError",
    "DurableRunError",
    "DurableStorageError",
    "Engine",
    "EngineSettings",
    "Event",
    "FunctionTool",
    "IdempotencyError",
    "InterruptSignal",
    "InvalidInputError",
    "Limits",
    "NodeType",
    "OperationError",
    "PendingInterrupt",
    "PerdureError",
    "Resume",
    "RetryPolicy",
    "RunBusy",
    "RunLost",
    "RunResult",
    "SQLiteCheckpointer",
    "SerializationError",
    "UnawaitedOperation",
    "Workflow",
    "get_config",
    "idempotent",
    "interrupt",
    "node",
    "now",
    "open_engine",
    "open_store",
    "operation_id",
    "patched",
    "random",
    "sleep",
    "step",
    "uuid4",
    "workflow",
]


def __getattr__(name: str) -> Any:
    where = _WHERE.get(name)
    if where is None:
        raise AttributeError(f"module 'perdure' has no attribute {name!r}")
    value = getattr(import_module(f"perdure.{where}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
