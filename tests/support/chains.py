"""What the tests of chains share: answers, an agent as a user writes one, and a look at what is stored from outside.

Every function here opens the store anew, as another process would.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any

from perdure import Chain, Resume, open_engine
from perdure.checkpointers.postgres import PostgresCheckpointer
from perdure.checkpointers.sql import SqlCheckpointer
from perdure.checkpointers.sqlite import SQLiteCheckpointer
from perdure.core.checkpoints import Checkpoint, checkpoints
from perdure.core.records import InterruptRow, Loaded, RunFilter, RunRow
from tests.support.database import execute

YES = Resume(approved=True)
NO = Resume(approved=False)


class Echo:
    """A user's own agent: anything with `arun`. `calls` are the inputs it was run with."""

    def __init__(self, name: str = "echo") -> None:
        self.name = name
        self.calls: list[Any] = []

    async def arun(self, value: Any) -> str:
        self.calls.append(value)
        return f"{self.name}: {value}"


def line(name: str, *functions: Any, **options: Any) -> Chain:
    """A chain of functions one after the other, under their names."""
    chain = Chain(name, **options)
    for function in functions:
        chain.add_node(function.__name__, fn=function)
    for source, target in itertools.pairwise(functions):
        chain.connect(source.__name__, target.__name__)
    return chain


def fan(name: str, source: Any, branches: Sequence[Any], join: Any, **options: Any) -> Chain:
    """A function, several that run at once after it, and one that joins them."""
    chain = Chain(name, **options).add_node(source.__name__, fn=source)
    for branch in branches:
        chain.add_node(branch.__name__, fn=branch).connect(source.__name__, branch.__name__)
    chain.add_node(join.__name__, fn=join)
    for branch in branches:
        chain.connect(branch.__name__, join.__name__)
    return chain


def checkpointer_of(url: str) -> SqlCheckpointer:
    """The checkpointer over a store. Close it."""
    if url.startswith("sqlite"):
        return SQLiteCheckpointer(url.removeprefix("sqlite:///"))
    return PostgresCheckpointer(url)


# --- what is stored -------------------------------------------------------------------------------------


async def aload(url: str, run_id: str) -> Loaded:
    """A run with its records and questions."""
    async with open_engine(url) as engine:
        return await engine.store.run_load(run_id)


def load(url: str, run_id: str) -> Loaded:
    return asyncio.run(aload(url, run_id))


def points(url: str, run_id: str) -> list[Checkpoint]:
    """The checkpoints of a run, ascending."""
    return checkpoints(load(url, run_id))


def point(url: str, run_id: str, node_id: str, *, status: str = "completed", number: int = 0) -> Checkpoint:
    """The checkpoint of a node's n-th end (or question)."""
    found = [one for one in points(url, run_id) if (one.node_id, one.status) == (node_id, status)]
    return found[number]


def runs(url: str) -> list[RunRow]:
    """Every run of the store."""

    async def read() -> list[RunRow]:
        async with open_engine(url) as engine:
            return await engine.store.run_list(RunFilter())

    return asyncio.run(read())


def questions(url: str, run_id: str, status: str | None = None) -> list[InterruptRow]:
    """A run's questions, open or not, oldest first."""

    async def read() -> list[InterruptRow]:
        async with open_engine(url) as engine:
            return await engine.store.interrupt_list(run_id=run_id, status=status, limit=1000)

    return asyncio.run(read())


def everything(url: str) -> str:
    """All that the store's tables hold, as text."""
    if url.startswith("sqlite"):
        names = execute(url, "SELECT name FROM sqlite_master WHERE type = 'table'")
    else:
        names = execute(url, "SELECT table_name FROM information_schema.tables WHERE table_schema = 'perdure'")
    return "\n".join(repr(execute(url, f'SELECT * FROM "{name}"')) for (name,) in names)
