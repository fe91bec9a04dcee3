"""Tools that prove what the package promises: crash points and the explorer that kills a process at each of
them."""
