"""Schemas of the state, of a node's input and of its output: what fits, what it becomes, what is refused and when."""

from __future__ import annotations

import dataclasses
from typing import Any, NotRequired, Required, TypedDict

import jsonschema  # noqa: F401  # imported before there is a loop that its import would block
import pydantic
import pytest
from tests.support.chains import YES, Echo, line, load, points, runs

from perdure import Chain, ChainStateError, interrupt, node

ran: list[Any] = []


@pytest.fixture(autouse=True)
def fresh() -> None:
    ran.clear()


class Item(pydantic.BaseModel):
    sku: str
    count: int = 1


class OrderModel(pydantic.BaseModel):
    amount: int
    items: list[Item] = []
    note: str = "none"


@dataclasses.dataclass
class OrderData:
    amount: int
    items: list[Item] = dataclasses.field(default_factory=list)
    note: str = "none"


class OrderDict(TypedDict):
    amount: int
    items: NotRequired[list[Item]]
    note: NotRequired[str]


class PartialDict(TypedDict, total=False):
    amount: Required[int]
    items: list[Item]


JSON = {
    "type": "object",
    "properties": {
        "amount": {"type": "integer"},
        "items": {"type": "array", "default": []},
        "note": {"type": "string", "default": "none"},
    },
    "required": ["amount"],
}
WITH_DEFAULTS = {"model": OrderModel, "dataclass": OrderData, "json": JSON}
ALL = {**WITH_DEFAULTS, "typed dict": OrderDict, "partial dict": PartialDict, "types": {"amount": int}}


def first(amount: int) -> dict[str, int]:
    ran.append("first")
    return {"amount": amount + 1}


# --- the state ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", WITH_DEFAULTS)
async def test_rule_defaults_fill_in_and_each_run_gets_its_own(store_url: str, kind: str):
    def grows(items: list[Any], note: str) -> dict[str, Any]:
        items.append(1)
        return {"seen": [len(items), note]}

    chain = line("defaults", grows, state_schema=WITH_DEFAULTS[kind])
    for _ in range(2):
        result = await chain.arun({"amount": 1}, store=store_url)
        assert result.final_state == {"amount": 1, "items": [], "note": "none", "seen": [1, "none"]}


@pytest.mark.parametrize("kind", ALL)
def test_rule_a_state_that_does_not_fit_is_refused_at_the_door(store_url: str, kind: str):
    chain = line("door", first, state_schema=ALL[kind])
    for state, field in (({}, "amount"), ({"amount": "many"}, "amount"), ({"amount": [1]}, "amount")):
        with pytest.raises(ChainStateError) as refused:
            chain.run(state, store=store_url)
        assert field in refused.value.field
    assert (runs(store_url), ran) == ([], [])


@pytest.mark.parametrize("kind", ALL)
def test_rule_what_a_node_writes_must_fit_and_its_result_stands(store_url: str, kind: str):
    def breaks() -> dict[str, Any]:
        ran.append("breaks")
        return {"amount": ["many"]}

    chain = line("writes", breaks, state_schema=ALL[kind])
    with pytest.raises(ChainStateError, match="amount"):
        chain.run({"amount": 1}, execution_id="r1", store=store_url)
    assert load(store_url, "r1").run.status == "failed"
    with pytest.raises(ChainStateError, match="amount"):
        chain.retry("r1", store=store_url)
    assert ran == ["breaks"]


async def test_rule_keys_that_nobody_declared_are_left_alone(store_url: str):
    result = await line("undeclared", lambda_other, state_schema={"amount": int}).arun(
        {"amount": 1, "x": object.__name__}, store=store_url
    )
    assert result.final_state == {"amount": 1, "x": "object", "y": [1]}


def lambda_other() -> dict[str, Any]:
    return {"y": [1]}


def test_rule_declared_types_are_what_nodes_see_before_and_after_a_pause(store_url: str):
    """A model in the state is that model for every node, in this process and in the next."""

    def looks(items: list[Any]) -> dict[str, list[Item]]:
        ran.append(type(items[0]).__name__)
        return {"items": [*items, Item(sku="b", count=2)]}

    def asks(items: list[Any]) -> None:
        interrupt("go?")
        ran.append([type(item).__name__ for item in items])

    chain = line("typed", looks, asks, state_schema=OrderModel)
    paused = chain.run({"amount": 1, "items": [{"sku": "a"}]}, execution_id="r1", store=store_url)
    result: Any = chain.resume("r1", resume_value=YES, store=store_url)
    assert ran == ["Item", ["Item", "Item"]]
    assert result.final_state["items"] == [Item(sku="a"), Item(sku="b", count=2)]
    assert paused.status == "paused"


async def test_rule_types_convert_what_they_can(store_url: str):
    result = await line("converts", first, state_schema={"amount": int}).arun({"amount": "41"}, store=store_url)
    assert result.final_state == {"amount": 42}


async def test_rule_a_json_schema_converts_nothing_and_names_the_place(store_url: str):
    deep = {"type": "object", "properties": {"order": {"properties": {"lines": {"items": {"type": "integer"}}}}}}
    with pytest.raises(ChainStateError) as refused:
        await line("deep", first, state_schema=deep).arun({"order": {"lines": [1, "2"]}, "amount": 1}, store=store_url)
    assert "lines" in refused.value.field
    assert refused.value.field.endswith("1")


# --- nodes ----------------------------------------------------------------------------------------------


def test_rule_a_nodes_input_is_checked_before_its_body(store_url: str):
    chain = Chain("input").add_node("first", fn=first, input_schema={"properties": {"amount": {"minimum": 10}}})
    with pytest.raises(ChainStateError, match=r"first\.input\.amount"):
        chain.run({"amount": 9}, store=store_url)
    assert ran == []
    assert chain.run({"amount": 10}, store=store_url).output == {"amount": 11}


async def test_rule_an_input_model_gives_its_fields_with_defaults(store_url: str):
    def takes(sku: str, count: Any = "not given") -> list[Any]:
        return [sku, count]

    chain = Chain("model input").add_node("takes", fn=takes, input_schema=Item, input_mapping={"sku": "{{state.x}}"})
    assert (await chain.arun({"x": "a"}, store=store_url)).output == ["a", 1]
    with pytest.raises(ChainStateError, match=r"takes\.input\.sku"):
        await chain.arun({"x": 5}, store=store_url)


async def test_rule_an_agents_input_is_checked_as_a_whole(store_url: str):
    agent = Echo()
    chain = Chain("agent input").add_node("agent", agent=agent, input="{{state.x}}", input_schema=int)
    assert (await chain.arun({"x": 5}, store=store_url)).output == "echo: 5"
    with pytest.raises(ChainStateError, match=r"agent\.input"):
        await chain.arun({"x": "five"}, store=store_url)
    assert agent.calls == [5]


async def test_rule_the_output_of_nested_chains_and_parallel_nodes_is_checked_as_a_whole(store_url: str):
    inner = line("inner", lambda_other)
    nested = Chain("nested").add_node("in", agent=inner, output_schema={"required": ["z"]})
    many = Chain("many").add_node("in", type="parallel", agents=[lambda_other, Echo()], output_schema=dict)
    for chain in (nested, many):
        with pytest.raises(ChainStateError, match=r"in\.output"):
            await chain.arun(store=store_url)
    typed = Chain("typed").add_node("in", agent=inner, output_schema=dict[str, list[int]], output_key="r")
    listed = Chain("listed").add_node(
        "in", type="parallel", over=["a"], fn=lambda sku: {"sku": sku}, output_schema=list[Item]
    )
    assert (await typed.arun(store=store_url)).final_state == {"r": {"y": [1]}}
    assert (await listed.arun(store=store_url)).final_state == {"in": [Item(sku="a")]}


@pytest.mark.parametrize("schema", [int, {"type": "integer"}], ids=["type", "json"])
def test_rule_a_nodes_output_is_checked_after_its_body_which_does_not_run_again(store_url: str, schema: Any):
    def makes() -> Any:
        ran.append("makes")
        return "many"

    chain = Chain("output").add_node("makes", fn=makes, output_schema=schema)
    with pytest.raises(ChainStateError, match=r"makes\.output"):
        chain.run(execution_id="r1", store=store_url)
    with pytest.raises(ChainStateError, match=r"makes\.output"):
        chain.run(execution_id="r1", store=store_url)
    assert ran == ["makes"]


def test_rule_an_output_type_is_what_later_nodes_get(store_url: str):
    """The result is rebuilt to it, at once and after a pause."""

    def makes() -> dict[str, Any]:
        return {"sku": "a"}

    def looks(item: Any) -> str:
        return type(item).__name__

    def asks(item: Any) -> str:
        interrupt("go?")
        return type(item).__name__

    chain = Chain("output type").add_node("makes", fn=makes, output_schema=Item, output_key="item")
    chain.add_node("looks", fn=looks).add_node("asks", fn=asks).connect("makes", "looks").connect("looks", "asks")
    chain.run(execution_id="r1", store=store_url)
    result: Any = chain.resume("r1", resume_value=YES, store=store_url)
    assert (result.node_results["looks"], result.node_results["asks"]) == ("Item", "Item")
    assert result.final_state["item"] == Item(sku="a")


def test_rule_a_return_annotation_is_what_later_nodes_get(store_url: str):
    def makes() -> Item:
        return Item(sku="a")

    def looks(makes: Any) -> str:
        interrupt("go?")
        return type(makes).__name__

    chain = line("annotated", makes, looks)
    chain.run(execution_id="r1", store=store_url)
    result: Any = chain.resume("r1", resume_value=YES, store=store_url)
    assert result.output == "Item"


async def test_rule_a_decorated_node_brings_its_schemas(store_url: str):
    @node(output_schema=int, input_schema={"required": ["amount"]})
    def makes(amount: Any) -> Any:
        return amount

    chain = Chain("decorated").add_node("makes", node=makes)
    assert (await chain.arun({"amount": 1}, store=store_url)).output == 1
    with pytest.raises(ChainStateError, match=r"makes\.output"):
        await chain.arun({"amount": "x"}, store=store_url)


def test_rule_changes_by_people_must_fit_too_and_are_refused_before_anything_is_stored(store_url: str):
    def asks(amount: int) -> list[Any]:
        return [interrupt("go?").approved, amount]

    chain = line("patched", asks, state_schema={"amount": int})
    chain.run({"amount": 1}, execution_id="r1", store=store_url)
    before = load(store_url, "r1").records
    for change in (lambda: chain.resume("r1", resume_value=YES, modified_state={"amount": "x"}, store=store_url),
                   lambda: chain.fork("r1", modified_state={"amount": []}, store=store_url),
                   lambda: chain.fork("r1", input={"amount": None}, store=store_url)):  # fmt: skip
        with pytest.raises(ChainStateError, match="amount"):
            change()
    assert load(store_url, "r1").records == before
    assert len(runs(store_url)) == 1
    result: Any = chain.resume("r1", resume_value=YES, modified_state={"amount": "7"}, store=store_url)
    assert result.output == [True, 7]
    assert points(store_url, "r1")[-1].state["amount"] == 7  # type: ignore[index]
