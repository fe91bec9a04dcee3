"""The one table of run states, and the keys of operations."""

from __future__ import annotations

import pytest

from perdure.core import keys
from perdure.core.states import CLAIMABLE, TERMINAL, TRANSITIONS, Status, is_terminal, may_follow


def test_every_status_has_its_row():
    assert set(TRANSITIONS) == set(Status)


def test_terminal_is_final_but_for_the_retry_of_a_failed_run():
    for status in TERMINAL:
        allowed = {new for new in Status if may_follow(status, new)}
        assert allowed == ({Status.PENDING} if status is Status.FAILED else set())
        assert is_terminal(status)


def test_only_a_running_run_completes_or_fails():
    for end in (Status.COMPLETED, Status.FAILED):
        assert {old for old in Status if may_follow(old, end)} == {Status.RUNNING}


def test_whatever_has_not_ended_can_be_cancelled():
    assert {old for old in Status if may_follow(old, Status.CANCELLED)} == set(Status) - TERMINAL


def test_every_claimable_status_may_run():
    for status in (*CLAIMABLE, Status.WAITING, Status.RETRY_WAIT):
        assert may_follow(status, Status.RUNNING)
    assert not may_follow(Status.NEEDS_ATTENTION, Status.RUNNING)


def test_no_status_is_a_dead_end_or_out_of_reach():
    reached = {Status.QUEUED, Status.PENDING}
    while new := {n for old in reached for n in TRANSITIONS[old]} - reached:
        reached |= new
    assert reached == set(Status)


# --- keys ---------------------------------------------------------------------------------------------


def test_keys_of_operations_and_paths():
    assert keys.operation_key("", 3) == "3"
    assert keys.operation_key("~0/~2", 3) == "~0/~2/3"
    assert keys.task_path("", 0) == "~0"
    assert keys.task_path("~0", 2) == "~0/~2"
    assert keys.body_path("~0/3") == "~0/3!"
    assert keys.idempotency_path("pay", "abc") == "@pay:abc"
    assert keys.operation_id("r1", "~0/3") == "r1/~0/3"


def test_operations_of_different_runs_have_different_ids():
    """A provider that is handed one id twice performs one of the two."""
    inside_a_nested_workflow = keys.operation_id("c", "0/0")
    assert keys.operation_id("c/0", "0") != inside_a_nested_workflow
    assert keys.operation_id("c%2F0", "0") != keys.operation_id("c/0", "0")


@pytest.mark.parametrize("run_id", ["ä ö", "\u20ac" * 256, "r" * 256, "a/b?c#d"])
@pytest.mark.parametrize("key", ["0", "~1/" * 100 + "0", keys.idempotency_path("größe\u2028", "0" * 32) + "/0"])
def test_an_operation_id_is_fit_for_a_header(run_id: str, key: str):
    made = keys.operation_id(run_id, key)
    assert len(made) <= 200
    assert all("!" <= char <= "~" for char in made)


@pytest.mark.parametrize("run_id", ["r1", "c/0", "ä ö", "r" * 256])
def test_the_key_of_an_operation_is_found_again_by_its_id(run_id: str):
    known = ["0", "0/0", "~1/2!/0", "@pay:00/0"]
    for key in known:
        assert keys.key_of(keys.operation_id(run_id, key), run_id, known) == key
        assert keys.key_of(keys.operation_id("other", key), run_id, known) is None
    assert keys.key_of(keys.operation_id(run_id, "7"), run_id, known) is None


@pytest.mark.parametrize("name", ["a/b", "a!b", "~0", "ü"])
def test_a_name_does_not_change_what_its_path_means(name: str):
    assert keys.is_ordered(keys.patch_path(name))
    assert not keys.is_ordered(keys.idempotency_path(name, "00"))
    assert keys.idempotency_path(name, "00").count("/") == keys.patch_path(name).count("/") == 0


@pytest.mark.parametrize(
    ("path", "expected"), [("", True), ("~0", True), ("0/~1", True), ("0!", False), ("0!/~1", False), ("@f:k", False)]
)
def test_only_workflow_code_is_ordered(path: str, expected: bool):
    assert keys.is_ordered(path) is expected


def test_below_means_inside_at_any_depth_and_not_merely_a_common_beginning():
    assert keys.is_below("0", "0")
    assert keys.is_below("0!", "0")
    assert keys.is_below("0/~1/2!", "0")
    assert not keys.is_below("01", "0")
    assert not keys.is_below("", "0")


def test_ancestors():
    assert keys.is_same_or_ancestor("~0/3!", "~0")
    assert keys.is_same_or_ancestor("~0", "~0")
    assert keys.is_same_or_ancestor("~0", "")
    assert keys.is_same_or_ancestor("~0!", "~0")
    assert not keys.is_same_or_ancestor("~01", "~0")
    assert not keys.is_same_or_ancestor("", "~0")
