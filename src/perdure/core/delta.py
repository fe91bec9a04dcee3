"""The difference between two states, so that a run stores what changed and not its state again and again.

Works on JSON trees, as text that the codec wrote is parsed to (tags are ordinary objects here). Exact:
`apply` gives the new tree with its types (1, True and 1.0 differ) and its order of keys. What grows at its
end (lists, texts) costs what was added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from perdure.core.codec.text import dumps

# Operations are lists, because a delta is stored as JSON:
#   ["set", path, value]              at a key of an object (a new one goes last), an index, or the root
#   ["del", path]                     a key of an object
#   ["order", path, keys]             of an object
#   ["splice", path, at, n, items]    of a list: n items from `at` give way to these
#   ["append", path, text]            to a string
Operation = list[Any]
_TreePath = list[str | int]


@dataclass(frozen=True, slots=True)
class Delta:
    """What leads from one tree to another. `operations` is JSON and is applied in order."""

    operations: list[Operation]


def diff(old: Any, new: Any) -> Delta | None:
    """The difference, or None if the trees are the same. Shares parts with `new`."""
    operations = list(_changes(old, new, []))
    return Delta(operations) if operations else None


def _changes(old: Any, new: Any, path: _TreePath) -> Iterator[Operation]:
    kind = type(new)
    if type(old) is kind:
        if is_same(old, new):
            return
        if kind is dict:
            yield from _dict_changes(old, new, path)
            return
        if kind is list:
            yield from _list_changes(old, new, path)
            return
        if kind is str and old and new.startswith(old):
            yield ["append", path, new[len(old) :]]
            return
    yield ["set", path, new]


def is_same(old: Any, new: Any) -> bool:
    """Whether two trees have equal text: values, types and order of keys."""
    # Both comparisons run in C. The first finds most differences at once; 1 == True, and order is not in it.
    return old == new and dumps(old) == dumps(new)


def _dict_changes(old: dict[str, Any], new: dict[str, Any], path: _TreePath) -> Iterator[Operation]:
    for key in old:
        if key not in new:
            yield ["del", [*path, key]]
    for key, item in new.items():
        if key in old:
            yield from _changes(old[key], item, [*path, key])
        else:
            yield ["set", [*path, key], item]
    reached = [key for key in old if key in new] + [key for key in new if key not in old]
    if reached != list(new):
        yield ["order", path, list(new)]


def _list_changes(old: list[Any], new: list[Any], path: _TreePath) -> Iterator[Operation]:
    head = _shared_count(old, new)
    tail = _shared_count(old[head:][::-1], new[head:][::-1])
    gone, come = len(old) - head - tail, len(new) - head - tail
    if gone == come:  # changed in place: only what differs inside each item
        for index in range(head, head + gone):
            yield from _changes(old[index], new[index], [*path, index])
    else:
        yield ["splice", path, head, gone, new[head : len(new) - tail]]


def _shared_count(old: Sequence[Any], new: Sequence[Any]) -> int:
    count = 0
    for before, after in zip(old, new, strict=False):
        if not is_same(before, after):
            break
        count += 1
    return count


def apply(old: Any, delta: Delta | None) -> Any:
    """The new tree. Neither `old` nor the delta is changed; the result may share parts with both."""
    tree = old
    for name, path, *arguments in [] if delta is None else delta.operations:
        tree = _apply_at(tree, path, 0, _APPLIERS[name], arguments)
    return tree


_Applier = Callable[..., Any]


def _apply_at(node: Any, path: _TreePath, depth: int, applier: _Applier, arguments: list[Any]) -> Any:
    """Copies the containers along the path, so that trees already handed out stay as they are."""
    if depth == len(path):
        return applier(node, *arguments)
    segment = path[depth]
    copy = node.copy()
    if applier is _delete and depth == len(path) - 1:
        del copy[segment]
        return copy
    inner = copy[segment] if isinstance(segment, int) else copy.get(segment)
    copy[segment] = _apply_at(inner, path, depth + 1, applier, arguments)
    return copy


def _set(node: Any, value: Any) -> Any:
    return value


def _delete(node: Any) -> Any:
    raise ValueError("the root of a tree cannot be removed")


def _order(node: dict[str, Any], keys: list[str]) -> dict[str, Any]:
    return {key: node[key] for key in keys}


def _splice(node: list[Any], at: int, count: int, items: list[Any]) -> list[Any]:
    return [*node[:at], *items, *node[at + count :]]


def _append(node: str, text: str) -> str:
    return node + text


_APPLIERS: dict[str, _Applier] = {
    "set": _set,
    "del": _delete,
    "order": _order,
    "splice": _splice,
    "append": _append,
}


def should_keyframe(delta_bytes_since_keyframe: int, state_bytes: int) -> bool:
    """Whether to store the whole state instead of one more delta.

    `delta_bytes_since_keyframe` includes the delta at hand. A keyframe is written when deltas outweigh the
    state, so each is paid for by deltas of its size and all keyframes of a run weigh no more than its deltas:
    storage stays linear in what changed, and reading a state takes at most twice its size.
    """
    return delta_bytes_since_keyframe >= state_bytes
