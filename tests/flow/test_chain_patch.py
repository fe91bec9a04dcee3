"""`modified_state`: a person's change of the state, recorded with their decision and seen by all that has not ended."""

from __future__ import annotations

import operator
from typing import Any

import pytest
from tests.support.chains import YES, line, load, point, points

from perdure import Chain, InvalidInputError, SerializationError, interrupt
from perdure.core.records import RecordType

ran: list[Any] = []


@pytest.fixture(autouse=True)
def fresh() -> None:
    ran.clear()


def first() -> dict[str, int]:
    return {"x": 1}


def asks(x: int) -> dict[str, Any]:
    ran.append(("asks", x))
    return {"ok": interrupt("go?", {"x": x}).approved, "asked with": x}


def last(x: int) -> dict[str, int]:
    ran.append(("last", x))
    return {"last": x}


def asking() -> Chain:
    return line("patched", first, asks, last)


def test_rule_a_change_with_an_answer_is_seen_by_the_suspended_node_and_the_rest(store_url: str):
    asking().run(execution_id="r1", store=store_url)
    result: Any = asking().resume("r1", resume_value=YES, modified_state={"x": 9, "new": "n"}, store=store_url)
    assert result.final_state == {"x": 9, "new": "n", "ok": True, "asked with": 9, "last": 9}
    assert ran == [("asks", 1), ("asks", 9), ("last", 9)]
    assert result.node_results["first"] == {"x": 1}
    assert point(store_url, "r1", "first").state == {"x": 1}
    assert point(store_url, "r1", "asks").state == {"x": 9, "new": "n", "ok": True, "asked with": 9}
    assert point(store_url, "r1", "asks").node_input == {"x": 9}


def test_rule_a_change_is_one_record_and_replays(store_url: str):
    """It is applied in its recorded turn by every process that drives the run afterwards."""
    chain = line("twice", first, asks, asks_too, last)
    chain.run(execution_id="r1", store=store_url)
    paused: Any = chain.resume("r1", resume_value=YES, modified_state={"x": 9}, store=store_url)
    assert paused.final_state["x"] == 9
    result: Any = chain.resume("r1", resume_value=YES, modified_state={"ok": "changed"}, store=store_url)
    assert result.final_state == {"x": 9, "ok": "changed", "asked with": 9, "too": 9, "last": 9}
    patched = [r.data for r in load(store_url, "r1").records if r.type == RecordType.PATCHED]
    assert patched == ['{"state":{"x":9}}', '{"state":{"ok":"changed"}}']


def asks_too(x: int) -> dict[str, int]:
    assert interrupt("again?").approved
    return {"too": x}


def test_rule_a_change_of_a_failed_run_is_seen_by_the_node_that_failed(store_url: str):
    def picky(x: int) -> dict[str, int]:
        ran.append(("picky", x))
        if x < 5:
            raise ValueError("too small")
        return {"picky": x}

    chain = line("failed", first, picky, last)
    with pytest.raises(ValueError, match="small"):
        chain.run(execution_id="r1", store=store_url)
    result: Any = chain.resume("r1", modified_state={"x": 5}, store=store_url)
    assert result.final_state == {"x": 5, "picky": 5, "last": 5}
    assert ran == [("picky", 1), ("picky", 5), ("last", 5)]


def test_rule_a_change_reaches_the_first_node_that_failed_too(store_url: str):
    def needs(name: str) -> str:
        return name

    chain = line("first failed", needs)
    with pytest.raises(Exception, match="name"):
        chain.run({"x": 1}, execution_id="r1", store=store_url)
    result: Any = chain.resume("r1", modified_state={"name": "ann"}, store=store_url)
    assert result.output == "ann"


def test_rule_a_completed_node_stays_as_it_was(store_url: str):
    """What it wrote may be changed, what it returned may not; its own later writes win over the change."""
    chain = line("overwritten", first, asks, rewrites)
    chain.run(execution_id="r1", store=store_url)
    result: Any = chain.resume("r1", resume_value=YES, modified_state={"x": 9}, store=store_url)
    assert (result.final_state["x"], result.node_results["first"]) == (9 + 1, {"x": 1})


def rewrites(x: int) -> dict[str, int]:
    return {"x": x + 1}


# --- branches -------------------------------------------------------------------------------------------


def branching(name: str, **options: Any) -> Chain:
    """`first`, then `asks` beside `done`, then `last`."""
    chain = Chain(name, **options).add_node("first", fn=first).add_node("asks", fn=asks)
    chain.add_node("done", fn=lambda x: {"done": x}).add_node("last", fn=last)
    return chain.connect("first", "asks").connect("first", "done").connect("asks", "last").connect("done", "last")


def test_rule_a_change_reaches_every_branch_and_the_join_is_no_conflict(store_url: str):
    branching("branches").run(execution_id="r1", store=store_url)
    result: Any = branching("branches").resume("r1", resume_value=YES, modified_state={"x": 9}, store=store_url)
    assert result.final_state == {"x": 9, "done": 1, "ok": True, "asked with": 9, "last": 9}
    assert points(store_url, "r1")[-1].state == result.final_state


def test_rule_a_change_of_a_reduced_key_sets_it_and_is_not_reduced(store_url: str):
    def adds(x: int) -> dict[str, list[int]]:
        assert interrupt("add?").approved
        return {"log": [x]}

    chain = Chain("reduced", reducers={"log": operator.add}).add_node("first", fn=first).add_node("adds", fn=adds)
    chain.add_node("other", fn=lambda: {"log": [100]}).add_node("last", fn=last)
    chain.connect("first", "adds").connect("first", "other").connect("adds", "last").connect("other", "last")
    chain.run({"log": [0]}, execution_id="r1", store=store_url)
    result: Any = chain.resume("r1", resume_value=YES, modified_state={"log": [7]}, store=store_url)
    assert result.final_state["log"] == [7, 1]


def test_rule_a_change_reaches_nested_chains_that_go_on_from_the_state(store_url: str):
    inner = line("inner", asks, last)
    sharing = Chain("sharing").add_node("first", fn=first).add_node("in", agent=inner).connect("first", "in")
    own = Chain("own").add_node("first", fn=first)
    own.add_node("in", agent=inner, input_mapping={"x": "{{state.x}}"}).connect("first", "in")
    for chain, seen in ((sharing, 9), (own, 1)):
        run_id = chain.name
        chain.run(execution_id=run_id, store=store_url)
        result: Any = chain.resume(run_id, resume_value=YES, modified_state={"x": 9}, store=store_url)
        assert (result.final_state["last"], result.final_state["x"]) == (seen, 9)


def test_rule_a_change_decides_the_way_that_is_taken_next(store_url: str):
    chain = line("ways", first, asks).add_node("low", fn=lambda: ran.append("low"))
    chain.add_node("high", fn=lambda: ran.append("high"))
    chain.connect("asks", "high", condition="x > 5").connect("asks", "low")
    chain.run(execution_id="r1", store=store_url)
    chain.resume("r1", resume_value=YES, modified_state={"x": 9}, store=store_url)
    assert ran[-1] == "high"


# --- refused --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [5, [], "x", {5: 1}, {"$set": 1}, {"": 1}], ids=repr)
def test_rule_what_is_no_state_is_refused_and_the_question_stays(store_url: str, bad: Any):
    asking().run(execution_id="r1", store=store_url)
    records = load(store_url, "r1").records
    with pytest.raises(InvalidInputError) as refused:
        asking().resume("r1", resume_value=YES, modified_state=bad, store=store_url)
    assert refused.value.field == "modified_state"
    assert load(store_url, "r1").records == records


def test_rule_a_change_that_cannot_be_stored_answers_nothing(store_url: str):
    asking().run(execution_id="r1", store=store_url)
    records = load(store_url, "r1").records
    with pytest.raises(SerializationError, match="deep"):
        asking().resume("r1", resume_value=YES, modified_state={"deep": [object()]}, store=store_url)
    assert load(store_url, "r1").records == records


def test_rule_an_answer_that_is_refused_changes_nothing(store_url: str):
    asking().run(execution_id="r1", store=store_url)
    records = load(store_url, "r1").records
    with pytest.raises(Exception, match="nobody"):
        asking().resume("r1", resume_value=YES, interrupt_id="nobody", modified_state={"x": 9}, store=store_url)
    assert load(store_url, "r1").records == records


def test_rule_what_the_caller_does_to_the_change_later_nobody_sees(store_url: str):
    change = {"x": 9, "items": [1]}
    asking().run(execution_id="r1", store=store_url)
    result: Any = asking().resume("r1", resume_value=YES, modified_state=change, store=store_url)
    change["items"].append(2)  # type: ignore[union-attr]
    assert result.final_state["items"] == [1]
