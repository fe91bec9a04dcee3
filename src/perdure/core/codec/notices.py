"""The one warning per type when a value is recorded as its data."""

from __future__ import annotations

import warnings

_noticed: set[tuple[str, str]] = set()


class UndeclaredTypeWarning(UserWarning):
    """A value was recorded as its data, and that is what the caller gets: its type is not declared."""


def notice(type_name: str, becomes: str, advice: str) -> None:
    """Warn, once per type and process, that values of the type are recorded as something plainer."""
    if (type_name, becomes) in _noticed:
        return
    _noticed.add((type_name, becomes))
    message = f"{type_name} is recorded as {becomes}, and that is what the caller gets; {advice}"
    warnings.warn(message, UndeclaredTypeWarning, stacklevel=4)
