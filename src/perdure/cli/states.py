"""Checkpoints with their states, of runs and put by hand: which one is meant, and what differs between two states.

Decides what is said of a checkpoint, and where one state differs from another. Pure; `inspection` shows it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from perdure.cli.values import decoded, moment, plain, shown
from perdure.core import checkpoints, codec, keys, lineage
from perdure.core.codec.text import dumps, loads
from perdure.core.expression import Path
from perdure.core.records import Loaded
from perdure.errors import ChainCheckpointError
from perdure.store.kept import Execution, KeptCheckpoint

_MAX_SHOWN = 72
"""Characters of a value in a list of differences."""
_LEAD_IN = 16
"""Of two long texts that begin alike, so much is shown of what they have in common."""
_NONE: Any = object()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Point:
    """A checkpoint as it is shown. Texts are encoded values; `state` and `node_input` are trees, as texts are parsed
    to. `state` is None where there is none (a workflow function's). `number` names it beside its id."""

    checkpoint_id: str
    number: int | None
    parent_id: str | None
    node_id: str
    node_index: int
    operation: str = ""
    path: str = ""
    step_type: str | None
    status: str
    state: Any = None
    node_input: Any = None
    output: str | None = None
    iteration: int = 0
    iteration_counters: Any = field(default_factory=dict)
    reason: Any = None
    context: str | None = None
    agent_path: str | None = None
    created_at: str | None
    seq: int = 0
    """Its place in the run's sequence; 0 if it was put by hand."""

    @property
    def is_by_hand(self) -> bool:
        return self.seq == 0

    @property
    def place(self) -> str:
        """Where it was made: the operation in a chain, else the node."""
        has_key = self.state is not None and not self.is_by_hand
        return self.operation if has_key and self.operation else self.node_id

    def document(self, changed: Changed | None, writes: Sequence[Any]) -> dict[str, Any]:
        """The checkpoint as JSON, under the names of `Checkpoint`."""
        return {
            "checkpoint_id": self.checkpoint_id,
            "parent_checkpoint_id": self.parent_id,
            "node_id": self.node_id,
            "node_index": self.node_index,
            "operation": self.operation or None,
            "step_type": self.step_type,
            "status": self.status,
            "changed": None if changed is None else changed.document(),
            "state_snapshot": value_of(self.state),
            "node_input": value_of(self.node_input),
            "node_output": decoded(self.output),
            "iteration": self.iteration,
            "iteration_counters": plain(self.iteration_counters),
            "interrupt_reason": plain(self.reason),
            "interrupt_context": decoded(self.context),
            "agent_path": self.agent_path,
            "is_by_hand": self.is_by_hand,
            "writes": list(writes),
            "created_at": self.created_at,
        }


def value_of(tree: Any) -> Any:
    """A tree as plain data."""
    return None if tree is None else decoded(dumps(tree))


# --- which there are --------------------------------------------------------------------------------------


def points_of(execution: Execution) -> list[Point]:
    """Every checkpoint of an execution, in the order in which they came to be."""
    numbered = execution.run is None
    by_hand = [(row.after_seq, row.seq, _put(row, is_numbered=numbered)) for row in execution.kept]
    of_run = [] if execution.run is None else [(point.seq, 0, point) for point in points_of_run(execution.run)]
    return [point for *_, point in sorted([*of_run, *by_hand], key=lambda each: each[:2])]


def points_of_run(loaded: Loaded) -> list[Point]:
    """The checkpoints of a run, ascending."""
    return [_of_run(checkpoint) for checkpoint in checkpoints.checkpoints(loaded)]


def _of_run(checkpoint: checkpoints.Checkpoint) -> Point:
    return Point(
        checkpoint_id=checkpoint.checkpoint_id,
        number=checkpoint.seq,
        parent_id=checkpoint.parent_checkpoint_id,
        node_id=checkpoint.node_id,
        node_index=checkpoint.node_index,
        operation=checkpoint.operation,
        path=checkpoint.path,
        step_type=checkpoint.step_type,
        status=checkpoint.status,
        state=checkpoint.state,
        node_input=checkpoint.node_input or None,
        # What a question's record has are the ids of its questions: no result.
        output=None if checkpoint.status == "interrupted" else checkpoint.output,
        iteration=checkpoint.iteration,
        iteration_counters=checkpoint.iteration_counters,
        reason=checkpoint.interrupt_reason,
        context=checkpoint.interrupt_context,
        created_at=moment(checkpoint.created_at),
        seq=checkpoint.seq,
    )


def _put(row: KeptCheckpoint, *, is_numbered: bool) -> Point:
    """One that was put by hand. A text that cannot be read hides nothing but itself."""
    said = _content(row.content)
    return Point(
        checkpoint_id=row.checkpoint_id,
        number=row.seq if is_numbered else None,
        parent_id=said.get("parent_checkpoint_id"),
        node_id=str(said.get("node_id", "")),
        node_index=said.get("node_index", 0),
        step_type=said.get("step_type"),
        status=row.status,
        state=said.get("state_snapshot", {}),
        node_input=said.get("node_input") or None,
        output=dumps(said["node_output"]) if said.get("node_output", {}) != {} else None,
        iteration=said.get("iteration", 0),
        iteration_counters=said.get("iteration_counters", {}),
        reason=said.get("interrupt_reason"),
        context=dumps(context) if (context := said.get("interrupt_context")) else None,
        agent_path=said.get("agent_path"),
        created_at=said.get("created_at") or moment(row.put_at),
    )


def _content(text: str) -> dict[str, Any]:
    try:
        said = loads(text)
    except ValueError:
        said = None
    return said if isinstance(said, dict) else {"node_output": {"undecodable": text}}


def find(points: Sequence[Point], wanted: str, execution_id: str) -> Point:
    """The checkpoint of this id or number. Raises `ChainCheckpointError` if there is none."""
    for point in points:
        if point.checkpoint_id == wanted:
            return point
    for point in points:
        if str(point.number) == wanted:
            return point
    raise ChainCheckpointError(f"{execution_id} has no checkpoint {wanted}; see: perdure inspect {execution_id}")


# --- what they build on -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """Keys of the state that are new, different or gone since the checkpoint it builds on."""

    added: list[str]
    changed: list[str]
    removed: list[str]

    def document(self) -> dict[str, list[str]]:
        return {"added": self.added, "changed": self.changed, "removed": self.removed}

    def __str__(self) -> str:
        marked = [("+", self.added), ("~", self.changed), ("-", self.removed)]
        return " ".join(f"{mark}{_path_text((key,))}" for mark, found in marked for key in found)


def changes_of(points: Sequence[Point], execution: Execution) -> dict[str, Changed]:
    """What each changed of the state, by checkpoint id; nothing of those without a state. What builds on nothing that
    is here builds on the run's input; what was put by hand, on what was put before it."""
    known = {point.checkpoint_id: point for point in points}
    first = input_of(execution.run) if execution.run is not None else {}
    found: dict[str, Changed] = {}
    for number, point in enumerate(points):
        parent = known.get(point.parent_id or "")
        if parent is None and point.is_by_hand and number:
            parent = points[number - 1]
        if point.state is not None:
            found[point.checkpoint_id] = _changed(first if parent is None else parent.state, point.state)
    return found


def input_of(loaded: Loaded) -> Any:
    """The state that a chain begins with, as a tree; an empty one if it cannot be read."""
    data = next((record.data for record in loaded.records if record.data is not None), None)
    try:
        tree = loads(data or "{}")
    except ValueError:
        return {}
    return tree if isinstance(tree, dict) else {}


def _changed(old: Any, new: Any) -> Changed:
    before = old if isinstance(old, dict) else {}
    after = new if isinstance(new, dict) else {}
    return Changed(
        added=[key for key in after if key not in before],
        changed=[key for key in after if key in before and not lineage.is_same(before[key], after[key])],
        removed=[key for key in before if key not in after],
    )


# --- what differs -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One place where two states differ. `change` is added, removed, changed or reordered; the paths of what was
    removed from a list are those of the old one."""

    path: str
    change: str
    old: Any = _NONE
    new: Any = _NONE

    def document(self) -> dict[str, Any]:
        sides = {"old": self.old, "new": self.new}
        given = {name: plain(value) for name, value in sides.items() if value is not _NONE}
        return {"path": self.path, "change": self.change, **given}

    def texts(self) -> tuple[str, str]:
        """Both values, each on one line, shortened to where they differ; "" for one that is not there."""
        old = "" if self.old is _NONE else shown(self.old)
        new = "" if self.new is _NONE else shown(self.new)
        is_long = max(len(old), len(new)) > _MAX_SHOWN
        start = max(0, _alike(old, new) - _LEAD_IN) if is_long else 0
        return _shortened(old, start), _shortened(new, start)


def _shortened(text: str, start: int) -> str:
    end = start + _MAX_SHOWN
    return ("…" if start and text else "") + text[start:end] + ("…" if len(text) > end else "")


def differences(old: Any, new: Any) -> list[Difference]:
    """Where the state `new` (a tree) differs from `old`, in the order of the state."""
    return list(_differences(_readable(old), _readable(new), ()))


def _readable(tree: Any) -> Any:
    """A tree as values, so that a path does not lead into how one is written down."""
    text = dumps(tree)
    try:
        return codec.decode(text)
    except Exception:  # as in `values.decoded`: looking must work
        return tree


_Segments = tuple[str | int, ...]


def _differences(old: Any, new: Any, path: _Segments) -> Iterator[Difference]:
    if lineage.is_same(old, new):
        return
    if type(old) is type(new) is dict:
        yield from _of_dicts(old, new, path)
    elif type(old) is type(new) and isinstance(new, list | tuple):
        yield from _of_lists(old, new, path)
    else:
        yield Difference(path=_path_text(path), change="changed", old=old, new=new)


def _of_dicts(old: dict[Any, Any], new: dict[Any, Any], path: _Segments) -> Iterator[Difference]:
    for key, value in old.items():
        if key not in new:
            yield Difference(path=_path_text((*path, _segment(key))), change="removed", old=value)
    for key, value in new.items():
        if key in old:
            yield from _differences(old[key], value, (*path, _segment(key)))
        else:
            yield Difference(path=_path_text((*path, _segment(key))), change="added", new=value)
    left, right = [key for key in old if key in new], [key for key in new if key in old]
    if left != right:
        yield Difference(path=_path_text(path), change="reordered", old=list(old), new=list(new))


def _segment(key: Any) -> str | int:
    return key if type(key) in (str, int) else str(plain(key))


def _of_lists(old: Sequence[Any], new: Sequence[Any], path: _Segments) -> Iterator[Difference]:
    """What both ends have in common is left out, so that an item that was put in front is one difference."""
    head = _alike(old, new)
    tail = _alike(old[head:][::-1], new[head:][::-1])
    gone, come = range(head, len(old) - tail), range(head, len(new) - tail)
    if len(gone) == len(come):
        for index in come:
            yield from _differences(old[index], new[index], (*path, index))
        return
    for index in gone:
        yield Difference(path=_path_text((*path, index)), change="removed", old=old[index])
    for index in come:
        yield Difference(path=_path_text((*path, index)), change="added", new=new[index])


def _alike(old: Sequence[Any], new: Sequence[Any]) -> int:
    count = 0
    for before, after in zip(old, new, strict=False):
        if not lineage.is_same(before, after):
            break
        count += 1
    return count


def _path_text(segments: _Segments) -> str:
    """A path as `--set` and templates take it. What begins with no plain name, or with `state` itself, begins with
    `state` once more."""
    text = Path(segments=segments).text
    if not segments:
        return "state"
    if text.startswith("[") or segments[0] == "state":
        return Path(segments=("state", *segments)).text
    return text


def question_point(points: Sequence[Point], path: str, index: int) -> Point | None:
    """The checkpoint at which an operation has asked, the last time."""
    key = keys.operation_key(path, index)
    return next((p for p in reversed(points) if p.operation == key and p.step_type == "hitl_pause"), None)
