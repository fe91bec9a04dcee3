"""Templates: what a path finds, how values read inside text, and that data is never taken for a template."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict

from perdure.core import template
from perdure.core.template import check, paths, render
from perdure.errors import ChainTemplateError


@dataclass
class Order:
    id: int
    _secret: str = "s"
    lines: list[str] = field(default_factory=lambda: ["pen"])

    @property
    def total(self) -> int:
        raise AssertionError("a template must not run code")

    def cancel(self) -> None:
        raise AssertionError("a template must not run code")


@dataclass(slots=True)
class Unset:
    given: int
    missing: int = field(init=False)


class Person(BaseModel):
    model_config = ConfigDict(extra="allow")
    name: str


class Point(NamedTuple):
    x: int
    y: int


class Color(StrEnum):
    RED = "red"


class Wordless:
    def __str__(self) -> str:
        raise RuntimeError("no words")


ITEMS = ["a", {"k": [10, 20]}]
STATE: dict[str, Any] = {
    "n": 5,
    "f": 1.5,
    "yes": True,
    "none": None,
    "text": 'hé"llo',
    "items": ITEMS,
    "pair": (1, 2),
    "map": {"a key": 1, 'q"q': 2, "7": "seven", 8: "eight", "": "blank", "_x": "under", "not": "word"},
    "order": Order(id=3),
    "person": Person(name="Ada", age=36),  # type: ignore[call-arg]
    "point": Point(1, 2),
    "color": Color.RED,
    "price": Decimal("1.50"),
    "nan": float("nan"),
    "ünï": "code",
}
SCOPE: dict[str, Any] = {"state": STATE, "input": {"x": "in"}, "node_results": {"n": {"y": [0]}}}


# --- what a path finds -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{{ state.n }}", 5),
        ("{{state.n}}", 5),
        ("{{\n state.n\t}}", 5),
        ("{{ input.x }}", "in"),
        ("{{ node_results.n.y.0 }}", 0),
        ("{{ state.items[0] }}", "a"),
        ("{{ state.items.0 }}", "a"),
        ("{{ state.items[-2] }}", "a"),
        ("{{ state.items.-2 }}", "a"),
        ("{{ state.items[ 1 ].k[-1] }}", 20),
        ("{{ state.pair[1] }}", 2),
        ('{{ state.map["a key"] }}', 1),
        ("{{ state['map']['a key'] }}", 1),
        (r'{{ state.map["q\"q"] }}', 2),
        ("{{ state.map['q\"q'] }}", 2),
        ("{{ state.map.7 }}", "seven"),
        ("{{ state.map[7] }}", "seven"),
        ("{{ state.map[8] }}", "eight"),
        ('{{ state.map[""] }}', "blank"),
        ("{{ state.map._x }}", "under"),
        ("{{ state.map.not }}", "word"),
        ("{{ state.order.id }}", 3),
        ("{{ state.order.lines[0] }}", "pen"),
        ("{{ state.person.name }}", "Ada"),
        ("{{ state.person.age }}", 36),
        ("{{ state.point.x }}", 1),
        ("{{ state.point[1] }}", 2),
        ("{{ state.ünï }}", "code"),
        (r'{{ state["\u00fcn\u00ef"] }}', "code"),
        ("{{ state.none }}", None),
    ],
)
def test_a_path_goes_into(text: str, expected: object) -> None:
    assert render(text, SCOPE) == expected


@pytest.mark.parametrize("name", ["n", "yes", "none", "items", "pair", "map", "order", "person", "price"])
def test_a_text_that_is_one_template_gives_the_very_object(name: str) -> None:
    assert render(f"{{{{ state.{name} }}}}", SCOPE) is STATE[name]


def test_case_c14_a_node_sees_what_an_earlier_one_returned() -> None:
    rendered = render({"about": "{{ node_results.n.y }}", "all": "{{ node_results }}"}, SCOPE)

    assert rendered == {"about": [0], "all": {"n": {"y": [0]}}}


@pytest.mark.parametrize(
    ("text", "path", "parts"),
    [
        ("{{ state.gone }}", "state.gone", ["no 'gone' in state", "'n'", "and 5 more"]),
        ("{{ state.order.gone }}", "state.order.gone", ["no 'gone' in state.order", "'id', 'lines'"]),
        ("{{ state.order._secret }}", "state.order._secret", ["no '_secret'"]),
        ("{{ state.order.total }}", "state.order.total", ["no 'total'"]),
        ("{{ state.order.cancel }}", "state.order.cancel", ["no 'cancel'"]),
        ("{{ state.order.__class__ }}", "state.order.__class__", ["no '__class__'"]),
        ("{{ state.person.model_dump }}", "state.person.model_dump", ["'name', 'age'"]),
        ("{{ state.items.append }}", "state.items.append", ["state.items is a list", "index such as [0]"]),
        ("{{ state.items[2] }}", "state.items[2]", ["no [2] in state.items", "2 items"]),
        ("{{ state.items.-3 }}", "state.items[-3]", ["no [-3] in state.items"]),
        ("{{ state.none.a }}", "state.none.a", ["state.none is None"]),
        ("{{ state.text.upper }}", "state.text.upper", ["state.text is of type str"]),
        ("{{ state.text[0] }}", "state.text[0]", ["state.text is of type str"]),
        ("{{ state.items[1].k.x }}", "state.items[1].k.x", ["state.items[1].k is a list"]),
        ("{{ input['no such'] }}", 'input["no such"]', ["no 'no such' in input"]),
        ("{{ stat.n }}", "stat.n", ["no 'stat' in the scope", "'state', 'input', 'node_results'"]),
        ("a {{ state.gone }}", "state.gone", ["no 'gone' in state"]),
    ],
)
def test_a_path_that_leads_nowhere_is_named(text: str, path: str, parts: list[str]) -> None:
    with pytest.raises(ChainTemplateError) as raised:
        render(text, SCOPE)

    assert raised.value.path == path
    for part in parts:
        assert part in str(raised.value)


def test_what_is_there_is_shown_bounded() -> None:
    with pytest.raises(ChainTemplateError) as raised:
        render("{{ state.a }}", {"state": {"k" * 1000 + str(number): 0 for number in range(1000)}})

    assert len(str(raised.value)) < 700
    assert "and 990 more" in str(raised.value)


def test_an_empty_state_says_so() -> None:
    with pytest.raises(ChainTemplateError, match="which is empty"):
        render("{{ state.a }}", {"state": {}})


def test_looking_makes_no_entries() -> None:
    state: defaultdict[str, list[int]] = defaultdict(list)

    assert render("{{ state.a | default(1) }}", {"state": state}) == 1
    assert dict(state) == {}


def test_a_field_that_was_never_set_is_missing() -> None:
    scope = {"state": {"unset": Unset(given=1), "made": Person.model_construct()}}

    assert render("{{ state.unset.given }}", scope) == 1
    assert render("{{ state.unset.missing | default('-') }}", scope) == "-"
    assert render("{{ state.made.name | default('-') }}", scope) == "-"


# --- defaults --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("literal", "expected"),
    [
        ("5", 5),
        ("-5", -5),
        ("+5", 5),
        ("1.5", 1.5),
        (".5", 0.5),
        ("-1e3", -1000.0),
        ("'a'", "a"),
        ('"}}"', "}}"),
        (r"'it\'s'", "it's"),
        (r'"\n\t\r\b\f\/\\\"\'"', "\n\t\r\b\f/\\\"'"),
        (r'"\u00e9"', "é"),
        (r'"\ud83d\ude00"', "😀"),
        (r'"\ud83d"', "\ud83d"),
        ("true", True),
        ("True", True),
        ("false", False),
        ("False", False),
        ("null", None),
        ("None", None),
        ("[]", []),
        ("[ 1, 'a', [true], ]", [1, "a", [True]]),
        ("{}", {}),
        ("{'a': {'b': [1]}, 'c': null}", {"a": {"b": [1]}, "c": None}),
    ],
)
def test_a_default_stands_in_for_a_missing_path(literal: str, expected: object) -> None:
    for path in ("state.gone", "state.none.deeper", "state.items[9]", "state.text.part"):
        rendered = render(f"{{{{ {path} | default( {literal} ) }}}}", SCOPE)
        assert (rendered, type(rendered)) == (expected, type(expected))


def test_a_default_does_not_stand_in_for_what_is_there() -> None:
    assert render("{{ state.none | default(1) }}", SCOPE) is None
    assert render("{{state.n|default(1)}}", SCOPE) == 5


def test_a_default_is_a_new_one_each_time() -> None:
    text = "{{ state.gone | default([[]]) }}"
    render(text, SCOPE)[0].append("changed")

    assert render(text, SCOPE) == [[]]


# --- inside text -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("state.text", 'hé"llo'),
        ("state.none", ""),
        ("state.yes", "true"),
        ("state.n", "5"),
        ("state.f", "1.5"),
        ("state.items", '["a", {"k": [10, 20]}]'),
        ("state.pair", "[1, 2]"),
        ("state.color", "red"),
        ("state.price", "1.50"),
        ("state.nan", "nan"),
        ("state.person", str(STATE["person"])),
    ],
)
def test_a_value_inside_text(path: str, expected: str) -> None:
    assert render(f"<{{{{ {path} }}}}>", SCOPE) == f"<{expected}>"


def test_letters_stay_letters_in_json() -> None:
    assert render("{{ state.a }}!", {"state": {"a": ["é"]}}) == '["é"]!'


def test_several_templates_in_one_text() -> None:
    assert render("{{state.n}}{{ input.x }} and {{ state.n }}.", SCOPE) == "5in and 5."
    assert render("{{state.n}}{{state.n}}", SCOPE) == "55"
    assert render(" {{ state.n }}", SCOPE) == " 5"


def test_a_value_without_text_is_named() -> None:
    with pytest.raises(ChainTemplateError, match=r"state\.w: a value of type Wordless has no text: no words"):
        render("a {{ state.w }}", {"state": {"w": Wordless()}})
    with pytest.raises(ChainTemplateError, match=r"state\.w: "):
        render("a {{ state.w }}", {"state": {"w": 10**5000}})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"\{{ state.n }}", "{{ state.n }}"),
        (r"\{{ state.n }} {{ state.n }}", "{{ state.n }} 5"),
        (r"a\{{b", "a{{b"),
        (r"C:\\{{ state.n }}", "C:\\5"),
        (r"C:\\\{{ state.n }}", "C:\\{{ state.n }}"),
        (r"C:\dir\file", r"C:\dir\file"),
        (r"a\b {{ state.n }}", r"a\b 5"),
        (r"\{ {", r"\{ {"),
        ("} }} {", "} }} {"),
        ('{"a": {"b": 1}}', '{"a": {"b": 1}}'),
        ('{"a": {{ state.n }}}', '{"a": 5}'),
        ("", ""),
    ],
)
def test_braces_that_are_no_template(text: str, expected: str) -> None:
    assert render(text, SCOPE) == expected


# --- structures ------------------------------------------------------------------------------------------


def test_dicts_and_lists_are_rendered_all_the_way_down_and_keys_are_not() -> None:
    value = {"{{ state.n }}": ["{{ state.n }}", {"a": ["n = {{ state.n }}"]}], "same": 1}

    assert render(value, SCOPE) == {"{{ state.n }}": [5, {"a": ["n = 5"]}], "same": 1}
    assert value["same"] == 1
    assert value["{{ state.n }}"] == ["{{ state.n }}", {"a": ["n = {{ state.n }}"]}]


@pytest.mark.parametrize(
    "value", [5, None, ("{{ state.n }}",), {"{{ state.n }}"}, b"{{ state.n }}", Order(id=1), "text"]
)
def test_anything_else_is_returned_as_it_is(value: object) -> None:
    assert render(value, SCOPE) is value


def test_containers_are_new_ones_even_without_templates() -> None:
    value = {"a": [1]}
    rendered = render(value, SCOPE)

    assert rendered == value
    assert rendered is not value
    assert rendered["a"] is not value["a"]
    assert type(render(OrderedDict(a=1), SCOPE)) is dict


SYNTAX = st.sampled_from(["{{", "}}", "\\", "{{ state.n }}", "state", ".", "|", "default(1)", '"', "'", "a", " ", "é"])
DATA = st.lists(SYNTAX, max_size=8).map("".join)


@given(DATA, DATA)
def test_case_c15_data_is_never_taken_for_a_template(first: str, second: str) -> None:
    scope = {"state": {"a": first, "b": [second], "n": "evaluated"}}

    assert render("{{ state.a }}", scope) == first
    assert render("<{{ state.a }}|{{ state.b[0] }}>", scope) == f"<{first}|{second}>"
    assert render(["{{ state.b }}"], scope) == [[second]]


@given(DATA)
def test_any_text_can_be_escaped(text: str) -> None:
    escaped = _escaped(text)

    assert render(escaped, {"state": {}}) == text
    assert paths(escaped) == []


def _escaped(text: str) -> str:
    """Each pair of braces behind a backslash, those before it doubled."""
    pieces = text.split("{{")
    doubled = [piece + "\\" * (len(piece) - len(piece.rstrip("\\"))) + "\\" for piece in pieces[:-1]]
    return "{{".join([*doubled, pieces[-1]])


@given(st.recursive(st.text(alphabet="[]{}\"\\'0ab.|( )\n-,:", max_size=20), lambda inner: st.lists(inner, max_size=3)))
def test_any_text_is_read_or_refused_by_our_own_error(value: Any) -> None:
    try:
        check(value)
    except ChainTemplateError:
        return
    assert isinstance(paths(value), list)


@given(st.lists(st.one_of(st.text(max_size=8), st.integers(-(10**9), 10**9)), max_size=4))
def test_every_key_can_be_written_and_a_path_reads_as_it_is_shown(segments: list[str | int]) -> None:
    path = template.expression.Path(segments=("state", *segments))
    shown = path.text

    assert paths(f"{{{{ {shown} }}}}") == [shown]
    read = template.parse(f"{{{{ {shown} }}}}").parts[0]
    assert read == template.Reference(path=path)


# --- malformed -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "path", "message"),
    [
        ("{{", "{{", "column 3 of the text: expected a path such as state.name, found the end"),
        ("{{ }}", "{{ }}", "found '}'"),
        ("{{ state.n", "{{ state.n", "expected '}}'"),
        ("{{ state.n }", "{{ state.n }", "column 12"),
        ("ab {{ state. }} c", "{{ state. }}", "column 13 of the text: expected a name, an index or a quoted key"),
        ("{{ state..n }}", "{{ state..n }}", "expected a name"),
        ("{{ state.n m }}", "{{ state.n m }}", "found 'm'"),
        ("{{ state.n() }}", "{{ state.n() }}", "found '('"),
        (
            "{{ state.a-b }}",
            "{{ state.a-b }}",
            'there is no arithmetic; a key with other characters is written as state["a-b"]',
        ),
        ("{{ state[n] }}", "{{ state[n] }}", "found 'n'"),
        ("{{ state[1.5] }}", "{{ state[1.5] }}", "expected ']'"),
        ("{{ state[0 }}", "{{ state[0 }}", "expected ']'"),
        ("{{ state.007 }}", "{{ state.007 }}", "expected a name, an index"),
        ("{{ state['a] }}", "{{ state['a] }}", "this quote is never closed"),
        (r"{{ state['\q'] }}", r"{{ state['\q'] }}", r"the escape \q is not known"),
        ("{{ 5 }}", "{{ 5 }}", "expected a path"),
        ("{{ 'a' }}", "{{ 'a' }}", "expected a path"),
        ("{{{ state.n }}}", "{{{ state.n }}", "found '{'"),
        ("{{ state.n | upper }}", "{{ state.n | upper }}", "expected 'default(...)', found 'u'"),
        ("{{ state.n | default }}", "{{ state.n | default }}", "expected '('"),
        ("{{ state.n | default() }}", "{{ state.n | default() }}", "expected a literal"),
        ("{{ state.n | default(state.m) }}", "{{ state.n | default(state.m) }}", "expected a literal"),
        ("{{ state.n | default(1 }}", "{{ state.n | default(1 }}", "expected ')'"),
        ("{{ state.n | default([1 2]) }}", "{{ state.n | default([1 2]) }}", "expected ',' or ']'"),
        ("{{ state.n | default([,]) }}", "{{ state.n | default([,]) }}", "expected a literal"),
        ("{{ state.n | default({1: 2}) }}", "{{ state.n | default({1: 2}) }}", "expected a text in quotes"),
        ("{{ state.n | default({'a' 2}) }}", "{{ state.n | default({'a' 2}) }}", "expected ':'"),
        ("{{ state.n | default(1e999) }}", "{{ state.n | default(1e999) }}", "too large"),
        ("{{ state.n | default(1.2.3) }}", "{{ state.n | default(1.2.3) }}", "expected a literal"),
        ("{{ state.n | default(1) | default(2) }}", "{{ state.n | default(1) | default(2) }}", "expected '}}'"),
    ],
)
def test_a_malformed_template_is_refused_when_it_is_read(text: str, path: str, message: str) -> None:
    for read in (template.parse, check, paths, lambda text: render(text, SCOPE)):
        with pytest.raises(ChainTemplateError) as raised:
            read(text)
        assert raised.value.path == path
        assert message in str(raised.value)


@pytest.mark.parametrize("literal", ["[" * 51 + "]" * 51, "9" * 5000, "[" * 100_000], ids=["deep", "long", "deepest"])
def test_no_literal_exhausts_anything(literal: str) -> None:
    with pytest.raises(ChainTemplateError) as raised:
        check(f"{{{{ state.a | default({literal}) }}}}")

    assert len(str(raised.value)) < 250


# --- check, paths, the cache -----------------------------------------------------------------------------


def test_check_refuses_a_path_that_begins_elsewhere() -> None:
    with pytest.raises(ChainTemplateError, match=r"^stat\.n: a path begins with one of state, input, node_results$"):
        check({"a": ["ok {{ state.n }}", "{{ stat.n }}"]})
    check({"a": ["ok {{ state.n }}", "{{ input }} {{ node_results.a }}"], "b": 5})
    check("{{ item.id }}", names=("state", "item"))


def test_paths_are_in_order_and_each_is_there_once() -> None:
    value = {"a": "{{ state.items.0 }} {{ input.x }}", "b": ["{{ state.items[0] }}", "{{ state['a key'] }}", 5]}

    assert paths(value) == ["state.items[0]", "input.x", 'state["a key"]']
    assert paths(5) == []


def test_a_text_is_read_once_and_what_is_kept_is_bounded() -> None:
    assert template.parse("once {{ state.n }}") is template.parse("once {{ state.n }}")
    long = "x" * 20_000 + "{{ state.n }}"
    kept = template._parse_cached.cache_info().currsize
    assert render(long, SCOPE) == "x" * 20_000 + "5"
    assert template._parse_cached.cache_info().currsize == kept
    assert template._parse_cached.cache_info().maxsize is not None
