"""What a package of this kind was seen to get wrong with chains, each with the right behaviour as its assertion."""

from __future__ import annotations

import asyncio
import contextlib
import operator
import random
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.support import chain_shop, shop
from tests.support.chain_shop import child
from tests.support.chains import NO, YES, checkpointer_of, line, load, point, points, questions, runs
from tests.support.engines import Gate

from perdure import (
    AlreadyResumed,
    Chain,
    ChainCycleError,
    ChainError,
    ChainResumeError,
    DurableRecoveryError,
    IdempotencyError,
    Resume,
    RunBusy,
    SerializationError,
    idempotent,
    interrupt,
)

ran: list[Any] = []


@pytest.fixture(autouse=True)
def fresh() -> None:
    ran.clear()


@pytest.fixture
def ledger(tmp_path: Path) -> str:
    return str(tmp_path / "ledger")


def noted(name: str, value: Any = None) -> Any:
    def run() -> Any:
        ran.append(name)
        return value

    run.__name__ = name
    return run


# --- A: approvals that others could consume -----------------------------------------------------------------


def test_peer_A2_exception_in_the_approved_node_keeps_the_approval(store_url: str) -> None:
    def pays() -> str:
        ran.append(interrupt("pay?").approved)
        if len(ran) == 1:
            raise ConnectionError("gone")
        return "paid"

    chain = line("a2", pays)
    chain.run(execution_id="a2", store=store_url)
    with pytest.raises(ConnectionError):
        chain.resume("a2", resume_value=YES, store=store_url)
    result: Any = chain.resume("a2", store=store_url)
    assert (result.output, ran) == ("paid", [True, True])
    assert len(questions(store_url, "a2")) == 1


def test_peer_A4_wrong_chain_or_renamed_node_consumes_nothing(store_url: str) -> None:
    def asks() -> bool:
        return interrupt("go?").approved

    chain = line("a4", noted("prepare"), asks)
    chain.run(execution_id="a4", store=store_url)
    with pytest.raises(DurableRecoveryError, match="a4"):
        line("a4 too", noted("prepare"), asks).resume("a4", resume_value=YES, store=store_url)
    assert [row.status for row in questions(store_url, "a4")] == ["pending"]
    with pytest.raises(DurableRecoveryError, match="prepare"):
        line("a4", noted("prepared"), asks).resume("a4", resume_value=YES, store=store_url)
    assert [row.status for row in questions(store_url, "a4")] == ["pending"]
    result: Any = chain.resume("a4", resume_value=YES, store=store_url)
    assert (result.output, ran) == (True, ["prepare"])


# --- B: questions that are confused or swallowed --------------------------------------------------------------


def test_peer_B1_two_questions_of_one_node_need_two_answers(store_url: str) -> None:
    def asks() -> list[bool]:
        return [interrupt("sure?").approved, interrupt("sure?").approved]

    chain = line("b1", asks)
    first = chain.run(execution_id="b1", store=store_url)
    second: Any = chain.resume("b1", resume_value=YES, store=store_url)
    assert second.status == "paused"
    assert first.pending_interrupts[0]["interrupt_id"] != second.pending_interrupts[0]["interrupt_id"]
    result: Any = chain.resume("b1", resume_value=NO, store=store_url)
    assert result.output == [True, False]


def test_peer_B2_an_answer_does_not_leak_into_later_nodes_or_runs(store_url: str) -> None:
    """Neither into the next node that asks, nor into a nested chain, nor into another run in this process."""

    def asks() -> bool:
        return interrupt("go?").approved

    chain = Chain("b2").add_node("one", fn=asks).add_node("two", fn=asks)
    chain.add_node("in", agent=line("b2 inner", asks)).connect("one", "two").connect("two", "in")
    chain.run(execution_id="b2", store=store_url)
    for answer, status in ((YES, "paused"), (NO, "paused"), (YES, "completed")):
        result: Any = chain.resume("b2", resume_value=answer, store=store_url)
        assert result.status == status
        assert chain.run(store=store_url).status == "paused"
    assert result.final_state == {"one": True, "two": False, "asks": True}


def test_peer_B3_a_pause_in_a_parallel_node_is_a_pause(store_url: str) -> None:
    """Not an error of that branch, whatever the mode; what its siblings have done stands."""

    def asks() -> bool:
        return interrupt("go?").approved

    for mode in ("raise", "continue", "fail_fast", "any_success"):
        run_id = f"b3-{mode}"
        chain = Chain(run_id).add_node(
            "par", type="parallel", branches={"work": noted("work", 1), "ask": asks}, failure_mode=mode
        )
        assert chain.run(execution_id=run_id, store=store_url).status == "paused"
        result: Any = chain.resume(run_id, resume_value=YES, store=store_url)
        assert result.output == {"work": 1, "ask": True}
    assert ran == ["work"] * 4


def test_peer_B4_a_fork_never_steps_over_the_gate(store_url: str) -> None:
    def asks() -> bool:
        return interrupt("pay?").approved

    def pays(asks: bool) -> str:
        ran.append("pays")
        return f"paid {asks}"

    chain = line("b4", noted("prepare"), asks, pays)
    chain.run(execution_id="b4", store=store_url)
    gate = point(store_url, "b4", "asks", status="interrupted")
    for checkpoint_id in (None, gate.checkpoint_id, point(store_url, "b4", "prepare").checkpoint_id):
        fork = chain.fork("b4", checkpoint_id=checkpoint_id, modified_state={"asks": True}, store=store_url)
        assert (fork.status, "pays" in ran) == ("paused", False)
        with pytest.raises(ChainResumeError):
            chain.resume(fork.execution_id, store=store_url)


@pytest.mark.filterwarnings("ignore:.*asked a question and then:RuntimeWarning")
def test_peer_B5_swallowed_signal_of_a_node_pauses_all_the_same(store_url: str) -> None:
    """Also if the node tries again and again."""

    def swallows() -> str:
        for _ in range(3):
            with contextlib.suppress(Exception):
                return f"approved {interrupt('go?').approved}"
        return "went on"

    chain = line("b5", swallows, noted("behind"))
    chain.run(execution_id="b5", store=store_url)
    assert ran == []
    assert len(questions(store_url, "b5")) == 1
    result: Any = chain.resume("b5", resume_value=YES, store=store_url)
    assert result.node_results["swallows"] == "approved True"


# --- C: recovery ------------------------------------------------------------------------------------------


def test_peer_C1_sibling_in_a_diamond_runs_before_and_after_the_answer(store_url: str) -> None:
    """A pause on one side: the other side, and what lies behind it, has run; nothing is skipped by the answer."""

    def asks() -> bool:
        return interrupt("go?").approved

    chain = Chain("c1").add_node("start", fn=noted("start")).add_node("asks", fn=asks)
    chain.add_node("other", fn=noted("other", {"o": 1})).add_node("more", fn=noted("more", {"m": 2}))
    chain.add_node("join", fn=lambda state: [sorted(state)])
    for edge in ("start asks", "start other", "other more", "asks join", "more join"):
        chain.connect(*edge.split())
    chain.run(execution_id="c1", store=store_url)
    assert ran == ["start", "other", "more"]
    result: Any = chain.resume("c1", resume_value=YES, store=store_url)
    assert (result.output, ran) == ([["asks", "m", "o"]], ["start", "other", "more"])


def test_peer_C2_resume_takes_the_branch_that_was_chosen(store_url: str) -> None:
    """After a pause in it, after a failure in it, and if the condition would choose another now."""
    fails = [True]

    def works() -> str:
        answer = interrupt("go?")
        if fails.pop() if fails else False:
            raise ConnectionError("gone")
        return f"worked {answer.approved}"

    def chain(condition: str) -> Chain:
        made = Chain("c2").add_node("start", fn=noted("start", {"x": 1})).add_node("chosen", fn=works)
        made.add_node("other", fn=noted("other")).add_node("end", fn=noted("end"))
        made.connect("start", "chosen", condition=condition).connect("start", "other")
        return made.connect("chosen", "end").connect("other", "end")

    chain("x == 1").run(execution_id="c2", store=store_url)
    with pytest.raises(ConnectionError):
        chain("x == 1").resume("c2", resume_value=YES, store=store_url)
    result: Any = chain("x == 2").resume("c2", modified_state={"x": 2}, store=store_url)
    assert (result.node_results["chosen"], ran) == ("worked True", ["start", "end"])


def test_peer_C3_a_failure_before_the_end_replays_nothing(store_url: str) -> None:
    """Between the last node that did something and the end of the run: all that was done stands."""
    fails = [True]

    def breaks(state: dict[str, Any]) -> bool:
        if fails.pop() if fails else False:
            raise ConnectionError("gone")
        return True

    chain = line("c3", noted("one", {"x": 1}), noted("two", {"y": 2})).add_node("end", type="end")
    chain.connect("two", "end", condition=breaks)
    with pytest.raises(ConnectionError):
        chain.run(execution_id="c3", store=store_url)
    result: Any = chain.resume("c3", store=store_url)
    assert (result.output, ran) == ({"x": 1, "y": 2}, ["one", "two"])


def test_peer_C3_a_kill_in_the_last_node_replays_none_of_the_others(store_url: str, ledger: str) -> None:
    state = {"ledger": ledger}
    with child("run", store_url, hold=("after three",), runner="chain_three", input=state, execution_id="c3") as one:
        one.expect("holding after three")
        one.kill()
    result: Any = chain_shop.three_effects.resume("c3", store=store_url)
    assert result.status == "completed"
    assert shop.effects(ledger) == ["one", "two", "three", "three"]
    assert [entry["operation"] for entry in shop.entries(ledger)][2:] == ["c3/three/0"] * 2


def test_peer_C4_failure_of_the_first_node_is_resumable(store_url: str, ledger: str) -> None:
    """An exception in it, and a kill in it: the input is there, and the run ends."""
    fails = [True]

    def first(order: dict[str, int]) -> int:
        if fails.pop() if fails else False:
            raise LookupError("no stock")
        return order["amount"]

    chain = line("c4", first)
    with pytest.raises(LookupError):
        chain.run({"order": {"amount": 7}}, execution_id="c4", store=store_url)
    result: Any = chain.resume("c4", store=store_url)
    assert result.output == 7
    state = {"ledger": ledger}
    with child("run", store_url, hold=("before one",), runner="chain_three", input=state, execution_id="c4k") as one:
        one.expect("holding before one")
        one.kill()
    killed: Any = chain_shop.three_effects.resume("c4k", store=store_url)
    assert killed.status == "completed"
    assert shop.effects(ledger) == ["one", "two", "three"]


@pytest.mark.timeout(180)
async def test_peer_C5_three_resumers_of_a_chain_one_payment(store_url: str, ledger: str) -> None:
    state = {"ledger": ledger, "amount": 5}
    options: dict[str, Any] = {"runner": "chain_pay_again", "execution_id": "c5"}
    with child("run", store_url, hold=("before pay",), input=state, **options) as first:
        await asyncio.to_thread(first.expect, "holding before pay")
        first.kill()
    with contextlib.ExitStack() as stack:
        children = [stack.enter_context(child("resume", store_url, wait=True, **options)) for _ in range(3)]
        for one in children:
            await asyncio.to_thread(one.expect, "open")
        for one in children:
            one.go()
        for one in children:
            await asyncio.to_thread(one.end)
        said = [one.lines[-1] for one in children]
    assert any(line_.startswith("result") for line_ in said), said
    refused = [line_ for line_ in said if not line_.startswith("result")]
    assert all("RunBusy" in line_ or "AlreadyResumed" in line_ for line_ in refused), said
    assert shop.effects(ledger) == ["pay 5", "receipt"]


async def test_peer_C5_a_live_chain_is_not_resumed(store_url: str, ledger: str) -> None:
    """By nobody: here or in another process it is busy, and it goes on where it is."""
    state = {"ledger": ledger}
    with child("run", store_url, hold=("before one",), runner="chain_three", input=state, execution_id="c5") as owner:
        await asyncio.to_thread(owner.expect, "holding before one")
        for modified in (None, {"x": 1}):
            with pytest.raises(RunBusy):
                await chain_shop.three_effects.aresume("c5", modified_state=modified, store=store_url)
        owner.go()
        result = await asyncio.to_thread(owner.result)
    assert result["status"] == "completed"
    assert shop.effects(ledger) == ["one", "two", "three"]
    gate = Gate()

    async def stands() -> str:
        await gate.stand()
        return "stood"

    chain = line("c5 here", stands)
    running = asyncio.create_task(chain.arun(execution_id="here", store=store_url))
    await gate.reached.wait()
    with pytest.raises(RunBusy):
        await chain.aresume("here", store=store_url)
    gate.open()
    assert (await running).output == "stood"


def test_peer_C11_clock_skew_hides_no_finished_chain(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clocks off by an hour either way: the last checkpoint is the last by the run's own sequence."""
    import time  # patched below

    def asks() -> bool:
        return interrupt("go?").approved

    chain, real = line("c11", noted("first"), asks, noted("behind")), time.time
    chain.run(execution_id="c11", store=store_url)
    monkeypatch.setattr(time, "time", lambda: real() - 3600)
    chain.resume("c11", resume_value=YES, store=store_url)
    monkeypatch.setattr(time, "time", lambda: real() + 3600)
    for answer in (None, YES):
        with pytest.raises(AlreadyResumed):
            chain.resume("c11", resume_value=answer, store=store_url)
    assert [one.node_id for one in points(store_url, "c11")] == ["first", "asks", "asks", "behind", "run_end"]
    with checkpointer_of(store_url) as checkpointer:
        last = checkpointer.get_last("c11")
    assert last is not None
    assert last.node_id == "run_end"
    assert chain.run(execution_id="c11", store=store_url).status == "completed"
    assert ran == ["first", "behind"]


def test_peer_C12_seven_hundred_nodes_resume_at_the_seven_hundredth(store_url: str) -> None:
    """No history is truncated: neither the one that is replayed, nor the one that a fork point is looked for in."""

    async def count(n: int) -> dict[str, int]:
        ran.append("count")
        return {"n": n + 1}

    chain = Chain("c12")
    for n in range(700):
        chain.add_node(f"n{n}", fn=count)
        if n:
            chain.connect(f"n{n - 1}", f"n{n}")
    chain.add_node("ask", type="hitl").add_node("last", fn=count).connect("n699", "ask").connect("ask", "last")
    chain.run({"n": 0}, execution_id="c12", store=store_url)
    result: Any = chain.resume("c12", resume_value=YES, store=store_url)
    assert (result.final_state["n"], len(ran)) == (701, 701)
    found = points(store_url, "c12")
    assert [one.state["n"] for one in found if one.state and one.node_id.startswith("n")] == list(range(1, 701))
    fork = chain.fork("c12", checkpoint_id=found[650].checkpoint_id, modified_state={"n": 0}, store=store_url)
    assert fork.final_state == {"n": 49}


def test_peer_C13_cycles_count_leave_and_fail_as_they_say(store_url: str) -> None:
    """Over pauses as without, and with what lies behind them run once."""

    def works(n: int) -> dict[str, Any]:
        return {"n": n + 1, "log": [interrupt("again?").approved]}

    def chain(bound: int) -> Chain:
        made = Chain("c13", reducers={"log": operator.add}).add_node("works", fn=works)
        made.add_node("behind", fn=noted("behind")).connect("works", "behind")
        return made.connect("works", "works", max_iterations=bound, exit_condition="n == 3")

    for bound, error in ((5, None), (2, ChainCycleError)):
        run_id = f"c13-{bound}"
        result: Any = chain(bound).run({"n": 0, "log": []}, execution_id=run_id, store=store_url)
        try:
            while result.status == "paused":
                result = chain(bound).resume(run_id, resume_value=YES, store=store_url)
        except ChainCycleError:
            assert error is ChainCycleError
            assert [one.node_id for one in points(store_url, run_id) if one.status == "completed"] == ["works"] * 2
        else:
            assert error is None
            assert result.final_state == {"n": 3, "log": [True] * 3}
    assert ran == ["behind"]


def test_peer_C14_agent_nodes_see_what_came_before(store_url: str) -> None:
    class Agent:
        async def arun(self, value: Any) -> str:
            ran.append(value)
            return f"re: {value}"

    chain = Chain("c14").add_node("draft", fn=lambda: {"text": "hello"})
    chain.add_node("one", agent=Agent(), input="Improve: {{state.text}}", output_key="better")
    chain.add_node("two", agent=Agent()).connect("draft", "one").connect("one", "two")
    chain.run(store=store_url)
    assert ran == ["Improve: hello", {"text": "hello", "better": "re: Improve: hello"}]


INJECTIONS = [
    "1 != 0", "True", "' or '1' == '1", "{{state.secret}}", "__import__('os').system('true')", "admin' == 'admin",
    "x)) or ((True", "\\' or True or \\'", "state.secret",
]  # fmt: skip


@pytest.mark.parametrize("text", INJECTIONS)
async def test_peer_C15_data_is_no_condition(store_url: str, text: str) -> None:
    """Whatever a state's value says: it is compared, never read as an expression, on edges and in condition nodes."""
    chain = Chain("c15").add_node("start", fn=lambda: None)
    chain.add_node("check", type="condition", conditions=[{"expression": "role == 'admin'", "handle": "admin"}])
    for name in ("edge", "node", "end"):
        chain.add_node(name, fn=noted(name))
    chain.connect("start", "edge", condition="state.role == 'admin' or {{state.role}} == 'root'")
    chain.connect("start", "check").connect("check", "node", label="admin").connect("check", "end", label="default")
    await chain.arun({"role": text, "secret": "admin"}, store=store_url)
    assert ran == ["end"]


def test_peer_C16_invalid_graphs_do_not_run(store_url: str) -> None:
    """No nodes, an edge to nowhere, an id twice, a node that nothing leads to, a cycle without a bound."""
    line_of_two = line("c16", noted("a"), noted("b"))
    twice = line("c16", noted("a"), noted("b")).add_node("a", fn=noted("a"))
    nowhere = line("c16", noted("a"), noted("b")).connect("b", "ghost")
    endless = line("c16", noted("a"), noted("b")).add_node("s", fn=noted("s")).connect("b", "a").connect("s", "a")
    lost = line("c16", noted("a"), noted("b")).add_node("s", type="start").connect("b", "a", max_iterations=2)
    for chain, named in ((Chain("c16"), "no nodes"), (twice, "'a'"), (nowhere, "'ghost'"), (endless, "a -> b -> a"),
                         (lost, "'a' is never reached")):  # fmt: skip
        assert any(named in problem for problem in chain.validate()), chain.validate()
        with pytest.raises(ChainError, match="cannot run"):
            chain.run(store=store_url)
    assert runs(store_url) == []
    assert line_of_two.run(store=store_url).status == "completed"
    assert ran == ["a", "b"]


# --- D: @idempotent in nodes ----------------------------------------------------------------------------------


@idempotent(name="peer_chains.charge")
def charge(amount: Any, currency: str = "EUR") -> dict[str, Any]:
    ran.append((amount, currency))
    return {"amount": amount, "n": len(ran)}


def test_peer_D_an_effect_in_a_node_that_asks_happens_once(store_url: str) -> None:
    """Its forms are one key, equal-looking arguments are not, and a hit is what the first call returned."""

    def buys() -> list[Any]:
        found = [charge(5), charge(amount=5), charge(5, "EUR"), charge(5.0), charge("5")]
        interrupt("ok?")
        return found

    chain = line("d", buys)
    chain.run(execution_id="d", store=store_url)
    result: Any = chain.resume("d", resume_value=YES, store=store_url)
    assert [amount for amount, _ in ran] == [5, 5.0, "5"]
    assert result.output == [{"amount": 5, "n": 1}] * 3 + [{"amount": 5.0, "n": 2}, {"amount": "5", "n": 3}]


def test_peer_D_the_key_is_the_runs_across_nodes_branches_and_nested_chains(store_url: str) -> None:
    def pays() -> int:
        return charge(7)["n"]

    chain = Chain("d across").add_node("one", fn=pays).add_node("two", fn=charge, input_mapping={"amount": 7})
    chain.add_node("par", type="parallel", branches={"a": pays, "b": pays})
    chain.add_node("in", agent=Chain("d inner").add_node("three", fn=pays))
    chain.connect("one", "two").connect("two", "par").connect("par", "in")
    result = chain.run(store=store_url)
    assert ran == [(7, "EUR")]
    assert result.final_state == {"one": 1, "amount": 7, "n": 1, "a": 1, "b": 1, "three": 1}
    assert chain.run(store=store_url).final_state["one"] == 2


def test_peer_D_unstable_arguments_and_unstorable_results_are_errors(store_url: str) -> None:
    """The first before the body; the second after it, and it is not run again."""

    @idempotent(name="peer_chains.opens")
    def opens() -> Any:
        ran.append("opens")
        return object()

    def by_address() -> None:
        charge(object())

    def returns_object() -> None:
        opens()

    with pytest.raises(IdempotencyError):
        line("d address", by_address).run(store=store_url)
    assert ran == []
    chain = line("d object", returns_object)
    with pytest.raises(IdempotencyError):
        chain.run(execution_id="d", store=store_url)
    with pytest.raises(IdempotencyError):
        chain.retry("d", store=store_url)
    assert ran == ["opens"]


def test_peer_D_none_is_a_result(store_url: str) -> None:
    @idempotent(name="peer_chains.nothing")
    def nothing() -> None:
        ran.append("nothing")

    def calls() -> list[Any]:
        return [nothing(), nothing(), interrupt("ok?").approved]

    chain = line("d none", calls)
    chain.run(execution_id="d", store=store_url)
    result: Any = chain.resume("d", resume_value=YES, store=store_url)
    assert (result.output, ran) == ([None, None, True], ["nothing"])


# --- E: values, growth, pruning -----------------------------------------------------------------------------


def test_peer_E1_unstorable_result_of_a_node_is_an_error_and_not_repeated(store_url: str) -> None:
    """With its path; recovery, resume and another start do not run the effect again."""

    def effects() -> dict[str, Any]:
        ran.append("effect")
        return {"items": [1, {"socket": object()}]}

    chain = line("e1", effects)
    for call in (lambda: chain.run(execution_id="e1", store=store_url),
                 lambda: chain.run(execution_id="e1", store=store_url)):  # fmt: skip
        with pytest.raises(SerializationError, match=r"items\[1\]\.socket"):
            call()
    assert ran == ["effect"]
    with pytest.raises(SerializationError):
        chain.run({"x": object()}, execution_id="e1b", store=store_url)
    assert [row.run_id for row in runs(store_url)] == ["e1"]


@pytest.mark.parametrize("way", ["reducer", "whole list", "line"])
def test_peer_E2_growth_of_a_chain_is_linear(store_url: str, way: str) -> None:
    """Twice the turns store about twice the bytes, records and states together, and each state is there."""
    text = "x" * 1000

    def adds(n: int) -> dict[str, Any]:
        return {"messages": [f"{n} {text}"], "n": n + 1}

    def adds_all(messages: list[str], n: int) -> dict[str, Any]:
        return {"messages": [*messages, f"{n} {text}"], "n": n + 1}

    def chain(count: int) -> Chain:
        made = Chain("e2", reducers={} if way == "whole list" else {"messages": operator.add})
        body = adds_all if way == "whole list" else adds
        if way != "line":
            made.add_node("turn", fn=body)
            return made.connect("turn", "turn", max_iterations=count + 1, exit_condition=f"n == {count}")
        for n in range(count):
            made.add_node(f"turn {n}", fn=body)
            if n:
                made.connect(f"turn {n - 1}", f"turn {n}")
        return made

    stored = {}
    for count in (50, 100):
        run_id = f"e2-{count}"
        result = chain(count).run({"messages": [], "n": 0}, execution_id=run_id, store=store_url)
        assert len(result.final_state["messages"]) == count
        stored[count] = sum(len(r.data or "") + len(r.state or "") for r in load(store_url, run_id).records)
        lengths = [len(one.state["messages"]) for one in points(store_url, run_id) if one.state]
        assert lengths == [*range(1, count + 1), count]
    assert stored[100] < 2.3 * stored[50]
    assert stored[100] < 3 * 100 * len(text)


def test_peer_E2_interleaved_branches_grow_linearly_too(store_url: str) -> None:
    """Two long branches over one large state, whoever is ahead: neither stores the other's, or the state again."""
    turns = random.Random(7)

    async def work() -> int:
        for _ in range(turns.randrange(4)):
            await asyncio.sleep(0)
        return 1

    def chain(count: int) -> Chain:
        made = Chain("e2 branches").add_node("start", fn=noted("start"))
        for side in "ab":
            for n in range(count):
                made.add_node(f"{side}{n}", fn=work)
                made.connect(f"{side}{n - 1}" if n else "start", f"{side}{n}")
        return made

    stored = {}
    large = {"doc": "x" * 20_000}
    for count in (40, 80):
        result = asyncio.run(chain(count).arun(large, execution_id=f"e2-{count}", store=store_url))
        assert len(result.final_state) == 2 * count + 1
        records = load(store_url, f"e2-{count}").records
        stored[count] = sum(len(r.data or "") + len(r.state or "") for r in records) - 20_000
    assert stored[80] < 3 * 20_000
    assert stored[80] < 3 * stored[40]


def test_peer_E6_prune_never_bricks_a_paused_chain(store_url: str) -> None:
    """However old: its question, its states and what they build on stay, and the answer goes on from there."""

    def asks() -> bool:
        return interrupt("go?").approved

    chain = line("e6", noted("first", {"items": list(range(50))}), asks, noted("behind", {"done": 1}))
    for run_id in ("paused", "done"):
        chain.run(execution_id=run_id, store=store_url)
    chain.resume("done", resume_value=YES, store=store_url)
    ran.clear()
    with checkpointer_of(store_url) as checkpointer:
        assert checkpointer.prune(timedelta(0)) == 1
        assert [one.execution_id for one in checkpointer.list_pending_interrupts()] == ["paused"]
        assert checkpointer.prune(timedelta(0), include_failed=True) == 0
    assert [one.node_id for one in points(store_url, "paused")] == ["first", "asks"]
    result: Any = chain.resume("paused", resume_value=YES, store=store_url)
    assert result.final_state == {"items": list(range(50)), "asks": True, "done": 1}
    assert ran == ["behind"]


def test_peer_E7_what_the_approver_said_reaches_the_chain_and_nothing_is_dropped_silently(store_url: str) -> None:
    chain = Chain("e7").add_node("ask", type="hitl")
    said = {"note": "ok", "limit": 12, "items": [1, {"a": None}], "ü": "\x00"}
    chain.run(execution_id="e7", store=store_url)
    with pytest.warns(UserWarning, match="reviewer"):
        answer = Resume(approved=True, metadata=said, reviewer="ann")  # type: ignore[call-arg]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result: Any = chain.resume("e7", resume_value=answer, store=store_url)
    assert result.output == {"approved": True, "metadata": said}


def test_peer_E7_yes_is_no_approval_of_a_chain(store_url: str) -> None:
    chain = Chain("e7 yes").add_node("ask", type="hitl").add_node("pay", fn=noted("pay")).connect("ask", "pay")
    chain.run(execution_id="e7", store=store_url)
    for value in ("yes", True, 1, {"approved": True}, {}, []):
        with pytest.raises(Exception, match=r"resume_value|question"):
            chain.resume("e7", resume_value=value, store=store_url)  # type: ignore[arg-type]
    assert [row.status for row in questions(store_url, "e7")] == ["pending"]
    assert ran == []
