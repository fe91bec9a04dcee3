"""Schema versions. Decides which migrations are still to be applied; a driver applies them under its own
lock.

A migration is `migrations/<dialect>/NNNN_<name>.sql`, immutable once released; its number is the schema's
version.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources

from perdure.errors import DurableStorageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """One step of the schema."""

    version: int
    name: str
    sql: str


@cache
def migrations(dialect: str) -> tuple[Migration, ...]:
    """All steps, ascending, without gaps."""
    folder = resources.files("perdure.store") / "migrations" / dialect
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".sql")), key=lambda file: file.name)
    return tuple(
        Migration(version=int(file.name[:4]), name=file.name[5:-4], sql=file.read_text("utf-8")) for file in files
    )


def pending(dialect: str, version: int, url: str) -> tuple[Migration, ...]:
    """Steps a store at `version` still needs. `DurableStorageError` if the store is newer than this code:
    nothing is touched."""
    steps = migrations(dialect)
    newest = steps[-1].version
    if version > newest:
        raise DurableStorageError(
            f"the store at {url} has schema version {version}, this perdure knows {newest}; upgrade perdure"
        )
    return tuple(step for step in steps if step.version > version)
