"""Pure data and decisions: no I/O, no event loop, no drivers. Everything here is tested without either."""
