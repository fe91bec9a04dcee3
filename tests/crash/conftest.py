"""A fork server for the crash tests, places to run scenarios in on both stores, and the counts at the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.support import postgres

from perdure.store.open import open_store
from perdure.testing.explorer import PostgresSite, Site, SqliteSite
from perdure.testing.zygote import Zygote

COUNTS = ("programs", "points", "kills", "pairs")
_SITES = {"sqlite": 3, "postgres": 4}
"""Scenarios at a time: on Postgres they mostly wait for the server."""


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    """A process that forks children cheaply, one for each process of the test session."""
    server = Zygote()
    yield server
    server.close()


@pytest.fixture
def sqlite_sites(tmp_path: Path) -> list[Site]:
    """Empty SQLite stores, set up."""
    template = tmp_path / "template.db"
    _set_up(f"sqlite:///{template}")
    return [SqliteSite(template, tmp_path / f"site{n}") for n in range(_SITES["sqlite"])]


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def sites(request: pytest.FixtureRequest) -> Iterator[list[Site]]:
    """Empty stores, set up: the test runs once for each kind."""
    if request.param == "sqlite":
        yield request.getfixturevalue("sqlite_sites")
        return
    admin: psycopg.Connection[Any] = request.getfixturevalue("postgres_admin")
    with ExitStack() as databases:
        urls = [databases.enter_context(postgres.temporary_database(admin)) for _ in range(_SITES["postgres"])]
        for url in urls:
            _set_up(url)
        yield [PostgresSite(url) for url in urls]


def _set_up(url: str) -> None:
    store = open_store(url)
    store.close_now()  # type: ignore[attr-defined]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """How much was explored, by store. The counts come with the reports, from whatever process."""
    totals: dict[str, dict[str, int]] = {}
    for report in (*terminalreporter.stats.get("passed", ()), *terminalreporter.stats.get("failed", ())):
        properties = dict(getattr(report, "user_properties", ()))
        if report.when != "call" or "store" not in properties:
            continue
        total = totals.setdefault(properties["store"], dict.fromkeys(COUNTS, 0))
        for name in COUNTS:
            total[name] += properties.get(name, 0)
    for store, total in totals.items():
        terminalreporter.write_line(f"explored on {store}: " + ", ".join(f"{n} {name}" for name, n in total.items()))
