"""Defaults and bounds, and where things are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perdure.core.settings import EngineSettings, Limits, get_config
from perdure.errors import DurableLimitError, InvalidInputError

_TIMES = ("lease_s", "stay_s", "grace_s", "poll_s")


def test_defaults():
    settings = EngineSettings()
    assert (settings.lease_s, settings.stay_s, settings.grace_s, settings.poll_s) == (15.0, 10.0, 10.0, 0.1)
    assert (settings.limits.max_payload_bytes, settings.limits.max_operations) == (1024 * 1024, 10_000)


@pytest.mark.parametrize(
    "wrong",
    [
        {"lease_s": 0},
        {"lease_s": -1},
        {"poll_s": 0},
        {"stay_s": -0.1},
        {"grace_s": -1},
        {"max_concurrent_runs": 0},
        *({name: wrong} for name in _TIMES for wrong in (float("nan"), float("inf"), "1", None, True, 1j)),
        *({"max_concurrent_runs": wrong} for wrong in (1.5, "2", None, True, float("nan"))),
        {"limits": 7},
    ],
)
def test_senseless_settings_are_refused_and_named(wrong: dict[str, Any]):
    with pytest.raises(InvalidInputError) as caught:
        EngineSettings(**wrong)
    assert caught.value.field == next(iter(wrong))


@pytest.mark.parametrize("name", ["max_payload_bytes", "max_operations"])
@pytest.mark.parametrize("wrong", [0, -1, 1.5, float("inf"), "9", None, True])
def test_senseless_limits_are_refused_and_named(name: str, wrong: Any):
    with pytest.raises(InvalidInputError) as caught:
        Limits(**{name: wrong})
    assert caught.value.field == name


def test_a_payload_over_the_limit_is_refused_with_its_name():
    Limits(max_payload_bytes=4).check_payload("the input", "1234")
    with pytest.raises(DurableLimitError, match="the input has 5 bytes"):
        Limits(max_payload_bytes=4).check_payload("the input", "12345")


def test_nothing_to_wait_for_is_allowed():
    assert EngineSettings(stay_s=0, grace_s=0).grace_s == 0
    assert Limits(max_operations=1).max_operations == 1


def test_where_the_store_is(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("PERDURE_STORE", raising=False)
    monkeypatch.delenv("PERDURE_LOCAL_DB", raising=False)
    assert get_config().store_url == f"sqlite:///{Path('.perdure') / 'local.db'}"
    monkeypatch.setenv("PERDURE_LOCAL_DB", "/somewhere/a.db")
    assert get_config().store_url == "sqlite:////somewhere/a.db"
    assert get_config().resolved_checkpoint_db_path == "/somewhere/a.db"
    monkeypatch.setenv("PERDURE_STORE", "postgresql://h/d")
    assert get_config().store_url == "postgresql://h/d"
