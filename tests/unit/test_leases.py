"""When a worker has lost its runs: counters and the observer's own clock, nothing else."""

from __future__ import annotations

from perdure.core.leases import LeaseWatch
from perdure.core.records import WorkerRow


def worker(beat: int, worker_id: str = "w1", started_at: float = 0.0) -> WorkerRow:
    return WorkerRow(
        worker_id=worker_id,
        host="h",
        boot_id="b",
        pid=1,
        beat=beat,
        lock=None,
        started_at=started_at,
        ended_at=None,
    )


def watch(missed_s: float = 0.0) -> LeaseWatch:
    return LeaseWatch(lease_s=10.0, missed_s=missed_s)


def test_a_counter_that_stands_still_for_a_whole_lease_of_the_observers_time_is_dead():
    leases = watch()
    assert not leases.is_dead(worker(1), "unknown", 100.0)
    assert not leases.is_dead(worker(1), "unknown", 109.9)
    assert leases.is_dead(worker(1), "unknown", 110.0)


def test_a_heartbeat_starts_the_lease_anew():
    leases = watch()
    leases.is_dead(worker(1), "unknown", 100.0)
    assert not leases.is_dead(worker(2), "unknown", 115.0)
    assert not leases.is_dead(worker(2), "unknown", 124.0)
    assert leases.is_dead(worker(2), "unknown", 125.0)


def test_a_new_observer_never_believes_a_stored_age():
    """However old the row is: this observer has not seen it stand still."""
    assert not watch().is_dead(worker(1, started_at=-1e9), "unknown", 1e6)


def test_a_proof_of_death_needs_no_lease():
    assert watch().is_dead(worker(1), "dead", 100.0)


def test_a_lost_lock_is_believed_only_after_the_missed_heartbeats():
    leases = watch(missed_s=0.5)
    assert not leases.is_dead(worker(1), "lost", 100.0)
    assert not leases.is_dead(worker(1), "lost", 100.4)
    assert leases.is_dead(worker(1), "lost", 100.5)


def test_a_held_lock_does_not_stretch_the_lease():
    """A stopped process holds its lock for ever; the fence protects from what it does later."""
    leases = watch()
    leases.is_dead(worker(1), "alive", 0.0)
    assert leases.is_dead(worker(1), "alive", 10.0)


def test_workers_are_watched_apart_and_forgotten_when_gone():
    leases = watch()
    leases.is_dead(worker(1, "a"), "unknown", 0.0)
    leases.is_dead(worker(1, "b"), "unknown", 5.0)
    leases.forget({"b"})
    assert not leases.is_dead(worker(1, "a"), "unknown", 10.0)
    assert not leases.is_dead(worker(1, "b"), "unknown", 10.0)
