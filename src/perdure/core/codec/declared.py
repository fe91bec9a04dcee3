"""Which classes a declared type names: the only ones that a record may become.

Walks an annotation (`list[Order] | None`), and the fields of the classes it meets. Reads annotations, never
records.
"""

from __future__ import annotations

import dataclasses
import sys
import typing
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import lru_cache
from inspect import get_annotations
from typing import Any

from perdure.core.codec import shapes

# Two classes of one name in one annotation: a record cannot say which it means.
AMBIGUOUS = object()


Classes = Mapping[tuple[str, str], Any]


def classes_of(declared: object) -> Classes:
    """(tag, name) -> class (or AMBIGUOUS), for enums, models, dataclasses and named tuples."""
    if declared is None:
        return {}
    try:
        return _cached(declared)
    except TypeError:  # an annotation that cannot be hashed
        return _collect(declared)


@lru_cache(maxsize=1024)
def _cached(declared: object) -> Classes:
    return _collect(declared)


def only_class(classes: Classes, tag: str) -> Any:
    """The class that a record with this tag must be of, whatever its name was; None if there are several, or none."""
    found = [cls for (known, _), cls in classes.items() if known == tag]
    return found[0] if len(found) == 1 and found[0] is not AMBIGUOUS else None


def _collect(declared: object) -> Classes:
    found: dict[tuple[str, str], Any] = {}
    seen: list[object] = []  # a list, because annotations need not be hashable
    todo = [declared]
    while todo:
        current = todo.pop()
        if any(current is other for other in seen):
            continue
        seen.append(current)
        if isinstance(current, type) and (tag := _tag_of(current)) is not None:
            key = (tag, shapes.class_name(current))
            found[key] = current if found.get(key, current) is current else AMBIGUOUS
        todo.extend(_parts(current))
    return found


def _tag_of(cls: type) -> str | None:
    return "$enum" if issubclass(cls, Enum) else shapes.tag_of(cls)


def _parts(annotation: Any) -> Iterator[object]:
    """What an annotation is made of: arguments, alias targets, fields."""
    if isinstance(annotation, Enum):  # inside Literal
        yield type(annotation)
    yield from typing.get_args(annotation)
    origin = typing.get_origin(annotation)
    if origin is not None:
        yield origin
    for attribute in ("__value__", "__supertype__", "__bound__"):  # type aliases, NewType, TypeVar
        if not isinstance(annotation, type) and getattr(annotation, attribute, None) is not None:
            yield getattr(annotation, attribute)
    if isinstance(annotation, type) and not issubclass(annotation, Enum):
        yield from _field_types(annotation)


def _field_types(cls: Any) -> Iterator[object]:
    if shapes.is_model(cls):
        yield from (item.annotation for item in cls.model_fields.values())
        yield from cls.__pydantic_generic_metadata__["args"]
    elif not (dataclasses.is_dataclass(cls) or shapes.is_namedtuple(cls) or typing.is_typeddict(cls)):
        return
    try:
        yield from typing.get_type_hints(cls, include_extras=True).values()
    except (NameError, TypeError, AttributeError, SyntaxError):
        yield from _resolvable(cls)


def _resolvable(cls: Any) -> Iterator[object]:
    """Each annotation by itself, when one of them names what does not exist at run time."""
    for base in cls.__mro__:
        scope = {**vars(sys.modules.get(base.__module__, typing)), base.__name__: base}
        for annotation in get_annotations(base).values():
            try:
                yield eval(annotation, scope) if isinstance(annotation, str) else annotation
            except Exception:  # the field's class stays undeclared, which is reported if a record needs it
                continue
