"""From a value to text: one walk that finds nothing to do for plain data, a second one that writes tags.

Decides what can be recorded, and by which tag. Exact types only: a subclass is never taken for its base in
silence. Called for every input, result and answer, so the plain walk is the hottest code of the core.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from enum import Enum
from math import isfinite
from typing import Any

from perdure.core.codec import atoms, shapes
from perdure.core.codec.notices import notice
from perdure.core.codec.paths import Path, render
from perdure.core.codec.text import dumps, has_surrogates
from perdure.errors import SerializationError

# In levels of the value. The walks take up to five frames for each, and the caller's stack is not empty.
MAX_DEPTH = 100


def encode(value: object) -> str:
    """The value as ASCII JSON text, tagged where JSON has no such type.

    Equal text means equal type, value and order. Raises `SerializationError` with the path of what cannot be
    recorded exactly; values that refer to themselves are among them. References shared inside a value are
    written twice.
    """
    try:
        if _is_plain(value, MAX_DEPTH):
            text = dumps(value)
            # Without an escape that could begin a surrogate there is none; most text with one is only emoji.
            if "\\ud" not in text or not has_surrogates(value):
                return text
        return dumps(to_tree(value, None, 0))
    except RecursionError:
        raise SerializationError("$", "nested too deeply for what is left of the stack") from None
    except RuntimeError as error:  # a container changed by another thread during the walk
        raise SerializationError("$", f"cannot be read: {error}") from error


def _is_plain(value: object, depth: int) -> bool:
    """Whether the JSON encoder alone writes the value exactly."""
    kind = type(value)
    if kind is dict:
        if not depth or (len(value) == 1 and _is_taglike(value)):  # type: ignore[arg-type]
            return False
        for key in value:  # type: ignore[attr-defined]
            if type(key) is not str:
                return False
        items: Iterable[object] = value.values()  # type: ignore[attr-defined]
    elif kind is list:
        if not depth:
            return False
        items = value  # type: ignore[assignment]
    else:
        return kind in _PLAIN or _is_plain_number(value)
    for item in items:
        kind = type(item)
        if kind in _PLAIN:
            continue
        if kind is dict or kind is list:
            if not _is_plain(item, depth - 1):
                return False
        elif not _is_plain_number(item):
            return False
    return True


_PLAIN = frozenset({str, bool, type(None)})


def _is_plain_number(value: Any) -> bool:
    kind = type(value)
    if kind is int:
        return -atoms.INT_BOUND < value < atoms.INT_BOUND
    return kind is float and isfinite(value)


def _is_taglike(value: dict[Any, Any]) -> bool:
    """Whether a dict of one key would be read back as a tag."""
    key = next(iter(value))
    return type(key) is str and key[:1] == "$"


# --- the walk that writes tags ----------------------------------------------------------------------


def to_tree(value: Any, path: Path, depth: int) -> Any:
    """The value as a tree of JSON types, with tags."""
    kind = type(value)
    scalar = _SCALARS.get(kind)
    if scalar is not None:
        return scalar(value)
    if depth >= MAX_DEPTH:
        raise SerializationError(render(path), f"nested more than {MAX_DEPTH} levels deep, or refers to itself")
    container = _CONTAINERS.get(kind)
    if container is not None:
        return container(value, path, depth + 1)
    atom = atoms.WRITERS.get(kind)
    if atom is not None:
        return _atom(value, atom, path)
    return _other(value, path, depth + 1)


_SCALARS: dict[type, Callable[[Any], Any]] = {
    str: atoms.string,
    bool: lambda value: value,
    type(None): lambda value: value,
    int: atoms.integer,
    float: atoms.floating,
}


def _atom(value: object, atom: tuple[str, Callable[[Any], object]], path: Path) -> dict[str, Any]:
    tag, write = atom
    try:
        return {tag: write(value)}
    except ValueError as error:
        raise _refusal(value, path, str(error)) from error


def _items(values: Iterable[Any], path: Path, depth: int) -> list[Any]:
    return [to_tree(item, (path, index), depth) for index, item in enumerate(values)]


def _dict(value: dict[Any, Any], path: Path, depth: int) -> dict[str, Any]:
    if any(type(key) is not str or not _is_plain_key(key) for key in value):
        return {"$dict": _pairs(value, path, depth)}
    if len(value) == 1 and _is_taglike(value):
        return {"$dict": _pairs(value, path, depth)}
    return {key: to_tree(item, (path, key), depth) for key, item in value.items()}


def _is_plain_key(key: str) -> bool:
    return type(atoms.string(key)) is str


def _pairs(value: dict[Any, Any], path: Path, depth: int) -> list[Any]:
    return [_pair(key, item, path, depth) for key, item in value.items()]


def _pair(key: Any, item: Any, path: Path, depth: int) -> list[Any]:
    at = (path, key if type(key) is str else _key_text(key))
    return [to_tree(key, at, depth), to_tree(item, at, depth)]


def _key_text(key: object) -> str:
    # Only scalars are shown: the repr of anything else is user code, and this is only for a message.
    return repr(key) if type(key) in _SCALARS and type(key) is not int else f"<{type(key).__qualname__} key>"


def _set(tag: str) -> Callable[[Any, Path, int], dict[str, Any]]:
    # In the order of their text: the order of a set differs from process to process.
    return lambda value, path, depth: {
        tag: sorted((to_tree(item, (path, "<set item>"), depth) for item in value), key=dumps)
    }


def _deque(value: deque[Any], path: Path, depth: int) -> dict[str, Any]:
    items = _items(value, path, depth)
    return {"$deque": [items] if value.maxlen is None else [items, value.maxlen]}


def _defaultdict(value: defaultdict[Any, Any], path: Path, depth: int) -> dict[str, Any]:
    factory = value.default_factory
    name = None if factory is None else shapes.FACTORY_NAMES.get(factory)
    if factory is not None and name is None:
        raise _refusal(value, path, f"its default factory is not one of {', '.join(shapes.FACTORIES)}")
    return {"$defaultdict": [name, _pairs(value, path, depth)]}


_CONTAINERS: dict[type, Callable[[Any, Path, int], Any]] = {
    dict: _dict,
    list: _items,
    tuple: lambda value, path, depth: {"$tuple": _items(value, path, depth)},
    set: _set("$set"),
    frozenset: _set("$frozenset"),
    deque: _deque,
    defaultdict: _defaultdict,
    Counter: lambda value, path, depth: {"$counter": _pairs(value, path, depth)},
    OrderedDict: lambda value, path, depth: {"$ordereddict": _pairs(value, path, depth)},
}


# --- types of the user's own ------------------------------------------------------------------------


def _other(value: Any, path: Path, depth: int) -> Any:
    if isinstance(value, Enum):
        return {"$enum": [shapes.class_name(type(value)), to_tree(value.value, path, depth)]}
    if (shape := shapes.shape_of(value)) is not None:
        return _shape(value, shape, path, depth)
    for base, exact in _DOWNGRADES.items():
        if isinstance(value, base):
            name = f"{type(value).__qualname__} (a subclass of {base.__name__})"
            notice(name, f"a plain {base.__name__}", f"record {base.__name__}(value) to say so yourself")
            return to_tree(exact(value), path, depth)
    raise _refusal(value, path, _advice(value))


def _shape(value: object, shape: shapes.Shape, path: Path, depth: int) -> dict[str, Any]:
    """`{"$model": [name, fields, rest?]}`: fields by name, and what else makes up the instance."""
    fields = {name: to_tree(item, (path, name), depth) for name, item in shape.fields.items()}
    rest = {part: _dict(items, path, depth) if isinstance(items, dict) else items for part, items in shape.rest.items()}
    payload = [shapes.class_name(type(value)), fields]
    return {shape.tag: [*payload, rest] if rest else payload}


# Subclasses that carry no more than their base: libraries return them where everybody expects the base
# (numpy.float64, markup strings). The base's own methods are called, so that no override is asked.
_DOWNGRADES: dict[type, Callable[[Any], object]] = {
    str: str.__str__,
    int: int.__int__,
    float: float.__float__,
}


def _advice(value: object) -> str:
    for base in (*_CONTAINERS, *atoms.WRITERS):
        if isinstance(value, base):
            return f"only {base.__name__} itself is recorded, not a subclass; convert it first"
    return "return plain data, a dataclass or a pydantic model instead"


def _refusal(value: object, path: Path, reason: str) -> SerializationError:
    return SerializationError(render(path), f"{type(value).__qualname__} cannot be recorded: {reason}")
