"""Named SQL. Decides how the `.sql` files are read; what they say is in the files.

A file holds several queries, each headed by `-- name: <query>` and a comment that says why. `{run}`,
`{record}`, `{interrupt}` and `{worker}` stand for the column lists of `rows.py`, `{claimable}` and the like
for the query of that name, so that a condition is written once.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

from perdure.store import rows

_HEAD = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)
_COMMENT = re.compile(r"--[^\n]*")
_SLOT = re.compile(r"\{(\w+)\}")
_PARAM = re.compile(r"(?<![:\w]):([a-z_]\w*)")


@cache
def load(dialect: str) -> dict[str, str]:
    """All queries of a dialect (`sqlite`, `postgres`) by name."""
    raw = _parse("common") | _parse(dialect)
    return {name: _expand(text, raw) for name, text in raw.items()}


def names(directory: str) -> set[str]:
    """Names of the queries in one directory."""
    return set(_parse(directory))


def pyformat(sql: str) -> str:
    """The same statement with psycopg's `%(name)s` parameters."""
    return _PARAM.sub(r"%(\1)s", sql.replace("%", "%%"))


@cache
def _parse(directory: str) -> dict[str, str]:
    found: dict[str, str] = {}
    folder = resources.files("perdure.store") / "sql" / directory
    for file in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if file.name.endswith(".sql"):
            found |= _split(file.read_text("utf-8"))
    return found


def _split(text: str) -> dict[str, str]:
    parts = _HEAD.split(text)[1:]
    bodies = (_COMMENT.sub("", body).strip().rstrip(";") for body in parts[1::2])
    return dict(zip(parts[::2], (" ".join(body.split()) for body in bodies), strict=True))


def _expand(text: str, raw: dict[str, str]) -> str:
    def fill(slot: re.Match[str]) -> str:
        name = slot.group(1)
        return _expand(raw[name], raw) if name in raw else ", ".join(rows.COLUMNS[name])

    return _SLOT.sub(fill, text)
