"""Lengths of time as people type them: a number and a unit. Pure."""

from __future__ import annotations

import re
from datetime import timedelta

from perdure.errors import InvalidInputError

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_FORM = re.compile(r"(\d{1,6}(?:\.\d{1,3})?)([smhdw])", re.ASCII)


def parse_duration(text: str, option: str) -> timedelta:
    """`90s`, `45m`, `12h`, `30d` or `2w`. No number goes without its unit: what is deleted depends on it."""
    found = _FORM.fullmatch(text.strip())
    if found is None:
        raise InvalidInputError(option, f"{text!r} is no length of time; write 90s, 45m, 12h, 30d or 2w")
    number, unit = found.groups()
    return timedelta(**{_UNITS[unit]: float(number)})
