"""What a node may run, and what that is called with: functions of every kind, steps, tools, agents; the context."""

from __future__ import annotations

import asyncio
import functools
import json
import threading
from typing import Any

import pytest
from tests.support.chains import YES, Echo, aload, everything, line, load, points, runs

from perdure import (
    Chain,
    ChainError,
    ChainStateError,
    FunctionTool,
    InvalidInputError,
    RetryPolicy,
    SerializationError,
    idempotent,
    interrupt,
    node,
    operation_id,
    step,
)
from perdure.core.checkpoints import checkpoints

ran: list[Any] = []


@pytest.fixture(autouse=True)
def fresh() -> None:
    ran.clear()


# --- functions of every kind ----------------------------------------------------------------------------


def plain(x: int) -> int:
    return x + 1


async def awaited(x: int) -> int:
    await asyncio.sleep(0)
    return x + 1


class Adder:
    """Callable objects and bound methods, sync and async."""

    def __call__(self, x: int) -> int:
        return x + 1

    def method(self, x: int) -> int:
        return x + 1

    async def awaited(self, x: int) -> int:
        return x + 1


class AsyncAdder:
    async def __call__(self, x: int) -> int:
        return x + 1


@step(name="chain_functions.step")
async def a_step(x: int) -> int:
    return x + 1


@step(name="chain_functions.sync_step")
def a_sync_step(x: int) -> int:
    return x + 1


@idempotent(name="chain_functions.effect")
async def an_effect(x: int) -> int:
    return x + 1


@idempotent(name="chain_functions.sync_effect")
def a_sync_effect(x: int) -> int:
    return x + 1


@node
def a_node(x: int) -> int:
    return x + 1


FUNCTIONS: dict[str, dict[str, Any]] = {
    "function": {"fn": plain},
    "async function": {"fn": awaited},
    "lambda": {"fn": lambda x: x + 1},
    "partial": {"fn": functools.partial(lambda y, x: x + y, 1)},
    "async partial": {"fn": functools.partial(awaited)},
    "object": {"fn": Adder()},
    "async object": {"fn": AsyncAdder()},
    "method": {"fn": Adder().method},
    "async method": {"fn": Adder().awaited},
    "step": {"fn": a_step},
    "sync step": {"tool": a_sync_step},
    "idempotent": {"fn": an_effect},
    "sync idempotent": {"tool": a_sync_effect},
    "tool": {"tool": FunctionTool("add", plain, "adds one")},
    "async tool": {"tool": FunctionTool("add", awaited)},
    "node": {"node": a_node},
    "decorated": {"fn": a_node},
    "transformer": {"type": "transformer", "fn": plain},
    "positional only": {"fn": eval("lambda x, /: x + 1")},
    "keyword only": {"fn": eval("lambda *, x: x + 1")},
}


async def test_rule_whatever_can_be_called_is_a_node(store_url: str):
    for kind, given in FUNCTIONS.items():
        chain = Chain(f"runs {kind}").add_node("a", **given)
        result = await chain.arun({"x": 1}, store=store_url)
        assert (result.output, result.final_state, result.node_results) == (2, {"x": 1, "a": 2}, {"a": 2}), kind
        again = await chain.arun({"x": 1}, execution_id=result.execution_id, store=store_url)
        assert (again.output, again.final_state, again.node_results) == (2, {"x": 1, "a": 2}, {"a": 2}), kind
        found = checkpoints(await aload(store_url, result.execution_id))
        assert [one.node_id for one in found] == ["a", "run_end"], kind


def test_rule_a_sync_function_runs_in_a_thread_and_an_async_one_on_the_loop(store_url: str):
    def in_thread() -> bool:
        return threading.current_thread() is threading.main_thread()

    async def on_loop() -> bool:
        return threading.current_thread() is threading.main_thread()

    assert line("threads", in_thread, on_loop).run(store=store_url).node_results == {
        "in_thread": False,
        "on_loop": True,
    }


async def test_rule_two_sync_nodes_run_at_once(store_url: str):
    """Each waits for the other, so neither would end if they ran one after the other."""
    together = threading.Barrier(2, timeout=60)

    def first() -> None:
        together.wait()

    def second() -> None:
        together.wait()

    chain = Chain("at once").add_node("first", fn=first).add_node("second", fn=second)
    assert (await chain.arun(store=store_url)).status == "completed"


# --- parameters -----------------------------------------------------------------------------------------


def test_rule_parameters_come_from_the_state_by_name(store_url: str):
    def all_kinds(a: int, /, b: int, c: int = 7, *rest: Any, d: int, e: int = 9, **more: Any) -> dict[str, Any]:
        return {"seen": [a, b, c, list(rest), d, e, more]}

    result = line("parameters", all_kinds).run({"d": 4, "b": 2, "a": 1, "x": 5, "y": 6}, store=store_url)
    assert result.output == {"seen": [1, 2, 7, [], 4, 9, {"x": 5, "y": 6}]}


def test_rule_a_default_stands_in_for_a_key_that_is_not_there_only(store_url: str):
    def takes(a: Any = 1, b: Any = 2) -> list[Any]:
        return [a, b]

    assert line("defaults", takes).run({"b": None}, store=store_url).output == [1, None]


def test_rule_a_missing_parameter_is_named_with_the_node_before_the_body_runs(store_url: str):
    def takes(amount: int) -> None:
        ran.append(amount)

    with pytest.raises(ChainStateError, match=r"'takes' needs it, and the state has 'price'") as refused:
        line("missing", takes).run({"price": 1}, store=store_url)
    assert refused.value.field == "amount"
    assert ran == []


def test_rule_state_is_the_whole_state_unless_there_is_a_key_of_that_name(store_url: str):
    def whole(state: Any) -> Any:
        return {"seen": state}

    assert line("whole", whole).run({"a": 1}, store=store_url).output == {"seen": {"a": 1}}
    assert line("part", whole).run({"state": "on", "a": 1}, store=store_url).output == {"seen": "on"}


def test_rule_a_mapping_says_where_arguments_come_from(store_url: str):
    def takes(a: Any, b: Any, c: Any, d: Any, e: Any = "default") -> list[Any]:
        return [a, b, c, d, e]

    chain = Chain("mapped").add_node("first", fn=lambda: {"n": [1, 2]})
    chain.add_node(
        "takes",
        fn=takes,
        input_mapping={
            "a": "{{state.n[1]}}",
            "b": "{{input.word}}!",
            "c": 3,
            "d": {"deep": ["{{node_results.first.n}}"]},
        },
    ).connect("first", "takes")
    result = chain.run({"word": "go"}, store=store_url)
    assert result.output == [2, "go!", 3, {"deep": [[1, 2]]}, "default"]


def test_rule_a_mapping_for_a_rest_gives_it_and_nothing_else(store_url: str):
    def takes(**given: Any) -> dict[str, Any]:
        return {"seen": given}

    chain = Chain("rest").add_node("takes", fn=takes, input_mapping={"a": "{{state.x}}"})
    assert chain.run({"x": 1, "y": 2}, store=store_url).output == {"seen": {"a": 1}}


# --- values belong to who has them ----------------------------------------------------------------------


def test_rule_what_a_node_does_to_its_arguments_nobody_sees(store_url: str):
    def changes(items: list[int], state: dict[str, Any]) -> dict[str, Any]:
        items.append(9)
        state["items"].append(8)
        state["new"] = 1
        return {"copy": items}

    def looks(items: list[int], copy: list[int]) -> dict[str, Any]:
        copy.append(7)
        return {"seen": [items, copy]}

    given = {"items": [1]}
    result = line("changing", changes, looks).run(given, store=store_url)
    assert result.final_state == {"items": [1], "copy": [1, 9], "seen": [[1], [1, 9, 7]]}
    assert given == {"items": [1]}
    assert points(store_url, result.execution_id)[-1].state == result.final_state


def test_rule_what_a_node_does_to_its_result_later_nobody_sees(store_url: str):
    kept: list[dict[str, list[int]]] = []

    def makes() -> dict[str, list[int]]:
        kept.append({"a": [1]})
        return kept[0]

    def spoils(a: list[int]) -> list[int]:
        kept[0]["a"].append(2)
        return a

    def looks(a: list[int]) -> list[int]:
        return a

    assert line("spoiling", makes, spoils, looks).run(store=store_url).node_results == {
        "makes": {"a": [1]}, "spoils": [1], "looks": [1],
    }  # fmt: skip


async def test_rule_what_the_caller_does_to_the_input_later_nobody_sees(store_url: str):
    given = {"items": [1]}

    async def spoils(items: list[int]) -> list[int]:
        given["items"].append(2)
        return items

    def looks(items: list[int], state: dict[str, Any]) -> list[Any]:
        return [items, state["items"]]

    result = await line("spoiled input", spoils, looks).arun(given, store=store_url)
    assert result.node_results == {"spoils": [1], "looks": [[1], [1]]}


def test_rule_a_result_that_cannot_be_stored_fails_by_its_path_and_is_not_run_again(store_url: str):
    def makes() -> dict[str, Any]:
        ran.append("makes")
        return {"items": [1, object()]}

    chain = line("unstorable", makes)
    with pytest.raises(SerializationError, match=r"items\[1\]"):
        chain.run(execution_id="r1", store=store_url)
    with pytest.raises(SerializationError, match=r"items\[1\]"):
        chain.run(execution_id="r1", store=store_url)
    assert ran == ["makes"]


# --- policies -------------------------------------------------------------------------------------------


def test_rule_policies_of_the_node_and_of_a_step_reach_the_operation(store_url: str):
    fails = ["once", "once"]

    @step(name="chain_functions.flaky", retries=RetryPolicy(max_attempts=3, initial_delay_s=0), recovery="manual")
    def flaky() -> str:
        ran.append("flaky")
        if fails:
            raise ConnectionError(fails.pop())
        return "done"

    chain = Chain("policies").add_node("flaky", fn=flaky).add_node("careful", fn=lambda: 1, recovery="manual")
    chain.add_node("free", fn=lambda: 2, recovery="safe").connect("flaky", "careful").connect("careful", "free")
    result = chain.run(store=store_url)
    assert (result.node_results["flaky"], ran) == ("done", ["flaky"] * 3)
    started = {r.name: r.recovery for r in load(store_url, result.execution_id).records if r.type == "started"}
    assert {name: started[name] for name in ("flaky", "careful")} == {"flaky": "manual", "careful": "manual"}


def test_rule_errors_of_a_node_are_recorded_and_raised_again_as_their_class(store_url: str):
    class OutOfStock(Exception):
        pass

    def buys() -> None:
        raise OutOfStock("empty")

    chain = Chain("declared").add_node("buys", fn=buys, errors=[OutOfStock])
    with pytest.raises(OutOfStock, match="empty"):
        chain.run(execution_id="r1", store=store_url)
    with pytest.raises(OutOfStock, match="empty"):
        chain.run(execution_id="r1", store=store_url)


def test_rule_an_effect_inside_a_node_happens_once(store_url: str):
    """The body runs again after the answer; what it has paid is not paid again, under the operation id it had."""

    @idempotent(name="chain_functions.pay")
    def pay(amount: int) -> str:
        ran.append((amount, operation_id()))
        return f"paid {amount}"

    def buys(amount: int) -> dict[str, Any]:
        paid = pay(amount)
        return {"paid": paid, "ok": interrupt("deliver?").approved}

    chain = line("paying", buys)
    paused = chain.run({"amount": 5}, execution_id="r1", store=store_url)
    result = asyncio.run(chain.aresume(paused.execution_id, resume_value=YES, store=store_url))
    assert result.output == {"paid": "paid 5", "ok": True}
    assert [amount for amount, _ in ran] == [5]
    assert ran[0][1].startswith("r1/@")


# --- agents ---------------------------------------------------------------------------------------------


class Counting(Echo):
    """An agent that returns an envelope and takes the context."""

    async def arun(self, value: Any, *, context: Any = None) -> Any:  # type: ignore[override]
        self.calls.append((value, context))
        return Envelope(f"answer to {value}")


class Envelope:
    def __init__(self, output: Any, status: str = "completed") -> None:
        self.output, self.status, self.execution_id = output, status, "elsewhere"


def test_rule_an_agent_gets_the_state_its_input_or_what_the_mapping_makes(store_url: str):
    agents = [Echo("a"), Echo("b"), Echo("c"), Echo("d")]
    chain = Chain("agents").add_node("whole", agent=agents[0])
    chain.add_node("templated", agent=agents[1], input="Review {{state.text}}")
    chain.add_node("mapped", agent=agents[2], input_mapping={"input": "{{state.text}}"})
    chain.add_node("dict", agent=agents[3], input_mapping={"q": "{{state.text}}", "n": 2})
    chain.connect("whole", "templated").connect("templated", "mapped").connect("mapped", "dict")
    result = chain.run({"text": "it"}, store=store_url)
    assert [agent.calls for agent in agents] == [[{"text": "it"}], ["Review it"], ["it"], [{"q": "it", "n": 2}]]
    assert result.node_results["templated"] == "b: Review it"
    with_input = Chain("agents with input").add_node("a", agent=agents[0])
    with_input.run({"input": "the input", "x": 1}, store=store_url)
    assert agents[0].calls[-1] == "the input"


def test_rule_an_envelope_gives_its_output_and_context_is_handed_through(store_url: str):
    agent = Counting()
    chain = Chain("enveloped").add_node("agent", agent=agent, output_key="reply", input="{{state.q}}")
    result = chain.run({"q": "why"}, context={"user": "ann"}, store=store_url)
    assert agent.calls == [("why", {"user": "ann"})]
    assert result.final_state == {"q": "why", "reply": "answer to why"}


@pytest.mark.parametrize("status", ["paused", "failed", "cancelled"])
def test_rule_an_agent_that_did_not_complete_is_no_result(store_url: str, status: str):
    class Unfinished:
        async def arun(self, value: Any) -> Envelope:
            return Envelope(None, status)

    with pytest.raises(ChainError, match=f"'a'.*{status}"):
        Chain("unfinished").add_node("a", agent=Unfinished()).run(store=store_url)


def test_rule_an_agent_may_ask_and_runs_again_after_the_answer(store_url: str):
    class Asking:
        async def arun(self, value: Any) -> str:
            ran.append("arun")
            return f"approved {interrupt('may I?').approved}"

    chain = Chain("asking agent").add_node("a", agent=Asking())
    paused = chain.run(store=store_url)
    assert (paused.status, paused.pending_interrupts[0]["reason"]) == ("paused", "may I?")
    result = asyncio.run(chain.aresume(paused.execution_id, resume_value=YES, store=store_url))
    assert (result.output, ran) == ("approved True", ["arun", "arun"])


# --- the context ----------------------------------------------------------------------------------------

CANARY = "canary-8c1f2d"


def test_rule_the_context_reaches_every_node_and_is_stored_nowhere(store_url: str):
    """Not in records, states, questions or checkpoints, over pauses, failures, forks and retries."""
    fails = [True]

    class Agent:
        async def arun(self, value: Any, context: Any = None) -> int:
            ran.append(("agent", context["token"]))
            return 1

    def tool(context: Any) -> int:
        ran.append(("tool", context["token"]))
        return 2

    def item(one: int, context: Any) -> int:
        ran.append(("item", context["token"]))
        return one

    def asks(context: Any) -> bool:
        return interrupt("go on?", {"x": 1}).approved

    def breaks(context: Any) -> int:
        if fails.pop() if fails else False:
            raise ValueError("broken")
        ran.append(("breaks", context["token"]))
        return 3

    inner = Chain("canary inner").add_node("tool", fn=tool)
    chain = Chain("canary").add_node("agent", agent=Agent()).add_node("inner", agent=inner)
    chain.add_node("map", type="parallel", over=[1], fn=item).add_node("asks", fn=asks).add_node("breaks", fn=breaks)
    for source, target in (("agent", "inner"), ("inner", "map"), ("map", "asks"), ("asks", "breaks")):
        chain.connect(source, target)
    context = {"token": CANARY, "client": threading.Lock()}  # nothing that could be stored, either
    paused = chain.run({}, execution_id="r1", context=context, store=store_url)
    fork = chain.fork("r1", context=context, store=store_url)
    with pytest.raises(ValueError, match="broken"):
        asyncio.run(chain.aresume("r1", resume_value=YES, context=context, store=store_url))
    result = chain.retry("r1", context=context, store=store_url)
    assert (paused.status, fork.status, result.status) == ("paused", "paused", "completed")
    assert ran == [(name, CANARY) for name in ("agent", "tool", "item", "breaks")]
    stored = everything(store_url)
    assert "go on?" in stored
    assert CANARY not in stored


def test_rule_without_a_context_a_node_that_takes_it_gets_none(store_url: str):
    assert line("no context", lambda_of_context).run(store=store_url).output == [None]


def lambda_of_context(context: Any) -> list[Any]:
    return [context]


def test_rule_a_key_of_the_state_named_context_is_the_state(store_url: str):
    assert line("context key", lambda_of_context).run({"context": 5}, context="c", store=store_url).output == [5]


# --- without checkpoints --------------------------------------------------------------------------------


def test_rule_without_checkpoints_a_run_is_kept_in_memory_only(tmp_path: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PERDURE_LOCAL_DB", str(tmp_path / "never.db"))

    def asks(x: int) -> list[Any]:
        ran.append("asks")
        return [x, interrupt("go?").approved]

    chain = line("unkept", asks, checkpoint_enabled=False)
    paused = chain.run({"x": 1})
    assert paused.status == "paused"
    result = chain.resume(paused.execution_id, resume_value=YES)
    assert result.output == [1, True]  # type: ignore[attr-defined]
    assert not (tmp_path / "never.db").exists()


def test_rule_a_checkpointer_that_is_none_is_refused_by_its_field():
    with pytest.raises(InvalidInputError) as refused:
        line("bad checkpointer", plain, checkpointer=5).run({"x": 1})
    assert refused.value.field == "checkpointer"


def test_rule_a_chain_without_a_store_of_its_own_uses_the_configured_one(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
):
    url = f"sqlite:///{tmp_path / 'configured.db'}"
    monkeypatch.setenv("PERDURE_STORE", url)
    result = line("configured", plain).run({"x": 1})
    assert [row.run_id for row in runs(url)] == [result.execution_id]
    assert json.loads(result.model_dump_json())["output"] == 2
