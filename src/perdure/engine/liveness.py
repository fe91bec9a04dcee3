"""Whether the owner of a run is dead, for somebody who looks once. Decides nothing that `core.leases` does not."""

from __future__ import annotations

import asyncio
import math
import time

from perdure.core.leases import LeaseWatch
from perdure.store.base import Store

_LOOK_S = 0.05


async def dead_owners(store: Store, worker_id: str | None) -> list[str]:
    """The worker, if it is dead; else nobody. Does not wait for a lease, but for the heartbeats that a worker must miss
    whose session is gone (below a second, on Postgres)."""
    if worker_id is None:
        return []
    watch = LeaseWatch(math.inf, store.missed_s)
    while True:
        worker = next((each for each in await store.worker_list() if each.worker_id == worker_id), None)
        if worker is None:
            return [worker_id]
        proof = await store.worker_probe(worker)
        if watch.is_dead(worker, proof, time.monotonic()):
            return [worker_id]
        if proof != "lost":
            return []
        await asyncio.sleep(_LOOK_S)
