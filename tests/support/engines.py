"""What the tests of the engine share: settings that wait for nothing, views of a journal, gates for bodies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from perdure.core.fold import Journal, Operation, fold
from perdure.core.records import InterruptRow, RunRow, StoredRecord
from perdure.core.settings import EngineSettings
from perdure.engine.engine import Engine, open_engine
from perdure.engine.results import RunResult

FAST = EngineSettings(lease_s=5.0, poll_s=0.02, grace_s=2.0)
"""A worker that looks for dead peers often; nothing here ends because time has passed."""
HASTY = EngineSettings(lease_s=5.0, poll_s=0.02, grace_s=0.0)
"""A worker that leaves bodies behind at shutdown: what they were doing is in doubt, as after a crash."""


def _setter(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> Callable[[], None]:
    """Sets an event of a loop, from whatever thread."""

    def tell() -> None:
        loop.call_soon_threadsafe(event.set)

    return tell


@asynccontextmanager
async def opened(url: str, settings: EngineSettings = FAST) -> AsyncIterator[Engine]:
    """An engine of its own on a store: one start of a worker."""
    engine = await open_engine(url, settings=settings)
    try:
        yield engine
    finally:
        await engine.close()


# --- looking at what is stored ------------------------------------------------------------------------


async def records_of(engine: Engine, run_id: str) -> list[StoredRecord]:
    """Every committed record of a run, ascending."""
    return (await engine.store.run_load(run_id)).records


async def journal_of(engine: Engine, run_id: str) -> Journal:
    """A run's committed journal, folded."""
    loaded = await engine.store.run_load(run_id)
    return fold(loaded.records, loaded.interrupts)


async def operation_of(engine: Engine, run_id: str, key: str) -> Operation:
    return (await journal_of(engine, run_id)).operations[key]


async def row_of(engine: Engine, run_id: str) -> RunRow:
    row = await engine.store.run_get(run_id)
    assert row is not None
    return row


async def questions_of(engine: Engine, run_id: str) -> list[InterruptRow]:
    """All questions of a run, open or not, oldest first."""
    return await engine.store.interrupt_list(run_id=run_id, status=None, limit=1000)


async def record_that(engine: Engine, run_id: str, **wanted: Any) -> StoredRecord:
    """Wait on the run's committed stream for the first record with these columns."""
    async for event in engine.stream(run_id):
        [record] = await engine.store.record_list(run_id, after=event.sequence - 1, limit=1)
        found = {name: getattr(record, name) for name in wanted}
        if found == wanted or ("name" in wanted and {**found, "name": bare(record.name)} == wanted):
            return record
    raise AssertionError(f"run {run_id} ended without a record {wanted}")


def bare(name: str | None) -> str:
    """A persisted name without the function it was defined in."""
    return (name or "").rpartition(".")[2]


async def question_count(engine: Engine, run_id: str, count: int) -> list[InterruptRow]:
    """Wait until so many questions of a run are open and committed."""
    news = asyncio.Event()
    loop = asyncio.get_running_loop()
    unsubscribe = engine.store.subscribe(_setter(loop, news))
    try:
        while True:
            news.clear()
            rows = await engine.store.interrupt_list(run_id=run_id)
            if len(rows) >= count:
                return rows
            await news.wait()
    finally:
        unsubscribe()


async def status_that(engine: Engine, run_id: str, *wanted: str) -> RunRow:
    """Wait until a run's committed status is one of these."""
    news = asyncio.Event()
    loop = asyncio.get_running_loop()
    unsubscribe = engine.store.subscribe(_setter(loop, news))
    try:
        while True:
            news.clear()
            row = await engine.store.run_get(run_id)
            if row is not None and row.status in wanted:
                return row
            await news.wait()
    finally:
        unsubscribe()


def shape(records: Iterable[StoredRecord]) -> list[tuple[Any, ...]]:
    """What replay reads of records, without times and sequence numbers."""
    return [
        (r.type, r.path, r.index, r.kind, r.name, r.digest, r.recovery, r.attempt, r.outcome, r.data) for r in records
    ]


def ids_of(result: RunResult) -> list[str]:
    """The open questions of a result, oldest first."""
    return [question["interrupt_id"] for question in result.pending_interrupts]


# --- bodies the test holds in its hand ----------------------------------------------------------------


class Gate:
    """A place in a body where it says that it is there, and stays until it is let go."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()

    async def stand(self) -> None:
        self.reached.set()
        await self.opened.wait()

    def open(self) -> None:
        self.opened.set()


class Turns:
    """Lets bodies end in a given order, however they were started. Bodies that are not listed end at once."""

    def __init__(self, order: Sequence[object] = ()) -> None:
        self._order = list(order)
        self._ended: dict[object, asyncio.Event] = {name: asyncio.Event() for name in self._order}

    async def take(self, name: object) -> None:
        """Wait until everything before `name` has ended, then let the next one go."""
        if name not in self._ended:
            return
        position = self._order.index(name)
        if position:
            await self._ended[self._order[position - 1]].wait()
        self._ended[name].set()
