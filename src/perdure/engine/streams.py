"""Streams of committed events. Reads rows and nothing else (law 1): what a stream has shown is durable."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from perdure.core import codec, keys
from perdure.core.records import RecordType, StoredRecord
from perdure.core.states import is_terminal
from perdure.errors import ChainCheckpointError
from perdure.store.base import Store

_PAGE = 500
_POLL_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A committed fact. `data` has what the type implies: `operation`, `kind` and `name` of an operation, `attempt`
    from the second on, `outcome` or `status`, `data` (decoded: a value, an error, an input), `wait_s`."""

    sequence: int
    run_id: str
    type: str
    data: dict[str, Any] = field(default_factory=dict)
    created_at: float = 0.0


def event_of(record: StoredRecord) -> Event:
    """A record as it is shown."""
    data: dict[str, Any] = {}
    if record.type not in (RecordType.SUBMITTED, RecordType.STATUS, RecordType.ANSWERED, RecordType.CANCEL):
        data["operation"] = keys.operation_key(record.path, record.index)
        data.update({"kind": record.kind, "name": record.name})
    if record.attempt > 1:
        data["attempt"] = record.attempt
    if record.outcome is not None:
        data["status" if record.type == RecordType.STATUS else "outcome"] = record.outcome
    if record.data is not None:
        data["data"] = codec.decode(record.data)
    if record.wait_s is not None:
        data["wait_s"] = record.wait_s
    return Event(sequence=record.seq, run_id=record.run_id, type=record.type, data=data, created_at=record.at)


async def stream(store: Store, run_id: str, after: int = 0) -> AsyncIterator[Event]:
    """Events with `sequence > after`, ascending, without gaps or repetitions; waits for more until the run has ended.

    Raises `ChainCheckpointError` for an unknown run, `TypeError` for a cursor that is negative, not an int, or ahead
    of the store.
    """
    if type(after) is not int or after < 0:
        raise TypeError(f"after must be an int of at least 0, not {after!r}")
    row = await store.run_get(run_id)
    if row is None:
        raise ChainCheckpointError(f"no run {run_id}")
    if after > row.seq:
        raise TypeError(f"after={after} is ahead of run {run_id}, which is at {row.seq}")
    loop = asyncio.get_running_loop()
    news = asyncio.Event()

    def tell() -> None:
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(news.set)

    unsubscribe = store.subscribe(tell)
    try:
        while True:
            news.clear()
            row = await store.run_get(run_id)
            records = await store.record_list(run_id, after=after, limit=_PAGE)
            for record in records:
                after = record.seq
                yield event_of(record)
            if records:
                continue
            if row is None or is_terminal(row.status):
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(news.wait(), _POLL_S)
    finally:
        unsubscribe()
