"""The URL of a Postgres store. Decides which of its parameters are ours and which are libpq's; connects to
nothing.

`postgresql://user:secret@host/base?schema=perdure&direct=...&prepare=0`, ours being:

- `schema`: where the tables live (default `perdure`).
- `direct`: a DSN past the connection pooler, for advisory locks and LISTEN; `none` to do without. Not
  given: the URL itself, if the server proves to be connected directly.
- `prepare`: `0` to prepare no statements, `1` to prepare them behind a pooler too. Not given: only when
  connected directly.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from perdure.errors import InvalidInputError

SCHEMES = ("postgresql", "postgres")
DEFAULT_SCHEMA = "perdure"
_SCHEMA = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_KEYWORD = re.compile(r"(\w+)\s*=\s*(?:'((?:[^'\\]|\\.)*)'|((?:[^\s'\\]|\\.)*))(?:\s+|\Z)", re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_MAX_SCHEMA_BYTES = 50
"""Leaves room for the channel's prefix in the 63 bytes of a Postgres name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresUrl:
    """What a URL says. `direct` is None for "not given" and empty for "none"; `prepare` is None for "not
    given"."""

    conninfo: str
    direct: str | None
    schema: str
    prepare: bool | None

    @property
    def channel(self) -> str:
        """The NOTIFY channel of this schema."""
        return f"perdure_{self.schema}"


def parse(url: str) -> PostgresUrl:
    """Split a URL. `InvalidInputError` names the parameter that is wrong; passwords are in no message."""
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        raise InvalidInputError("url", f"expected postgresql://..., got {parts.scheme or 'no scheme'}://")
    given = parse_qsl(parts.query, keep_blank_values=True)
    own = {name: value for name, value in given if name in ("schema", "direct", "prepare")}
    # quote, not quote_plus: libpq takes a plus sign for a plus sign
    query = urlencode([pair for pair in given if pair[0] not in own], quote_via=quote)
    return PostgresUrl(
        conninfo=_joined("postgresql", parts.netloc, parts.path, query),
        direct=_direct(own.get("direct")),
        schema=check_schema(own.get("schema", DEFAULT_SCHEMA)),
        prepare=_prepare(own.get("prepare")),
    )


def redacted(url: str) -> str:
    """The URL as people may see it: without passwords."""
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    name, colon, _ = user.partition(":")
    query = [
        (key, "***" if key in ("password", "sslpassword", "direct") else value) for key, value in parse_qsl(parts.query)
    ]
    return _joined(
        parts.scheme,
        f"{name}{':***' if colon else ''}{at}{host}",
        parts.path,
        urlencode(query, quote_via=quote, safe="/*"),
    )


def with_schema(connection_string: str, schema: str) -> str:
    """A URL, or libpq's keywords (`host=... dbname=...`), as a URL that names the schema. One that the URL names itself
    stands if `schema` is the default. `InvalidInputError` for what is neither, or names two schemas."""
    is_url = connection_string.lstrip().startswith(tuple(f"{scheme}://" for scheme in SCHEMES))
    url = connection_string.strip() if is_url else _from_keywords(connection_string)
    named = dict(parse_qsl(urlsplit(url).query, keep_blank_values=True)).get("schema")
    if named is None:
        return f"{url}{'&' if '?' in url else '?'}schema={schema}"
    if schema not in (named, DEFAULT_SCHEMA):
        raise InvalidInputError("schema", f"is {schema!r}, the connection string names {named!r}")
    check_schema(named)
    return url


def _from_keywords(text: str) -> str:
    """The URL for libpq's `key = value` pairs, whose values may be in single quotes with backslash escapes."""
    query: list[tuple[str, str]] = []
    rest = text.strip()
    while rest:
        pair = _KEYWORD.match(rest)
        if pair is None:
            # Not quoted: it may hold a password.
            raise InvalidInputError("connection_string", "is neither postgresql://... nor libpq's key=value pairs")
        key, quoted, plain = pair.groups()
        query.append((key, _ESCAPED.sub(r"\1", plain if quoted is None else quoted)))
        rest = rest[pair.end() :]
    return _joined("postgresql", "", "", urlencode(query, quote_via=quote))


def _joined(scheme: str, netloc: str, path: str, query: str) -> str:
    """`urlunsplit` leaves the slashes out when there is no host, and libpq takes that for keywords."""
    return f"{scheme}://{netloc}{path}{'?' if query else ''}{query}"


def check_schema(name: str) -> str:
    """The name as it is. `InvalidInputError` if it is none, or too long."""
    if not isinstance(name, str) or not _SCHEMA.match(name) or len(name) > _MAX_SCHEMA_BYTES:
        raise InvalidInputError(
            "schema", f"{unquote(str(name))!r} is no name: letters, digits and _ only, at most {_MAX_SCHEMA_BYTES}"
        )
    return name


def _direct(value: str | None) -> str | None:
    if value is None:
        return None
    return "" if value in ("", "none", "0") else value


def _prepare(value: str | None) -> bool | None:
    choices = {None: None, "0": False, "1": True}
    if value not in choices:
        raise InvalidInputError("prepare", f"expected 0 or 1, got {value!r}")
    return choices[value]
