"""What is typed: an answer is exactly what it says, JSON is exactly JSON. What is shown: always JSON."""

from __future__ import annotations

import dataclasses
import json
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from perdure.cli import values
from perdure.errors import InvalidInputError


@pytest.mark.parametrize(
    ("text", "approved", "metadata"),
    [
        ('{"approved": true}', True, {}),
        ('{"approved": false, "metadata": {}}', False, {}),
        (
            ' {"metadata": {"ticket": "T-1", "n": [1, null]}, "approved": true} ',
            True,
            {"ticket": "T-1", "n": [1, None]},
        ),
    ],
)
def test_an_answer_says_what_it_says(text: str, approved: bool, metadata: dict[str, object]) -> None:
    answer = values.parse_answer(text)

    assert (answer.approved, answer.metadata) == (approved, metadata)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "yes",
        "true",
        "1",
        "null",
        "[]",
        "{}",
        '"approved"',
        '{"metadata": {}}',
        '{"approved": "yes"}',
        '{"approved": "true"}',
        '{"approved": 1}',
        '{"approved": 0}',
        '{"approved": null}',
        '{"approved": true, "metadata": null}',
        '{"approved": true, "metadata": []}',
        '{"approved": true, "answered_by": "the boss"}',
        '{"approved": true, "data": {"amount": 500}}',
        '{"Approved": true}',
        '{"approved": false, "approved": true}',
        '{"approved": true} {"approved": false}',
        '{"approved": true, "metadata": {"n": NaN}}',
        '{"approved": true,}',
        "{'approved': true}",
    ],
)
def test_peer_A8_E7_nothing_else_is_an_answer(text: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        values.parse_answer(text)

    assert caught.value.field == "--value"


@pytest.mark.parametrize("text", ["{", "NaN", "-Infinity", '{"a": 1, "a": 2}', "01", "'a'", "[" * 100_000])
def test_what_json_does_not_have_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError):
        values.parse_json(text, "--input")


def test_anything_can_be_shown_as_json() -> None:
    @dataclasses.dataclass
    class Thing:
        amount: Decimal

    shown = values.plain(
        {
            "decimal": Decimal("1.10"),
            "float": float("nan"),
            "when": datetime(2026, 3, 1, tzinfo=UTC),
            "thing": Thing(Decimal("2")),
            ("a", 1): {1, 2},
            None: b"\xff",
            "object": object,
        }
    )

    assert json.loads(json.dumps(shown, allow_nan=False))["decimal"] == "1.10"
    assert shown["float"] == "nan"
    assert shown["when"] == "2026-03-01T00:00:00+00:00"
    assert shown["thing"] == {"amount": "2"}


def test_a_stored_text_that_cannot_be_decoded_is_shown_as_it_is() -> None:
    assert values.decoded('{"a": 1}') == {"a": 1}
    assert values.decoded("not json") == {"undecodable": "not json"}
    assert values.decoded(None) is None


def test_a_moment_is_utc_to_the_millisecond() -> None:
    assert values.moment(1_772_323_200.5) == "2026-03-01T00:00:00.500Z"
    assert values.moment(None) is None
