"""What the store holds, as the rows that people see, and back. Decides the form of both; reads and writes nothing.

A checkpoint of a run is a view over its journal (`core.checkpoints`); one that was put by hand is a row. Both are in
one order, in which no clock has a say: what was put by hand stands behind the record that was the run's last then.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from perdure.checkpointers.protocol import Checkpoint, PendingInterrupt
from perdure.core import checkpoints, codec, ids, keys
from perdure.core.codec.text import dumps
from perdure.core.records import Loaded
from perdure.errors import InvalidInputError
from perdure.store.kept import Execution, KeptCheckpoint, KeptQuestion, OpenQuestion

M = TypeVar("M", bound=BaseModel)

_MAX_NUMBER = 2**63


# --- out ------------------------------------------------------------------------------------------------


def of_execution(execution: Execution) -> builtins.list[Checkpoint]:
    """Everything that the execution has, oldest first."""
    found: list[tuple[int, int, Checkpoint]] = [(row.after_seq, row.seq, of_kept(row)) for row in execution.kept]
    if execution.run is not None:
        found += [(seq, 0, checkpoint) for seq, checkpoint in of_run(execution.run)]
    return [checkpoint for *_, checkpoint in sorted(found, key=lambda each: each[:2])]


def of_run(loaded: Loaded) -> builtins.list[tuple[int, Checkpoint]]:
    """The checkpoints of a run with their places in its sequence, ascending."""
    return [(point.seq, _of_point(point)) for point in checkpoints.checkpoints(loaded)]


def _of_point(point: checkpoints.Checkpoint) -> Checkpoint:
    return Checkpoint(
        checkpoint_id=point.checkpoint_id,
        parent_checkpoint_id=point.parent_checkpoint_id,
        chain_name=point.chain_name,
        execution_id=point.execution_id,
        node_id=point.node_id,
        node_index=point.node_index,
        step_type=point.step_type,
        status=point.status,
        state_snapshot=checkpoints.decoded_state(point),
        node_input=codec.decode(dumps(point.node_input)),
        node_output=_output(point),
        iteration=point.iteration,
        iteration_counters=dict(point.iteration_counters),
        interrupt_reason=point.interrupt_reason,
        interrupt_context={} if point.interrupt_context is None else codec.decode(point.interrupt_context),
        created_at=moment(point.created_at),
    )


def _output(point: checkpoints.Checkpoint) -> Any:
    """What the node returned; of one that failed what it raised, of one that asks nothing."""
    if point.output is None or point.status == "interrupted":
        return {}
    if point.status == "failed":
        said = codec.decode(point.output)
        return {"error": said["type"], "message": said["message"]}
    return codec.decode(point.output)


def of_kept(row: KeptCheckpoint) -> Checkpoint:
    """A checkpoint as it was put."""
    found = Checkpoint.model_validate(codec.decode(row.content))
    return found if found.created_at else found.model_copy(update={"created_at": moment(row.put_at)})


def of_question(asked: OpenQuestion) -> PendingInterrupt:
    """An open question, of a run or kept."""
    if isinstance(asked, KeptQuestion):
        found = PendingInterrupt.model_validate(codec.decode(asked.content))
        return found if found.created_at else found.model_copy(update={"created_at": moment(asked.created_at)})
    return PendingInterrupt(
        execution_id=asked.run_id,
        chain_name=asked.runner,
        node_id=keys.node_id(asked.path, asked.index),
        reason=codec.decode(asked.reason),
        context=codec.decode(asked.context),
        agent_path=None,
        created_at=moment(asked.created_at),
        interrupt_id=asked.interrupt_id,
    )


def moment(at: float) -> str:
    """A time of the database as ISO 8601 in UTC."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="microseconds")


# --- in -------------------------------------------------------------------------------------------------


def to_kept(checkpoint: Checkpoint) -> KeptCheckpoint:
    """A checkpoint as the store keeps it. `InvalidInputError` names the field that is wrong; `SerializationError` the
    path of a value that cannot be kept exactly."""
    found = _checked(Checkpoint, "checkpoint", checkpoint)
    for name in ("node_index", "iteration"):
        if abs(getattr(found, name)) >= _MAX_NUMBER:
            raise InvalidInputError(f"checkpoint.{name}", "does not fit into 64 bits")
    return KeptCheckpoint(
        checkpoint_id=ids.check_id(found.checkpoint_id, "checkpoint.checkpoint_id"),
        run_id=ids.check_id(found.execution_id, "checkpoint.execution_id"),
        status=ids.check_id(found.status, "checkpoint.status"),
        content=codec.encode(_fields(found)),
        created_at=_time(found.created_at),
    )


def to_question(checkpoint: KeptCheckpoint, pending: PendingInterrupt) -> KeptQuestion:
    """A question as the store keeps it, with the checkpoint it is asked at. One without an id gets one."""
    found = _checked(PendingInterrupt, "pending", pending)
    if found.execution_id != checkpoint.run_id:
        raise InvalidInputError(
            "pending.execution_id", f"is {found.execution_id!r}, the checkpoint is of {checkpoint.run_id!r}"
        )
    if not found.interrupt_id:
        given = ids.interrupt_id(checkpoint.run_id, checkpoint.checkpoint_id, "pending")
        found = found.model_copy(update={"interrupt_id": given})
    return KeptQuestion(
        interrupt_id=ids.check_id(found.interrupt_id, "pending.interrupt_id"),
        run_id=checkpoint.run_id,
        checkpoint_id=checkpoint.checkpoint_id,
        content=codec.encode(_fields(found)),
    )


def _checked(model: type[M], name: str, value: object) -> M:
    """The value, validated once more: an attribute that was set later may be anything."""
    if not isinstance(value, model):
        raise InvalidInputError(name, f"must be a {model.__name__}, not {type(value).__qualname__}")
    try:
        return model.model_validate(_fields(value))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in (name, *first["loc"]))
        raise InvalidInputError(place, first["msg"]) from None


def _fields(value: BaseModel) -> dict[str, Any]:
    return {name: getattr(value, name) for name in type(value).model_fields}


def _time(text: str) -> str | None:
    """For people who query: a time that can be read as one, else None."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).astimezone(UTC).isoformat()


def encoded(values: Iterable[Any]) -> builtins.list[str]:
    """What a step wrote, as texts."""
    return [codec.encode(value) for value in values]
