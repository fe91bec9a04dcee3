"""How states of a chain are stored: as the difference to the state they come from, or whole where that is cheaper.

Decides the text in `Record.state`, and reads it. A text names the checkpoint it builds on by its operation's key and
says what is different; what the operation itself returned is referred to, not copied. A state is stored whole when
what would have to be read for it outweighs it twice, so storage stays linear in what changed (law 9), and reading a
state takes at most twice its size. For people and forks: nothing reads it to recover. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from perdure.core import codec, delta, lineage
from perdure.core.codec.text import dumps, loads

# {"from": key, "ops": [...]} or {"from": key, "whole": tree}. Operations beside those of `core.delta`:
#   ["merge"]                              the operation's result is an object: its keys are set
#   ["put", path, path_in_result]          what the result has there is set
#   ["ins", path, at, n, path_in_result]   n items from `at` give way to the list that the result has there
#
# {"packed": ..., "from": ...}: the record has no result of its own, since it would say again what the state had
# already. It is what the state has afterwards: under one key (a text), or a dict of these keys (a list).
State = dict[str, Any]
Path = list[str | int]

_ENOUGH = 0.9
"""A whole state is written a little early: to look how large it really is costs as much as to write it."""
_UNKNOWN = object()
_PACKED = '{"packed"'
_SMALL = 2048
_MIN_PACKED_CHARS = 2048
"""Shorter results are recorded as they are, for whoever looks at the records."""


class Said(NamedTuple):
    """What a record says of the state. `is_packed`: and of the result, which is not recorded beside it."""

    text: str | None
    is_packed: bool = False


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
) -> tuple[Said, Stored]:
    """What the record says of the state after `visit`, whose operation returned `result`, and what later ones build on.
    `is_merged`: the result is a dict, and what it has are the keys that the visit sets."""
    if result_text is not None and len(result_text) >= _MIN_PACKED_CHARS:
        found = _packed(base, visit, result, result_text, is_merged)
        if found is not None:
            return found
    changes = _Changes(visit.writes, result)
    is_direct = len(visit.parents) == 1 and visit.parents[0].after is base.state
    if is_direct and is_merged and all(visit.after[name] is value for name, value in visit.writes.items()):
        changes.merge(base.state, visit.writes, len(result_text or ""))
    elif is_direct:  # the two states differ in what the visit wrote
        changes.keys(base.state, visit.after, visit.writes)
    else:
        changes.states(base.state, visit.after)
    return _store(base, visit.key, visit.after, changes, result_text)


def _packed(
    base: Stored, visit: lineage.Visit, result: Any, result_text: str, is_merged: bool
) -> tuple[Said, Stored] | None:
    """The result as a part of the state, where that says much of it already (a list that has grown)."""
    after = visit.after
    packed: str | list[str]
    if is_merged:
        if not all(after[name] is value or name not in visit.writes for name, value in result.items()):
            return None  # a reducer has made something else of it
        packed = list(result)
    else:
        named = [name for name, value in visit.writes.items() if value is result and after[name] is result]
        if not named:
            return None
        packed = named[0]
    changes = _Changes()
    changes.states(base.state, after)
    if 2 * len(dumps(changes.operations)) > len(result_text):
        return None
    return _store(base, visit.key, after, changes, None, packed)


def store_before(base: Stored, key: str, state: State) -> tuple[Said, Stored]:
    """The same for an operation that has no result: one that asks, the end of the run, the start of a nested chain."""
    changes = _Changes()
    if state is not base.state:
        changes.states(base.state, state)
    return _store(base, key, state, changes, None)


def _store(
    base: Stored, key: str, state: State, changes: _Changes, text: str | None, packed: str | list[str] | None = None
) -> tuple[Said, Stored]:
    head = {} if packed is None else {"packed": packed}
    is_packed = packed is not None
    said = dumps({**head, "from": base.key, "ops": changes.operations})
    if not changes.operations:
        return Said(said, is_packed), Stored(key, state, base.size, base.read)
    read = base.read + len(said) + (len(text or "") if changes.is_referring else 0)
    size = max(2, base.size + changes.grown)
    if size < _SMALL:  # an estimate, and of a small state the truth is as cheap
        size = len(codec.encode(state))
    if read > 2 * size * _ENOUGH:  # now it is worth looking
        whole = dumps({**head, "from": base.key, "whole": loads(codec.encode(state))})
        size = len(whole)
        if read > 2 * size * _ENOUGH:
            return Said(whole, is_packed), Stored(key, state, size, size)
    return Said(said, is_packed), Stored(key, state, size, read)


_REFERRING = frozenset({"merge", "put", "ins"})


# --- what changed ---------------------------------------------------------------------------------------


class _Changes:
    """Operations that lead from one state to another, and how much longer that makes its text. What a visit wrote and
    its operation returned is referred to in the result."""

    def __init__(self, writes: Mapping[str, Any] | None = None, result: Any = _UNKNOWN) -> None:
        self.operations: list[list[Any]] = []
        self.grown = 0
        self.is_referring = False
        self._writes = writes or {}
        self._result = result

    def merge(self, old: State, writes: Mapping[str, Any], result_chars: int) -> None:
        """The result's keys are set."""
        if writes:
            self._say(["merge"], result_chars)
            self.grown -= sum(_weight(old[name]) + _key_weight(name) for name in writes if name in old)

    def states(self, old: State, new: State) -> None:
        """Whatever is different."""
        for name in old:
            if name not in new:
                self._delete([name], old[name])
        self.keys(old, new, new)
        self._order([], old, new)

    def keys(self, old: State, new: State, names: Iterable[str]) -> None:
        """What is different in these keys."""
        for name in names:
            value, source = new[name], self._source(name)
            if name in old:
                self._value(old[name], value, [name], source)
            elif source is not None and value is source[1]:
                self._say(["put", [name], source[0]], _weight(value) + _key_weight(name))
            else:
                self._set([name], value, _key_weight(name))

    def _say(self, operation: list[Any], grown: int) -> None:
        self.operations.append(operation)
        self.grown += grown
        self.is_referring = self.is_referring or operation[0] in _REFERRING

    def _set(self, path: Path, value: Any, grown: int) -> None:
        text = codec.encode(value)
        self._say(["set", path, loads(text)], len(text) + grown)

    def _delete(self, path: Path, old: Any) -> None:
        self._say(["del", path], -_weight(old) - _key_weight(path[-1]))

    def _order(self, path: Path, old: State, new: State) -> None:
        reached = [name for name in old if name in new] + [name for name in new if name not in old]
        if reached != list(new):
            self._say(["order", path, list(new)], 0)

    def _source(self, name: str) -> tuple[Path, Any] | None:
        """Where in the operation's result a written value comes from, and that value."""
        result = self._result
        if name not in self._writes or result is _UNKNOWN:
            return None
        written = self._writes[name]
        if written is result:
            return [], result
        if type(result) is dict and result.get(name, _UNKNOWN) is written:
            return [name], written
        return None

    def _value(self, old: Any, new: Any, path: Path, source: tuple[Path, Any] | None = None) -> None:
        if old is new:
            return
        kind = type(new)
        if kind is list and type(old) is list:
            self._list(old, new, path, source)
        elif source is not None and new is source[1]:
            self._say(["put", path, source[0]], _weight(new) - _weight(old))
        elif kind is dict and _is_plain(old) and _is_plain(new):
            self._dict(old, new, path)
        elif kind is str and type(old) is str and old and new.startswith(old):
            if len(new) > len(old):
                self._say(["append", path, new[len(old) :]], len(new) - len(old))
        elif not lineage.is_same(old, new):
            self._set(path, new, -_weight(old))

    def _dict(self, old: State, new: State, path: Path) -> None:
        for name in old:
            if name not in new:
                self._delete([*path, name], old[name])
        for name, value in new.items():
            if name in old:
                self._value(old[name], value, [*path, name])
            else:
                self._set([*path, name], value, _key_weight(name))
        self._order(path, old, new)

    def _list(self, old: list[Any], new: list[Any], path: Path, source: tuple[Path, Any] | None) -> None:
        head = _shared(old, new)
        rest, left = len(old) - head, len(new) - head
        tail = _shared(old[head:][::-1], new[head:][::-1]) if rest and left else 0
        gone, come = rest - tail, left - tail
        if gone == come:  # changed in place: only what differs inside each item
            for index in range(head, head + gone):
                self._value(old[index], new[index], [*path, index])
            return
        items = new[head : len(new) - tail]
        lost = sum(_weight(item) + 1 for item in old[head : head + gone])
        if source is not None and type(source[1]) is list and _are_one(items, source[1]):
            self._say(["ins", path, head, gone, source[0]], _weight(items) - lost)
        else:
            text = codec.encode(items)
            self._say(["splice", path, head, gone, loads(text)], len(text) - lost)


def _is_plain(value: Any) -> bool:
    """Whether a dict is an object in the text too, under the same keys."""
    if type(value) is not dict or (len(value) == 1 and str(next(iter(value))).startswith("$")):
        return False
    return all(type(key) is str for key in value)


def _shared(old: list[Any], new: list[Any]) -> int:
    """How many items the two begin with in common."""
    count = 0
    for before, after in zip(old, new, strict=False):
        if before is not after and not lineage.is_same(before, after):
            break
        count += 1
    return count


def _are_one(items: list[Any], others: list[Any]) -> bool:
    return len(items) == len(others) and all(map(lineage.is_same, items, others))


def _weight(value: Any) -> int:
    """About the length of a value's text. Of what can be long exactly: an error would add up over many changes."""
    kind = type(value)
    if kind is str:
        return len(dumps(value))
    if kind is list:
        return 2 + sum(_weight(item) + 1 for item in value)
    if kind is dict:
        return 2 + sum(_weight(item) + _key_weight(key) for key, item in value.items())
    if kind is bool or value is None:
        return 4
    return len(codec.encode(value))


def _key_weight(key: Any) -> int:
    """The same for a key, with what stands between it and others."""
    return len(dumps(str(key))) + 2


def is_packed(text: str | None) -> bool:
    """Whether a record's state says its result, too."""
    return text is not None and text.startswith(_PACKED)


# --- reading --------------------------------------------------------------------------------------------


class Reader:
    """States of one run from its records, taken in order. Trees are as the text has them: `decode` makes values."""

    def __init__(self, input_data: str | None) -> None:
        tree = loads(input_data) if input_data else {}
        self.states: dict[str, Any] = {"": tree if isinstance(tree, dict) else {}}
        """By key of the operation whose end or question left it; "" is the run's input."""
        self.costs: dict[str, int] = {"": len(input_data or "")}
        """Characters that have to be read for each, with what is referred to."""
        self.results: dict[str, str] = {}
        """Texts of packed results."""

    def take(self, key: str, text: str, result_text: str | None) -> Any:
        """The state that a record says, as a tree. What it says of a packed result is in `results` then."""
        said = loads(text)
        source = said["from"]
        if "whole" in said:
            state, cost = said["whole"], len(text)
        else:
            state, cost = self._applied(source, said["ops"], text, result_text)
        self.states[key], self.costs[key] = state, cost
        if "packed" in said:
            names = said["packed"]
            self.results[key] = dumps(state[names] if isinstance(names, str) else {name: state[name] for name in names})
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
