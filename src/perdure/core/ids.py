"""Ids: how runs and questions get theirs, which ids are accepted, and how one becomes a file name."""

from __future__ import annotations

import json
import os
import re
import time
from _thread import allocate_lock  # only the lock: the core starts no threads
from hashlib import blake2b, sha256

from perdure.errors import InvalidInputError

MAX_ID_CHARS = 256


# --- run ids ----------------------------------------------------------------------------------------


class _Sequence:
    """UUIDv7 numbers that only grow within a process: 48 bits of ms, a 12-bit count in it, 62 random bits.

    The random bits come from the system each time, so a forked child that shares the count repeats nothing.
    """

    __slots__ = ("_last", "_lock")

    def __init__(self) -> None:
        self._lock = allocate_lock()
        self._last = 0  # milliseconds << 12 | count

    def next(self) -> int:
        random = int.from_bytes(os.urandom(8), "big") & 0x3FFF_FFFF_FFFF_FFFF
        now = time.time_ns() // 1_000_000 << 12
        with self._lock:
            # A clock that stands still or goes back only makes the count grow, into the next millisecond if
            # need be.
            self._last = stamp = max(now, self._last + 1)
        milliseconds, count = stamp >> 12, stamp & 0xFFF
        return milliseconds << 80 | 0x7 << 76 | count << 64 | 0b10 << 62 | random


_sequence = _Sequence()


def run_id() -> str:
    """A new UUIDv7 in its canonical text; each is greater than all before it in this process."""
    digits = f"{_sequence.next():032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def interrupt_id(run_id: str, key: str, slot: int | str) -> str:
    """`q_` and 24 hex digits: the same question of the same run has the same id at every execution."""
    identity = json.dumps([run_id, key, slot])  # a list, so that no two triples have one text
    return f"q_{sha256(identity.encode()).hexdigest()[:24]}"


# --- ids from outside -------------------------------------------------------------------------------

_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def check_id(value: object, field: str) -> str:
    """The id as it is. Raises `InvalidInputError` naming the field otherwise.

    An id is a non-blank str of at most 256 characters, without control characters and surrogates, which not
    every store and terminal can hold.
    """
    if not isinstance(value, str):
        raise InvalidInputError(field, f"must be a str, not {type(value).__qualname__}")
    if not value or value.isspace():
        raise InvalidInputError(field, "must not be blank")
    if len(value) > MAX_ID_CHARS:
        raise InvalidInputError(field, f"must have at most {MAX_ID_CHARS} characters, not {len(value)}")
    if found := _UNPRINTABLE.search(value):
        raise InvalidInputError(field, f"must not contain U+{ord(found.group()):04X} (at character {found.start()})")
    return str.__str__(value)


# --- file names -------------------------------------------------------------------------------------

_PLAIN_NAME = re.compile("[a-z0-9][a-z0-9_-]{0,63}")
_DEVICE = re.compile("con|prn|aux|nul|(com|lpt)[0-9]")
_FOREIGN = re.compile("[^a-z0-9_-]+")


def file_name(id: str) -> str:
    """A file name for an id: legal on every system, and unique also where case is folded.

    At most 64 characters; plain lower-case ids (a UUID) stay as they are. A suffix with a dot may follow.
    """
    if _PLAIN_NAME.fullmatch(id) and not _DEVICE.fullmatch(id):
        return id
    # `=` is in no plain name, so the two kinds never meet.
    readable = _FOREIGN.sub("-", id.lower())[:24].strip("-") or "id"
    return f"{readable}={blake2b(id.encode('utf-8', 'surrogatepass'), digest_size=16).hexdigest()}"
