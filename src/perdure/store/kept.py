"""What people put into the store by hand, and what is left of a run that was pruned, as values. Decides shapes only.

An execution that no engine drives is *kept*: its checkpoints, questions and results are rows of their own, with a
number sequence of their own. It has no row in `run`, so no worker ever claims it. Where a run has the same id, kept
checkpoints stand behind the record that was the run's last when they were put (`after_seq`).
"""

from __future__ import annotations

from dataclasses import dataclass

from perdure.core.records import InterruptRow, Loaded

CLAIM_S = 60.0
"""How long a question is nobody else's after it was claimed. Who dies meanwhile loses it to the next, and nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptCheckpoint:
    """A checkpoint that was put by hand. `content` is the encoded text of its fields, read back exactly.

    `seq` (from 1, without gaps, in the order in which they were put), `after_seq` and `put_at` are the store's.
    """

    checkpoint_id: str
    run_id: str
    seq: int = 0
    after_seq: int = 0
    status: str
    content: str
    put_at: float = 0.0
    created_at: str | None = None
    """Written only, for people who query: ISO 8601; None is the time at which it is put."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptQuestion:
    """A question that was put with a checkpoint. `content` is the encoded text of its fields. `status` is `pending`, or
    `answered` once it was claimed and its execution went on."""

    interrupt_id: str
    run_id: str
    checkpoint_id: str
    seq: int = 0
    status: str = "pending"
    content: str
    created_at: float = 0.0
    claimed_at: float | None = None


OpenQuestion = InterruptRow | KeptQuestion
"""A question that waits for a person: of a run, or kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """What the store holds under an id, in one snapshot. `run` is None if no run has it; `kept` is ascending."""

    run: Loaded | None
    kept: list[KeptCheckpoint]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tombstone:
    """What is left of a run that was pruned."""

    run_id: str
    runner: str
    input_digest: str
    status: str
    ended_at: float
    pruned_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneRequest:
    """What may go: what ended at least `older_than_s` ago. Failed ones only if `has_failed`: they can be retried."""

    older_than_s: float
    has_failed: bool = False
    is_dry: bool = False
    """Count, and delete nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """How much went, or would go: runs (those below a root count, too) and executions kept by hand."""

    run_count: int
    execution_count: int

    @property
    def count(self) -> int:
        """Both together."""
        return self.run_count + self.execution_count


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsynced:
    """Checkpoints of one execution that a plane has not acknowledged: places (`seq`) in a run, or kept rows."""

    project_id: str | None
    run: Loaded | None
    seqs: frozenset[int] = frozenset()
    kept: tuple[KeptCheckpoint, ...] = ()
