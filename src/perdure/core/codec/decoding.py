"""From text to a value: the C decoder alone for plain text, with a hook for each object when there are tags.

Decides what a tag becomes. Without a declared type, what was an instance becomes its data; with one that
names classes, everything recorded must be among them, because a dict where an instance is expected is a
silent loss.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

from perdure.core.codec import atoms, declared, making, shapes
from perdure.core.codec.encoding import encode
from perdure.core.codec.notices import notice
from perdure.core.codec.paths import Path, render
from perdure.core.codec.text import Scan, dumps, loads, make_scan
from perdure.errors import SerializationError

# An object whose first key begins with `$`. In a string the quote would be escaped, so this is never found in
# one.
_MARK = '{"$'


def decode(text: str, declared_type: object = None) -> Any:
    """The value that `encode` wrote. `declared_type` is an annotation; only classes it names are made again.

    Raises `SerializationError` when the text is damaged, when the declared classes have changed so that the
    recorded fields do not fit (a field that is new takes its default), or when a recorded class is not among
    them.
    """
    return _decode(text, declared_type, False)


def record(value: object, declared_type: object = None) -> tuple[str, Any]:
    """The text to store, and the value that reading it gives. Warns once for each type recorded as its data.

    For the first execution: the caller goes on with the second, so that replay cannot differ.
    """
    text = encode(value)
    return text, _decode(text, declared_type, True)


def _decode(text: str, declared_type: object, is_noticed: bool) -> Any:
    if _MARK not in text:
        return loads(text)
    classes = declared.classes_of(declared_type)
    rebuild = _Rebuild(classes, is_noticed) if classes else _rebuild_as_data(is_noticed)
    try:
        return loads(text, rebuild.scan)
    except _Unfit as unfit:
        raise SerializationError(_locate(text, classes, is_noticed), str(unfit)) from unfit.__cause__


class _Unfit(Exception):
    """A tag that cannot become a value; the path is found afterwards, as the decoder does not know it."""


class _Rebuild:
    """The hook of one declared type: called with each JSON object, innermost first."""

    __slots__ = ("classes", "is_noticed", "scan", "seen_count")

    def __init__(self, classes: declared.Classes, is_noticed: bool) -> None:
        self.classes = classes
        self.is_noticed = is_noticed
        self.seen_count = 0
        self.scan: Scan = make_scan(self.hook)

    def hook(self, node: dict[str, Any]) -> Any:
        if len(node) != 1:
            return node
        ((tag, payload),) = node.items()
        if tag[:1] != "$":
            return node
        try:
            read = _READERS.get(tag)
            return self._instance(tag, payload) if read is None else read(payload)
        except SerializationError as error:
            raise _Unfit(error.message) from error
        except Exception as error:  # user classes run here: whatever they raise, the record does not fit
            raise _Unfit(f"cannot be read as {tag[1:]}: {error}") from error

    def _instance(self, tag: str, payload: Any) -> Any:
        if tag not in _INSTANCES:
            raise ValueError("this version does not know the tag")
        make, as_data = _INSTANCES[tag]
        name, data, *rest = payload
        cls = self._class(tag, name)
        if cls is declared.AMBIGUOUS:
            raise ValueError(f"the declared type names two classes called {name}")
        if cls is not None:
            return make(cls, data, rest[0] if rest else {})
        if self.classes:
            known = ", ".join(sorted(known for _, known in self.classes))
            raise ValueError(f"recorded as {name}, which the declared type does not name (it has: {known})")
        if self.is_noticed:
            notice(name, "its data", "declare the type (return annotation or returns=) to get it back")
        return as_data(data)

    def _class(self, tag: str, name: str) -> Any:
        """The class of a record. One that was renamed since is found, if only one can be meant: its fields are checked
        anyway. What is recorded just now must be of the declared class itself, or the caller would get another."""
        cls = self.classes.get((tag, name))
        return declared.only_class(self.classes, tag) if cls is None and not self.is_noticed else cls


@lru_cache(maxsize=2)
def _rebuild_as_data(is_noticed: bool) -> _Rebuild:
    return _Rebuild({}, is_noticed)


_Make = Callable[[Any, Any, dict[str, Any]], object]

# tag -> how an instance is made, and what its data are.
_INSTANCES: dict[str, tuple[_Make, Callable[[Any], object]]] = {
    "$enum": (making.make_enum, lambda value: value),
    "$model": (making.make_model, lambda fields: fields),
    "$dataclass": (making.make_dataclass, lambda fields: fields),
    "$namedtuple": (making.make_namedtuple, lambda fields: tuple(fields.values())),
}


def _read_defaultdict(payload: Any) -> defaultdict[Any, Any]:
    name, pairs = payload
    return defaultdict(None if name is None else shapes.FACTORIES[name], pairs)


_READERS: dict[str, Callable[[Any], object]] = {
    **atoms.READERS,
    "$dict": dict,
    "$tuple": tuple,
    "$set": set,
    "$frozenset": frozenset,
    "$deque": lambda payload: deque(*payload),
    "$defaultdict": _read_defaultdict,
    "$counter": lambda payload: Counter(dict(payload)),
    "$ordereddict": OrderedDict,
}

TAGS = frozenset({*_READERS, *_INSTANCES})


# --- where it went wrong ----------------------------------------------------------------------------


def _locate(text: str, classes: declared.Classes, is_noticed: bool) -> str:
    """The path of the tag at which reading fails: read again, counting, then walk to that object."""
    rebuild = _Rebuild(classes, is_noticed)

    def counting(node: dict[str, Any]) -> Any:
        made = rebuild.hook(node)
        rebuild.seen_count += 1
        return made

    try:
        loads(text, make_scan(counting))
    except _Unfit:
        return render(_nth_object(loads(text), rebuild.seen_count))
    return "$"


def _nth_object(tree: Any, number: int) -> Path:
    """Objects are numbered as the decoder finishes them: innermost first, from the left."""
    paths = (path for path, node in _finished(tree, None) if isinstance(node, dict))
    return next(path for index, path in enumerate(paths) if index == number)


def _finished(node: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    for segment, child in _children(node):
        yield from _finished(child, path if segment is None else (path, segment))
    yield path, node


def _children(node: Any) -> Iterator[tuple[int | str | None, Any]]:
    """The parts of a tree, with the segment of each in the value; None where a tag only adds a level."""
    if isinstance(node, list):
        yield from enumerate(node)
    elif isinstance(node, dict) and len(node) == 1 and next(iter(node)) in TAGS:
        ((tag, payload),) = node.items()
        yield from _tagged_children(tag, payload)
    elif isinstance(node, dict):
        yield from node.items()


def _tagged_children(tag: str, payload: Any) -> Iterator[tuple[int | str | None, Any]]:
    if tag in _PAIRED:
        for key, item in payload[1] if tag == "$defaultdict" else payload:
            segment = key if isinstance(key, str) else f"<{dumps(key)}>"
            yield from ((segment, key), (segment, item))
    elif tag in _LISTED:
        yield from enumerate(payload)
    elif isinstance(payload, list):
        yield from ((None, part) for part in payload)


_PAIRED = frozenset({"$dict", "$defaultdict", "$counter", "$ordereddict"})
_LISTED = frozenset({"$tuple", "$set", "$frozenset"})
