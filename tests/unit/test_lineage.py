"""Where a chain's state comes from: what a visit writes, what belongs to whom, what a join makes of its branches."""

from __future__ import annotations

import datetime as dt
import itertools
import operator
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core import lineage
from perdure.core.lineage import Visit, is_same, join, own, patched, reduce, root, write
from perdure.errors import ChainError


class Builder:
    """Visits of one chain, in the order in which they begin."""

    def __init__(self, state: dict[str, Any] | None = None, **reducers: Any) -> None:
        self.reducers = reducers
        self.root = root("", state or {})
        self.count = 0

    def visit(self, name: str, writes: dict[str, Any], *parents: Visit, rank: int | None = None) -> Visit:
        before = join(parents or (self.root,), self.reducers)
        made = Visit(
            key=f"{name}/0",
            rank=self.count if rank is None else rank,
            order=self.count,
            name=name,
            parents=tuple(dict.fromkeys(parents or (self.root,))),
            before=before,
        )
        self.count += 1
        write(made, writes, self.reducers)
        return made

    def join(self, *tokens: Visit) -> dict[str, Any]:
        return join(tokens, self.reducers)


# --- values ---------------------------------------------------------------------------------------------

ALIKE: list[Any] = [
    None, True, 1, 1.0, 0.0, -0.0, "", "1", b"1", [], [1], [True], {}, {"a": 1, "b": 2}, {"b": 2, "a": 1}, (1,), {1},
    Decimal("1"), Decimal("1.0"), dt.date(2024, 1, 1), dt.datetime(2024, 1, 1), 1j, float("nan"), float("inf"),
    [{"a": (1,)}], [{"a": [1]}], frozenset({1}), {"a": {"b": None}}, {"$tuple": [1]}, {1: "a"}, {True: "a"}, {1.0: "a"},
]  # fmt: skip


@pytest.mark.parametrize("value", ALIKE, ids=repr)
def test_a_value_is_the_same_as_its_copy_and_as_no_other(value: Any):
    assert is_same(value, own(value))
    assert [is_same(value, other) for other in ALIKE].count(True) == 1


def test_nan_is_the_same_as_itself():
    """It is recorded alike, whatever it compares like."""
    assert is_same([float("nan")], [float("nan")])


def test_what_cannot_be_recorded_is_the_same_as_itself_only():
    thing = object()
    assert is_same(thing, thing)
    assert not is_same(thing, object())


def test_a_copy_shares_nothing_that_could_be_changed():
    given_ = {"a": [1, {"b": {2}}], "c": ({"d": []},), "e": bytearray(b"x")}
    copy = own(given_)
    assert copy == given_
    copy["a"].append(2)
    copy["a"][1]["b"].add(3)
    copy["c"][0]["d"].append(4)
    assert given_ == {"a": [1, {"b": {2}}], "c": ({"d": []},), "e": bytearray(b"x")}


def test_a_write_changes_no_state_in_place():
    chain = Builder({"a": [1], "n": 1}, n=operator.add)
    visit = chain.visit("x", {"a": [2], "n": 5, "new": 0})
    assert chain.root.after == {"a": [1], "n": 1}
    assert (visit.before, visit.after) == ({"a": [1], "n": 1}, {"a": [2], "n": 6, "new": 0})
    assert visit.writes == {"a": [2], "n": 5, "new": 0}


def test_what_is_there_already_is_not_written():
    visit = Builder({"a": [1], "b": 1}).visit("x", {"a": [1], "b": True})
    assert visit.writes == {"b": True}
    assert visit.after["b"] is True


def test_a_write_whose_reducer_raises_leaves_the_visit_as_it_was():
    visit = Visit(key="x/0", rank=0, order=0, before={"n": 1})
    with pytest.raises(TypeError):
        write(visit, {"a": 1, "n": "one"}, {"n": operator.add})
    assert (visit.after, visit.writes) == ({}, {})


def test_a_reducer_gets_values_of_its_own_and_the_first_value_is_taken_as_it_is():
    def greedy(old: list[int], new: list[int]) -> list[int]:
        old.extend(new)
        new.clear()
        return old

    state = {"items": [1]}
    written = [2]
    assert reduce(greedy, state, "items", written) == [1, 2]
    assert (state, written) == ({"items": [1]}, [2])
    assert reduce(greedy, {}, "items", written) is written


# --- joins ----------------------------------------------------------------------------------------------


def test_one_token_is_its_own_state():
    chain = Builder({"x": 1})
    visit = chain.visit("a", {"y": 2})
    assert chain.join(visit) is visit.after
    assert chain.join(visit, visit) is visit.after


def test_branches_merge_in_the_order_of_declaration():
    chain = Builder({"log": []}, log=operator.add)
    start = chain.visit("s", {})
    late = chain.visit("late", {"log": ["late"], "z": 1}, start, rank=9)
    early = chain.visit("early", {"log": ["early"], "a": 2}, start, rank=3)
    for tokens in itertools.permutations((late, early)):
        assert list(chain.join(*tokens).items()) == [("log", ["early", "late"]), ("a", 2), ("z", 1)]


def test_a_visit_comes_after_those_it_builds_on_whatever_its_rank():
    chain = Builder(log=operator.add)
    first = chain.visit("first", {"log": ["first"]}, rank=9)
    second = chain.visit("second", {"log": ["second"]}, first, rank=0)
    other = chain.visit("other", {"log": ["other"]}, rank=5)
    assert chain.join(second, other)["log"] == ["other", "first", "second"]


def test_two_branches_with_one_key_are_an_error_that_names_both():
    chain = Builder({"x": 0})
    one, two = chain.visit("one", {"x": 1}), chain.visit("two", {"x": 2})
    for tokens in itertools.permutations((one, two)):
        with pytest.raises(ChainError, match=r"'one' and 'two' have both written the key 'x'"):
            chain.join(*tokens)


def test_the_same_value_from_two_branches_is_a_conflict_as_well():
    """It agrees this time: whoever reads the chain should not have to hope for that."""
    chain = Builder()
    with pytest.raises(ChainError, match="'x'"):
        chain.join(chain.visit("one", {"x": 1}), chain.visit("two", {"x": 1}))


def test_who_builds_on_a_writer_may_write_over_it():
    chain = Builder()
    start = chain.visit("s", {"x": 0})
    one = chain.visit("one", {"x": 1}, start)
    two = chain.visit("two", {"x": 2}, one)
    other = chain.visit("other", {"y": 1}, start)
    assert chain.join(two, other) == {"x": 2, "y": 1}
    with pytest.raises(ChainError, match=r"'one' and 'late'"):
        chain.join(one, chain.visit("late", {"x": 9}, other))


def test_who_has_seen_both_writers_settles_the_conflict():
    """Two branches that write one key, joined by a node with a reducer-free chain: refused at the first join, so no
    later one has to know. A writer that builds on both has the last word."""
    chain = Builder(log=operator.add)
    a, b = chain.visit("a", {"log": ["a"]}), chain.visit("b", {"log": ["b"]})
    both = chain.visit("both", {"x": 1}, a, b)
    c = chain.visit("c", {"log": ["c"]}, a)
    assert chain.join(both, c) == {"log": ["a", "b", "c"], "x": 1}


def test_what_came_before_the_fork_is_counted_once():
    chain = Builder({"n": 1}, n=operator.add)
    start = chain.visit("s", {"n": 10})
    assert chain.join(chain.visit("a", {"n": 100}, start), chain.visit("b", {"n": 1000}, start)) == {"n": 1111}


def test_a_token_and_one_that_builds_on_it():
    chain = Builder(log=operator.add)
    a = chain.visit("a", {"log": ["a"]})
    b = chain.visit("b", {"log": ["b"]}, a)
    assert chain.join(a, b) == {"log": ["a", "b"]}


# --- changes by people ----------------------------------------------------------------------------------


def test_a_change_stands_between_a_visit_and_what_comes_after_it():
    chain = Builder({"x": 1}, x=operator.add)
    a = chain.visit("a", {"x": 1})
    changed = patched(a, {"x": 50, "y": 1}, 0)
    assert (a.after, changed.after) == ({"x": 2}, {"x": 50, "y": 1})
    assert chain.visit("b", {"x": 1}, changed).after == {"x": 51, "y": 1}


def test_one_change_in_several_branches_is_no_conflict_and_comes_after_what_was_before_it():
    chain = Builder({"log": []}, log=operator.add)
    start = chain.visit("s", {})
    a, b = chain.visit("a", {"log": ["a"]}, start), chain.visit("b", {"log": ["b"]}, start)
    change = {"log": ["changed"], "x": 1}
    a2 = chain.visit("a2", {"log": ["a2"]}, patched(a, change, 0))
    b2 = chain.visit("b2", {"log": ["b2"]}, patched(b, change, 0))
    for tokens in itertools.permutations((a2, b2)):
        assert chain.join(*tokens) == {"log": ["changed", "a2", "b2"], "x": 1}


def test_a_second_change_wins_over_the_first():
    chain = Builder()
    a, b = chain.visit("a", {"x": 1}), chain.visit("b", {"y": 1})
    first = [patched(one, {"p": 1}, 0) for one in (a, b)]
    second = [patched(one, {"p": 2}, 1) for one in first]
    assert chain.join(*second) == {"x": 1, "p": 2, "y": 1}


def test_a_branch_that_writes_over_a_change_of_all_branches_is_heard():
    chain = Builder()
    a, b = chain.visit("a", {}), chain.visit("b", {})
    changed = [patched(one, {"p": 1}, 0) for one in (a, b)]
    over = chain.visit("over", {"p": 2}, changed[0])
    assert chain.join(over, changed[1]) == {"p": 2}


# --- whatever happened first ----------------------------------------------------------------------------


@given(st.data())
def test_a_join_is_the_same_in_whatever_order_its_branches_ended(data: st.DataObject):
    """A random graph of visits, begun in two orders that both respect what builds on what: the join of its ends has
    the same keys, values and order, or is the same error."""
    count = data.draw(st.integers(2, 8))
    parents = [data.draw(st.sets(st.integers(0, n - 1), max_size=3)) if n else set() for n in range(count)]
    writes = [data.draw(st.dictionaries(st.sampled_from("abc"), st.integers(0, 1), max_size=2)) for _ in range(count)]
    reducers: dict[str, Any] = {"a": lambda old, new: [old, new]} if data.draw(st.booleans()) else {}
    ends = [n for n in range(count) if not any(n in found for found in parents[n + 1 :])]
    assert _ended(parents, writes, reducers, list(range(count)), ends) == _ended(
        parents, writes, reducers, _another_order(data, parents), data.draw(st.permutations(ends))
    )


def _another_order(data: st.DataObject, parents: list[set[int]]) -> list[int]:
    order: list[int] = []
    while len(order) < len(parents):
        ready = [n for n in range(len(parents)) if n not in order and parents[n] <= set(order)]
        order.append(data.draw(st.sampled_from(ready)))
    return order


def _ended(parents: Any, writes: Any, reducers: Any, order: list[int], ends: list[int]) -> Any:
    chain = Builder({"a": 7}, **reducers)
    visits: dict[int, Visit] = {}
    try:
        for n in order:
            chosen = [visits[one] for one in sorted(parents[n])]
            visits[n] = chain.visit(f"n{n}", writes[n], *chosen, rank=n)
        return list(chain.join(*(visits[n] for n in ends)).items())
    except ChainError:
        return "conflict"


def test_a_long_line_beside_a_short_one_is_joined_without_recursion():
    chain = Builder(n=operator.add)
    start = chain.visit("s", {"n": 0})
    long = start
    for _ in range(3000):
        long = chain.visit("l", {"n": 1}, long)
    assert chain.join(chain.visit("short", {"x": 1}, start), long) == {"n": 3000, "x": 1}
    assert lineage.join((long, start), {"n": operator.add}) == {"n": 3000}
