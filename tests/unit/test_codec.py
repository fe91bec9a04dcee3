"""What goes in comes out: standard types, awkward text, and what is refused."""

import inspect
import json
import subprocess
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PurePosixPath, PureWindowsPath
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest

from perdure.core import codec
from perdure.core.codec import UndeclaredTypeWarning, decode, digest, digest_of, encode, notices, record
from perdure.errors import SerializationError

BERLIN = ZoneInfo("Europe/Berlin")

VALUES = [
    None,
    True,
    0,
    -(2**63),
    2**1024 - 1,
    2**1024,
    -(10**5000),
    0.1,
    -0.0,
    1e22,
    5e-324,
    float("inf"),
    float("-inf"),
    "",
    "a\x00b",
    "a\\u0000b",
    "a\\ud83d",
    "\ud800",
    "\udc00\ud800",
    "\ud83d\ude00",
    "\ud83d\ud83d\ude00\ude00",
    "\U0001f600",
    "\x7f\u2028é",
    b"\x00\xff",
    bytearray(b"x"),
    (),
    (1, (2, [3])),
    {1, "1", (1,)},
    frozenset({frozenset({1}), 2}),
    Decimal("1.10"),
    Decimal("-0"),
    Decimal("1E+400"),
    Decimal("Infinity"),
    UUID(int=7),
    complex(-0.0, float("inf")),
    range(1, 2**70, 3),
    Fraction(1, 3),
    timedelta(days=-1, microseconds=1),
    date(1, 1, 1),
    time(1, 2, 3, 4),
    time(1, 2, fold=1),
    time(1, 2, tzinfo=UTC),
    time(1, 2, tzinfo=BERLIN),
    datetime(2024, 10, 27, 2, 30),
    datetime(2024, 10, 27, 2, 30, fold=1),
    datetime(2024, 10, 27, 2, 30, tzinfo=UTC),
    datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=UTC),
    datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN),
    datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=BERLIN),
    datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=-3, microseconds=1))),
    datetime(2024, 1, 1, tzinfo=timezone(timedelta(microseconds=1))),
    datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=2), "ship's time")),
    Path("a/b"),
    PurePosixPath("/a \ud83d"),
    PureWindowsPath("c:\\a"),
    deque([1, [2]], maxlen=3),
    deque(),
    OrderedDict([("b", 1), ("a", 2)]),
    Counter({"b": 2, "a": 1}),
    defaultdict(list, {"a": [1]}),
    defaultdict(None, {1: 2}),
    {"b": 1, "a": 2},
    {1: "a", True and "True": "b", None: "c", 1.5: "d", (1, 2): "e", b"": "f"},
    {True: 1},
    {"\ud83d\ude00": 1},
    {"$date": "2024-01-01"},
    {"$dict": [["a", 1]]},
    {"$": None},
    {"$unknown": [1]},
    {"$gt": 5, "$lt": 9},
    {"a": {"$set": {"$set": []}}},
    [{"$tuple": ({"$tuple": []},)}],
]


def shown(value: object) -> str:
    """Type and content to the last detail; dicts and sets by their parts."""
    if isinstance(value, dict):
        pairs = [(shown(key), shown(item)) for key, item in value.items()]
        return f"{type(value)}{pairs}{getattr(value, 'default_factory', '')}"
    if isinstance(value, set | frozenset):
        return f"{type(value)}{sorted(map(shown, value))}"
    if isinstance(value, list | tuple | deque):
        return f"{type(value)}{list(map(shown, value))}{getattr(value, 'maxlen', '')}"
    if isinstance(value, int) and type(value) is not bool:
        return f"int {hex(value)}"
    return f"{type(value)} {value!r}"


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
@pytest.mark.parametrize(
    "wrap", [lambda v: v, lambda v: [v], lambda v: {"k": v}, lambda v: ({"$k": (v,)},)], ids=range(4)
)
def test_law_08_what_goes_in_comes_out(value, wrap):
    """Equal, of the same type, in the same order, at any place; and the text of it is the same again."""
    text = encode(wrap(value))
    back = decode(text)
    assert shown(back) == shown(wrap(value))
    assert encode(back) == text
    assert text.isascii()
    assert "\x00" not in text


def test_nan_comes_back_as_nan():
    text, back = record({"x": float("nan"), "y": [Decimal("sNaN")], "z": complex(float("nan"), 1)})
    assert back["x"] != back["x"]
    assert str(back["y"][0]) == "sNaN"
    assert back["z"].real != back["z"].real
    json.loads(text, parse_constant=lambda token: pytest.fail(f"{token} is no JSON"))


def test_zones_keep_their_names():
    """A datetime in another zone is equal if the instant is; so its zone is compared by name here."""
    for value in (datetime(2024, 7, 1, tzinfo=BERLIN), datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=BERLIN)):
        back = decode(encode(value))
        assert back.tzinfo == BERLIN
        assert (back.fold, back.utcoffset(), back.tzname()) == (value.fold, value.utcoffset(), value.tzname())
    assert decode(encode(datetime.now(UTC))).tzinfo is UTC


def test_dict_order_is_content():
    assert encode({"a": 1, "b": 2}) != encode({"b": 2, "a": 1})
    assert list(decode(encode({"b": 1, "a": 2}))) == ["b", "a"]


def test_lookalikes_have_texts_of_their_own():
    """Values that Python or JSON takes for equal are different records."""
    lookalikes = [
        *(1, True, "1", 1.0, Decimal(1), (1,), [1], {1}, frozenset({1}), Fraction(1), complex(1), b"1"),
        *(0.0, -0.0, {1: 1}, {"1": 1}, {True: 1}, {1.0: 1}, range(1), None, "None", "null", deque([1])),
        *("\ud83d\ude00", "\U0001f600", Path("1"), PureWindowsPath("1"), {"$tuple": [1]}, Counter({1: 1})),
    ]
    assert len({encode(value) for value in lookalikes}) == len(lookalikes)


def test_the_plain_path_and_the_tagging_path_write_the_same():
    """One tagged value anywhere sends all of it down the slower path; the rest must not change by that."""
    plain = {"a": [1, 2.5, True, None, "é\U0001f600"], "b": {"c": [], "d": {}}, "$x": 1, "e": 10**200}
    together = encode([plain, ()])
    assert together == f'[{encode(plain)},{{"$tuple":[]}}]'


class Text(str):
    pass


class Number(int):
    pass


class Real(float):
    pass


@pytest.mark.parametrize(
    ("value", "plain"), [(Text("a"), "a"), (Number(3), 3), (Real(-0.0), -0.0)], ids=["str", "int", "float"]
)
def test_subclasses_of_scalars_become_plain_and_say_so(value, plain, monkeypatch):
    monkeypatch.setattr(notices, "_noticed", set())
    with pytest.warns(UndeclaredTypeWarning, match="is recorded as a plain") as seen:
        backs = [decode(encode([value, value]))[0], decode(encode({"k": value}))["k"]]
    assert [(type(back), repr(back)) for back in backs] == [(type(plain), repr(plain))] * 2
    assert len(seen) == 1


class Island(tzinfo):
    def utcoffset(self, dt):
        return timedelta(hours=5)

    def tzname(self, dt):
        return "ISL"

    def dst(self, dt):
        return None


def test_an_unknown_zone_keeps_instant_and_wall_time(monkeypatch):
    monkeypatch.setattr(notices, "_noticed", set())
    value = datetime(2024, 1, 1, tzinfo=Island())
    with pytest.warns(UndeclaredTypeWarning, match="Island"):
        back = decode(encode(value))
    assert back == value
    assert (back.replace(tzinfo=None), back.tzname()) == (value.replace(tzinfo=None), "ISL")


class OddDict(dict):
    pass


class Money(Decimal):
    pass


class Thing:
    pass


@pytest.mark.parametrize(
    ("value", "path", "named"),
    [
        ({"a": [1, Thing()]}, "$.a[1]", "Thing"),
        ({"a b": {2: Thing()}}, "$['a b']", "Thing"),
        ([print], "$[0]", "builtin_function_or_method"),
        ({"x": OddDict()}, "$.x", "OddDict"),
        ((0, Money(1)), "$[1]", "Money"),
        ([memoryview(b"")], "$[0]", "memoryview"),
        (defaultdict(lambda: 1), "$", "defaultdict"),
        ({"f": lambda: 1}, "$.f", "function"),
        (ValueError("x"), "$", "ValueError"),
        (int, "$", "type"),
        (..., "$", "ellipsis"),
    ],
    ids=range(11),
)
def test_law_11_what_cannot_be_recorded_is_refused_with_its_path(value, path, named):
    with pytest.raises(SerializationError) as caught:
        encode(value)
    assert caught.value.path.startswith(path)
    assert named in caught.value.message


@pytest.mark.parametrize("kind", ["list", "dict", "tuple"])
def test_values_that_hold_themselves_are_refused(kind):
    inner: list = []
    value = {"list": inner, "dict": {"a": inner}, "tuple": (inner,)}[kind]
    inner.append(value)
    with pytest.raises(SerializationError, match="refers to itself"):
        encode(value)


def test_depth_is_bounded_and_what_is_accepted_can_be_read():
    def nested(depth: int, wrap) -> object:
        value: object = 1
        for _ in range(depth):
            value = wrap(value)
        return value

    for wrap in (lambda v: [v], lambda v: {"a": v}, lambda v: {1: v}, lambda v: (v,)):
        deepest = nested(codec.MAX_DEPTH, wrap)
        assert decode(encode(deepest)) == deepest
        with pytest.raises(SerializationError, match="nested"):
            encode(nested(codec.MAX_DEPTH + 1, wrap))
        with pytest.raises(SerializationError):
            encode(nested(100_000, wrap))


def test_little_stack_left_is_a_typed_error():
    """However deep the caller is, short of having no stack for the call itself, nothing else escapes."""
    value: object = 1
    for _ in range(codec.MAX_DEPTH):
        value = [value]
    text = encode(value)

    def at_depth(call, levels: int) -> str:
        if levels:
            return at_depth(call, levels - 1)
        try:
            call()
        except Exception as error:
            return type(error).__name__
        return "fine"

    room = sys.getrecursionlimit() - len(inspect.stack()) - 40
    for call in (lambda: encode(value), lambda: decode(text)):
        outcomes = {at_depth(call, levels) for levels in range(0, room, 10)}
        assert "fine" in outcomes
        assert outcomes <= {"fine", "SerializationError"}
    assert at_depth(lambda: encode(value), room) == "SerializationError"


@pytest.mark.parametrize("text", ["", "{", "[1] ", "NaN", '{"$date":"yesterday"}', '{"$nope":1}', '{"$set":[[1]]}'])
def test_damaged_text_is_a_typed_error(text):
    with pytest.raises(SerializationError):
        decode(text)


def test_damaged_text_names_the_place():
    text = '{"a":[{"$tuple":[1,{"b c":{"$decimal":"x"}}]},{"$date":"2024-01-01"}]}'
    with pytest.raises(SerializationError) as caught:
        decode(text)
    assert caught.value.path == "$.a[0][1]['b c']"
    assert "decimal" in caught.value.message


def test_the_limit_on_digits_is_neither_needed_nor_changed():
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(640)
    try:
        for value in (10**400, 10**20_000, -(2**1024), 2**1024 - 1):
            assert decode(encode({"n": value})) == {"n": value}
        assert sys.get_int_max_str_digits() == 640
    finally:
        sys.set_int_max_str_digits(before)


def test_the_first_execution_gets_a_copy():
    """What the caller goes on with is the record, so a later change to the original cannot reach it."""
    original = {"a": [1]}
    _, got = record(original)
    original["a"].append(2)
    assert got == {"a": [1]}


def test_a_digest_tells_values_apart_and_nothing_is_left_out():
    assert digest(encode([1])) == digest_of([1])
    assert len(digest_of(None)) == 32
    assert digest_of({"a": 1}) != digest_of({"a": True})
    with pytest.raises(SerializationError):
        digest_of({"key": Thing()})


def test_digests_are_the_same_in_every_process():
    """The order of a set depends on the hash seed of the process; its text must not."""
    program = (
        "from perdure.core.codec import digest_of;"
        "print(digest_of([{'a', 'b', 'c', ('d', 1), None}, frozenset('xyz'), {'k': {b'1', b'2', '3'}}]))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(filter(None, sys.path))},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "2", "3")
    }
    assert len(found) == 1


def test_tags_are_pinned():
    """They are in databases: a tag may be added, never renamed or given another meaning."""
    assert sorted(codec.TAGS) == [
        *("$bytearray", "$bytes", "$complex", "$counter", "$dataclass", "$date", "$datetime", "$decimal"),
        *("$defaultdict", "$deque", "$dict", "$enum", "$float", "$fraction", "$frozenset", "$int", "$model"),
        *("$namedtuple", "$ordereddict", "$path", "$range", "$set", "$str", "$time", "$timedelta", "$tuple"),
        "$uuid",
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ((1, "a"), '{"$tuple":[1,"a"]}'),
        ({3, 1, 2}, '{"$set":[1,2,3]}'),
        (b"hi", '{"$bytes":"aGk="}'),
        (Decimal("1.0"), '{"$decimal":"1.0"}'),
        (float("nan"), '{"$float":"nan"}'),
        (2**1024, '{"$int":"' + hex(2**1024) + '"}'),
        (timedelta(1, 2, 3), '{"$timedelta":[1,2,3]}'),
        (datetime(2024, 1, 2, tzinfo=UTC), '{"$datetime":"2024-01-02T00:00:00+00:00"}'),
        (datetime(2024, 1, 2, tzinfo=BERLIN), '{"$datetime":["2024-01-02T00:00:00","Europe/Berlin",0]}'),
        ({"$a": 1}, '{"$dict":[["$a",1]]}'),
        ({1: 2}, '{"$dict":[[1,2]]}'),
        (PurePosixPath("/a"), '{"$path":["PurePosixPath","/a"]}'),
        ("\ud83d\ude00", '{"$str":["\\ud83d","\\ude00"]}'),
        ("\x00", '"\\u0000"'),
    ],
    ids=range(14),
)
def test_texts_are_pinned(value, text):
    assert encode(value) == text


def test_plain_values_load_no_pydantic():
    program = (
        "import sys; from perdure.core.codec import decode, encode;"
        "decode(encode({'a': (1, {2})}), dict[str, list[int]]); sys.exit('pydantic' in sys.modules)"
    )
    environment = {"PYTHONPATH": ":".join(filter(None, sys.path))}
    assert subprocess.run([sys.executable, "-c", program], env=environment).returncode == 0
