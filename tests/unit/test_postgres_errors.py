"""No error of the driver reaches a caller: each means something of ours."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import psycopg.errors
import psycopg_pool
import pytest

from perdure.errors import (
    DurableConflictError,
    DurableLimitError,
    DurableStorageError,
    InvalidInputError,
    PerdureError,
)
from perdure.store.driver import StoreBusy, StoreLost
from perdure.store.postgres_errors import translate


def _all(error: type[psycopg.Error]) -> Iterator[type[psycopg.Error]]:
    yield error
    for below in error.__subclasses__():
        yield from _all(below)


EVERY = sorted(set(_all(psycopg.Error)), key=lambda error: error.__qualname__)


def test_every_error_is_mapped() -> None:
    """All errors of psycopg and of its pool, those made for SQLSTATEs included."""
    assert {psycopg_pool.PoolTimeout, psycopg.errors.UniqueViolation, psycopg.errors.DiskFull} < set(EVERY)
    for error in EVERY:
        assert isinstance(translate(error("words")), (PerdureError, StoreBusy, StoreLost)), error


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (psycopg.errors.UniqueViolation, DurableConflictError),
        (psycopg.errors.NotNullViolation, InvalidInputError),
        (psycopg.errors.CharacterNotInRepertoire, InvalidInputError),
        (psycopg.errors.UntranslatableCharacter, InvalidInputError),
        (psycopg.errors.ProgramLimitExceeded, DurableLimitError),
        (psycopg.errors.DiskFull, DurableStorageError),
        (psycopg.errors.InsufficientPrivilege, DurableStorageError),
        (psycopg.errors.UndefinedTable, DurableStorageError),
        (psycopg.errors.DataCorrupted, DurableStorageError),
        (psycopg.errors.DeadlockDetected, StoreBusy),
        (psycopg.errors.SerializationFailure, StoreBusy),
        (psycopg.errors.LockNotAvailable, StoreBusy),
        (psycopg.errors.QueryCanceled, StoreBusy),
        (psycopg.errors.AdminShutdown, StoreLost),
        (psycopg.errors.CrashShutdown, StoreLost),
        (psycopg.errors.CannotConnectNow, StoreLost),
        (psycopg.errors.IdleSessionTimeout, StoreLost),
        (psycopg.errors.TooManyConnections, StoreLost),
        (psycopg.errors.ReadOnlySqlTransaction, StoreLost),
        (psycopg.errors.ConnectionFailure, StoreLost),
        (psycopg_pool.PoolTimeout, StoreLost),
        (psycopg.OperationalError, StoreLost),
        (psycopg.DataError, InvalidInputError),
        (psycopg.InterfaceError, DurableStorageError),
        (psycopg.ProgrammingError, DurableStorageError),
    ],
)
def test_error_means(error: type[psycopg.Error], meaning: type[Exception]) -> None:
    """What is tried again, what is the content's fault, and what is the server's."""
    assert type(translate(error("words"))) is meaning


@pytest.mark.parametrize("is_ambiguous", [False, True])
def test_lost_connection_says_whether_a_commit_was_under_way(is_ambiguous: bool) -> None:
    """Only a connection that was lost leaves anything in doubt."""
    lost = translate(psycopg.OperationalError("gone"), is_ambiguous=is_ambiguous)
    assert isinstance(lost, StoreLost)
    assert lost.is_ambiguous is is_ambiguous
