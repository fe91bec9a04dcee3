"""How states of a chain are stored: as the difference to the state they come from, or whole where that is cheaper.

Decides the text in `Record.state`, and reads it. A text names the checkpoint it builds on by its operation's key and
says what is different; what the operation itself returned is referred to, not copied. A state is stored whole when
what would have to be read for it outweighs it twice, so storage stays linear in what changed (law 9), and reading a
state takes at most twice its size. For people and forks: nothing reads it to recover. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from perdure.core import codec, delta, lineage
from perdure.core.codec.text import dumps, loads

# {"from": key, "ops": [...]} or {"from": key, "whole": tree}. Operations beside those of `core.delta`:
#   ["merge"]                              the operation's result is an object: its keys are set
#   ["put", path, path_in_result]          what the result has there is set
#   ["ins", path, at, n, path_in_result]   n items from `at` give way to the list that the result has there
State = dict[str, Any]
Path = list[str | int]

_ENOUGH = 0.9
"""A whole state is written a little early: to look how large it really is costs as much as to write it."""
_UNKNOWN = object()


@dataclass(slots=True)
class Stored:
    """A state as it is stored, which later ones may build on. `size`: about the length of its text; `read`: of all
    that has to be read for it. In characters."""

    key: str
    state: State
    size: int
    read: int


def initial(key: str, state: State) -> Stored:
    """The state that is in the journal anyway: the run's input."""
    size = len(codec.encode(state))
    return Stored(key, state, size, size)


def store(
    base: Stored, visit: lineage.Visit, result: Any, result_text: str | None, *, is_merged: bool
) -> tuple[str, Stored]:
    """The text for the state after `visit`, whose operation returned `result`, and what later ones build on.
    `is_merged`: the result is a dict, and what it has are the keys that the visit sets."""
    changes = list(_changes(base.state, visit, result, is_merged))
    return _store(base, visit.key, visit.after, changes, result_text)


def store_before(base: Stored, key: str, state: State) -> tuple[str, Stored]:
    """The same for an operation that has no result: one that asks, the end of the run, the start of a nested chain."""
    return _store(base, key, state, list(_differences(base.state, state)), None)


def _store(base: Stored, key: str, state: State, operations: list[list[Any]], text: str | None) -> tuple[str, Stored]:
    said = dumps({"from": base.key, "ops": operations})
    if not operations:
        return said, Stored(key, state, base.size, base.read)
    is_referring = any(name in _REFERRING for name, *_ in operations)
    read = base.read + len(said) + (len(text or "") if is_referring else 0)
    size = max(2, base.size + _growth(base.state, state))
    if read > 2 * size * _ENOUGH:  # an estimate: now it is worth looking
        whole = dumps({"from": base.key, "whole": _tree(state)})
        size = len(whole)
        if read > 2 * size * _ENOUGH:
            return whole, Stored(key, state, size, size)
    return said, Stored(key, state, size, read)


_REFERRING = frozenset({"merge", "put", "ins"})


def _tree(value: Any) -> Any:
    return loads(codec.encode(value))


def _growth(old: State, new: State) -> int:
    """How much longer the text has become. Equal parts are found by identity: what did not change is shared."""
    grown = 0
    for name, value in new.items():
        before = old.get(name, _UNKNOWN)
        if before is not value:
            grown += _weight_difference(before, value) + (len(name) + 4 if before is _UNKNOWN else 0)
    if len(new) <= len(old):
        grown -= sum(_weight(value) + len(name) + 4 for name, value in old.items() if name not in new)
    return grown


def _weight_difference(old: Any, new: Any) -> int:
    if old is _UNKNOWN:
        return _weight(new)
    if type(old) is type(new) is list:
        head = _shared(old, new)
        return sum(_weight(item) + 1 for item in new[head:]) - sum(_weight(item) + 1 for item in old[head:])
    if type(old) is type(new) is str and new.startswith(old):
        return len(new) - len(old)
    return _weight(new) - _weight(old)


def _weight(value: Any) -> int:
    """About the length of a value's text."""
    kind = type(value)
    if kind is str:
        return len(value) + 2
    if kind is list:
        return 2 + sum(_weight(item) + 1 for item in value)
    if kind is dict:
        return 2 + sum(_weight(item) + len(str(key)) + 4 for key, item in value.items())
    if kind in (bool, int, float, type(None)):
        return 4
    return len(codec.encode(value))


# --- what changed ---------------------------------------------------------------------------------------


def _changes(old: State, visit: lineage.Visit, result: Any, is_merged: bool) -> Iterator[list[Any]]:
    """What the visit changed. It builds on one state only if its own is known to differ from it in what it wrote."""
    writes = visit.writes
    is_direct = len(visit.parents) == 1 and visit.parents[0].after is old
    if not is_direct:
        yield from _differences(old, visit.after, writes, result)
    elif is_merged and all(visit.after[name] is value for name, value in writes.items()):
        if writes:
            yield ["merge"]
    else:
        for name in writes:
            yield from _change(old, visit.after, name, writes, result)


def _differences(
    old: State, new: State, writes: Mapping[str, Any] | None = None, result: Any = _UNKNOWN
) -> Iterator[list[Any]]:
    for name in old:
        if name not in new:
            yield ["del", [name]]
    for name in new:
        yield from _change(old, new, name, writes or {}, result)
    reached = [name for name in old if name in new] + [name for name in new if name not in old]
    if reached != list(new):
        yield ["order", [], list(new)]


def _change(old: State, new: State, name: str, writes: Mapping[str, Any], result: Any) -> Iterator[list[Any]]:
    value = new[name]
    source = _source(name, writes, result)
    if name not in old:
        yield ["set", [name], _tree(value)] if source is None or value is not source[1] else ["put", [name], source[0]]
        return
    yield from _value_changes(old[name], value, [name], source)


def _source(name: str, writes: Mapping[str, Any], result: Any) -> tuple[Path, Any] | None:
    """Where in the operation's result a written value comes from, and that value."""
    if name not in writes or result is _UNKNOWN:
        return None
    written = writes[name]
    if written is result:
        return [], result
    if type(result) is dict and result.get(name, _UNKNOWN) is written:
        return [name], written
    return None


def _value_changes(old: Any, new: Any, path: Path, source: tuple[Path, Any] | None = None) -> Iterator[list[Any]]:
    if old is new:
        return
    kind = type(new)
    if kind is list and type(old) is list:
        yield from _list_changes(old, new, path, source)
    elif source is not None and new is source[1]:
        yield ["put", path, source[0]]
    elif kind is dict and _is_plain(old) and _is_plain(new):
        yield from _dict_changes(old, new, path)
    elif kind is str and type(old) is str and old and new.startswith(old):
        if len(new) > len(old):
            yield ["append", path, new[len(old) :]]
    elif not lineage.is_same(old, new):
        yield ["set", path, _tree(new)]


def _is_plain(value: Any) -> bool:
    """Whether a dict is an object in the text too, under the same keys."""
    if type(value) is not dict or (len(value) == 1 and str(next(iter(value))).startswith("$")):
        return False
    return all(type(key) is str for key in value)


def _dict_changes(old: State, new: State, path: Path) -> Iterator[list[Any]]:
    for name in old:
        if name not in new:
            yield ["del", [*path, name]]
    for name, value in new.items():
        if name in old:
            yield from _value_changes(old[name], value, [*path, name])
        else:
            yield ["set", [*path, name], _tree(value)]
    reached = [name for name in old if name in new] + [name for name in new if name not in old]
    if reached != list(new):
        yield ["order", path, list(new)]


def _list_changes(old: list[Any], new: list[Any], path: Path, source: tuple[Path, Any] | None) -> Iterator[list[Any]]:
    head = _shared(old, new)
    rest, left = len(old) - head, len(new) - head
    tail = _shared(old[head:][::-1], new[head:][::-1]) if rest and left else 0
    gone, come = rest - tail, left - tail
    if gone == come:  # changed in place: only what differs inside each item
        for index in range(head, head + gone):
            yield from _value_changes(old[index], new[index], [*path, index])
        return
    items = new[head : len(new) - tail]
    if source is not None and type(source[1]) is list and _are_one(items, source[1]):
        yield ["ins", path, head, gone, source[0]]
    else:
        yield ["splice", path, head, gone, _tree(items)]


def _shared(old: list[Any], new: list[Any]) -> int:
    count = 0
    for before, after in zip(old, new, strict=False):
        if before is not after and not lineage.is_same(before, after):
            break
        count += 1
    return count


def _are_one(items: list[Any], others: list[Any]) -> bool:
    return len(items) == len(others) and all(map(lineage.is_same, items, others))


# --- reading --------------------------------------------------------------------------------------------


class Reader:
    """States of one run from its records, taken in order. Trees are as the text has them: `decode` makes values."""

    def __init__(self, input_data: str | None) -> None:
        tree = loads(input_data) if input_data else {}
        self.states: dict[str, Any] = {"": tree if isinstance(tree, dict) else {}}
        """By key of the operation whose end or question left it; "" is the run's input."""
        self.costs: dict[str, int] = {"": len(input_data or "")}
        """Characters that have to be read for each, with what is referred to."""

    def take(self, key: str, text: str, result_text: str | None) -> Any:
        """The state that a record says, as a tree."""
        said = loads(text)
        source = said["from"]
        if "whole" in said:
            state, cost = said["whole"], len(text)
        else:
            state, cost = self._applied(source, said["ops"], text, result_text)
        self.states[key], self.costs[key] = state, cost
        return state

    def _applied(self, source: str, operations: list[list[Any]], text: str, result_text: str | None) -> tuple[Any, int]:
        state, cost = self.states[source], self.costs[source] + (len(text) if operations else 0)
        if any(name in _REFERRING for name, *_ in operations):
            result = loads(result_text or "null")
            cost += len(result_text or "")
            operations = [plain for operation in operations for plain in _resolved(operation, result)]
        return delta.apply(state, delta.Delta(operations)), cost

    def stored(self, key: str, state: State) -> Stored:
        """The same as a base for new ones. `state` is what the code makes of it, which may be another: what its
        defaults and reducers are now. An unknown key is a state before states were stored: its base is the input."""
        source = key if key in self.states else ""
        text = dumps(self.states[source])
        known = state if text == codec.encode(state) else codec.decode(text)
        return Stored(source, known, len(text), self.costs[source])


def _resolved(operation: list[Any], result: Any) -> Iterator[list[Any]]:
    match operation:
        case ["merge"]:
            yield from (["set", [name], value] for name, value in result.items())
        case ["put", path, where]:
            yield ["set", path, _at(result, where)]
        case ["ins", path, at, count, where]:
            yield ["splice", path, at, count, _at(result, where)]
        case _:
            yield operation


def _at(tree: Any, path: Path) -> Any:
    for segment in path:
        tree = tree[segment]
    return tree
