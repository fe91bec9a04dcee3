"""Drives runs: executes a runner against its journal, claims and recovers. Knows nothing of what a runner is inside."""
