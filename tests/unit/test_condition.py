"""Conditions: the grammar, what they mean, and that nothing in the data is evaluated."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from perdure.core.condition import Condition, compile_condition
from perdure.errors import ChainTemplateError


class Model(BaseModel):
    a: int = 1


class Undecided:
    def __bool__(self) -> bool:
        raise ValueError("neither")


STATE: dict[str, Any] = {
    "n": 5,
    "zero": 0,
    "f": 2.5,
    "yes": True,
    "no": False,
    "none": None,
    "name": "Ada",
    "empty": "",
    "code": "1 != 0",
    "braces": "{{ state.n }}",
    "tags": ["a", "b"],
    "pair": (1, 2),
    "odd": {"a key": 1, "in": {"and": True}},
    "input": "the state's own",
    "order": {"state": "paid", "lines": [{"qty": 2}]},
    "andy": True,
    "model": Model(),
    "naive": datetime(2020, 1, 1),
    "aware": datetime(2020, 1, 1, tzinfo=UTC),
    "undecided": Undecided(),
}
SCOPE: dict[str, Any] = {"state": STATE, "input": {"n": 7}, "node_results": {"check": {"ok": True}}}


def holds(text: str) -> bool:
    return compile_condition(text).holds(SCOPE)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # paths
        ("n == 5", True),
        ("state.n == 5", True),
        ("input.n == 7", True),
        ("node_results.check.ok", True),
        ("{{state.n}} == 5", True),
        ("{{ input.n }} == 7", True),
        ("5 == {{ state.n }}", True),
        ('input == "the state\'s own"', True),
        ("input['n'] == 7", True),
        ("order.lines[0].qty == 2", True),
        ("order.lines.-1.qty == 2", True),
        ("order.state == 'paid'", True),
        ("state['odd']['a key'] == 1", True),
        ("odd.in.and", True),
        ("'n' in state", True),
        ("'m' in state", False),
        ("'check' in {{ node_results }}", True),
        ("andy", True),
        ("model.a == 1", True),
        # defaults
        ("{{ state.gone | default(3) }} == 3", True),
        ("gone | default(3) == 3", True),
        ("gone.deeper | default([]) == []", True),
        ("{{state.n|default(0)}} == 5", True),
        # literals
        ("n == +5", True),
        ("n > -5", True),
        ("f == 2.5", True),
        ("f == 25e-1", True),
        ("name == 'Ada'", True),
        ('name == "Ada"', True),
        (r"name != 'A\'da'", True),
        ("yes == true", True),
        ("yes == True", True),
        ("no == false", True),
        ("none == null", True),
        ("none == None", True),
        ("tags == ['a', \"b\"]", True),
        ("tags == ['a', \"b\",]", True),
        ("odd.in == {'and': true}", True),
        ("true", True),
        ("false", False),
        ("'false'", True),
        ("[]", False),
        # comparisons
        ("n < 6", True),
        ("n < 5", False),
        ("n <= 5", True),
        ("n > 5", False),
        ("n >= 5", True),
        ("n != 5", False),
        ("n<6", True),
        ("n == '5'", False),
        ("n == none", False),
        ("'a' in tags", True),
        ("'c' not in tags", True),
        ("'a' not in tags", False),
        ("'A' in name", True),
        ("tags contains 'a'", True),
        ("name contains 'da'", True),
        ("name contains 'x'", False),
        ("pair contains 2", True),
        ("name startswith 'Ad'", True),
        ("name startswith 'da'", False),
        ("n in [1, 5]", True),
        ("'in' in odd", True),
        # and, or, not
        ("yes and no", False),
        ("yes or no", True),
        ("no or no or yes", True),
        ("yes and yes and no", False),
        ("yes or yes and no", True),
        ("(yes or yes) and no", False),
        ("not no", True),
        ("not yes or yes", True),
        ("not (yes or yes)", False),
        ("not not yes", True),
        ("not n == 6", True),
        ("not n in [6]", True),
        ("no == not_there | default(false)", True),
        ("(n < 6) == true", True),
        ("((n)) == ((5))", True),
        ("n > 1\n  and n < 9", True),
        ("  n  ", True),
        # truth
        ("n", True),
        ("zero", False),
        ("none", False),
        ("empty", False),
        ("name", True),
        ("tags", True),
        ("not empty", True),
    ],
)
def test_what_a_condition_means(text: str, expected: bool) -> None:
    assert holds(text) is expected


def test_case_c15_data_is_never_evaluated() -> None:
    assert holds("code == '1 != 0'")
    assert not holds("code == true")
    assert holds("code")
    assert not holds("code == 1")
    assert holds("{{ state.code }}")
    assert not holds("{{ state.code }} == true")
    assert holds("{{state.braces}} == '{{ state.n }}'")


@given(st.text(max_size=30))
def test_whatever_text_is_in_the_state_is_compared_as_it_is(text: str) -> None:
    scope = {"state": {"a": text, "b": text}}

    assert compile_condition("a == b and {{state.a}} == {{state.b}}").holds(scope)
    assert compile_condition("a").holds(scope) is bool(text)


def test_and_and_or_stop_as_soon_as_they_know() -> None:
    assert not holds("no and gone")
    assert holds("yes or gone")
    assert holds("'m' not in state or m > 5")


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("gone", "state.gone"),
        ("state.gone == 1", "state.gone"),
        ("n == 5 and order.gone", "state.order.gone"),
        ("{{ input.gone }}", "input.gone"),
        ("node_results == 1", "state.node_results"),
        ("not tags[7]", "state.tags[7]"),
        ("name.upper", "state.name.upper"),
    ],
)
def test_a_missing_path_is_named_and_so_is_the_condition(text: str, path: str) -> None:
    condition = compile_condition(text)
    with pytest.raises(ChainTemplateError) as raised:
        condition.holds(SCOPE)

    assert raised.value.path == path
    assert f"(asked for by the condition {text!r})" in str(raised.value)


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("name < 5", "str < int"),
        ("none >= 1", "NoneType >= int"),
        ("tags > 'a'", "list > str"),
        ("5 in name", "int in str"),
        ("'a' in n", "str in int"),
        ("'a' not in none", "str not in NoneType"),
        ("n contains 5", "int contains int"),
        ("tags startswith 'a'", "list startswith str"),
        ("name startswith 5", "str startswith int"),
        ("naive < aware", "datetime < datetime"),
        ("'a' in model", "str in Model"),
    ],
)
def test_values_that_cannot_be_compared_are_named_by_type(text: str, kinds: str) -> None:
    condition = compile_condition(text)
    with pytest.raises(ChainTemplateError) as raised:
        condition.holds(SCOPE)

    assert raised.value.path == text
    assert f"cannot compare {kinds}: " in str(raised.value)
    assert raised.value.__cause__ is not None


def test_what_can_only_be_iterated_is_not_used_up() -> None:
    numbers: Iterator[int] = iter([1, 2])
    with pytest.raises(ChainTemplateError):
        compile_condition("1 in numbers").holds({"state": {"numbers": numbers}})

    assert list(numbers) == [1, 2]


@pytest.mark.parametrize("text", ["undecided", "not undecided", "undecided and yes", "no or undecided"])
def test_a_value_that_is_neither_true_nor_false_is_named(text: str) -> None:
    with pytest.raises(ChainTemplateError, match="a Undecided is neither true nor false: neither"):
        holds(text)


# --- malformed -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("", 1, "expected a path, a literal or '(', found the end"),
        ("   ", 4, "found the end"),
        ("n ==", 5, "found the end"),
        ("== 5", 1, "expected a path, a literal or '('"),
        ("!= 5", 1, "expected a path, a literal or '('"),
        ("n == and", 6, "expected a path, a literal or '('"),
        ("n 5", 3, "expected an operator or the end, found '5'"),
        ("n m", 3, "expected an operator or the end"),
        ("(n", 3, "expected an operator or ')', found the end"),
        ("n)", 2, "expected an operator or the end, found ')'"),
        ("()", 2, "expected a path"),
        ("1 < n < 9", 7, "comparisons are not chained: write `a < b and b < c`"),
        ("n == 5 == true", 8, "comparisons are not chained"),
        ("n in tags in tags", 11, "comparisons are not chained"),
        ("n == 5 not in tags", 8, "comparisons are not chained"),
        ("n = 5", 3, "'=' is written as '==' here"),
        ("n === 5", 3, "'===' is written as '==' here"),
        ("n !== 5", 3, "'!==' is written as '!=' here"),
        ("n <> 5", 3, "'<>' is written as '!=' here"),
        ("n && yes", 3, "'&&' is written as 'and' here"),
        ("n || yes", 3, "'||' is written as 'or' here"),
        ("!n", 1, "'!' is written as 'not' here"),
        ("n is none", 3, "'is' is written as '==' here"),
        ("n AND yes", 3, "'AND' is written as 'and' here"),
        ("n not 5", 7, "expected 'in' after 'not'"),
        ("n + 1 > 5", 3, "expected an operator"),
        ("n - 1 > 5", 3, "there is no arithmetic"),
        ("len(n)", 4, "expected an operator or the end, found '('"),
        ("n; yes", 2, "expected an operator or the end"),
        ("n == __import__('os')", 16, "expected an operator or the end, found '('"),
        ("n == 'abc", 6, "this quote is never closed"),
        (r"n == '\x41'", 7, r"the escape \x is not known"),
        ("n == 5x", 6, "expected a literal"),
        ("n == 1e999", 6, "too large"),
        ("n in [1", 8, "expected ',' or ']'"),
        ("n in [m]", 7, "expected a literal"),
        ("{{ n }} == 5", 4, "a path in braces begins with one of state, input, node_results"),
        ("{{ state.n == 5", 12, "expected '}}' after the path"),
        ("{{ state.n | upper }}", 14, "expected 'default(...)'"),
        ("n | default(m)", 13, "expected a literal"),
        ("order. == 5", 7, "expected a name, an index or a quoted key"),
        ("<is_large>", 1, "expected a path"),
    ],
)
def test_a_malformed_condition_is_refused_when_it_is_read(text: str, column: int, message: str) -> None:
    with pytest.raises(ChainTemplateError) as raised:
        compile_condition(text)

    assert raised.value.path == text
    assert f"at column {column}: " in str(raised.value)
    assert message in str(raised.value)


@given(st.text(alphabet="()[]{}<>=!'\"\\.,|&+-0n ", max_size=30) | st.text(max_size=30))
def test_any_text_is_read_or_refused_by_our_own_error(text: str) -> None:
    try:
        condition = compile_condition(text)
    except ChainTemplateError:
        return
    assert condition.text == text


# --- bounds ----------------------------------------------------------------------------------------------


def test_a_condition_has_at_most_2000_characters() -> None:
    text = "yes" + " or yes" * 285
    assert holds(text + " " * (2000 - len(text)))
    with pytest.raises(ChainTemplateError, match="at most 2000 characters, and this one 2001") as raised:
        compile_condition(text + " " * (2001 - len(text)))
    assert len(raised.value.path) == 80


@pytest.mark.parametrize(("opening", "closing"), [("(", ")"), ("not ", ""), ("[", "]"), ("{'a':", "}")])
def test_a_condition_is_nested_at_most_50_deep(opening: str, closing: str) -> None:
    inner = "[]" if opening in "[{'a':" else "yes"
    depth = 49 if inner == "[]" else 50
    assert compile_condition(opening * depth + inner + closing * depth)
    with pytest.raises(ChainTemplateError, match="nested more than 50 deep"):
        compile_condition(opening * (depth + 1) + inner + closing * (depth + 1))


def test_what_stands_side_by_side_is_not_nested() -> None:
    assert holds(" and ".join(["(not no)"] * 150))
    assert holds("tags != " + "[[1], " * 40 + "[2]" + "]" * 40)


def test_a_condition_is_read_once_and_the_memory_of_it_is_bounded() -> None:
    first = compile_condition("n == 51")

    assert compile_condition("n == 51") is first
    assert first == Condition(text="n == 51", _evaluate=lambda scope: None)
    for number in range(2000):
        compile_condition(f"n == {number + 100}")
    assert compile_condition("n == 51") is not first
    assert compile_condition("n == 51") == first
