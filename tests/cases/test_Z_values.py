"""Values: what went in comes out, equal and of its type, on both stores; or it is refused by name, never
silently changed."""

from __future__ import annotations

import asyncio
import collections
import enum
import fractions
import math
import pathlib
import subprocess
import sys
import uuid
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, NamedTuple

import pydantic
import pytest
from tests.support import shop
from tests.support.child import child

from perdure import (
    InvalidInputError,
    OperationError,
    PerdureError,
    Resume,
    SerializationError,
    Workflow,
    interrupt,
    open_engine,
    step,
    workflow,
)
from perdure.core.records import RunFilter


class Color(enum.Enum):
    RED = "red"


class Paint:
    class Shade(enum.Enum):
        DARK = 1


class Level(enum.IntEnum):
    LOW = 1


@dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: tuple[int, ...]
    level: Level = Level.LOW
    label: str = field(init=False, default="p")


class Money(pydantic.BaseModel):
    amount: Decimal
    at: datetime
    point: Point
    parts: dict[str, set[int]] = {}
    _note: str = pydantic.PrivateAttr("private")


class Pair(NamedTuple):
    left: int
    right: str


_POINT = Point(1, (2, 3))
_MONEY = Money(amount=Decimal("1.10"), at=datetime(2026, 1, 2, tzinfo=UTC), point=_POINT, parts={"a": {1, 2}})

DECLARED: list[tuple[str, Any, Any]] = [
    ("enum", Color, Color.RED),
    ("nested enum", Paint.Shade, Paint.Shade.DARK),
    ("int enum", Level, Level.LOW),
    ("dataclass", Point, _POINT),
    ("model", Money, _MONEY),
    ("list of models", list[Money], [_MONEY, _MONEY]),
    ("dict of dataclasses", dict[str, Point], {"p": _POINT}),
    ("optional", Money | None, None),
    ("named tuple", Pair, Pair(1, "x")),
]

PLAIN: list[tuple[str, Any]] = [
    ("aware datetime", datetime(2026, 3, 29, 2, 30, tzinfo=timezone(timedelta(hours=5, minutes=30)))),
    ("naive datetime", datetime(2026, 3, 29, 2, 30, 0, 123456)),
    ("date", date(2026, 2, 28)),
    ("time", time(23, 59, 59, 999999)),
    ("timedelta", timedelta(days=-1, microseconds=1)),
    ("uuid", uuid.UUID(int=5)),
    ("decimal", Decimal("1.10")),
    ("decimal nan", Decimal("-0E+3")),
    ("bytes", b"\x00\xff"),
    ("set", {1, 2, 3}),
    ("frozenset", frozenset({("a", 1)})),
    ("path", pathlib.PurePosixPath("/a/b")),
    ("complex", complex(1, -0.0)),
    ("tuple", (1, (2, [3]))),
    ("int keys", {1: "a", 2: "b"}),
    ("mixed keys", {1: "int", "1": "text", (1, 2): "tuple", None: "none", 2.5: "float"}),
    ("order", {"b": 1, "a": 2}),
    ("big int", 10**5000),
    ("negative zero", -0.0),
    ("float", 1e22),
    ("surrogate", "\ud800"),
    ("empty", ["", {}, [], (), None]),
    ("looks like a tag", {"$": "tag", "$type": "x", "__perdure__": 1}),
]

UNDECLARED: list[tuple[str, Any]] = [
    ("defaultdict", collections.defaultdict(list, {"a": [1]})),
    ("counter", collections.Counter("aab")),
    ("deque", collections.deque([1, 2], maxlen=2)),
    ("ordered dict", collections.OrderedDict(a=1)),
    ("fraction", fractions.Fraction(1, 3)),
    ("range", range(3)),
    ("named tuple", Pair(1, "x")),
    ("subclass of str", type("Text", (str,), {})("x")),
    ("module", math),
    ("object", object()),
    ("function", len),
    ("exception", ValueError("x")),
]


def _returns(name: str, declared: Any, value: Any) -> Workflow:
    """A workflow whose step returns the value, before and after a pause."""

    async def give() -> Any:
        return value

    if declared is not None:
        give.__annotations__["return"] = declared
    else:
        del give.__annotations__["return"]
    seen: list[Any] = []

    async def z_returns(_: None) -> None:
        given = await step(give)
        seen.append(given)
        interrupt("go?", {})
        seen.append(given)

    made = workflow(name="z_returns")(z_returns)
    made.seen = seen  # type: ignore[attr-defined]
    return made


def _same(one: Any, other: Any) -> bool:
    """Equal, of one type, in one order, all the way down; -0.0 is not 0.0."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return _same(list(one.items()), list(other.items()))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return one == other and (isinstance(one, int) or repr(one) == repr(other))


async def _seen(url: str, runner: Workflow) -> list[Any]:
    """What the code saw: at the first execution, at a replay in another engine, and at its end."""
    async with open_engine(url) as engine:
        run_id = (await engine.run(runner)).execution_id
    async with open_engine(url) as engine:
        await engine.resume(runner, run_id, resume_value=Resume(approved=True))
    return runner.seen  # type: ignore[attr-defined]


@pytest.mark.parametrize(("declared", "value"), [case[1:] for case in DECLARED], ids=[c[0] for c in DECLARED])
async def test_Z1_declared_values_come_back_as_they_were(store_url: str, declared: Any, value: Any) -> None:
    """Enums, dataclasses, models and what is inside them are rebuilt through the declared type."""
    seen = await _seen(store_url, _returns("z", declared, value))
    assert len(seen) == 3
    assert all(_same(one, value) for one in seen), seen


@pytest.mark.filterwarnings("ignore::UserWarning")
async def test_Z1_undeclared_values_are_equal_or_refused(store_url: str) -> None:
    """Of anything else the code sees what is recorded, the first time too; or an error with the path.
    Never None."""
    for name, value in UNDECLARED:
        runner = _returns(name, None, value)
        try:
            seen = await _seen(store_url, runner)
        except SerializationError as error:
            seen, path = [], error.path
        if not seen:
            assert path.startswith("$"), name
            assert runner.seen == [], name  # type: ignore[attr-defined]
            continue
        assert all(_same(one, seen[0]) for one in seen), name
        assert seen[0] is not None, name
        assert seen[0] == value or list(seen[0]) == list(value), name


@pytest.mark.parametrize("value", [case[1] for case in PLAIN], ids=[case[0] for case in PLAIN])
async def test_Z2_standard_types_keep_their_type(store_url: str, value: Any) -> None:
    """Alone, in a list, in a dict, and as a key where they can be one."""
    whole = {"alone": value, "list": [value, [value]], "dict": {"x": {"y": value}}}
    try:
        whole["key"] = {value: 1}
    except TypeError:
        assert isinstance(value, list | dict | set | tuple)
    seen = await _seen(store_url, _returns("z", None, whole))
    for one in seen:
        assert _same(one["alone"], value)
        assert _same(one["list"], [value, [value]])
        assert _same(one["dict"]["x"]["y"], value)
        if "key" in whole:
            assert _same(next(iter(one["key"])), value)


async def test_Z4_nul_is_text_like_any_other(store_url: str) -> None:
    """U+0000 and the text that spells it: as result, key, question, answer, error message and output,
    exactly."""
    texts = ["a\x00b", "a\\u0000b", "\x00", "\\x00", "\ud800\x00"]

    async def give(text: str) -> dict[str, str]:
        return {text: text}

    async def fail(text: str) -> None:
        raise ValueError(text)

    @workflow
    async def nul(value: str) -> list[Any]:
        given = await step(give, value)
        try:
            await step(fail, value)
        except ValueError as error:
            caught = str(error)
        answer = interrupt(f"is {value} right?", {value: value})
        return [value, given, caught, answer.metadata]

    async with open_engine(store_url) as engine:
        for text in texts:
            paused = await engine.run(nul, text)
            question = paused.pending_interrupts[0]
            assert question["reason"] == f"is {text} right?"
            assert question["context"] == {text: text}
            answer = Resume(approved=True, metadata={text: text})
            result = await engine.resume(nul, paused.execution_id, resume_value=answer)
            assert result.output == [text, {text: text}, text, {text: text}]
            async for event in engine.stream(paused.execution_id):
                assert event.sequence


async def test_Z4_nul_in_an_id_is_refused(store_url: str) -> None:
    """A run id with U+0000 is refused at the door, on both stores alike."""

    @workflow
    async def z4_any(_: None) -> None: ...

    async with open_engine(store_url) as engine:
        for run_id in ("a\x00b", "\ud800", "", " "):
            with pytest.raises(InvalidInputError):
                await engine.run(z4_any, execution_id=run_id)
        assert await engine.store.run_list(RunFilter()) == []


async def test_Z5_nan_and_infinity_are_kept(store_url: str) -> None:
    """From a step, in an answer, as input and as output: never null, never a dead run."""
    value = {"x": math.nan, "y": [math.inf, -math.inf], "z": -0.0}

    async def give() -> Any:
        return value

    @workflow
    async def z5_floats(given: Any) -> list[Any]:
        result = await step(give)
        answer = interrupt("go?", {"context": value})
        return [given, result, answer.metadata["m"]]

    async with open_engine(store_url) as engine:
        paused = await engine.run(z5_floats, value)
        answer = Resume(approved=True, metadata={"m": value})
        result = await engine.resume(z5_floats, paused.execution_id, resume_value=answer)
    for one in result.output:
        assert repr(one) == repr(value)


class _WebError(Exception):
    """An exception that cannot be made from its `args`."""

    def __init__(self, *, status: int, detail: str) -> None:
        super().__init__(f"{status} {detail}")
        self.status = status
        self.lock = asyncio.Lock()


async def test_Z7_odd_exceptions_break_no_reader(store_url: str) -> None:
    """Required keywords, unstorable attributes, causes, groups: the run has failed with the message, and
    stays readable."""

    async def web() -> None:
        raise _WebError(status=502, detail="bad gateway") from KeyError("cause")

    async def group() -> None:
        raise ExceptionGroup("several", [ValueError("one"), _WebError(status=500, detail="two")])

    async def unprintable() -> None:
        class Unprintable(Exception):
            def __str__(self) -> str:
                raise RuntimeError("no text")

        raise Unprintable

    @workflow
    async def z7_fails(which: int) -> None:
        await step([web, group, unprintable][which])

    async with open_engine(store_url) as engine:
        with pytest.raises(OperationError, match="502 bad gateway") as web_error:
            await engine.run(z7_fails, 0, execution_id="0")
        assert "_WebError" in web_error.value.type_name
        assert "bad gateway" in web_error.value.traceback_text
        for which in (1, 2):
            with pytest.raises((ExceptionGroup, PerdureError)):
                await engine.run(z7_fails, which, execution_id=str(which))
        rows = await engine.store.run_list(RunFilter(status="failed"))
        assert sorted(row.run_id for row in rows) == ["0", "1", "2"]
    # A process that knows neither the class nor the workflow reads all of it.
    reader = (
        "import asyncio, sys\n"
        "from perdure import open_engine\n"
        "from perdure.core.records import RunFilter\n"
        "async def main():\n"
        "    async with open_engine(sys.argv[1]) as engine:\n"
        "        for row in await engine.store.run_list(RunFilter()):\n"
        "            print(row.run_id, row.status, [e.type async for e in engine.stream(row.run_id)][-1])\n"
        "asyncio.run(main())\n"
    )
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", reader, store_url], capture_output=True, text=True, check=True
    )
    assert sorted(done.stdout.splitlines()) == [f"{n} failed status" for n in range(3)]


async def test_Z8_unrecordable_argument_fails_the_run_at_once(store_url: str) -> None:
    """A file, a client or a lambda as argument: the run fails, the message names step and argument,
    nothing is tried again."""
    ran: list[Any] = []

    @step(name="z8_send", retries=5)
    async def send(to: str, client: Any) -> None:
        ran.append(to)

    @workflow
    async def z8_sends(which: int) -> None:
        with open(__file__) as opened:
            await send("ann", [opened, asyncio.Lock(), lambda: None, object()][which])

    async with open_engine(store_url) as engine:
        for which in range(4):
            with pytest.raises(PerdureError, match=r"z8_send.*client"):
                await engine.run(z8_sends, which, execution_id=str(which))
            row = await engine.store.run_get(str(which))
            assert row is not None
            assert (row.status, row.attempt) == ("failed", 1)
    assert ran == []


async def test_Z8_other_process_does_not_retry_it(store_url: str, tmp_path: pathlib.Path) -> None:
    """A worker that finds the failed run leaves it alone."""
    async with open_engine(store_url) as engine:
        with pytest.raises(PerdureError):
            await engine.run(shop.unrecordable, {"ledger": str(tmp_path / "ledger")}, execution_id="z8")
        before = await engine.store.record_list("z8")
        with child("work", store_url) as worker:
            await asyncio.to_thread(worker.result)
        assert await engine.store.record_list("z8") == before
