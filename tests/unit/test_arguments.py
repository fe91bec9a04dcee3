"""The text of a call's arguments: what replay compares, and what an idempotency key is made of."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.core import codec
from perdure.engine.calls import spec_of
from perdure.errors import SerializationError


def text(function: Any, *args: Any, **kwargs: Any) -> str:
    return spec_of(function).arguments(args, kwargs)


def before(x: int) -> None: ...
def after(x: int, y: int = 0, *rest: int, z: str = "z", **more: int) -> None: ...


def test_a_new_optional_parameter_changes_no_text():
    assert text(before, 1) == text(after, 1) == '{"x":1}'


def test_given_omitted_keyword_and_defaulted_forms_are_one_text():
    forms = [((1,), {}), ((), {"x": 1}), ((1, 0), {}), ((1,), {"y": 0}), ((), {"y": 0, "x": 1}), ((1,), {"z": "z"})]
    assert {text(after, *args, **kwargs) for args, kwargs in forms} == {'{"x":1}'}
    others = [((1, 2), {}), ((1,), {"y": 2}), ((), {"y": 2, "x": 1, "z": "z"})]
    assert {text(after, *args, **kwargs) for args, kwargs in others} == {'{"x":1,"y":2}'}


@pytest.mark.parametrize("value", [False, 0.0, -0.0, "0", None, "", [], {}])
def test_what_only_resembles_the_default_is_another_call(value: Any):
    assert codec.decode(text(after, 1, value))["y"] == value


def test_what_follows_an_omitted_default_keeps_its_name():
    assert text(after, 1, 0, 5, a=6) == '{"x":1,"rest":{"$tuple":[5]},"more":{"a":6}}'


def test_a_default_is_what_it_was_at_the_definition():
    held: list[int] = []

    def function(x: int, seen: list[int] = held) -> None: ...

    spec = spec_of(function)
    held.append(1)
    assert spec.arguments((1,), {}) == spec.arguments((1, []), {}) == '{"x":1}'
    assert spec.arguments((1, [1]), {}) == '{"x":1,"seen":[1]}'


def test_a_default_that_cannot_be_recorded_is_left_out_and_another_one_refused():
    marker = object()

    def function(x: int, y: object = marker) -> None: ...

    assert text(function, 1) == text(function, 1, marker) == '{"x":1}'
    with pytest.raises(SerializationError):
        text(function, 1, object())
