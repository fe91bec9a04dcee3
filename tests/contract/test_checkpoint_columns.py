"""What people who query the tables see of a checkpoint that was put by hand. Nothing reads it back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support import database, kept

from perdure.store.checkpoints import shown
from perdure.store.open import open_store
from perdure.store.sql_store import SqlStore

_STATE = {"order": {"id": 7}, "text": "a\0b \ud800 \\u0000 😀"}


@contextmanager
def _opened(url: str) -> Iterator[SqlStore]:
    store = open_store(url)
    assert isinstance(store, SqlStore)
    try:
        yield store
    finally:
        store.close_now()


def _put(url: str) -> None:
    with _opened(url) as store:
        row = kept.row("c1", state_snapshot=_STATE, node_id="n\0", node_index=3, interrupt_reason=None)
        store.checkpoints.checkpoint_put(row)


def test_sqlite_shows_json(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'perdure.db'}"
    _put(url)
    columns = "json_extract(state_snapshot, '$.order.id'), node_index, interrupt_reason"
    assert database.execute(url, f"SELECT {columns} FROM checkpoint") == [(7, 3, None)]


def test_postgres_shows_jsonb_and_times(postgres_dsn: str) -> None:
    """NUL and lone surrogates, which JSONB refuses, are there as the characters of their escapes."""
    _put(postgres_dsn)
    columns = (
        "state_snapshot ->> 'text', CAST(state_snapshot #>> '{order,id}' AS int), node_id, node_index, "
        "interrupt_reason, created_at = to_timestamp(put_at)"
    )
    (found,) = database.execute(postgres_dsn, f"SELECT {columns} FROM checkpoint")
    assert found == ("a\\u0000b \\ud800 \\u0000 😀", 7, "n\\u0000", 3, None, True)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (r'"plain"', r'"plain"'),
        (r'"\u0000"', r'"\\u0000"'),
        (r'"\u0000\u0000"', r'"\\u0000\\u0000"'),
        (r'"\\u0000"', r'"\\u0000"'),
        (r'"\\\u0000"', r'"\\\\u0000"'),
        (r'"\n\u0000\""', r'"\n\\u0000\""'),
        (r'"\ud83d\ude00"', r'"\ud83d\ude00"'),
        (r'"\ude00\ud83d"', r'"\\ude00\\ud83d"'),
        (r'"\ud83d\ud83d\ude00"', r'"\\ud83d\ud83d\ude00"'),
        (r'"\u0001\u00e9"', r'"\u0001\u00e9"'),
    ],
)
def test_what_jsonb_refuses_is_spelled_out(content: str, expected: str) -> None:
    assert shown(content) == expected
