"""Kill points: names every instant at which a journal entry changes its state, and kills the process at a
chosen one.

A point is a journal entry (run, path and index, transition, attempt) and a stage:

- `enqueued`: the entry is in the queue and nothing of it is on disk. Inside a group the disk is slow first
  (`HOLD_S`), so that whatever the run does without waiting for this entry is done before the process dies.
  Inside an outside write (claim, answer, fork, retry) it is the open transaction.
- `committed`: the transaction is durable, and nobody in the process knows.
- `acknowledged`: whoever waited for it has been told.

Heartbeats are no points. `FaultStore` is a real `SqlStore`; `FaultDriver` is a real driver with these three
instants in it.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar, cast

from perdure.core.keys import operation_key
from perdure.core.records import Record, RecordType, StoredRecord
from perdure.store.base import Entry, Lane
from perdure.store.driver import Batch, Driver, Params, Session
from perdure.store.sql_store import SqlStore

T = TypeVar("T")

HOLD_S = 0.03
"""How long the disk is slow before the power goes. A fault, not a wait for something: nothing depends on
its length."""

# The digest of an idempotency key contains tokens, which differ from run to run.
_KEY_DIGEST = re.compile(r"(@[^:/!]+):[0-9a-f]+")
_NAMED_QUERIES = frozenset({"worker_insert", "worker_end"})
"""Outside writes without a journal entry that are points all the same."""


class Stage(StrEnum):
    """How far an entry has come."""

    ENQUEUED = "enqueued"
    COMMITTED = "committed"
    ACKNOWLEDGED = "acknowledged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where to die: at the point of this name, or at the `ordinal`-th point reached (from 1). `note` is a
    file for its name."""

    point: str | None = None
    ordinal: int | None = None
    note: str | None = None


def point_name(entry: str, stage: Stage) -> str:
    """A point's name; an entry's name never contains the separator."""
    return f"{entry} @{stage}"


def entry_name(run_id: str, record: Record | StoredRecord) -> str:
    """An entry's name without its ordinal: the same in every execution of the same program."""
    transition = record.type if record.outcome is None else f"{record.type}:{record.outcome}"
    if record.type == RecordType.SUBMITTED:
        transition = RecordType.SUBMITTED
    key = operation_key(record.path, record.index)
    return _KEY_DIGEST.sub(r"\1", f"{run_id} {key} {transition} a{record.attempt}")


class Faults:
    """What one process has reached, in order, and where it dies. Used by its loop's and its writer's
    threads."""

    def __init__(self, target: Target | None = None) -> None:
        self._target = target or Target()
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._names: dict[int, tuple[object, str]] = {}
        self._reached: dict[str, None] = {}

    @property
    def trace(self) -> list[str]:
        """The points reached so far, each once."""
        with self._lock:
            return list(self._reached)

    def name(self, entry: str) -> str:
        """The entry's name with its ordinal, if it is not the first of this name in this process."""
        with self._lock:
            self._counts[entry] += 1
            count = self._counts[entry]
        return entry if count == 1 else f"{entry} #{count}"

    def forget(self, names: Iterable[str]) -> None:
        """Names of a transaction that was rolled back and is tried again."""
        with self._lock:
            for name in names:
                self._counts[name.partition(" #")[0]] -= 1

    def remember(self, thing: object, name: str) -> None:
        """What is written later is known by its identity; the reference keeps that from being used again."""
        self._names[id(thing)] = (thing, name)

    def name_of(self, thing: object) -> str:
        return self._names[id(thing)][1]

    def reached(self, names: Sequence[str], stage: Stage, *, hold_s: float = 0.0) -> None:
        """These entries are at this stage now; the process ends here if one of them is the target."""
        for name in names:
            point = point_name(name, stage)
            with self._lock:
                if point in self._reached:
                    continue
                self._reached[point] = None
                is_due = point == self._target.point or len(self._reached) == self._target.ordinal
            if is_due:
                self._die(point, hold_s)

    def _die(self, point: str, hold_s: float) -> None:
        time.sleep(hold_s)
        if self._target.note is not None:
            Path(self._target.note).write_text(point)
        os.kill(os.getpid(), signal.SIGKILL)
        # The signal may be taken by another thread; this one must not get any further meanwhile.
        while True:
            signal.pause()


class FaultDriver:
    """A driver in which a process can die before and after each transaction. Everything else is the
    driver's own."""

    def __init__(self, driver: Driver, faults: Faults) -> None:
        self._driver = driver
        self._faults = faults
        self.unacknowledged: dict[Lane, list[str]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    def write(self, batches: Sequence[Batch], *, is_inline: bool = False) -> None:
        names = [self._names(batch) for batch in batches]
        self._faults.reached([name for of_batch in names for name in of_batch], Stage.ENQUEUED, hold_s=HOLD_S)
        self._driver.write(batches, is_inline=is_inline)
        written: list[str] = []
        for batch, of_batch in zip(batches, names, strict=True):
            if batch.refusal is None:
                self.unacknowledged.setdefault(batch.lane, []).extend(of_batch)
                written += of_batch
        self._faults.reached(written, Stage.COMMITTED)

    def _names(self, batch: Batch) -> list[str]:
        if batch.create is None:
            return [self._faults.name_of(record) for record in batch.records]
        # The writer makes the first record of a new run itself.
        return [
            self._faults.name_of(batch.create),
            *(self._faults.name_of(record) for record in batch.records[1:]),
        ]

    def transact(self, work: Callable[[Session], T]) -> T:
        result = self._driver.transact(work)
        if isinstance(work, OutsideWrite):
            self._faults.reached(work.names, Stage.COMMITTED)
        return result


class OutsideWrite:
    """A write from outside a run. Its entries are named as they are written, in the transaction."""

    def __init__(self, work: Callable[[Session], Any], faults: Faults) -> None:
        self._work = work
        self._faults = faults
        self.names: list[str] = []

    def __call__(self, session: Session) -> Any:
        self._faults.forget(self.names)
        self.names = []
        return self._work(cast(Session, FaultSession(session, self)))

    def add(self, entry: str) -> None:
        name = self._faults.name(entry)
        self.names.append(name)
        self._faults.reached([name], Stage.ENQUEUED)


class FaultSession:
    """A session that tells what is written into the journal and to whom the worker rows belong."""

    def __init__(self, session: Session, write: OutsideWrite) -> None:
        self._session = session
        self._write = write

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def run(self, query: str, params: Params | None = None) -> int:
        count = self._session.run(query, params)
        if query in _NAMED_QUERIES:
            self._write.add(query)
        return count

    def insert_records(self, rows: Sequence[tuple[Any, ...]]) -> None:
        self._session.insert_records(rows)
        for row in rows:
            record = StoredRecord._make(row)
            self._write.add(entry_name(record.run_id, record))


class FaultStore(SqlStore):
    """A store whose process can die at every point."""

    def __init__(self, driver: Driver, faults: Faults) -> None:
        self.faults = faults
        self._fault_driver = FaultDriver(driver, faults)
        self._watched: set[Lane] = set()
        super().__init__(cast(Driver, self._fault_driver))

    def append(self, entry: Entry) -> None:
        lane, faults = entry.lane, self.faults
        if entry.create is not None:
            # Not counted: to create a run that exists is refused, which is no entry, and whether a person tries depends
            # on time.
            faults.remember(entry.create, entry_name(lane.run_id, Record(RecordType.SUBMITTED)))
        for record in entry.records:
            faults.remember(record, faults.name(entry_name(lane.run_id, record)))
        if lane not in self._watched:
            self._watched.add(lane)
            self._watch(lane)
        super().append(entry)

    def _watch(self, lane: Lane) -> None:
        tell = lane.on_commit

        def on_commit() -> None:
            if tell is not None:
                tell()
            names = self._fault_driver.unacknowledged.pop(lane, [])
            self.faults.reached(names, Stage.ACKNOWLEDGED)

        lane.on_commit = on_commit

    async def _write(self, work: Callable[[Session], T]) -> T:
        write = OutsideWrite(work, self.faults)
        result = await super()._write(write)
        self.faults.reached(write.names, Stage.ACKNOWLEDGED)
        return result


def open_faulty(url: str, faults: Faults) -> FaultStore:
    """Open the store at an absolute `sqlite:////path` or a `postgresql://` URL with points in it. Blocks."""
    return FaultStore(_driver(url), faults)


def _driver(url: str) -> Driver:
    if url.startswith("sqlite:///"):
        from perdure.store.sqlite import SqliteDriver  # only the driver that is used

        return SqliteDriver(url.removeprefix("sqlite:///"), url=url)
    from perdure.store.postgres import PostgresDriver  # optional dependency: perdure[postgres]

    return PostgresDriver(url)
