"""One module per peer, each with the same workloads. Runs in the peers' own virtual environment."""
