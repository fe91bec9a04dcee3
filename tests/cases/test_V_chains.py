"""Changed chains, old states, and forks of chains: what still fits goes on, what differs is named, branches share only
their prefix."""

from __future__ import annotations

import dataclasses
from typing import Any

import pydantic
import pytest
from tests.support.chains import NO, YES, Echo, aload, line, load, point, points, questions

from perdure import Chain, DurableRecoveryError, interrupt
from perdure.core.checkpoints import checkpoints

ran: list[Any] = []


@pytest.fixture(autouse=True)
def fresh() -> None:
    ran.clear()


def noted(name: str, value: Any = None) -> Any:
    def run() -> Any:
        ran.append(name)
        return value

    run.__name__ = name
    return run


def asks() -> bool:
    return interrupt("ship?").approved


# --- edited code ----------------------------------------------------------------------------------------


def test_V2_edit_of_an_unrelated_node_strands_nobody(store_url: str) -> None:
    """No version is derived from the code: other bodies, nodes behind the pause, options and labels may change."""
    line("v2", noted("prepare"), asks, noted("ship")).run(execution_id="v2", store=store_url)
    edited = Chain("v2").add_node("prepare", fn=lambda: ran.append("edited"), name="Prepare!")
    edited.add_node("asks", fn=asks, timeout=60).add_node("check", fn=noted("check")).add_node("ship", fn=noted("ship"))
    edited.connect("prepare", "asks").connect("asks", "check").connect("check", "ship")
    result: Any = edited.resume("v2", resume_value=YES, store=store_url)
    assert (result.status, ran) == ("completed", ["prepare", "check", "ship"])


def test_V2_node_inserted_before_the_pause_is_named_and_hurts_nobody_else(store_url: str) -> None:
    """The error names what was recorded and what is there now; other runs of either chain go on."""
    old = line("v2", noted("prepare"), asks, noted("ship"))
    new = line("v2", noted("check"), noted("prepare"), asks, noted("ship"))
    for run_id in ("stranded", "other"):
        old.run(execution_id=run_id, store=store_url)
    with pytest.raises(DurableRecoveryError, match=r"chain 'v2' has changed.*'prepare'.*'check'"):
        new.resume("stranded", resume_value=YES, store=store_url)
    assert load(store_url, "stranded").run.status == "waiting"
    new.run(execution_id="new", store=store_url)
    for chain, run_id, answer in ((new, "new", YES), (old, "other", YES), (old, "stranded", YES)):
        result: Any = chain.resume(run_id, resume_value=answer, store=store_url)
        assert result.status == "completed", run_id


# --- old states, new schemas ----------------------------------------------------------------------------


class ModelOne(pydantic.BaseModel):
    a: int


class ModelTwo(pydantic.BaseModel):
    a: int
    b: int = 1


@dataclasses.dataclass
class DataOne:
    a: int


@dataclasses.dataclass
class DataTwo:
    a: int
    b: int = 1


JSON_ONE = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
JSON_TWO = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"default": 1}}, "required": ["a"]}
SCHEMAS = {"model": (ModelOne, ModelTwo), "dataclass": (DataOne, DataTwo), "json": (JSON_ONE, JSON_TWO)}


def _asking(schema: Any) -> Chain:
    def reads(state: dict[str, Any]) -> list[Any]:
        ran.append("reads")
        return [state["a"], state.get("b")]

    return line("v4", noted("first"), asks, reads, state_schema=schema)


@pytest.mark.parametrize("kind", SCHEMAS)
def test_V4_new_keys_of_the_state_get_their_defaults(store_url: str, kind: str) -> None:
    """A run that began before a key was declared goes on with its default."""
    one, two = SCHEMAS[kind]
    _asking(one).run({"a": 5}, execution_id="v4", store=store_url)
    result: Any = _asking(two).resume("v4", resume_value=YES, store=store_url)
    assert result.output == [5, 1]
    assert result.final_state == {"a": 5, "asks": True, "b": 1, "reads": [5, 1]}
    assert points(store_url, "v4")[-1].state == result.final_state


def test_V4_a_key_that_became_required_stops_the_run_with_its_name(store_url: str) -> None:
    """Nothing of the new chain runs, and the old one goes on with the answer."""
    stricter = {**JSON_ONE, "required": ["a", "c"]}
    _asking(JSON_ONE).run({"a": 5}, execution_id="v4", store=store_url)
    with pytest.raises(DurableRecoveryError, match=r"does not fit the schema of chain 'v4': c: is missing"):
        _asking(stricter).resume("v4", resume_value=YES, store=store_url)
    assert ran == ["first"]
    (question,) = questions(store_url, "v4")
    assert (question.status, question.delivered_at) == ("answered", None)
    result: Any = _asking(JSON_ONE).resume("v4", store=store_url)
    assert result.output == [5, None]


def test_V4_failed_chain_is_retried_with_mended_code(store_url: str) -> None:
    """From the node that failed, with what came before it as it was."""

    def divides(n: int) -> float:
        return n / 0

    def mended(n: int) -> float:
        ran.append("mended")
        return n / 2

    mended.__name__ = "divides"
    with pytest.raises(ZeroDivisionError):
        line("v4", noted("first", {"n": 4}), divides).run(execution_id="v4", store=store_url)
    result = line("v4", noted("first", {"n": 9}), mended, noted("more")).retry("v4", store=store_url)
    assert (result.node_results["divides"], ran) == (2.0, ["first", "mended", "more"])


# --- forks ----------------------------------------------------------------------------------------------


def test_V5_branches_of_a_chain_share_only_their_prefix(store_url: str) -> None:
    """A fork at the second node and the original go their own ways: states apart, rows of the original unchanged."""

    def counting(name: str) -> Any:
        def run(log: list[str]) -> dict[str, Any]:
            ran.append(name)
            return {"log": [*log, f"{name} {len(ran)}"]}

        run.__name__ = name
        return run

    chain = line("v5", *(counting(name) for name in "abcd"))
    original = chain.run({"log": []}, execution_id="v5", store=store_url)
    before = load(store_url, "v5")
    at = point(store_url, "v5", "b")
    fork = chain.fork("v5", checkpoint_id=at.checkpoint_id, modified_state={"edited": True}, store=store_url)
    after, forked = load(store_url, "v5"), load(store_url, fork.execution_id)
    assert (after.records, after.run) == (before.records, before.run)
    assert {record.run_id for record in forked.records} == {fork.execution_id}
    assert original.final_state == {"log": ["a 1", "b 2", "c 3", "d 4"]}
    assert fork.final_state == {"log": ["a 1", "b 2", "c 5", "d 6"], "edited": True}
    again = chain.run({"log": []}, execution_id="v5", store=store_url)
    assert again.final_state == original.final_state
    states = [one.state for one in points(store_url, fork.execution_id)]
    assert states == [
        {"log": ["a 1"]}, {"log": ["a 1", "b 2"]}, {"log": ["a 1", "b 2", "c 5"], "edited": True},
        fork.final_state, fork.final_state,
    ]  # fmt: skip


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_V5_fork_before_a_question_of_a_chain_asks_again(store_url: str, depth: int) -> None:
    """The old answer is not used, nested or not; the nested state is that of the fork point."""
    chain = line("innermost", noted("sets", {"x": 1}), asks, noted("late", {"x": 2}))
    for level in range(depth):
        chain = Chain(f"level {level}").add_node("in", agent=chain)
    chain.run(execution_id="v5", store=store_url)
    done: Any = chain.resume("v5", resume_value=YES, store=store_url)
    assert done.final_state == {"x": 2, "asks": True}
    at = point(store_url, "v5", "sets")
    fork = chain.fork("v5", checkpoint_id=at.checkpoint_id, store=store_url)
    asking = point(store_url, fork.execution_id, "asks", status="interrupted")
    assert (fork.status, asking.state) == ("paused", {"x": 1})
    (asked,) = questions(store_url, "v5")
    assert fork.pending_interrupts[0]["interrupt_id"] != asked.interrupt_id
    other: Any = chain.resume(fork.execution_id, resume_value=NO, store=store_url)
    assert other.final_state == {"x": 2, "asks": False}


def test_V5_fork_after_an_answer_of_a_chain_keeps_it(store_url: str) -> None:
    chain = line("v5", asks, noted("behind"))
    chain.run(execution_id="v5", store=store_url)
    chain.resume("v5", resume_value=YES, store=store_url)
    fork = chain.fork("v5", checkpoint_id=point(store_url, "v5", "asks").checkpoint_id, store=store_url)
    assert (fork.status, fork.node_results["asks"], ran) == ("completed", True, ["behind", "behind"])
    assert len(questions(store_url, fork.execution_id)) == 1


# --- one object, many runs ------------------------------------------------------------------------------


async def test_V6_one_chain_object_runs_many_tasks_and_replays_none(store_url: str) -> None:
    """A pause, a failure and a finished run of the same chain and agent: the next run begins at the beginning."""
    agent = Echo()
    fails = [True]

    def may_fail(task: str) -> None:
        if task == "fails" and fails and fails.pop():
            raise ValueError("broken")

    def may_ask(task: str) -> bool:
        return interrupt("go?").approved if task == "asks" else False

    chain = Chain("v6").add_node("agent", agent=agent, input="{{state.task}}")
    chain.add_node("may_fail", fn=may_fail).add_node("may_ask", fn=may_ask)
    chain.connect("agent", "may_fail").connect("may_fail", "may_ask")
    assert (await chain.arun({"task": "asks"}, execution_id="asks", store=store_url)).status == "paused"
    with pytest.raises(ValueError, match="broken"):
        await chain.arun({"task": "fails"}, execution_id="fails", store=store_url)
    for task in ("one", "two", "two"):
        result = await chain.arun({"task": task}, store=store_url)
        assert (result.status, result.node_results["agent"]) == ("completed", f"echo: {task}")
        found = checkpoints(await aload(store_url, result.execution_id))
        assert [one.node_id for one in found] == ["agent", "may_fail", "may_ask", "run_end"]
    assert agent.calls == ["asks", "fails", "one", "two", "two"]
    assert (await chain.aresume("asks", resume_value=YES, store=store_url)).output is True
    assert (await chain.aretry("fails", store=store_url)).status == "completed"
    assert len(agent.calls) == 5
