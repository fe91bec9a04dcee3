"""What people type and what machines read: strict JSON in, plain JSON out. No answer is guessed from
anything. Pure.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from perdure.errors import InvalidInputError

if TYPE_CHECKING:
    from perdure.core.resume import Resume


def parse_json(text: str, option: str) -> Any:
    """The value of a JSON text. Refuses what JSON does not have (NaN), and double keys; names the option."""
    try:
        return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(option, f"is not JSON: {error}{_hint(text, option)}") from None


def parse_answer(text: str, option: str = "--value") -> Resume:
    """The answer in `{"approved": true|false, "metadata": {...}}`. Nothing else is one: no default, no "yes",
    no 1.
    """
    given = parse_json(text, option)
    if not isinstance(given, dict):
        raise InvalidInputError(option, f'must be {{"approved": true}} or {{"approved": false}}, not {text.strip()}')
    if "approved" not in given:
        raise InvalidInputError(option, 'has no "approved"; nothing is approved or denied by silence')
    if unknown := sorted(given.keys() - {"approved", "metadata"}):
        raise InvalidInputError(
            option, f'has unknown {", ".join(unknown)}; whatever else there is to say goes into "metadata"'
        )
    if not isinstance(given["approved"], bool):
        raise InvalidInputError(option, f'"approved" must be true or false, not {json.dumps(given["approved"])}')
    if not isinstance(given.get("metadata", {}), dict):
        raise InvalidInputError(option, f'"metadata" must be an object, not {json.dumps(given["metadata"])}')
    from perdure.core.resume import Resume  # pydantic loads when somebody answers, not before

    return Resume(approved=given["approved"], metadata=given.get("metadata", {}))


def plain(value: object) -> Any:
    """Any value as what JSON has, for people and scripts; never fails. What JSON lacks becomes text."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else str(plain(key)): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if callable(dump := getattr(value, "model_dump", None)):
        return plain(dump(mode="json"))
    if callable(iso := getattr(value, "isoformat", None)):
        return iso()
    return str(value)


def decoded(text: str | None) -> Any:
    """A stored text as plain data. A text that cannot be decoded is shown as it is: one row never hides the
    others.
    """
    if text is None:
        return None
    from perdure.core import codec

    try:
        return plain(codec.decode(text))
    except Exception:  # whatever is wrong with a stored text, looking at it must work
        return {"undecodable": text}


def moment(seconds: float | None) -> str | None:
    """A time of the database as ISO 8601 in UTC, to the millisecond."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def shown(value: object) -> str:
    """One line of JSON for people."""
    return json.dumps(plain(value), ensure_ascii=False)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _hint(text: str, option: str) -> str:
    """What was probably meant. Who writes a bare word for an answer learns what one looks like."""
    if option == "--value":
        return '; an answer is {"approved": true} or {"approved": false}'
    is_bare = re.fullmatch(r"[\w .-]+", text) is not None
    return f"; a text is written with its quotes: {option} '{json.dumps(text)}'" if is_bare else ""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = next(key for key, _ in pairs if sum(key == other for other, _ in pairs) > 1)
        raise ValueError(f"{twice!r} is there twice")
    return found
