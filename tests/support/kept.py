"""What tests of rows kept by hand say often: checkpoints, questions, and runs that ended long ago."""

from __future__ import annotations

from typing import Any

from perdure.checkpointers.protocol import Checkpoint, PendingInterrupt
from perdure.core import codec
from perdure.store.base import Store
from perdure.store.kept import KeptCheckpoint, KeptQuestion
from tests.support import runs

DAY_S = 86_400.0
FAR = 4e9
"""A clock far ahead: whatever has ended is old."""


def row(checkpoint_id: str, run_id: str = "e1", status: str = "completed", **fields: Any) -> KeptCheckpoint:
    """A checkpoint as the store keeps it, whose content names it."""
    content = codec.encode({"checkpoint_id": checkpoint_id, **fields})
    return KeptCheckpoint(checkpoint_id=checkpoint_id, run_id=run_id, status=status, content=content)


def question(interrupt_id: str, checkpoint_id: str, run_id: str = "e1") -> KeptQuestion:
    """A question as the store keeps it."""
    content = codec.encode(pending(run_id, interrupt_id=interrupt_id).model_dump())
    return KeptQuestion(interrupt_id=interrupt_id, run_id=run_id, checkpoint_id=checkpoint_id, content=content)


def checkpoint(checkpoint_id: str, execution_id: str = "e1", **fields: Any) -> Checkpoint:
    """A checkpoint as people put it."""
    values = {"chain_name": "custom", "node_id": "node", "step_type": "node", **fields}
    return Checkpoint(checkpoint_id=checkpoint_id, execution_id=execution_id, **values)


def pending(execution_id: str = "e1", **fields: Any) -> PendingInterrupt:
    """A question as people put it."""
    values = {
        "chain_name": "custom", "node_id": "node", "reason": "go on?", "context": {"amount": 5}, "agent_path": None,
        "created_at": "2026-01-02T03:04:05+00:00",
    }  # fmt: skip
    return PendingInterrupt(execution_id=execution_id, **(values | fields))


async def ended(store: Store, run_id: str, status: str = "completed", **values: Any) -> None:
    """A run with a step and a result, that is over."""
    owner = await runs.created(store, run_id, **values)
    await owner.write(runs.completed(0))
    assert await owner.end(status) == status
