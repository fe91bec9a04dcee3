"""Connection strings of Postgres stores: URLs without a host, libpq's keywords, and the schema they name."""

from __future__ import annotations

import psycopg
import pytest

from perdure.errors import InvalidInputError
from perdure.store import postgres_url


@pytest.mark.parametrize("url", ["postgresql:///base?host=%2Ftmp%2Fx", "postgresql://?host=%2Ftmp%2Fx&dbname=base"])
def test_a_url_without_a_host_stays_one(url: str) -> None:
    """Its slashes tell it from keywords."""
    expected = {"dbname": "base", "host": "/tmp/x"}
    assert psycopg.conninfo.conninfo_to_dict(postgres_url.parse(f"{url}&schema=s1").conninfo) == expected
    assert postgres_url.redacted(f"{url}&password=x").startswith("postgresql://")


@pytest.mark.parametrize(
    "keywords",
    [
        "host=/tmp/x dbname=base",
        " host = /tmp/x  dbname='my base' ",
        r"dbname='it\'s \\ me' password='a b' user=ann",
        r"user=a\'b password=''",
        "host=h\tport=5433\nsslmode=require",
        "",
    ],
)
def test_keywords_mean_what_they_mean_to_libpq(keywords: str) -> None:
    url = postgres_url.with_schema(keywords, "s1")
    parsed = postgres_url.parse(url)
    assert parsed.schema == "s1"
    assert psycopg.conninfo.conninfo_to_dict(parsed.conninfo) == psycopg.conninfo.conninfo_to_dict(keywords)


@pytest.mark.parametrize("text", ["host", "host=a b", "host='open", "=x", "mysql://h/d", "'a'=b"])
def test_what_is_neither_is_refused_without_being_shown(text: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        postgres_url.with_schema(text, "s1")
    assert caught.value.field == "connection_string"
    assert text not in str(caught.value)


def test_with_schema() -> None:
    assert postgres_url.with_schema("postgresql://h/d", "s1") == "postgresql://h/d?schema=s1"
    assert (
        postgres_url.with_schema("postgres://h/d?sslmode=require", "s1") == "postgres://h/d?sslmode=require&schema=s1"
    )
    assert postgres_url.with_schema("postgresql://h/d?schema=s2", "perdure") == "postgresql://h/d?schema=s2"
    assert postgres_url.with_schema("postgresql://h/d?schema=s2", "s2") == "postgresql://h/d?schema=s2"
