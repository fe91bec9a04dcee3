"""A call of an operation: what is called, with what, and how it stands. Decides the digest that replay verifies.

`CallSpec` is made once per function; `Call` once per call.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from perdure.core import codec, ids, keys
from perdure.core.records import Kind, OutcomeKind, Recovery
from perdure.core.retry import RetryPolicy
from perdure.core.snapshots import Said
from perdure.errors import (
    ChainCycleError,
    ChainError,
    ChainRoutingError,
    ChainStateError,
    ChainTemplateError,
    DurableLimitError,
    IdempotencyError,
    InvalidInputError,
    OperationError,
    PerdureError,
    SerializationError,
    UnawaitedOperation,
)

if TYPE_CHECKING:
    from perdure.engine.context import BodyScope
    from perdure.engine.runloop import Frozen

_MAX_SHOWN_ARGUMENTS = 1024
"""Arguments longer than this are recorded as their digest only: a call's input is mostly records already (law 9)."""

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True, slots=True, eq=False)
class Default:
    """A parameter's default as it was at the definition. `text` is None if it cannot be recorded."""

    value: object
    text: str | None

    def is_same(self, value: object) -> bool:
        """Whether a call with `value` is the call without it."""
        if self.text is None or type(value) is not type(self.value):
            return value is self.value
        try:
            return codec.encode(value) == self.text
        except SerializationError:  # whoever encodes the call says where it is
            return False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CallSpec:
    """What is known of a function before it is called. `declared` is its return type, used to rebuild results."""

    kind: Kind
    name: str
    function: Callable[..., Any]
    recovery: Recovery = Recovery.IDEMPOTENT
    retry: RetryPolicy | None = None
    timeout_s: float | None = None
    errors: Sequence[type[BaseException]] = ()
    declared: object = None
    is_async: bool = True
    signature: inspect.Signature | None = None
    simple_names: tuple[str, ...] | None = None
    """Parameter names when all are plain positional ones without defaults, so that binding is a `zip`."""
    unstorable: Callable[[str], Exception] | None = None
    """Makes the error recorded for a result that cannot be stored; `SerializationError` if None."""
    defaults: Mapping[str, Default] = field(init=False)
    """Of the parameters in `signature` that have one."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "defaults", _defaults(self.signature))

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """The bound arguments, encoded. Positional, keyword and defaulted forms of one call give one text: what is
        the default is left out, so that a parameter added with one changes no call that was there before."""
        names = self.simple_names
        if names is not None and not kwargs and len(args) == len(names):
            return self._encode(dict(zip(names, args, strict=True)))
        if self.signature is None:
            return self._encode({"args": list(args), "kwargs": kwargs})
        bound = self.signature.bind(*args, **kwargs)
        given = bound.arguments
        for name, default in self.defaults.items():
            if name in given and default.is_same(given[name]):
                del given[name]
        return self._encode(given)

    def _encode(self, arguments: dict[str, Any]) -> str:
        try:
            return codec.encode(arguments)
        except SerializationError as error:
            raise SerializationError(
                f"{self.name}({error.path.removeprefix('$').lstrip('.')})", error.message
            ) from None


def spec_of(
    function: Callable[..., Any],
    *,
    kind: Kind = Kind.STEP,
    name: str | None = None,
    recovery: str = Recovery.IDEMPOTENT,
    retry: RetryPolicy | None = None,
    timeout_s: float | None = None,
    errors: Sequence[type[BaseException]] = (),
    declared: object = None,
) -> CallSpec:
    """Read a function once. Raises `InvalidInputError` for a policy that does not exist or a non-callable."""
    if not callable(function):
        raise InvalidInputError("function", f"expected something to call, got {type(function).__name__}")
    try:
        policy = Recovery(recovery)
    except ValueError:
        raise InvalidInputError("recovery", f"{recovery!r} is not one of safe, idempotent, manual") from None
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        signature = None
    return CallSpec(
        kind=kind,
        name=ids.check_id(name or function_name(function), "name"),
        function=function,
        recovery=policy,
        retry=retry,
        timeout_s=timeout_s,
        errors=tuple(errors),
        declared=return_type(function) if declared is None else declared,
        is_async=inspect.iscoroutinefunction(function)
        or inspect.iscoroutinefunction(getattr(function, "__call__", None)),  # noqa: B004
        signature=signature,
        simple_names=_simple_names(signature),
    )


def function_name(function: Callable[..., Any]) -> str:
    """The persisted name of a function: no module in it, since the same file is `__main__` and `app` in turn."""
    name = getattr(function, "__qualname__", None) or getattr(function, "__name__", None)
    if name is None:
        wrapped = getattr(function, "func", None)
        name = function_name(wrapped) if wrapped is not None else type(function).__qualname__
    return name.replace(".<locals>", "")


def return_type(function: Callable[..., Any]) -> object:
    """The return annotation with strings resolved, or None. An annotation that cannot be resolved counts as none."""
    import typing

    try:
        return typing.get_type_hints(function).get("return")
    except Exception:
        return None


def _simple_names(signature: inspect.Signature | None) -> tuple[str, ...] | None:
    if signature is None:
        return None
    parameters = signature.parameters.values()
    if any(p.kind not in _POSITIONAL or p.default is not p.empty for p in parameters):
        return None
    return tuple(p.name for p in parameters)


def _defaults(signature: inspect.Signature | None) -> Mapping[str, Default]:
    if signature is None:
        return {}
    parameters = signature.parameters.values()
    return {p.name: Default(p.default, _text_of(p.default)) for p in parameters if p.default is not p.empty}


def _text_of(default: object) -> str | None:
    try:
        return codec.encode(default)
    except SerializationError:
        return None


@dataclass(slots=True, eq=False)
class Call:
    """One call in this process: its identity, its waiting caller, and its body while that runs."""

    spec: CallSpec
    path: str
    index: int
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    arguments: str | None = None
    digest: str | None = None
    key: str = ""
    future: asyncio.Future[Any] | None = None
    context: contextvars.Context | None = None
    frozen: Frozen | None = None
    attempt: int = 1
    is_settled: bool = False
    is_given_up: bool = False
    is_exclusive: bool = False
    """Synchronous: nothing else of the workflow runs until it has ended."""
    is_timed_out: bool = False
    on_done: Callable[[asyncio.Future[Any]], None] | None = None
    """What the body calls at its end."""
    body: asyncio.Future[Any] | None = None
    scope: BodyScope | None = None
    timer: asyncio.TimerHandle | None = None
    tell_state: Callable[[Outcome | None], Said] | None = None
    """What its end (or its question: None) makes of the state it belongs to, for the same record."""

    def __post_init__(self) -> None:
        if not self.key:
            self.key = keys.operation_key(self.path, self.index)

    def release(self) -> None:
        """The caller has its outcome: let go of what only the body and the waiting needed."""
        self.args, self.kwargs = (), {}
        self.future = self.context = self.body = self.scope = self.on_done = self.tell_state = None

    @property
    def shown_arguments(self) -> str | None:
        """What is recorded of the arguments for people."""
        text = self.arguments
        return text if text is not None and len(text) <= _MAX_SHOWN_ARGUMENTS else None


OWN_ERRORS: tuple[type[Exception], ...] = (
    SerializationError,
    InvalidInputError,
    IdempotencyError,
    DurableLimitError,
    UnawaitedOperation,
    OperationError,
    ChainCycleError,
    ChainRoutingError,
    ChainStateError,
    ChainTemplateError,
    ChainError,
    PerdureError,
)
"""Errors of Perdure that a run or a body may fail with; they are rebuilt like built-in ones."""
_UNKNOWN: Any = object()


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an operation ended, encoded. `value` is what `data` decodes to, where that is known already."""

    kind: OutcomeKind
    data: str | None
    value: Any = _UNKNOWN

    def reveal(self, spec: CallSpec) -> Any:
        """The value, decoded as at any later replay; or raise the recorded error."""
        if self.kind is OutcomeKind.VALUE:
            if self.value is not _UNKNOWN:
                return self.value
            return codec.decode(self.data, spec.declared) if self.data is not None else None
        if self.kind is OutcomeKind.CANCELLED:
            raise asyncio.CancelledError
        raise codec.decode_error(self.data or "null", (*spec.errors, *OWN_ERRORS))
