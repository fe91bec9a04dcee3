"""Perdure beside its peers, measured in one run. Start with ``python -m benchmarks.run --help``."""
