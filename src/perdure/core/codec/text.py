"""JSON text, exactly and fast: the C encoder and decoder of the standard library, built once.

Decides the surface of all journal text: ASCII, no blanks, no NaN tokens. Knows nothing of tags. `json.dumps`
builds a new encoder for each call and follows cycles in a dict; the walk that precedes it here makes both
superfluous, which is a third of the cost of a small value.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from json import encoder as _json_encoder
from typing import Any

from perdure.errors import SerializationError


def _make_dumps(escape: Any, ensure_ascii: bool) -> Callable[[Any], str]:
    make = getattr(_json_encoder, "c_make_encoder", None)
    if make is None:  # an interpreter without the C accelerator
        return json.JSONEncoder(
            ensure_ascii=ensure_ascii, check_circular=False, allow_nan=False, separators=(",", ":")
        ).encode
    chunks = make(None, _refuse, escape, None, ":", ",", False, False, False)
    join = "".join
    return lambda tree: join(chunks(tree, 0))


def _refuse(value: object) -> object:
    raise TypeError(f"{type(value).__qualname__} is not JSON")


def _refuse_constant(token: str) -> object:
    raise ValueError(f"{token} is not JSON")


dumps = _make_dumps(_json_encoder.encode_basestring_ascii, True)
_dumps_unicode = _make_dumps(_json_encoder.encode_basestring, False)

Scan = Callable[[str, int], tuple[Any, int]]


def make_scan(object_hook: Callable[[dict[str, Any]], Any] | None = None) -> Scan:
    """A decoder that gives (value, end) and does not skip blanks; `loads` checks that all text was used."""
    decoder: Any = json.JSONDecoder(object_hook=object_hook, parse_constant=_refuse_constant)
    return decoder.scan_once


_scan = make_scan()


def loads(text: str, scan: Scan = _scan) -> Any:
    """The value of JSON text written by `dumps`. Raises `SerializationError` when it is not such text."""
    try:
        value, end = scan(text, 0)
    except (StopIteration, ValueError) as error:
        raise SerializationError("$", f"not JSON text: {error}") from None
    except RecursionError:
        raise SerializationError("$", "nested too deeply for what is left of the stack") from None
    if end != len(text):
        raise SerializationError("$", f"not JSON text: more follows at character {end}")
    return value


def has_surrogates(tree: object) -> bool:
    """Whether any string in a JSON tree holds a surrogate. Done by the C encoder, not by a walk."""
    try:
        _dumps_unicode(tree).encode()
    except UnicodeEncodeError:
        return True
    return False
