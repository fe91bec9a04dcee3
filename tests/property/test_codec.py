"""Any value of the supported types comes back as it was."""

from collections import Counter, OrderedDict, defaultdict, deque
from datetime import UTC, timedelta, timezone
from pathlib import PurePosixPath, PureWindowsPath
from zoneinfo import ZoneInfo

from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.core.codec import decode, decode_error, digest_of, encode, encode_error, record

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=8) | st.sampled_from(
    ["$tuple", "$dict", "$", "\ud83d\ude00", "\x00", "\U0001f600", "\\ud83d"]
)
ZONES = (
    st.none()
    | st.just(UTC)
    | st.sampled_from(["Europe/Berlin", "America/St_Johns", "UTC"]).map(ZoneInfo)
    | st.timedeltas(timedelta(hours=-23), timedelta(hours=23)).map(timezone)
    | st.builds(timezone, st.timedeltas(timedelta(hours=-23), timedelta(hours=23)), ANY_TEXT)
)
ATOMS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-9, 9).map(lambda number: number * 7**6000)  # past the limit on decimal digits
    | st.floats(allow_nan=False)
    | ANY_TEXT
    | st.binary(max_size=8)
    | st.decimals(allow_nan=False)
    | st.fractions()
    | st.complex_numbers(allow_nan=False)
    | st.uuids()
    | st.dates()
    | st.timedeltas()
    | st.datetimes(timezones=ZONES, allow_imaginary=True)
    | st.times(timezones=ZONES)
    | st.builds(range, st.integers(), st.integers(), st.integers(min_value=1))
    | st.sampled_from([PurePosixPath("/a/b"), PureWindowsPath("c:/x"), PurePosixPath("\udcff")])
)
KEYS = ATOMS | st.tuples(ATOMS, ATOMS) | st.frozensets(ATOMS, max_size=2)


def containers(inner: st.SearchStrategy) -> st.SearchStrategy:
    lists, dicts = st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=3)
    return (
        lists
        | dicts
        | st.dictionaries(ANY_TEXT, inner, max_size=3)
        | lists.map(tuple)
        | st.sets(KEYS, max_size=3)
        | st.frozensets(KEYS, max_size=3)
        | st.builds(deque, lists, st.none() | st.integers(3, 9))
        | dicts.map(OrderedDict)
        | st.builds(defaultdict, st.sampled_from([None, list, int]), dicts)
        | st.dictionaries(KEYS, st.integers(), max_size=3).map(Counter)
    )


VALUES = st.recursive(ATOMS, containers, max_leaves=12)


def shown(value: object) -> object:
    """Type and content to the last detail, comparable by text."""
    if isinstance(value, dict):
        pairs = [(shown(key), shown(item)) for key, item in value.items()]
        return type(value).__name__, pairs, getattr(value, "default_factory", None)
    if isinstance(value, set | frozenset):
        return type(value).__name__, sorted(repr(shown(item)) for item in value)
    if isinstance(value, list | tuple | deque):
        return type(value).__name__, [shown(item) for item in value], getattr(value, "maxlen", None)
    if type(value) is int:
        return "int", hex(value)
    if type(value).__name__ in ("Fraction", "range"):
        numbers = ("numerator", "denominator", "start", "stop", "step")
        return type(value).__name__, [hex(getattr(value, name)) for name in numbers if hasattr(value, name)]
    return type(value).__name__, repr(value), getattr(value, "fold", None)


@given(VALUES)
@settings(max_examples=400, deadline=None)
def test_law_08_any_value_comes_back(value):
    text, back = record(value)
    assert repr(shown(back)) == repr(shown(value))
    assert text.isascii()
    assert encode(back) == text
    assert digest_of(back) == digest_of(value)


@given(VALUES, VALUES)
@settings(max_examples=200, deadline=None)
def test_different_values_have_different_texts(one, other):
    assert (encode(one) == encode(other)) == (repr(shown(one)) == repr(shown(other)))


@given(st.lists(VALUES, max_size=3), ANY_TEXT)
@settings(max_examples=200, deadline=None)
def test_any_exception_is_stored_and_read(arguments, note):
    error = ValueError(*arguments)
    error.add_note(note)
    back = decode_error(encode_error(error))
    assert back.__notes__ == [note]
    if type(back) is ValueError:
        assert repr(shown(back.args)) == repr(shown(error.args))


@given(st.recursive(st.none() | st.booleans() | st.integers() | ANY_TEXT, containers, max_leaves=6))
@settings(max_examples=100, deadline=None)
def test_a_declared_type_without_classes_changes_nothing(value):
    text = encode(value)
    for declared in (list[int], dict[str, int] | None, int, str):
        assert repr(shown(decode(text, declared))) == repr(shown(value))
