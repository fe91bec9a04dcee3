"""Exceptions as data: storing one never raises, and reading one never needs its class.

An exception becomes its own class again when that is built in or declared, and only if it then says what it
said. Its constructor is not called with arguments it may not take: attributes are put back instead.
Everything else is an `OperationError` with type name, message and traceback text.
"""

from __future__ import annotations

import builtins
import traceback
from collections.abc import Mapping, Sequence
from types import FunctionType
from typing import Any

from perdure.core.codec import shapes
from perdure.core.codec.decoding import decode
from perdure.core.codec.encoding import encode
from perdure.errors import OperationError

MAX_MESSAGE_CHARS = 4096
_MAX_TRACEBACK_CHARS = 16_384
_MAX_DATA_CHARS = 65_536
_MAX_NOTES = 16
_MAX_GROUP = 100
_MAX_GROUP_DEPTH = 8


# --- storing ----------------------------------------------------------------------------------------


def encode_error(error: BaseException) -> str:
    """The exception as text: type, module, message, traceback, notes, cause, arguments, attributes.

    Never raises for what an exception holds or does: what cannot be recorded is left out, long parts are cut.
    """
    return encode(_describe(error, 0))


def _describe(error: BaseException, depth: int) -> dict[str, Any]:
    data: dict[str, Any] = {
        "type": shapes.class_name(type(error)),
        "module": type(error).__module__,
        "message": _message(error),
        "traceback": _traceback_text(error) if depth == 0 else "",
        "notes": _notes(error),
        "cause": _cause(error),
    }
    if isinstance(error, BaseExceptionGroup):
        return {**data, "group": _group(error, depth)}
    arguments, attributes = _content(error)
    kept, dropped = _recordable(attributes)
    return {**data, "args": _try_encode(list(arguments)), "attributes": kept, "dropped": dropped}


def _group(error: BaseExceptionGroup[Any], depth: int) -> dict[str, Any] | None:
    if depth >= _MAX_GROUP_DEPTH or len(error.exceptions) > _MAX_GROUP:
        return None
    return {
        "message": error.message[:MAX_MESSAGE_CHARS],
        "errors": [_describe(inner, depth + 1) for inner in error.exceptions],
    }


def _message(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception as failure:  # a broken __str__ must not hide that the operation failed
        return f"<str() of the exception raised {type(failure).__qualname__}>"
    return str.__str__(text)[:MAX_MESSAGE_CHARS]


def _traceback_text(error: BaseException) -> str:
    try:
        text = "".join(traceback.format_exception(error))
    except Exception as failure:
        return f"<the traceback cannot be formatted: {type(failure).__qualname__}>"
    if len(text) <= _MAX_TRACEBACK_CHARS:
        return text
    half = _MAX_TRACEBACK_CHARS // 2
    return f"{text[:half]}\n... cut ...\n{text[-half:]}"


def _notes(error: BaseException) -> list[str]:
    notes = getattr(error, "__notes__", None)
    if not isinstance(notes, list):
        return []
    return [str.__str__(note)[:MAX_MESSAGE_CHARS] for note in notes[:_MAX_NOTES] if isinstance(note, str)]


def _cause(error: BaseException) -> str | None:
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return None if cause is None else f"{type(cause).__qualname__}: {_message(cause)}"


def _content(error: BaseException) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """Arguments and attributes. Built-in classes know more than `args`: a file name, a missing name."""
    attributes = {name: item for name, item in vars(error).items() if name != "__notes__"}
    if type(error).__module__ != "builtins":
        return error.args, attributes
    try:
        reduced: tuple[Any, ...] = tuple(error.__reduce__())
    except Exception:
        return error.args, attributes
    extra = reduced[2] if len(reduced) > 2 and isinstance(reduced[2], dict) else {}
    arguments = reduced[1] if len(reduced) > 1 else ()
    return arguments, {**attributes, **{name: item for name, item in extra.items() if name != "__notes__"}}


def _recordable(attributes: Mapping[str, Any]) -> tuple[dict[str, str], list[str]]:
    texts = {name: _try_encode(item) for name, item in attributes.items() if type(name) is str}
    kept = {name: text for name, text in texts.items() if text is not None}
    return kept, sorted(name for name, text in texts.items() if text is None)


def _try_encode(value: object) -> str | None:
    try:
        text = encode(value)
    except Exception:  # what cannot be recorded is left out and named; the failure itself is what matters
        return None
    return text if len(text) <= _MAX_DATA_CHARS else None


# --- reading ----------------------------------------------------------------------------------------


def decode_error(text: str, declared: Sequence[type[BaseException]] = ()) -> Exception:
    """The recorded exception, of its own class if possible, else an `OperationError`.

    Possible means: the class is built in, or in `declared` under the same qualified name, and can be made
    again so that it says the same. Groups keep their shape.

    Attributes that could not be recorded are missing, and a note on the exception names them.
    """
    return _make(decode(text), {shapes.class_name(cls): cls for cls in declared})


def _make(data: Mapping[str, Any], declared: Mapping[str, type[BaseException]]) -> Exception:
    cls = _class_of(data, declared)
    made = None if cls is None else _try_make(cls, data, declared)
    if made is None:
        made = OperationError(type_name=data["type"], message=data["message"], traceback_text=data["traceback"])
    for note in [*data["notes"], *_dropped_note(data, made)]:
        made.add_note(note)
    return made


def _class_of(data: Mapping[str, Any], declared: Mapping[str, type[BaseException]]) -> type[Exception] | None:
    cls = declared.get(data["type"])
    if cls is None and data["module"] == "builtins":
        cls = getattr(builtins, data["type"], None)
    # Never one that is no Exception: a recorded SystemExit must not end the process that reads it.
    return cls if isinstance(cls, type) and issubclass(cls, Exception) else None


def _try_make(
    cls: type[Exception], data: Mapping[str, Any], declared: Mapping[str, type[BaseException]]
) -> Exception | None:
    try:
        made = _make_group(cls, data["group"], declared) if "group" in data else _make_plain(cls, data)
    except Exception:  # user classes run here; whatever they raise, OperationError stands in
        return None
    return made if made is not None and type(made) is cls and _message(made) == data["message"] else None


def _make_group(
    cls: Any, group: Mapping[str, Any] | None, declared: Mapping[str, type[BaseException]]
) -> Exception | None:
    if group is None:
        return None
    return cls(group["message"], [_make(inner, declared) for inner in group["errors"]])


def _make_plain(cls: type[Exception], data: Mapping[str, Any]) -> Exception | None:
    if data["args"] is None:
        return None
    arguments = decode(data["args"])
    if _has_own_constructor(cls):
        made = cls.__new__(cls, *arguments)
        made.args = tuple(arguments)
    else:
        made = cls(*arguments)
    for name, text in data["attributes"].items():
        setattr(made, name, decode(text))
    return made


def _has_own_constructor(cls: type) -> bool:
    """Whether a Python `__init__` would run: what it takes need not be what it left in `args`."""
    return isinstance(cls.__init__, FunctionType)


def _dropped_note(data: Mapping[str, Any], made: Exception) -> list[str]:
    if not data.get("dropped") or isinstance(made, OperationError):
        return []
    note = f"not recorded, and missing here: {', '.join(data['dropped'])}"
    return [] if note in data["notes"] else [note]
