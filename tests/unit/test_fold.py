"""What a journal says, from records alone."""

from __future__ import annotations

import pytest
from tests.support.journals import done, question, stored

from perdure.core.fold import Phase, fold
from perdure.core.records import RecordType
from perdure.errors import DurableRecoveryError


def test_an_operation_goes_from_started_to_completed():
    journal = fold([stored(1, "started", data='{"n":1}'), done(2, data="7")])
    op = journal.operations["0"]
    assert (op.phase, op.outcome, op.data, op.arguments) == (Phase.COMPLETED, "value", "7", '{"n":1}')
    assert (op.started_seq, op.seq) == (1, 2)


def test_a_completion_without_a_start_is_an_operation():
    assert fold([done(1)]).operations["0"].is_completed


def test_completions_are_replayed_in_recorded_order_not_in_call_order():
    assert fold([done(1, index=2), done(2, index=0), done(3, "~0", 5)]).replay_order() == ["2", "0", "~0/5"]


def test_values_patches_and_cancelled_calls_are_not_released():
    records = [
        done(1, index=0, kind="value"),
        done(2, index=1, kind="patch", name="p", data="true"),
        done(3, index=2, outcome="cancelled", data=None),
        done(4, index=3),
    ]
    assert fold(records).replay_order() == ["3"]


def test_calls_in_bodies_and_keys_are_looked_up_and_not_ordered():
    records = [done(1, "0!", 0), done(2, "@f:digest", 0), done(3, "", 0)]
    assert fold(records).replay_order() == ["0"]


def test_what_is_inside_a_completed_nested_workflow_is_skipped():
    records = [stored(1, "started", kind="workflow"), done(2, "0", 0), done(3, "0/~1", 0), done(4, kind="workflow")]
    assert fold(records).replay_order() == ["0"]
    assert fold(records[:-1]).replay_order() == ["0/0", "0/~1/0"]


def test_what_is_inside_a_cancelled_nested_workflow_is_still_replayed():
    """The code runs through it again, up to where it was cancelled."""
    records = [
        stored(1, "started", kind="workflow"),
        done(2, "0", 0),
        done(3, kind="workflow", outcome="cancelled"),
    ]
    assert fold(records).replay_order() == ["0/0"]


def test_manual_and_begun_is_in_doubt_until_it_ends_or_a_person_decides():
    begun = stored(1, "started", recovery="manual")
    doubtful = fold([begun]).in_doubt()
    assert doubtful is not None
    assert doubtful.key == "0"
    assert fold([begun, done(2, recovery="manual")]).in_doubt() is None
    assert fold([begun, stored(2, "repeat")]).in_doubt() is None
    assert fold([begun, stored(2, "repeat"), stored(3, "started", recovery="manual")]).in_doubt() is not None


def test_safe_and_idempotent_are_never_in_doubt():
    for recovery in ("safe", "idempotent"):
        assert fold([stored(1, "started", recovery=recovery)]).in_doubt() is None


def test_a_doubt_inside_an_operation_that_has_ended_matters_to_nobody():
    records = [stored(1, "started"), stored(2, "started", "0!", 0, recovery="manual"), done(3)]
    assert fold(records).in_doubt() is None


def test_a_later_start_never_relaxes_the_saved_policy():
    records = [stored(1, "started", recovery="manual"), stored(2, "started", recovery="safe", attempt=2)]
    op = fold(records).operations["0"]
    assert (op.recovery, op.attempt) == ("manual", 2)


def test_a_failed_attempt_waits_for_its_next():
    failed = stored(2, "attempt_failed", wait_s=9.0, data='"e"', clock_s=100.0)
    op = fold([stored(1, "started", clock_s=10.0), failed]).operations["0"]
    assert (op.phase, op.wait_s, op.error) == (Phase.RETRYING, 9.0, '"e"')
    assert [op.left_s(at) for at in (100.0, 104.0, 120.0)] == [9.0, 5.0, 0.0]  # from its end, not from its start


def test_a_suspended_operation_is_answered_by_a_delivery():
    records = [stored(1, "started"), stored(2, "suspended")]
    assert fold(records).operations["0"].phase is Phase.SUSPENDED
    assert fold([*records, stored(3, "delivered")]).operations["0"].phase is Phase.ANSWERED


def test_a_dropped_error_leaves_the_order_and_is_begun_again():
    journal = fold([done(1, index=0), done(2, index=1, outcome="error"), stored(3, "dropped", index=1)])
    assert journal.replay_order() == ["0"]
    assert (journal.operations["1"].phase, journal.operations["1"].outcome) == (Phase.DROPPED, None)


def test_patches_are_remembered_by_name():
    records = [
        done(1, "%a", 0, kind="patch", name="a", data="true"),
        done(2, "%b", 0, kind="patch", name="b", data="false"),
    ]
    assert fold(records).patches == {"a": True, "b": False}


def test_the_runs_clock_is_the_latest_recorded():
    journal = fold([done(1, index=0, clock_s=5.0), done(2, index=1, clock_s=3.0)])
    assert (journal.clock_s, journal.last_at, journal.last_seq) == (5.0, 2.0, 2)


def test_input_and_result_are_found():
    journal = fold([stored(1, "submitted", data="5"), stored(2, "status", outcome="completed", data="6")])
    assert (journal.input_data, journal.result_data, journal.result_status) == ("5", "6", "completed")


def test_notes_change_nothing_that_replay_reads():
    plain = fold([done(1)])
    noted = fold([done(1), stored(2, "note", name="something new", data="1")])
    assert noted.operations == plain.operations
    assert noted.replay_order() == plain.replay_order()


def test_answers_that_have_not_entered_come_in_order_of_arrival_then_of_path():
    rows = [
        question("late", index=1, status="answered", answer="{}", answer_seq=9),
        question("b", index=2, path="b", status="answered", answer="{}", answer_seq=5),
        question("a", index=2, path="a", status="answered", answer="{}", answer_seq=5),
        question("entered", index=4, status="answered", answer="{}", answer_seq=1, delivered_at=1.0),
        question("open", index=5),
        question("abandoned", index=6, status="abandoned", answer="{}", answer_seq=2),
    ]
    assert [row.interrupt_id for row in fold([], rows).undelivered()] == ["a", "b", "late"]


def test_folding_all_at_once_equals_taking_one_record_after_another():
    records = [stored(1, "started"), done(2), stored(3, "started", index=1), stored(4, "suspended", index=1)]
    journal = fold(records[:2])
    for record in records[2:]:
        journal.apply(record)
    assert journal == fold(records)


def test_a_record_of_an_unknown_type_is_refused_and_named():
    """A newer version has written it: to leave it out might be to perform something again."""
    with pytest.raises(DurableRecoveryError, match=r"record 2 .*'hm'"):
        fold([done(1), stored(2, "hm")])


@pytest.mark.parametrize("type_", list(RecordType))
def test_every_type_of_record_is_known(type_: RecordType):
    assert fold([done(1), stored(2, type_)]).last_seq == 2


def test_an_input_that_was_lost_is_not_guessed():
    assert fold([stored(1, "submitted", data="null")]).recorded_input() == "null"
    with pytest.raises(DurableRecoveryError, match="input"):
        fold([done(1)]).recorded_input()


def test_calls_inside_a_body_are_found_by_the_body_whatever_task_made_them():
    journal = fold([done(1), done(2, "0!", 0), done(3, "0!/~0", 0), done(4, "0!/0!", 0), done(5, "@f:digest", 0)])
    assert {body: [op.key for op in calls] for body, calls in journal.inside.items()} == {
        "0!": ["0!/0", "0!/~0/0"],
        "0!/0!": ["0!/0!/0"],
    }
