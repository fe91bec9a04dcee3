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
