"""Differences between states: exact, and as small as what changed."""

import copy
import json

import pytest

from perdure.core.delta import Delta, apply, diff, should_keyframe

TREES = [
    None,
    True,
    1,
    1.0,
    0.0,
    -0.0,
    "",
    "a",
    "ab",
    [],
    [1],
    [True],
    [1, 2, 3],
    [1, 9, 3],
    [0, 1, 2, 3],
    [2, 3, 4],
    [{"a": 1}, {"b": 2}],
    [{"a": 1}, {"b": 3}],
    {},
    {"a": 1},
    {"a": 1.0},
    {"a": 1, "b": 2},
    {"b": 2, "a": 1},
    {"b": 2, "a": 1, "c": {"x": [1]}},
    {"c": {"x": [1, 2], "y": "t"}, "a": 1, "": None},
    {"$tuple": [1]},
]


def text(tree: object) -> str:
    return json.dumps(tree)


@pytest.mark.parametrize("old", TREES, ids=text)
def test_every_tree_can_follow_every_other(old):
    for new in TREES:
        before, delta = copy.deepcopy(old), diff(old, new)
        assert (delta is None) == (text(old) == text(new))
        stored = None if delta is None else Delta(json.loads(json.dumps(delta.operations)))
        assert text(apply(old, stored)) == text(new)
        assert text(old) == text(before)


@pytest.mark.parametrize(
    ("old", "new", "operations"),
    [
        ({"a": [1, 2]}, {"a": [1, 2, 3]}, [["splice", ["a"], 2, 0, [3]]]),
        ({"t": "Hello"}, {"t": "Hello, you"}, [["append", ["t"], ", you"]]),
        ({"a": 1, "b": 2}, {"a": 1}, [["del", ["b"]]]),
        ({"a": 1}, {"a": 1, "b": 2}, [["set", ["b"], 2]]),
        ([1, 2, 3], [2, 3, 4], [["set", [0], 2], ["set", [1], 3], ["set", [2], 4]]),
        ([[1, 2, 3], 0], [[2, 3], 0], [["splice", [0], 0, 1, []]]),
        ({"a": {"b": [{"c": 1}]}}, {"a": {"b": [{"c": 2}]}}, [["set", ["a", "b", 0, "c"], 2]]),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, [["order", [], ["b", "a"]]]),
        (1, True, [["set", [], True]]),
    ],
    ids=range(9),
)
def test_operations_are_pinned(old, new, operations):
    """They are in databases."""
    delta = diff(old, new)
    assert delta is not None
    assert delta.operations == operations


def stored_bytes(states: list) -> int:
    """What a run stores: keyframes, and deltas between."""
    total, since, previous = 0, 0, None
    for state in states:
        delta = diff(previous, state)
        size = len(text(delta.operations)) if delta else 0
        state_bytes = len(text(state))
        since += size
        if previous is None or should_keyframe(since, state_bytes):
            total, since = total + state_bytes, 0
        else:
            total += size
        previous = state
    return total


@pytest.mark.parametrize("kind", ["list", "text", "keys"])
def test_law_09_storage_is_linear(kind):
    """Twice the turns take about twice the room, and not four times."""
    part = "x" * 500

    def states(turns: int) -> list:
        if kind == "list":
            return [{"messages": [f"{n}{part}" for n in range(turn)], "turn": turn} for turn in range(turns)]
        if kind == "text":
            return [{"text": part * turn, "turn": turn} for turn in range(turns)]
        return [{f"k{n}": part for n in range(turn)} for turn in range(turns)]

    content = 500 * 200
    assert stored_bytes(states(200)) < 3 * content
    assert stored_bytes(states(400)) < 2.2 * stored_bytes(states(200)) + 2 * content


def test_a_keyframe_comes_when_deltas_outweigh_the_state():
    assert not should_keyframe(99, 100)
    assert should_keyframe(100, 100)
