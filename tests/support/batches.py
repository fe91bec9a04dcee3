"""Batches for tests of a driver: lanes that number their entries, and records that need no engine."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from perdure.core.records import NewRun, Question, Record, RunChange
from perdure.store.base import Lane
from perdure.store.driver import Batch, Driver


def lane(run_id: str | None = None, *, worker_id: str = "w1", fence: int = 1, root_id: str | None = None) -> Lane:
    """The end of one claim. Without an id a new one."""
    run_id = run_id or str(uuid.uuid4())
    return Lane(run_id=run_id, root_id=root_id or run_id, worker_id=worker_id, fence=fence)


def batch(lane: Lane, records: Sequence[Record] | int = 1, **beside: Any) -> Batch:
    """The lane's next entry; a number stands for so many plain records."""
    if isinstance(records, int):
        records = [step(n) for n in range(records)]
    lane.enqueued += 1
    return Batch(lane, lane.enqueued, lane.enqueued, list(records), **beside)


def creation(lane: Lane, records: int = 0) -> Batch:
    """The lane's first entry, which creates its run."""
    new = NewRun(
        run_id=lane.run_id,
        root_id=lane.root_id,
        runner="runner",
        kind="workflow",
        version=None,
        input_digest="digest",
        input_data="{}",
        worker_id=lane.worker_id,
    )
    return batch(lane, [Record("submitted", data="{}"), *(step(n) for n in range(records))], create=new)


def started(driver: Driver, **names: Any) -> Lane:
    """A lane whose run exists."""
    fresh = lane(**names)
    write(driver, creation(fresh))
    return fresh


def write(driver: Driver, *batches: Batch) -> None:
    """Write a group of which nothing may be refused."""
    driver.write(batches)
    for one in batches:
        if one.refusal is not None:
            raise one.refusal


def step(n: int, data: str | None = '{"ok":true}') -> Record:
    """A record with something in every column."""
    return Record("completed", "", n, "step", "trivial", "d" * 64, "idempotent", 1, "value", data, 0.5, 0.25, "{}")


def change(status: str, *, is_release: bool = True) -> tuple[Record, RunChange]:
    """The `status` record of a change, and the change."""
    return Record("status", outcome=status), RunChange(status=status, is_release=is_release)


def question(run_id: str, n: int = 0) -> Question:
    """A question of this run."""
    return Question(
        interrupt_id=f"{run_id}:{n}",
        path="",
        index=n,
        slot="0",
        reason='"why"',
        context="{}",
        digest="digest",
        bind=False,
    )
