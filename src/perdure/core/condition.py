"""Conditions on edges: a small language over the state that can compare and nothing else.

Decides the grammar and what a condition means. It parses text that the chain's author wrote, and never anything that
came out of the state: a value `"1 != 0"` is a text like any other. Nothing is called and nothing is changed.

    condition   = and { "or" and }              and = not { "and" not }          not = "not" not | comparison
    comparison  = operand [ operator operand ]
    operator    = "==" | "!=" | "<" | "<=" | ">" | ">=" | [ "not" ] "in" | "contains" | "startswith"
    operand     = literal | path | "{{" path "}}" | "(" condition ")"

`path` may be followed by `| default(literal)`. A path that goes on from `state`, `input` or `node_results` starts
there, `state` alone is the whole state, and any other path outside braces starts in the state: `amount` is
`state.amount`. `and` and `or` stop as soon as they know. An operand alone stands for its truth, as Python has it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from perdure.core import expression
from perdure.core.expression import CONSTANTS, SCOPE_NAMES, Malformed, Missing, Path, Reader, Reference
from perdure.errors import ChainTemplateError

MAX_CHARS = 2_000
_MAX_SHOWN_CHARS = 80

_Scope = Mapping[str, Any]
_Evaluation = Callable[[_Scope], Any]
_Operator = Callable[[Any, Any], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A condition that was read once."""

    text: str
    _evaluate: _Evaluation = field(repr=False, compare=False)

    def holds(self, scope: Mapping[str, Any]) -> bool:
        """Whether it is true of `{"state": ..., "input": ..., "node_results": ...}`.

        Raises `ChainTemplateError`: naming a path that leads nowhere and has no default, or naming the condition if two
        values cannot be compared.
        """
        return _truth(self.text, self._evaluate(scope))


def compile_condition(text: str) -> Condition:
    """Reads a condition. Raises `ChainTemplateError` that names it and the column where it cannot be read, or if it is
    longer than 2,000 characters or nested more than 50 deep."""
    if len(text) > MAX_CHARS:
        shown = expression.shorten(text, _MAX_SHOWN_CHARS)
        raise ChainTemplateError(shown, f"a condition has at most {MAX_CHARS} characters, and this one {len(text)}")
    return _compiled(text)


@lru_cache(maxsize=1024)
def _compiled(text: str) -> Condition:
    parser = _Parser(text)
    try:
        evaluate = parser.whole()
    except Malformed as problem:
        raise ChainTemplateError(text, f"at column {problem.at + 1}: {problem.message}") from None
    return Condition(text=text, _evaluate=evaluate)


# --- reading ---------------------------------------------------------------------------------------------


def _is_in(item: Any, container: Any) -> bool:
    # Without it, Python would search what can only be iterated: a model's fields, or a generator, which that uses up.
    if not isinstance(container, Container):
        raise TypeError(f"nothing can be in a value of type {type(container).__name__}")
    return item in container


def _startswith(text: Any, start: Any) -> bool:
    if isinstance(text, str) and isinstance(start, str):
        return text.startswith(start)
    raise TypeError("both must be texts")


# Longer symbols first: `<=` begins with `<`.
_SYMBOLS: tuple[tuple[str, _Operator], ...] = (
    ("==", operator.eq),
    ("!=", operator.ne),
    ("<=", operator.le),
    (">=", operator.ge),
    ("<", operator.lt),
    (">", operator.gt),
)
_WORDS: Mapping[str, _Operator] = {
    "in": _is_in,
    "contains": lambda container, item: _is_in(item, container),
    "startswith": _startswith,
}
_RESERVED = frozenset({"and", "or", "not", *_WORDS, *CONSTANTS})
# What people know from elsewhere, and how it is written here.
_FOREIGN = {
    "===": "==",
    "!==": "!=",
    "=": "==",
    "&&": "and",
    "||": "or",
    "!": "not",
    "<>": "!=",
    "is": "==",
    "AND": "and",
    "OR": "or",
    "NOT": "not",
}


class _Parser:
    """Recursive descent. Each method reads one level of the grammar and returns how to evaluate it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.reader = Reader(text)

    def whole(self) -> _Evaluation:
        evaluate = self.disjunction()
        if self.reader.at < len(self.text):
            raise self.unexpected("an operator or the end")
        return evaluate

    def unexpected(self, wanted: str) -> Malformed:
        foreign = next((word for word in _FOREIGN if self._follows(word)), None)
        if foreign is not None:
            return Malformed(self.reader.at, f"{foreign!r} is written as {_FOREIGN[foreign]!r} here")
        return self.reader.unexpected(wanted)

    def _follows(self, word: str) -> bool:
        if word.isalpha():
            return self.reader.next_name() == word
        # `=` and `!` also begin operators that there are.
        is_longer = len(word) == 1 and self.text.startswith("=", self.reader.at + 1)
        return self.text.startswith(word, self.reader.at) and not is_longer

    def disjunction(self) -> _Evaluation:
        return self._joined("or", self.conjunction, until=True)

    def conjunction(self) -> _Evaluation:
        return self._joined("and", self.negation, until=False)

    def _joined(self, word: str, term: Callable[[], _Evaluation], *, until: bool) -> _Evaluation:
        """Terms in a row, evaluated until one has the truth that decides. A row, so that a long one is not deep."""
        terms = [term()]
        while self.reader.take_name(word):
            terms.append(term())
        if len(terms) == 1:
            return terms[0]
        text = self.text

        def evaluate(scope: _Scope) -> bool:
            return any(_truth(text, one(scope)) is until for one in terms) is until

        return evaluate

    def negation(self) -> _Evaluation:
        if not self.reader.take_name("not"):
            return self.comparison()
        self.reader.nest()
        term, text = self.negation(), self.text
        self.reader.nesting -= 1
        return lambda scope: not _truth(text, term(scope))

    def comparison(self) -> _Evaluation:
        left = self.operand()
        symbol = self._operator()
        if symbol is None:
            return left
        name, compare = symbol
        right = self.operand()
        at = self.reader.at
        if self._operator() is not None:
            raise Malformed(at, "comparisons are not chained: write `a < b and b < c`, or use parentheses")
        text = self.text
        return lambda scope: _compared(text, name, compare, left(scope), right(scope))

    def _operator(self) -> tuple[str, _Operator] | None:
        if self._follows("<>") or self._follows("===") or self._follows("!=="):
            raise self.unexpected("an operator")
        for symbol, compare in _SYMBOLS:
            if self.reader.take(symbol):
                return symbol, compare
        for word, compare in _WORDS.items():
            if self.reader.take_name(word):
                return word, compare
        if self.reader.take_name("not"):
            if not self.reader.take_name("in"):
                raise self.unexpected("'in' after 'not'")
            return "not in", lambda item, container: not _is_in(item, container)
        return None

    def operand(self) -> _Evaluation:
        if self.reader.take("("):
            self.reader.nest()
            inner = self.disjunction()
            self.reader.nesting -= 1
            if not self.reader.take(")"):
                raise self.unexpected("an operator or ')'")
            return inner
        if self.reader.take("{{"):
            return self._braced()
        if self.reader.at_literal():
            value = self.reader.literal()
            return lambda scope: value
        name = self.reader.next_name()
        if name is None or name in _RESERVED:
            raise self.unexpected("a path, a literal or '('")
        reference = self.reader.reference()
        return self._lookup(_rooted(reference))

    def _braced(self) -> _Evaluation:
        at = self.reader.at
        reference = self.reader.reference()
        if reference.path.segments[0] not in SCOPE_NAMES:
            raise Malformed(at, f"a path in braces begins with one of {', '.join(SCOPE_NAMES)}")
        self.reader.expect("}}", "after the path")
        return self._lookup(reference)

    def _lookup(self, reference: Reference) -> _Evaluation:
        text = self.text

        def evaluate(scope: _Scope) -> Any:
            value = expression.resolve(reference, scope)
            if isinstance(value, Missing):
                raise ChainTemplateError(reference.path.text, f"{value.reason} (asked for by the condition {text!r})")
            return value

        return evaluate


def _rooted(reference: Reference) -> Reference:
    segments = reference.path.segments
    if segments == ("state",) or (len(segments) > 1 and segments[0] in SCOPE_NAMES):
        return reference
    path = Path(segments=("state", *segments))
    return Reference(path=path, has_default=reference.has_default, default=reference.default)


# --- evaluating ------------------------------------------------------------------------------------------


def _compared(text: str, name: str, compare: _Operator, left: Any, right: Any) -> bool:
    # Whatever a value's own comparison raises, it is the condition that cannot be decided.
    try:
        return bool(compare(left, right))
    except Exception as error:
        kinds = f"{type(left).__name__} {name} {type(right).__name__}"
        raise ChainTemplateError(text, f"cannot compare {kinds}: {error}") from error


def _truth(text: str, value: Any) -> bool:
    try:
        return bool(value)
    except Exception as error:
        raise ChainTemplateError(text, f"a {type(value).__name__} is neither true nor false: {error}") from error
