"""Branching off: from any checkpoint, with changes or without, the source untouched and asked about no more."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.chains import NO, YES, line, load, point, points, questions, runs
from tests.support.engines import Gate

from perdure import (
    AlreadyResumed,
    Chain,
    ChainCheckpointError,
    ChainResumeError,
    DurableConflictError,
    InvalidInputError,
    interrupt,
)

ran: list[Any] = []


@pytest.fixture(autouse=True)
def fresh() -> None:
    ran.clear()


def a(n: int) -> dict[str, int]:
    ran.append("a")
    return {"a": n + 1}


def b(a: int) -> dict[str, int]:
    ran.append("b")
    return {"b": a * 10}


def c(b: int) -> dict[str, int]:
    ran.append("c")
    return {"c": b + 5}


def three() -> Chain:
    return line("three", a, b, c)


def asks(a: int) -> dict[str, Any]:
    ran.append("asks")
    return {"ok": interrupt("go on?", {"a": a}).approved}


# --- where ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("node_id", "rest"), [("a", ["b", "c"]), ("b", ["c"]), ("c", [])])
def test_rule_a_fork_runs_what_comes_after_its_checkpoint(store_url: str, node_id: str, rest: list[str]):
    original = three().run({"n": 1}, execution_id="r1", store=store_url)
    before = load(store_url, "r1")
    at = point(store_url, "r1", node_id)
    ran.clear()
    fork = three().fork("r1", checkpoint_id=at.checkpoint_id, store=store_url)
    assert ran == rest
    assert (fork.output, fork.final_state, fork.node_results) == (
        original.output, original.final_state, original.node_results,
    )  # fmt: skip
    assert fork.execution_id != "r1"
    after = load(store_url, "r1")
    assert (after.records, after.run) == (before.records, before.run)
    forked = points(store_url, fork.execution_id)
    assert {one.execution_id for one in forked} == {fork.execution_id}
    assert [one.node_id for one in forked] == ["a", "b", "c", "run_end"]
    assert forked[0].parent_checkpoint_id == f"r1:{at.seq}"
    assert [one.state for one in forked] == [one.state for one in points(store_url, "r1")]


def test_rule_a_checkpoint_may_be_named_by_its_number_too(store_url: str):
    three().run({"n": 1}, execution_id="r1", store=store_url)
    at = point(store_url, "r1", "a")
    ran.clear()
    three().fork("r1", checkpoint_id=at.seq, store=store_url)
    three().fork("r1", checkpoint_id=str(at.seq), store=store_url)
    assert ran == ["b", "c"] * 2


def test_rule_a_bare_fork_of_a_finished_run_has_nothing_left_to_do(store_url: str):
    three().run({"n": 1}, execution_id="r1", store=store_url)
    ran.clear()
    fork = three().fork("r1", store=store_url)
    assert (fork.status, fork.output, ran) == ("completed", {"c": 25}, [])
    with pytest.raises(AlreadyResumed):  # it closed itself like any run
        three().resume(fork.execution_id, store=store_url)


def test_rule_the_end_of_a_run_is_no_place_to_fork_from(store_url: str):
    three().run({"n": 1}, execution_id="r1", store=store_url)
    end = points(store_url, "r1")[-1]
    with pytest.raises(ChainCheckpointError, match="end of run r1"):
        three().fork("r1", checkpoint_id=end.checkpoint_id, store=store_url)
    assert len(runs(store_url)) == 1


@pytest.mark.parametrize("checkpoint_id", ["x", "r1:1", "r1:2", "r2:4", "", 5.5, True, -1, []], ids=repr)
def test_rule_what_is_no_checkpoint_of_the_run_is_refused(store_url: str, checkpoint_id: Any):
    three().run({"n": 1}, execution_id="r1", store=store_url)
    with pytest.raises(ChainCheckpointError):
        three().fork("r1", checkpoint_id=checkpoint_id, store=store_url)
    assert len(runs(store_url)) == 1


async def test_rule_a_run_that_has_executed_nothing_has_nothing_to_fork(store_url: str):
    gate = Gate()

    async def stands() -> None:
        await gate.stand()

    chain = line("nothing yet", stands)
    running = asyncio.create_task(chain.arun(execution_id="r1", store=store_url))
    await gate.reached.wait()
    await chain.acancel("r1", store=store_url)
    with pytest.raises(Exception, match="cancelled"):
        await running
    with pytest.raises(ChainResumeError, match="executed nothing"):
        await chain.afork("r1", store=store_url)


async def test_rule_a_live_run_may_be_forked_from_a_named_checkpoint(store_url: str):
    gate = Gate()

    async def stands(a: int) -> dict[str, int]:
        if not gate.opened.is_set():
            await gate.stand()
        return {"s": a}

    chain = line("live", a, stands)
    running = asyncio.create_task(chain.arun({"n": 1}, execution_id="r1", store=store_url))
    await gate.reached.wait()
    gate.opened.set()
    at = next(one for one in (await _points(store_url, "r1")) if one.node_id == "a")
    fork = await chain.afork("r1", checkpoint_id=at.checkpoint_id, modified_state={"a": 100}, store=store_url)
    assert (fork.output, (await running).output) == ({"s": 100}, {"s": 2})


async def _points(url: str, run_id: str) -> list[Any]:
    return await asyncio.to_thread(points, url, run_id)


# --- with what ------------------------------------------------------------------------------------------


def test_rule_a_changed_state_is_what_the_rest_sees(store_url: str):
    three().run({"n": 1}, execution_id="r1", store=store_url)
    at = point(store_url, "r1", "a")
    fork = three().fork("r1", checkpoint_id=at.checkpoint_id, modified_state={"a": 7, "new": [1]}, store=store_url)
    assert fork.final_state == {"n": 1, "a": 7, "b": 70, "new": [1], "c": 75}
    assert points(store_url, "r1")[-1].state == {"n": 1, "a": 2, "b": 20, "c": 25}
    assert point(store_url, fork.execution_id, "b").state == {"n": 1, "a": 7, "new": [1], "b": 70}


def test_rule_a_new_input_is_state_and_what_templates_call_the_input(store_url: str):
    chain = Chain("inputs").add_node("first", fn=lambda: None)
    chain.add_node("t", type="transformer", template="{{input.n}} {{state.n}}").connect("first", "t")
    chain.run({"n": 1}, execution_id="r1", store=store_url)
    at = point(store_url, "r1", "first")
    fork = chain.fork("r1", checkpoint_id=at.checkpoint_id, input={"n": 2}, store=store_url)
    both = chain.fork("r1", checkpoint_id=at.checkpoint_id, input={"n": 2}, modified_state={"n": 3}, store=store_url)
    assert (fork.output, both.output) == ("2 2", "2 3")


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("input", {"input": 5}),
        ("input", {"input": {"$set": 1}}),
        ("modified_state", {"modified_state": []}),
        ("new_id", {"new_id": ""}),
        ("new_id", {"new_id": 5}),
    ],
)
def test_rule_bad_arguments_are_refused_by_their_field(store_url: str, field: str, given: dict[str, Any]):
    three().run({"n": 1}, execution_id="r1", store=store_url)
    with pytest.raises(InvalidInputError) as refused:
        three().fork("r1", **given, store=store_url)
    assert refused.value.field == field
    assert len(runs(store_url)) == 1


def test_rule_a_fork_may_be_given_an_id_that_is_free(store_url: str):
    three().run({"n": 1}, execution_id="r1", store=store_url)
    assert three().fork("r1", new_id="f1", store=store_url).execution_id == "f1"
    for taken in ("r1", "f1"):
        with pytest.raises(DurableConflictError):
            three().fork("r1", new_id=taken, store=store_url)
    assert len(runs(store_url)) == 2


def test_rule_a_fork_of_a_fork_shares_both_prefixes(store_url: str):
    three().run({"n": 1}, execution_id="r1", store=store_url)
    first = three().fork("r1", checkpoint_id=point(store_url, "r1", "a").checkpoint_id, modified_state={"a": 3},
                         new_id="f1", store=store_url)  # fmt: skip
    at = point(store_url, "f1", "b")
    second = three().fork("f1", checkpoint_id=at.checkpoint_id, modified_state={"b": 1}, store=store_url)
    assert (first.final_state["c"], second.final_state) == (35, {"n": 1, "a": 3, "b": 1, "c": 6})


# --- questions ------------------------------------------------------------------------------------------


def test_rule_a_fork_of_a_paused_run_asks_again_and_never_steps_over(store_url: str):
    chain = line("gate", a, asks, c_of)
    paused = chain.run({"n": 1}, execution_id="r1", store=store_url)
    fork = chain.fork("r1", store=store_url)
    assert (fork.status, fork.pending_interrupts[0]["reason"]) == ("paused", "go on?")
    assert fork.pending_interrupts[0]["interrupt_id"] != paused.pending_interrupts[0]["interrupt_id"]
    assert [row.status for row in questions(store_url, "r1")] == ["pending"]
    mine: Any = chain.resume(fork.execution_id, resume_value=NO, store=store_url)
    theirs: Any = chain.resume("r1", resume_value=YES, store=store_url)
    assert (mine.output, theirs.output) == ([False], [True])


def c_of(ok: bool) -> list[bool]:
    return [ok]


def test_rule_a_fork_before_an_answered_question_asks_it_anew(store_url: str):
    chain = line("gate", a, asks, c_of)
    chain.run({"n": 1}, execution_id="r1", store=store_url)
    chain.resume("r1", resume_value=YES, store=store_url)
    at = point(store_url, "r1", "a")
    fork = chain.fork("r1", checkpoint_id=at.checkpoint_id, modified_state={"a": 9}, store=store_url)
    assert (fork.status, fork.pending_interrupts[0]["context"]) == ("paused", {"a": 9})
    asked = chain.fork("r1", checkpoint_id=point(store_url, "r1", "asks", status="interrupted").checkpoint_id,
                       store=store_url)  # fmt: skip
    assert asked.status == "paused"
    answered = chain.fork("r1", checkpoint_id=point(store_url, "r1", "asks").checkpoint_id, store=store_url)
    assert (answered.status, answered.output) == ("completed", [True])


def test_rule_a_fork_between_two_questions_of_one_node_keeps_the_first_answer(store_url: str):
    """It was given before the fork point: only what came after it is asked again."""

    def twice() -> list[bool]:
        return [interrupt("first?").approved, interrupt("second?").approved]

    chain = line("twice", twice)
    chain.run(execution_id="r1", store=store_url)
    chain.resume("r1", resume_value=NO, store=store_url)
    first, second = (one for one in points(store_url, "r1") if one.status == "interrupted")
    again = chain.fork("r1", checkpoint_id=first.checkpoint_id, store=store_url)
    assert again.pending_interrupts[0]["reason"] == "first?"
    fork = chain.fork("r1", checkpoint_id=second.checkpoint_id, store=store_url)
    assert fork.pending_interrupts[0]["reason"] == "second?"
    result: Any = chain.resume(fork.execution_id, resume_value=YES, store=store_url)
    assert result.output == [False, True]


# --- failures -------------------------------------------------------------------------------------------


def test_rule_a_fork_that_fails_is_a_failed_run_of_its_own_and_can_be_retried(store_url: str):
    fails = ["f1"]

    def fragile(b: int) -> dict[str, int]:
        if b < 0 and fails:
            raise ValueError(fails.pop())
        return {"f": b}

    chain = line("fragile fork", a, b, fragile)
    chain.run({"n": 1}, execution_id="r1", store=store_url)
    at = point(store_url, "r1", "b")
    with pytest.raises(ValueError, match="f1"):
        chain.fork("r1", checkpoint_id=at.checkpoint_id, modified_state={"b": -1}, new_id="f1", store=store_url)
    assert [row.status for row in sorted(runs(store_url), key=lambda row: row.run_id)] == ["failed", "completed"]
    assert points(store_url, "f1")[-1].status == "failed"
    assert chain.retry("f1", store=store_url).final_state == {"n": 1, "a": 2, "b": -1, "f": -1}


def test_rule_a_failed_run_may_be_forked_before_the_failure(store_url: str):
    def picky(a: int) -> dict[str, int]:
        if a < 10:
            raise ValueError("too small")
        return {"p": a}

    chain = line("picky", a, picky)
    with pytest.raises(ValueError, match="small"):
        chain.run({"n": 1}, execution_id="r1", store=store_url)
    at = point(store_url, "r1", "a")
    fork = chain.fork("r1", checkpoint_id=at.checkpoint_id, modified_state={"a": 10}, store=store_url)
    assert fork.output == {"p": 10}


def test_rule_a_bare_fork_of_a_failed_run_gives_the_failed_node_another_try(store_url: str):
    """With the changed state: a fork that only repeated the recorded error would be of no use to anybody."""

    def picky(a: int) -> dict[str, int]:
        ran.append("picky")
        if a < 10:
            raise ValueError("too small")
        return {"p": a}

    chain = line("picky", a, picky)
    with pytest.raises(ValueError, match="small"):
        chain.run({"n": 1}, execution_id="r1", store=store_url)
    fork = chain.fork("r1", modified_state={"a": 10}, store=store_url)
    assert (fork.output, ran) == ({"p": 10}, ["a", "picky", "picky"])
    assert load(store_url, "r1").run.status == "failed"
