"""Settings of an engine and of the process. Decides defaults and bounds; reads the environment once per call, stores
nothing."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

from perdure.errors import DurableLimitError, InvalidInputError


def _duration(name: str, value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise InvalidInputError(name, f"must be a finite number of seconds, not {value!r}")
    return value


def _check_count(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidInputError(name, f"must be a whole number, not {value!r}")
    if value < 1:
        raise InvalidInputError(name, "must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds per run; what exceeds them fails with `DurableLimitError`, with nothing of it stored."""

    max_payload_bytes: int = 1024 * 1024
    max_operations: int = 10_000

    def __post_init__(self) -> None:
        _check_count("max_payload_bytes", self.max_payload_bytes)
        _check_count("max_operations", self.max_operations)

    def check_payload(self, what: str, text: str) -> str:
        """The encoded text (ASCII) as it is. Raises `DurableLimitError` if it is too long to be recorded."""
        if len(text) > self.max_payload_bytes:
            raise DurableLimitError(
                f"{what} has {len(text)} bytes, more than limits.max_payload_bytes ({self.max_payload_bytes})"
            )
        return text


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """How an engine behaves. All durations in seconds."""

    lease_s: float = 15.0
    """A worker whose heartbeat has not moved for this long, seen by one claimant's own clock, has lost its runs."""
    stay_s: float = 10.0
    """A quiet run whose next timer is due sooner than this stays in memory."""
    grace_s: float = 10.0
    """How long started bodies may go on at shutdown before the run is given back all the same."""
    poll_s: float = 0.1
    """How often dead peers are looked for while any other worker owns runs."""
    max_concurrent_runs: int = 100
    limits: Limits = Limits()

    def __post_init__(self) -> None:
        for name in ("lease_s", "poll_s"):
            if _duration(name, getattr(self, name)) <= 0:
                raise InvalidInputError(name, "must be greater than 0")
        for name in ("stay_s", "grace_s"):
            if _duration(name, getattr(self, name)) < 0:
                raise InvalidInputError(name, "must not be negative")
        _check_count("max_concurrent_runs", self.max_concurrent_runs)
        if not isinstance(self.limits, Limits):
            raise InvalidInputError("limits", f"expected Limits, got {type(self.limits).__qualname__}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Where things are, from the environment."""

    store_url: str
    resolved_checkpoint_db_path: str


def get_config() -> Config:
    """`PERDURE_STORE` (a store URL) and `PERDURE_LOCAL_DB` (a file); the default is `./.perdure/local.db`."""
    path = os.environ.get("PERDURE_LOCAL_DB") or str(Path(".perdure") / "local.db")
    url = os.environ.get("PERDURE_STORE") or f"sqlite:///{path}"
    return Config(store_url=url, resolved_checkpoint_db_path=str(Path(path).absolute()))
