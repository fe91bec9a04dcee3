"""What a state, a node's input or its output must look like: a type, or a JSON schema. Decides nothing but whether it
fits, and what a value of a declared type becomes.

A state's schema names its keys: a pydantic model, a dataclass, a TypedDict, a dict of types, or a JSON schema of type
object. Checked is what is new: the whole state at the door, a node's writes after the node.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from perdure.core import lineage
from perdure.errors import ChainStateError, InvalidInputError

_MISSING: Any = object()


class Schema:
    """One value's schema: a type (anything pydantic understands) or a JSON schema (a dict)."""

    def __init__(self, given: Any, field: str, *, whole: Any = None) -> None:
        self._given = given
        self._field = field
        self._whole = whole
        """The validator of the document that a JSON schema is a part of: its references point there."""
        if isinstance(given, dict):
            if whole is None:
                _check_json_schema(given, field)
        elif isinstance(given, str):
            raise InvalidInputError(field, f"must be a type or a JSON schema, not the text {given!r}")
        else:
            _ = self._adapter  # what is no type is refused here, and not after a node has run

    def check(self, field: str, value: Any) -> Any:
        """The value as the schema makes it (a type may convert). Raises `ChainStateError` naming the field."""
        if isinstance(self._given, dict):
            _check_json(self._validator, field, value)
            return value
        from pydantic import ValidationError  # loaded by who declares a type

        try:
            return self._adapter.validate_python(value)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join([field, *(str(part) for part in first["loc"])])
            raise ChainStateError(place, first["msg"]) from None

    @property
    def declared(self) -> Any:
        """The type to rebuild recorded values with; None for a JSON schema, which makes nothing of them."""
        return None if isinstance(self._given, dict) else self._given

    @cached_property
    def _adapter(self) -> Any:
        from pydantic import TypeAdapter

        try:
            return TypeAdapter(self._given)
        except Exception as error:
            raise InvalidInputError(self._field, f"{self._given!r} is no type to check values with: {error}") from None

    @cached_property
    def _validator(self) -> Any:
        return _validator_of(self._given) if self._whole is None else self._whole.evolve(schema=self._given)


class StateSchema:
    """The schema of a state: one per key, and what a key is when nobody sets it."""

    def __init__(self, given: Any) -> None:
        self._keys: dict[str, Schema] = {}
        self._defaults: dict[str, Any] = {}
        self._required: set[str] = set()
        self._whole: Any = None
        self._model: Schema | None = None
        """Of a pydantic model: what it demands of all keys together, at the beginning."""
        if isinstance(given, dict) and _is_json_schema(given):
            self._read_json(given)
        else:
            self._read_types(given)

    def _read_json(self, given: dict[str, Any]) -> None:
        _check_json_schema(given, "state_schema")
        self._whole = _validator_of(given)
        self._required = set(given.get("required", ()))
        for name, inner in given.get("properties", {}).items():
            self._keys[name] = Schema(inner, "state_schema", whole=self._whole)
            if isinstance(inner, dict) and "default" in inner:
                self._defaults[name] = inner["default"]

    def _read_types(self, given: Any) -> None:
        fields = _fields_of(given)
        if fields is None:
            raise InvalidInputError(
                "state_schema",
                "must be a pydantic model, a dataclass, a TypedDict, a dict of types or a JSON schema of an object, "
                f"not {given!r}",
            )
        if isinstance(getattr(given, "model_fields", None), dict):
            self._model = Schema(given, "state_schema")
        for name, (annotation, default) in fields.items():
            self._keys[name] = Schema(annotation, "state_schema")
            if default is _MISSING:
                self._required.add(name)
            elif default is not None or not _is_left_out(given, name):
                self._defaults[name] = default

    def defaults(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """What the schema has for the keys that the state lacks; made anew at each call."""
        return {name: _made(value) for name, value in self._defaults.items() if name not in state}

    def fill(self, state: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The state with defaults for what is missing (those given, if they were made before), every key checked."""
        filled = {**state, **(self.defaults(state) if defaults is None else defaults)}
        missing = sorted(self._required - filled.keys())
        if missing:
            raise ChainStateError(missing[0], f"is missing; the state has {_named(state)}")
        if self._whole is not None:
            _check_json(self._whole, "state", filled)
        if self._model is not None:
            self._model.check("state", filled)
        return self.check(filled)

    def check(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Each value as its key's type makes it; keys that nobody declared are left alone. What a type has made of a
        value must be recordable: `SerializationError` names the key."""
        made = {name: self._keys[name].check(name, value) for name, value in values.items() if name in self._keys}
        converted = {name: value for name, value in made.items() if not lineage.is_same(values[name], value)}
        lineage.check_recordable(converted)
        return {**values, **converted} if converted or type(values) is not dict else values


def _made(default: Any) -> Any:
    """A default for one state: what becomes of it there is not the next one's default."""
    return default() if isinstance(default, _Factory) else lineage.own(default)


class _Factory:
    """A default that is made anew for each state."""

    def __init__(self, make: Any) -> None:
        self._make = make

    def __call__(self) -> Any:
        return self._make()


def _fields_of(given: Any) -> dict[str, tuple[Any, Any]] | None:
    """Annotation and default of each key; None for what names no keys."""
    if isinstance(given, dict):
        return {name: (annotation, _MISSING) for name, annotation in given.items()} if given else None
    if dataclasses.is_dataclass(given) and isinstance(given, type):
        hints = typing.get_type_hints(given, include_extras=True)
        return {field.name: (hints[field.name], _dataclass_default(field)) for field in dataclasses.fields(given)}
    if typing.is_typeddict(given):
        # `__required_keys__` knows nothing of Required and NotRequired where annotations are texts.
        full = typing.get_type_hints(given, include_extras=True)
        told = {name: typing.get_origin(hint) for name, hint in full.items()}
        wrapped = (typing.Required, typing.NotRequired)
        hints = {name: typing.get_args(hint)[0] if told[name] in wrapped else hint for name, hint in full.items()}
        required = {name for name in hints if told[name] is typing.Required} | {
            name for name in getattr(given, "__required_keys__", ()) if told[name] is not typing.NotRequired
        }
        return {name: (hint, _MISSING if name in required else None) for name, hint in hints.items()}
    model_fields = getattr(given, "model_fields", None)
    if isinstance(given, type) and isinstance(model_fields, dict):
        return {name: (_annotated(field), _model_default(field)) for name, field in model_fields.items()}
    return None


def _is_left_out(given: Any, name: str) -> bool:
    """A key of a TypedDict that is not required has no default: it is not there."""
    return typing.is_typeddict(given)


def _dataclass_default(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    if field.default_factory is not dataclasses.MISSING:
        return _Factory(field.default_factory)
    return _MISSING


def _annotated(field: Any) -> Any:
    """A field's type with its constraints."""
    return typing.Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation


def _model_default(field: Any) -> Any:
    if field.is_required():
        return _MISSING
    return _Factory(field.default_factory) if field.default_factory is not None else field.default


def _is_json_schema(given: dict[str, Any]) -> bool:
    return given.get("type") == "object" or isinstance(given.get("properties"), dict) or "$schema" in given


def _check_json_schema(given: dict[str, Any], field: str) -> None:
    from jsonschema import SchemaError  # loaded by who gives a JSON schema

    try:
        type(_validator_of(given)).check_schema(given)
    except SchemaError as error:
        raise InvalidInputError(field, f"is no JSON schema: {error.message}") from None


def _validator_of(given: dict[str, Any]) -> Any:
    from jsonschema import Draft202012Validator
    from jsonschema.validators import validator_for

    return validator_for(given, default=Draft202012Validator)(given)


def _check_json(validator: Any, field: str, value: Any) -> None:
    from jsonschema.exceptions import best_match

    error = best_match(validator.iter_errors(value))
    if error is not None:
        place = ".".join([field, *(str(part) for part in error.absolute_path)])
        raise ChainStateError(place, error.message)


def _named(state: Mapping[str, Any]) -> str:
    return ", ".join(map(repr, state)) or "nothing"
