"""An engine on each store, and on a third party's checkpointer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.engine.foreign_skips import SKIPPED
from tests.support.engines import opened
from tests.support.third_party import FileCheckpointer, opened_over

from perdure.checkpointers.foreign import ForeignStore
from perdure.engine.engine import Engine


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres), "foreign"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str | ForeignStore]:
    """An empty store: its URL, or over a checkpointer the open store, which all engines of a process share."""
    match request.param:
        case "sqlite":
            yield f"sqlite:///{tmp_path / 'perdure.db'}"
        case "postgres":
            yield request.getfixturevalue("postgres_dsn")
        case _:
            if reason := SKIPPED.get(request.node.originalname):
                pytest.skip(reason)
            store = opened_over(FileCheckpointer(str(tmp_path / "third_party.db")))
            yield store
            store.close_now()


@pytest.fixture
async def engine(store_url: str) -> AsyncIterator[Engine]:
    """A worker on an empty store, one for each kind of store."""
    async with opened(store_url) as engine:
        yield engine
