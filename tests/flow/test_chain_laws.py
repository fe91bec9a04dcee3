"""What was once wrong with chains, each as the rule it broke."""

from __future__ import annotations

import dataclasses
import ipaddress
import operator
import uuid
from typing import Any

import pydantic
import pytest
from tests.support.chains import NO, YES, load

from perdure import Chain, ChainTemplateError, InvalidInputError, SerializationError, interrupt
from perdure.errors import ChainStateError

ran: list[Any] = []


@dataclasses.dataclass
class Unit:
    n: int


@dataclasses.dataclass
class Units:
    u: Unit


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


def test_law_11_a_state_that_cannot_be_recorded_is_refused_before_any_effect(store_url: str) -> None:
    class State(pydantic.BaseModel):
        ip: ipaddress.IPv4Address

    chain = Chain("ip", State).add_node("pay", fn=lambda ip: ran.append(ip))
    for _ in range(2):
        with pytest.raises(SerializationError, match=r"state\.ip"):
            chain.run({"ip": "1.2.3.4"}, execution_id="r1", store=store_url)
    assert ran == []


def test_law_06_a_reducer_s_unrecordable_result_at_a_join_comes_before_the_effect(store_url: str) -> None:
    chain = Chain("join", reducers={"k": lambda old, new: object()})
    chain.add_node("a", fn=lambda: {"k": 1}).add_node("b", fn=lambda: {"k": 2}).add_node(
        "pay", fn=lambda: ran.append(1)
    )
    chain.connect("a", "pay").connect("b", "pay")
    for attempt in (chain.run, chain.retry):
        with pytest.raises(SerializationError, match=r"state\.k"):
            attempt(execution_id="r1", store=store_url)
    assert ran == []


def test_law_06_a_reducer_s_unrecordable_result_fails_the_run_at_every_attempt(store_url: str) -> None:
    chain = Chain("write", reducers={"k": lambda old, new: object()}).add_node(
        "a", fn=lambda: ran.append("a") or {"k": 2}
    )
    chain.add_node("pay", fn=lambda: ran.append("pay")).connect("a", "pay")
    with pytest.raises(SerializationError):
        chain.run({"k": 1}, execution_id="r1", store=store_url)
    with pytest.raises(SerializationError):
        chain.retry("r1", store=store_url)
    assert ran == ["a"]


def test_law_08_defaults_are_made_once(store_url: str) -> None:
    class State(pydantic.BaseModel):
        request: str = pydantic.Field(default_factory=lambda: str(uuid.uuid4()))

    def ask(request: str) -> dict[str, bool]:
        ran.append(request)
        return {"ok": interrupt("go?", {"request": request}, bind=True).approved}

    chain = Chain("defaults", State).add_node("ask", fn=ask)
    chain.run(execution_id="r1", store=store_url)
    result: Any = chain.resume("r1", resume_value=YES, store=store_url)
    assert (result.status, len(set(ran))) == ("completed", 1)


def test_law_08_a_default_is_nobody_else_s(store_url: str) -> None:
    schema = {"type": "object", "properties": {"tags": {"type": "array", "default": []}}}
    chain = Chain("default", schema).add_node("a", fn=lambda tags: {"n": len(tags)})
    chain.run(store=store_url).final_state["tags"].append("spoilt")
    assert chain.run(store=store_url).final_state == {"tags": [], "n": 0}


def test_rule_a_failed_item_of_a_bounded_map_is_tried_again_and_the_others_are_not(store_url: str) -> None:
    def work(item: int) -> int:
        ran.append(item)
        if item == 0 and ran.count(0) == 1:
            raise ValueError("once")
        return item * 10

    chain = Chain("map").add_node("m", type="parallel", over="{{state.xs}}", fn=work, max_concurrency=1)
    with pytest.raises(ValueError, match="once"):
        chain.run({"xs": [0, 1, 2]}, execution_id="r1", store=store_url)
    result: Any = chain.resume("r1", store=store_url)
    assert (result.output, sorted(ran)) == ([0, 10, 20], [0, 0, 1, 2])


def test_law_11_a_model_s_constraints_hold_at_the_door_and_after_a_node(store_url: str) -> None:
    class State(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(extra="forbid")
        amount: int = pydantic.Field(gt=0)

    chain = Chain("constraints", State).add_node("n", fn=lambda: {"amount": -5})
    for bad in ({"amount": -1}, {"amount": 1, "nobody": 1}, {"amount": 1}):
        with pytest.raises(ChainStateError):
            chain.run(bad, store=store_url)


def test_rule_references_in_a_json_schema_point_into_its_document(store_url: str) -> None:
    schema = {"type": "object", "$defs": {"n": {"type": "integer"}}, "properties": {"a": {"$ref": "#/$defs/n"}}}
    chain = Chain("refs", schema).add_node("n", fn=lambda a: {"a": "text"})
    with pytest.raises(ChainStateError, match="'text' is not of type 'integer'"):
        chain.run({"a": 1}, store=store_url)


def test_rule_a_key_that_a_nested_chain_reduces_too_is_added_once(store_url: str) -> None:
    both = {"log": operator.add}
    inner = (
        Chain("inner", reducers=both).add_node("x", fn=lambda: {"log": ["x"]}).add_node("y", fn=lambda: {"log": ["y"]})
    )
    inner.connect("x", "y")
    outer = Chain("outer", reducers=both).add_node("a", fn=lambda: {"log": ["a"]}).add_node("n", agent=inner)
    outer.connect("a", "n")
    assert outer.run({"log": []}, store=store_url).final_state == {"log": ["a", "x", "y"]}


def test_rule_a_change_at_a_nested_question_is_made_once(store_url: str) -> None:
    inner = Chain("inner").add_node("x", fn=lambda: {"ok": interrupt("go?").approved})
    outer = Chain("outer", reducers={"items": operator.add}).add_node("n", agent=inner)
    outer.run({"items": []}, execution_id="r1", store=store_url)
    result: Any = outer.resume("r1", resume_value=NO, modified_state={"items": ["p"]}, store=store_url)
    assert result.final_state == {"items": ["p"], "ok": False}


def test_rule_a_fork_at_the_last_checkpoint_of_a_nested_chain_keeps_the_change(store_url: str) -> None:
    inner = Chain("inner").add_node("x", fn=lambda n: {"n": n + 1})
    chain = Chain("outer").add_node("i", agent=inner).add_node("z", fn=lambda n: {"seen": n}).connect("i", "z")
    chain.run({"n": 1}, execution_id="r1", store=store_url)
    at = next(
        record.seq for record in load(store_url, "r1").records if record.type == "completed" and record.name == "x"
    )
    fork = chain.fork("r1", checkpoint_id=at, modified_state={"n": 50}, store=store_url)
    assert fork.final_state == {"n": 50, "seen": 50}


async def test_law_06_a_run_that_a_body_starts_is_found_again_at_a_repetition(store_url: str) -> None:
    pay = Chain("pay").add_node("charge", fn=lambda: ran.append("charged"))

    async def node() -> None:
        await pay.arun(store=store_url)
        ran.append("node")
        if ran.count("node") == 1:
            raise ValueError("after")

    chain = Chain("outer").add_node("n", fn=node)
    with pytest.raises(ValueError, match="after"):
        await chain.arun(execution_id="r1", store=store_url)
    await chain.aresume("r1", store=store_url)
    assert ran == ["charged", "node", "node"]


def test_law_09_a_declared_state_that_grows_is_stored_linearly(store_url: str) -> None:
    def stored(n: int) -> int:
        chain = Chain("grows", {"i": int, "items": list[dict]})
        chain.add_node("a", fn=lambda i, items: {"i": i + 1, "items": [*items, {"k": "x" * 1000}]})
        chain.connect("a", "a", max_iterations=n + 1, exit_condition=f"i >= {n}")
        chain.run({"i": 0, "items": []}, execution_id=f"r{n}", store=store_url)
        records = load(store_url, f"r{n}").records
        return sum(len(record.data or "") + len(record.state or "") for record in records)

    assert stored(60) < 2.5 * stored(30)


def test_law_08_a_typed_state_is_the_same_whoever_asks(store_url: str) -> None:
    chain = Chain("typed", Units).add_node("b", fn=lambda u: Unit(u.n + 1), output_schema=Unit)
    first = chain.run({"u": Unit(1)}, execution_id="r1", store=store_url)
    again = chain.run({"u": Unit(1)}, execution_id="r1", store=store_url)
    assert (first.final_state, first.node_results) == (again.final_state, again.node_results)


def test_rule_the_state_at_a_pause_has_what_other_branches_have_done(store_url: str) -> None:
    chain = Chain("paused").add_node("s", fn=lambda: {"s": 1}).add_node("a", fn=lambda: {"a": 1})
    chain.add_node("b", fn=lambda: {"b": interrupt("go?").approved}).add_node("j", fn=lambda a, b: None)
    chain.connect("s", "a").connect("s", "b").connect("a", "j").connect("b", "j")
    assert chain.run(store=store_url).final_state == {"s": 1, "a": 1}


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"fn": len, "over": "{{state.xs}}"}, "over"),
        ({"fn": len, "bind": True}, "bind"),
        ({"agent": Chain("inner"), "retries": 3}, "retries"),
        ({"type": "hitl", "timeout": 1}, "timeout"),
        ({"type": "transformer", "template": "x", "recovery": "manual"}, "recovery"),
    ],
)
def test_law_11_an_option_that_nobody_would_read_is_refused(given: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        Chain("options").add_node("n", **given)
    assert refused.value.field == field


def test_law_11_a_template_that_refers_to_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(ChainTemplateError):
        Chain("endless").add_node("n", type="transformer", template=endless)


def test_rule_a_nested_chain_that_was_built_on_is_read_again(store_url: str) -> None:
    inner = Chain("inner").add_node("x", fn=lambda: {"x": 1})
    outer = Chain("outer").add_node("n", agent=inner)
    assert outer.run(store=store_url).final_state == {"x": 1}
    inner.add_node("y", fn=lambda: {"y": 2}).connect("x", "y")
    assert outer.run(store=store_url).final_state == {"x": 1, "y": 2}
    inner.connect("y", "nowhere")
    assert "nowhere" in outer.validate()[0]


def test_law_11_two_decisions_at_once_are_refused(store_url: str) -> None:
    chain = Chain("asks").add_node("n", fn=lambda: interrupt("go?").approved)
    chain.run(execution_id="r1", store=store_url)
    with pytest.raises(InvalidInputError, match="repeat_operation"):
        chain.resume("r1", resume_value=YES, repeat_operation="r1/n/0", store=store_url)
    assert load(store_url, "r1").run.status == "waiting"
