"""What a database driver must do for `SqlStore` and its writer. Decides the port and the errors that cross
it; no SQL here.

A driver owns its connections. It has one *write* connection, used by one thread at a time (`Writer`
serialises), and as many *read* connections as it likes (`read` may be called from many threads at once).
Everything here blocks: callers are threads.

Queries are named. `queries.load(dialect)` reads `sql/common/*.sql` and `sql/<dialect>/*.sql` (a dialect's
query wins over a common one of the same name). Parameters are `:name`; values are str, int, float, bool, None
or a list of str. A list reaches SQLite as a JSON array (`json_each(:ids)`) and Postgres as `text[]` (`=
ANY(:ids)`).

Each dialect provides what must differ: the conditions `is_runner`, `is_named`, `owner_is_listed` (lists), and
what locks: `run_lock` (columns `{run}`, parameter `:id`; the root's row is locked before the run's),
`run_lock_free` (of `:run_ids` those that nobody has locked), `run_lock_owned` (id, root and status of a
worker's runs) and `run_lock_below` (columns `{run}` of all runs below the roots `:run_ids`), all ascending;
`execution_lock` (`:id`; never before a run's); `checkpoint_insert`, since what people see of a checkpoint is
kept differently. The common queries use `TRUE` and `FALSE`, `CAST(... AS text)`, row values and
`RETURNING`.

Driver exceptions never cross: each becomes a `PerdureError` of `errors.py`, or one of the two below.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Protocol, TypeVar

from perdure.core.records import NewRun, Question, Record, RecordType, RunChange, WorkerRow
from perdure.core.states import TRANSITIONS, Status, is_terminal
from perdure.errors import AlreadyResumed, DurableConflictError, RunLost
from perdure.store import rows
from perdure.store.base import Lane

T = TypeVar("T")
Params = Mapping[str, Any]


class StoreBusy(Exception):
    """Nothing was written because somebody else has the lock (or the database asks to try again). Try
    again."""


class StoreLost(Exception):
    """The connection broke. `is_ambiguous`: COMMIT may have been sent, so it is not known whether all or
    nothing is stored.

    The driver has thrown the connection away and connects afresh at the next call.
    """

    def __init__(self, message: str, *, is_ambiguous: bool) -> None:
        super().__init__(message)
        self.is_ambiguous = is_ambiguous


@dataclass(slots=True, eq=False)
class Batch:
    """All entries of one lane in a group, in order. A lane has at most one batch in a group, and `change` is
    of the last entry.

    The first record of a created run is its `submitted` record already. `seq`, `status` and `refusal` are the
    driver's reply; they count only once `Driver.write` has returned.
    """

    lane: Lane
    first_n: int
    last_n: int
    records: list[Record]
    change: RunChange | None = None
    create: NewRun | None = None
    questions: list[Question] = field(default_factory=list)
    delivered: list[str] = field(default_factory=list)
    abandoned: list[str] = field(default_factory=list)
    status: str | None = None
    """What `change` really wrote; of a batch found stored already, the status the run has."""
    refusal: BaseException | None = None
    """`RunLost` (stale fence), `DurableConflictError` (run id taken) or `AlreadyResumed` (this run was there, and was
    pruned): nothing of this batch was stored; the others were."""


class Session(Protocol):
    """One connection inside one transaction. Rows are tuples in the order of the query's columns; `rows.py`
    names them."""

    @property
    def now(self) -> float:
        """The database's clock at the begin of the transaction, epoch seconds."""
        ...

    def all(self, query: str, params: Params | None = None) -> list[tuple[Any, ...]]:
        """All rows of the query of this name."""
        ...

    def one(self, query: str, params: Params | None = None) -> tuple[Any, ...] | None:
        """The first row, or None."""
        ...

    def run(self, query: str, params: Params | None = None) -> int:
        """Execute; returns the number of rows changed."""
        ...

    def many(self, query: str, params: Sequence[Params]) -> None:
        """Execute once per element, as cheaply as the database can."""
        ...

    def insert_records(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """Insert journal rows, each a tuple in the order of `StoredRecord`'s fields (= the columns of table
        `record`)."""
        ...


class Driver(Protocol):
    """One database. See the module docstring for threads and errors."""

    url: str
    kind: str
    """`sqlite` or `postgres`: also the name of the directories with its SQL."""
    can_inline: bool
    beat_s: float
    """At most this long between two heartbeats."""
    missed_s: float
    """How long a counter must stand still before `worker_probe`'s `lost` is believed to be death."""
    """Whether `write` in the caller's thread is cheap and never waits for a lock when `is_inline`."""

    def setup(self) -> int | None:
        """Create the schema or migrate it, safe against other processes doing the same. Returns the version it had
        before, 0 for a new one, None if it has none. `DurableStorageError` if it is newer."""
        ...

    def write(self, batches: Sequence[Batch], *, is_inline: bool = False) -> None:
        """Commit a group in one transaction and fill in the batches' replies.

        Locks all roots ascending, then all runs ascending. A batch is written only if the run's (fence,
        worker_id) are its lane's and `entry_n < first_n`; then `entry_n = last_n`. A batch in
        doubt (its commit was tried before and ended in an ambiguous `StoreLost` or an interrupt) that is
        found stored (same fence, `entry_n >= last_n`) is left alone and counts as written. Everybody else is
        refused. Only doubt allows that: two lanes may claim to have created the same run. Sequence numbers
        come from the root's row.
        `questions`, `abandoned`, `delivered`, `change`, in this order; `settle` decides the status.

        Raises (nothing stored, no reply valid): `StoreBusy`; `StoreLost`; `DurableConflictError`,
        `DurableLimitError`, `SerializationError` or `InvalidInputError` if some batch's content cannot be
        stored (the writer finds out whose); `DurableStorageError` if nothing can be stored (disk full, read
        only, I/O error, corrupt).
        """
        ...

    def transact(self, work: Callable[[Session], T]) -> T:
        """Run `work` in one write transaction on the write connection; rolled back if it raises. Errors as of
        `write`."""
        ...

    def read(self, work: Callable[[Session], T]) -> T:
        """Run `work` in one read-only snapshot on a read connection. May be called from many threads. Errors
        as of `write`."""
        ...

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` (in a thread of the driver's) soon after another process committed; returns what
        stops it.

        Called by `SqlStore` only while there are subscribers, and at most once at a time.
        """
        ...

    def reclaim(self) -> None:
        """Give room that was freed back to the system, as far as that holds up nobody. Called in any thread, never
        inside a transaction; nothing is lost if it does nothing."""
        ...

    def worker_lock(self, worker_id: str) -> str:
        """Take what proves that this worker lives; returns its name for the row's `lock`. Before the row is
        inserted."""
        ...

    def worker_unlock(self, worker_id: str) -> None:
        """Give it back and remove what is left of it. Nothing happens if this process does not hold it."""
        ...

    def worker_sweep(self, worker: WorkerRow) -> None:
        """Remove what is left of the lock of a worker proven dead or ended. Never takes a held lock away."""
        ...

    def worker_probe(self, worker: WorkerRow) -> str:
        """`dead`, `lost`, `alive` or `unknown`; see `WorkerStore.worker_probe`."""
        ...

    def worker_beat(self, worker_id: str) -> bool:
        """Execute query `worker_beat` on a connection of its own with a short timeout. False if ended or
        gone. Raises `DurableStorageError` if it could not be counted."""
        ...

    def abandon(self) -> None:
        """In a child made by `fork()`: let go of inherited locks without giving them back for the parent, and
        use no inherited connection again (closing one would speak for the parent too)."""
        ...

    def close(self) -> None:
        """Close all connections and release all locks. Idempotent."""
        ...


def host_name() -> str:
    """Name of this machine, for `WorkerRow.host`."""
    return socket.gethostname()


@cache
def boot_id() -> str:
    """Identifies this boot of this machine, for `WorkerRow.boot_id`; empty if the system does not tell.

    Reads a file the first time: not for event loops.
    """
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""


def settle(change: RunChange, *, is_cancel_requested: bool, has_undelivered: bool) -> str:
    """The status that `change` really writes, under the run's lock. Shared by the drivers so that they cannot
    differ.

    A cancel that came before the end wins over it (law 13), and over `needs_attention`, which nobody would
    claim. A run does not go to sleep over an answer or a cancel.
    """
    if is_cancel_requested:
        if is_terminal(change.status) or change.status == Status.NEEDS_ATTENTION:
            return Status.CANCELLED.value
        if change.status in (Status.WAITING, Status.RETRY_WAIT):
            return Status.PENDING.value
    if has_undelivered and change.status == Status.WAITING:
        return Status.PENDING.value
    return str(change.status)


def may_settle(old: str, new: str) -> bool:
    """Whether the owner of a run in status `old` may write `new`. An owned run that is not over counts as
    running: answers from outside may have made its sleep `pending` meanwhile."""
    return not is_terminal(old) and new in TRANSITIONS[Status.RUNNING]


def refusal_of_missing(batch: Batch, tombstone: Sequence[Any] | None) -> BaseException:
    """Why a batch was not written whose run is not in the store; `tombstone` is the row of `{tombstone}` if it was
    pruned. Shared by the drivers."""
    run_id, new = batch.lane.run_id, batch.create
    if new is None:
        return RunLost(run_id, "it is not in the store")
    if tombstone is None:
        # Somebody else had created it, and it is gone already.
        return DurableConflictError(f"run {run_id} exists already")
    pruned = rows.tombstone(tombstone)
    if (pruned.runner, pruned.input_digest) == (new.runner, new.input_digest):
        return AlreadyResumed(
            run_id,
            f"run {run_id} was {pruned.status} and has been pruned: its result is gone, and it is not done again; "
            "to run it once more use another id",
        )
    return DurableConflictError(
        f"run id {run_id} was used by {pruned.runner!r} with other input, and has been pruned; use another id"
    )


def settled_records(batch: Batch) -> list[Record]:
    """The batch's records, with the `status` record of its change telling what was really written."""
    change, status = batch.change, batch.status
    if change is None or status == change.status:
        return batch.records
    return [
        record._replace(outcome=status)
        if record.type == RecordType.STATUS and record.outcome == change.status
        else record
        for record in batch.records
    ]
