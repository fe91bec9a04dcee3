"""Paths into values and literals, as templates and conditions write them: how they are read, and what a path finds.

Decides the notation and where a path may go. It evaluates nothing and calls nothing of a value. What a missing
path means is for its callers, `template` and `condition`, to say.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from perdure.core.codec import shapes

SCOPE_NAMES = ("state", "input", "node_results")
"""What a path may begin with."""

MAX_NESTING = 50
"""How deep lists, parentheses and `not` may be nested. A bound, so that no text can exhaust the stack."""

NAME = re.compile(r"[^\W\d]\w*")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?![\w.])")
_INTEGER = re.compile(r"[+-]?[0-9]+")
_INDEX = re.compile(r"-?(?:0|[1-9][0-9]{0,17})(?!\w)")
_STRING = re.compile(r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "/": "/", "\\": "\\", '"': '"', "'": "'"}
_BLANK = re.compile(r"\s*")
_QUOTES = frozenset("\"'")
_LITERAL_STARTS = frozenset("\"'[{+-.0123456789")

CONSTANTS: Mapping[str, Any] = {
    "true": True,
    "false": False,
    "null": None,
    "True": True,
    "False": False,
    "None": None,
}


class Malformed(Exception):
    """A text cannot be read. `at` counts characters from 0. Readers turn it into an error that names the text."""

    def __init__(self, at: int, message: str) -> None:
        super().__init__(message)
        self.at = at
        self.message = message


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """Where a value is: `state.items[0]["a key"]`. An int segment is an index, or a key of a mapping."""

    segments: tuple[str | int, ...]

    @property
    def text(self) -> str:
        """The path in its one normal form, whatever way it was written."""
        return "".join(_segment_text(segment) for segment in self.segments).removeprefix(".")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A path, and perhaps what stands in for it where it leads nowhere."""

    path: Path
    has_default: bool = False
    default: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """What `find` returns for a path that leads nowhere: why, for people."""

    reason: str


def _segment_text(segment: str | int) -> str:
    if isinstance(segment, int):
        return f"[{segment}]"
    if NAME.fullmatch(segment):
        return f".{segment}"
    quoted = segment.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'["{quoted}"]'


# --- finding ---------------------------------------------------------------------------------------------


def resolve(reference: Reference, scope: Mapping[str, Any]) -> Any:
    """The very object at the path, its default (a new one each time), or a `Missing`."""
    found = find(reference.path, scope)
    if isinstance(found, Missing) and reference.has_default:
        return copy.deepcopy(reference.default)
    return found


def find(path: Path, scope: Mapping[str, Any]) -> Any:
    """The very object at the path, or a `Missing`.

    Goes into mappings, lists, tuples, and the fields of dataclasses, pydantic models and named tuples that do not
    begin with an underscore: no methods, no properties, no other attributes.
    """
    value: Any = scope
    for depth, segment in enumerate(path.segments):
        value = _part(value, segment, path.segments[:depth])
        if isinstance(value, Missing):
            return value
    return value


def _part(value: Any, segment: str | int, before: tuple[str | int, ...]) -> Any:
    if isinstance(value, Mapping):
        return _entry(value, segment, before)
    if isinstance(segment, int) and isinstance(value, list | tuple):
        return _item(value, segment, before)
    names = _field_names(value)
    if names is None:
        return Missing(reason=_no_part(value, segment, before))
    # A field that was never set (slots, `model_construct`) is as good as none.
    if isinstance(segment, str) and segment in names and hasattr(value, segment):
        return getattr(value, segment)
    return Missing(reason=f"there is no {_quoted(segment)} in {_place(before)}{_known(names)}")


def _entry(mapping: Mapping[Any, Any], segment: str | int, before: tuple[str | int, ...]) -> Any:
    # Asked first, because a mapping may make up what it is asked for (defaultdict). JSON has text as keys only.
    keys = (segment,) if isinstance(segment, str) else (segment, str(segment))
    for key in keys:
        if key in mapping:
            return mapping[key]
    return Missing(reason=f"there is no {_quoted(segment)} in {_place(before)}{_known(mapping)}")


def _item(items: list[Any] | tuple[Any, ...], index: int, before: tuple[str | int, ...]) -> Any:
    if -len(items) <= index < len(items):
        return items[index]
    return Missing(reason=f"there is no [{index}] in {_place(before)}, which has {len(items)} items")


def _field_names(value: Any) -> list[str] | None:
    cls = type(value)
    if shapes.is_model(cls):
        names = [*cls.model_fields, *(value.__pydantic_extra__ or ())]
    elif dataclasses.is_dataclass(cls):
        names = [item.name for item in dataclasses.fields(cls)]
    elif shapes.is_namedtuple(cls):
        names = list(cls._fields)
    else:
        return None
    return [name for name in names if not name.startswith("_")]


def _no_part(value: Any, segment: str | int, before: tuple[str | int, ...]) -> str:
    if value is None:
        return f"{_place(before)} is None, so there is no {_quoted(segment)} in it"
    if isinstance(value, list | tuple):
        return f"{_place(before)} is a {type(value).__name__}: it takes an index such as [0], not {_quoted(segment)}"
    return f"{_place(before)} is of type {type(value).__name__}, which a path does not go into (to {_quoted(segment)})"


def _place(segments: tuple[str | int, ...]) -> str:
    return Path(segments=segments).text or "the scope"


def _quoted(segment: str | int) -> str:
    return f"[{segment}]" if isinstance(segment, int) else repr(segment)


_MAX_KEYS_SHOWN = 10
_MAX_KEY_CHARS = 40


def _known(keys: Iterable[Any]) -> str:
    """The first keys that are there, so that a misspelt one is seen at once."""
    known = list(keys)
    if not known:
        return ", which is empty"
    shown = ", ".join(shorten(repr(key), _MAX_KEY_CHARS) for key in known[:_MAX_KEYS_SHOWN])
    more = f" and {len(known) - _MAX_KEYS_SHOWN} more" if len(known) > _MAX_KEYS_SHOWN else ""
    return f"; there is {shown}{more}"


def shorten(text: str, max_chars: int) -> str:
    """The text, cut to so many characters (the ellipsis included) if it is longer."""
    return text if len(text) <= max_chars else text[: max_chars - 1] + "…"


# --- reading ---------------------------------------------------------------------------------------------


class Reader:
    """A place in a text that moves on as it reads. Every method leaves it behind what was read and any blanks.

    Methods that are named after what they read raise `Malformed` when something else is there; `take_...` return
    whether it was.
    """

    __slots__ = ("at", "nesting", "text")

    def __init__(self, text: str, at: int = 0) -> None:
        self.text = text
        self.at = at
        self.nesting = 0
        self.skip_blanks()

    def skip_blanks(self) -> None:
        self.at = _match(_BLANK, self.text, self.at).end()

    def take(self, symbol: str) -> bool:
        if not self.text.startswith(symbol, self.at):
            return False
        self.at += len(symbol)
        self.skip_blanks()
        return True

    def next_name(self) -> str | None:
        """The name that comes next, which is not read by this."""
        found = NAME.match(self.text, self.at)
        return found[0] if found else None

    def take_name(self, name: str) -> bool:
        return self.next_name() == name and self.take(name)

    def expect(self, symbol: str, purpose: str) -> None:
        if not self.take(symbol):
            raise self.unexpected(f"{symbol!r} {purpose}")

    def unexpected(self, wanted: str) -> Malformed:
        found = repr(self._following()) if self._following() else "the end"
        return Malformed(self.at, f"expected {wanted}, found {found}")

    def _following(self) -> str:
        """The character that comes next; "" at the end."""
        return self.text[self.at : self.at + 1]

    def nest(self) -> None:
        self.nesting += 1
        if self.nesting > MAX_NESTING:
            raise Malformed(self.at, f"nested more than {MAX_NESTING} deep")

    def reference(self) -> Reference:
        """`path` or `path | default(literal)`."""
        path = self.path()
        # Not one half of `||`, for which conditions have a better message.
        if self.text.startswith("||", self.at) or not self.take("|"):
            return Reference(path=path)
        if not self.take_name("default"):
            raise self.unexpected("'default(...)'")
        self.expect("(", "after 'default'")
        default = self.literal()
        self.expect(")", "after the default")
        return Reference(path=path, has_default=True, default=default)

    def path(self) -> Path:
        name = self.next_name()
        if name is None:
            raise self.unexpected("a path such as state.name")
        self.at += len(name)
        segments: list[str | int] = [name]
        while self._following() in (".", "["):  # no blanks inside a path
            segments.append(self._segment())
        self.skip_blanks()
        if self._following() == "-":
            raise Malformed(
                self.at, f'there is no arithmetic; a key with other characters is written as {segments[0]}["a-b"]'
            )
        return Path(segments=tuple(segments))

    def _segment(self) -> str | int:
        is_bracket = self.text[self.at] == "["
        self.at += 1
        if is_bracket:
            self.skip_blanks()
            segment = self._index() if self._following() not in _QUOTES else self.string()
            self.skip_blanks()
            if self._following() != "]":
                raise self.unexpected("']'")
            self.at += 1
            return segment
        if (found := NAME.match(self.text, self.at)) is not None:
            self.at = found.end()
            return found[0]
        return self._index()

    def _index(self) -> int:
        found = _INDEX.match(self.text, self.at)
        if found is None:
            raise self.unexpected('a name, an index or a quoted key such as ["a key"]')
        self.at = found.end()
        return int(found[0])

    def at_literal(self) -> bool:
        """Whether a literal comes next."""
        return self._following() in _LITERAL_STARTS or self.next_name() in CONSTANTS

    def literal(self) -> Any:
        """A number, a quoted text, true, false, null (or as Python writes them), or a list or an object of such."""
        if self.take("["):
            return self._list()
        if self.take("{"):
            return self._object()
        if self._following() in _QUOTES:
            text = self.string()
            self.skip_blanks()
            return text
        name = self.next_name()
        if name is not None and name in CONSTANTS:
            self.take(name)
            return CONSTANTS[name]
        return self._number()

    def _list(self) -> list[Any]:
        self.nest()
        items: list[Any] = []
        while not self.take("]"):
            if items:
                self.expect(",", "or ']' in a list")
                if self.take("]"):
                    break
            items.append(self.literal())
        self.nesting -= 1
        return items

    def _object(self) -> dict[str, Any]:
        self.nest()
        entries: dict[str, Any] = {}
        while not self.take("}"):
            if entries:
                self.expect(",", "or '}' in an object")
            key = self.string()
            self.skip_blanks()
            self.expect(":", "after a key")
            entries[key] = self.literal()
        self.nesting -= 1
        return entries

    def _number(self) -> int | float:
        found = _NUMBER.match(self.text, self.at)
        if found is None:
            raise self.unexpected('a literal: a number, a text in quotes, true, false, null or a list such as [1, "a"]')
        try:
            number = int(found[0]) if _INTEGER.fullmatch(found[0]) else float(found[0])
        except ValueError:  # more digits than Python will convert
            raise Malformed(self.at, "a number with too many digits") from None
        if isinstance(number, float) and not math.isfinite(number):
            raise Malformed(self.at, "a number that is too large")
        self.at = found.end()
        self.skip_blanks()
        return number

    def string(self) -> str:
        """A text in single or double quotes; leaves the reader directly behind it."""
        found = _STRING.match(self.text, self.at)
        if found is None:
            if self._following() in _QUOTES:
                raise Malformed(self.at, "this quote is never closed")
            raise self.unexpected("a text in quotes")
        start, self.at = self.at + 1, found.end()
        text, has_surrogates = found[0][1:-1], False
        pieces: list[str] = []
        done = 0
        for escape in _ESCAPE.finditer(text):
            pieces.append(text[done : escape.start()])
            pieces.append(_unescaped(escape[1], start + escape.start()))
            has_surrogates |= "\ud800" <= pieces[-1] <= "\udfff"
            done = escape.end()
        whole = "".join([*pieces, text[done:]])
        # As in JSON, a character outside the basic plane may be written as two escapes.
        return whole.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass") if has_surrogates else whole


def _unescaped(escape: str, at: int) -> str:
    if len(escape) == 5:
        return chr(int(escape[1:], 16))
    if escape not in _ESCAPES:
        raise Malformed(at, f"the escape \\{escape} is not known; a backslash is written \\\\")
    return _ESCAPES[escape]


def _match(pattern: re.Pattern[str], text: str, at: int) -> re.Match[str]:
    found = pattern.match(text, at)
    assert found is not None  # a pattern that matches the empty text
    return found
