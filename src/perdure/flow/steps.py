"""Steps: functions whose outcome is recorded once. `@step`, or `await step(function, *args)`."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from datetime import timedelta
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, overload

from perdure.core.records import Kind
from perdure.core.retry import RetryPolicy
from perdure.engine import inner
from perdure.engine.calls import CallSpec, spec_of
from perdure.engine.context import BodyScope, current
from perdure.errors import InvalidInputError
from perdure.flow.names import claim_name

P = ParamSpec("P")
R = TypeVar("R")


class Step(Generic[P, R]):
    """A function whose calls are recorded. Outside a run it is called as it is."""

    def __init__(self, spec: CallSpec) -> None:
        self.spec = spec
        functools.update_wrapper(self, spec.function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        return perform(self.spec, args, kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """A decorated method: bound as usual; `self` is not part of the recorded arguments."""
        if instance is None:
            return self
        from dataclasses import replace  # methods are rare

        function = self.spec.function.__get__(instance, owner)
        return Step(replace(self.spec, function=function, signature=None, simple_names=None, **_bound(function)))

    def __await__(self) -> Generator[Any, None, R]:
        """`await step(function)`: a call without arguments."""
        return perform(self.spec, (), {}).__await__()


def _bound(function: Callable[..., Any]) -> dict[str, Any]:
    spec = spec_of(function)
    return {"signature": spec.signature, "simple_names": spec.simple_names}


def perform(spec: CallSpec, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Coroutine[Any, Any, Any]:
    """Call an operation where the code is now; the call is numbered at once, its body starts when it is awaited."""
    scope = current()
    if scope is None:
        return _plain(spec, args, kwargs)
    if isinstance(scope, BodyScope):
        call, line = inner.make(scope, spec, args, kwargs)
        return inner.run(scope, call, line)
    drive = scope.drive
    return drive.calling.pending(drive.calling.call(scope, spec, args, kwargs))


async def _plain(spec: CallSpec, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    value = spec.function(*args, **kwargs)
    return await value if spec.is_async else value


class StepDecorator(Protocol):
    """What `@step(...)` is: makes a function a step with the given policy."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Step[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Step[P, R]: ...
    def __call__(self, function: Callable[..., Any], /) -> Step[..., Any]: ...


@overload
def step(function: Callable[P, Awaitable[R]], /) -> Step[P, R]: ...
@overload
def step(function: Callable[P, R], /) -> Step[P, R]: ...
@overload
def step(
    *,
    name: str | None = None,
    retries: int | RetryPolicy | None = None,
    timeout: timedelta | float | None = None,
    recovery: str = "idempotent",
    errors: Sequence[type[BaseException]] = (),
) -> StepDecorator: ...
@overload
def step(function: Callable[..., Awaitable[R]], /, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, R]: ...
@overload
def step(function: Callable[..., R], /, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, R]: ...


def step(function: Callable[..., Any] | None = None, /, *args: Any, **kwargs: Any) -> Any:
    """Record what a function returns, once.

    - `await step(charge, amount)` calls `charge` as a step.
    - `@step` or `@step(retries=3, timeout=5.0, recovery="manual", errors=[CardDeclined])` makes a function a step:
      call it directly.

    `retries` is a number of further attempts or a `RetryPolicy`; the time of the next attempt is stored. `timeout`
    (seconds or `timedelta`) bounds one attempt. `recovery` says what happens if the process dies inside: `safe` and
    `idempotent` run again (the second under the same `operation_id()`), `manual` stops the run for a person. `errors`
    lists exception classes to be rebuilt at replay; others are `OperationError`. A sync function runs in a thread.
    Arguments and result must be recordable.
    """
    if function is None:
        if args:
            raise InvalidInputError("function", "the first argument is what to call")
        return _decorator(**kwargs)
    if args or kwargs or current() is not None:
        # Inside a run, `step(function)` is a call without arguments; functions are made steps outside.
        return perform(_spec(function), args, kwargs)
    return function if isinstance(function, Step) else Step(_spec(function))


_specs: weakref.WeakKeyDictionary[Any, CallSpec] = weakref.WeakKeyDictionary()


def _spec(function: Callable[..., Any]) -> CallSpec:
    if isinstance(function, Step):
        return function.spec
    try:
        spec = _specs.get(function)
    except TypeError:
        return _checked(spec_of(function))
    if spec is None:
        # The spec must not keep its function alive in the cache.
        spec = _checked(spec_of(function))
        if getattr(function, "__self__", None) is None and getattr(function, "__closure__", None) is None:
            _specs[function] = spec
    return spec


def _checked(spec: CallSpec) -> CallSpec:
    claim_name("step", spec.name, spec.function)
    return spec


def _decorator(
    *,
    name: str | None = None,
    retries: int | RetryPolicy | None = None,
    timeout: timedelta | float | None = None,
    recovery: str = "idempotent",
    errors: Sequence[type[BaseException]] = (),
) -> Callable[[Callable[..., Any]], Step[..., Any]]:
    policy = retry_policy(retries)
    timeout_s = seconds("timeout", timeout)

    def decorate(function: Callable[..., Any]) -> Step[..., Any]:
        spec = spec_of(
            function, kind=Kind.STEP, name=name, recovery=recovery, retry=policy, timeout_s=timeout_s, errors=errors
        )
        return Step(_checked(spec))

    return decorate


def retry_policy(retries: int | RetryPolicy | None) -> RetryPolicy | None:
    """`retries=3` means three attempts after the first."""
    if retries is None or isinstance(retries, RetryPolicy):
        return retries
    if type(retries) is not int or retries < 0:
        raise InvalidInputError("retries", "must be a number of at least 0 or a RetryPolicy")
    return RetryPolicy(max_attempts=retries + 1) if retries else None


def seconds(field: str, value: timedelta | float | None) -> float | None:
    """Seconds of a `timedelta` or number. Refuses what is negative or not a time."""
    if value is None:
        return None
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number < float("inf"):
        raise InvalidInputError(field, "must be seconds (at least 0) or a timedelta")
    return float(number)
