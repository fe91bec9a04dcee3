"""`@idempotent`: a function whose effect happens once per run and key, wherever in the run it is called."""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar, overload

from perdure.core import codec
from perdure.core.records import Kind, Recovery
from perdure.engine import keyed
from perdure.engine.calling import own_copy
from perdure.engine.calls import Call, CallSpec, spec_of
from perdure.engine.context import BodyScope, Running, TaskScope, current
from perdure.errors import IdempotencyError, InvalidInputError, SerializationError
from perdure.flow.names import claim_name

P = ParamSpec("P")
R = TypeVar("R")


class Idempotent:
    """A decorated function. Outside a run its body runs every time."""

    def __init__(self, spec: CallSpec, key_fn: Callable[..., str] | None, owner: Any = None) -> None:
        self.spec = spec
        self._key_fn = key_fn
        self._owner = owner
        self._has_warned = False
        functools.update_wrapper(self, spec.function)
        self._outer = replace(
            spec,
            recovery=Recovery.IDEMPOTENT,  # the key's own record holds the policy
            function=self._in_body_async if spec.is_async else self._in_body_sync,
        )

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        bound = self.spec.function.__get__(instance, owner)
        signature = inspect.signature(bound)
        spec = replace(self.spec, function=bound, signature=signature, simple_names=None)
        return Idempotent(spec, self._key_fn and functools.partial(self._key_fn, instance), instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        scope = current()
        if scope is None:
            self._warn_if_lost()
            return self.spec.function(*args, **kwargs)
        shown = self._key(args, kwargs)
        if isinstance(scope, TaskScope):
            return self._direct(scope, args, kwargs, shown)
        call = keyed.call_of(scope, self.spec, codec.digest(shown), args, kwargs, shown)
        if self.spec.is_async:
            return keyed.run(scope, call)
        return self._sync(scope, call)

    def _warn_if_lost(self) -> None:
        """A thread that was started by hand does not know its run: the body runs unrecorded, as the reference
        demands."""
        is_suspicious = Running.drive_count > 0 and threading.current_thread() is not threading.main_thread()
        if is_suspicious and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"{self.spec.name} is called in a thread that belongs to no run, so nothing is recorded; start "
                "the thread with "
                "contextvars.copy_context().run, or make the call a step",
                RuntimeWarning,
                stacklevel=3,
            )

    def _sync(self, scope: BodyScope, call: Call) -> Any:
        try:
            is_on_loop = asyncio.get_running_loop() is scope.drive.real_loop
        except RuntimeError:
            is_on_loop = False
        return keyed.run_blocking(scope, call) if is_on_loop else keyed.run_in_thread(scope, call)

    def _direct(self, scope: TaskScope, args: tuple[Any, ...], kwargs: dict[str, Any], shown: str) -> Any:
        """Called by workflow code: an operation like any other, whose body is the key's record."""
        drive = scope.drive
        drive.check_open()
        index = scope.next_index()
        call = Call(self._outer, scope.path, index, *own_copy(args, kwargs), shown, codec.digest(shown))
        drive.calling.register(call)
        return drive.calling.pending(call) if self.spec.is_async else drive.calling.wait_exclusive(call)

    def _inner_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[BodyScope, Call]:
        scope = current()
        assert isinstance(scope, BodyScope)
        shown = scope.call.arguments or ""
        return scope, keyed.call_of(scope, self.spec, scope.call.digest or "", args, kwargs, shown)

    async def _in_body_async(self, *args: Any, **kwargs: Any) -> Any:
        return await keyed.run(*self._inner_call(args, kwargs))

    def _in_body_sync(self, *args: Any, **kwargs: Any) -> Any:
        return keyed.run_in_thread(*self._inner_call(args, kwargs))

    def _key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """The key's text: `key_fn`'s answer, or the bound arguments. Never a weaker key than asked for."""
        try:
            if self._key_fn is not None:
                key = self._key_fn(*args, **kwargs)
                if not isinstance(key, str):
                    raise IdempotencyError(f"key_fn of {self.spec.name} returned {type(key).__name__}, not a str")
                return codec.encode({"key": key})
            text = self.spec.arguments(args, kwargs)
        except SerializationError as error:
            raise IdempotencyError(
                f"{self.spec.name} has no stable key: {error}; give it one with key_fn=..., or pass plain data"
            ) from error
        if self._owner is None:
            return text
        return codec.encode({"self": self._owner_key(), "arguments": text})

    def _owner_key(self) -> str:
        key = getattr(self._owner, "__idempotency_key__", None)
        value = key() if callable(key) else key
        if not isinstance(value, str):
            raise IdempotencyError(
                f"{self.spec.name}: {type(self._owner).__name__} has no stable key; declare "
                "__idempotency_key__ on it, or use key_fn"
            )
        return value


@overload
def idempotent(fn: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def idempotent(
    fn: None = None,
    *,
    key_fn: Callable[..., str] | None = None,
    recovery: str = "manual",
    name: str | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...


def idempotent(
    fn: Callable[..., Any] | None = None,
    *,
    key_fn: Callable[..., str] | None = None,
    recovery: str = "manual",
    name: str | None = None,
) -> Any:
    """Run a function's body once per run and key; later calls with the key get the recorded value.

    The key is the function's name with its bound arguments, or what `key_fn` makes of them. Raises `IdempotencyError`
    at the call, before the body, if arguments have no stable form; and records it if the result cannot be stored, so
    that the effect is not repeated. Only values are recorded for a key: after an exception the next call runs the
    body, under the same `operation_id()`.

    `recovery` says what happens if the process dies inside the body: `manual` stops the run for a person,
    `idempotent` runs it again under the same `operation_id()`. Outside a run nothing is recorded.
    """

    def decorate(function: Callable[..., Any]) -> Idempotent:
        _check_name(function, key_fn, name)
        spec = spec_of(function, kind=Kind.EFFECT, name=name, recovery=recovery)
        claim_name("idempotent", spec.name, function)
        return Idempotent(replace(spec, unstorable=IdempotencyError, errors=(IdempotencyError,)), key_fn)

    return decorate if fn is None else decorate(fn)


def _check_name(function: Callable[..., Any], key_fn: object, name: str | None) -> None:
    if not callable(function):
        raise InvalidInputError("fn", f"expected a function, got {type(function).__name__}")
    qualname = getattr(function, "__qualname__", "")
    has_name = name is not None or ("<lambda>" not in qualname and not getattr(function, "__closure__", None))
    if not has_name and key_fn is None:
        raise IdempotencyError(
            f"{qualname}: a lambda or a closure has no stable key, since what it closes over is not part of "
            "it; give key_fn=..."
        )
