"""Decides when a worker has lost its runs. Pure: heartbeat counters and the observer's own monotonic clock come in.

No clock of one machine is compared with one of another: a lease is over when *this* observer has seen the counter
stand still for a whole lease of its own time.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from perdure.core.records import WorkerRow


@dataclass(slots=True)
class Sighting:
    """A counter, and since when this observer has seen it so."""

    beat: int
    since_s: float


@dataclass(slots=True)
class LeaseWatch:
    """What one observer has seen of its peers."""

    lease_s: float
    missed_s: float
    """How long the counter of a worker that has `lost` its lock must stand still (two heartbeats)."""
    seen: dict[str, Sighting] = field(default_factory=dict)

    def observe(self, worker: WorkerRow, now_s: float) -> float:
        """Take a look at a worker; returns for how long its counter has stood still."""
        sighting = self.seen.get(worker.worker_id)
        if sighting is None or sighting.beat != worker.beat:
            self.seen[worker.worker_id] = Sighting(worker.beat, now_s)
            return 0.0
        return now_s - sighting.since_s

    def is_dead(self, worker: WorkerRow, proof: str, now_s: float) -> bool:
        """Whether its runs may be taken: proven dead, without its lock and silent, or silent for a whole lease."""
        silent_s = self.observe(worker, now_s)
        if proof == "dead" or (proof == "lost" and silent_s >= self.missed_s):
            return True
        return silent_s >= self.lease_s

    def forget(self, worker_ids: set[str]) -> None:
        """Keep only the workers that still exist."""
        for worker_id in list(self.seen):
            if worker_id not in worker_ids:
                del self.seen[worker_id]
