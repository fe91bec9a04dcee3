"""What tests of the store say often: records, runs, and an owner that writes and waits like the engine does."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from perdure.core.records import Claim, NewRun, Question, Record, RunChange, WorkerRow
from perdure.store.base import Entry, Lane, Store
from perdure.store.driver import boot_id, host_name

WORKER = "worker-1"
HOST, BOOT = host_name(), boot_id()


def new_run(run_id: str, **values: Any) -> NewRun:
    """A run of runner `review`, owned by `WORKER`."""
    given: dict[str, Any] = {
        "root_id": run_id, "runner": "review", "kind": "workflow", "version": None, "input_digest": "d1",
        "input_data": '{"claim":17}', "worker_id": WORKER,
    }  # fmt: skip
    return NewRun(run_id=run_id, **(given | values))


def completed(index: int, data: str = '"done"', **values: Any) -> Record:
    """A completed step."""
    given: dict[str, Any] = {"kind": "step", "name": "check", "outcome": "value", "data": data}
    return Record(type="completed", index=index, **(given | values))


def question(interrupt_id: str, **values: Any) -> Question:
    """A question asked at operation 0."""
    given: dict[str, Any] = {
        "path": "", "index": 0, "slot": "0", "reason": '"approve?"', "context": '{"amount":5}', "digest": "q1",
        "bind": False,
    }  # fmt: skip
    return Question(interrupt_id=interrupt_id, **(given | values))


def worker_row(worker_id: str, **values: Any) -> WorkerRow:
    """A worker of this machine."""
    given: dict[str, Any] = {
        "host": HOST, "boot_id": BOOT, "pid": 1, "beat": 0, "lock": None, "started_at": 0.0,
        "ended_at": None,
    }  # fmt: skip
    return WorkerRow(worker_id=worker_id, **(given | values))


@dataclass(slots=True, eq=False)
class Owner:
    """Owns one run and writes to it. `told` lists what the store has called back, in order."""

    store: Store
    lane: Lane
    told: list[str] = field(default_factory=list)
    _waiting: list[tuple[int, asyncio.Future[None]]] = field(default_factory=list)

    async def write(self, *records: Record, **parts: Any) -> int:
        """Append one entry and wait until it is durable; raises what the lane was refused with. Returns its number."""
        return await self.wait(self.append(*records, **parts))

    def append(self, *records: Record, **parts: Any) -> int:
        """Append one entry and do not wait."""
        entry = Entry(lane=self.lane, records=records, **parts)
        self.store.append(entry)
        return entry.n

    async def wait(self, n: int) -> int:
        """Until entry `n` is durable."""
        if self.lane.refused is not None:
            raise self.lane.refused
        if self.lane.committed < n:
            future = asyncio.get_running_loop().create_future()
            self._waiting.append((n, future))
            await future
        return n

    async def end(self, status: str, *records: Record, **values: Any) -> str | None:
        """Write a change that gives the run back; returns the status really written."""
        await self.write(
            *records,
            Record(type="status", outcome=status),
            change=RunChange(status=status, is_release=True, **values),
        )
        return self.lane.final_status

    def on_commit(self) -> None:
        self.told.append("commit")
        for n, future in self._waiting:
            if n <= self.lane.committed and not future.done():
                future.set_result(None)
        self._waiting = [pair for pair in self._waiting if not pair[1].done()]

    def on_refused(self, error: BaseException) -> None:
        self.told.append("refused")
        for _, future in self._waiting:
            if not future.done():
                future.set_exception(error)
        self._waiting = []


def owner(store: Store, run_id: str, *, worker_id: str = WORKER, fence: int = 1, root_id: str | None = None) -> Owner:
    """The owner of a run under a fence it says it has."""
    lane = Lane(
        run_id=run_id,
        root_id=root_id or run_id,
        worker_id=worker_id,
        fence=fence,
        loop=asyncio.get_running_loop(),
    )
    found = Owner(store, lane)
    lane.on_commit, lane.on_refused = found.on_commit, found.on_refused
    return found


def owner_of(store: Store, claim: Claim, worker_id: str) -> Owner:
    """The owner of a run just claimed."""
    return owner(store, claim.run_id, worker_id=worker_id, fence=claim.fence, root_id=claim.root_id)


async def created(store: Store, run_id: str, **values: Any) -> Owner:
    """A new run with its `submitted` record, owned by `WORKER`, whose row exists."""
    await register(store, WORKER)
    run = new_run(run_id, **values)
    found = owner(store, run_id, root_id=run.root_id)
    await found.write(create=run)
    return found


async def register(store: Store, worker_id: str) -> None:
    """The worker's row, once."""
    if all(row.worker_id != worker_id for row in await store.worker_list()):
        await store.worker_register(worker_row(worker_id))


async def waiting(store: Store, run_id: str, *interrupt_ids: str) -> None:
    """A run nobody owns that waits for answers."""
    asked = await created(store, run_id)
    await asked.write(
        Record(type="suspended", kind="step", name="check"),
        questions=[question(name) for name in interrupt_ids],
    )
    assert await asked.end("waiting") == "waiting"


async def types(store: Store, run_id: str) -> list[str]:
    """What the journal says, `status` records with their status."""
    return [
        f"{record.type}:{record.outcome}" if record.type == "status" else record.type
        for record in await store.record_list(run_id)
    ]
