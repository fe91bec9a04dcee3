"""Exceptions as data: always stored, always readable, and of their own class where that is certain."""

import builtins
import json

import pytest

from perdure.core.codec import MAX_MESSAGE_CHARS, decode_error, encode_error
from perdure.errors import OperationError


class Declined(Exception):
    pass


class Coded(Exception):
    def __init__(self, code: int, *, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail


class Holding(Exception):
    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.socket = object()
        self.status = 502


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Late(Exception):
    """Says something else when it is made again."""

    count = 0

    def __str__(self) -> str:
        Late.count += 1
        return f"number {Late.count}"


class Odd(Exception):
    def __new__(cls, *args: object, word: str) -> "Odd":
        return super().__new__(cls, *args)

    def __init__(self, *args: object, word: str) -> None:
        super().__init__(*args)


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


def unicode_error() -> UnicodeDecodeError:
    try:
        b"\xff".decode("utf-8")
    except UnicodeDecodeError as error:
        return error
    raise AssertionError


@pytest.mark.parametrize(
    "error",
    [
        ValueError("x"),
        ValueError(),
        KeyError("k"),
        KeyError(("a", 1)),
        OSError(2, "No such file", "f.txt"),
        FileNotFoundError(2, "No such file", "f.txt"),
        TimeoutError("late"),
        ZeroDivisionError("division by zero"),
        unicode_error(),
        ImportError("no", name="x", path="p"),
        StopAsyncIteration(3),
        ValueError("a\x00b \ud800"),
        SyntaxError("bad", ("f.py", 1, 2, "text", 1, 3)),
        Exception("x", 1, b"2"),
    ],
    ids=range(14),
)
def test_built_in_exceptions_are_of_their_class_again(error):
    back = decode_error(encode_error(raised(error)))
    assert type(back) is type(error)
    assert (str(back), back.args) == (str(error), error.args)


def test_attributes_of_built_in_exceptions_come_back():
    back = decode_error(encode_error(FileNotFoundError(2, "No such file", "f.txt")))
    assert isinstance(back, FileNotFoundError)
    assert (back.errno, back.filename) == (2, "f.txt")
    back = decode_error(encode_error(ImportError("no", name="x")))
    assert isinstance(back, ImportError)
    assert back.name == "x"


def test_declared_exceptions_are_of_their_class_again():
    back = decode_error(encode_error(raised(Declined("no money", 7))), [Declined])
    assert type(back) is Declined
    assert back.args == ("no money", 7)
    coded = decode_error(encode_error(raised(Coded(42, detail="gone"))), [Declined, Coded])
    assert isinstance(coded, Coded)
    assert (coded.code, coded.detail, str(coded)) == (42, "gone", "42: gone")


def test_case_z7_others_are_operation_errors():
    back = decode_error(encode_error(raised(Coded(42, detail="gone"))))
    assert isinstance(back, OperationError)
    assert (back.type_name, back.message) == ("Coded", "42: gone")
    assert "Coded: 42: gone" in back.traceback_text
    assert "raise error" in back.traceback_text


def test_case_z7_what_cannot_be_recorded_is_missing_and_named():
    back = decode_error(encode_error(Holding("bad gateway")), [Holding])
    assert isinstance(back, Holding)
    assert back.status == 502
    assert not hasattr(back, "socket")
    assert back.__notes__ == ["not recorded, and missing here: socket"]
    again = decode_error(encode_error(back), [Holding])
    assert again.__notes__ == back.__notes__


@pytest.mark.parametrize(
    "error",
    [Mute("x"), Late(), Odd("x", word="w"), Declined(object()), SystemExit(3), KeyboardInterrupt()],
    ids=lambda error: type(error).__name__,
)
def test_doubtful_exceptions_are_operation_errors(error):
    declared = [Mute, Late, Odd, Declined, SystemExit, KeyboardInterrupt]
    back = decode_error(encode_error(raised(error)), declared)
    assert type(back) in (OperationError, Mute)
    assert not isinstance(back, SystemExit | KeyboardInterrupt)


def test_every_built_in_exception_is_stored_and_read():
    """Also those whose constructor demands arguments, made without it."""
    for name, cls in vars(builtins).items():
        if isinstance(cls, type) and issubclass(cls, BaseException) and not name.startswith("BaseExceptionG"):
            error = cls.__new__(cls, "m", [ValueError(1)]) if name == "ExceptionGroup" else cls.__new__(cls)
            assert isinstance(decode_error(encode_error(error)), Exception)


def test_groups_keep_their_shape():
    group = ExceptionGroup("both", [ValueError("a"), ExceptionGroup("in", [Coded(1, detail="b")])])
    back = decode_error(encode_error(raised(group)))
    assert isinstance(back, ExceptionGroup)
    assert str(back) == str(group)
    first, second = back.exceptions
    assert type(first) is ValueError
    assert isinstance(second, ExceptionGroup)
    assert isinstance(second.exceptions[0], OperationError)
    declared = decode_error(encode_error(group), [Coded])
    assert isinstance(declared, ExceptionGroup)
    assert isinstance(declared.exceptions[1].exceptions[0], Coded)  # type: ignore[attr-defined]


def test_huge_groups_are_stored():
    nested: Exception = ValueError("x")
    for _ in range(50):
        nested = ExceptionGroup("g", [nested])
    assert isinstance(decode_error(encode_error(nested)), Exception)
    wide = ExceptionGroup("g", [ValueError(n) for n in range(500)])
    assert isinstance(decode_error(encode_error(wide)), OperationError)


def test_long_parts_are_cut():
    error = raised(ValueError("x" * 100_000))
    text = encode_error(error)
    assert len(text) < 40_000
    assert len(json.loads(text)["message"]) == MAX_MESSAGE_CHARS
    back = decode_error(text)
    assert isinstance(back, OperationError)
    assert back.message == "x" * MAX_MESSAGE_CHARS


def test_notes_and_cause_are_kept():
    error = ValueError("x")
    error.add_note("while paying")
    error.__cause__ = KeyError("k")
    text = encode_error(error)
    assert decode_error(text).__notes__ == ["while paying"]
    assert json.loads(text)["cause"] == "KeyError: 'k'"


def test_names_have_no_module():
    """The same file is `__main__` and a module in turn: a record must fit both."""
    text = encode_error(Declined("x"))
    moved = type("Declined", (Exception,), {"__module__": "elsewhere"})
    assert type(decode_error(text, [moved])) is moved
