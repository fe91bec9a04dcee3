"""What runs inside a chain's nodes: one body per kind, each a function of the moment at which the node begins.

Decides what an operation of each kind does. Whether it runs, runs again or waits for a person is the engine's; where
its result goes is the chain's.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from perdure.core import codec
from perdure.core.condition import Condition, compile_condition
from perdure.core.records import Kind
from perdure.engine.calls import CallSpec, spec_of
from perdure.errors import ChainError, InvalidInputError
from perdure.flow.asking import interrupt
from perdure.flow.binding import Binding, Moment
from perdure.flow.idempotent import Idempotent
from perdure.flow.nodes import NodeGiven, NodeType
from perdure.flow.steps import Step, retry_policy, seconds

GetMoment = Callable[[], Moment]

_PASSED_ON = "output"
"""The attribute in which a runner's result has what the chain goes on with."""


def body_of(given: NodeGiven) -> tuple[CallSpec, dict[str, Any]]:
    """How the node's operation is called, and its inputs as templates (for drawings). The body takes a function that
    gives the moment: it is asked when the body begins, not when the call is made."""
    match given.type:
        case NodeType.TOOL:
            return _function(given, _function_of(given.runs, given.id))
        case NodeType.CONDITION:
            return _condition(given)
        case NodeType.TRANSFORMER if given.runs is not None:
            return _function(given, _function_of(given.runs, given.id))
        case NodeType.TRANSFORMER:
            return _transformer(given)
        case NodeType.HITL:
            return _hitl(given)
        case NodeType.START | NodeType.END:
            return _end(given)
        case NodeType.AGENT:
            return agent_body(given, given.runs, given.id)
    raise AssertionError(f"a {given.type} node has no body of its own")


# --- functions ------------------------------------------------------------------------------------------


def _function_of(tool: Any, node_id: str) -> Callable[..., Any]:
    """The function of a tool: a `FunctionTool`, anything with `fn`, or a function itself."""
    if tool is None:
        raise InvalidInputError("tool", f"node {node_id!r} has nothing to run: give tool=, node= or fn=")
    function = tool if isinstance(tool, Step | Idempotent) else getattr(tool, "fn", tool)
    if not callable(function):
        raise InvalidInputError("tool", f"node {node_id!r}: {type(tool).__name__} is no function and has no fn")
    return function


def _function(given: NodeGiven, function: Callable[..., Any]) -> tuple[CallSpec, dict[str, Any]]:
    binding = Binding(_signed(function), given.input_mapping, "fn")
    spec = function_spec(given, function)
    checks = Checks(given)

    def bound(moment: Moment) -> tuple[list[Any], dict[str, Any]]:
        positional, named = binding.arguments(given.id, moment)
        return positional, checks.inputs(named)

    target = function.spec.function if isinstance(function, Step) else function
    if spec.is_async:

        async def run(moment_of: GetMoment) -> Any:
            positional, named = bound(moment_of())
            return checks.output(await target(*positional, **named))

        return replace(spec, function=run), binding.shown

    def run_sync(moment_of: GetMoment) -> Any:
        positional, named = bound(moment_of())
        return checks.output(target(*positional, **named))

    return replace(spec, function=run_sync), binding.shown


def mapped_body(given: NodeGiven, name: str, function: Callable[..., Any]) -> CallSpec:
    """The call of one item of a list: the item is the function's first argument."""
    binding = Binding(_signed(function), given.input_mapping, "fn", given_count=1)
    spec = replace(function_spec(given, function), name=name)
    checks = Checks(given)
    target = function.spec.function if isinstance(function, Step) else function
    if spec.is_async:

        async def run(moment_of: GetMoment, item: Any) -> Any:
            positional, named = binding.arguments(given.id, moment_of())
            return checks.output(await target(item, *positional, **named))

        return replace(spec, function=run)

    def run_sync(moment_of: GetMoment, item: Any) -> Any:
        positional, named = binding.arguments(given.id, moment_of())
        return checks.output(target(item, *positional, **named))

    return replace(spec, function=run_sync)


def branch_body(given: NodeGiven, name: str, thing: Any) -> CallSpec:
    """The call of one of the things a parallel node runs: an agent or a function."""
    if callable(getattr(thing, "arun", None)):
        return agent_body(given, thing, name)[0]
    return replace(_function(given, _function_of(thing, given.id))[0], name=name)


def composite_spec(given: NodeGiven, name: str) -> CallSpec:
    """The call of a node whose body is workflow code."""
    errors = tuple(given.options.errors)
    return CallSpec(kind=Kind.NODE, name=name, function=_workflow_code, errors=errors, declared=_declared(given))


def _declared(given: NodeGiven) -> Any:
    return None if given.output_schema is None else given.output_schema.declared


def _workflow_code() -> None:
    raise AssertionError("its body is workflow code")


def _signed(function: Callable[..., Any]) -> Callable[..., Any]:
    return function.spec.function if isinstance(function, Step | Idempotent) else function


def function_spec(given: NodeGiven, function: Callable[..., Any]) -> CallSpec:
    """The call of a node that runs this function. Options of the node come before those of a step."""
    inner = _signed(function)
    own = function.spec if isinstance(function, Step) else None
    options = given.options
    spec = spec_of(
        inner,
        kind=Kind.NODE,
        name=given.id,
        recovery=options.recovery if own is None or options.recovery != "idempotent" else own.recovery,
        retry=retry_policy(options.retries) or (own.retry if own is not None else None),
        timeout_s=seconds("timeout", options.timeout) or (own.timeout_s if own is not None else None),
        errors=(*options.errors, *(own.errors if own is not None else ())),
        declared=_declared(given),
    )
    # What the body is called with is no argument of the function's.
    return replace(spec, signature=None, simple_names=None)


class Checks:
    """The schemas at a node's boundary."""

    def __init__(self, given: NodeGiven) -> None:
        self._id = given.id
        self._input, self._output = given.input_schema, given.output_schema

    def inputs(self, named: dict[str, Any]) -> dict[str, Any]:
        if self._input is None:
            return named
        checked = self._input.check(f"{self._id}.input", named)
        return checked if isinstance(checked, dict) else _fields(checked)

    def whole_input(self, value: Any) -> Any:
        return value if self._input is None else self._input.check(f"{self._id}.input", value)

    def output(self, value: Any) -> Any:
        return value if self._output is None else self._output.check(f"{self._id}.output", value)


def _fields(model: Any) -> dict[str, Any]:
    dump: Mapping[str, Any] = {name: getattr(model, name) for name in getattr(type(model), "model_fields", vars(model))}
    return dict(dump)


# --- agents ---------------------------------------------------------------------------------------------


def agent_body(given: NodeGiven, agent: Any, name: str) -> tuple[CallSpec, dict[str, Any]]:
    """The call of a node that runs anything with `arun`."""
    if agent is None or not callable(getattr(agent, "arun", None)):
        raise InvalidInputError("agent", f"node {given.id!r}: {type(agent).__name__} has no arun()")
    options = given.options
    takes_context = _takes(agent.arun, "context")
    checks = Checks(given)

    async def run(moment_of: GetMoment, *item: Any) -> Any:
        moment = moment_of()
        extra = {"context": moment.context} if takes_context else {}
        value = checks.whole_input(item[0] if item else agent_input(given, moment))
        result = await agent.arun(value, **extra)
        return checks.output(_result_of(given.id, result))

    spec = CallSpec(
        kind=Kind.NODE,
        name=name,
        function=run,
        recovery=spec_of(run, recovery=options.recovery).recovery,
        retry=retry_policy(options.retries),
        timeout_s=seconds("timeout", options.timeout),
        errors=tuple(options.errors),
        declared=_declared(given) or _output_type(agent),
    )
    return spec, input_shown(given)


def _output_type(agent: Any) -> Any:
    found = getattr(agent, "output_type", None)
    return found if isinstance(found, type) else None


def agent_input(given: NodeGiven, moment: Moment) -> Any:
    """What an agent, a workflow or a nested chain is called with: the node's `input`, or what its `input_mapping`
    makes, or the state's `input`, or the state."""
    if given.options.input is not None:
        return moment.render(given.options.input)
    if given.input_mapping is not None:
        mapped = moment.render(dict(given.input_mapping))
        return mapped["input"] if list(mapped) == ["input"] else mapped
    return moment.render("{{state.input}}" if "input" in moment.state else "{{state}}")


def input_shown(given: NodeGiven) -> dict[str, Any]:
    """The same as templates."""
    if given.options.input is not None:
        return {"input": given.options.input}
    return dict(given.input_mapping or {})


def _result_of(node_id: str, result: Any) -> Any:
    """What a runner returned, without its envelope. A pause it kept to itself is no result."""
    status = getattr(result, "status", "completed")
    if status == "paused":
        raise ChainError(
            f"node {node_id!r}: its runner has paused in a run of its own ({getattr(result, 'execution_id', '?')}), "
            "which this chain cannot resume; resume it there, or let it use the chain's run"
        )
    if status in ("failed", "cancelled"):
        raise ChainError(f"node {node_id!r}: its runner ended as {status}")
    return getattr(result, _PASSED_ON, result)


def _takes(function: Callable[..., Any], name: str) -> bool:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False
    return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


# --- nodes without a function ---------------------------------------------------------------------------


def _plain(given: NodeGiven, run: Callable[[Moment], Any], shown: Mapping[str, Any]) -> tuple[CallSpec, dict[str, Any]]:
    """A body that only reads the state: it may be repeated, and nobody outside would know."""
    checks = Checks(given)

    async def body(moment_of: GetMoment) -> Any:
        return checks.output(run(moment_of()))

    spec = spec_of(body, kind=Kind.NODE, name=given.id, recovery="safe")
    return replace(spec, signature=None, simple_names=None, declared=_declared(given)), dict(shown)


def _transformer(given: NodeGiven) -> tuple[CallSpec, dict[str, Any]]:
    text = given.options.template
    if text is None:
        raise InvalidInputError("template", f"node {given.id!r} is a transformer: give it a template, or fn=")
    return _plain(given, lambda moment: moment.render(text), {"template": text})


def _end(given: NodeGiven) -> tuple[CallSpec, dict[str, Any]]:
    output = given.options.output
    return _plain(given, lambda moment: None if output is None else moment.render(output), {})


def _condition(given: NodeGiven) -> tuple[CallSpec, dict[str, Any]]:
    if given.runs is not None:
        return _function(given, _function_of(given.runs, given.id))
    if not given.options.conditions:
        raise InvalidInputError("conditions", f"node {given.id!r} decides nothing: give it conditions, or fn=")
    ways = [_way(given.id, way) for way in given.options.conditions]

    def choose(moment: Moment) -> dict[str, str]:
        scope = moment.scope
        return {"matched": next((label for condition, label in ways if condition.holds(scope)), "default")}

    return _plain(given, choose, {})


def _way(node_id: str, way: Any) -> tuple[Condition, str]:
    if not isinstance(way, Mapping) or not isinstance(way.get("expression"), str):
        raise InvalidInputError("conditions", f"node {node_id!r}: each is a dict with an expression and a handle")
    label = way.get("handle", way.get("label", "default"))
    if not isinstance(label, str):
        raise InvalidInputError("conditions", f"node {node_id!r}: the handle {label!r} is no text")
    return compile_condition(way["expression"]), label


def _hitl(given: NodeGiven) -> tuple[CallSpec, dict[str, Any]]:
    """A question to a person, and nothing else. What they said is the node's result."""
    options = given.options
    reason = options.reason if options.reason is not None else f"{given.label or given.id}: approve?"
    shown = options.context if options.context is not None else {}
    if not isinstance(reason, str) or not isinstance(shown, Mapping):
        raise InvalidInputError("reason", f"node {given.id!r}: the reason is a text, and the context a dict")
    if not reason.strip():
        raise InvalidInputError("reason", f"node {given.id!r}: must be a text that is not blank")
    codec.encode(dict(shown))

    async def ask(moment_of: GetMoment) -> dict[str, Any]:
        moment = moment_of()
        answer = interrupt(str(moment.render(reason)), moment.render(dict(shown)), bind=options.bind)
        return {"approved": answer.approved, "metadata": answer.metadata}

    spec = spec_of(ask, kind=Kind.NODE, name=given.id)
    return replace(spec, signature=None, simple_names=None, declared=None), {"reason": reason, "context": dict(shown)}
