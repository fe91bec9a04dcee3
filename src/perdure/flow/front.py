"""One chain being run: who has been visited, who waits for whom, what is open. Workflow code on the run's loop.

Decides which node begins next and with which state, and where its end leads. It resumes nothing: at first execution,
after a crash and after an answer it does the same, and the journal says what the operations return.

A node begins when a visit has led to it and nothing that is still open, or still to come, can lead to it any more: so
a join waits for the branches that were taken, and what lies behind a cycle runs once.
"""

from __future__ import annotations

import asyncio
import collections
import functools
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from perdure.core import codec, keys, lineage, snapshots
from perdure.core.fold import states_of
from perdure.core.lineage import Visit
from perdure.core.records import Kind, OutcomeKind, Recovery
from perdure.engine.calls import Call, CallSpec, Outcome
from perdure.engine.drive import Drive
from perdure.errors import ChainError, PerdureError, SerializationError
from perdure.flow import routing
from perdure.flow.asking import tell_answer
from perdure.flow.binding import Moment
from perdure.flow.plan import Plan, PlannedNode
from perdure.flow.schemas import StateSchema


def _no_body() -> None:
    raise PerdureError("a change of the state has no body")


_DEFAULTS = CallSpec(kind=Kind.VALUE, name="defaults", function=_no_body, recovery=Recovery.SAFE)
_PATCH = CallSpec(kind=Kind.PATCH, name="state", function=_no_body, recovery=Recovery.SAFE)


@dataclass(frozen=True, slots=True)
class Beginning:
    """What a chain begins with beside its state: how that state is stored, and the run's context."""

    stored: Callable[[], snapshots.Stored]
    context: Any
    around: Front | None = None
    """The outermost chain, if this one goes on from its state."""


class Open:
    """A visit whose node has begun and not ended."""

    __slots__ = ("call", "error", "inner", "is_written", "node", "task", "visit")

    def __init__(self, node: PlannedNode, visit: Visit, call: Call) -> None:
        self.node = node
        self.visit = visit
        self.call = call
        self.task: asyncio.Task[Any] | None = None
        self.inner: list[Front] = []
        """Chains inside it that go on from the same state."""
        self.is_written = False
        self.error: Exception | None = None


class Front:
    """The state of one run of one chain; nested chains have their own. `base` is the path its nodes are below."""

    def __init__(self, plan: Plan, drive: Drive, base: str, state: lineage.State, beginning: Beginning) -> None:
        self.plan = plan
        self.drive = drive
        self.base = base
        self.input: Mapping[str, Any] = state
        self._begun: Mapping[str, Any] = state
        self.context = beginning.context
        self._root = root = lineage.root("", state)
        self._root_stored = beginning.stored
        self.outermost: Front = beginning.around or self
        """The chain to which a person's changes come first."""
        self._forgets = beginning.around is None or not plan.reducers
        """Whether what nobody builds on any more may go: a chain inside another has to tell it what it added up."""
        self.results: dict[str, Any] = {}
        self.has_ended = False
        self.routing = routing.Routing(plan, drive)
        self._waiting: dict[str, list[Visit]] = {start: [root] for start in plan.starts}
        self._open: dict[str, Open] = {}
        self._ends: list[tuple[PlannedNode, Visit]] = []
        self._visits: collections.Counter[str] = collections.Counter()
        self._order = 0
        self._arrived: collections.deque[tuple[Open | str, asyncio.Future[Any]]] = collections.deque()
        self._wake: asyncio.Future[None] | None = None
        self._patch_count = 0
        """Changes by people that are recorded and whose turn has not come."""
        self._reader: snapshots.Reader | None = None

    # Running.

    async def run(self) -> None:
        """Visit nodes until none is open and none waits. Raises what a node has failed with."""
        while True:
            self._begin_ready()
            if not self._open and not self.outermost._patch_count:
                self.has_ended = True
                return
            arrived, future = await self._next()
            if isinstance(arrived, Open):
                self._end(arrived, future)
            elif arrived is not None:
                self._patch_count -= 1
                self._take_patch(arrived)

    async def _next(self) -> tuple[Open | str | None, asyncio.Future[Any]]:
        """What has come; None if a person has changed the state meanwhile, and nothing else has."""
        if not self._arrived:
            self._wake = self.drive.loop.create_future()
            try:
                await self._wake
            except asyncio.CancelledError:
                self.drive.check_open_or_cancelled()
                self.stop()
                raise
        return self._arrived.popleft() if self._arrived else (None, self.drive.loop.create_future())

    def _tell(self, what: Open | str, future: asyncio.Future[Any]) -> None:
        self._arrived.append((what, future))
        self._nudge()

    def _nudge(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def stop(self) -> None:
        """Nobody waits for this chain any more: give up what is open."""
        for open_ in self._open.values():
            if open_.task is not None:
                open_.task.cancel()
            else:
                self.drive.calling.give_up(open_.call)

    # Beginning.

    def _begin_ready(self) -> None:
        while True:
            ready = [node_id for node_id in self._in_order() if self._may_begin(node_id)]
            ready = ready or self._in_ring()[:1]
            if not ready:
                return
            for node_id in ready:
                self._begin(self.plan.nodes[node_id], self._waiting.pop(node_id))

    def _in_order(self) -> list[str]:
        if len(self._waiting) < 2:
            return list(self._waiting)
        return sorted(self._waiting, key=lambda node_id: self.plan.nodes[node_id].rank)

    def _may_begin(self, node_id: str) -> bool:
        if node_id not in self.plan.gathering:
            return True
        leads = self.plan.reach.leads
        return not any(
            other != node_id and leads(other, node_id)
            for other in (*self._waiting, *(open_.node.given.id for open_ in self._open.values()))
        ) and not any(open_.node.given.id == node_id for open_ in self._open.values())

    def _in_ring(self) -> list[str]:
        """Nodes that wait for each other, in a cycle, and for nothing else; the first declared begins. Changes by
        people that are still to come do not count: at first execution nobody knew of them."""
        leads = self.plan.reach.leads
        begun = [open_.node.given.id for open_ in self._open.values()]
        return [
            node_id
            for node_id in self._in_order()
            if not any(other == node_id or leads(other, node_id) for other in begun)
            and all(leads(node_id, other) for other in self._waiting if other != node_id and leads(other, node_id))
        ]

    def _begin(self, node: PlannedNode, tokens: list[Visit]) -> None:
        node_id = node.given.id
        path = keys.node_path(self.base, node_id)
        number = self._visits[node_id]
        self._visits[node_id] = number + 1
        visit = Visit(
            key=keys.operation_key(path, number),
            rank=node.rank,
            order=self._order,
            name=node_id,
            number=number,
            parents=tuple(dict.fromkeys(tokens)),
            before=lineage.join(tokens, self.plan.reducers),
        )
        self._order += 1
        call = Call(node.spec, path, number, (functools.partial(self.moment, visit),))
        open_ = self._open[visit.key] = Open(node, visit, call)
        call.tell_state = functools.partial(self._said, open_)
        self.drive.calling.register(call)
        if node.is_composite:
            from perdure.flow import composite  # it makes fronts of its own

            open_.task = self.drive.loop.create_task(composite.run(self, open_))
            open_.task.add_done_callback(functools.partial(self._tell, open_))
        else:
            self.drive.calling.begin(call).add_done_callback(functools.partial(self._tell, open_))

    def moment(self, visit: Visit) -> Moment:
        """What the node of this visit sees, now. Called in the context of its body."""
        tell_answer()
        return Moment(visit.before, self.input, self.results, self.context)

    # Ending.

    def _end(self, open_: Open, future: asyncio.Future[Any]) -> None:
        node, visit = open_.node, open_.visit
        # One that fails stays open: its branch has come as far as to it.
        value = future.result() if open_.task is not None else self.drive.calling.reveal(open_.call, future.result())
        if open_.error is not None:
            raise open_.error
        if not open_.is_written:
            self._write(open_, value)
        del self._open[visit.key]
        open_.call.release()
        self.results[node.given.id] = value
        targets = self.routing.targets(node, visit, value, self)
        for target in targets:
            self._waiting.setdefault(target, []).append(visit)
        if not targets:
            self._ends.append((node, visit))
        elif self._forgets and not self._open and not self._ends and self._all_waits_for(visit):
            visit.parents = ()  # everything to come builds on it: nobody asks what was before

    def _all_waits_for(self, visit: Visit) -> bool:
        return all(tokens == [visit] for tokens in self._waiting.values())

    def _write(self, open_: Open, value: Any) -> Mapping[str, Any]:
        contributions = open_.node.contributes(value)
        reducers, schema = self.plan.reducers, self.plan.schema
        if schema is None:
            lineage.write(open_.visit, contributions, reducers)
        else:  # of what is reduced the result has to fit, not each contribution
            checked = schema.check({name: one for name, one in contributions.items() if name not in reducers})
            if any(contributions[name] is not one for name, one in checked.items()):
                contributions = {name: checked.get(name, one) for name, one in contributions.items()}
            lineage.write(open_.visit, contributions, reducers, schema.check)
        open_.is_written = True
        return contributions

    # The state, as it is stored.

    def _said(self, open_: Open, outcome: Outcome | None) -> snapshots.Said:
        """What the end of a visit (or its question) makes of the state, for its record."""
        visit = open_.visit
        base = self.stored(visit.parents[0])
        if outcome is not None and outcome.kind is OutcomeKind.VALUE:
            try:
                value = outcome.reveal(open_.call.spec)
                contributions = self._write(open_, value)
                is_merged = contributions is value
                said, visit.stored = snapshots.store(base, visit, value, outcome.data, is_merged=is_merged)
                return said
            except Exception as error:  # a reducer's, a schema's: it fails the chain, and the result stands
                open_.error = error
        return self._said_before(base, visit)

    def _said_before(self, base: snapshots.Stored, visit: Visit) -> snapshots.Said:
        """The state before a visit. What people see of it is worth less than the record it stands in."""
        try:
            return snapshots.store_before(base, visit.key, visit.before)[0]
        except SerializationError:
            return snapshots.Said(None)

    def stored(self, visit: Visit) -> snapshots.Stored:
        """How the state after a visit is stored; of one that was replayed, the records say."""
        while visit.patch is not None:
            visit = visit.parents[0]
        if visit.stored is None and visit is self._root:
            visit.stored = self._root_stored()
        elif visit.stored is None:
            if self._reader is None:
                self._reader = states_of(self.drive.journal)
            visit.stored = self._reader.stored(visit.key, visit.after)
        return visit.stored

    # Changes by a person.

    def expect_patches(self) -> None:
        """Take up the changes that people made, each in its recorded turn."""
        for op in self.drive.journal.state_patches:
            call = Call(_PATCH, op.path, op.index)
            self.drive.calling.register(call)
            self._patch_count += 1
            self.drive.calling.expect(call).add_done_callback(functools.partial(self._tell, op.key))

    def _take_patch(self, key: str) -> None:
        op = self.drive.journal.operations[key]
        said = codec.decode(op.data or "{}")
        self.patch(said.get("state", {}), said.get("input", {}), op.index)

    def patch(self, changes: Mapping[str, Any], given: Mapping[str, Any], number: int) -> None:
        """Change the state of every visit that has not ended, here and in the chains inside that share the state."""
        if self.plan.schema is not None:
            changes = self.plan.schema.check(changes)
        self.input = {**self.input, **given}
        self._begun = {**self._begun, **changes}
        changed: dict[Visit, Visit] = {}

        def after(visit: Visit) -> Visit:
            if visit not in changed:
                changed[visit] = lineage.patched(visit, changes, number)
            return changed[visit]

        self._waiting = {node_id: [after(visit) for visit in tokens] for node_id, tokens in self._waiting.items()}
        self._ends = [(node, after(visit)) for node, visit in self._ends]
        for open_ in self._open.values():
            open_.visit.parents = tuple(after(visit) for visit in open_.visit.parents)
            open_.visit.before = {**open_.visit.before, **changes}
            for inner in open_.inner:
                inner.patch(changes, given, number)
        self._nudge()

    # The end.

    def final_state(self) -> lineage.State:
        """The state all ends have led to. Raises `ChainError` if two of them have written one key."""
        return lineage.join([visit for _, visit in self._ends], self.plan.reducers)

    def output(self) -> Any:
        """The result of the node at which the chain ended: of several, the one declared last. A start or an end
        without an output has none of its own: then it is the state."""
        node, _ = max(self._ends, key=lambda end: (end[0].rank, end[1].number))
        value = self.results[node.given.id]
        return self.final_state() if value is None and node.given.type in ("start", "end") else value

    def _tips(self) -> list[Visit]:
        """How far all branches have come: what has ended, and what led to what is open or waits."""
        waiting = (visit for tokens in self._waiting.values() for visit in tokens)
        opened = (visit for open_ in self._open.values() for visit in open_.visit.parents)
        return [*(visit for _, visit in self._ends), *waiting, *opened]

    def end_state(self) -> str | None:
        """The state so far as the record of a run's end, or of its pause, says it. None where branches that have not
        met do not agree."""
        tips = self._tips()
        if not tips:
            return None
        try:
            state = self._state_so_far()
            return snapshots.store_before(self.stored(tips[0]), "", state)[0].text
        except (ChainError, SerializationError):
            return None

    def written(self, reduced_around: Collection[str]) -> dict[str, Any]:
        """What the final state has that the chain did not begin with: a nested chain's result. Of keys that the chain
        around reduces, too, what was added."""
        both = {name: reducer for name, reducer in self.plan.reducers.items() if name in reduced_around}
        added = lineage.contributions([visit for _, visit in self._ends], self._root, both) if both else {}
        return {**{name: one for name, one in self._differing(self.final_state()).items() if name not in both}, **added}

    def _differing(self, state: lineage.State) -> dict[str, Any]:
        begun = self._begun
        return {
            name: value for name, value in state.items() if name not in begun or not lineage.is_same(begun[name], value)
        }

    def _state_so_far(self) -> lineage.State:
        """The state of all branches as far as they have come, with what chains inside have come to."""
        state = lineage.join(self._tips(), self.plan.reducers)
        for open_ in self._open.values():
            for inner in open_.inner:
                if inner._tips():
                    state = {**state, **inner._differing(inner._state_so_far())}
        return state


def begin_state(drive: Drive, base: str, schema: StateSchema, state: lineage.State) -> lineage.State:
    """The state that a chain with a schema begins with. Its defaults are recorded: what made them may make others at
    the next execution. A key that the schema has come to have since then takes its default now."""
    made = schema.defaults(state)
    if not made:
        return schema.fill(state, made)
    call = Call(_DEFAULTS, keys.defaults_path(base), 0)
    drive.calling.register(call)
    drive.open.pop(call.key, None)
    outcome = drive.calling.completed_at_once(call, lambda: codec.encode(made))
    recorded = drive.calling.reveal(call, outcome)
    return schema.fill(state, {name: recorded.get(name, value) for name, value in made.items()})
