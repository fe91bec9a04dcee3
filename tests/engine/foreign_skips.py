"""Which tests of the engine do not run over a third-party checkpointer, by name with the reason. All others do."""

from __future__ import annotations

REASONS: dict[str, tuple[str, ...]] = {
    "of several open questions of a run, one is shown at a time there": (
        "test_law_05_three_parallel_questions_are_three_and_one_answer_is_for_one",
        "test_rule_a_later_task_that_asks_first_is_listed_first",
        "test_rule_an_answer_to_an_answered_question_is_refused",
        "test_rule_answers_enter_in_order_of_arrival",
        "test_rule_parallel_questions_are_all_open_at_once_and_answered_in_any_order",
        "test_rule_parallel_questions_are_listed_in_the_order_they_were_asked",
        "test_rule_partial_answers_leave_the_others_open",
        "test_rule_several_answers_are_given_in_one_mapping",
        "test_rule_the_same_key_in_two_nested_workflows_is_two_questions",
        "test_rule_who_answered_and_when_is_recorded_and_never_taken_from_the_answer",
        "test_rule_with_several_questions_open_an_answer_without_address_is_refused",
    ),
    "a worker does not find the runs of a process before it there: they have to be named": (
        "test_rule_a_manual_body_killed_in_its_midst_is_in_doubt_and_repeated_only_by_decision",
        "test_rule_an_idempotent_function_killed_in_its_midst_is_in_doubt",
    ),
    "damages the journal by SQL; what a damaged row does there is tested with the store over it": (
        "test_rule_a_journal_that_cannot_be_understood_is_not_run",
        "test_rule_a_journal_that_stops_the_engine_is_claimed_once_and_needs_attention",
        "test_rule_an_operation_in_doubt_is_repeated_by_its_id_whatever_the_run_is_called",
    ),
}
"""Reason -> names of tests."""

SKIPPED = {name: reason for reason, names in REASONS.items() for name in names}
