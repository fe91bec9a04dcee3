"""Tags of standard types that hold no other values: how each is written, and how it is read back.

A tagged value is an object of one key that begins with `$`: `{"$decimal":"1.10"}`. The tags are data in
journals; a test pins them. Each payload is JSON, and reading it gives a value of the same type that is equal
and prints the same.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from pathlib import Path, PosixPath, PurePath, PurePosixPath, PureWindowsPath, WindowsPath
from typing import Any
from uuid import UUID

from perdure.core.codec.notices import notice

# Far below the least limit an interpreter may set for decimal digits (640), which is process-wide and not
# ours.
INT_BOUND = 1 << 1024

# Two lone surrogates side by side would be read back as the one character they spell in UTF-16.
_SURROGATE_PAIR = re.compile("(?<=[\ud800-\udbff])(?=[\udc00-\udfff])")

_MICROSECOND = timedelta(microseconds=1)
_MINUTE = timedelta(minutes=1)


def string(value: str) -> object:
    if value.isascii() or not (cuts := [match.start() for match in _SURROGATE_PAIR.finditer(value)]):
        return value
    bounds = [0, *cuts, len(value)]
    return {"$str": [value[start:end] for start, end in pairwise(bounds)]}


def integer(value: int) -> object:
    return value if -INT_BOUND < value < INT_BOUND else {"$int": hex(value)}


def floating(value: float) -> object:
    return value if math.isfinite(value) else {"$float": repr(value)}


def _datetime(value: datetime) -> object:
    if value.fold == 0 and (value.tzinfo is None or _is_iso(value.tzinfo)):
        return value.isoformat()
    naive = value.replace(tzinfo=None, fold=0).isoformat()
    return [naive, _zone(value.tzinfo, value), value.fold]


def _read_datetime(payload: Any) -> datetime:
    if isinstance(payload, str):
        return datetime.fromisoformat(payload)
    naive, zone, fold = payload
    return datetime.fromisoformat(naive).replace(tzinfo=_read_zone(zone), fold=fold)


def _time(value: time) -> object:
    if value.fold == 0 and value.tzinfo is None:
        return value.isoformat()
    return [value.replace(tzinfo=None, fold=0).isoformat(), _zone(value.tzinfo, value), value.fold]


def _read_time(payload: Any) -> time:
    if isinstance(payload, str):
        return time.fromisoformat(payload)
    naive, zone, fold = payload
    return time.fromisoformat(naive).replace(tzinfo=_read_zone(zone), fold=fold)


def _is_iso(zone: tzinfo) -> bool:
    """Whether ISO text says all of a zone: it has no name, and whole minutes.

    `fromisoformat` takes +00:00:00.000001 for UTC.
    """
    if type(zone) is not timezone:
        return False
    offset, *name = zone.__getinitargs__()  # type: ignore[attr-defined]
    return not name and not offset % _MINUTE


def _zone(zone: tzinfo | None, moment: datetime | time) -> object:
    """null, an IANA name, or [offset in microseconds, name?]."""
    if zone is None:
        return None
    if type(zone) is timezone:
        offset, *name = zone.__getinitargs__()  # type: ignore[attr-defined]
        return [offset // _MICROSECOND, *map(string, name)]
    from zoneinfo import ZoneInfo  # import cost: only aware times pay for it

    if type(zone) is ZoneInfo and zone.key is not None:
        return zone.key
    return _foreign_zone(zone, moment)


def _foreign_zone(zone: tzinfo, moment: datetime | time) -> object:
    """The instant and the wall time are exact; the rules of an unknown class of zone cannot be."""
    offset = moment.utcoffset()
    if offset is None:
        raise ValueError(f"its time zone, {type(zone).__qualname__}, has no fixed offset; use zoneinfo.ZoneInfo")
    notice(
        f"a time zone of type {type(zone).__qualname__}",
        "its offset",
        "use zoneinfo.ZoneInfo to keep the zone",
    )
    name = moment.tzname()
    return [offset // _MICROSECOND] if name is None else [offset // _MICROSECOND, string(name)]


def _read_zone(payload: Any) -> tzinfo | None:
    if payload is None:
        return None
    if isinstance(payload, str):
        from zoneinfo import ZoneInfo  # import cost: only aware times pay for it

        return ZoneInfo(payload)
    microseconds, *name = payload
    return timezone(timedelta(microseconds=microseconds), *name)


_PATHS: dict[str, type[PurePath]] = {
    cls.__name__: cls for cls in (PurePosixPath, PureWindowsPath, PosixPath, WindowsPath)
}


def _read_path(payload: Any) -> PurePath:
    """A concrete path of the other system is read as its pure twin: it names nothing here."""
    name, text = payload
    cls = _PATHS[name]
    if cls in (PosixPath, WindowsPath) and cls is not type(Path()):
        cls = _PATHS[f"Pure{name}"]
    return cls(text)


def _base64(value: bytes | bytearray) -> str:
    return base64.b64encode(value).decode("ascii")


def _read_base64(payload: str) -> bytes:
    return base64.b64decode(payload, validate=True)


def _complex(value: complex) -> list[object]:
    return [floating(value.real), floating(value.imag)]


# exact type -> (tag, payload of a value). `string`, `integer` and `floating` are apart: mostly they need no
# tag.
WRITERS: dict[type, tuple[str, Callable[[Any], object]]] = {
    datetime: ("$datetime", _datetime),
    date: ("$date", date.isoformat),
    time: ("$time", _time),
    timedelta: ("$timedelta", lambda value: [value.days, value.seconds, value.microseconds]),
    Decimal: ("$decimal", str),
    UUID: ("$uuid", str),
    bytes: ("$bytes", _base64),
    bytearray: ("$bytearray", _base64),
    complex: ("$complex", _complex),
    range: ("$range", lambda value: [integer(value.start), integer(value.stop), integer(value.step)]),
    Fraction: ("$fraction", lambda value: [integer(value.numerator), integer(value.denominator)]),
    **{cls: ("$path", lambda value: [type(value).__name__, string(str(value))]) for cls in _PATHS.values()},
}

# tag -> value of a payload whose inner values are read already.
READERS: dict[str, Callable[[Any], object]] = {
    "$str": "".join,
    "$int": lambda payload: int(payload, 16),
    "$float": float,
    "$datetime": _read_datetime,
    "$date": date.fromisoformat,
    "$time": _read_time,
    "$timedelta": lambda payload: timedelta(*payload),
    "$decimal": Decimal,
    "$uuid": UUID,
    "$bytes": _read_base64,
    "$bytearray": lambda payload: bytearray(_read_base64(payload)),
    "$complex": lambda payload: complex(*payload),
    "$range": lambda payload: range(*payload),
    "$fraction": lambda payload: Fraction(*payload),
    "$path": _read_path,
}
