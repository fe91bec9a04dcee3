"""Where a chain's state comes from: visits of nodes, each with the visits before it, and how branches merge at a join.

Decides what a node sees and what a join makes of the branches that were taken: writes are applied in the order in
which nodes were declared, a visit after those it builds on, whatever finished first. Two branches that write one key
need a reducer. Pure; values are never changed in place.
"""

from __future__ import annotations

import copy
import heapq
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from perdure.core import codec
from perdure.errors import ChainError, SerializationError

Reducer = Callable[[Any, Any], Any]
State = dict[str, Any]

_PURE = frozenset({operator.add, operator.or_, operator.and_, operator.mul, operator.sub, operator.concat, max, min})
"""Reducers that are known to leave their arguments as they are."""


@dataclass(slots=True, eq=False, kw_only=True)
class Visit:
    """One run of a node (or one change of the state by a person), with the state before and after it.

    `rank` is the node's place in the order of declaration, `order` counts visits of a chain in the order they began.
    `writes` are the keys it set, with what it contributed to each.
    """

    key: str
    rank: int
    order: int
    name: str = ""
    number: int = 0
    parents: tuple[Visit, ...] = ()
    before: State = field(default_factory=dict)
    after: State = field(default_factory=dict)
    writes: State = field(default_factory=dict)
    patch: int | None = None
    """Which change of the state this is a part of: it reaches each branch by a visit of its own."""
    stored: Any = None
    """How the state after it is stored, if that is known here (`core.snapshots.Stored`)."""


def root(key: str, state: State) -> Visit:
    """The visit that stands for the state a chain begins with."""
    return Visit(key=key, rank=-1, order=-1, before=state, after=state)


def write(
    visit: Visit,
    contributions: Mapping[str, Any],
    reducers: Mapping[str, Reducer],
    check: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None,
) -> None:
    """Let a visit set keys: what `contributions` has and the state before it has not. `check` makes of a reduced value
    what the state's schema says. Raises what a reducer or the check raises, with the visit unchanged."""
    before, after, writes = visit.before, visit.before.copy(), {}
    for name, value in contributions.items():
        reducer = reducers.get(name)
        if reducer is not None:
            reduced = reduce(reducer, before, name, value)
            after[name] = reduced if check is None else check({name: reduced})[name]
        elif name in before and is_same(before[name], value):
            continue
        else:
            after[name] = value
        writes[name] = value
    visit.after, visit.writes = after, writes


def reduce(reducer: Reducer, state: Mapping[str, Any], name: str, value: Any) -> Any:
    """What a reducer makes of a key; the first value of a key is taken as it is. Reducers get values of their own, and
    what they return must be recordable: `SerializationError` names the key."""
    if name not in state:
        return value
    old = state[name]
    if reducer in _PURE:
        return reducer(old, value)
    reduced = reducer(own(old), own(value))
    check_recordable({name: reduced})
    return reduced


def check_recordable(values: Mapping[str, Any]) -> None:
    """Raise `SerializationError` naming the key if a value of a state cannot be recorded: before an effect is, not
    after it."""
    for name, value in values.items():
        try:
            codec.encode(value)
        except SerializationError as error:
            raise SerializationError(f"state.{name}{error.path.removeprefix('$')}", error.message) from None


def own(value: Any) -> Any:
    """A copy that shares nothing that could be changed. Fast for plain data, which most states are."""
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind is list:
        return [item if type(item) in _ATOMS else own(item) for item in value]
    if kind is dict:
        return {key: item if type(item) in _ATOMS else own(item) for key, item in value.items()}
    return copy.deepcopy(value)


_ATOMS = frozenset({str, int, float, bool, type(None), bytes, complex})


def is_same(old: Any, new: Any) -> bool:
    """Whether two values are recorded alike: type, value and order of keys."""
    if old is new:
        return True
    kind = type(old)
    if kind is not type(new):
        return False
    if kind is list:
        return len(old) == len(new) and all(map(is_same, old, new))
    if kind is dict:
        keys_are_same = list(old) == list(new) and list(map(type, old)) == list(map(type, new))
        return keys_are_same and all(map(is_same, old.values(), new.values()))
    if kind is float:
        return (old == new and math.copysign(1.0, old) == math.copysign(1.0, new)) or (old != old and new != new)
    if kind in _ATOMS and kind is not complex:
        return old == new
    try:
        return codec.encode(old) == codec.encode(new)
    except SerializationError:
        return False


def patched(visit: Visit, changes: Mapping[str, Any], number: int) -> Visit:
    """A person changed the state: the visit that stands between `visit` and what comes after it."""
    return Visit(
        key=visit.key,
        rank=-1,
        order=visit.order,
        name="patch",
        parents=(visit,),
        before=visit.after,
        after={**visit.after, **changes},
        writes=dict(changes),
        patch=number,
    )


# --- joins ----------------------------------------------------------------------------------------------


def join(tokens: Sequence[Visit], reducers: Mapping[str, Reducer]) -> State:
    """The state that a node sees which several visits lead to. Raises `ChainError` if two of the branches have
    written one key that has no reducer, naming the key and both nodes."""
    unique = list(dict.fromkeys(tokens))
    if len(unique) == 1:
        return unique[0].after
    base, branched = _since_common(unique)
    state = base.after.copy()
    last: dict[str, list[tuple[int, Visit]]] = {}
    for position, (visit, ancestors) in enumerate(_in_order(branched)):
        for name, value in visit.writes.items():
            reducer = None if visit.patch is not None else reducers.get(name)
            if reducer is not None:
                state[name] = reduce(reducer, state, name, value)
            else:
                # Whose word is the last: those whose visits this one does not build on still stand beside it.
                before = last.get(name, ())
                last[name] = [*(one for one in before if not ancestors >> one[0] & 1), (position, visit)]
                state[name] = value
    _check_agreed(last, reducers)
    return state


def contributions(ends: Sequence[Visit], root: Visit, reducers: Mapping[str, Reducer]) -> State:
    """What the visits since `root` have added up for the keys that are reduced: what the chain around them, which
    reduces the same keys, has to be given."""
    found: dict[Visit, None] = {}
    waiting = list(ends)
    while waiting:
        visit = waiting.pop()
        if visit is not root and visit not in found:
            found[visit] = None
            waiting.extend(visit.parents)
    total: State = {}
    for visit, _ in _in_order(list(found)):
        for name, value in visit.writes.items():
            if name in reducers and visit.patch is not None:
                total.pop(name, None)  # a person has set it, in the chain around as well
            elif name in reducers:
                total[name] = reduce(reducers[name], total, name, value)
    return total


def _check_agreed(last: Mapping[str, list[tuple[int, Visit]]], reducers: Mapping[str, Reducer]) -> None:
    for name, writers in last.items():
        if len(writers) > 1 and name not in reducers:
            nodes = " and ".join(repr(visit.name) for _, visit in writers)
            raise ChainError(
                f"nodes {nodes} have both written the key {name!r}, in branches that meet: give it a reducer "
                f"(reducers={{{name!r}: ...}}), or let each write a key of its own (output_key=...)"
            )


def _since_common(tokens: Sequence[Visit]) -> tuple[Visit, list[Visit]]:
    """The last visit that all tokens build on with all that came before it, and every visit since."""
    everybody = (1 << len(tokens)) - 1
    masks: dict[Visit, int] = {}
    for number, token in enumerate(tokens):
        masks[token] = masks.get(token, 0) | 1 << number
    heap = [(-visit.order, -_depth_of_patch(visit), n, visit) for n, visit in enumerate(masks)]
    heapq.heapify(heap)
    since: list[Visit] = []
    count = len(heap)
    while True:
        *_, visit = heapq.heappop(heap)
        if not heap and masks[visit] == everybody:
            return visit, since
        if not visit.parents:
            raise AssertionError("visits of one chain have a common root")
        since.append(visit)
        for parent in visit.parents:
            if parent not in masks:
                masks[parent] = 0
                count += 1
                heapq.heappush(heap, (-parent.order, -_depth_of_patch(parent), count, parent))
            masks[parent] |= masks[visit]


def _depth_of_patch(visit: Visit) -> int:
    """Changes by people have the order of the visit they follow, and come after it."""
    depth = 0
    while visit.patch is not None:
        depth, visit = depth + 1, visit.parents[0]
    return depth


def _in_order(visits: Sequence[Visit]) -> list[tuple[Visit, int]]:
    """By declaration, each after those it builds on, with those as bits of their positions. The visits that bring one
    change of the state to several branches are one here: it comes after all that came before it in any of them."""
    inside = set(visits)
    groups: dict[int, Visit] = {}
    chosen = {visit: visit if visit.patch is None else groups.setdefault(visit.patch, visit) for visit in visits}
    parents: dict[Visit, set[Visit]] = {one: set() for one in chosen.values()}
    for visit in visits:
        parents[chosen[visit]].update(chosen[parent] for parent in visit.parents if parent in inside)
    children: dict[Visit, list[Visit]] = {one: [] for one in parents}
    waits = {one: len(found) for one, found in parents.items()}
    for one, found in parents.items():
        for parent in found:
            children[parent].append(one)
    ready = [_turn(one) for one, count in waits.items() if not count]
    heapq.heapify(ready)
    ancestors: dict[Visit, int] = {}
    ordered: list[tuple[Visit, int]] = []
    positions: dict[Visit, int] = {}
    while ready:
        one = heapq.heappop(ready)[-1]
        bits = 0
        for parent in parents[one]:
            bits |= ancestors[parent] | 1 << positions[parent]
        ancestors[one], positions[one] = bits, len(ordered)
        ordered.append((one, bits))
        for child in children[one]:
            waits[child] -= 1
            if not waits[child]:
                heapq.heappush(ready, _turn(child))
    return ordered


def _turn(visit: Visit) -> tuple[int, int, int, int, Visit]:
    return (visit.rank, visit.number, visit.order, _depth_of_patch(visit), visit)
