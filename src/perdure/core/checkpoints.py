"""Checkpoints of a run: a view over its operations, for people and forks. Nothing reads them to recover. Pure.

A chain's checkpoints have its state after each node, and at each question; a workflow function's have none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from perdure.core import codec, keys
from perdure.core.codec.text import dumps, loads
from perdure.core.node_inputs import NodeInputs
from perdure.core.records import InterruptRow, Kind, Loaded, OutcomeKind, RecordType, StoredRecord
from perdure.core.snapshots import Reader
from perdure.errors import ChainCheckpointError, ChainResumeError, SerializationError

RUN_END = "run_end"
_PAUSE = "%/pause"
_STEP_TYPES = {"step": "node", "effect": "tool_call", "workflow": "node", "interrupt": "hitl_pause", "node": "node"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The state after a boundary. `seq` is its place in the run's sequence; `status` is completed, interrupted or
    failed. `state` and `node_input` are as values are recorded (trees): `codec.decode(dumps(...))` makes values.
    `output` is the encoded result. `read_chars`: how much has to be read for the state."""

    checkpoint_id: str
    parent_checkpoint_id: str | None
    execution_id: str
    chain_name: str
    node_id: str
    node_index: int
    step_type: str | None
    status: str
    output: str | None
    seq: int
    created_at: float
    operation: str = ""
    path: str = ""
    state: dict[str, Any] | None = None
    node_input: dict[str, Any] = field(default_factory=dict)
    iteration: int = 0
    iteration_counters: Mapping[str, int] = field(default_factory=dict)
    interrupt_reason: str | None = None
    interrupt_context: str | None = None
    read_chars: int = 0


def checkpoints(loaded: Loaded) -> list[Checkpoint]:
    """One checkpoint per operation that completed or asked, and one for the run's end; ascending."""
    view = _View(loaded)
    for record in loaded.records:
        view.take(record)
    return view.found


class _View:
    """The checkpoints of one run, record by record."""

    def __init__(self, loaded: Loaded) -> None:
        self.found: list[Checkpoint] = []
        self._loaded = loaded
        run = loaded.run
        self._origin = f"{run.forked_from}:{run.forked_seq}" if run.forked_from else None
        self._has_state = run.kind == "chain"
        self._reader: Reader | None = None
        self._ids: dict[str, str] = {}
        self._counters: dict[str, int] = {}
        self._questions = {row.interrupt_id: row for row in loaded.interrupts}
        self._inputs = NodeInputs()

    def take(self, record: StoredRecord) -> None:
        if record.type == RecordType.SUBMITTED and self._has_state:
            self._reader = Reader(record.data)
        elif record.kind == Kind.VALUE and record.path == keys.TOPOLOGY:
            self._inputs.learn(record.data)
        elif record.kind == Kind.ROUTE and record.data is not None:
            self._counters = {**self._counters, **codec.decode(record.data).get("counts", {})}
        elif (kind := self._kind_of(record)) is not None:
            self._add(record, *kind)

    def _kind_of(self, record: StoredRecord) -> tuple[str, str | None, str] | None:
        """Node, step type and status; None for what is no boundary."""
        if record.type == RecordType.STATUS:
            return (RUN_END, RUN_END, record.outcome) if record.outcome in ("completed", "failed") else None
        if record.path.startswith("@") or (record.path.startswith("%") and record.kind in (Kind.PATCH, Kind.VALUE)):
            # An idempotency key's record: the call that used it has a boundary of its own. The chain's own notes.
            return None
        if self._has_state and record.state is None:
            return None  # inside a node
        if record.type == RecordType.SUSPENDED:
            return record.name or "", "hitl_pause", "interrupted"
        if record.type == RecordType.COMPLETED:
            status = "failed" if record.outcome == OutcomeKind.ERROR else "completed"
            return record.name or "", _STEP_TYPES.get(record.kind or ""), status
        return None

    def _add(self, record: StoredRecord, node_id: str, step_type: str | None, status: str) -> None:
        run_id = self._loaded.run.run_id
        is_end = step_type == RUN_END
        key = "" if is_end else keys.operation_key(record.path, record.index)
        state, before, parent, cost = self._state_of(record, key)
        asked = self._asked(record) if record.type == RecordType.SUSPENDED else None
        checkpoint = Checkpoint(
            checkpoint_id=f"{run_id}:{record.seq}",
            parent_checkpoint_id=parent or (self.found[-1].checkpoint_id if self.found else self._origin),
            execution_id=run_id,
            chain_name=self._loaded.run.runner,
            node_id=node_id,
            node_index=len(self.found),
            step_type=step_type,
            status=status,
            output=record.data if self._reader is None else self._reader.results.get(key, record.data),
            seq=record.seq,
            created_at=record.at,
            operation=key,
            path=record.path,
            state=state,
            node_input={} if is_end else self._inputs.of(record.path, _before(record, state, before)),
            iteration=0 if is_end or not self._has_state else record.index,
            iteration_counters=self._counters,
            interrupt_reason=None if asked is None else _reason(asked),
            interrupt_context=None if asked is None else asked.context,
            read_chars=cost,
        )
        self.found.append(checkpoint)
        self._ids[key] = checkpoint.checkpoint_id

    def _state_of(self, record: StoredRecord, key: str) -> tuple[Any, Any, str | None, int]:
        """State after the record and before it, the id of the checkpoint it builds on, and what was read."""
        reader = self._reader
        if reader is None:
            return None, None, None, 0
        if record.state is None:  # the run failed: the state is what it was
            last = self.found[-1] if self.found else None
            return (last.state if last else reader.states[""]), None, None, (last.read_chars if last else 0)
        source = loads(record.state)["from"]
        before = reader.states.get(source)
        state = reader.take(key or "run_end", record.state, record.data)
        return state, before, self._ids.get(source, self._origin), reader.costs[key or "run_end"]

    def _asked(self, record: StoredRecord) -> InterruptRow | None:
        ids = codec.decode(record.data) if record.data else []
        rows = [self._questions[one] for one in ids if one in self._questions]
        rows += [row for row in self._questions.values() if (row.path, row.index) == (record.path, record.index)]
        return rows[0] if rows else None


def _reason(asked: InterruptRow) -> str:
    """What was asked. One spoilt text hides no checkpoint."""
    try:
        return str(codec.decode(asked.reason))
    except SerializationError:
        return asked.reason


def _before(record: StoredRecord, state: Any, base: Any) -> Any:
    """The state a node began with: the one after it, but for what it wrote. At a join that is not the one it builds
    on."""
    if record.outcome != OutcomeKind.VALUE or not isinstance(state, dict) or not isinstance(base, dict):
        return state
    result = loads(record.data) if record.data else None
    written = {record.name, *(result if isinstance(result, dict) else ())}
    kept = {name: value for name, value in state.items() if name not in written}
    return {**kept, **{name: base[name] for name in written if name in base}}


def latest_state(loaded: Loaded) -> dict[str, Any] | None:
    """The state of a run so far, as a tree: at its end or its last pause, or what its last record says. None for a run
    without one."""
    reader = Reader(None)
    state: dict[str, Any] | None = None
    for record in loaded.records:
        if record.type == RecordType.SUBMITTED and loaded.run.kind == "chain":
            reader = Reader(record.data)
            state = reader.states[""]
        elif record.state is not None:
            key = _PAUSE if record.type == RecordType.STATUS else keys.operation_key(record.path, record.index)
            state = reader.take(key, record.state, record.data)
    return state


def decoded_state(checkpoint: Checkpoint) -> dict[str, Any]:
    """The state as values; those of types that are not declared here are their data."""
    state = codec.decode(dumps(checkpoint.state)) if checkpoint.state is not None else {}
    return state if isinstance(state, dict) else {}


def fork_point(loaded: Loaded, checkpoint_id: str | int | None) -> int:
    """The sequence to fork after. None is the last executed step (never the run's end). Raises `ChainCheckpointError`
    for an id that is not a checkpoint of this run, or names its end; `ChainResumeError` if nothing was executed."""
    known = checkpoints(loaded)
    if checkpoint_id is None:
        steps = [c for c in known if c.step_type != RUN_END]
        if not steps:
            raise ChainResumeError(f"run {loaded.run.run_id} has executed nothing: there is no checkpoint to fork from")
        # What a person changed since then belongs to it: nothing was executed after that.
        changed = [record.seq for record in loaded.records if record.type == RecordType.PATCHED]
        return max([steps[-1].seq, *changed])
    for checkpoint in known:
        if str(checkpoint_id) in (checkpoint.checkpoint_id, str(checkpoint.seq)):
            if checkpoint.step_type == RUN_END:
                raise ChainCheckpointError(
                    f"checkpoint {checkpoint_id} is the end of run {loaded.run.run_id}; fork from an earlier one"
                )
            return checkpoint.seq
    raise ChainCheckpointError(f"run {loaded.run.run_id} has no checkpoint {checkpoint_id}")
