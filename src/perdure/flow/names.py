"""One function per name in a process: a journal finds its functions by name, so two under one name would be
confused."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from perdure.errors import DurableConflictError

_known: dict[tuple[str, str], tuple[str, int]] = {}
_lock = threading.Lock()


def claim_name(kind: str, name: str, function: Callable[..., Any]) -> None:
    """Raise `DurableConflictError` if another function has this name. The same source imported twice is the same
    function (`__main__` and `app`, a reload), and so are closures made by one `def`."""
    code = getattr(function, "__code__", None)
    if code is None:
        return
    place = (code.co_filename, code.co_firstlineno)
    with _lock:
        known = _known.setdefault((kind, name), place)
        if known != place and known[0] == place[0] and not _is_still_there(known, code.co_name):
            _known[(kind, name)] = place  # the file was edited and reloaded
            return
    if known != place:
        raise DurableConflictError(
            f"two different {kind} functions are called {name!r} ({known[0]}:{known[1]} and "
            f"{place[0]}:{place[1]}); give one "
            "of them another name with name=..."
        )


def _is_still_there(place: tuple[str, int], name: str) -> bool:
    import linecache  # only when a name is met a second time

    linecache.checkcache(place[0])
    lines = "".join(linecache.getline(place[0], place[1] + offset) for offset in range(12))
    return not lines or f"def {name}" in lines or "lambda" in lines
