"""Directed graphs as lists of numbers: components, cycles, an order, and which node leads to which.

Knows nothing of chains; `topology` and `drawing` translate. Nothing here recurses, so that a line of ten thousand nodes
is like one of three, and everything is linear in nodes and edges except `Reach`, which says what it costs.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

Successors = Sequence[Sequence[int]]
"""For each node, numbered from 0, where its edges lead."""


def successors_of(count: int, pairs: Iterable[tuple[int, int]]) -> list[list[int]]:
    successors: list[list[int]] = [[] for _ in range(count)]
    for source, target in pairs:
        successors[source].append(target)
    return successors


def reachable(successors: Successors, starts: Iterable[int]) -> set[int]:
    """The starts and every node that a path from one leads to."""
    reached = set(starts)
    todo = list(reached)
    while todo:
        for target in successors[todo.pop()]:
            if target not in reached:
                reached.add(target)
                todo.append(target)
    return reached


def components(successors: Successors) -> list[list[int]]:
    """The strongly connected components, each after all those that it leads to (Tarjan's algorithm)."""
    found: list[list[int]] = []
    count = len(successors)
    index, low = [-1] * count, [0] * count
    is_open = [False] * count
    stack: list[int] = []
    visited = 0
    for root in range(count):
        if index[root] >= 0:
            continue
        work = [(root, 0)]
        while work:
            node, position = work.pop()
            if position == 0:
                index[node] = low[node] = visited
                visited += 1
                stack.append(node)
                is_open[node] = True
            else:  # back from the successor before this position
                low[node] = min(low[node], low[successors[node][position - 1]])
            for at in range(position, len(successors[node])):
                target = successors[node][at]
                if index[target] < 0:
                    work += [(node, at + 1), (target, 0)]
                    break
                if is_open[target]:
                    low[node] = min(low[node], index[target])
            else:
                if low[node] == index[node]:
                    found.append(_popped(stack, is_open, node))
    return found


def _popped(stack: list[int], is_open: list[bool], last: int) -> list[int]:
    component = []
    while True:
        node = stack.pop()
        is_open[node] = False
        component.append(node)
        if node == last:
            return component


def is_cyclic(successors: Successors, component: Sequence[int]) -> bool:
    """Whether a node of the component leads back to itself."""
    return len(component) > 1 or component[0] in successors[component[0]]


def shortest_cycle(successors: Successors, start: int, within: Iterable[int]) -> list[int]:
    """A shortest way from the node back to itself: `[start, ..., start]`. There must be one within the nodes given."""
    allowed = frozenset(within)
    came_from: dict[int, int] = {}
    todo = deque([start])
    while todo:
        node = todo.popleft()
        for target in successors[node]:
            if target == start:
                cycle = [start, node]
                while cycle[-1] != start:
                    cycle.append(came_from[cycle[-1]])
                return cycle[::-1]
            if target in allowed and target not in came_from:
                came_from[target] = node
                todo.append(target)
    raise ValueError(f"node {start} is on no cycle")


def order(successors: Successors) -> list[int]:
    """All nodes, each before those it leads to; among those that could be next, the lowest number. In a cycle, the
    lowest number is first."""
    missing = [0] * len(successors)
    for targets in successors:
        for target in targets:
            missing[target] += 1
    ready = [node for node, count in enumerate(missing) if count == 0]
    is_done = [False] * len(successors)
    ordered: list[int] = []
    lowest = 0
    while len(ordered) < len(successors):
        if not ready:  # only what is on a cycle, or behind one, is left
            while is_done[lowest]:
                lowest += 1
            ready.append(lowest)
        node = heapq.heappop(ready)
        is_done[node] = True
        ordered.append(node)
        for target in successors[node]:
            missing[target] -= 1
            if missing[target] == 0 and not is_done[target]:
                heapq.heappush(ready, target)
    return ordered


class Reach:
    """Which node a path of at least one edge leads to from which, in a graph whose nodes have names.

    Computed at the first question. Only joins (nodes with two or more incoming edges) are kept as sets of those that
    lead to them, one bit for each node and join, since what leads to any other node leads to its only predecessor or is
    it. So a line of ten thousand nodes keeps nothing, and a graph of n nodes and j joins at most n * j / 8 bytes.
    """

    def __init__(self, names: Sequence[str], pairs: Iterable[tuple[int, int]]) -> None:
        self._numbers: Mapping[str, int] = {name: number for number, name in reversed(list(enumerate(names)))}
        self._successors = successors_of(len(names), pairs)
        self._predecessors = successors_of(
            len(names), ((target, source) for source, targets in enumerate(self._successors) for target in targets)
        )
        self._joins: list[int] | None = None

    def leads(self, source: str, target: str) -> bool:
        """Whether a path of at least one edge leads from source to target. Raises `KeyError` for an unknown name."""
        start, node = self._numbers[source], self._numbers[target]
        passed: set[int] = set()
        while len(self._predecessors[node]) == 1:
            node = self._predecessors[node][0]
            if node == start:
                return True
            if node in passed:  # round a cycle that has no way in
                return False
            passed.add(node)
        if not self._predecessors[node]:
            return False
        if self._joins is None:
            self._joins = self._compute()
        return bool(self._joins[start] >> node & 1)

    def _compute(self) -> list[int]:
        """For each node, the joins it leads to, as the bits of an int."""
        own = [1 << node if len(sources) > 1 else 0 for node, sources in enumerate(self._predecessors)]
        joins = [0] * len(own)
        # What a component leads to comes first, so that one pass over the edges is enough.
        for component in components(self._successors):
            reached = 0
            for node in component:
                for target in self._successors[node]:
                    # Ints are only made where something is added: a line without joins shares one.
                    bits = own[target] | joins[target] if own[target] else joins[target]
                    reached = reached | bits if reached and bits else reached or bits
            for node in component:
                joins[node] = reached
        return joins
