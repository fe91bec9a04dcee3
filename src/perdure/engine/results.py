"""What callers get: results, recorded failures, open questions as they are shown. Pure, but for decoding."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from perdure.core import codec, keys
from perdure.core.records import InterruptRow
from perdure.core.states import Status
from perdure.engine.calls import OWN_ERRORS
from perdure.engine.runner import Runner

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult(Generic[T]):
    """What became of a run, for now. `status` is completed or paused; `pending_interrupts` are its open questions,
    oldest first: each `{interrupt_id, reason, context, node_id, agent_path}`; `pending_interrupt` is the first."""

    execution_id: str
    status: str = "completed"
    output: T | None = None
    pending_interrupts: list[dict[str, Any]] = field(default_factory=list)

    @property
    def pending_interrupt(self) -> dict[str, Any] | None:
        return self.pending_interrupts[0] if self.pending_interrupts else None


def result_of(runner: Runner, run_id: str, status: Status, data: str | None) -> RunResult[Any]:
    if status is Status.COMPLETED:
        return RunResult(execution_id=run_id, output=runner.decode_output(data))
    error = codec.decode_error(data or "null", (*runner.errors, *OWN_ERRORS))
    error.add_note(f"run {run_id} has failed")
    raise error


def question_dict(row: InterruptRow) -> dict[str, Any]:
    """An open question as the results, the CLI and the API show it."""
    return {
        "interrupt_id": row.interrupt_id,
        "reason": codec.decode(row.reason),
        "context": codec.decode(row.context),
        "node_id": keys.node_id(row.path, row.index),
        "agent_path": None,
    }
