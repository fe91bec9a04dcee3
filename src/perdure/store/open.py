"""Store addresses. Decides which driver an address means; imports only that one."""

from __future__ import annotations

from urllib.parse import parse_qs, unquote, urlsplit

from perdure.errors import DurableStorageError, InvalidInputError
from perdure.store.driver import Driver
from perdure.store.sql_store import SqlStore

_FORMS = "sqlite:///relative.db, sqlite:////absolute.db, a file path, or postgresql://user@host/database"


def open_store(url: str) -> SqlStore:
    """Open the store at `url`, creating or migrating it. Blocks: call it before the loop runs or in a thread.

    `InvalidInputError` for an address of no known form; `DurableStorageError` if it cannot or must not be
    opened.
    """
    scheme = url.partition("://")[0] if "://" in url else ""
    match scheme:
        case "" | "sqlite":
            return SqlStore(_sqlite(url))
        case "postgresql" | "postgres":
            return SqlStore(_postgres(url))
        case _:
            raise InvalidInputError("store", f"{scheme}:// is not a store; use {_FORMS}")


def sqlite_path(url: str) -> str:
    """The file that an SQLite URL names. `InvalidInputError` if it names none, or is another's."""
    if "://" in url and not url.startswith("sqlite://"):
        raise InvalidInputError("store", f"{url.partition('://')[0]}:// names no SQLite file; use {_FORMS}")
    return _sqlite_path(url)[0]


def _sqlite(url: str) -> Driver:
    from perdure.store.sqlite import SqliteDriver  # a Postgres user needs none of it

    path, options = _sqlite_path(url)
    unknown = options.keys() - {"allow_network_fs"}
    if unknown:
        raise InvalidInputError("store", f"unknown option {', '.join(sorted(unknown))}; known: allow_network_fs")
    return SqliteDriver(path, url=url, is_network_allowed=options.get("allow_network_fs") in ("1", "true"))


def _sqlite_path(url: str) -> tuple[str, dict[str, str]]:
    if "://" not in url:
        path, options = url, {}
    else:
        parts = urlsplit(url)
        if parts.netloc or not parts.path.startswith("/") or parts.fragment:
            raise InvalidInputError("store", f"{url} names no file; use {_FORMS}")
        path = unquote(parts.path[1:])
        options = {key: values[-1] for key, values in parse_qs(parts.query, keep_blank_values=True).items()}
    if not path or path.startswith(":memory:") or "\0" in path or path.endswith("/"):
        raise InvalidInputError("store", f"{url!r} names no file; what must last needs one. Use {_FORMS}")
    return path, options


def _postgres(url: str) -> Driver:
    try:
        from perdure.store.postgres import PostgresDriver  # optional dependency: perdure[postgres]
    except ModuleNotFoundError as error:
        raise DurableStorageError(f"{error}; install perdure[postgres] to use Postgres") from error
    return PostgresDriver(url)
