"""What is left of a program when nobody runs it any more: the tables of its store, the ledger, what people were told.

Reads, and decides nothing but how rows become values.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perdure.core.records import Loaded
from perdure.store import rows
from perdure.testing.ledger import Line, Told, read, read_told

Row = dict[str, Any]

_TOKEN = re.compile(r"tok-[a-z0-9-]+?-[0-9a-f]{32}")
_TABLES = ("run", "record", "interrupt", "worker")


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All that is left of a program: the tables, the ledger, what the last person was told, and who was
    killed."""

    runs: Sequence[Row]
    records: Sequence[Row]
    interrupts: Sequence[Row]
    lines: Sequence[Line]
    outcome: dict[str, Any]
    killed: frozenset[str] = frozenset()
    told: Sequence[Told] = ()


def read_tables(url: str) -> dict[str, list[Row]]:
    """The tables of a store that nobody writes to any more, rows as dicts."""
    if url.startswith("sqlite:///"):
        import sqlite3  # only the driver that is used

        connection = sqlite3.connect(url.removeprefix("sqlite:///"))
        connection.row_factory = sqlite3.Row
    else:
        import psycopg  # optional dependency: perdure[postgres]
        from psycopg.rows import dict_row

        options = "-c search_path=perdure"
        connection = psycopg.Connection[Any].connect(url, autocommit=True, options=options, row_factory=dict_row)
    try:
        return {
            table: [dict(row) for row in connection.execute(f"SELECT * FROM {table}").fetchall()] for table in _TABLES
        }
    finally:
        connection.close()


def read_facts(url: str, ledger: str | Path, outcome: dict[str, Any], killed: Iterable[str] = ()) -> Facts:
    """Read what is left. `outcome` is what the last process was told."""
    tables = read_tables(url)
    return Facts(
        runs=tables["run"],
        records=sorted(tables["record"], key=lambda row: (row["run_id"], row["seq"])),
        interrupts=tables["interrupt"],
        lines=read(ledger),
        outcome=outcome,
        killed=frozenset(killed),
        told=read_told(ledger),
    )


def tokens_of(text: str | None) -> list[str]:
    """The tokens in a text, in order."""
    return _TOKEN.findall(text or "")


def without_tokens(value: Any) -> Any:
    """The value with what is fresh in each token taken out."""
    match value:
        case str():
            return _TOKEN.sub(lambda found: found.group()[:-33], value)
        case dict():
            return {key: without_tokens(item) for key, item in value.items()}
        case list() | tuple():
            return [without_tokens(item) for item in value]
        case _:
            return value


def loaded(facts: Facts, run: Row) -> Loaded:
    """A run with its records and questions as the store hands them out."""
    return Loaded(
        run=_read("run", run, lambda row: rows.run_row(row, 0.0)),
        records=[_read("record", row, rows.stored_record) for row in facts.records if row["run_id"] == run["id"]],
        interrupts=[
            _read("interrupt", row, rows.interrupt_row) for row in facts.interrupts if row["run_id"] == run["id"]
        ],
        now=0.0,
    )


def _read(table: str, row: Row, reader: Any) -> Any:
    return reader(tuple(row[column.rpartition(".")[2]] for column in rows.COLUMNS[table]))
