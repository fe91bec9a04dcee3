"""A store over a third party's checkpointer, and the same file opened again as a new process would find it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.checkpointers import flows
from tests.support.engines import Gate
from tests.support.third_party import FileCheckpointer, opened_over

from perdure.checkpointers.foreign import ForeignStore

Opener = Callable[..., ForeignStore]


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "third_party.db")


@pytest.fixture
def open_store(path: str) -> Iterator[Opener]:
    """Opens a store over the test's file, with a checkpointer of its own: to the others it is another process."""
    opened: list[ForeignStore] = []

    def open_it(kind: Callable[[str], FileCheckpointer] = FileCheckpointer) -> ForeignStore:
        opened.append(opened_over(kind(path)))
        return opened[-1]

    yield open_it
    for store in opened:
        store.close_now()


@pytest.fixture
def looker(path: str) -> FileCheckpointer:
    """The test's own view of the rows."""
    checkpointer = FileCheckpointer(path)
    checkpointer.setup()
    return checkpointer


@pytest.fixture(autouse=True)
def fresh_flows() -> None:
    flows.did.clear()
    flows.gates[:] = [Gate()]
