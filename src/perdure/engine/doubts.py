"""What a person is told when nobody knows whether an effect has happened. Decides only the words."""

from __future__ import annotations

from perdure.core import keys
from perdure.engine.calls import CallSpec
from perdure.errors import DurableRecoveryError


def in_doubt(run_id: str, name: str, key: str) -> DurableRecoveryError:
    """A `manual` operation was begun by a process that is gone."""
    operation_id = keys.operation_id(run_id, key)
    return DurableRecoveryError(
        f"run {run_id}: {name!r} was begun and its end is not known; it is recovery='manual', so a person decides: "
        f"repeat it with repeat_operation={operation_id!r}, or cancel the run",
        operation_id,
    )


def out_of_time(run_id: str, name: str, key: str) -> DurableRecoveryError:
    """A `manual` operation was stopped by its time limit."""
    return DurableRecoveryError(
        f"run {run_id}: {name!r} took longer than its limit; it is recovery='manual' and its effect is not known, so a "
        "person decides",
        keys.operation_id(run_id, key),
    )


def time_is_up(spec: CallSpec) -> TimeoutError:
    """What an attempt fails with that took too long."""
    return TimeoutError(f"{spec.name} took longer than {spec.timeout_s} s")
