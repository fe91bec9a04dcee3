"""An engine on each store."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.support.engines import opened

from perdure.engine.engine import Engine


@pytest.fixture
async def engine(store_url: str) -> AsyncIterator[Engine]:
    """A worker on an empty store, one for each kind of store."""
    async with opened(store_url) as engine:
        yield engine
