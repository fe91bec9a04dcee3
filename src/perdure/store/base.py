"""The ports of the store: what the engine may ask of it, one protocol per concern. Method name == query == contract
test.

Threads: every `async` method may be awaited from any event loop and never blocks it (law 12). `append` may be called
from any thread and returns at once. All writes of a process go through one queue per store; the writer commits what
is there as one group, in the order of arrival, and then tells the lanes.

Fences (law 3): a `Lane` is the writer's end of one claim. An entry is written only while its lane's (fence, worker)
is the one stored in the run's row; otherwise the lane is *refused*: this entry and everything later of the lane is
dropped and `on_refused` is called once. Nothing of a refused entry is stored.

The last three protocols are for callers without a loop: their methods block, in any thread.

Errors of the outside writes are typed (`perdure.errors`) and leave nothing stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from perdure.core.records import (
    Claim,
    Facts,
    InterruptRow,
    Loaded,
    NewRun,
    Question,
    Record,
    RunChange,
    RunFilter,
    RunRow,
    StoredRecord,
    WorkerRow,
)
from perdure.store.kept import (
    Execution,
    KeptCheckpoint,
    KeptQuestion,
    OpenQuestion,
    Pruned,
    PruneRequest,
    Tombstone,
    Unsynced,
)


@dataclass(slots=True, kw_only=True, eq=False)
class Lane:
    """The writer's end of one claimed run: numbers its entries, knows what is durable and whether the run was lost.

    `enqueued` and `committed` count entries (n starts at 1 with each claim). `on_commit` and `on_refused` are called
    in `loop`, after a group, once per group and lane. Without a loop (sync callers) only the counters and
    `wait_committed` work.
    """

    run_id: str
    root_id: str
    worker_id: str
    fence: int
    loop: asyncio.AbstractEventLoop | None = None
    on_commit: Callable[[], None] | None = None
    on_refused: Callable[[BaseException], None] | None = None
    enqueued: int = 0
    committed: int = 0
    final_status: str | None = None
    """Status the last committed `RunChange` really wrote (waiting may have become pending, a terminal one
    cancelled)."""
    refused: BaseException | None = None
    waiters: list[object] = field(default_factory=list)
    """Owned by the writer: threads blocked in `Writer.wait_committed`."""


@dataclass(slots=True, kw_only=True, eq=False)
class Entry:
    """What is written together or not at all: records, and what they change beside the journal."""

    lane: Lane
    n: int = 0
    records: Sequence[Record] = ()
    change: RunChange | None = None
    questions: Sequence[Question] = ()
    delivered: Sequence[str] = ()
    """Interrupt ids whose answer has entered the run with this entry."""
    abandoned: Sequence[str] = ()
    """Interrupt ids which the code no longer waits for: what has not entered the run does not any more, unless a retry
    asks again. Wins over `delivered`."""
    create: NewRun | None = None
    """Insert the run (status running, owned by the lane's worker, fence of the lane) with its `submitted` record first.

    If the id exists already the lane is refused with `DurableConflictError`; if it is that of a run that was pruned,
    with `AlreadyResumed` (same runner and input) or `DurableConflictError`.
    """


class JournalStore(Protocol):
    """Drives one run. Small, so that an adapter over a third-party checkpointer can implement it."""

    def append(self, entry: Entry) -> None:
        """Number the entry and put it in the queue. Never blocks. Dropped silently if the lane was refused."""
        ...

    def flush_inline(self) -> None:
        """Commit what is queued in the calling thread, if the store can do so without waiting for a lock; else leave it
        to the writer thread. For callers that own their loop (sync `run()`), never called otherwise."""
        ...

    def wait_committed(self, lane: Lane, n: int) -> None:
        """Block the calling thread until entry `n` is durable. Raises what the lane was refused with. Not for loops."""
        ...

    async def run_load(self, run_id: str) -> Loaded:
        """Everything replay needs, in one snapshot, records ascending. `DurableNotFoundError` if unknown."""
        ...

    async def interrupt_answer(
        self,
        run_id: str,
        answers: Mapping[str, str],
        *,
        answered_by: str | None = None,
        records: Sequence[Record] = (),
        now: float | None = None,
    ) -> RunRow:
        """Store answers (interrupt id -> encoded Resume) and make the run runnable, in one transaction (law 4).
        `records` (a patch of the state) go before the answers, and only into a run that nobody lives who owns:
        `RunBusy` if somebody does.

        Every id must be an open question of the run, else nothing is stored: `DurableNotFoundError` for an id that is
        not the run's, `AlreadyResumed` if it is not open or the run is terminal. `waiting` becomes
        `pending`; epoch+1; an `answered` record per answer (data: encoded {"interrupt_id", "answered_by"}).
        """
        ...


class RunStore(Protocol):
    """Runs, from outside: no fence, but the same locks."""

    async def run_get(self, run_id: str) -> RunRow | None: ...

    async def run_list(self, runs: RunFilter) -> list[RunRow]:
        """Newest first, at most `limit`."""
        ...

    async def run_claim(
        self,
        worker_id: str,
        *,
        run_ids: Sequence[str] | None = None,
        runners: Sequence[str] | None = None,
        dead_workers: Sequence[str] = (),
        limit: int = 1,
        now: float | None = None,
    ) -> list[Claim]:
        """Take runnable runs, oldest first: fence+1, owner, status running, `status` record. Nobody else gets them.

        Runnable: queued or pending; waiting or retry_wait and due; running with an owner among `dead_workers`, or
        whose owner's worker row is ended or gone. `run_ids` restricts to these (and then also takes waiting ones that
        are not due when something undelivered or a cancel is there). `runners` restricts to runs of these runner
        names. On Postgres candidates are picked without locks, then root then run are locked SKIP LOCKED and the
        condition is checked again.
        """
        ...

    async def run_due_in(self, runners: Sequence[str] | None = None) -> float | None:
        """Seconds until the next waiting run is due (0 if something is runnable now), None if nothing is scheduled."""
        ...

    async def run_running_count(self, runners: Sequence[str] | None = None, *, except_worker: str | None = None) -> int:
        """How many runs of these runners are being run, by others than this worker."""
        ...

    async def run_cancel(
        self, run_id: str, *, cancelled_by: str | None = None, dead_workers: Sequence[str] = ()
    ) -> RunRow:
        """Ask a run to be cancelled: durable at once. Nobody's run, and that of an owner among `dead_workers`, becomes
        cancelled in the same transaction (questions are withdrawn); an owned one is marked, and whatever its owner
        writes as its end becomes cancelled.
        Terminal: unchanged. `DurableNotFoundError` if unknown."""
        ...

    async def run_retry(self, run_id: str, drops: Sequence[Record]) -> RunRow:
        """A failed run becomes pending again: `dropped` (and `patched`) records appended, attempt+1, withdrawn and
        abandoned questions open again under their ids (answered ones are undelivered again).
        Any other status: `RunBusy` if it is owned, `AlreadyResumed` if completed or cancelled."""
        ...

    async def run_repeat(self, run_id: str, record: Record) -> RunRow:
        """A run that needs attention becomes pending with a person's decision (`repeat` record)."""
        ...

    async def run_reopen(self, run_id: str, records: Sequence[Record] = ()) -> RunRow:
        """needs_attention -> pending without a decision (the code was mended), after these records (a patch of the
        state). Other statuses unchanged, and nothing appended."""
        ...

    async def run_patch(self, run_id: str, records: Sequence[Record]) -> RunRow:
        """Append records to a run that is not over and that nobody lives who owns; its status stays.
        `AlreadyResumed` if it is completed or cancelled; `RunBusy` if it has failed, or has an owner."""
        ...

    async def run_fork(self, new: NewRun, records: Sequence[Record], interrupts: Sequence[InterruptRow]) -> None:
        """Create an independent run (owned as in `new`, fence 1) that begins with these records and answered
        questions, in one transaction. `DurableConflictError` if the id exists."""
        ...

    async def facts(self, worker_id: str) -> Facts:
        """Answers not yet delivered and cancel requests of all runs this worker owns."""
        ...


class EventStore(Protocol):
    """The journal as a stream."""

    async def record_list(self, run_id: str, *, after: int = 0, limit: int = 1000) -> list[StoredRecord]:
        """Committed records with `seq > after`, ascending. A reader that has seen n never misses n-1."""
        ...

    async def interrupt_list(
        self, *, run_id: str | None = None, status: str | None = "pending", limit: int = 100
    ) -> list[InterruptRow]:
        """Questions, oldest first; `status=None` for all. Questions of terminal runs are `withdrawn`, so not
        pending."""
        ...

    def subscribe(self, callback: Callable[[], None], *, is_foreign_only: bool = False) -> Callable[[], None]:
        """Call `callback` (in any thread) soon after anything was committed, by this process or another; returns the
        unsubscribe function. A floor under it polls, so a lost notification costs at most the poll interval. Own
        commits are told at once, with nothing polled."""
        ...


class WorkerStore(Protocol):
    """Workers: who is alive. The decision is in `core.leases`; here are the facts."""

    async def worker_register(self, worker: WorkerRow) -> WorkerRow:
        """Insert the row and take what proves life (SQLite: flock on a file beside the database, lock first, then the
        row; Postgres: advisory lock on a connection of its own). `lock` in the returned row names it."""
        ...

    def worker_beat(self, worker_id: str) -> bool:
        """Count one heartbeat (sync: called from the heartbeat thread, own connection). False if the row is
        ended/gone."""
        ...

    async def worker_list(self) -> list[WorkerRow]:
        """Workers not ended, with the number of running runs they own."""
        ...

    async def worker_probe(self, worker: WorkerRow) -> str:
        """`dead` (proven by this machine's kernel: the lock file is free; host, boot id and inode agree), `lost` (its
        session on the server has ended, which happens to the living, too), `alive` (a lock is held) or `unknown`."""
        ...

    async def worker_end(self, worker_id: str) -> int:
        """Mark a worker ended: own clean shutdown, or a dead one's funeral. Its running runs become pending.
        Idempotent. Returns how many runs were released."""
        ...


class Store(JournalStore, RunStore, EventStore, WorkerStore, Protocol):
    """What `open_store(url)` returns."""

    url: str
    kind: str
    beat_s: float
    """At most this long between two heartbeats of a worker."""
    missed_s: float
    """How long the heartbeat of a worker must be missing that has `lost` its lock."""

    async def close(self) -> None:
        """Flush the queue, stop the writer, close connections, release locks. Idempotent."""
        ...


class CheckpointStore(Protocol):
    """What people keep by hand: `SqlStore.checkpoints`. Texts are encoded values, kept exactly.

    An execution is there from its first checkpoint (or key) on. It has no row in `run`, and no worker ever claims it.
    All methods block.
    """

    def checkpoint_put(self, row: KeptCheckpoint, question: KeptQuestion | None = None) -> None:
        """Store a checkpoint as the execution's last, and its question, in one transaction. Questions of the execution
        that were claimed before are answered with it. `DurableConflictError` if the id of either exists, nothing is
        stored then; a checkpoint in the journal of a run counts, too."""
        ...

    def checkpoint_get(self, run_id: str, checkpoint_id: str) -> KeptCheckpoint | None: ...

    def execution_load(self, run_id: str, *, limit: int, is_newest: bool = False) -> Execution:
        """The run of this id, if there is one, and at most `limit` kept checkpoints, ascending: the oldest, or the
        newest."""
        ...

    def write_put(self, run_id: str, checkpoint_id: str, writes: Sequence[str]) -> None:
        """Keep what a step wrote, behind what is kept there. `DurableNotFoundError` if there is no such checkpoint,
        kept or in the run's journal."""
        ...

    def write_list(self, run_id: str, checkpoint_id: str) -> list[str]: ...

    def pending_list(self, *, limit: int, now: float | None = None) -> list[OpenQuestion]:
        """Open questions that nobody has claimed within the last minute, of runs and kept, oldest first."""
        ...

    def pending_claim(self, run_id: str, *, now: float | None = None) -> OpenQuestion | None:
        """Claim the oldest such question of an execution: of all callers, one gets it. The row stays.

        The claim is over after a minute; then the next caller gets the question, unless it was answered meanwhile: that
        of a run by the engine, which takes answers whoever has claimed, a kept one by the execution's next
        checkpoint."""
        ...

    def idempotent_get(self, run_id: str, key: str) -> str | None: ...

    def idempotent_put(self, run_id: str, key: str, data: str) -> None:
        """Keep a result. The first one stays."""
        ...


class MaintenanceStore(Protocol):
    """Deleting: `SqlStore.maintenance`. All methods block."""

    def execution_delete(self, run_id: str) -> None:
        """Delete a run with all runs below it, or a kept execution, in one transaction; no tombstone is left. Paused
        runs go with their questions. `RunBusy` if one of them is owned by a living worker, or will go on by itself;
        nothing happens for an unknown id."""
        ...

    def prune(self, request: PruneRequest, *, now: float | None = None) -> Pruned:
        """Delete what is over and old enough, whole trees of runs at a time, each in one transaction, in which its
        tombstones are made. What has failed goes only if asked for. Nothing that could go on is touched: runs that are
        live, asleep, paused or in doubt, and the trees they are in. That is checked again under the locks."""
        ...

    def tombstone_get(self, run_id: str) -> Tombstone | None:
        """What is left of a pruned run."""
        ...


class ReplicaStore(Protocol):
    """The outbox of a connected plane: `SqlStore.replica`. All methods block; calling one twice does no harm."""

    def unsynced_list(self, *, limit: int, project_id: str | None = None) -> list[Unsynced]:
        """At most `limit` checkpoints that were neither acknowledged nor set aside: oldest execution first, and in each
        in the order of its commits."""
        ...

    def synced_mark(self, checkpoint_ids: Sequence[str]) -> None:
        """The plane has these. Unknown ids are passed over."""
        ...

    def quarantine_mark(self, reasons: Mapping[str, str]) -> None:
        """The plane will never take these, by id, and why. They are not listed again."""
        ...

    def quarantine_list(self, run_id: str) -> dict[str, str]:
        """What was set aside of an execution, by checkpoint id, and why."""
        ...
