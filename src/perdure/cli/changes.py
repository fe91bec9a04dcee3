"""Changes of a chain's state as people type them: `--set PATH=VALUE`. Decides how they are read, which state they
start from, and what becomes of it. Pure.

A path is written as in templates (`total`, `order.items[0].price`, `state["a key"]`), with or without `state.` in
front. A value is JSON where it is some, else a text; `PATH:=JSON` takes JSON only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from perdure.cli.states import Point, input_of, points_of_run, question_point
from perdure.cli.values import parse_json
from perdure.core import codec, keys, topology
from perdure.core.codec.text import dumps
from perdure.core.expression import Malformed, Path, Reader
from perdure.core.fold import fold
from perdure.core.records import InterruptRow, Loaded
from perdure.core.topology import Topology
from perdure.errors import InvalidInputError, PerdureError

OPTION = "--set"
# A text that begins like this was meant as JSON: if it is none, a quote or a bracket is missing.
_JSON_STARTS = ("{", "[", '"')
_MAX_KEYS_SHOWN = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What to set where. `segments` lead from the state to the place; the first is a key of the state."""

    segments: tuple[str | int, ...]
    value: Any

    @property
    def option(self) -> str:
        """How an error names it."""
        return f"{OPTION} {Path(segments=('state', *self.segments)).text}"


# --- reading ----------------------------------------------------------------------------------------------


def parse_changes(texts: Sequence[str]) -> list[Change]:
    """Every `PATH=VALUE`, in order. Raises `InvalidInputError` naming what cannot be read, or a path given twice."""
    changes = [_parse(text) for text in texts]
    for number, change in enumerate(changes):
        if any(change.segments == other.segments for other in changes[:number]):
            raise InvalidInputError(change.option, "is given twice")
    return changes


def _parse(text: str) -> Change:
    reader = Reader(text)
    try:
        segments = reader.path().segments
        symbol = next((symbol for symbol in (":=", "=") if text.startswith(symbol, reader.at)), None)
        if symbol is None:
            raise reader.unexpected("'=' or ':=' behind the path")
    except Malformed as problem:
        raise InvalidInputError(OPTION, f"{text!r} is not PATH=VALUE: {_why(text, problem)}") from None
    if segments[0] == "state":
        segments = segments[1:]
    if not segments or not isinstance(segments[0], str):
        raise InvalidInputError(OPTION, f"{text!r} names no key of the state (a key `state` is written state.state)")
    change = Change(segments=segments, value=None)
    value = _value(text[reader.at + len(symbol) :], change.option, is_json=symbol == ":=")
    return replace(change, value=value)


def _why(text: str, problem: Malformed) -> str:
    if text[problem.at : problem.at + 1] == "-":
        return 'a key with other characters than those of a name is written state["a-key"]'
    return f"at column {problem.at + 1}: {problem.message}"


def _value(text: str, option: str, *, is_json: bool) -> Any:
    try:
        return parse_json(text, option)
    except InvalidInputError:
        if text.lstrip().startswith(_JSON_STARTS):
            raise
        if is_json:
            raise InvalidInputError(option, f"{text!r} is not JSON; a text is set with = instead of :=") from None
        return text


# --- setting ----------------------------------------------------------------------------------------------


def applied(changes: Sequence[Change], state: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of the state that change, with all there is below them. The state itself is left as it is. Raises
    `InvalidInputError` naming the path that leads nowhere."""
    made: dict[str, Any] = {}
    for change in changes:
        key, *rest = change.segments
        assert isinstance(key, str)  # `_parse` has seen to it
        if not rest:
            made[key] = change.value
            continue
        whole = made if key in made else state
        if key not in whole:
            raise InvalidInputError(change.option, f"there is no {key!r} in the state{_known(whole)}")
        made[key] = _with(whole[key], rest, change, 1)
    return made


def _with(value: Any, rest: Sequence[str | int], change: Change, depth: int) -> Any:
    """The value with one place in it changed. Only what is on the way there is copied."""
    segment, *further = rest
    where = Path(segments=("state", *change.segments[:depth])).text
    if isinstance(value, dict):
        key = segment if segment in value else str(segment)
        if further and key not in value:
            raise InvalidInputError(change.option, f"there is no {key!r} in {where}{_known(value)}")
        return {**value, key: _with(value[key], further, change, depth + 1) if further else change.value}
    if type(value) in (list, tuple):
        if not isinstance(segment, int):
            raise InvalidInputError(change.option, f"{where} is a list: it takes an index such as [0], not {segment!r}")
        if not -len(value) <= segment < len(value):
            raise InvalidInputError(change.option, f"there is no [{segment}] in {where}, which has {len(value)} items")
        items = list(value)
        items[segment] = _with(items[segment], further, change, depth + 1) if further else change.value
        return type(value)(items)
    raise InvalidInputError(
        change.option, f"{where} is {_kind(value)}: it has no parts that can be set; set it as a whole"
    )


def _kind(value: Any) -> str:
    return "null" if value is None else f"of type {type(value).__name__}"


def _known(mapping: Mapping[Any, Any]) -> str:
    if not mapping:
        return ", which is empty"
    names = [repr(key) for key in mapping]
    more = f" and {len(names) - _MAX_KEYS_SHOWN} more" if len(names) > _MAX_KEYS_SHOWN else ""
    return f"; there is {', '.join(names[:_MAX_KEYS_SHOWN])}{more}"


# --- the state they start from ----------------------------------------------------------------------------


def state_at(loaded: Loaded, seq: int | None = None, question: InterruptRow | None = None) -> dict[str, Any]:
    """The state that a change of the run would change, as values: at a question, or at a place in its sequence
    (default: now). A nested chain with an input of its own has a state of its own, which no change reaches."""
    shape = _shape(loaded)
    last = loaded.records[-1].seq if seq is None else seq
    reached = [
        point
        for point in points_of_run(loaded)
        if point.seq <= last and point.state is not None and _is_reached(point.path, shape)
    ]
    asked = None if question is None else question_point(reached, question.path, question.index)
    point = asked or (reached[-1] if reached else None)
    state = _values(input_of(loaded) if point is None else point.state)
    return {**state, **_changed_since(loaded, point, last)}


def _shape(loaded: Loaded) -> Topology | None:
    recorded = next((record.data for record in loaded.records if record.path == keys.TOPOLOGY), None)
    try:
        return topology.from_document(codec.decode(recorded or "null"))
    except PerdureError:
        return None


def _is_reached(path: str, shape: Topology | None) -> bool:
    """Whether the operation belongs to the chain itself, or to one inside it that goes on from the same state."""
    *outer, _ = path.split("/")[::2]
    for name in outer:
        node = None if shape is None else next((n for n in shape.nodes if keys.node_path("", n.id) == name), None)
        if node is None or node.inner is None or node.inputs is not None:
            return False
        shape = node.inner
    return True


def _values(tree: Any) -> dict[str, Any]:
    values = codec.decode(dumps(tree))
    return values if isinstance(values, dict) else {}


def _changed_since(loaded: Loaded, point: Point | None, last: int) -> dict[str, Any]:
    """What people have changed since the checkpoint."""
    since = 0 if point is None else point.seq
    changed: dict[str, Any] = {}
    for op in fold(record for record in loaded.records if record.seq <= last).state_patches:
        if op.seq > since:
            changed.update(codec.decode(op.data or "{}").get("state", {}))
    return changed
