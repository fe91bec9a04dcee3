"""The test suite. A package, so that `tests.support` can never be another distribution's `tests`."""
