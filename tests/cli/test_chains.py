"""Chains at a shell: what inspect shows of their nodes and states, and forks and resumes that change a state."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Ended
from tests.support import keeping, kept

from perdure import Checkpoint, PendingInterrupt
from perdure.cli.exits import Exit
from perdure.store.kept import PruneRequest

ORDER = "tests.cli.programs:order"
OBEYING = "tests.cli.programs:obeying"
NESTED = "tests.cli.programs:nested"
REFUND = "tests.cli.programs:refund"
YES = ("--value", '{"approved": true}')
ITEMS = [{"sku": "a", "price": 5}, {"sku": "b", "price": 7}]

Perdure = Callable[..., Ended]


@pytest.fixture
def at(store_url: str) -> tuple[str, str]:
    """The option that names the test's store."""
    return ("--store", store_url)


@pytest.fixture
def paused(perdure: Perdure, at: tuple[str, str]) -> str:
    """The id of a run of the chain `order` that waits for an answer."""
    ended = perdure("run", "--runner", ORDER, "--input", '{"order_id": "A-1"}', "--id", "o", *at, "--json")
    assert (ended.code, ended.json["status"]) == (Exit.OK, "paused")
    return ended.json["run_id"]


@pytest.fixture
def done(perdure: Perdure, at: tuple[str, str], paused: str) -> str:
    """The same run, completed."""
    assert perdure("resume", paused, "--runner", ORDER, *YES, *at).code == Exit.OK
    return paused


def _inspect(perdure: Perdure, run_id: str, at: tuple[str, str], *options: str) -> dict[str, Any]:
    ended = perdure("inspect", run_id, *options, *at, "--json")
    assert ended.code == Exit.OK, ended.err
    return ended.json


def _checkpoints(perdure: Perdure, run_id: str, at: tuple[str, str]) -> list[dict[str, Any]]:
    return _inspect(perdure, run_id, at)["checkpoints"]


def _id_of(perdure: Perdure, run_id: str, at: tuple[str, str], node_id: str, status: str = "completed") -> str:
    found = [
        one["checkpoint_id"]
        for one in _checkpoints(perdure, run_id, at)
        if (one["node_id"], one["status"]) == (node_id, status)
    ]
    return found[0]


# --- inspect ----------------------------------------------------------------------------------------------


def test_a_chain_is_drawn_with_what_became_of_its_nodes(perdure: Perdure, at: tuple[str, str], paused: str) -> None:
    waiting = perdure("inspect", paused, *at).out
    perdure("resume", paused, "--runner", ORDER, *YES, *at)
    completed = perdure("inspect", paused, *at).out

    assert "load [tool] ✓ completed\n  └─→ approve\napprove [hitl] ⏸ suspended\n" in waiting
    assert "├─ if state.approve.approved → ship" in waiting
    assert "\nrefuse [tool]\n" in waiting
    assert "ship [tool] ✓ completed\nrefuse [tool] – skipped\n" in completed


def test_each_checkpoint_has_its_state_and_what_it_changed(perdure: Perdure, at: tuple[str, str], done: str) -> None:
    found = _checkpoints(perdure, done, at)

    assert [
        (one["node_id"], one["step_type"], one["changed"]["added"], one["changed"]["changed"]) for one in found
    ] == [
        ("load", "node", ["items", "total"], []),
        ("approve", "hitl_pause", [], []),
        ("approve", "node", ["approve"], []),
        ("ship", "node", ["shipped"], []),
        ("run_end", "run_end", [], []),
    ]
    loaded, asked, answered, shipped, ended = found
    assert loaded["state_snapshot"] == {"order_id": "A-1", "items": ITEMS, "total": 12}
    assert loaded["node_input"] == {"order_id": "A-1"}
    assert loaded["node_output"] == {"items": ITEMS, "total": 12}
    assert (asked["interrupt_reason"], asked["interrupt_context"]) == ("Ship this?", {"total": 12})
    assert asked["node_output"] is None
    assert answered["parent_checkpoint_id"] == loaded["checkpoint_id"]
    assert shipped["node_output"] == "shipped a,b for 12 (no note)"
    assert ended["state_snapshot"] == shipped["state_snapshot"]
    assert all(one["iteration"] == 0 and one["iteration_counters"] == {} for one in found)


def test_people_see_the_changed_keys_in_a_line_each(perdure: Perdure, at: tuple[str, str], done: str) -> None:
    lines = perdure("inspect", done, *at).out.splitlines()

    (loaded,) = [line for line in lines if line.startswith(f"{_id_of(perdure, done, at, 'load')} ")]
    assert loaded.split()[1:6] == ["load/0", "node", "completed", "+items", "+total"]


def test_one_checkpoint_is_shown_in_full(perdure: Perdure, at: tuple[str, str], paused: str) -> None:
    asked = _id_of(perdure, paused, at, "approve", "interrupted")
    number = asked.rpartition(":")[2]

    by_id, by_number = (_inspect(perdure, paused, at, "--checkpoint", name) for name in (asked, number))
    shown = perdure("inspect", paused, "--checkpoint", asked, *at).out

    assert by_id == by_number
    assert by_id["checkpoint"]["state_snapshot"]["items"] == ITEMS
    assert f"Checkpoint {asked}: approve/0, hitl_pause, interrupted" in shown
    assert "reason      Ship this?" in shown
    assert 'context     {"total": 12}' in shown
    assert json.loads(shown.partition("\nState\n")[2]) == {"order_id": "A-1", "items": ITEMS, "total": 12}


def test_all_states_are_shown_in_full_if_asked_for(perdure: Perdure, at: tuple[str, str], done: str) -> None:
    assert perdure("inspect", done, "--state", *at).out.count('"sku": "a"') == 6
    assert perdure("inspect", done, *at).out.count('"sku": "a"') == 1  # in the journal


def test_nested_chains_and_cycles_are_shown(perdure: Perdure, at: tuple[str, str]) -> None:
    perdure("run", "--runner", NESTED, "--id", "n", *at)
    drawn = perdure("inspect", "n", *at).out
    assert "share [chain] ⏸ suspended\n  │ grow [tool] ✓ completed\n" in drawn
    assert "├── share/0  node share  started" in drawn.replace("└", "├")
    assert "    ├── share/0/grow/0  node grow  completed" in drawn

    perdure("resume", "n", "--runner", NESTED, *YES, *at)
    assert perdure("resume", "n", "--runner", NESTED, *YES, *at).code == Exit.OK

    document = _inspect(perdure, "n", at)
    turns = [one for one in document["checkpoints"] if one["node_id"] == "turn"]
    assert [(one["iteration"], one["iteration_counters"]) for one in turns] == [(0, {}), (1, {"turn -> turn": 1})]
    inner = document["topology"]["nodes"][1]["inner"]
    assert [(node["id"], node["status"]) for node in inner["nodes"]] == [("grow", "completed"), ("ask", "completed")]
    assert document["topology"]["edges"][-1]["max_iterations"] == 5


def test_three_views_are_not_one(perdure: Perdure, at: tuple[str, str], paused: str) -> None:
    assert perdure("inspect", paused, "--state", "--diff", "4", "6", *at).code == Exit.INVALID
    assert perdure("inspect", paused, "--state", "--checkpoint", "4", *at).code == Exit.INVALID


@pytest.mark.parametrize("options", [("--checkpoint", "no-such"), ("--diff", "no-such", "4")])
def test_an_unknown_checkpoint_ends_with_1(
    options: tuple[str, ...], perdure: Perdure, at: tuple[str, str], paused: str
) -> None:
    ended = perdure("inspect", paused, *options, *at, "--json")

    assert (ended.code, ended.json["error"]["code"]) == (Exit.UNKNOWN, "checkpoint_not_found")
    assert "no-such" in ended.err


def test_data_cannot_paint_the_terminal(perdure: Perdure, at: tuple[str, str]) -> None:
    order = json.dumps({"order_id": "\x1b[31m\u202e[bold]red[/bold]"})
    perdure("run", "--runner", ORDER, "--input", order, "--id", "o", *at)
    fork = ("fork", "o", "--runner", ORDER, "--id", "f", *at)
    assert perdure(*fork, "--set", "note=\x1b[2J").code == Exit.OK
    last = _checkpoints(perdure, "f", at)[-1]["checkpoint_id"]
    first = _checkpoints(perdure, "f", at)[0]["checkpoint_id"]

    for options in ((), ("--state",), ("--checkpoint", last), ("--diff", first, last)):
        shown = perdure("inspect", "f", *options, *at).out
        assert "\x1b" not in shown
        assert "\u202e" not in shown


# --- what differs -----------------------------------------------------------------------------------------


def test_the_difference_of_two_states_path_by_path(perdure: Perdure, at: tuple[str, str], paused: str) -> None:
    note = "the same beginning, " * 20
    loaded = _id_of(perdure, paused, at, "load")
    fork = ("fork", paused, "--runner", ORDER, "--id", "f", "--checkpoint", loaded, *at)
    perdure(*fork, "--set", "items[1].price=8", "--set", "total=13", "--set", f"note={note}old")
    perdure("resume", "f", "--runner", ORDER, *YES, "--set", f"note={note}new", *at)
    before, asked, *_, last = [one["checkpoint_id"] for one in _checkpoints(perdure, "f", at)]

    first = _inspect(perdure, "f", at, "--diff", before, asked.rpartition(":")[2])
    people = perdure("inspect", "f", "--diff", asked, last, *at).out

    assert (first["from"], first["to"]) == (before, asked)
    assert first["differences"] == [
        {"path": "items[1].price", "change": "changed", "old": 7, "new": 8},
        {"path": "total", "change": "changed", "old": 12, "new": 13},
        {"path": "note", "change": "added", "new": f"{note}old"},
    ]
    lines = {line.split()[1]: line for line in people.splitlines()[1:]}
    assert lines["note"].endswith('beginning, old" → …same beginning, new"')
    assert lines["note"].startswith("~ ")
    assert lines["shipped"].startswith("+ ")
    assert max(map(len, people.splitlines())) < 200


def test_the_same_state_has_no_difference(perdure: Perdure, at: tuple[str, str], paused: str) -> None:
    loaded, asked = (one["checkpoint_id"] for one in _checkpoints(perdure, paused, at))

    assert _inspect(perdure, paused, at, "--diff", loaded, asked)["differences"] == []
    assert "The states are the same." in perdure("inspect", paused, "--diff", loaded, asked, *at).out


def test_a_workflow_has_no_states_to_compare(perdure: Perdure, at: tuple[str, str]) -> None:
    perdure("run", "--runner", REFUND, "--input", '{"id": "A", "amount": 1}', "--id", "w", *at)
    (asked,) = (one["checkpoint_id"] for one in _checkpoints(perdure, "w", at))

    ended = perdure("inspect", "w", "--diff", asked, asked, *at)

    assert ended.code == Exit.INVALID
    assert "has no state" in ended.err
    assert _inspect(perdure, "w", at, "--checkpoint", asked)["checkpoint"]["state_snapshot"] is None
    assert "no state" in perdure("inspect", "w", "--state", *at).out


# --- forks and resumes that change the state --------------------------------------------------------------


def test_a_fork_sets_parts_of_the_state(perdure: Perdure, at: tuple[str, str], done: str) -> None:
    loaded = _id_of(perdure, done, at, "load")
    before = _checkpoints(perdure, done, at)

    changes = ("--set", "items[1].sku=zed", "--set", "state.total=99", "--set", 'note:="in a hurry"')
    ended = perdure("fork", done, "--runner", ORDER, "--checkpoint", loaded, *changes, "--new-id", "f", *at, "--json")
    assert (ended.code, ended.json["run_id"], ended.json["status"]) == (Exit.OK, "f", "paused")
    assert ended.json["pending_interrupts"][0]["context"] == {"total": 99}
    resumed = perdure("resume", "f", "--runner", ORDER, *YES, *at, "--json")

    assert resumed.json["output"] == "shipped a,zed for 99 (in a hurry)"
    assert _checkpoints(perdure, done, at) == before
    assert _checkpoints(perdure, "f", at)[-1]["state_snapshot"]["items"] == [ITEMS[0], {"sku": "zed", "price": 7}]


def test_a_value_is_json_where_it_is_some_and_else_a_text(perdure: Perdure, at: tuple[str, str], paused: str) -> None:
    fork = ("fork", paused, "--runner", ORDER, *at)
    for number, (typed, kept_as) in enumerate([("007", "007"), (" two  words ", " two  words "), ('"7"', "7")]):
        assert perdure(*fork, "--id", f"f{number}", "--set", f"note={typed}").code == Exit.OK
        assert _checkpoints(perdure, f"f{number}", at)[-1]["state_snapshot"]["note"] == kept_as


def test_the_input_of_a_fork_sets_keys_and_does_not_start_anew(
    perdure: Perdure, at: tuple[str, str], done: str
) -> None:
    loaded = _id_of(perdure, done, at, "load")
    fork = ("fork", done, "--runner", ORDER, "--checkpoint", loaded, *at, "--json")

    ended = perdure(*fork, "--input", '{"total": 1}', "--set", "note=both", "--id", "f")

    assert ended.json["pending_interrupts"][0]["context"] == {"total": 1}
    state = _checkpoints(perdure, "f", at)[-1]["state_snapshot"]
    assert state == {"order_id": "A-1", "items": ITEMS, "total": 1, "note": "both"}
    assert perdure(*fork, "--input", "[1]").code == Exit.INVALID


def test_a_resume_changes_the_state_with_the_answer(perdure: Perdure, at: tuple[str, str], paused: str) -> None:
    ended = perdure("resume", paused, "--runner", ORDER, *YES, "--set", "items[0].sku=x", *at, "--json")

    assert ended.json["output"] == "shipped x,b for 12 (no note)"
    patches = [one for one in _inspect(perdure, paused, at)["operations"] if one["kind"] == "patch"]
    assert patches[0]["value"]["state"]["items"][0] == {"sku": "x", "price": 5}


def test_a_path_starts_from_the_state_that_a_change_reaches(perdure: Perdure, at: tuple[str, str]) -> None:
    """A question inside a chain that goes on from the same state has what was written there; inside one with an input
    of its own, nothing of what it has is meant."""
    resume = ("resume", "n", "--runner", NESTED, *YES, *at)
    perdure("run", "--runner", NESTED, "--id", "n", *at)

    assert perdure(*resume, "--set", "log[1].from=shared").code == Exit.OK
    (question,) = perdure("list-pending", *at, "--json").json["pending"]
    assert question["reason"] == "Apart?"
    assert perdure(*resume, "--set", "log[0].from=apart").code == Exit.OK

    assert _checkpoints(perdure, "n", at)[-1]["state_snapshot"]["log"] == [{"from": "apart"}, {"from": "shared"}]


def test_a_path_starts_from_the_state_at_the_question(perdure: Perdure, at: tuple[str, str]) -> None:
    """Branches that have not met have states of their own; the last checkpoint is not the older question's."""
    runner = ("--runner", "tests.cli.programs:branching")
    asked = perdure("run", *runner, "--id", "b", *at, "--json").json["pending_interrupts"]
    older = asked[0]
    side = older["reason"]

    answer = ("resume", "b", *runner, *YES, "--interrupt", older["interrupt_id"], "--set", f"{side}.n=2", *at)
    assert perdure(*answer).code == Exit.OK

    assert _checkpoints(perdure, "b", at)[-1]["state_snapshot"][side] == {"n": 2}


def test_a_path_starts_from_a_change_that_no_checkpoint_has(
    perdure: Perdure, process: Perdure, at: tuple[str, str], tmp_path: Path
) -> None:
    """The process that was given it died before anything else was recorded."""
    order, runner = tmp_path / "order", ("--runner", OBEYING)
    given = json.dumps({"path": str(order)})
    assert perdure("run", *runner, "--input", given, "--id", "c", *at).code == Exit.RUN_FAILED
    order.write_text("die")
    assert process("resume", "c", *runner, "--set", "both.left=1", *at).code == 9
    order.write_text("live")

    assert perdure("resume", "c", *runner, "--set", "both.right=2", *at).code == Exit.OK

    assert _checkpoints(perdure, "c", at)[-1]["state_snapshot"]["both"] == {"left": 1, "right": 2}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("items[9].price=1", "state.items[9].price: there is no [9] in state.items, which has 2 items"),
        ("items.first=1", "state.items.first: state.items is a list"),
        ("total.part=1", "state.total.part: state.total is of type int"),
        ("missing.part=1", "state.missing.part: there is no 'missing' in the state; there is 'order_id'"),
        ("items[0].size.x=1", "state.items[0].size.x: there is no 'size' in state.items[0]; there is 'sku', 'price'"),
        ("a-key=1", 'state["a-key"]'),
        ("state=1", "names no key"),
        ("=1", "is not PATH=VALUE"),
        ("total", "is not PATH=VALUE"),
        ("total:=many", "'many' is not JSON"),
        ("total={1}", "state.total: is not JSON"),
        ("total=many", "total"),  # the schema says a number
    ],
)
def test_a_bad_change_names_its_path_and_nothing_is_stored(
    change: str, named: str, perdure: Perdure, at: tuple[str, str], paused: str
) -> None:
    loaded = _id_of(perdure, paused, at, "load")

    forked = perdure("fork", paused, "--runner", ORDER, "--checkpoint", loaded, "--set", change, *at)
    resumed = perdure("resume", paused, "--runner", ORDER, *YES, "--set", change, *at)

    assert (forked.code, resumed.code) == (Exit.INVALID, Exit.INVALID)
    assert named in forked.err
    assert named in resumed.err
    assert [run["run_id"] for run in perdure("runs", *at, "--json").json["runs"]] == [paused]
    assert len(perdure("list-pending", *at, "--json").json["pending"]) == 1


def test_a_change_is_refused_where_nobody_can_check_it(perdure: Perdure, at: tuple[str, str], paused: str) -> None:
    set_total = ("--set", "total=1")
    perdure("run", "--runner", REFUND, "--input", '{"id": "A", "amount": 1}', "--id", "w", *at)

    assert "cli_refund is a workflow" in perdure("fork", "w", "--runner", REFUND, *set_total, *at).err
    assert perdure("resume", "w", "--runner", REFUND, *YES, *set_total, *at).code == Exit.INVALID
    assert "--runner" in perdure("resume", paused, *YES, *set_total, *at).err
    doubtful = perdure("resume", paused, "--runner", ORDER, "--repeat-operation", "o/x", *set_total, *at)
    assert (doubtful.code, "--set" in doubtful.err) == (Exit.INVALID, True)
    assert perdure("fork", paused, "--runner", ORDER, "--set", "total=1", "--set", "total=2", *at).code == Exit.INVALID
    wrong = perdure("resume", paused, "--runner", NESTED, *YES, "--set", "items[0].price=1", *at)
    assert wrong.code == Exit.NEEDS_ATTENTION
    assert len(perdure("list-pending", *at, "--json").json["pending"]) == 2


def test_a_fork_of_what_is_not_there_names_it(perdure: Perdure, at: tuple[str, str], done: str) -> None:
    end = _id_of(perdure, done, at, "run_end")
    for options in (("--checkpoint", "no-such", "--set", "items[0].price=1"), ("--checkpoint", end)):
        ended = perdure("fork", done, "--runner", ORDER, *options, *at)
        assert ended.code == Exit.UNKNOWN
        assert options[1] in ended.err
    unknown = perdure("fork", "no-such-run", "--runner", ORDER, "--set", "items[0].price=1", *at)
    assert (unknown.code, "no-such-run" in unknown.err) == (Exit.UNKNOWN, True)


# --- running them -----------------------------------------------------------------------------------------


def test_a_chain_that_cannot_run_is_refused_with_nothing_stored(perdure: Perdure, at: tuple[str, str]) -> None:
    ended = perdure("run", "--runner", "tests.cli.programs:malformed", "--id", "m", *at, "--json")

    assert (ended.code, ended.json["error"]["code"]) == (Exit.INVALID, "chain_error")
    assert "'b'" in ended.err
    assert perdure("runs", *at, "--json").json["runs"] == []


def test_a_chain_that_fails_is_drawn_and_retried(perdure: Perdure, at: tuple[str, str], tmp_path: Path) -> None:
    runner = ("--runner", OBEYING)
    order = tmp_path / "order"
    given = json.dumps({"path": str(order)})
    assert perdure("run", *runner, "--input", given, "--id", "f", *at).code == Exit.RUN_FAILED
    assert "work [tool] ✗ failed" in perdure("inspect", "f", *at).out
    failed = _checkpoints(perdure, "f", at)[1]
    assert (failed["status"], failed["node_output"]["type"]) == ("failed", "FileNotFoundError")

    order.write_text("live")

    assert perdure("retry", "f", *runner, *at, "--json").json["output"] == "done"
    assert "work [tool] ✓ completed" in perdure("inspect", "f", *at).out


# --- put by hand ------------------------------------------------------------------------------------------


def test_what_was_put_by_hand_is_inspected(perdure: Perdure, at: tuple[str, str], store_url: str) -> None:
    when = datetime(2026, 1, 2, tzinfo=UTC)
    with keeping.checkpointer(store_url) as saver:
        saver.put(kept.checkpoint("c1", "by-hand", node_id="draft", state_snapshot={"due": when, "n": 1}))
        saver.put_writes("by-hand", "c1", [{"said": when}])
        asked = {"status": "interrupted", "interrupt_reason": "good?", "interrupt_context": {"n": 2}}
        second = kept.checkpoint("c2", "by-hand", node_id="review", state_snapshot={"due": when, "n": 2}, **asked)
        saver.record_interrupt(second, kept.pending("by-hand", interrupt_id="q1"))

    document = _inspect(perdure, "by-hand", at)
    shown = perdure("inspect", "by-hand", *at).out

    assert (document["run"], document["execution_id"]) == (None, "by-hand")
    first, last = document["checkpoints"]
    assert first["state_snapshot"] == {"due": when.isoformat(), "n": 1}
    assert first["writes"] == [{"said": when.isoformat()}]
    assert (last["changed"]["changed"], last["interrupt_reason"], last["is_by_hand"]) == (["n"], "good?", True)
    assert "Execution by-hand: put by hand, 2 checkpoints, interrupted" in shown
    assert "~n" in shown
    assert _inspect(perdure, "by-hand", at, "--diff", "c1", "2")["differences"] == [
        {"path": "n", "change": "changed", "old": 1, "new": 2}
    ]
    one = perdure("inspect", "by-hand", "--checkpoint", "c1", *at).out
    assert one.index("State\n") < one.index("Write\n")


def test_what_was_put_beside_a_run_stands_where_it_was_put(
    perdure: Perdure, at: tuple[str, str], store_url: str, paused: str
) -> None:
    with keeping.checkpointer(store_url) as saver:
        saver.put(kept.checkpoint("mine", paused, state_snapshot={"of": "my own"}))
        saver.put_writes(paused, _id_of(perdure, paused, at, "load"), ["beside a node"])
    perdure("resume", paused, "--runner", ORDER, *YES, *at)

    found = _checkpoints(perdure, paused, at)

    assert [one["checkpoint_id"] == "mine" for one in found].index(True) == 2
    assert found[0]["writes"] == ["beside a node"]
    assert "mine" in perdure("inspect", paused, *at).out


def test_a_spoilt_text_hides_nothing_else(perdure: Perdure, at: tuple[str, str], store_url: str, paused: str) -> None:
    opened = keeping.opened(store_url)
    opened.checkpoints.checkpoint_put(kept.row("good", "e", state_snapshot={"n": 1}))
    newer = '{"node_id": "later", "state_snapshot": {"$newer": 1}}'
    opened.checkpoints.checkpoint_put(kept.KeptCheckpoint(checkpoint_id="new", run_id="e", status="x", content=newer))
    opened.checkpoints.checkpoint_put(kept.KeptCheckpoint(checkpoint_id="bad", run_id="e", status="x", content="[1]"))
    opened.close_now()

    good, new, bad = _checkpoints(perdure, "e", at)

    assert good["state_snapshot"] == {"n": 1}
    assert (new["node_id"], new["state_snapshot"]) == ("later", {"undecodable": '{"$newer":1}'})
    assert bad["node_output"] == {"undecodable": "[1]"}
    assert _inspect(perdure, "e", at, "--diff", "good", "new")["differences"][0]["path"] == "n"
    assert "bad" in perdure("inspect", "e", *at).out


def test_a_pruned_run_is_said_to_be_pruned(perdure: Perdure, at: tuple[str, str], store_url: str, done: str) -> None:
    opened = keeping.opened(store_url)
    assert opened.maintenance.prune(PruneRequest(older_than_s=0), now=kept.FAR).run_count == 1
    opened.close_now()

    ended = perdure("inspect", done, *at)

    assert ended.code == Exit.UNKNOWN
    assert "was completed at" in ended.err


OWN = """
from perdure import Chain, SQLiteCheckpointer, interrupt

kept = Chain("kept", checkpointer=SQLiteCheckpointer({path!r}))
kept.add_node("ask", fn=lambda: interrupt("go on?").approved)


class Elsewhere:
    pass


foreign = Chain("foreign", checkpointer=Elsewhere()).add_node("a", fn=lambda: 1)
"""


def test_a_chain_s_own_checkpointer_is_the_store_unless_another_is_named(
    tmp_path: Path, process: Callable[..., Ended]
) -> None:
    (tmp_path / "own.py").write_text(OWN.format(path=str(tmp_path / "kept.db")))
    assert process("run", "--runner", "own.py:kept", "--id", "k1").code == 0
    assert process("resume", "k1", "--runner", "own.py:kept", *YES).code == 0
    shown = process("inspect", "k1", "--db-path", str(tmp_path / "kept.db"), "--json")

    assert shown.json["run"]["status"] == "completed"
    assert process("resume", "k1", "--runner", "own.py:kept", *YES, "--store", "other.db").code == Exit.UNKNOWN
    assert "--store" in process("run", "--runner", "own.py:foreign").err


def test_questions_kept_by_hand_are_listed_with_those_of_runs(
    perdure: Perdure, at: tuple[str, str], paused: str, store_url: str
) -> None:
    with keeping.checkpointer(store_url) as found:
        asked = PendingInterrupt(
            execution_id="by-hand", chain_name="mine", node_id="gate", reason="ok?", context={"n": 1}, agent_path=None,
            created_at="",
        )  # fmt: skip
        found.record_interrupt(Checkpoint(checkpoint_id="c1", execution_id="by-hand", node_id="gate"), asked)
    listed = perdure("list-pending", *at, "--json").json["pending"]

    assert [(one["run_id"], one["node_id"]) for one in listed][-1] == ("by-hand", "gate")
    assert paused in {one["run_id"] for one in listed}
    assert (listed[-1]["reason"], listed[-1]["context"], listed[-1]["runner"]) == ("ok?", {"n": 1}, "mine")
