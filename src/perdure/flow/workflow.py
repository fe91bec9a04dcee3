"""Workflow functions: plain `async def` whose calls are recorded. `@workflow` makes one a runner.

Decides nothing about recovery: running, resuming and forking are the engine's one act on different journals.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, overload

from perdure.core import codec, ids
from perdure.core.records import Kind, Recovery
from perdure.engine.calls import CallSpec, function_name, return_type, spec_of
from perdure.engine.context import BodyScope, current
from perdure.errors import ChainError, InvalidInputError, PerdureError
from perdure.flow import ambient
from perdure.flow.names import claim_name
from perdure.flow.nesting import run_nested
from perdure.flow.variables import _execution_id

if TYPE_CHECKING:
    from perdure.core.resume import Resume
    from perdure.engine.results import RunResult
    from perdure.engine.streams import Event
    from perdure.store.base import Store

_UNSET: Any = object()
I = TypeVar("I")  # noqa: E741  # the input of a workflow
O = TypeVar("O")  # noqa: E741  # its output


class Workflow(Generic[I, O]):
    """A runner made from an `async def` of one parameter (or none).

    Called inside another workflow it is one operation of that run: complete, its inner records are skipped.
    Elsewhere, start it with `run`/`arun`. `store` is a URL or an open store; default `get_config().store_url`.
    """

    kind = "workflow"

    def __init__(
        self,
        function: Callable[..., Coroutine[Any, Any, Any]],
        *,
        name: str | None = None,
        version: str | None = None,
        accepts: Sequence[str] = (),
        errors: Sequence[type[BaseException]] = (),
    ) -> None:
        if not inspect.iscoroutinefunction(function):
            name = getattr(function, "__qualname__", type(function).__name__)
            raise InvalidInputError("function", f"a workflow is an `async def`; {name} is not")
        functools.update_wrapper(self, function)
        self.name = ids.check_id(name or function_name(function), "name")
        self.version = version
        self.accepts = tuple(accepts)
        self.errors = tuple(errors)
        self._function = function
        self._has_input = _takes_input(function)
        self._input_type = _input_type(function)
        self._output_type = return_type(function)
        self._spec = CallSpec(
            kind=Kind.WORKFLOW,
            name=self.name,
            function=function,
            recovery=Recovery.IDEMPOTENT,
            errors=self.errors,
            declared=self._output_type,
            signature=spec_of(function).signature,
            simple_names=spec_of(function).simple_names,
        )
        claim_name("workflow", self.name, function)

    def __repr__(self) -> str:
        return f"<workflow {self.name}>"

    # The Runner port.

    async def check(self, store: Store, run_id: str) -> None:
        """A workflow's code is compared with the journal call by call, as it runs."""

    def enter(self, run_id: str) -> None:
        _execution_id.set(run_id)

    def encode_input(self, value: Any) -> str:
        if value is _UNSET:
            value = self._default_input()
        elif value is not None and not self._has_input:
            raise InvalidInputError("input", f"workflow {self.name} takes none")
        return codec.record(value, self._input_type)[0]

    def _default_input(self) -> Any:
        parameters = _parameters(self._function)
        if not parameters:
            return None
        if parameters[0].default is inspect.Parameter.empty:
            raise InvalidInputError("input", f"is missing: workflow {self.name} takes {parameters[0].name}")
        return parameters[0].default

    def decode_input(self, data: str) -> Any:
        return codec.decode(data, self._input_type)

    def encode_output(self, value: Any) -> str:
        return codec.record(value, self._output_type)[0]

    def decode_output(self, data: str | None) -> Any:
        return codec.decode(data or "null", self._output_type)

    def drive(self, value: Any) -> Coroutine[Any, Any, Any]:
        return self._function(value) if self._has_input else self._function()

    # Nested.

    def __call__(self, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, O]:
        """Call it inside another workflow (one operation there), or as a plain coroutine outside of any run."""
        scope = current()
        if scope is None:
            return self._function(*args, **kwargs)
        if isinstance(scope, BodyScope):
            raise PerdureError(
                f"workflow {self.name} called inside the body of {scope.call.spec.name}: call it from workflow "
                "code, or start a run "
                "of its own"
            )
        drive = scope.drive
        call = drive.calling.call(scope, self._spec, args, kwargs)
        return drive.calling.pending(call, run_nested(drive, call, self._function))

    # Runs.

    async def arun(
        self, input: I | None = _UNSET, *, execution_id: str | None = None, store: str | Store | None = None
    ) -> RunResult[O]:
        """Run until the end or a question. See `Engine.run` for ids that exist and for errors."""
        engine = await ambient.engine(store)
        return await engine.run(self, input, execution_id=execution_id)

    def run(
        self, input: I | None = _UNSET, *, execution_id: str | None = None, store: str | Store | None = None
    ) -> RunResult[O]:
        """`arun` for callers without an event loop; raises at once inside one."""
        return ambient.run_sync(store, lambda engine: engine.run(self, input, execution_id=execution_id))

    async def aresume(
        self,
        execution_id: str,
        *,
        resume_value: Resume | Mapping[str, Resume] | None = None,
        interrupt_id: str | None = None,
        repeat_operation: str | None = None,
        modified_state: Any = None,
        answered_by: str | None = None,
        store: str | Store | None = None,
    ) -> RunResult[O]:
        """Answer a question and go on, or go on after a crash or a failure. See `Engine.resume` for errors."""
        _refuse_state(modified_state)
        engine = await ambient.engine(store)
        return await engine.resume(
            self,
            execution_id,
            resume_value=resume_value,
            interrupt_id=interrupt_id,
            repeat_operation=repeat_operation,
            answered_by=answered_by,
        )

    def resume(self, execution_id: str, *, store: str | Store | None = None, **options: Any) -> RunResult[O]:
        """`aresume` for callers without an event loop."""
        _refuse_state(options.pop("modified_state", None))
        return ambient.run_sync(store, lambda engine: engine.resume(self, execution_id, **options))

    async def afork(
        self,
        execution_id: str,
        *,
        checkpoint_id: str | int | None = None,
        input: Any = _UNSET,
        modified_state: Any = None,
        new_id: str | None = None,
        store: str | Store | None = None,
    ) -> RunResult[O]:
        """Branch into a new run from a checkpoint. The source is untouched; an open question is asked again under the
        new id."""
        engine = await ambient.engine(store)
        return await self._fork(engine, execution_id, checkpoint_id, input, modified_state, new_id)

    def fork(
        self,
        execution_id: str,
        *,
        checkpoint_id: str | int | None = None,
        input: Any = _UNSET,
        modified_state: Any = None,
        new_id: str | None = None,
        store: str | Store | None = None,
    ) -> RunResult[O]:
        """`afork` for callers without an event loop."""
        return ambient.run_sync(
            store,
            lambda engine: self._fork(engine, execution_id, checkpoint_id, input, modified_state, new_id),
        )

    async def _fork(
        self, engine: Any, execution_id: str, checkpoint_id: Any, value: Any, state: Any, new_id: str | None
    ) -> RunResult[O]:
        _refuse_state(state)
        has_value = value is not _UNSET
        if has_value and checkpoint_id is not None:
            raise ChainError("a workflow takes a new input only from its start: give either input or checkpoint_id")
        return await engine.fork(
            self,
            execution_id,
            checkpoint_id=checkpoint_id,
            value=value if has_value else None,
            has_value=has_value,
            new_id=new_id,
        )

    async def aretry(self, execution_id: str, *, store: str | Store | None = None) -> RunResult[O]:
        """A new attempt of a failed run: its trailing errors are forgotten, everything else stands."""
        engine = await ambient.engine(store)
        return await engine.retry(self, execution_id)

    def retry(self, execution_id: str, *, store: str | Store | None = None) -> RunResult[O]:
        """`aretry` for callers without an event loop."""
        return ambient.run_sync(store, lambda engine: engine.retry(self, execution_id))

    async def acancel(
        self, execution_id: str, *, cancelled_by: str | None = None, store: str | Store | None = None
    ) -> str:
        """Ask for the run to be cancelled; durable when this returns. See `Engine.cancel`."""
        engine = await ambient.engine(store)
        return await engine.cancel(execution_id, cancelled_by=cancelled_by)

    def cancel(self, execution_id: str, *, cancelled_by: str | None = None, store: str | Store | None = None) -> str:
        """`acancel` for callers without an event loop."""
        return ambient.run_sync(store, lambda engine: engine.cancel(execution_id, cancelled_by=cancelled_by))

    async def stream(
        self, execution_id: str, *, after: int = 0, store: str | Store | None = None
    ) -> AsyncIterator[Event]:
        """Committed events of a run, ascending, until it has ended."""
        engine = await ambient.engine(store)
        async for event in engine.stream(execution_id, after=after):
            yield event


def _refuse_state(state: Any) -> None:
    if state is not None:
        raise TypeError(
            "a workflow function has no state to modify: its checkpoints are a view of what it has recorded "
            "(modified_state)"
        )


class WorkflowDecorator(Protocol):
    """What `@workflow(...)` is."""

    @overload
    def __call__(self, function: Callable[[], Coroutine[Any, Any, O]], /) -> Workflow[None, O]: ...
    @overload
    def __call__(self, function: Callable[[I], Coroutine[Any, Any, O]], /) -> Workflow[I, O]: ...
    def __call__(self, function: Callable[..., Any], /) -> Workflow[Any, Any]: ...


@overload
def workflow(function: Callable[[], Coroutine[Any, Any, O]], /) -> Workflow[None, O]: ...
@overload
def workflow(function: Callable[[I], Coroutine[Any, Any, O]], /) -> Workflow[I, O]: ...
@overload
def workflow(
    *,
    name: str | None = None,
    version: str | None = None,
    accepts: Sequence[str] = (),
    errors: Sequence[type[BaseException]] = (),
) -> WorkflowDecorator: ...


def workflow(
    function: Callable[..., Any] | None = None,
    *,
    name: str | None = None,
    version: str | None = None,
    accepts: Sequence[str] = (),
    errors: Sequence[type[BaseException]] = (),
) -> Any:
    """Make an `async def` a workflow: `@workflow`, or `@workflow(name=..., version=..., errors=[...])`.

    `name` is persisted (default: the qualified name without its module). Runs started by another `version` are
    continued only if `accepts` lists it. `errors` are exception classes to rebuild when the recorded failure is
    raised again.
    """

    def decorate(inner: Callable[..., Any]) -> Workflow[Any, Any]:
        return Workflow(inner, name=name, version=version, accepts=accepts, errors=errors)

    return decorate if function is None else decorate(function)


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = list(inspect.signature(function).parameters.values())
    if any(p.kind not in kinds for p in parameters) or len(parameters) > 1:
        raise InvalidInputError(
            "function",
            f"workflow {function.__qualname__} must take one input, or none; put several values into a dict or model",
        )
    return parameters


def _takes_input(function: Callable[..., Any]) -> bool:
    return bool(_parameters(function))


def _input_type(function: Callable[..., Any]) -> object:
    import typing

    parameters = _parameters(function)
    if not parameters:
        return None
    try:
        return typing.get_type_hints(function).get(parameters[0].name)
    except Exception:
        return None
