"""Nodes that run several things at once: results in order, failures as the mode says, questions each their own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.chains import NO, YES, Echo, line, points, questions
from tests.support.engines import Turns

from perdure import AmbiguousAnswer, Chain, ChainError, ChainStateError, ChainTemplateError, interrupt

ran: list[Any] = []


@pytest.fixture(autouse=True)
def fresh() -> None:
    ran.clear()


def works(name: str, value: Any = None) -> Any:
    def run() -> Any:
        ran.append(name)
        return value if value is not None else f"{name} done"

    run.__name__ = name
    return run


def breaks(name: str, error: Exception) -> Any:
    def run() -> Any:
        ran.append(name)
        raise error

    run.__name__ = name
    return run


def parallel(name: str, **given: Any) -> Chain:
    return Chain(name).add_node("par", type="parallel", **given)


# --- results --------------------------------------------------------------------------------------------


async def test_rule_agents_give_a_list_in_their_order_and_branches_a_dict(store_url: str):
    functions = [works("a"), works("b", {"x": 1}), Echo()]
    result = await parallel("listed", agents=functions).arun({"q": 1}, store=store_url)
    assert result.final_state == {"q": 1, "par": ["a done", {"x": 1}, "echo: {'q': 1}"]}
    named = {"first": functions[0], "second": functions[1]}
    result = await parallel("named", branches=named, output_key="out").arun(store=store_url)
    assert result.final_state == {"out": {"first": "a done", "second": {"x": 1}}}
    assert list(result.final_state["out"]) == ["first", "second"]


@pytest.mark.parametrize("order", [("a", "b", "c"), ("c", "b", "a"), ("b", "a", "c")], ids="".join)
async def test_rule_who_ends_first_changes_nothing(store_url: str, order: Any):
    turns = Turns(order)

    def branch(name: str) -> Any:
        async def run() -> str:
            await turns.take(name)
            return name

        run.__name__ = name
        return run

    result = await parallel("any order", agents=[branch(name) for name in "abc"]).arun(store=store_url)
    assert result.output == ["a", "b", "c"]
    again = await parallel("any order", agents=[branch(name) for name in "abc"]).arun(
        execution_id=result.execution_id, store=store_url
    )
    assert again.output == ["a", "b", "c"]


async def test_rule_a_dict_of_branches_writes_its_keys_like_any_other_dict(store_url: str):
    result = await parallel("keys", branches={"x": works("x", 1), "y": works("y", 2)}).arun({"x": 0}, store=store_url)
    assert result.final_state == {"x": 1, "y": 2}


async def test_rule_a_map_runs_a_function_for_each_item_with_its_index_path(store_url: str):
    def double(item: int, factor: int) -> int:
        ran.append(item)
        return item * factor

    chain = parallel("mapped", over="{{state.items}}", fn=double, output_key="doubled")
    result = await chain.arun({"items": [3, 1, 2], "factor": 10}, store=store_url)
    assert result.final_state["doubled"] == [30, 10, 20]
    assert sorted(ran) == [1, 2, 3]


async def test_rule_a_map_over_nothing_is_an_empty_list_and_over_no_list_an_error(store_url: str):
    chain = parallel("mapped", over="{{state.items}}", fn=lambda item: item)
    assert (await chain.arun({"items": []}, store=store_url)).output == []
    assert (await chain.arun({"items": (1, 2)}, store=store_url)).output == [1, 2]
    for items in ("text", {"a": 1}, 5, None):
        with pytest.raises(ChainStateError, match="'par' needs a list"):
            await chain.arun({"items": items}, store=store_url)
    with pytest.raises(ChainTemplateError, match=r"items"):
        await chain.arun({}, store=store_url)


async def test_rule_a_map_may_run_agents_chains_and_falsy_items(store_url: str):
    agent = Echo()
    result = await parallel("agents", over="{{state.items}}", agent=agent).arun(
        {"items": [0, "", None]}, store=store_url
    )
    assert result.output == ["echo: 0", "echo: ", "echo: None"]
    inner = Chain("inner").add_node("look", fn=lambda state: state)
    chain = parallel("chains", over="{{state.items}}", agent=inner)
    result = await chain.arun({"items": [{"a": 1}, 2, None]}, store=store_url)
    assert result.output == [{"a": 1}, {"input": 2}, {"input": None}]


async def test_rule_what_an_item_body_does_to_its_item_nobody_sees(store_url: str):
    def changes(item: list[int]) -> list[int]:
        item.append(9)
        return item

    chain = parallel("changing items", over="{{state.items}}", fn=changes, output_key="out")
    result = await chain.arun({"items": [[1], [2]]}, store=store_url)
    assert result.final_state == {"items": [[1], [2]], "out": [[1, 9], [2, 9]]}


@pytest.mark.parametrize("limit", [1, 2, 5])
async def test_rule_no_more_run_at_once_than_max_concurrency(store_url: str, limit: int):
    now: list[int] = []
    most: list[int] = []

    async def item(n: int) -> int:
        now.append(n)
        most.append(len(now))
        for _ in range(5):
            await asyncio.sleep(0)
        now.remove(n)
        return n

    chain = parallel("limited", over="{{state.items}}", fn=item, max_concurrency=limit)
    result = await chain.arun({"items": list(range(12))}, store=store_url)
    assert result.output == list(range(12))
    assert max(most) <= limit


async def test_rule_without_a_limit_all_run_at_once(store_url: str):
    inside: list[int] = []
    all_in = asyncio.Event()

    async def item(n: int) -> int:
        inside.append(n)
        if len(inside) == 20:
            all_in.set()
        await all_in.wait()
        return n

    chain = parallel("unlimited", over="{{state.items}}", fn=item)
    assert (await chain.arun({"items": list(range(20))}, store=store_url)).output == list(range(20))


async def test_rule_branches_may_be_chains_that_go_on_from_the_state(store_url: str):
    one = line("one", works("a", {"x": 1}))
    two = Chain("two").add_node("b", fn=lambda n: {"y": n + 1})
    result = await parallel("chains", agents=[one, two]).arun({"n": 1}, store=store_url)
    assert result.output == [{"x": 1}, {"y": 2}]


# --- failures -------------------------------------------------------------------------------------------


def test_rule_by_default_a_failure_is_raised_after_the_others_have_ended(store_url: str):
    chain = parallel("raising", agents=[breaks("a", ValueError("a broke")), works("b"), breaks("c", KeyError("c"))])
    with pytest.raises(ValueError, match="a broke"):
        chain.run(execution_id="r1", store=store_url)
    assert sorted(ran) == ["a", "b", "c"]


def test_rule_a_retry_runs_only_the_branches_that_failed(store_url: str):
    fails = [True]

    def fragile() -> str:
        ran.append("fragile")
        if fails.pop() if fails else False:
            raise ConnectionError("gone")
        return "mended"

    chain = parallel("retried", agents=[works("a"), fragile, works("b")])
    with pytest.raises(ConnectionError):
        chain.run(execution_id="r1", store=store_url)
    assert chain.retry("r1", store=store_url).output == ["a done", "mended", "b done"]
    assert sorted(ran) == ["a", "b", "fragile", "fragile"]


async def test_rule_with_continue_an_error_stands_in_the_result(store_url: str):
    functions = {"a": works("a"), "b": breaks("b", ValueError("b broke")), "c": breaks("c", KeyError())}
    result = await parallel("going on", branches=functions, failure_mode="continue").arun(store=store_url)
    assert result.output == {"a": "a done", "b": {"error": "ValueError: b broke"}, "c": {"error": "KeyError"}}
    listed = await parallel("going on", agents=list(functions.values()), failure_mode="continue").arun(store=store_url)
    assert listed.output == list(result.output.values())


async def test_rule_with_any_success_errors_are_left_out_unless_nothing_is_left(store_url: str):
    functions = [breaks("a", ValueError("a broke")), works("b"), breaks("c", KeyError("c"))]
    assert (await parallel("any", agents=functions, failure_mode="any_success").arun(store=store_url)).output == [
        "b done"
    ]
    with pytest.raises(ChainError, match=r"'par' ran has failed: a: ValueError: a broke; c: KeyError"):
        await parallel("none", agents=[functions[0], functions[2]], failure_mode="any_success").arun(store=store_url)


async def test_rule_with_fail_fast_the_first_failure_ends_the_others(store_url: str):
    never = asyncio.Event()
    cancelled: list[str] = []

    async def patient() -> None:
        try:
            await never.wait()
        except asyncio.CancelledError:
            cancelled.append("patient")
            raise

    async def hasty() -> None:
        await asyncio.sleep(0)
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError):
        await parallel("fast", agents=[patient, hasty], failure_mode="fail_fast").arun(store=store_url)
    assert cancelled == ["patient"]


async def test_rule_with_continue_a_chain_that_failed_leaves_nothing_running(store_url: str):
    """What was still open in it is given up before the run goes on."""
    never = asyncio.Event()
    ended: list[str] = []

    async def patient() -> None:
        try:
            await never.wait()
        finally:
            ended.append("patient")

    inner = Chain("inner").add_node("patient", fn=patient).add_node("breaks", fn=breaks("breaks", ValueError("no")))
    chain = parallel("clean", branches={"x": inner, "y": works("y")}, failure_mode="continue")
    chain.add_node("then", fn=lambda: ended.append("then")).connect("par", "then")
    result = await chain.arun(store=store_url)
    assert result.node_results["par"] == {"x": {"error": "ValueError: no"}, "y": "y done"}
    assert "then" in ended


def test_rule_a_chain_in_a_branch_that_cannot_run_is_refused_at_the_door(store_url: str):
    inner = Chain("inner").add_node("a", fn=works("a")).connect("a", "ghost")
    chain = Chain("outer").add_node("first", fn=works("first"))
    chain.add_node("par", type="parallel", agents=[works("b"), inner]).connect("first", "par")
    assert chain.validate() == ["in 'par' (inner): edge 'a' -> 'ghost' leads to 'ghost', and there is no such node"]
    with pytest.raises(ChainError, match="ghost"):
        chain.run(store=store_url)
    assert ran == []


# --- questions ------------------------------------------------------------------------------------------


def asks(item: str) -> str:
    ran.append(item)
    return f"{item}: {interrupt('use it?', {'item': item}).approved}"


def asking() -> Chain:
    return parallel("asking", over="{{state.items}}", fn=asks)


def test_rule_each_branch_asks_its_own_question_and_gets_its_own_answer(store_url: str):
    paused = asking().run({"items": ["a", "b", "c"]}, execution_id="r1", store=store_url)
    by_item = {q["context"]["item"]: q["interrupt_id"] for q in paused.pending_interrupts}
    assert sorted(by_item) == ["a", "b", "c"]
    assert len(set(by_item.values())) == 3
    with pytest.raises(AmbiguousAnswer) as refused:
        asking().resume("r1", resume_value=YES, store=store_url)
    assert sorted(refused.value.interrupt_ids) == sorted(by_item.values())
    left: Any = asking().resume("r1", resume_value=NO, interrupt_id=by_item["b"], store=store_url)
    assert [q["context"]["item"] for q in left.pending_interrupts] == ["a", "c"]
    both = {by_item["c"]: YES, by_item["a"]: YES}
    result: Any = asking().resume("r1", resume_value=both, store=store_url)
    assert result.output == ["a: True", "b: False", "c: True"]
    assert sorted(ran) == sorted("aabbcc")
    assert [row.status for row in questions(store_url, "r1")] == ["answered"] * 3


def test_rule_a_question_is_no_failure_to_any_mode(store_url: str):
    for mode in ("raise", "continue", "fail_fast", "any_success"):
        chain = parallel(f"mode {mode}", agents=[works("a"), lambda: interrupt("b?").approved], failure_mode=mode)
        paused = chain.run(store=store_url)
        assert (paused.status, len(paused.pending_interrupts)) == ("paused", 1)
        result: Any = chain.resume(paused.execution_id, resume_value=YES, store=store_url)
        assert result.output == ["a done", True]


def test_rule_with_continue_a_failure_beside_a_question_waits_for_the_answer(store_url: str):
    fails = breaks("b", ValueError("b broke"))
    chain = parallel("both", agents=[lambda: interrupt("a?").approved, fails], failure_mode="continue")
    paused = chain.run(execution_id="r1", store=store_url)
    assert paused.status == "paused"
    result: Any = chain.resume("r1", resume_value=YES, store=store_url)
    assert (result.output, ran) == ([True, {"error": "ValueError: b broke"}], ["b"])


def test_rule_by_default_a_failure_beside_a_question_waits_for_the_answer_too(store_url: str):
    chain = parallel("both", agents=[lambda: interrupt("a?").approved, breaks("b", ValueError("b broke"))])
    assert chain.run(execution_id="r1", store=store_url).status == "paused"
    with pytest.raises(ValueError, match="b broke"):
        chain.resume("r1", resume_value=YES, store=store_url)
    assert ran == ["b"]


def test_rule_branches_have_checkpoints_below_their_node(store_url: str):
    chain = parallel("seen", branches={"x": works("x", 1), "y/z": works("y", 2)})
    result = chain.run({"n": 0}, store=store_url)
    found = points(store_url, result.execution_id)
    assert sorted(one.path for one in found if one.path) == ["par", "par/0/x", "par/0/y%2Fz"]
    assert all(one.state == {"n": 0} for one in found if one.path.startswith("par/"))
