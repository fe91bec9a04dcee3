"""The engine of the running event loop, for callers that opened none: one per loop and store, opened at first use.

The one accessor of process-wide state in this layer. An engine opened here ends with its loop.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from perdure.core.settings import get_config
from perdure.engine.context import TaskScope, current
from perdure.errors import PerdureError

if TYPE_CHECKING:
    from perdure.engine.engine import Engine
    from perdure.store.base import Store

T = TypeVar("T")

_engines: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, _Ambient]] = weakref.WeakKeyDictionary()


class _Ambient:
    """An engine being opened or open, and what closes it when its loop shuts down."""

    opening: asyncio.Future[Engine]

    def __init__(self) -> None:
        self.guard: AsyncGenerator[None, None] | None = None


async def engine(store: str | Store | None) -> Engine:
    """The engine of this loop for a store; opened if there is none."""
    if isinstance(current(), TaskScope):
        raise PerdureError("a run is started, resumed or steered from a step; or call the workflow: `await other(x)`")
    loop = asyncio.get_running_loop()
    key, opened = _key_of(store)
    of_loop = _engines.setdefault(loop, {})
    known = of_loop.get(key)
    if known is not None and (not known.opening.done() or _is_usable(known.opening)):
        return await asyncio.shield(known.opening)
    ambient = of_loop[key] = _Ambient()
    ambient.opening = asyncio.ensure_future(_opened(opened, ambient))
    return await asyncio.shield(ambient.opening)


async def _opened(store: str | Store, ambient: _Ambient) -> Engine:
    """Open, and see to it that it is closed, whatever becomes of the caller who was first."""
    from perdure.engine.engine import open_engine  # not needed to import perdure

    engine = await open_engine(store)
    ambient.guard = _closing(engine)
    await anext(ambient.guard)
    return engine


def _is_usable(opening: asyncio.Future[Engine]) -> bool:
    return not opening.cancelled() and opening.exception() is None and not opening.result().host.is_closing


def _key_of(store: str | Store | None) -> tuple[str, str | Store]:
    if store is None:
        store = get_config().store_url
    return (store, store) if isinstance(store, str) else (f"open store {id(store)}", store)


async def _closing(engine: Engine) -> AsyncGenerator[None, None]:
    """Closes the engine when the loop shuts its asynchronous generators down (`asyncio.run` does, at its end)."""
    try:
        yield
    finally:
        await engine.close()


def run_sync(store: str | Store | None, work: Callable[[Engine], Awaitable[T]]) -> T:
    """Run one thing on an engine and a loop of its own. The loop is nobody else's, so commits may be made on it."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        raise RuntimeError(
            "a synchronous call inside a running event loop would stop it; use the method that begins with 'a'"
        )

    async def main() -> T:
        from perdure.engine.engine import open_engine  # not needed to import perdure

        engine = await open_engine(_key_of(store)[1], is_inline=True)
        try:
            return await work(engine)
        finally:
            await engine.close()

    result: Any = asyncio.run(main())
    return result
