"""Fixtures for every test: the two stores, real, and a detector of calls that block the event loop.

`store_url` runs a test once on SQLite and once on Postgres; test bodies never name a store. The Postgres
server starts when the first test needs it; see tests/support/postgres.py.
"""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import hypothesis
import psycopg
import pytest
from blockbuster import BlockBuster

import perdure
from tests.support import postgres

# No deadline: tests never assert how long something took, and two workers share two cores.
hypothesis.settings.register_profile("perdure", deadline=None, print_blob=True)
hypothesis.settings.load_profile("perdure")

_PACKAGE = str(Path(perdure.__path__[0])) + os.sep
_TESTS = str(Path(__file__).parent) + os.sep


# --- stores --------------------------------------------------------------------------------------------


def pytest_configure(config: pytest.Config) -> None:
    """The controlling process chooses where the server will live; the first test that needs it starts it."""
    if _is_controller(config):
        postgres.remove_abandoned()
        os.environ[postgres.DIRECTORY_VARIABLE] = str(postgres.new_directory())


def pytest_unconfigure(config: pytest.Config) -> None:
    if _is_controller(config) and (directory := os.environ.pop(postgres.DIRECTORY_VARIABLE, None)):
        postgres.PostgresServer(directory=Path(directory)).delete()


def _is_controller(config: pytest.Config) -> bool:
    return not hasattr(config, "workerinput")


@pytest.hookimpl(tryfirst=True)  # before `-m "not postgres"` is applied
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs the server by the fixtures it asks for, so that nobody has to remember to."""
    for item in items:
        if {"postgres_dsn", "postgres_server"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.postgres)


@pytest.fixture(scope="session")
def postgres_admin() -> Iterator[psycopg.Connection]:
    """A connection that creates and drops databases, one for each process of the test session."""
    with psycopg.connect(postgres.admin_dsn(), autocommit=True) as connection:
        yield connection


@pytest.fixture
def postgres_dsn(postgres_admin: psycopg.Connection) -> Iterator[str]:
    """The DSN of an empty database that only this test uses."""
    with postgres.temporary_database(postgres_admin) as dsn:
        yield dsn


@pytest.fixture
def postgres_server() -> Iterator[postgres.PostgresServer]:
    """A running server that only this test uses, with fsync on: it may be stopped, restarted and killed."""
    server = postgres.PostgresServer(directory=postgres.new_directory(), is_durable=True)
    try:
        server.start()
        yield server
    finally:
        server.delete()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty store: the test runs once for each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'perdure.db'}"
    return request.getfixturevalue("postgres_dsn")


# --- the event loop never waits ------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def blocking_calls_fail(request: pytest.FixtureRequest, blocking_calls: BlockBuster) -> Iterator[None]:
    """In an async test, a call of the package that blocks the test's event loop raises BlockingError.

    Only calls whose nearest frame, looking outwards, is the package's own count: a body that a test wrote may
    block. Other threads may block too: they are where the package's blocking calls belong.
    """
    if not inspect.iscoroutinefunction(getattr(request, "function", None)):
        yield
        return
    blocking_calls.activate()
    try:
        yield
    finally:
        blocking_calls.deactivate()


@pytest.fixture(scope="session")
def blocking_calls() -> BlockBuster:
    """The detector, switched off. Session-wide, since building it looks at sixty functions."""
    detector = BlockBuster("perdure")
    for function in detector.functions.values():
        function.can_block_predicate = _allowed(function.can_block_predicate)
    return detector


def _allowed(builtin: Callable[..., bool]) -> Callable[..., bool]:
    def is_allowed(*args: Any, **kwargs: Any) -> bool:
        if threading.current_thread() is not threading.main_thread():
            return True
        return builtin(*args, **kwargs) or not _is_called_by_package(inspect.currentframe())

    return is_allowed


def _is_called_by_package(frame: FrameType | None) -> bool:
    """Whether the package is met before the tests are, going outwards; libraries are passed over."""
    while frame is not None:
        filename = frame.f_code.co_filename
        if filename.startswith(_PACKAGE):
            return True
        if filename.startswith(_TESTS) and filename != __file__:
            return False
        frame = frame.f_back
    return False
