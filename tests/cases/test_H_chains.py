"""Human approval in chains: each question its own id, each answer one question, nothing lost and nothing repeated."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.support import chain_shop, shop
from tests.support.chain_shop import child
from tests.support.chains import YES, line, load, points, questions

from perdure import (
    AlreadyResumed,
    AmbiguousAnswer,
    Chain,
    ChainResumeError,
    DurableRecoveryError,
    Resume,
    interrupt,
    open_engine,
)


@pytest.fixture
def ledger(tmp_path: Path) -> str:
    return str(tmp_path / "ledger")


def test_H1_parallel_questions_of_a_chain_have_ids_of_their_own(store_url: str) -> None:
    """Three branches that ask at once: three ids, the same in the next process, and each gets its own answer."""
    state = {"tools": ["a", "b", "c"]}
    with child("run", store_url, runner="chain_questions", input=state, execution_id="h1") as first:
        asked = first.result()
    assert len(set(asked["pending"])) == 3
    again = chain_shop.three_questions.run(state, execution_id="h1", store=store_url)
    assert [q["interrupt_id"] for q in again.pending_interrupts] == asked["pending"]
    by_tool = {q["context"]["tool"]: q["interrupt_id"] for q in again.pending_interrupts}
    result: Any = None
    for tool in ("c", "a", "b"):
        answer = Resume(approved=True, metadata={"note": f"for {tool}"})
        result = chain_shop.three_questions.resume(
            "h1", resume_value=answer, interrupt_id=by_tool[tool], store=store_url
        )
    assert result.output == ["a:for a", "b:for b", "c:for c"]


def test_H2_bare_answer_with_two_branches_open_is_refused(store_url: str) -> None:
    """Without an address it is an error that consumes nothing; a map answers both."""
    chain = Chain("h2").add_node("start", fn=lambda: None)
    for side in ("left", "right"):
        chain.add_node(side, fn=lambda side=side: interrupt(f"{side}?").metadata["v"]).connect("start", side)
    paused = chain.run(execution_id="h2", store=store_url)
    before = load(store_url, "h2").records
    with pytest.raises(AmbiguousAnswer) as refused:
        chain.resume("h2", resume_value=YES, store=store_url)
    ids = {q["reason"]: q["interrupt_id"] for q in paused.pending_interrupts}
    assert sorted(refused.value.interrupt_ids) == sorted(ids.values())
    assert load(store_url, "h2").records == before
    answers = {ids[f"{side}?"]: Resume(approved=True, metadata={"v": side}) for side in ("left", "right")}
    result: Any = chain.resume("h2", resume_value=answers, store=store_url)
    assert result.final_state == {"left": "left", "right": "right"}


def test_H4_used_answer_is_not_given_to_the_next_question_of_a_chain(store_url: str) -> None:
    """In the next node or in the same one: going on without an answer leaves the question open."""

    def twice() -> list[str]:
        return [interrupt("first?").metadata["v"], interrupt("second?").metadata["v"]]

    chain = line("h4", twice, asks_third)
    result: Any = chain.run(execution_id="h4", store=store_url)
    for value, reason in (("1", "first?"), ("2", "second?"), ("3", "third?")):
        assert [q["reason"] for q in result.pending_interrupts] == [reason]
        for _ in range(2):
            with pytest.raises(ChainResumeError):
                chain.resume("h4", store=store_url)
            assert chain.run(execution_id="h4", store=store_url).status == "paused"
        result = chain.resume("h4", resume_value=Resume(approved=True, metadata={"v": value}), store=store_url)
    assert result.output == [["1", "2"], "3"]


def asks_third(twice: list[str]) -> list[Any]:
    return [twice, interrupt("third?").metadata["v"]]


H5 = {2: ["reserve", "charge"], 3: ["open", "reserve", "charge"]}
H5_REST = {2: ["note"], 3: ["note", "close"]}


@pytest.mark.parametrize("depth", [2, 3])
def test_H5_question_in_a_nested_chain_repeats_nothing(store_url: str, ledger: str, depth: int) -> None:
    """What the nested chains have done is found again by its own path: charged once, asked once."""
    chain = {2: chain_shop.middle, 3: chain_shop.outer}[depth]
    with child("run", store_url, runner=chain.name, input={"ledger": ledger}, execution_id="h5") as first:
        assert first.result()["status"] == "paused"
    result: Any = chain.resume("h5", resume_value=YES, store=store_url)
    assert result.status == "completed"
    assert shop.effects(ledger) == H5[depth] + H5_REST[depth]
    assert len(questions(store_url, "h5")) == 1


@pytest.mark.parametrize("depth", [2, 3])
def test_H5_fork_of_a_nested_pause_repeats_nothing(store_url: str, ledger: str, depth: int) -> None:
    """Nor does a client that names the checkpoint: the fork asks under its own id."""
    chain = {2: chain_shop.middle, 3: chain_shop.outer}[depth]
    paused = chain.run({"ledger": ledger}, execution_id="h5", store=store_url)
    at = points(store_url, "h5")[-1]
    assert at.status == "interrupted"
    fork = chain.fork("h5", checkpoint_id=at.checkpoint_id, store=store_url)
    assert fork.status == "paused"
    assert fork.pending_interrupts[0]["interrupt_id"] != paused.pending_interrupts[0]["interrupt_id"]
    assert shop.effects(ledger) == H5[depth]
    result: Any = chain.resume(fork.execution_id, resume_value=YES, store=store_url)
    assert result.status == "completed"
    assert shop.effects(ledger) == H5[depth] + H5_REST[depth]
    assert [row.status for row in questions(store_url, "h5")] == ["pending"]


def test_H6_answer_to_a_chain_survives_a_kill_before_the_body_runs(store_url: str, ledger: str) -> None:
    """Killed after the answer is stored and before its effect: it is delivered, and nobody is asked again."""
    chain_shop.approve.run({"ledger": ledger}, execution_id="h6", store=store_url)
    answer = {"approved": True, "metadata": {"by": "ann"}}
    with child("resume", store_url, hold=("before pay",), runner="chain_approve", execution_id="h6",
               answer=answer) as first:  # fmt: skip
        first.expect("holding before pay")
        first.kill()
    with child("work", store_url) as second:
        second.result()
    result = chain_shop.approve.run({"ledger": ledger}, execution_id="h6", store=store_url)
    assert result.final_state == {"ledger": ledger, "paid": True, "by": "ann", "done": True}
    assert [row.status for row in questions(store_url, "h6")] == ["answered"]
    assert shop.effects(ledger) == ["prepare", "pay", "receipt"]


def test_H6_answer_to_a_chain_survives_a_start_that_fails(store_url: str) -> None:
    """An answer is stored, and then the run cannot be gone on with where it was given: it is kept, the failed attempt
    shows, and the right chain goes on without asking again."""
    right, wrong = (line("h6", prepare, asks_once, pays, state_schema=schema) for schema in ({"x": int}, {"y": int}))
    right.run({"x": 1}, execution_id="h6", store=store_url)
    with pytest.raises(DurableRecoveryError, match="does not fit the schema of chain 'h6'"):
        wrong.resume("h6", resume_value=YES, store=store_url)
    row = load(store_url, "h6").run
    assert (row.status, "y: is missing" in (row.error or "")) == ("needs_attention", True)
    (question,) = questions(store_url, "h6")
    assert (question.status, question.delivered_at) == ("answered", None)
    result: Any = right.resume("h6", store=store_url)
    assert result.output == ["paid", True]


def test_H6_a_chain_that_has_changed_is_refused_before_the_answer_is_stored(store_url: str) -> None:
    """Where it can be seen that the run cannot go on, the question stays open."""
    right, wrong = line("h6", prepare, asks_once, pays), line("h6", prepare, pays, asks_once)
    right.run(execution_id="h6", store=store_url)
    with pytest.raises(DurableRecoveryError, match="'h6' has changed"):
        wrong.resume("h6", resume_value=YES, store=store_url)
    assert load(store_url, "h6").run.status == "waiting"
    assert [row.status for row in questions(store_url, "h6")] == ["pending"]
    result: Any = right.resume("h6", resume_value=YES, store=store_url)
    assert result.output == ["paid", True]


def prepare() -> None:
    return None


def asks_once() -> bool:
    return interrupt("go?").approved


def pays(asks_once: bool = False) -> list[Any]:
    return ["paid", asks_once]


@pytest.mark.timeout(180)
def test_H8_racing_resumers_of_a_chain_one_wins(store_url: str, ledger: str) -> None:
    """Five threads and two processes answer one question at once: one wins, the others learn so, it is paid once."""
    chain_shop.approve.run({"ledger": ledger}, execution_id="h8", store=store_url)
    outcomes: list[str] = []
    together = threading.Barrier(6)

    def resume() -> None:
        together.wait()
        try:
            outcomes.append(asyncio.run(chain_shop.approve.aresume("h8", resume_value=YES, store=store_url)).status)
        except AlreadyResumed:
            outcomes.append("AlreadyResumed")

    options: dict[str, Any] = {
        "runner": "chain_approve", "execution_id": "h8", "answer": {"approved": True}, "wait": True,
    }  # fmt: skip
    with child("resume", store_url, **options) as one, child("resume", store_url, **options) as two:
        for other in (one, two):
            other.expect("open")
        threads = [threading.Thread(target=resume) for _ in range(5)]
        for thread in threads:
            thread.start()
        together.wait()
        one.go()
        two.go()
        for thread in threads:
            thread.join()
        for other in (one, two):
            other.end()
            said = other.lines[-1]
            outcomes.append("completed" if said.startswith("result") else said.split()[1].rstrip(":"))
    assert sorted(outcomes) == ["AlreadyResumed"] * 6 + ["completed"]
    assert shop.effects(ledger) == ["prepare", "pay", "receipt"]


def test_H12_pause_of_an_agent_in_a_chain_is_in_its_records(store_url: str, ledger: str) -> None:
    """Nothing of it lives in a process: two branches of one paused run are answered in other processes, each gets its
    own answer, and the agent does not ask again."""
    state = {"ledger": ledger, "to": "ann"}
    with child("run", store_url, runner="chain_agent", input=state, execution_id="h12") as first:
        asked = json.loads(json.dumps(first.result()))  # what a client keeps of it
    copies = [chain_shop.with_agent.fork("h12", store=store_url) for _ in range(2)]
    assert len({asked["pending"][0], *(copy.pending_interrupts[0]["interrupt_id"] for copy in copies)}) == 3
    outputs = []
    for copy, approved in zip(copies, (True, False), strict=True):
        with child("resume", store_url, runner="chain_agent", execution_id=copy.execution_id,
                   answer={"approved": approved}) as other:  # fmt: skip
            assert other.result()["status"] == "completed"
        outputs.append(points(store_url, copy.execution_id)[-1].state["agent"])  # type: ignore[index]
        assert len(questions(store_url, copy.execution_id)) == 1
    assert outputs == ["sent to ann: True", "sent to ann: False"]
    assert [row.status for row in questions(store_url, "h12")] == ["pending"]
    assert shop.effects(ledger) == ["draft", "archive", "archive"]


async def test_H14_who_listens_to_a_paused_chain_later_sees_the_question(store_url: str, ledger: str) -> None:
    """In another process, after the pause: the list has it, and a stream from the beginning has it once."""
    with child("run", store_url, runner="chain_approve", input={"ledger": ledger}, execution_id="h14") as first:
        asked = await asyncio.to_thread(first.result)
    async with open_engine(store_url) as engine:
        rows = await engine.store.interrupt_list(run_id="h14")
        assert [row.interrupt_id for row in rows] == asked["pending"]
    events = [
        event
        async for event in chain_shop.approve.astream({"ledger": ledger}, execution_id="h14", store=store_url)
        if event.type == "suspended"
    ]
    assert [event.data["data"] for event in events] == [asked["pending"]]
    paused = await chain_shop.approve.arun({"ledger": ledger}, execution_id="h14", store=store_url)
    assert [q["interrupt_id"] for q in paused.pending_interrupts] == asked["pending"]
    result = await chain_shop.approve.aresume("h14", resume_value=YES, store=store_url)
    assert result.status == "completed"
    assert shop.effects(ledger) == ["prepare", "pay", "receipt"]
