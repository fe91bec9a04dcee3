"""psycopg's errors as ours. Decides, for every error a Postgres driver can raise, what it means for what
was being written.

The meaning is in the SQLSTATE; errors without one come from the client: the connection broke, or a value
cannot be sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.errors import (
    DurableConflictError,
    DurableLimitError,
    DurableStorageError,
    InvalidInputError,
    PerdureError,
)
from perdure.store.driver import StoreBusy, StoreLost

if TYPE_CHECKING:
    import psycopg

_BUSY = frozenset({"40001", "40P01", "40003", "55P03", "55006", "57014"})
"""Serialization failure, deadlock, lock or statement timeout: nothing was written, the same may succeed
next time."""

_LOST_CLASSES = frozenset({"08"})
_LOST = frozenset(
    {
        "57P01",  # the server, or somebody, ended the connection
        "57P02",  # another backend crashed
        "57P03",  # starting up or shutting down
        "57P05",  # idle for too long
        "53300",  # no connection is free
        "25P03",  # idle in a transaction for too long
        "25P04",  # the transaction took too long
        "25006",  # read only: a failover has made this server the standby
    }
)


def load_psycopg() -> Any:
    """The psycopg module, imported at first use: SQLite users need not have it."""
    try:
        import psycopg  # optional dependency
        import psycopg_pool  # noqa: F401  (the same extra)
    except ImportError as error:
        raise DurableStorageError(
            "Postgres needs psycopg, which is not installed: pip install 'perdure[postgres]'"
        ) from error
    return psycopg


def translate(error: psycopg.Error, *, is_ambiguous: bool = False) -> PerdureError | StoreBusy | StoreLost:
    """What `error` means. `is_ambiguous`: a commit may have been under way, should the connection have
    broken."""
    state = error.sqlstate
    if state is None:
        return _translate_client(error, is_ambiguous)
    text = _text(error)
    if state in _BUSY:
        return StoreBusy(text)
    if state in _LOST or state[:2] in _LOST_CLASSES:
        return StoreLost(text, is_ambiguous=is_ambiguous)
    if state == "23505":
        return DurableConflictError(text)
    if state[:2] == "54":
        return DurableLimitError(text)
    if state[:2] in ("22", "23"):
        return InvalidInputError(error.diag.column_name or "data", text)
    return DurableStorageError(text)


def _translate_client(error: psycopg.Error, is_ambiguous: bool) -> PerdureError | StoreLost:
    psycopg = load_psycopg()
    text = _text(error)
    if isinstance(error, psycopg.OperationalError):
        return StoreLost(text, is_ambiguous=is_ambiguous)
    if isinstance(error, psycopg.DataError):
        return InvalidInputError("data", text)
    return DurableStorageError(text)


def _text(error: psycopg.Error) -> str:
    # The detail line may quote stored values; people's data stays out of messages and logs.
    first = error.diag.message_primary or str(error).strip().split("\n", 1)[0]
    return f"postgres: {first or type(error).__name__}" + (f" ({error.sqlstate})" if error.sqlstate else "")
