"""Checkpoints and the ends of runs, at the reference's path."""

from perdure.checkpointers.ends import RUN_END, is_run_end, latest_forkable, latest_resumable
from perdure.checkpointers.protocol import Checkpoint

__all__ = ["RUN_END", "Checkpoint", "is_run_end", "latest_forkable", "latest_resumable"]
