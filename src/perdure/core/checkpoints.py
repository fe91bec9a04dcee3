"""Checkpoints of a workflow: a view over its operations, for people and forks. Nothing reads them to recover. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from perdure.core.records import Loaded, OutcomeKind, RecordType
from perdure.errors import ChainCheckpointError

_STEP_TYPES = {"step": "node", "effect": "tool_call", "workflow": "node", "interrupt": "hitl_pause"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The state after a boundary. `seq` is its place in the run's sequence; `status` is completed, interrupted or
    failed."""

    checkpoint_id: str
    parent_checkpoint_id: str | None
    execution_id: str
    node_id: str
    node_index: int
    step_type: str | None
    status: str
    output: str | None
    seq: int
    created_at: float


def checkpoints(loaded: Loaded) -> list[Checkpoint]:
    """One checkpoint per operation that completed or asked, and one for the run's end; ascending."""
    found: list[Checkpoint] = []
    for record in loaded.records:
        if record.path.startswith("@"):
            continue  # the record of an idempotency key: the call that used it has a boundary of its own
        if record.type == RecordType.STATUS:
            if record.outcome not in ("completed", "failed"):
                continue
            node, step, status = "run_end", "run_end", record.outcome
        elif record.type == RecordType.SUSPENDED:
            node, step, status = record.name or "", "hitl_pause", "interrupted"
        elif record.type == RecordType.COMPLETED:
            node, step = record.name or "", _STEP_TYPES.get(record.kind or "")
            status = "failed" if record.outcome == OutcomeKind.ERROR else "completed"
        else:
            continue
        found.append(
            Checkpoint(
                checkpoint_id=f"{loaded.run.run_id}:{record.seq}",
                parent_checkpoint_id=found[-1].checkpoint_id if found else _origin(loaded),
                execution_id=loaded.run.run_id,
                node_id=node,
                node_index=len(found),
                step_type=step,
                status=status,
                output=record.data,
                seq=record.seq,
                created_at=record.at,
            )
        )
    return found


def _origin(loaded: Loaded) -> str | None:
    run = loaded.run
    return f"{run.forked_from}:{run.forked_seq}" if run.forked_from else None


def fork_point(loaded: Loaded, checkpoint_id: str | int | None) -> int:
    """The sequence to fork after. None is the last executed step (never the run's end). Raises `ChainCheckpointError`
    for an id that is not a checkpoint of this run, or names its end."""
    known = checkpoints(loaded)
    if checkpoint_id is None:
        steps = [c for c in known if c.step_type != "run_end"]
        return steps[-1].seq if steps else 1
    for checkpoint in known:
        if str(checkpoint_id) in (checkpoint.checkpoint_id, str(checkpoint.seq)):
            if checkpoint.step_type == "run_end":
                raise ChainCheckpointError(
                    f"checkpoint {checkpoint_id} is the end of run {loaded.run.run_id}; fork from an earlier one"
                )
            return checkpoint.seq
    raise ChainCheckpointError(f"run {loaded.run.run_id} has no checkpoint {checkpoint_id}")
