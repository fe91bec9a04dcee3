"""Classes of the user's own: which kinds are known, and what makes up an instance.

Dataclasses, named tuples and pydantic models are recorded as their fields under the class's qualified name,
plus what an instance holds beside its fields. Reads instances; `making` makes them again.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

FACTORIES: dict[str, Callable[[], Any]] = {
    cls.__name__: cls for cls in (int, float, str, bool, list, dict, set, tuple, bytes, complex, frozenset)
}
FACTORY_NAMES: dict[Callable[[], Any], str] = {cls: name for name, cls in FACTORIES.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What makes up an instance. `rest` has what is no field: see the tags below for its parts."""

    tag: str
    fields: Mapping[str, Any]
    rest: Mapping[str, Any] = field(default_factory=dict)


def class_name(cls: type) -> str:
    """The persisted name of a class: no module in it, nor that it is defined inside a function."""
    return cls.__qualname__.replace(".<locals>", "")


def tag_of(cls: type) -> str | None:
    """The tag of a class's instances, or None when it is of no kind we know."""
    if is_model(cls):
        return "$model"
    if is_namedtuple(cls):
        return "$namedtuple"
    return "$dataclass" if is_record(cls) else None


def shape_of(value: object) -> Shape | None:
    """The shape of an instance, or None when its class is of no kind we know."""
    if is_model(type(value)):
        return _model_shape(value)
    if isinstance(value, _BUILTIN_BASES):
        return _namedtuple_shape(value) if is_namedtuple(type(value)) else None
    if is_record(type(value)):
        return _dataclass_shape(value)
    return None


# A dataclass that is also one of these has content that is no field.
_BUILTIN_BASES = (
    str,
    int,
    float,
    complex,
    bytes,
    bytearray,
    list,
    dict,
    tuple,
    set,
    frozenset,
    BaseException,
)


def is_model(cls: type) -> bool:
    # A model's class was made by pydantic, so pydantic is loaded if there is one.
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and issubclass(cls, pydantic.BaseModel)


def is_namedtuple(cls: type) -> bool:
    return issubclass(cls, tuple) and isinstance(getattr(cls, "_fields", None), tuple)


def is_record(cls: type) -> bool:
    return dataclasses.is_dataclass(cls) and not issubclass(cls, _BUILTIN_BASES)


def _dataclass_shape(value: Any) -> Shape:
    names = [item.name for item in dataclasses.fields(value)]
    fields = {name: getattr(value, name) for name in names if hasattr(value, name)}
    attributes = {
        name: item
        for name, item in getattr(value, "__dict__", {}).items()
        # Pydantic and typing leave these on instances; they say nothing that the class does not.
        if name not in fields and name not in _CLASS_LEVEL
    }
    return Shape(tag="$dataclass", fields=fields, rest={"attributes": attributes} if attributes else {})


_CLASS_LEVEL = frozenset({"__orig_class__", "__pydantic_initialised__"})


def _namedtuple_shape(value: Any) -> Shape | None:
    if getattr(value, "__dict__", None) or len(value) != len(value._fields):
        return None
    return Shape(tag="$namedtuple", fields=dict(zip(value._fields, value, strict=True)))


def _model_shape(value: Any) -> Shape:
    declared = type(value).model_fields
    fields = {name: item for name, item in value.__dict__.items() if name in declared}
    unset = [name for name in fields if name not in value.model_fields_set]
    rest = {
        "unset": unset,
        "extra": dict(value.__pydantic_extra__ or {}),
        "private": dict(value.__pydantic_private__ or {}),
    }
    return Shape(tag="$model", fields=fields, rest={part: items for part, items in rest.items() if items})
