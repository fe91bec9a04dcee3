"""Instances of declared classes, made again from recorded fields.

Dataclasses and named tuples get exactly the attributes they had, without their constructor, as copying does:
it may not be called twice for one value. Models are validated, so that a changed field is found, and must
come out as they went in. Fields that are new take their defaults; fields that are gone are refused, for
dropping them would be a loss.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from perdure.core.codec.encoding import encode

Fields = dict[str, Any]


def make_dataclass(cls: type, fields: Fields, rest: Fields) -> object:
    """Raises ValueError when the class has changed so that the recorded fields do not fit."""
    made = object.__new__(cls)
    known = {item.name: item for item in dataclasses.fields(cls)}
    _check_known(cls, fields, known)
    for name, item in known.items():
        if name in fields:
            object.__setattr__(made, name, fields[name])
        else:
            _set_default(made, item)
    for name, attribute in rest.get("attributes", {}).items():
        object.__setattr__(made, name, attribute)
    return made


def _set_default(made: object, item: dataclasses.Field[Any]) -> None:
    if item.default is not dataclasses.MISSING:
        object.__setattr__(made, item.name, item.default)
    elif item.default_factory is not dataclasses.MISSING:
        object.__setattr__(made, item.name, item.default_factory())
    elif item.init:  # one that is not an argument may have been unset when it was recorded
        raise ValueError(f"the record has no field {item.name!r}, and the class no default for it")


def make_namedtuple(cls: Any, fields: Fields, rest: Fields) -> object:
    """Raises ValueError when the class has changed so that the recorded fields do not fit."""
    _check_known(cls, fields, cls._fields)
    values = {**cls._field_defaults, **fields}
    missing = [name for name in cls._fields if name not in values]
    if missing:
        raise ValueError(f"the record has no field {missing[0]!r}, and the class no default for it")
    return tuple.__new__(cls, [values[name] for name in cls._fields])


def make_model(cls: Any, fields: Fields, rest: Fields) -> object:
    """Raises ValueError when the class has changed, or when its validators change what they are given."""
    _check_known(cls, fields, cls.model_fields)
    extra = rest.get("extra", {})
    given = fields["root"] if cls.__pydantic_root_model__ and "root" in fields else {**fields, **extra}
    made = cls.model_validate(given, by_name=True, by_alias=False)
    _check_same(made.__dict__, fields)
    _check_same(made.__pydantic_extra__ or {}, extra)
    object.__setattr__(made, "__pydantic_fields_set__", fields.keys() - rest.get("unset", ()) | extra.keys())
    if private := rest.get("private"):
        _check_known(cls, private, cls.__private_attributes__)
        object.__setattr__(made, "__pydantic_private__", {**(made.__pydantic_private__ or {}), **private})
    return made


def _check_known(cls: type, fields: Mapping[str, Any], known: Any) -> None:
    for name in fields:
        if name not in known:
            raise ValueError(f"{cls.__qualname__} has no field {name!r} any more")


def _check_same(made: Mapping[str, Any], recorded: Mapping[str, Any]) -> None:
    for name, item in recorded.items():
        if made[name] is not item and encode(made[name]) != encode(item):
            raise ValueError(f"validation changes field {name!r}; a recorded model must validate as it is")


def make_enum(cls: Any, value: Any, rest: Fields) -> object:
    """Raises ValueError when the class has no such value any more; `_missing_` may not stand in for it."""
    member = cls(value)
    if member.value is not value and encode(member.value) != encode(value):
        raise ValueError(f"{cls.__qualname__} has no member with the value {value!r} any more")
    return member
