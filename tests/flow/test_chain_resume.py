"""Going on with a run of a chain: after a question, a failure, a crash; and every way in which that is refused."""

from __future__ import annotations

import asyncio
import operator
from typing import Any

import pytest
from tests.support.chains import NO, YES, Echo, line, load, points, questions, runs
from tests.support.engines import Gate

from perdure import (
    AlreadyResumed,
    Chain,
    ChainCheckpointError,
    ChainResult,
    ChainResumeError,
    DurableConflictError,
    DurableRecoveryError,
    DurableRunError,
    InvalidInputError,
    RunBusy,
    interrupt,
    workflow,
)

ran: list[Any] = []


@pytest.fixture(autouse=True)
def fresh() -> None:
    ran.clear()


def before() -> dict[str, int]:
    ran.append("before")
    return {"x": 1}


def asks() -> bool:
    ran.append("asks")
    return interrupt("go on?").approved


def behind(asks: bool) -> list[Any]:
    ran.append("behind")
    return ["behind", asks]


def asking() -> Chain:
    return line("asking", before, asks, behind)


# --- to the end -----------------------------------------------------------------------------------------


def test_rule_what_was_done_is_not_done_again(store_url: str):
    """A pause, an answer in another process: only the node that asked runs again."""
    paused = asking().run(execution_id="r1", store=store_url)
    assert (paused.status, paused.execution_id, paused.final_state) == ("paused", "r1", {"x": 1})
    result: Any = asking().resume("r1", resume_value=YES, store=store_url)
    assert (result.status, result.output, result.pending_interrupts) == ("completed", ["behind", True], [])
    assert ran == ["before", "asks", "asks", "behind"]


def test_rule_resume_without_a_loop_is_a_result_and_can_be_awaited_as_well(store_url: str):
    for run_id in ("r1", "r2", "r3"):
        asking().run(execution_id=run_id, store=store_url)
    plain = asking().resume("r1", resume_value=YES, store=store_url)
    assert isinstance(plain, ChainResult)
    assert plain.output == ["behind", True]
    outer = asyncio.run(asking().resume("r2", resume_value=YES, store=store_url))  # type: ignore[arg-type]
    assert (outer.status, outer.execution_id) == ("completed", "r2")

    async def waits() -> ChainResult:
        return await asking().resume("r3", resume_value=NO, store=store_url)

    assert asyncio.run(waits()).output == ["behind", False]


async def test_rule_resume_in_a_loop_is_awaited_and_does_nothing_before(store_url: str):
    await asking().arun(execution_id="r1", store=store_url)
    waiting = asking().resume("r1", resume_value=YES, store=store_url)
    assert not isinstance(waiting, ChainResult)
    assert ran == ["before", "asks"]
    assert (await waiting).output == ["behind", True]


async def test_rule_sync_calls_in_a_loop_raise_at_once_and_do_nothing(store_url: str):
    chain = asking()
    for call in (chain.run, chain.execute):
        with pytest.raises(RuntimeError, match="'a'"):
            call({}, store=store_url)
    for steer in (chain.fork, chain.retry, chain.cancel):
        with pytest.raises(RuntimeError, match="'a'"):
            steer("r1", store=store_url)
    with pytest.raises(RuntimeError, match="astream"):
        next(chain.stream({}, store=store_url))
    assert ran == []


async def test_rule_execute_is_run(store_url: str):
    assert (await line("executed", before).aexecute({}, store=store_url)).output == {"x": 1}


def test_rule_an_id_that_exists_is_the_same_run(store_url: str):
    chain = asking()
    first = chain.run({"n": 1}, execution_id="r1", store=store_url)
    again = chain.run({"n": 1}, execution_id="r1", store=store_url)
    assert again.pending_interrupts == first.pending_interrupts
    assert ran == ["before", "asks"]
    with pytest.raises(DurableConflictError):
        chain.run({"n": 2}, execution_id="r1", store=store_url)
    with pytest.raises(DurableConflictError):
        line("another", before).run({"n": 1}, execution_id="r1", store=store_url)
    chain.resume("r1", resume_value=YES, store=store_url)
    done = chain.run({"n": 1}, execution_id="r1", store=store_url)
    assert (done.status, done.output, done.final_state["x"]) == ("completed", ["behind", True], 1)


# --- what is refused ------------------------------------------------------------------------------------


def _refused(call: Any, error: type[Exception], match: str | None = None) -> None:
    with pytest.raises(error, match=match) as refused:
        call()
    assert type(refused.value) is error


def test_rule_an_unknown_id_is_no_checkpoint(store_url: str):
    chain = asking()
    for run_id in ("nowhere", "", 5, None):
        for call in (chain.resume, chain.fork, chain.retry, chain.cancel):
            _refused(lambda call=call, run_id=run_id: call(run_id, store=store_url), ChainCheckpointError)
        _refused(lambda run_id=run_id: chain.resume(run_id, resume_value=YES, store=store_url), ChainCheckpointError)
    assert runs(store_url) == []


def test_rule_going_on_without_an_answer_is_refused_and_leaves_the_question(store_url: str):
    chain = asking()
    chain.run(execution_id="r1", store=store_url)
    before_ = load(store_url, "r1")
    _refused(lambda: chain.resume("r1", store=store_url), ChainResumeError, "r1 waits for an answer")
    _refused(lambda: chain.resume("r1", modified_state={"x": 2}, store=store_url), ChainResumeError)
    assert load(store_url, "r1").records == before_.records
    assert [row.status for row in questions(store_url, "r1")] == ["pending"]
    assert ran == ["before", "asks"]


@pytest.mark.parametrize("answer", [YES, None], ids=["answer", "nothing"])
def test_rule_a_finished_run_is_not_resumed(store_url: str, answer: Any):
    chain = line("finished", before)
    chain.run(execution_id="r1", store=store_url)
    _refused(lambda: chain.resume("r1", resume_value=answer, store=store_url), AlreadyResumed, "r1 is completed")
    _refused(lambda: chain.retry("r1", store=store_url), AlreadyResumed)
    assert ran == ["before"]


def test_rule_an_answer_with_nothing_open_is_refused(store_url: str):
    def breaks() -> None:
        raise ValueError("broken")

    chain = line("failed", before, breaks)
    with pytest.raises(ValueError, match="broken"):
        chain.run(execution_id="r1", store=store_url)
    _refused(lambda: chain.resume("r1", resume_value=YES, store=store_url), AlreadyResumed)
    assert load(store_url, "r1").run.status == "failed"


def test_rule_an_answer_is_given_once(store_url: str):
    chain = line("one answer", before, asks, asks_more)
    chain.run(execution_id="r1", store=store_url)
    (first,) = questions(store_url, "r1")
    chain.resume("r1", resume_value=YES, store=store_url)
    _refused(
        lambda: chain.resume("r1", resume_value=NO, interrupt_id=first.interrupt_id, store=store_url), AlreadyResumed
    )
    result: Any = chain.resume("r1", resume_value=NO, store=store_url)
    assert result.output == [True, False]


def asks_more(asks: bool) -> list[bool]:
    return [asks, interrupt("more?").approved]


def test_rule_another_chain_is_refused_and_consumes_nothing(store_url: str):
    asking().run(execution_id="r1", store=store_url)
    other = line("other chain", before, asks, behind)
    for call in (
        lambda: other.resume("r1", resume_value=YES, store=store_url),
        lambda: other.fork("r1", store=store_url),
    ):
        _refused(call, DurableRecoveryError, "belongs to chain 'asking', not to chain 'other chain'")
    assert [row.status for row in questions(store_url, "r1")] == ["pending"]
    result: Any = asking().resume("r1", resume_value=YES, store=store_url)
    assert result.status == "completed"


def test_rule_a_workflow_of_the_same_name_is_refused_and_consumes_nothing(store_url: str):
    @workflow(name="asking")
    async def same_name(_: None) -> None:
        return None

    asking().run(execution_id="r1", store=store_url)
    _refused(lambda: same_name.resume("r1", resume_value=YES, store=store_url), DurableRecoveryError)
    assert [row.status for row in questions(store_url, "r1")] == ["pending"]


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"modified_state": 5}, InvalidInputError),
        ({"modified_state": {"$set": 1}}, InvalidInputError),
        ({"modified_state": {5: 1}}, InvalidInputError),
        ({"repeat_operation": "r1/x"}, ChainResumeError),
    ],
)
def test_rule_bad_arguments_store_nothing(store_url: str, given: dict[str, Any], error: type[Exception]):
    chain = asking()
    chain.run(execution_id="r1", store=store_url)
    records = load(store_url, "r1").records
    answer = {} if "repeat_operation" in given else {"resume_value": YES}
    with pytest.raises(error):
        chain.resume("r1", **answer, **given, store=store_url)
    assert load(store_url, "r1").records == records


# --- a run that somebody runs ---------------------------------------------------------------------------


async def test_rule_a_live_run_is_busy_and_goes_on(store_url: str):
    gate = Gate()

    async def stands() -> str:
        await gate.stand()
        return "stood"

    chain = line("live", before, stands)
    running = asyncio.create_task(chain.arun(execution_id="r1", store=store_url))
    await gate.reached.wait()
    for call in (chain.aresume("r1", store=store_url), chain.aretry("r1", store=store_url),
                 chain.afork("r1", store=store_url)):  # fmt: skip
        with pytest.raises(RunBusy):
            await call
    with pytest.raises(RunBusy):
        await chain.aresume("r1", modified_state={"x": 2}, store=store_url)
    with pytest.raises(AlreadyResumed):
        await chain.aresume("r1", resume_value=YES, store=store_url)
    gate.open()
    assert (await running).output == "stood"
    assert ran == ["before"]


async def test_rule_who_starts_the_same_run_twice_waits_for_the_first(store_url: str):
    gate = Gate()

    async def stands() -> str:
        ran.append("stands")
        await gate.stand()
        return "stood"

    chain = line("attached", stands)
    first = asyncio.create_task(chain.arun(execution_id="r1", store=store_url))
    await gate.reached.wait()
    second = asyncio.create_task(chain.arun(execution_id="r1", store=store_url))
    gate.open()
    results = await asyncio.gather(first, second)
    assert [(one.output, one.final_state) for one in results] == [("stood", {"stands": "stood"})] * 2
    assert ran == ["stands"]


async def test_rule_many_who_start_one_run_all_get_its_result(store_url: str):
    """However they fall together: while it is created, runs, has just ended."""
    chain = line("many", before)

    async def start(run_id: str, later: int) -> Any:
        for _ in range(later):
            await asyncio.sleep(0)
        return (await chain.arun(execution_id=run_id, store=store_url)).output

    for n in range(50):
        results = await asyncio.gather(*(start(f"r{n}", 3 * k) for k in range(12)))
        assert results == [{"x": 1}] * 12
    assert len(ran) == 50


async def test_rule_a_run_cancelled_in_the_middle_of_a_node_is_cancelled(store_url: str):
    gate = Gate()
    ended: list[str] = []

    async def stands() -> None:
        try:
            await gate.stand()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    chain = line("cancelled", before, stands, behind)
    running = asyncio.create_task(chain.arun(execution_id="r1", store=store_url))
    await gate.reached.wait()
    await chain.acancel("r1", cancelled_by="ann", store=store_url)
    with pytest.raises(DurableRunError) as failed:
        await running
    assert (failed.value.status, ended, ran) == ("cancelled", ["cancelled"], ["before"])
    for call in (chain.aresume("r1", store=store_url), chain.aretry("r1", store=store_url)):
        with pytest.raises(AlreadyResumed):
            await call
    with pytest.raises(DurableRunError):
        await chain.arun(execution_id="r1", store=store_url)


def test_rule_a_paused_run_that_is_cancelled_asks_nobody_any_more(store_url: str):
    chain = asking()
    chain.run(execution_id="r1", store=store_url)
    assert chain.cancel("r1", store=store_url) == "cancelled"
    assert [row.status for row in questions(store_url, "r1")] == ["withdrawn"]
    _refused(lambda: chain.resume("r1", resume_value=YES, store=store_url), AlreadyResumed)
    assert chain.fork("r1", store=store_url).status == "paused"


async def test_rule_who_stops_waiting_stops_nothing(store_url: str):
    gate = Gate()

    async def stands() -> str:
        await gate.stand()
        return "stood"

    chain = line("abandoned", stands)
    waiting = asyncio.create_task(chain.arun(execution_id="r1", store=store_url))
    await gate.reached.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    gate.open()
    assert (await chain.arun(execution_id="r1", store=store_url)).output == "stood"


# --- failures -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["retry", "resume"])
def test_rule_a_failed_run_goes_on_from_the_node_that_failed(store_url: str, way: str):
    """Everything before it stands; `arun` with its id raises its error and runs nothing."""
    fails = [True]

    def fragile(x: int) -> list[int]:
        ran.append("fragile")
        if fails.pop() if fails else False:
            raise ConnectionError("gone")
        return [x]

    chain = line("fragile", before, fragile)
    for _ in range(2):
        with pytest.raises(ConnectionError, match="gone"):
            chain.run(execution_id="r1", store=store_url)
    assert ran == ["before", "fragile"]
    assert [(one.node_id, one.status) for one in points(store_url, "r1")] == [
        ("before", "completed"), ("fragile", "failed"), ("run_end", "failed"),
    ]  # fmt: skip
    result: Any = getattr(chain, way)("r1", store=store_url)
    assert (result.output, ran) == ([1], ["before", "fragile", "fragile"])


def test_rule_the_first_node_may_fail_and_the_input_is_there(store_url: str):
    fails = [True]

    def first(order: dict[str, Any]) -> Any:
        if fails.pop() if fails else False:
            raise LookupError("no stock")
        return order["amount"]

    chain = line("first fails", first)
    with pytest.raises(LookupError):
        chain.run({"order": {"amount": 7}}, execution_id="r1", store=store_url)
    assert points(store_url, "r1")[0].state == {"order": {"amount": 7}}
    assert chain.retry("r1", store=store_url).output == 7


def test_rule_two_branches_that_fail_are_both_tried_again(store_url: str):
    fails = {"a": True, "b": True}

    def branch(name: str) -> Any:
        def run() -> dict[str, Any]:
            ran.append(name)
            if fails.pop(name, False):
                raise ConnectionError(name)
            return {"log": [name]}

        run.__name__ = name
        return run

    chain = Chain("both fail", reducers={"log": operator.add}).add_node("start", fn=before)
    for name in "ab":
        chain.add_node(name, fn=branch(name)).connect("start", name)
    chain.add_node("join", fn=lambda log: log).connect("a", "join").connect("b", "join")
    with pytest.raises(ConnectionError):
        chain.run({"log": []}, execution_id="r1", store=store_url)
    while load(store_url, "r1").run.status == "failed":
        try:
            result = chain.retry("r1", store=store_url)
        except ConnectionError:
            continue
    assert result.output == ["a", "b"]
    assert ran.count("before") == 1
    assert (ran.count("a"), ran.count("b")) == (2, 2)


def test_rule_an_agent_that_fails_is_asked_again_with_the_same_input(store_url: str):
    class Flaky(Echo):
        async def arun(self, value: Any) -> str:
            answer = await super().arun(value)
            if len(self.calls) == 1:
                raise TimeoutError("model")
            return answer

    agent = Flaky()
    chain = Chain("flaky agent").add_node("set", fn=before).add_node("a", agent=agent, input="n={{state.x}}")
    chain.connect("set", "a")
    with pytest.raises(TimeoutError):
        chain.run(execution_id="r1", store=store_url)
    assert chain.retry("r1", store=store_url).output == "echo: n=1"
    assert agent.calls == ["n=1", "n=1"]


# --- size -----------------------------------------------------------------------------------------------


def test_rule_a_chain_of_a_thousand_nodes_pauses_and_goes_on_near_its_end(store_url: str):
    chain = Chain("thousand")
    for n in range(1000):
        chain.add_node(f"n{n}", fn=count)
        if n:
            chain.connect(f"n{n - 1}", f"n{n}")
    chain.add_node("ask", fn=asks).add_node("last", fn=count).connect("n999", "ask").connect("ask", "last")
    paused = chain.run({"n": 0}, execution_id="r1", store=store_url)
    assert paused.final_state == {"n": 1000}
    result: Any = chain.resume("r1", resume_value=YES, store=store_url)
    assert (result.output, len(ran)) == ({"n": 1001}, 1001 + 2)


async def count(n: int) -> dict[str, int]:
    ran.append("count")
    return {"n": n + 1}
