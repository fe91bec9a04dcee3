"""What becomes of an operation that is asked for again, and what a retry or a fork takes over."""

from __future__ import annotations

import pytest
from tests.support.journals import done, stored

from perdure.core.fold import fold
from perdure.core.recovery import Action, decide, drop, fork_records, mismatch, plan_retry, trailing_errors

START = stored(1, "started")


def decided(*records: object) -> Action:
    return decide(fold(records).operations.get("0"))  # type: ignore[arg-type]


def test_decisions():
    assert decide(None) is Action.RUN
    assert decided(START) is Action.RUN
    assert decided(START, done(2)) is Action.RETURN
    assert decided(START, done(2, outcome="error")) is Action.RETURN
    assert decided(START, stored(2, "suspended")) is Action.PARK
    assert decided(START, stored(2, "suspended"), stored(3, "delivered")) is Action.RUN
    assert decided(START, stored(2, "attempt_failed")) is Action.WAIT
    assert decided(stored(1, "started", recovery="manual")) is Action.DOUBT
    assert decided(stored(1, "started", recovery="manual"), stored(2, "repeat")) is Action.RUN
    assert decided(START, done(2, outcome="error"), stored(3, "dropped")) is Action.RUN
    assert decided(stored(1, "started", recovery="safe")) is Action.RUN


@pytest.mark.parametrize("kind", ["step", "effect", "tool", "workflow"])
def test_arguments_are_verified_for_what_acts_outside(kind: str):
    op = fold([done(1, kind=kind)]).operations["0"]
    assert mismatch(op, kind, "f", "d") is None
    assert "other arguments" in (mismatch(op, kind, "f", "other") or "")


@pytest.mark.parametrize("kind", ["model", "route", "timer", "value", "interrupt"])
def test_arguments_may_differ_where_nothing_outside_remembers(kind: str):
    op = fold([done(1, kind=kind)]).operations["0"]
    assert mismatch(op, kind, "f", "other") is None


def test_another_name_or_kind_is_named_with_both():
    op = fold([done(1)]).operations["0"]
    assert mismatch(op, "step", "g", "d") == "the journal has step 'f' at 0, the code calls step 'g'"
    assert "effect 'f'" in (mismatch(op, "effect", "f", "d") or "")


def test_safe_in_doubt_may_have_other_arguments_and_safe_completed_may_not():
    begun = fold([stored(1, "started", recovery="safe")]).operations["0"]
    ended = fold([done(1, recovery="safe")]).operations["0"]
    assert mismatch(begun, "step", "f", "other") is None
    assert mismatch(ended, "step", "f", "other") is not None


def test_both_arguments_are_shown_where_both_are_known():
    op = fold([stored(1, "started", data='{"n":1}')]).operations["0"]
    assert '{"n":1}' in (mismatch(op, "step", "f", "other", '{"n":2}') or "")
    assert '{"n":2}' in (mismatch(op, "step", "f", "other", '{"n":2}') or "")


def keys_of(journal: object) -> list[str]:
    return [op.key for op in trailing_errors(journal)]  # type: ignore[arg-type]


def test_an_error_is_trailing_if_nothing_began_after_it_on_its_path_or_an_ancestors():
    error = done(5, "~0", 0, outcome="error")
    assert keys_of(fold([error])) == ["~0/0"]
    assert keys_of(fold([error, stored(6, "started", "~1", 0)])) == ["~0/0"], "a sibling's start"
    assert keys_of(fold([error, stored(6, "started", "~0", 1)])) == []
    assert keys_of(fold([error, stored(6, "started", "", 0)])) == []


def test_values_and_the_errors_of_keys_are_never_dropped():
    assert keys_of(fold([done(1), done(2, "@f:k", 0, outcome="error")])) == []


def test_only_what_is_below_counts_for_an_attempt():
    records = [
        stored(1, "started"),
        done(2, "0!", 0, outcome="error"),
        done(3, "", 1, outcome="error"),
        stored(4, "started", "", 2),
    ]
    assert [op.key for op in trailing_errors(fold(records), "0")] == ["0!/0"]


def test_a_retry_forgets_trailing_errors():
    journal = fold([done(1), done(2, index=1, outcome="error", name="pay")])
    plan = plan_retry(journal, "1")
    assert plan.blocked_by is None
    assert [(r.type, r.index, r.name) for r in plan.drops] == [("dropped", 1, "pay")]


def test_a_handled_error_that_failed_the_run_blocks_its_retry():
    journal = fold([done(1, outcome="error"), done(2, index=1)])
    plan = plan_retry(journal, "0")
    assert plan.drops == ()
    assert plan.blocked_by is journal.operations["0"]


def test_a_retry_of_a_run_that_failed_by_itself_has_nothing_to_forget():
    assert plan_retry(fold([done(1)]), None).drops == ()


def test_dropping_makes_an_operation_begin_anew():
    journal = fold([done(1, outcome="error")])
    record = drop(journal.operations["0"])
    journal.apply(stored(2, record.type, record.path, record.index))
    assert decide(journal.operations["0"]) is Action.RUN


def test_a_fork_takes_over_what_had_ended_at_its_point():
    records = [
        stored(1, "submitted", data="5"),
        stored(2, "started", index=0),
        done(3, index=0),
        stored(4, "started", index=1),
        done(5, index=1),
        stored(6, "status", outcome="completed"),
    ]
    assert [(r.type, r.index) for r in fork_records(records, 4)] == [
        ("submitted", 0),
        ("started", 0),
        ("completed", 0),
    ]
    assert [r.type for r in fork_records(records, 99)].count("status") == 0


def test_a_fork_takes_no_decision_no_doubt_and_no_open_question_over_but_timers():
    records = [
        stored(1, "submitted"),
        stored(2, "started", index=0, recovery="manual"),
        stored(3, "suspended", index=1, kind="interrupt"),
        stored(4, "started", index=2, kind="timer", wait_s=5.0),
        stored(5, "answered"),
        stored(6, "repeat", index=0),
        stored(7, "cancel"),
        stored(8, "note"),
    ]
    assert [(r.type, r.kind) for r in fork_records(records, 8)] == [("submitted", "step"), ("started", "timer")]


def test_a_fork_does_not_take_over_an_error_that_was_dropped():
    records = [done(1, outcome="error"), stored(2, "dropped"), stored(3, "started")]
    assert fold_types(fork_records(records, 3)) == []
    assert fold_types(fork_records(records, 1)) == ["completed"]


def fold_types(records: list) -> list[str]:  # type: ignore[type-arg]
    return [r.type for r in records]
