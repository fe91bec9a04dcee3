"""What the commands do to a store and what they say, on both stores; each test is a session at a shell."""

from __future__ import annotations

import json
import os
import pwd
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.cli.conftest import Ended

from perdure.cli.exits import Exit

REFUND = "tests.cli.programs:refund"
TWO = "tests.cli.programs:two_questions"
ORDER = '{"id": "A-1", "amount": 250}'
YES = '{"approved": true, "metadata": {"ticket": "T-1"}}'
USER = pwd.getpwuid(os.getuid()).pw_name

Perdure = Callable[..., Ended]


@pytest.fixture
def at(store_url: str) -> tuple[str, str]:
    """The option that names the test's store."""
    return ("--store", store_url)


@pytest.fixture
def paused(perdure: Perdure, at: tuple[str, str]) -> str:
    """The id of a run that waits for an answer."""
    ended = perdure("run", "--runner", REFUND, "--input", ORDER, "--id", "refund-A-1", *at, "--json")
    assert (ended.code, ended.json["status"]) == (Exit.OK, "paused")
    return ended.json["run_id"]


def _inspect(perdure: Perdure, run_id: str, at: tuple[str, str]) -> dict[str, Any]:
    ended = perdure("inspect", run_id, *at, "--json")
    assert ended.code == Exit.OK
    return ended.json


# --- from the question to the answer ----------------------------------------------------------------------


def test_a_run_pauses_is_listed_is_answered_and_is_done(perdure: Perdure, at: tuple[str, str], paused: str) -> None:
    listed = perdure("list-pending", *at, "--json").json["pending"]
    assert [(each["run_id"], each["runner"], each["reason"]) for each in listed] == [
        (paused, "cli_refund", "Approve this refund?")
    ]
    assert listed[0]["context"] == {"id": "A-1", "amount": 250}

    ended = perdure("resume", paused, "--runner", REFUND, "--value", YES, *at, "--json")

    assert ended.code == Exit.OK
    assert ended.json == {
        "run_id": paused,
        "status": "completed",
        "output": {"status": "paid 250 for A-1", "said": {"ticket": "T-1"}},
        "pending_interrupts": [],
    }
    assert perdure("list-pending", *at, "--json").json == {"pending": [], "has_more": False}


def test_inspect_says_who_answered_what_and_when(perdure: Perdure, at: tuple[str, str], paused: str) -> None:
    perdure("resume", paused, "--runner", REFUND, "--value", YES, *at)

    shown = _inspect(perdure, paused, at)

    (question,) = shown["questions"]
    assert (question["status"], question["answered_by"]) == ("answered", USER)
    assert question["answer"] == {"approved": True, "metadata": {"ticket": "T-1"}}
    assert question["asked_at"] <= question["answered_at"] <= question["delivered_at"]
    assert [(each["kind"], each["name"], each["status"]) for each in shown["operations"]] == [
        ("interrupt", "Approve this refund?", "completed"),
        ("step", "cli_pay", "completed"),
    ]
    assert shown["operations"][0]["questions"] == [question["interrupt_id"]]
    assert shown["run"]["input"] == json.loads(ORDER)
    assert shown["run"]["output"]["status"] == "paid 250 for A-1"
    assert [each["status"] for each in shown["checkpoints"]][-1] == "completed"


def test_peer_A9_the_approver_is_who_runs_the_command(perdure: Perdure, at: tuple[str, str], paused: str) -> None:
    spoofed = '{"approved": true, "metadata": {"answered_by": "the boss"}}'

    perdure("resume", paused, "--runner", REFUND, "--value", spoofed, *at)

    assert _inspect(perdure, paused, at)["questions"][0]["answered_by"] == USER


def test_peer_A8_a_paused_run_is_not_resumed_without_an_answer(
    perdure: Perdure, at: tuple[str, str], paused: str
) -> None:
    ended = perdure("resume", paused, "--runner", REFUND, *at)

    assert ended.code == Exit.INVALID
    assert "--value" in ended.err
    assert "Approve this refund?" in ended.err
    assert len(perdure("list-pending", *at, "--json").json["pending"]) == 1


@pytest.mark.parametrize("value", ["yes", "", "{}", '{"approved": 1}', '{"approved": true, "by": "me"}'])
def test_a_wrong_answer_is_refused_and_leaves_the_question_open(
    value: str, perdure: Perdure, at: tuple[str, str], paused: str
) -> None:
    assert perdure("resume", paused, "--runner", REFUND, "--value", value, *at).code == Exit.INVALID
    assert len(perdure("list-pending", *at, "--json").json["pending"]) == 1


def test_a_denial_is_an_answer(perdure: Perdure, at: tuple[str, str], paused: str) -> None:
    ended = perdure("resume", paused, "--runner", REFUND, "--value", '{"approved": false}', *at, "--json")

    assert ended.json["output"]["status"] == "denied"


def test_a_second_answer_ends_with_2(perdure: Perdure, at: tuple[str, str], paused: str) -> None:
    perdure("resume", paused, "--runner", REFUND, "--value", YES, *at)

    ended = perdure("resume", paused, "--runner", REFUND, "--value", '{"approved": false}', *at, "--json")

    assert ended.code == Exit.ALREADY_RESUMED
    assert ended.json["error"]["code"] == "already_resumed"
    assert _inspect(perdure, paused, at)["run"]["output"]["status"] == "paid 250 for A-1"


def test_an_answer_without_a_runner_is_stored_for_a_worker(perdure: Perdure, at: tuple[str, str], paused: str) -> None:
    answered = perdure("resume", paused, "--value", YES, *at, "--json")
    assert (answered.code, answered.json) == (
        Exit.OK,
        {"run_id": paused, "status": "pending", "runner": "cli_refund"},
    )

    assert perdure("worker", "--runner", REFUND, "--until-idle", *at, "--json").json == {"stopped_by": "idle"}

    shown = _inspect(perdure, paused, at)
    assert shown["run"]["status"] == "completed"
    assert shown["questions"][0]["answered_by"] == USER


def test_a_resume_through_the_wrong_runner_leaves_the_question_open(
    perdure: Perdure, at: tuple[str, str], paused: str
) -> None:
    ended = perdure("resume", paused, "--runner", TWO, "--value", YES, *at)

    assert ended.code == Exit.NEEDS_ATTENTION
    assert len(perdure("list-pending", *at, "--json").json["pending"]) == 1


def test_with_several_questions_open_an_answer_must_say_which(perdure: Perdure, at: tuple[str, str]) -> None:
    started = perdure("run", "--runner", TWO, "--input", "{}", "--id", "two", *at, "--json").json
    asked = {each["context"]["which"]: each["interrupt_id"] for each in started["pending_interrupts"]}
    left, right = asked["left"], asked["right"]

    unaddressed = perdure("resume", "two", "--runner", TWO, "--value", YES, *at)
    assert unaddressed.code == Exit.INVALID
    assert left in unaddressed.err
    assert right in unaddressed.err

    answer = ("resume", "two", "--runner", TWO, *at, "--json", "--value")
    first = perdure(*answer, '{"approved": false}', "--interrupt", right)
    assert [each["interrupt_id"] for each in first.json["pending_interrupts"]] == [left]
    assert perdure(*answer, YES, "--interrupt", right).code == Exit.ALREADY_RESUMED
    assert perdure(*answer, YES, "--interrupt", "q_unknown").code == Exit.UNKNOWN

    assert perdure(*answer, YES, "--interrupt", left).json["output"] == [True, False]


# --- starting ---------------------------------------------------------------------------------------------


def test_the_same_id_and_input_is_the_same_run(perdure: Perdure, at: tuple[str, str], paused: str) -> None:
    again = perdure("run", "--runner", REFUND, "--input", ORDER, "--id", paused, *at, "--json")
    other = perdure("run", "--runner", REFUND, "--input", '{"id": "B", "amount": 1}', "--id", paused, *at)

    assert again.json["run_id"] == paused
    assert other.code == Exit.CONFLICT
    assert len(perdure("runs", *at, "--json").json["runs"]) == 1


def test_an_input_may_come_from_a_file(perdure: Perdure, at: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / "order.json").write_text(ORDER)

    ended = perdure("run", "--runner", REFUND, "--input-file", "order.json", *at, "--json")

    assert ended.json["pending_interrupts"][0]["context"] == {"id": "A-1", "amount": 250}


@pytest.mark.parametrize(
    "arguments",
    [
        ("--input", "{"),
        ("--input", "NaN"),
        ("--input", "1", "--input-file", "order.json"),
        ("--input-file", "no-such.json"),
        ("--input", ORDER, "--id", " "),
        ("--input", ORDER, "--id", "a\x00b"),
    ],
)
def test_bad_input_is_refused_at_the_door(arguments: tuple[str, ...], perdure: Perdure, at: tuple[str, str]) -> None:
    assert perdure("run", "--runner", REFUND, *arguments, *at).code == Exit.INVALID
    assert perdure("runs", *at, "--json").json["runs"] == []


# --- what goes wrong --------------------------------------------------------------------------------------


def test_a_run_that_fails_is_retried(perdure: Perdure, at: tuple[str, str], tmp_path: Path) -> None:
    runner = ("--runner", "tests.cli.programs:fails")
    wanted = tmp_path / "wanted"

    failed = perdure("run", *runner, "--input", json.dumps(str(wanted)), "--id", "f", *at, "--json")
    assert failed.code == Exit.RUN_FAILED
    assert failed.json == {
        "run_id": "f",
        "status": "failed",
        "error": {"type": "ValueError", "message": "the file is not there yet"},
    }
    assert _inspect(perdure, "f", at)["run"]["failure"]["type"] == "ValueError"
    assert perdure("retry", "f", *runner, *at).code == Exit.RUN_FAILED

    wanted.touch()
    retried = perdure("retry", "f", *runner, *at, "--json")

    assert retried.json["output"] == "found"
    assert perdure("retry", "f", *runner, *at).code == Exit.ALREADY_RESUMED


def test_an_operation_in_doubt_is_repeated_only_when_a_person_says_so(
    perdure: Perdure, process: Perdure, at: tuple[str, str], tmp_path: Path
) -> None:
    runner = ("--runner", "tests.cli.programs:in_doubt")
    ledger = tmp_path / "ledger"
    assert process("run", *runner, "--input", json.dumps(str(ledger)), "--id", "d", *at).code == 9

    doubtful = perdure("resume", "d", *runner, *at)
    assert doubtful.code == Exit.NEEDS_ATTENTION
    assert ledger.read_text() == "done\n"
    (row,) = perdure("runs", "--status", "needs_attention", *at, "--json").json["runs"]
    assert row["blocked_operation"] == "d/0"
    assert perdure("resume", "d", *runner, "--repeat-operation", "d/7", *at).code == Exit.INVALID
    assert ledger.read_text() == "done\n"

    repeated = perdure("resume", "d", *runner, "--repeat-operation", "d/0", *at, "--json")

    assert (repeated.code, repeated.json["output"]) == (Exit.OK, "done twice")


def test_peer_H1_a_crashed_run_is_resumed_without_an_answer(
    perdure: Perdure, process: Perdure, at: tuple[str, str], tmp_path: Path
) -> None:
    runner = ("--runner", "tests.cli.programs:crashes")
    assert process("run", *runner, "--input", json.dumps(str(tmp_path / "l")), "--id", "c", *at).code == 9

    resumed = perdure("resume", "c", *runner, *at, "--json")

    assert (resumed.code, resumed.json["output"]) == (Exit.OK, "got through")
    assert perdure("resume", "c", *runner, *at).code == Exit.ALREADY_RESUMED


@pytest.mark.parametrize(
    "command",
    [
        ("inspect",),
        ("cancel",),
        ("resume", "--runner", REFUND),
        ("resume", "--value", YES),
        ("retry", "--runner", REFUND),
        ("fork", "--runner", REFUND),
    ],
)
def test_an_unknown_run_ends_with_1(
    command: tuple[str, ...], perdure: Perdure, at: tuple[str, str], paused: str
) -> None:
    ended = perdure(command[0], "no-such-run", *command[1:], *at, "--json")

    assert ended.code == Exit.UNKNOWN
    assert ended.json["error"]["code"] in ("not_found", "checkpoint_not_found")
    assert "no-such-run" in ended.err


# --- other ways on ----------------------------------------------------------------------------------------


def test_a_fork_asks_again_and_leaves_its_source_alone(perdure: Perdure, at: tuple[str, str], paused: str) -> None:
    forked = perdure("fork", paused, "--runner", REFUND, "--id", "branch", *at, "--json").json
    assert forked["run_id"] == "branch"
    assert forked["status"] == "paused"
    perdure("resume", "branch", "--runner", REFUND, "--value", YES, *at)

    assert _inspect(perdure, paused, at)["run"]["status"] == "waiting"
    assert _inspect(perdure, "branch", at)["run"]["forked_from"] == paused


def test_a_fork_starts_at_a_checkpoint_or_with_a_new_input(perdure: Perdure, at: tuple[str, str], paused: str) -> None:
    perdure("resume", paused, "--runner", REFUND, "--value", YES, *at)
    answered = _inspect(perdure, paused, at)["checkpoints"][1]["checkpoint_id"]
    fork = ("fork", paused, "--runner", REFUND, *at, "--json")

    after_the_answer = perdure(*fork, "--checkpoint", answered).json
    anew = perdure(*fork, "--input", '{"id": "B-2", "amount": 7}').json

    assert after_the_answer["output"]["status"] == "paid 250 for A-1"
    assert anew["pending_interrupts"][0]["context"] == {"id": "B-2", "amount": 7}
    assert perdure(*fork, "--checkpoint", "nowhere").code == Exit.UNKNOWN
    assert perdure(*fork, "--checkpoint", answered, "--input", "{}").code == Exit.INVALID


def test_a_cancelled_run_is_over(perdure: Perdure, at: tuple[str, str], paused: str) -> None:
    assert perdure("cancel", paused, *at, "--json").json["status"] == "cancelled"

    assert perdure("list-pending", *at, "--json").json["pending"] == []
    assert perdure("cancel", paused, *at).code == Exit.OK
    assert perdure("resume", paused, "--runner", REFUND, "--value", YES, *at).code == Exit.ALREADY_RESUMED


def test_what_is_done_cannot_be_cancelled(perdure: Perdure, at: tuple[str, str], paused: str) -> None:
    perdure("resume", paused, "--runner", REFUND, "--value", YES, *at)

    ended = perdure("cancel", paused, *at)

    assert ended.code == Exit.ALREADY_RESUMED
    assert "completed" in ended.err


# --- listings ---------------------------------------------------------------------------------------------


def test_runs_are_filtered_and_paged_newest_first(perdure: Perdure, at: tuple[str, str]) -> None:
    for number in range(3):
        perdure("run", "--runner", REFUND, "--input", ORDER, "--id", f"r{number}", *at)
    perdure("run", "--runner", TWO, "--input", "{}", "--id", "other", *at)
    perdure("cancel", "r0", *at)

    def ids(*options: str) -> list[str]:
        return [run["run_id"] for run in perdure("runs", *options, *at, "--json").json["runs"]]

    assert ids() == ["other", "r2", "r1", "r0"]
    assert ids("--runner", "cli_refund", "--status", "waiting") == ["r2", "r1"]
    first = perdure("runs", "--limit", "3", *at, "--json").json
    assert first["next"] == "r1"
    assert ids("--after", first["next"]) == ["r0"]
    assert perdure("runs", "--status", "asleep", *at).code == Exit.INVALID


def test_no_listing_cuts_an_id(perdure: Perdure, at: tuple[str, str]) -> None:
    long_id = "order-" + "0123456789" * 20
    started = perdure("run", "--runner", REFUND, "--input", ORDER, "--id", long_id, *at, "--json").json
    question = started["pending_interrupts"][0]["interrupt_id"]

    assert long_id in perdure("runs", *at).out
    assert long_id in perdure("inspect", long_id, *at).out
    pending = perdure("list-pending", *at).out
    assert long_id in pending
    assert question in pending


def _spoil(url: str) -> None:
    """Texts that no decoder can read, as a damaged file or a newer program may have left them."""
    statement = "UPDATE {}interrupt SET reason = 'not json', context = '{{\"$newer\": 1}}' WHERE run_id = 'spoilt'"
    if url.startswith("postgresql"):
        with psycopg.connect(url) as postgres:
            postgres.execute(statement.format("perdure."))
    else:
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as sqlite, sqlite:
            sqlite.execute(statement.format(""))


def test_one_bad_row_hides_no_other(perdure: Perdure, at: tuple[str, str], paused: str) -> None:
    perdure("run", "--runner", REFUND, "--input", ORDER, "--id", "spoilt", *at)
    _spoil(at[1])

    listed = perdure("list-pending", *at, "--json").json["pending"]

    assert [each["run_id"] for each in listed] == [paused, "spoilt"]
    assert listed[1]["reason"] == {"undecodable": "not json"}
    assert "spoilt" in perdure("list-pending", *at).out
    assert _inspect(perdure, "spoilt", at)["questions"][0]["reason"] == {"undecodable": "not json"}


def test_json_is_all_there_is_on_stdout(perdure: Perdure, at: tuple[str, str], paused: str) -> None:
    for arguments in (
        ("runs",),
        ("list-pending",),
        ("inspect", paused),
        ("doctor",),
        ("list-pending", "--limit", "1"),
    ):
        assert isinstance(perdure(*arguments, *at, "--json").json, dict)


def test_what_a_runner_prints_is_not_in_the_document(perdure: Perdure, at: tuple[str, str]) -> None:
    ended = perdure("run", "--runner", "tests.cli.programs:prints", "--input", '"x"', *at, "--json")

    assert ended.json["output"] == "done"
    assert "said by the workflow" in ended.err


def test_a_runner_that_takes_an_input_is_not_started_without_one(perdure: Perdure, at: tuple[str, str]) -> None:
    ended = perdure("run", "--runner", REFUND, "--id", "r", *at)

    assert ended.code == Exit.INVALID
    assert "--input: is missing: cli_refund takes order" in ended.err
    assert perdure("inspect", "r", *at).code == Exit.UNKNOWN


def test_a_bare_word_for_an_input_is_answered_with_its_json(perdure: Perdure, at: tuple[str, str]) -> None:
    assert "--input '\"A-1\"'" in perdure("run", "--runner", REFUND, "--input", "A-1", *at).err


def test_what_people_see_names_the_next_command(perdure: Perdure, at: tuple[str, str]) -> None:
    ended = perdure("run", "--runner", REFUND, "--input", ORDER, "--id", "r", *at)

    assert "Run r is paused: 1 open question." in ended.out
    assert f"perdure resume r --runner {REFUND} --store" in ended.out
    done = perdure("resume", "r", "--runner", REFUND, "--value", YES, *at)
    assert "paid 250 for A-1" in done.out
    shown = perdure("inspect", "r", *at).out
    assert f"approved by {USER}" in shown
    assert "step cli_pay  completed" in shown


def test_data_cannot_paint_the_terminal(perdure: Perdure, at: tuple[str, str]) -> None:
    order = json.dumps({"id": "\x1b[31m[bold]red[/bold]", "amount": 1})
    perdure("run", "--runner", REFUND, "--input", order, "--id", "r", *at)

    for shown in (perdure("list-pending", *at).out, perdure("inspect", "r", *at).out):
        assert "\x1b" not in shown
        assert "[bold]red[/bold]" in shown


# --- where the store is -----------------------------------------------------------------------------------


def test_looking_does_not_create_a_store(perdure: Perdure, tmp_path: Path) -> None:
    assert perdure("list-pending", "--json").json == {"pending": [], "has_more": False}
    assert perdure("runs", "--json").json["runs"] == []
    assert perdure("inspect", "r").code == Exit.UNKNOWN
    assert perdure("doctor").code == Exit.OK
    assert list(tmp_path.iterdir()) == []


def test_the_store_is_named_by_option_variable_or_default(
    perdure: Perdure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = ("run", "--runner", REFUND, "--input", ORDER, "--id")
    perdure(*start, "by-default")
    perdure(*start, "by-option", "--store", "option.db")
    monkeypatch.setenv("PERDURE_STORE", "sqlite:///variable.db")
    perdure(*start, "by-variable")

    def only(*options: str) -> str:
        return perdure("list-pending", *options, "--json").json["pending"][0]["run_id"]

    assert only("--db-path", ".perdure/local.db") == "by-default"
    assert only("--db-path", str(tmp_path / "option.db")) == "by-option"
    assert only("--store", f"sqlite:///{tmp_path}/option.db") == "by-option"
    assert only() == "by-variable"
    assert perdure("runs", "--db-path", "a.db", "--store", "b.db").code == Exit.INVALID


@pytest.mark.parametrize("url", ["mysql://localhost/x", "sqlite:///", "sqlite://x.db", "postgresql://localhost:1/none"])
def test_a_store_that_cannot_be_used_says_so(url: str, perdure: Perdure) -> None:
    ended = perdure("runs", "--store", url, "--json")

    assert ended.code in (Exit.INVALID, Exit.STORAGE)
    assert "error" in ended.json


def test_a_password_is_not_shown(perdure: Perdure) -> None:
    url = "postgresql://me:s3cret@localhost:1/none"

    shown = (
        perdure("run", "--runner", REFUND, "--input", ORDER, "--store", url),
        perdure("doctor", "--store", url),
    )

    assert all("s3cret" not in ended.out + ended.err for ended in shown)
