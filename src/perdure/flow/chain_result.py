"""What a run of a chain has come to, as callers get it; and what the records say of a run that ended elsewhere."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from perdure.core import codec
from perdure.core.checkpoints import Checkpoint, checkpoints, latest_state
from perdure.core.codec.text import dumps
from perdure.core.records import Loaded
from perdure.errors import PerdureError
from perdure.flow.plan import Plan


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


def state_of(loaded: Loaded, plan: Plan) -> tuple[dict[str, Any], dict[str, Any]]:
    """State and results by node as the records have them, with the types that the chain declares."""
    tree = latest_state(loaded)
    declared = {node.given.output_key or node.given.id: node.spec.declared for node in plan.nodes.values()}
    state = {name: _decoded(dumps(part), declared.get(name)) for name, part in (tree or {}).items()}
    results = {one.node_id: one.output or "null" for one in checkpoints(loaded) if _is_result(one)}
    types = {node.given.id: node.spec.declared for node in plan.nodes.values()}
    values = {node_id: _decoded(text, types.get(node_id)) for node_id, text in results.items()}
    return _typed(plan, state), values


def _typed(plan: Plan, state: dict[str, Any]) -> dict[str, Any]:
    """What does not fit the schema any more is shown as it is."""
    try:
        return state if plan.schema is None else plan.schema.check(state)
    except PerdureError:
        return state


def _decoded(text: str, declared: object) -> Any:
    try:
        return codec.decode(text, declared)
    except PerdureError:
        return codec.decode(text)


def _is_result(checkpoint: Checkpoint) -> bool:
    is_node = checkpoint.step_type == "node" and "/" not in checkpoint.path
    return is_node and checkpoint.status == "completed"
