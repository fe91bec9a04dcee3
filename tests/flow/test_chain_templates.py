"""Templates in a chain: where they look, what they give, and that rendered data is data."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pytest
from tests.support.chains import YES, Echo, line

from perdure import Chain, ChainTemplateError


def rendered(name: str, template: Any) -> Chain:
    return Chain(name).add_node("t", type="transformer", template=template, output_key="out")


RICH = {
    "int": 5, "zero": 0, "none": None, "text": "x", "empty": "", "list": [1, {"a": 2}], "dict": {"b": None, "a": 1},
    "tuple": (1, 2), "sum": Decimal("1.10"), "day": dt.date(2024, 2, 29), "bytes": b"\x00", "nan?": float("inf"),
}  # fmt: skip


async def test_rule_a_lone_template_keeps_its_type(store_url: str):
    for name, value in RICH.items():
        path = f'{{{{state["{name}"]}}}}'
        result = await rendered("typed", path).arun(RICH, store=store_url)
        assert result.final_state["out"] == value
        assert type(result.final_state["out"]) is type(value)


async def test_rule_in_longer_text_it_renders(store_url: str):
    template = (
        "n={{state.int}} t={{state.text}} none=[{{state.none}}] l={{state.list}} s={{state.sum}} d={{ state.day }}"
    )
    result = await rendered("texts", template).arun(RICH, store=store_url)
    assert result.output == 'n=5 t=x none=[] l=[1, {"a": 2}] s=1.10 d=2024-02-29'


async def test_rule_templates_are_filled_at_any_depth_and_other_values_stay(store_url: str):
    template = {"a": ["{{state.int}}", {"b": "<{{state.text}}>"}], "c": 7, "d": None, "{{state.int}}": "key"}
    result = await rendered("deep", template).arun(RICH, store=store_url)
    assert result.output == {"a": [5, {"b": "<x>"}], "c": 7, "d": None, "{{state.int}}": "key"}


async def test_rule_state_input_and_results_are_three_things(store_url: str):
    chain = Chain("three").add_node("set", fn=lambda: {"x": 2}).add_node("seven", fn=lambda: 7, output_key="elsewhere")
    chain.add_node(
        "t", type="transformer", template="{{state.x}} {{input.x}} {{node_results.seven}} {{node_results.set.x}}"
    )
    chain.connect("set", "seven").connect("seven", "t")
    assert (await chain.arun({"x": 1}, store=store_url)).output == "2 1 7 2"


async def test_rule_a_default_stands_in_for_what_is_not_there(store_url: str):
    template = "{{state.a.b | default('-')}}{{state.list[9] | default(0)}}{{state.none | default('x')}}"
    assert (await rendered("defaults", template).arun(RICH, store=store_url)).output == "-0"
    assert (await rendered("default", "{{state.a | default(5)}}").arun({}, store=store_url)).output == 5


@pytest.mark.parametrize(
    ("template", "path"),
    [
        ("{{state.nope}}", r"state\.nope"),
        ("x {{state.dict.nope.more}}", r"state\.dict\.nope\.more"),
        ("{{state.list[7]}}", r"state\.list\[7\]"),
        ("{{state.text.a}}", r"state\.text\.a"),
        ("{{node_results.later}}", r"node_results\.later"),
        ("{{state.__class__}}", "__class__"),
        ("{{state.text.__len__}}", "__len__"),
    ],
)
async def test_rule_a_path_that_leads_nowhere_is_an_error_that_names_it(store_url: str, template: str, path: str):
    with pytest.raises(ChainTemplateError, match=path):
        await rendered("nowhere", template).arun(RICH, store=store_url)


@pytest.mark.parametrize(
    "text", ["{{state.secret}}", "{{input.text}}", "{{", "\\{{state.secret}}", "{{x | default(1)}}"]
)
async def test_rule_rendered_data_is_never_a_template(store_url: str, text: str):
    """Neither at once nor when a later node, a nested chain or an agent renders it again."""
    agent = Echo()
    inner = Chain("inner").add_node("again", type="transformer", template="{{state.input}}")
    chain = Chain("data").add_node("once", type="transformer", template="{{state.text}}")
    chain.add_node("twice", type="transformer", template="<{{state.once}}>")
    chain.add_node("agent", agent=agent, input="{{state.twice}}")
    chain.add_node("inner", agent=inner, input="{{state.twice}}", output_key="nested")
    chain.connect("once", "twice").connect("twice", "agent").connect("agent", "inner")
    result = await chain.arun({"text": text, "secret": "S"}, store=store_url)
    assert (result.final_state["once"], result.final_state["twice"]) == (text, f"<{text}>")
    assert agent.calls == [f"<{text}>"]
    assert result.final_state["nested"] == f"<{text}>"


async def test_rule_braces_can_be_written(store_url: str):
    assert (await rendered("braces", r"\{{state.x}} }} {").arun({"x": 1}, store=store_url)).output == "{{state.x}} }} {"


async def test_rule_what_a_template_gives_is_the_readers_own(store_url: str):
    def changes(items: list[int]) -> list[int]:
        items.append(9)
        return items

    chain = Chain("own").add_node("a", fn=changes, input_mapping={"items": "{{state.items}}"}, output_key="out")
    chain.add_node("b", fn=changes, input_mapping={"items": "{{input.items}}"}, output_key="more")
    result = await chain.connect("a", "b").arun({"items": [1]}, store=store_url)
    assert result.final_state == {"items": [1], "out": [1, 9], "more": [1, 9]}


def test_rule_templates_read_the_same_after_a_pause(store_url: str):
    """Results and input of before the pause, in another process."""
    chain = Chain("paused").add_node("seven", fn=lambda: (7, Decimal("0.5")), output_key="x")
    chain.add_node("ask", type="hitl").add_node("t", type="transformer", template="{{node_results.seven}}")
    chain.add_node("u", type="transformer", template="{{input.day}}").connect("seven", "ask")
    chain.connect("ask", "t").connect("t", "u")
    paused = chain.run({"day": dt.date(2024, 2, 29)}, store=store_url)
    result: Any = chain.resume(paused.execution_id, resume_value=YES, store=store_url)
    assert result.node_results["t"] == (7, Decimal("0.5"))
    assert result.output == dt.date(2024, 2, 29)


async def test_rule_an_end_may_say_what_the_chain_gives(store_url: str):
    chain = Chain("ended").add_node("begin", type="start").add_node("a", fn=lambda: {"x": 1})
    chain.add_node("end", type="end", output={"answer": "{{state.x}}"}).connect("begin", "a").connect("a", "end")
    result = await chain.arun({"y": 2}, store=store_url)
    assert (result.output, result.final_state) == ({"answer": 1}, {"y": 2, "x": 1})
    plain = Chain("ended plainly").add_node("a", fn=lambda: {"x": 1}).add_node("end", type="end").connect("a", "end")
    assert (await plain.arun({"y": 2}, store=store_url)).output == {"y": 2, "x": 1}


async def test_rule_keys_that_look_like_tags_or_templates_are_keys(store_url: str):
    """Values whose keys begin with a dollar sign come out as they went in, at any depth."""
    tagged = {"$tuple": [1], "$date": "2024-02-29"}
    chain = line("tags", lambda_tags)
    result = await chain.arun({"given": tagged, "{{x}}": 1}, store=store_url)
    again = await chain.arun({"given": tagged, "{{x}}": 1}, execution_id=result.execution_id, store=store_url)
    for one in (result, again):
        assert one.final_state == {"given": tagged, "{{x}}": 1, "kept": [tagged, {"$set": {"$tuple": []}}]}


def lambda_tags(given: Any) -> dict[str, Any]:
    return {"kept": [given, {"$set": {"$tuple": []}}]}
