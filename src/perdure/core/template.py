"""Templates in a node's inputs: `{{ state.name }}` in texts, at any depth of dicts and lists.

Decides what a template finds and how it reads inside longer text. Rendering reads values and changes none; what was
rendered is never taken for a template again, so that data cannot inject any.

    {{ state.order.id }}              a path: into `state`, `input` or `node_results`
    {{ state.items[0].sku }}          an index, from the end if negative; `.0` is the same
    {{ input["a key"] }}              a key that is no name
    {{ state.note | default("-") }}   what stands in where the path leads nowhere (not where it leads to None)
    \\{{                               these two braces themselves; a backslash before a template is `\\\\{{ ... }}`

A text that is one template and nothing else gives the value itself, with its type. Inside longer text a text stands
as it is, None as nothing, what JSON can express as JSON, and anything else as `str()` has it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from perdure.core import expression
from perdure.core.expression import SCOPE_NAMES, Malformed, Missing, Reader, Reference
from perdure.errors import ChainTemplateError

_OPENING = re.compile(r"(\\*)\{\{")
_MAX_CACHED_CHARS = 10_000
_MAX_SHOWN_CHARS = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """A text that was read once. `parts` are texts and references in turn; texts are never empty."""

    parts: tuple[str | Reference, ...]


def render(value: Any, scope: Mapping[str, Any]) -> Any:
    """The value with all its templates filled in from the scope: `{"state": ..., "input": ..., "node_results": ...}`.

    Dicts and lists are new ones (their keys are not templates); what is neither text, dict nor list is returned as it
    is, and so is a text without a template. Raises `ChainTemplateError` that names the path if one leads nowhere and
    has no default, or the template if it is malformed.
    """
    if isinstance(value, str):
        return _filled(parse(value), scope) if "{{" in value else value
    if isinstance(value, dict):
        return {key: render(item, scope) for key, item in value.items()}
    if isinstance(value, list):
        return [render(item, scope) for item in value]
    return value


def check(value: Any, names: Sequence[str] = SCOPE_NAMES) -> None:
    """Reads every template in the value. Raises `ChainTemplateError` if one is malformed, or begins with none of the
    names."""
    try:
        references = list(_references(value))
    except RecursionError:
        raise ChainTemplateError("$", "is nested too deeply for a template, or refers to itself") from None
    for reference in references:
        first = reference.path.segments[0]
        if first not in names:
            raise ChainTemplateError(reference.path.text, f"a path begins with one of {', '.join(names)}")


def paths(value: Any) -> list[str]:
    """The paths that the templates in the value name, in order of appearance, each once. Raises `ChainTemplateError` if
    a template is malformed."""
    return list(dict.fromkeys(reference.path.text for reference in _references(value)))


def parse(text: str) -> Template:
    """Reads a text. Raises `ChainTemplateError` that names the template and its column if it is malformed."""
    # Long texts are few, and a thousand of them would be much to keep.
    return _parse(text) if len(text) > _MAX_CACHED_CHARS else _parse_cached(text)


@lru_cache(maxsize=1024)
def _parse_cached(text: str) -> Template:
    return _parse(text)


def _parse(text: str) -> Template:
    parts: list[str | Reference] = []
    literal: list[str] = []
    at = 0
    while (opening := _OPENING.search(text, at)) is not None:
        backslashes = len(opening[1])
        literal += [text[at : opening.start()], "\\" * (backslashes // 2)]
        at = opening.end()
        if backslashes % 2:
            literal.append("{{")
            continue
        if joined := "".join(literal):
            parts.append(joined)
        literal = []
        reference, at = _read(text, at)
        parts.append(reference)
    if joined := "".join([*literal, text[at:]]):
        parts.append(joined)
    return Template(parts=tuple(parts))


def _read(text: str, at: int) -> tuple[Reference, int]:
    """The reference whose braces open before `at`, and where the text goes on behind it."""
    reader = Reader(text, at)
    try:
        reference = reader.reference()
        if not text.startswith("}}", reader.at):
            raise reader.unexpected("'}}', '.', '[' or '| default(...)'")
    except Malformed as problem:
        shown = _shown(text, at - 2)
        raise ChainTemplateError(shown, f"at column {problem.at + 1} of the text: {problem.message}") from None
    return reference, reader.at + 2


def _shown(text: str, opening: int) -> str:
    closing = text.find("}}", opening)
    return expression.shorten(text[opening:] if closing < 0 else text[opening : closing + 2], _MAX_SHOWN_CHARS)


def _filled(template: Template, scope: Mapping[str, Any]) -> Any:
    parts = template.parts
    if len(parts) == 1 and isinstance(parts[0], Reference):
        return _value(parts[0], scope)
    return "".join(part if isinstance(part, str) else _as_text(part, _value(part, scope)) for part in parts)


def _value(reference: Reference, scope: Mapping[str, Any]) -> Any:
    value = expression.resolve(reference, scope)
    if isinstance(value, Missing):
        raise ChainTemplateError(reference.path.text, value.reason)
    return value


def _as_text(reference: Reference, value: Any) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        pass  # no JSON; a number of thousands of digits is none here, either
    try:
        return str(value)
    except Exception as error:
        kind = type(value).__name__
        raise ChainTemplateError(reference.path.text, f"a value of type {kind} has no text: {error}") from error


def _references(value: Any) -> Iterator[Reference]:
    if isinstance(value, str):
        if "{{" in value:
            yield from (part for part in parse(value).parts if isinstance(part, Reference))
    elif isinstance(value, dict):
        for item in value.values():
            yield from _references(item)
    elif isinstance(value, list):
        for item in value:
            yield from _references(item)
