"""Chain: a graph of nodes over one state, run as a journal like everything else. Decides what a chain is made of;
running it is `front`, and nothing in here resumes anything.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

from perdure.core import codec, ids, keys, lineage, snapshots, topology
from perdure.core.fold import Journal, fold
from perdure.core.records import Kind, OutcomeKind, Recovery
from perdure.core.topology import Topology
from perdure.engine.calls import Call, CallSpec
from perdure.engine.context import TaskScope, current
from perdure.engine.drive import Drive
from perdure.errors import ChainStateError, DurableRecoveryError, InvalidInputError, PerdureError, SerializationError
from perdure.flow import node_bodies, plan
from perdure.flow.chain_runs import ChainRuns, checked_state
from perdure.flow.front import Beginning, Front, begin_state
from perdure.flow.nodes import Edge, Node, NodeGiven, NodeType, is_runner, read_condition, read_node
from perdure.flow.schemas import StateSchema
from perdure.flow.variables import _current_checkpointer, _execution_id
from perdure.store.base import Store


def _no_body() -> None:
    raise PerdureError("a topology has no body")


_TOPOLOGY = CallSpec(kind=Kind.VALUE, name="topology", function=_no_body, recovery=Recovery.SAFE)


class Chain(ChainRuns):
    """A graph of nodes over one state.

    `add_node` and `connect` return the chain. `state_schema` names the keys of the state (a pydantic model, a
    dataclass, a TypedDict, a dict of types, or a JSON schema) and their defaults. `reducers` say for keys that several
    branches write how an old and a new value become one. With `strict_routing`, a node from which no edge leads on
    although it has some is an error. Runs are kept by `checkpointer` (default: the store of `get_config()`); with
    `checkpoint_enabled=False` only in this process's memory.
    """

    kind = plan.CHAIN_TYPE
    version: str | None = None
    accepts: tuple[str, ...] = ()

    def __init__(
        self,
        name: str,
        state_schema: Any = None,
        checkpoint_enabled: bool = True,
        checkpointer: Any = None,
        *,
        strict_routing: bool = False,
        reducers: Mapping[str, Callable[[Any, Any], Any]] | None = None,
    ) -> None:
        self.name = ids.check_id(name, "name")
        for field, value in (("checkpoint_enabled", checkpoint_enabled), ("strict_routing", strict_routing)):
            if not isinstance(value, bool):
                raise InvalidInputError(field, f"must be a bool, not {value!r}")
        self.state_schema = state_schema
        self.checkpoint_enabled = checkpoint_enabled
        self.checkpointer = checkpointer
        self.strict_routing = strict_routing
        self.reducers = checked_state("reducers", reducers or {})
        for key, reducer in self.reducers.items():
            if not callable(reducer):
                raise InvalidInputError("reducers", f"{key!r}: expected a function of two values, got {reducer!r}")
        self._schema = None if state_schema is None else StateSchema(state_schema)
        self._nodes: list[plan.PlannedNode] = []
        self._inside: list[Chain] = []
        self._edges: list[Edge] = []
        self._plan: plan.Plan | None = None
        self._planned_with: tuple[Any, ...] = ()

    def __repr__(self) -> str:
        return f"<chain {self.name}: {len(self._nodes)} nodes>"

    # Building.

    def add_node(
        self,
        id: str,
        agent: Any = None,
        tool: Any = None,
        type: NodeType | str | None = None,
        name: str = "",
        *,
        node: Node | None = None,
        fn: Callable[..., Any] | None = None,
        output_key: str | None = None,
        input_schema: Any = None,
        output_schema: Any = None,
        input_mapping: Mapping[str, Any] | None = None,
        **config: Any,
    ) -> Chain:
        """Add a node: an `agent` (anything with `arun`; a chain or a workflow becomes part of this run), a `tool` or
        `fn` (a function, whose parameters come from the state by name or by `input_mapping`), a `node` made with
        `@node`, or a `type` that needs neither.

        A dict that a node returns becomes keys of the state; anything else is kept under the node's id; `output_key`
        keeps the whole result under that key. `config`: `template` (transformer), `reason`, `context`, `bind` (hitl),
        `conditions` (condition), `agents`, `branches`, `over`, `failure_mode`, `max_concurrency` (parallel), `input`
        (agent), `output` (end), `recovery`, `retries`, `timeout`, `errors`, `metadata`.

        Raises `InvalidInputError` or `ChainTemplateError` naming what is wrong; nothing is added then.
        """
        things = {
            "agent": agent,
            "tool": tool,
            "node": node,
            "fn": fn,
            "name": name,
            "output_key": output_key,
            "input_schema": input_schema,
            "output_schema": output_schema,
            "input_mapping": input_mapping,
        }
        given = read_node(id, things, type, config)
        planned = _planned(given, len(self._nodes))  # what cannot run is refused here
        self._nodes.append(planned)
        runners = (planned.runner, *(branch.runner for branch in planned.branches))
        self._inside += [runner for runner in runners if isinstance(runner, Chain)]
        self._plan = None
        return self

    def connect(
        self,
        source: str,
        target: str,
        condition: str | Callable[[dict[str, Any]], Any] | None = None,
        max_iterations: int | None = None,
        exit_condition: str | Callable[[dict[str, Any]], Any] | None = None,
        label: str = "",
    ) -> Chain:
        """Lead from a node to another. Of edges with a `condition` the first one that holds is taken, else the one
        without; edges without any are all taken. `max_iterations` makes an edge lead back, until `exit_condition`
        holds after the node or it has been come to that often (`ChainCycleError`). From a condition node, edges go by
        `label`.
        """
        for field, value in (("source", source), ("target", target), ("label", label)):
            if not isinstance(value, str):
                raise InvalidInputError(field, f"must be a text, not {value!r}")
        if max_iterations is not None and (builtin_type(max_iterations) is not int or max_iterations < 1):
            raise InvalidInputError("max_iterations", f"must be a number of at least 1, not {max_iterations!r}")
        edge = Edge(
            source=source,
            target=target,
            condition=read_condition("condition", condition),
            max_iterations=max_iterations,
            exit_condition=read_condition("exit_condition", exit_condition),
            label=label,
        )
        self._edges.append(edge)
        self._plan = None
        return self

    def validate(self) -> list[str]:
        """Everything that keeps the chain from running, a sentence each; [] if it can run."""
        if (inside := _nesting_problem(self)) is not None:
            return [inside]
        return self._problems(self.topology)

    def _problems(self, shape: Topology) -> list[str]:
        return [*topology.problems(shape), *_branch_problems(self)]

    @property
    def topology(self) -> Topology:
        """The shape of the chain as a value."""
        return plan.shape_of(self._nodes, self._edges)

    @property
    def plan(self) -> plan.Plan:
        """The chain read for running. Raises `ChainError` if it cannot run, naming everything that keeps it from it."""
        if self._plan is None or self._planned_with != self._stamp():
            inside = _nesting_problem(self)
            plan.refuse(self.name, [inside] if inside is not None else [])
            shape = self.topology
            plan.refuse(self.name, self._problems(shape))
            self._plan = plan.Plan(
                name=self.name,
                nodes={node.given.id: node for node in self._nodes},
                edges=tuple(self._edges),
                reducers=self.reducers,
                schema=self._schema,
                is_strict=self.strict_routing,
                topology=shape,
            )
            self._planned_with = self._stamp()
        return self._plan

    def _stamp(self) -> tuple[Any, ...]:
        """Tells whether this chain, or one inside it, has been built on since."""
        return (len(self._nodes), len(self._edges), *(one._stamp() for one in self._inside))

    def to_mermaid(self) -> str:
        """The chain as a Mermaid flowchart."""
        from perdure.core import drawing  # only who draws needs it

        return drawing.to_mermaid(self.topology, self.name)

    # The Runner port.

    @property
    def errors(self) -> tuple[type[BaseException], ...]:
        """Exception classes that its nodes declare."""
        return tuple(dict.fromkeys(cls for node in self._nodes for cls in node.given.options.errors))

    async def check(self, store: Store, run_id: str) -> None:
        """Compare the shape the run began with, and where it has been, with this one."""
        begun = await store.record_list(run_id, limit=_HEAD)
        recorded = next((one.data for one in begun if one.path == keys.TOPOLOGY and one.data is not None), None)
        if recorded is None or recorded == self.plan.recorded_topology:
            return
        journal = fold((await store.run_load(run_id)).records)
        if (why := _difference(self.plan, recorded, journal)) is not None:
            raise DurableRecoveryError(f"run {run_id}: {why}; nothing was consumed")

    def enter(self, run_id: str) -> None:
        _execution_id.set(run_id)
        _current_checkpointer.set(self.checkpointer)

    def encode_input(self, value: Any) -> str:
        state = checked_state("initial_state", {} if value is None else value)
        plan_ = self.plan
        if plan_.schema is not None:
            lineage.check_recordable(plan_.schema.fill(state))
        return codec.encode(state)

    def decode_input(self, data: str) -> Any:
        return codec.decode(data)

    def encode_output(self, value: Any) -> str:
        return codec.encode(value)

    def decode_output(self, data: str | None) -> Any:
        return codec.decode(data or "null")

    def drive(self, value: Any) -> Coroutine[Any, Any, Any]:
        return self.drive_with(value, None, None)

    async def drive_with(self, state: dict[str, Any], context: Any, begun_with: Callable[[Front], None] | None) -> Any:
        """Run the chain as the run's code; `begun_with` gets its front."""
        scope = current()
        assert isinstance(scope, TaskScope)
        drive = scope.drive
        _check_topology(drive, self.plan)
        schema = self.plan.schema
        try:
            begun = state if schema is None else begin_state(drive, "", schema, state)
        except (ChainStateError, SerializationError) as error:  # it did fit when the run was submitted
            why = f"run {drive.run_id}: the state it began with does not fit the schema of chain {self.name!r}: {error}"
            raise drive.fault(DurableRecoveryError(why)) from None
        stored = snapshots.initial("", state)
        front = Front(self.plan, drive, "", begun, Beginning(lambda: stored, context))
        drive.tell_state = front.end_state
        if begun_with is not None:
            begun_with(front)
        front.expect_patches()
        await front.run()
        front.final_state()  # ends that do not agree are an error, like branches that meet
        return front.output()


builtin_type = type
_HEAD = 8
"""The topology is among a run's first records."""
_MAX_DEPTH = 30
"""Chains in chains: what records can hold is nested about three times as deep."""


def _nesting_problem(chain: Chain, outer: tuple[Chain, ...] = ()) -> str | None:
    """What has no shape that could be looked at: a chain inside itself, or too many inside each other."""
    way = (*outer, chain)
    if chain in outer:
        return "it is inside itself: " + " -> ".join(repr(one.name) for one in way)
    if len(way) > _MAX_DEPTH:
        return f"chains are nested more than {_MAX_DEPTH} deep"
    inside = (
        thing
        for given in (node.given for node in chain._nodes)
        for thing in (given.runs, *given.options.agents, *given.options.branches.values())
        if isinstance(thing, Chain)
    )
    return next((found for one in inside if (found := _nesting_problem(one, way)) is not None), None)


def _branch_problems(chain: Chain) -> Iterator[str]:
    """Those of chains that parallel nodes run: the topology knows only chains that are nodes."""
    for node in chain._nodes:
        given = node.given
        for branch in node.branches:
            if isinstance(branch.runner, Chain):
                yield from (f"in {given.id!r} ({branch.name}): {found}" for found in branch.runner.validate())
        if given.type is NodeType.AGENT and isinstance(given.runs, Chain):
            yield from (f"in {given.id!r}: {found}" for found in _branch_problems(given.runs))


def _planned(given: NodeGiven, rank: int) -> plan.PlannedNode:
    """A node as it is run. What is not of use to its kind is refused."""
    if given.type is NodeType.PARALLEL:
        branches = _branches(given)
        return plan.PlannedNode(
            given=given,
            rank=rank,
            spec=node_bodies.composite_spec(given, given.id),
            inputs=node_bodies.input_shown(given),
            branches=branches,
        )
    if given.type is NodeType.AGENT and is_runner(given.runs):
        spec = node_bodies.composite_spec(given, given.id)
        inputs = node_bodies.input_shown(given)
        return plan.PlannedNode(given=given, rank=rank, spec=spec, inputs=inputs, runner=given.runs)
    spec, inputs = node_bodies.body_of(given)
    return plan.PlannedNode(given=given, rank=rank, spec=spec, inputs=inputs)


def _branches(given: NodeGiven) -> list[plan.Branch]:
    given = replace(given, output_schema=None)  # it is that of the whole
    options = given.options
    if options.over is not None:
        if given.runs is None:
            raise InvalidInputError("over", f"node {given.id!r}: give fn= or agent= to run for each item")
        return [_branch(given, "item", given.runs, is_mapped=True)]
    if given.runs is not None:
        raise InvalidInputError("over", f"node {given.id!r}: what to run for each item needs over=, a list of them")
    things = dict(options.branches) or {_name_of(thing, n): thing for n, thing in enumerate(options.agents)}
    if not things:
        raise InvalidInputError("agents", f"node {given.id!r} runs nothing: give agents=, branches=, or over= with fn=")
    if not options.branches and len(things) < len(options.agents):
        raise InvalidInputError(
            "agents", f"node {given.id!r}: two have one name; give them in branches={{name: agent}}"
        )
    return [_branch(given, name, thing) for name, thing in things.items()]


def _name_of(thing: Any, number: int) -> str:
    name = getattr(thing, "name", None) or getattr(thing, "__name__", None)
    return name if isinstance(name, str) else str(number)


def _branch(given: NodeGiven, name: str, thing: Any, *, is_mapped: bool = False) -> plan.Branch:
    ids.check_id(name, "branches")
    if is_runner(thing):
        return plan.Branch(name=name, spec=node_bodies.composite_spec(given, name), runner=thing)
    if is_mapped and not callable(getattr(thing, "arun", None)):
        return plan.Branch(name=name, spec=node_bodies.mapped_body(given, name, thing))
    return plan.Branch(name=name, spec=node_bodies.branch_body(given, name, thing))


# --- changed chains -------------------------------------------------------------------------------------


def _check_topology(drive: Drive, planned: plan.Plan) -> None:
    """Record the shape the run begins with. Of a run that has begun with another one, stop for a person if the
    difference lies behind it."""
    call = Call(_TOPOLOGY, keys.TOPOLOGY, 0)
    drive.calling.register(call)
    drive.open.pop(call.key, None)
    current_ = planned.recorded_topology
    drive.settings.limits.check_payload("the topology", current_)
    recorded = drive.calling.completed_at_once(call, lambda: current_).data or "null"
    if recorded != current_ and (why := _difference(planned, recorded, drive.journal)) is not None:
        raise drive.fault(DurableRecoveryError(f"run {drive.run_id}: {why}"))


def _difference(planned: plan.Plan, recorded: str, journal: Journal) -> str | None:
    shape = topology.from_document(codec.decode(recorded))
    why = topology.difference(shape, planned.topology, _begun(journal))
    return None if why is None else f"chain {planned.name!r} has changed: {why}"


def _begun(journal: Journal) -> dict[str, bool]:
    """The nodes that have begun, as `outer/inner`; whether one has completed."""
    begun: dict[str, bool] = {}
    for op in journal.operations.values():
        if op.kind == Kind.NODE and "!" not in op.path:
            names = (unquote(name) for name in op.path.split("/")[::2])
            name = functools.reduce(lambda outer, inner: topology.node_key(inner, outer), names, "")
            # A node that failed has led nowhere: it runs again.
            begun[name] = begun.get(name, False) or (op.is_completed and op.outcome == OutcomeKind.VALUE)
    return begun
