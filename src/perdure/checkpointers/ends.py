"""Where a run can be taken up or forked, read from a checkpointer's rows. Decides what the end of a run means to both.

For those who build their own way to resume; the engine reads its journal and needs none of this.
"""

from __future__ import annotations

from perdure.checkpointers.protocol import NO_LIMIT, Checkpoint, Checkpointer
from perdure.errors import AlreadyResumed, ChainCheckpointError

RUN_END = "run_end"
"""`step_type` of the row that a run writes when it ends."""

_FAILED = "failed"


def is_run_end(checkpoint: Checkpoint) -> bool:
    """Whether the row is the end of a run. A `step_type` of None (a row older than such ends) is not."""
    return checkpoint.step_type == RUN_END


def latest_resumable(
    checkpointer: Checkpointer, execution_id: str, *, latest: Checkpoint | None = None, runner: str = "Execution"
) -> Checkpoint | None:
    """The row to resume from: the last one of a node, stepping over the end of a run that failed. None if there is
    none.

    `latest` is the execution's last row, if the caller has read it. Raises `AlreadyResumed` for a run that has ended
    and did not fail; `runner` is what the message calls it.
    """
    last = latest or checkpointer.get_last(execution_id)
    if last is not None and is_run_end(last) and last.status != _FAILED:
        raise AlreadyResumed(
            execution_id,
            f"{runner} {execution_id!r} is {last.status}; to run it again use a new id, to branch from one of its "
            "steps fork it with checkpoint_id=...",
        )
    return _last_step(checkpointer, execution_id, last)


def latest_forkable(
    checkpointer: Checkpointer, execution_id: str, *, checkpoint_id: str | None = None
) -> Checkpoint | None:
    """The row to fork from: the named one, or the last one of a node, whether or not the run has ended. None if it
    holds nothing else than its end. Raises `ChainCheckpointError` for an id that is not there, or is that of the end.
    """
    if checkpoint_id is not None:
        return _named(checkpointer, execution_id, checkpoint_id)
    return _last_step(checkpointer, execution_id, checkpointer.get_last(execution_id))


def _named(checkpointer: Checkpointer, execution_id: str, checkpoint_id: str) -> Checkpoint:
    row = checkpointer.get_by_id(execution_id, checkpoint_id)
    if row is None:
        raise ChainCheckpointError(f"execution {execution_id!r} has no checkpoint {checkpoint_id!r}")
    if is_run_end(row):
        raise ChainCheckpointError(
            f"checkpoint {checkpoint_id!r} is the end of execution {execution_id!r}; fork from an earlier one"
        )
    return row


def _last_step(checkpointer: Checkpointer, execution_id: str, last: Checkpoint | None) -> Checkpoint | None:
    """The last row of a node. Mostly it is the last of all; the history is read whole, and only if it is not."""
    if last is None or _is_step(last):
        return last
    rows = checkpointer.list(execution_id, limit=NO_LIMIT)
    return next((row for row in reversed(rows) if _is_step(row)), None)


def _is_step(row: Checkpoint) -> bool:
    return row.node_id != "" and not is_run_end(row)
