"""What a run of a chain has come to, as callers get it; and what the records say of a run that ended elsewhere."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from perdure.core import codec
from perdure.core.checkpoints import Checkpoint, checkpoints
from perdure.core.codec.text import dumps
from perdure.core.records import Loaded


class ChainResult(BaseModel):
    """A chain's run, completed or paused.

    `output` is the result of the node the chain ended with; `final_state` the state after all of them, or so far;
    `node_results` the last result of each node. `pending_interrupts` are the open questions, oldest first, each
    `{interrupt_id, reason, context, node_id, agent_path}`; `pending_interrupt` is the first, None unless paused.
    `trace_id` is None where nothing traces.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    output: Any = None
    final_state: dict[str, Any] = Field(default_factory=dict)
    execution_id: str = ""
    node_results: dict[str, Any] = Field(default_factory=dict)
    status: str = "completed"
    pending_interrupt: dict[str, Any] | None = None
    pending_interrupts: list[dict[str, Any]] = Field(default_factory=list)
    trace_id: str | None = None


class SettledChainResult(ChainResult):
    """A result that can be awaited, for `Chain.resume` outside of an event loop: it has run to the end already."""

    def __await__(self) -> Generator[Any, None, ChainResult]:
        return self
        yield  # makes it a generator: there is nothing to wait for

    def send(self, value: Any, /) -> Any:
        raise StopIteration(self)

    def throw(self, *exception: Any) -> Any:
        error = exception[0]
        raise error if isinstance(error, BaseException) else error()

    def close(self) -> None:
        """There is nothing to be closed."""


def state_of(loaded: Loaded) -> tuple[dict[str, Any], dict[str, Any]]:
    """State and results by node as the records have them: values of undeclared types are their data."""
    found = checkpoints(loaded)
    state = next((one.state for one in reversed(found) if one.state is not None), None)
    results = {one.node_id: one for one in found if _is_result(one)}
    values = {node_id: codec.decode(one.output or "null") for node_id, one in results.items()}
    decoded = codec.decode(dumps(state)) if state is not None else {}
    return decoded if isinstance(decoded, dict) else {}, values


def _is_result(checkpoint: Checkpoint) -> bool:
    is_node = checkpoint.step_type == "node" and "/" not in checkpoint.path
    return is_node and checkpoint.status == "completed"
