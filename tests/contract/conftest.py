"""One suite for both stores: `store` is empty and open, `open_another` opens the same one again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from perdure.store.base import Store
from perdure.store.open import open_store


@pytest.fixture
async def open_another(store_url: str) -> AsyncIterator[Callable[[], Awaitable[Store]]]:
    """Opens the test's store once more, as another process would."""
    opened: list[Store] = []

    async def open_it() -> Store:
        opened.append(await asyncio.to_thread(open_store, store_url))
        return opened[-1]

    yield open_it
    for store in opened:
        await store.close()


@pytest.fixture
async def store(open_another: Callable[[], Awaitable[Store]]) -> Store:
    """An open, empty store."""
    return await open_another()
