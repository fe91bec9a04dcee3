"""Nodes of a chain: what `add_node` is given, read once. Decides the kind of a node and how its operation is called;
what runs inside is in `node_bodies`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Any, overload

from perdure.core import ids, template
from perdure.core.condition import Condition, compile_condition
from perdure.core.retry import RetryPolicy
from perdure.errors import InvalidInputError
from perdure.flow.schemas import Schema


class NodeType(StrEnum):
    """What a node does. Nested chains and workflows are agents to `add_node`: anything that runs."""

    AGENT = "agent"
    TOOL = "tool"
    CONDITION = "condition"
    PARALLEL = "parallel"
    HITL = "hitl"
    START = "start"
    END = "end"
    TRANSFORMER = "transformer"

    # The names under which the reference has them.
    agent = AGENT
    tool = TOOL
    condition = CONDITION
    parallel = PARALLEL
    hitl = HITL
    start = START
    end = END
    transformer = TRANSFORMER


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A function made a node with `@node`: to be added with `add_node(id, node=...)`."""

    name: str
    fn: Callable[..., Any]
    output_key: str | None = None
    input_schema: Any = None
    output_schema: Any = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.fn(*args, **kwargs)


@overload
def node(name: Callable[..., Any], /) -> Node: ...
@overload
def node(
    name: str | None = None,
    *,
    output_key: str | None = None,
    input_schema: Any = None,
    output_schema: Any = None,
) -> Callable[[Callable[..., Any]], Node]: ...


def node(
    name: Any = None, *, output_key: str | None = None, input_schema: Any = None, output_schema: Any = None
) -> Any:
    """Make a function a node that brings its own `output_key` and schemas: `@node`, or `@node(output_key="total")`."""

    def decorate(function: Callable[..., Any]) -> Node:
        if not callable(function):
            raise InvalidInputError("fn", f"expected a function, got {type(function).__name__}")
        chosen = name if isinstance(name, str) else getattr(function, "__name__", type(function).__name__)
        return Node(chosen, function, output_key, input_schema, output_schema)

    return decorate(name) if callable(name) else decorate


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions:
    """What a node may be told beside what it runs, from `add_node(**config)`."""

    input: Any = None
    """An agent's input, as a template."""
    template: Any = None
    reason: Any = None
    context: Any = None
    bind: bool = False
    conditions: Sequence[Mapping[str, Any]] = ()
    agents: Sequence[Any] = ()
    branches: Mapping[str, Any] = field(default_factory=dict)
    over: Any = None
    failure_mode: str = "raise"
    max_concurrency: int | None = None
    output: Any = None
    recovery: str = "idempotent"
    retries: int | RetryPolicy | None = None
    timeout: timedelta | float | None = None
    errors: Sequence[type[BaseException]] = ()
    metadata: Any = None
    """The chain's own; nobody reads it."""


FAILURE_MODES = ("raise", "continue", "fail_fast", "any_success")

_OPTION_TYPES: Mapping[str, tuple[Any, str]] = {
    "bind": (bool, "a bool"),
    "conditions": (list | tuple, "a list"),
    "agents": (list | tuple, "a list"),
    "branches": (Mapping, "a dict"),
    "over": (str | list | tuple | None, "a template or a list"),
    "errors": (list | tuple | set | frozenset, "a list"),
}
_OPTIONS = frozenset(NodeOptions.__dataclass_fields__)
_POLICY = frozenset({"recovery", "retries", "timeout", "errors"})
_USED: Mapping[NodeType, frozenset[str]] = {
    NodeType.AGENT: _POLICY | {"input"},
    NodeType.TOOL: _POLICY,
    NodeType.CONDITION: _POLICY | {"conditions"},
    NodeType.PARALLEL: _POLICY | {"input", "agents", "branches", "over", "failure_mode", "max_concurrency"},
    NodeType.HITL: frozenset({"reason", "context", "bind"}),
    NodeType.START: frozenset(),
    NodeType.END: frozenset({"output"}),
    NodeType.TRANSFORMER: _POLICY | {"template"},
}
"""The options that a kind of node has a use for. Any other would be asked for in vain, so it is refused."""
_SPELLED_OTHERWISE = {"parallel_failure_mode": "failure_mode", "expression": "conditions"}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NodeGiven:
    """Everything `add_node` was given for one node, checked for what can be seen at once."""

    id: str
    type: NodeType
    label: str
    runs: Any
    """The agent, tool or function; None for kinds that have none."""
    output_key: str | None
    input_schema: Schema | None
    output_schema: Schema | None
    input_mapping: Mapping[str, Any] | None
    options: NodeOptions


def read_node(id: str, things: Mapping[str, Any], type: Any, config: Mapping[str, Any]) -> NodeGiven:
    """`things` are the arguments of `add_node` by name. Raises `InvalidInputError` naming the field; nothing is
    added then."""
    ids.check_id(id, "id")
    if id.startswith("$"):
        raise InvalidInputError("id", f"must not begin with $, as no key of the state may: {id!r}")
    if not isinstance(things["name"], str):
        raise InvalidInputError("name", f"must be a text, not {things['name']!r}")
    options = _options(id, config)
    made: Node | None = things["node"]
    if made is not None and not isinstance(made, Node):
        raise InvalidInputError("node", f"expected a function decorated with @node, got {made!r}; a function is fn=...")
    runs, kind = _what_runs(id, things, type)
    _check_used(id, kind, runs, config)
    mapping = things["input_mapping"]
    if mapping is not None and not isinstance(mapping, Mapping):
        raise InvalidInputError("input_mapping", f"must be a dict of templates, not {mapping!r}")
    template.check([mapping and dict(mapping), options.input, options.template, options.reason, options.context])
    template.check([options.over, options.output])
    return NodeGiven(
        id=id,
        type=kind,
        label=things["name"] or (made.name if made is not None else ""),
        runs=runs,
        output_key=_key(things["output_key"] if made is None or things["output_key"] is not None else made.output_key),
        input_schema=_schema(things, made, "input_schema"),
        output_schema=_schema(things, made, "output_schema"),
        input_mapping=mapping,
        options=options,
    )


def _check_used(id: str, kind: NodeType, runs: Any, config: Mapping[str, Any]) -> None:
    used = _USED[kind] | {"metadata"}
    if kind is NodeType.AGENT and is_runner(runs):
        used -= _POLICY - {"errors"}  # its nodes have policies of their own
    elif runs is None and kind in (NodeType.CONDITION, NodeType.TRANSFORMER):
        used -= _POLICY
    for name in config:
        if _SPELLED_OTHERWISE.get(name, name) not in used:
            known = ", ".join(sorted(used))
            raise InvalidInputError(name, f"node {id!r} is of type {kind}, which has no use for it; it has {known}")


def is_runner(thing: Any) -> bool:
    """Whether a thing is a chain or a workflow: its code becomes part of the run."""
    return callable(getattr(thing, "drive", None)) and hasattr(thing, "decode_output")


def _options(id: str, config: Mapping[str, Any]) -> NodeOptions:
    given = {_SPELLED_OTHERWISE.get(name, name): value for name, value in config.items()}
    unknown = sorted(given.keys() - _OPTIONS)
    if unknown:
        raise InvalidInputError(
            unknown[0], f"node {id!r} has no such option; known: {', '.join(sorted(_OPTIONS))} (metadata is free)"
        )
    options = NodeOptions(**given)
    for name, (kind, expected) in _OPTION_TYPES.items():
        if not isinstance(getattr(options, name), kind):
            raise InvalidInputError(name, f"must be {expected}, not {getattr(options, name)!r}")
    for cls in options.errors:
        if not isinstance(cls, type) or not issubclass(cls, BaseException):
            raise InvalidInputError("errors", f"must be exception classes, and {cls!r} is none")
    if options.failure_mode not in FAILURE_MODES:
        raise InvalidInputError("failure_mode", f"{options.failure_mode!r} is not one of {', '.join(FAILURE_MODES)}")
    most = options.max_concurrency
    if most is not None and (type(most) is not int or most < 1):
        raise InvalidInputError("max_concurrency", f"must be a number of at least 1, not {most!r}")
    return options


_RUNNING_NOTHING = frozenset({NodeType.HITL, NodeType.START, NodeType.END})


def _what_runs(id: str, things: Mapping[str, Any], type: Any) -> tuple[Any, NodeType]:
    given = {name: things[name] for name in ("agent", "tool", "node", "fn") if things[name] is not None}
    if len(given) > 1:
        raise InvalidInputError(min(given), f"node {id!r} is given {' and '.join(given)}: a node runs one thing")
    runs = next(iter(given.values()), None)
    if type is not None:
        try:
            kind = NodeType(type)
        except ValueError:
            kinds = ", ".join(NodeType)
            raise InvalidInputError("type", f"{type!r} is not one of {kinds}") from None
        if given and kind in _RUNNING_NOTHING:
            raise InvalidInputError(min(given), f"node {id!r} is of type {kind}, which runs nothing")
        return runs, kind
    if not given:
        raise InvalidInputError("type", f"node {id!r} has nothing to run: give agent=, tool=, node= or fn=, or a type")
    return runs, NodeType.AGENT if "agent" in given else NodeType.TOOL


def _key(value: Any) -> str | None:
    if value is not None and (not isinstance(value, str) or not value or value.startswith("$")):
        raise InvalidInputError("output_key", f"must be a name that does not begin with $, not {value!r}")
    return value


def _schema(things: Mapping[str, Any], made: Node | None, field: str) -> Schema | None:
    given = things[field] if things[field] is not None else getattr(made, field, None)
    return None if given is None else Schema(given, field)


# --- edges ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Edge:
    """A way from a node to another. `condition` and `exit_condition` are expressions or functions of the state."""

    source: str
    target: str
    condition: Condition | Callable[[Mapping[str, Any]], Any] | None = None
    max_iterations: int | None = None
    exit_condition: Condition | Callable[[Mapping[str, Any]], Any] | None = None
    label: str = ""

    @property
    def is_cycle(self) -> bool:
        """Whether it leads back, a bounded number of times."""
        return self.max_iterations is not None


def read_condition(field: str, given: Any) -> Condition | Callable[[Mapping[str, Any]], Any] | None:
    """An expression is compiled now, so that it fails here and not in a run."""
    if given is None or given == "":
        return None
    if isinstance(given, str):
        return compile_condition(given)
    import inspect

    if inspect.iscoroutinefunction(given):
        raise InvalidInputError(
            field, "is async: put what it asks into a node of type condition, and route by its label"
        )
    if not callable(given):
        raise InvalidInputError(field, f"must be an expression or a function of the state, not {given!r}")
    return given


def shown_condition(condition: Any) -> str | None:
    """A condition as the topology has it: its text, or the name of a function."""
    if condition is None or isinstance(condition, Condition):
        return None if condition is None else condition.text
    name = getattr(condition, "__qualname__", type(condition).__qualname__)
    return f"<{name.replace('.<locals>', '').replace('<lambda>', 'lambda')}>"
