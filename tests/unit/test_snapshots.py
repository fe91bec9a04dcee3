"""How states are stored: exact, as small as what changed, and readable at about the cost of their own size."""

from __future__ import annotations

import operator
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core import codec, lineage, snapshots
from perdure.core.codec.text import dumps, loads
from perdure.core.lineage import Visit
from perdure.core.snapshots import Reader, Stored


class Line:
    """States one after the other, each stored, read back, and compared with what it should be."""

    def __init__(self, state: dict[str, Any], **reducers: Any) -> None:
        self.reducers = reducers
        self.last = lineage.root("", state)
        self.stored: Stored = snapshots.initial("", state)
        self.reader = Reader(codec.encode(state))
        self.texts: list[str] = []
        self.chars = 0

    def step(self, result: Any, contributions: dict[str, Any] | None = None) -> str:
        """A visit that returned `result`; its text. `contributions`: what it sets, if not the result's keys."""
        said = result if contributions is None else contributions
        n = len(self.texts)
        visit = Visit(key=f"n/{n}", rank=0, order=n, parents=(self.last,), before=self.last.after)
        lineage.write(visit, said, self.reducers)
        text = codec.encode(result)
        found, self.stored = snapshots.store(self.stored, visit, result, text, is_merged=contributions is None)
        assert found.text is not None
        self.last = visit
        self._read(visit.key, found, text, visit.after)
        return found.text

    def _read(self, key: str, found: snapshots.Said, result_text: str, state: dict[str, Any]) -> None:
        text = found.text or ""
        tree = self.reader.take(key, text, None if found.is_packed else result_text)
        assert dumps(tree) == codec.encode(state)
        assert snapshots.is_packed(text) == found.is_packed
        if found.is_packed:
            assert self.reader.results[key] == result_text
        assert self.reader.costs[key] <= 2.2 * len(codec.encode(state)) + 200
        self.texts.append(text)
        self.chars += len(text) + (0 if found.is_packed else len(result_text))


FILL = "x" * 500  # so that no change is large enough for the whole state to be written


def test_a_result_whose_keys_are_set_is_referred_to():
    line = Line({"fill": FILL, "a": 1})
    assert line.step({"a": 2, "b": [1]}) == '{"from":"","ops":[["merge"]]}'


def test_a_result_under_a_key_is_referred_to():
    line = Line({"fill": FILL})
    assert line.step([1, 2], {"k": (value := [1, 2])}) == '{"from":"","ops":[["set",["k"],[1,2]]]}'
    assert value == [1, 2]
    result = {"deep": 1}
    assert line.step(result, {"out": result}) == '{"from":"n/0","ops":[["put",["out"],[]]]}'


def test_a_reduced_list_says_what_was_added():
    line = Line({"fill": FILL, "log": [0]}, log=operator.add)
    assert line.step({"log": [1, 2]}) == '{"from":"","ops":[["ins",["log"],1,0,["log"]]]}'


@pytest.mark.parametrize(
    ("before", "after", "operations"),
    [
        ({"a": 1}, {"a": 1}, []),
        ({"a": 1}, {"a": 2}, [["set", ["a"], 2]]),
        ({"a": 1}, {"a": True}, [["set", ["a"], True]]),
        ({"a": 1}, {}, [["del", ["a"]]]),
        ({}, {"a": [Decimal("1.0")]}, [["set", ["a"], [{"$decimal": "1.0"}]]]),
        ({"a": "ab"}, {"a": "abc"}, [["append", ["a"], "c"]]),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}}, [["set", ["a", "c"], 3]]),
        ({"a": {"b": 1}}, {"a": {}}, [["del", ["a", "b"]]]),
        ({"a": [1, 2, 3]}, {"a": [1, 9, 3]}, [["set", ["a", 1], 9]]),
        ({"a": [1, 2, 3]}, {"a": [1, 2, 3, 4]}, [["splice", ["a"], 3, 0, [4]]]),
        ({"a": [1, 2, 3]}, {"a": [2, 3]}, [["splice", ["a"], 0, 1, []]]),
        ({"a": [1, 2, 3]}, {"a": [1, 3]}, [["splice", ["a"], 1, 1, []]]),
        ({"a": [{"b": 1}, 2]}, {"a": [{"b": 2}, 2]}, [["set", ["a", 0, "b"], 2]]),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, [["order", [], ["fill", "b", "a"]]]),
        ({"a": {"x": 1, "y": 2}}, {"a": {"y": 2, "x": 1}}, [["order", ["a"], ["y", "x"]]]),
        ({"a": (1, 2)}, {"a": (1, 3)}, [["set", ["a"], {"$tuple": [1, 3]}]]),
        ({"a": {"$tuple": [1]}}, {"a": {"$tuple": [2]}}, [["set", ["a"], loads(codec.encode({"$tuple": [2]}))]]),
    ],
)
def test_a_change_is_stored_as_what_differs(before: Any, after: Any, operations: list[Any]):
    """The format is persisted: runs are read by it for years."""
    base = {"fill": FILL, **before}
    said, _ = snapshots.store_before(snapshots.initial("", base), "k", {"fill": FILL, **after})
    assert loads(said.text or "") == {"from": "", "ops": operations}
    tree = Reader(codec.encode(base)).take("k", said.text or "", None)
    assert dumps(tree) == codec.encode({"fill": FILL, **after})


def test_a_state_is_stored_whole_when_that_is_cheaper_to_read():
    line = Line({"n": 0})
    texts = [line.step({"n": n}) for n in range(1, 30)]
    assert sum('"whole"' in text for text in texts) >= 5
    assert all(line.reader.costs[f"n/{n}"] <= 250 for n in range(29))


@pytest.mark.parametrize(
    "value", ["日" * 300, "😀" * 300, '"' * 300, "\n" * 300, 10**999, {"é" * 300: 1}, [True] * 300]
)
def test_what_is_written_over_again_and_again_is_read_at_the_cost_of_one(value: Any):
    """Whatever its text takes: an estimate that is off by a little each time would never come to write it whole."""
    line = Line({"a": value})
    for n in range(60):
        line.step({"a": [value, n]})
    assert line.reader.costs["n/59"] <= 2.2 * len(codec.encode([value, 59])) + 200


def test_a_large_result_that_says_again_what_the_state_had_is_not_stored_beside_it():
    """The whole list, grown by one: what is recorded is the one, and the result reads as it was."""
    line = Line({"messages": []})
    for n in range(40):
        line.step({"messages": [*line.last.after["messages"], f"{n} {FILL}"]})
    assert line.chars < 4 * 40 * len(FILL)
    assert any(snapshots.is_packed(text) for text in line.texts)


def test_a_large_result_under_one_key_is_not_stored_beside_it_either():
    line = Line({})
    for n in range(40):
        result = [*line.last.after.get("talk", []), f"{n} {FILL}"]
        line.step(result, {"talk": result})
    assert line.chars < 4 * 40 * len(FILL)


def test_a_result_that_a_reducer_made_something_else_of_is_kept():
    line = Line({"n": ["x" * 3000]}, n=operator.add)
    text = line.step({"n": ["y" * 3000]})
    assert not snapshots.is_packed(text)


def test_states_that_grow_take_space_for_what_was_added():
    sizes = {}
    for count in (100, 200):
        line = Line({"log": [], "doc": "d" * 20_000}, log=operator.add)
        for n in range(count):
            line.step({"log": [f"{n} {FILL}"], "n": n})
        sizes[count] = line.chars
    assert sizes[200] < 2.3 * sizes[100]
    assert sizes[200] < 3 * (200 * len(FILL) + 20_000)


def test_at_a_join_the_other_branches_are_what_differs():
    root = lineage.root("", {"fill": FILL})
    base = snapshots.initial("", root.after)
    branches = []
    for n, name in enumerate("ab"):
        visit = Visit(key=f"{name}/0", rank=n, order=n, parents=(root,), before=root.after)
        lineage.write(visit, {name: n}, {})
        said, visit.stored = snapshots.store(base, visit, {name: n}, codec.encode({name: n}), is_merged=True)
        branches.append(visit)
    joined = Visit(key="j/0", rank=2, order=2, parents=tuple(branches), before=lineage.join(branches, {}))
    lineage.write(joined, {"j": 5}, {})
    said, _ = snapshots.store(branches[0].stored, joined, {"j": 5}, '{"j":5}', is_merged=True)
    assert loads(said.text or "") == {"from": "a/0", "ops": [["set", ["b"], 1], ["put", ["j"], ["j"]]]}


def test_what_the_code_makes_of_a_recorded_state_may_differ_from_it():
    """New defaults, mended reducers: the next state is stored as the difference to what was recorded."""
    reader = Reader('{"a":1}')
    reader.take("n/0", '{"from":"","ops":[["set",["b"],2]]}', None)
    now = {"a": 1, "b": 2, "new": "default"}
    base = reader.stored("n/0", now)
    said, _ = snapshots.store_before(base, "n/1", {**now, "c": 3, "fill": ""})
    assert dumps(reader.take("n/1", said.text or "", None)) == codec.encode({**now, "c": 3, "fill": ""})


def test_a_base_that_stored_no_state_is_the_input():
    reader = Reader('{"a":1}')
    base = reader.stored("old/0", {"a": 1, "old": 2})
    assert (base.key, base.state) == ("", {"a": 1})


def test_an_input_that_is_no_dict_is_an_empty_state():
    for text in ("null", "[1]", None):
        assert Reader(text).states == {"": {}}


# --- anything -------------------------------------------------------------------------------------------

LEAVES: Any = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=8), st.binary(max_size=4),
    st.decimals(allow_nan=False, allow_infinity=False), st.dates(),
)  # fmt: skip
NAMES = st.text(max_size=4)
VALUES: Any = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(NAMES, inner, max_size=3), st.tuples(inner, inner),
        st.dictionaries(st.sampled_from(["$tuple", "$set", "$x"]), inner, max_size=1),
    ),
    max_leaves=8,
)  # fmt: skip
KEYS = st.sampled_from(["a", "b", "log", "ü"])


@given(st.dictionaries(KEYS, VALUES), st.lists(st.dictionaries(KEYS, VALUES, max_size=3), max_size=12))
def test_any_states_come_back_exactly(first: dict[str, Any], results: list[dict[str, Any]]):
    line = Line(first)
    for result in results:
        line.step(result)


@given(st.lists(st.lists(VALUES, max_size=3), min_size=1, max_size=12), st.booleans())
def test_any_growing_list_comes_back_exactly(parts: list[list[Any]], is_reduced: bool):
    line = Line({"log": []}, **({"log": operator.add} if is_reduced else {}))
    for part in parts:
        line.step({"log": part if is_reduced else [*line.last.after["log"], *part]})


@given(st.lists(VALUES, min_size=1, max_size=10))
def test_any_result_under_one_key_comes_back_exactly(results: list[Any]):
    line = Line({})
    for result in results:
        line.step(result, {"out": result})
        line.step({"tick": len(line.texts)})


@given(st.dictionaries(KEYS, VALUES), st.lists(st.dictionaries(KEYS, VALUES), max_size=8))
def test_any_two_states_are_told_apart(first: dict[str, Any], states: list[dict[str, Any]]):
    """Not only what visits write: a patch, a join, the start of a nested chain may change anything."""
    reader, stored = Reader(codec.encode(first)), snapshots.initial("", first)
    for n, state in enumerate(states):
        said, stored = snapshots.store_before(stored, f"k/{n}", state)
        assert dumps(reader.take(f"k/{n}", said.text or "", None)) == codec.encode(state)
