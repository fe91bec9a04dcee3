"""Names at the paths the checkpointing reference gives them. Thin: nothing is decided here, and nothing is imported
until a name is asked for.

`interrupt` and `idempotent` are modules here, as in the reference; the functions are in them, and in `perdure`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perdure.errors import (
        ChainCheckpointError,
        ChainCycleError,
        ChainError,
        ChainResumeError,
        ChainRoutingError,
        ChainStateError,
        ChainTemplateError,
    )
    from perdure.flow.chain import Chain
    from perdure.flow.chain_result import ChainResult
    from perdure.flow.nodes import Node, NodeType, node
    from perdure.flow.tools import FunctionTool

_WHERE = {
    "Chain": "flow.chain",
    "ChainCheckpointError": "errors",
    "ChainCycleError": "errors",
    "ChainError": "errors",
    "ChainResult": "flow.chain_result",
    "ChainResumeError": "errors",
    "ChainRoutingError": "errors",
    "ChainStateError": "errors",
    "ChainTemplateError": "errors",
    "FunctionTool": "flow.tools",
    "Node": "flow.nodes",
    "NodeType": "flow.nodes",
    "node": "flow.nodes",
}

__all__ = [
    "Chain",
    "ChainCheckpointError",
    "ChainCycleError",
    "ChainError",
    "ChainResult",
    "ChainResumeError",
    "ChainRoutingError",
    "ChainStateError",
    "ChainTemplateError",
    "FunctionTool",
    "Node",
    "NodeType",
    "node",
]


def __getattr__(name: str) -> Any:
    where = _WHERE.get(name)
    if where is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"perdure.{where}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
