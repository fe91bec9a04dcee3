"""Graphs as numbers: compared with slow and obvious searches, on random graphs and on very long ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core import digraph
from perdure.core.digraph import Reach, successors_of


@st.composite
def graphs(draw: st.DrawFn) -> tuple[int, list[tuple[int, int]]]:
    count = draw(st.integers(1, 9))
    node = st.integers(0, count - 1)
    return count, draw(st.lists(st.tuples(node, node), max_size=16))


def led_to(count: int, pairs: list[tuple[int, int]]) -> list[set[int]]:
    """For each node what a path of at least one edge leads to: paths are made longer until nothing is new."""
    reached: list[set[int]] = [{target for source, target in pairs if source == node} for node in range(count)]
    for _ in range(count):
        for node in range(count):
            reached[node] |= {further for target in reached[node] for further in reached[target]}
    return reached


@given(graphs())
def test_reach_is_what_a_naive_search_finds(graph: tuple[int, list[tuple[int, int]]]) -> None:
    count, pairs = graph
    reach = Reach([f"n{node}" for node in range(count)], pairs)
    expected = led_to(count, pairs)

    for source in range(count):
        found = {target for target in range(count) if reach.leads(f"n{source}", f"n{target}")}
        assert found == expected[source]


@given(graphs())
def test_components_are_what_leads_there_and_back_and_come_after_what_they_lead_to(
    graph: tuple[int, list[tuple[int, int]]],
) -> None:
    count, pairs = graph
    successors = successors_of(count, pairs)
    found = digraph.components(successors)
    reached = led_to(count, pairs)

    assert sorted(node for component in found for node in component) == list(range(count))
    place = {node: at for at, component in enumerate(found) for node in component}
    for one in range(count):
        for other in range(count):
            is_together = one == other or (other in reached[one] and one in reached[other])
            assert (place[one] == place[other]) is is_together
    assert all(place[target] <= place[source] for source, target in pairs)
    for component in found:
        assert digraph.is_cyclic(successors, component) is (component[0] in reached[component[0]])


@given(graphs())
def test_an_order_follows_the_edges_and_then_the_numbers(graph: tuple[int, list[tuple[int, int]]]) -> None:
    count, pairs = graph
    ordered = digraph.order(successors_of(count, pairs))
    place = {node: at for at, node in enumerate(ordered)}
    reached = led_to(count, pairs)

    assert sorted(ordered) == list(range(count))
    if any(node in reached[node] for node in range(count)):
        return
    assert all(place[source] < place[target] for source, target in pairs)
    for at, node in enumerate(ordered):
        could_be_next = [
            other
            for other in ordered[at:]
            if not any(target == other and place[source] >= at for source, target in pairs)
        ]
        assert node == min(could_be_next)


@pytest.mark.parametrize(
    ("count", "pairs", "expected"),
    [
        (3, [], [0, 1, 2]),
        (3, [(2, 0)], [1, 2, 0]),
        (3, [(0, 1), (1, 0), (1, 2)], [0, 1, 2]),
        (4, [(3, 1), (1, 2), (2, 1)], [0, 3, 1, 2]),
        (2, [(0, 0), (1, 0)], [1, 0]),
    ],
)
def test_an_order_of_what_has_cycles_begins_them_at_the_lowest_number(
    count: int, pairs: list[tuple[int, int]], expected: list[int]
) -> None:
    assert digraph.order(successors_of(count, pairs)) == expected


@pytest.mark.parametrize(
    ("pairs", "start", "cycle"),
    [
        ([(0, 0)], 0, [0, 0]),
        ([(0, 1), (1, 0)], 0, [0, 1, 0]),
        ([(0, 1), (1, 0)], 1, [1, 0, 1]),
        ([(0, 1), (1, 2), (2, 3), (3, 0), (1, 0)], 0, [0, 1, 0]),
        ([(0, 1), (1, 2), (2, 0), (2, 3), (3, 3)], 0, [0, 1, 2, 0]),
    ],
)
def test_a_shortest_cycle(pairs: list[tuple[int, int]], start: int, cycle: list[int]) -> None:
    assert digraph.shortest_cycle(successors_of(4, pairs), start, range(4)) == cycle


def test_a_shortest_cycle_stays_within_and_must_be_there() -> None:
    successors = successors_of(3, [(0, 1), (1, 0), (0, 2), (2, 0)])

    assert digraph.shortest_cycle(successors, 0, {0, 2}) == [0, 2, 0]
    with pytest.raises(ValueError, match="on no cycle"):
        digraph.shortest_cycle(successors_of(2, [(0, 1)]), 0, range(2))


def test_unknown_names_are_refused_and_the_first_of_two_is_meant() -> None:
    reach = Reach(["a", "b", "a"], [(0, 1)])

    assert reach.leads("a", "b")
    with pytest.raises(KeyError):
        reach.leads("a", "c")


# --- ten thousand nodes ----------------------------------------------------------------------------------

LONG = 10_000
LINE = [(node, node + 1) for node in range(LONG - 1)]
NAMES = [str(node) for node in range(LONG)]


def test_a_line_of_ten_thousand_keeps_next_to_nothing() -> None:
    reach = Reach(NAMES, [*LINE, (0, LONG - 1)])  # the shortcut makes the last node a join

    assert reach.leads("0", str(LONG - 1))
    assert reach.leads("5", "6000")
    assert not reach.leads("6000", "5")
    assert not reach.leads(str(LONG - 1), str(LONG - 1))
    assert reach._joins is not None
    assert len({id(joins) for joins in reach._joins}) <= 3  # of the first node, of the last, and of all between

    line = Reach(NAMES, LINE)
    assert line.leads("0", str(LONG - 1))
    assert line._joins is None


def test_a_ring_of_ten_thousand_is_one_component() -> None:
    pairs = [*LINE, (LONG - 1, 0)]
    successors = successors_of(LONG, pairs)

    assert [len(component) for component in digraph.components(successors)] == [LONG]
    assert len(digraph.shortest_cycle(successors, 7, range(LONG))) == LONG + 1
    assert digraph.order(successors) == list(range(LONG))
    assert len(digraph.reachable(successors, [5])) == LONG
    reach = Reach(NAMES, pairs)
    assert reach.leads("3", "2")
    assert reach.leads("3", "3")


def test_the_work_of_reach_is_one_look_at_each_edge() -> None:
    class Counted(list[int]):
        looks = 0

        def __iter__(self):
            for item in super().__iter__():
                Counted.looks += 1
                yield item

    count = 1000
    reach = Reach(NAMES[:count], [*LINE[: count - 1], *((node, node + 2) for node in range(count - 2))])
    reach._successors = [Counted(targets) for targets in reach._successors]
    edges = 2 * count - 3

    assert all(reach.leads("0", str(node)) for node in range(1, count))
    assert Counted.looks == edges
