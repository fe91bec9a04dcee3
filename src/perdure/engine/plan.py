"""What a drive is made of, as one value: the host makes it, the drive reads it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from perdure.core.fold import Journal
from perdure.core.settings import EngineSettings
from perdure.engine.runner import Runner
from perdure.engine.threads import StepThreads
from perdure.store.base import JournalStore, Lane


@dataclass(slots=True, kw_only=True)
class DrivePlan:
    """What a drive is made of."""

    lane: Lane
    journal: Journal
    runner: Runner
    store: JournalStore
    settings: EngineSettings
    loop: asyncio.AbstractEventLoop
    is_inline: bool = False
    age_s: float = 0.0
    """Seconds of run time that passed since its last record, by the database's clock."""
    is_cancelled: bool = False
    threads: StepThreads
