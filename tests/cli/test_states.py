"""Where two states differ, and that what is said of it can be typed again."""

from __future__ import annotations

import copy
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.cli.changes import applied, parse_changes
from perdure.cli.states import Difference, differences
from perdure.core import codec
from perdure.core.codec.text import loads


def _found(old: Any, new: Any) -> list[tuple[Any, ...]]:
    """As `(change, path, old, new)`, without what is not there. The states are given as values."""
    trees = (loads(codec.encode(state)) for state in (old, new))
    documents = [each.document() for each in differences(*trees)]
    return [
        (each["change"], each["path"], *(each[side] for side in ("old", "new") if side in each)) for each in documents
    ]


def test_what_is_new_different_and_gone() -> None:
    old = {"gone": 1, "same": [1, {"a": None}], "deep": {"er": {"x": 1, "y": 2}}}
    new = {"same": [1, {"a": None}], "deep": {"er": {"x": 1, "y": 3}}, "new": "text"}

    assert _found(old, new) == [
        ("removed", "gone", 1),
        ("changed", "deep.er.y", 2, 3),
        ("added", "new", "text"),
    ]


@pytest.mark.parametrize(("old", "new"), [(1, True), (1, 1.0), (0.0, -0.0), ("1", 1), (None, False), ([], {})])
def test_another_type_is_a_difference(old: Any, new: Any) -> None:
    assert _found({"a": old}, {"a": new}) == [("changed", "a", old, new)]


def test_an_item_that_was_put_in_front_is_one_difference() -> None:
    assert _found({"log": ["b", "c"]}, {"log": ["a", "b", "c"]}) == [("added", "log[0]", "a")]
    assert _found({"log": ["a", "b", "c"]}, {"log": ["a", "c"]}) == [("removed", "log[1]", "b")]
    assert _found({"log": [{"n": 1}, {"n": 2}]}, {"log": [{"n": 1}, {"n": 3}]}) == [("changed", "log[1].n", 2, 3)]


def test_another_order_of_keys_is_a_difference() -> None:
    assert _found({"a": {"x": 1, "y": 2}}, {"a": {"y": 2, "x": 1}}) == [("reordered", "a", ["x", "y"], ["y", "x"])]
    assert _found({"x": 1, "y": 2}, {"y": 2, "x": 1}) == [("reordered", "state", ["x", "y"], ["y", "x"])]


def test_values_are_compared_and_not_how_they_are_written_down() -> None:
    first, second = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)

    assert _found({"due": first}, {"due": second}) == [("changed", "due", first.isoformat(), second.isoformat())]
    assert _found({"pair": (1, 2)}, {"pair": (1, 3)}) == [("changed", "pair[1]", 2, 3)]


def test_a_long_value_is_cut_to_where_it_differs() -> None:
    old, new = Difference(path="a", change="changed", old="x" * 500 + "old", new="x" * 500 + "new").texts()
    whole, _ = Difference(path="a", change="removed", old=list(range(100))).texts()

    assert (old, new) == ("…" + "x" * 16 + 'old"', "…" + "x" * 16 + 'new"')
    assert whole.startswith("[0, 1, 2")
    assert len(whole) < 80


_KEYS = st.sampled_from(["a", "b", "state", "a b", "0", "-", 'quo"te', "ä", ""])
_STATES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.dictionaries(_KEYS, inner, max_size=4) | st.lists(inner, max_size=3),
    max_leaves=12,
)


@given(
    st.dictionaries(_KEYS.filter(bool), _STATES, max_size=4), st.dictionaries(_KEYS.filter(bool), _STATES, max_size=4)
)
def test_every_path_can_be_set(old: dict[str, Any], other: dict[str, Any]) -> None:
    """What differs, typed as changes of the old state, makes the new one."""
    new = _merged(old, other)
    before = copy.deepcopy(old)
    texts = [f"{each.path}:={json.dumps(each.new)}" for each in differences(old, new)]

    assert {**old, **applied(parse_changes(texts), old)} == new
    assert old == before


def _merged(old: Any, other: Any) -> Any:
    """The old value with what the other has: nothing is gone, no list has another length."""
    if isinstance(old, dict) and isinstance(other, dict):
        return {**old, **{key: _merged(old[key], value) if key in old else value for key, value in other.items()}}
    if isinstance(old, list) and isinstance(other, list):
        return [_merged(*pair) for pair in zip(old, other, strict=False)] + old[len(other) :]
    return other
