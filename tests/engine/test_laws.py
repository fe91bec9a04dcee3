"""The laws of DESIGN §2, each by the shortest program that could break it. The rules behind them are tested beside."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from tests.support.engines import (
    HASTY,
    Gate,
    ids_of,
    opened,
    operation_of,
    questions_of,
    record_that,
    records_of,
    row_of,
    shape,
    status_that,
)
from tests.support.locks import write_lock

from perdure import (
    AlreadyResumed,
    AmbiguousAnswer,
    ChainResumeError,
    DurableRecoveryError,
    InvalidInputError,
    Resume,
    SerializationError,
    idempotent,
    interrupt,
    operation_id,
    step,
    workflow,
)
from perdure.core.records import RunFilter
from perdure.engine.engine import Engine

YES = Resume(approved=True)
NO = Resume(approved=False)
gate = Gate()
ran: list[Any] = []
other: Engine


@pytest.fixture(autouse=True)
async def second_connection(store_url: str):  # type: ignore[no-untyped-def]
    """Somebody outside the run, who sees what is committed and nothing else."""
    global gate, other
    gate = Gate()
    ran.clear()
    async with opened(store_url) as other:
        yield


@step(name="laws.note")
async def note(value: Any) -> Any:
    ran.append(value)
    return value


@step(name="laws.hold")
async def hold() -> str:
    ran.append("hold")
    await gate.stand()
    return "held"


@step(name="laws.learn", recovery="safe")
async def learn(n: int) -> int:
    ran.append(n)
    return n


@workflow(name="laws.asking")
async def asking() -> bool:
    await note(1)
    return interrupt("go on?").approved


@workflow(name="laws.echoing")
async def echoing(value: Any) -> Any:
    return await note(value)


@workflow(name="laws.holding")
async def holding() -> list[Any]:
    return [await note(1), await hold()]


# --- 1. Committed, then seen --------------------------------------------------------------------------


async def test_law_01_a_result_is_seen_only_when_it_is_durable(engine: Engine):
    result = await engine.run(echoing, "x")
    row = await row_of(other, result.execution_id)
    assert row.status == "completed"
    assert (await records_of(other, result.execution_id))[-1].data == '"x"'


async def test_law_01_every_event_of_a_stream_is_durable_when_it_is_shown(engine: Engine):
    @workflow
    async def flow() -> None:
        await asyncio.gather(*(learn(n) for n in range(20)))

    run_id = await engine.start(flow)
    shown = 0
    async for event in engine.stream(run_id):
        [record] = await other.store.record_list(run_id, after=event.sequence - 1, limit=1)
        assert (record.seq, record.type) == (event.sequence, event.type)
        shown += 1
    assert shown >= 22


async def test_law_01_a_question_is_seen_only_when_it_is_durable(engine: Engine):
    paused = await engine.run(asking)
    assert [q.interrupt_id for q in await questions_of(other, paused.execution_id)] == ids_of(paused)
    assert (await operation_of(other, paused.execution_id, "1")).phase == "suspended"


async def test_law_01_nothing_is_shown_while_the_store_cannot_commit(engine: Engine, store_url: str):
    """The body has ended, its record is on the way: the stream and the caller wait for the disk."""

    @workflow
    async def flow() -> list[Any]:
        return [await hold(), await learn(1)]

    run_id = await engine.start(flow)
    await gate.reached.wait()
    await record_that(engine, run_id, type="started", name="laws.hold")
    waiting = asyncio.ensure_future(engine.run(flow, execution_id=run_id))
    before = await other.store.record_list(run_id)
    with write_lock(store_url):
        gate.open()
        while 1 not in ran:
            await asyncio.sleep(0)
        assert await other.store.record_list(run_id) == before
        assert not waiting.done()
    assert (await waiting).output == ["held", 1]


# --- 2. Commit before effect --------------------------------------------------------------------------


@pytest.mark.parametrize("recovery", ["idempotent", "manual"])
async def test_law_02_everything_learnt_is_durable_before_a_body_that_is_not_safe(engine: Engine, recovery: str):
    @step(name=f"laws.look {recovery}", recovery=recovery)
    async def look(run_id: str) -> list[Any]:
        return [[r.type, r.index] for r in await other.store.record_list(run_id) if r.kind == "step"]

    @workflow(name=f"laws.looking {recovery}")
    async def flow(run_id: str) -> list[Any]:
        await learn(1)
        await learn(2)
        return await look(run_id)

    seen = (await engine.run(flow, "r1", execution_id="r1")).output
    assert seen[:2] == [["completed", 0], ["completed", 1]]
    if recovery == "manual":
        assert seen[2:] == [["started", 2]]


# --- 3. One recorded owner ----------------------------------------------------------------------------


async def test_law_03_a_write_under_an_older_fence_is_refused(engine: Engine):
    run_id = await engine.start(holding)
    await gate.reached.wait()
    drive = engine.host.drives[run_id]
    await other.store.run_claim(other.host.worker_id, run_ids=[run_id], dead_workers=[engine.host.worker_id])
    before = shape(await records_of(other, run_id))
    gate.open()
    assert (await drive.ended).is_lost
    assert shape(await records_of(other, run_id)) == before


# --- 4. A decision is never lost ----------------------------------------------------------------------


async def test_law_04_an_answer_is_stored_and_the_run_runnable_in_one_step(engine: Engine):
    paused = await engine.run(asking)
    await other.answer(paused.execution_id, YES)
    row = await row_of(other, paused.execution_id)
    [question] = await questions_of(other, paused.execution_id)
    assert (row.status, question.status) == ("pending", "answered")


async def test_law_04_an_answer_outlives_code_that_cannot_take_it(engine: Engine, store_url: str):
    is_missing = [True]

    @workflow
    async def flow() -> bool:
        answer = interrupt("go on?").approved
        if is_missing[0]:
            raise LookupError("a tool is missing")
        return answer

    await engine.run(flow, execution_id="r1")
    with pytest.raises(LookupError):
        await engine.resume(flow, "r1", resume_value=NO)
    is_missing[0] = False
    async with opened(store_url) as later:
        assert (await later.resume(flow, "r1")).output is False


async def test_law_04_an_answer_given_while_nobody_runs_it_is_there_for_the_next_worker(engine: Engine, store_url: str):
    paused = await engine.run(asking)
    await engine.close()
    await other.answer(paused.execution_id, YES)
    async with opened(store_url) as later:
        await later.recover([asking])
        assert (await later.run(asking, execution_id=paused.execution_id)).output is True


# --- 5. An answer answers one question ----------------------------------------------------------------


async def test_law_05_three_parallel_questions_are_three_and_one_answer_is_for_one(engine: Engine):
    @workflow
    async def flow() -> list[bool]:
        async def one(n: int) -> bool:
            return interrupt("same words?", {"same": "context"}).approved

        return list(await asyncio.gather(*(one(n) for n in range(3))))

    paused = await engine.run(flow)
    first, second, third = (q["interrupt_id"] for q in sorted(paused.pending_interrupts, key=lambda q: q["node_id"]))
    with pytest.raises(AmbiguousAnswer):
        await engine.resume(flow, paused.execution_id, resume_value=YES)
    paused = await engine.resume(flow, paused.execution_id, resume_value={second: YES})
    assert set(ids_of(paused)) == {first, third}
    result = await engine.resume(flow, paused.execution_id, resume_value={first: NO, third: NO})
    assert result.output == [False, True, False]


async def test_law_05_nothing_is_approved_by_default_silence_or_an_empty_body(engine: Engine):
    paused = await engine.run(asking)
    for value in ({}, None):
        with pytest.raises((InvalidInputError, ChainResumeError)):
            await engine.resume(asking, paused.execution_id, resume_value=value)
    for body in ({}, {"metadata": {}}, {"approved": None}, {"approved": "true"}):
        with pytest.raises(ValueError, match="approved"):
            Resume(**body)
    assert [q.status for q in await questions_of(engine, paused.execution_id)] == ["pending"]


# --- 6. Recorded means done ---------------------------------------------------------------------------


async def test_law_06_a_completed_operation_never_runs_again(engine: Engine, store_url: str):
    async with opened(store_url, HASTY) as first:
        run_id = await first.start(holding)
        await gate.reached.wait()
    gate.open()
    assert (await engine.run(holding, execution_id=run_id)).output == [1, "held"]
    assert ran == [1, "hold", "hold"]


async def test_law_06_a_completed_error_never_runs_again_either(engine: Engine, store_url: str):
    @step
    async def fail() -> None:
        ran.append("fail")
        raise ValueError("recorded")

    @workflow
    async def flow() -> list[str]:
        try:
            await fail()
        except ValueError as error:
            return [str(error), await hold()]
        return []

    async with opened(store_url, HASTY) as first:
        run_id = await first.start(flow)
        await gate.reached.wait()
    gate.open()
    assert (await engine.run(flow, execution_id=run_id)).output == ["recorded", "held"]
    assert ran == ["fail", "hold", "hold"]


@pytest.mark.parametrize("recovery", ["safe", "idempotent", "manual"])
async def test_law_06_in_doubt_safe_and_idempotent_run_again_and_manual_stops(
    engine: Engine, store_url: str, recovery: str
):
    @step(name=f"laws.doubtful {recovery}", recovery=recovery)
    async def doubtful() -> str:
        ran.append(operation_id())
        await gate.stand()
        return "done"

    @workflow(name=f"laws.doubting {recovery}")
    async def flow() -> str:
        return await doubtful()

    async with opened(store_url, HASTY) as first:
        run_id = await first.start(flow)
        await gate.reached.wait()
    gate.open()
    if recovery == "manual":
        with pytest.raises(DurableRecoveryError) as caught:
            await engine.run(flow, execution_id=run_id)
        assert caught.value.operation_id == f"{run_id}/0"
        assert (await row_of(engine, run_id)).status == "needs_attention"
        assert ran == [f"{run_id}/0"]
    else:
        assert (await engine.run(flow, execution_id=run_id)).output == "done"
        assert ran == [f"{run_id}/0"] * 2


# --- 8. What went in comes out ------------------------------------------------------------------------


VALUES: list[Any] = [
    {"b": 1, "a": 2},
    {"a": {1: "one", None: "none", 2.5: "float"}},
    (1, (2, 3)),
    {1, 2, 3},
    b"\x00\xff",
    Decimal("0.10"),
    UUID(int=5),
    datetime(2024, 2, 29, 12, 30, 1, 5, tzinfo=UTC),
    timedelta(days=-1, microseconds=1),
    10**5000,
    -0.0,
    float("inf"),
    1e22,
    "nul \x00 and surrogate \ud800",
    "",
    None,
    True,
    [],
    {"$perdure": "looks like a tag"},
]


@pytest.mark.parametrize("value", VALUES, ids=[type(v).__name__ + str(n) for n, v in enumerate(VALUES)])
async def test_law_08_a_value_comes_back_equal_with_its_type_and_order(engine: Engine, value: Any):
    """Input, result of a step, output: at first execution and at replay, through another connection."""
    kept: list[Any] = []

    @workflow
    async def flow(given: Any) -> Any:
        kept.append([given, await note(given)])
        return kept[-1][1]

    first = await engine.run(flow, value, execution_id="r1")
    again = await other.run(flow, value, execution_id="r1")
    await other.fork(flow, "r1")
    wrong = [
        n for n, seen in enumerate((*kept[0], *kept[1], first.output, again.output)) if exact(seen) != exact(value)
    ]
    assert wrong == []


def exact(value: Any) -> Any:
    """Types and order included."""
    if isinstance(value, dict):
        return ["dict", *((exact(key), exact(item)) for key, item in value.items())]
    if isinstance(value, list | tuple):
        return [type(value).__name__, *(exact(item) for item in value)]
    return [type(value).__name__, repr(value) if isinstance(value, float) else value]


async def test_law_08_the_first_execution_sees_the_decoded_record_too(engine: Engine):
    """An object that the code goes on changing is not what was recorded, and not what the code gets."""
    made: list[list[int]] = []

    @step
    async def make() -> list[int]:
        made.append([1])
        return made[0]

    @workflow
    async def flow() -> list[Any]:
        found = await make()
        made[0].append(2)
        return [found, found is made[0]]

    assert (await engine.run(flow)).output == [[1], False]


async def test_law_08_what_cannot_be_recorded_fails_at_once_and_names_the_path(engine: Engine):
    @step
    async def make() -> Any:
        ran.append("body")
        return {"items": [1, {"price": object()}]}

    @workflow
    async def flow() -> None:
        await make()

    with pytest.raises(SerializationError, match=r"items\[1\]\.price") as caught:
        await engine.run(flow, execution_id="r1")
    assert caught.value.path
    with pytest.raises(SerializationError):
        await engine.run(flow, execution_id="r1")
    assert ran == ["body"], "recorded as the error it is: the effect is not repeated"


async def test_law_08_arguments_that_cannot_be_recorded_fail_before_the_body(engine: Engine):
    @workflow
    async def flow() -> str:
        try:
            await note(object())
        except SerializationError as error:
            return str(error)
        return ""

    assert "note" in (await engine.run(flow)).output
    assert ran == []


# --- 9. Storage is linear -----------------------------------------------------------------------------


async def test_law_09_twice_the_content_takes_at_most_twice_the_bytes(engine: Engine):
    """A growing list is passed on at every turn; interleaved branches do the same."""

    @step
    async def extend(so_far: list[str], n: int) -> str:
        return f"{n:04}" * 100

    @workflow
    async def flow(turns: int) -> int:
        async def branch() -> int:
            content: list[str] = []
            for n in range(turns):
                content.append(await extend(content, n))
            return len(content)

        return sum(await asyncio.gather(branch(), branch()))

    async def stored(turns: int) -> int:
        result = await engine.run(flow, turns)
        return sum(len(str(tuple(r))) for r in await records_of(engine, result.execution_id))

    small, large = await stored(10), await stored(40)
    assert large / small < 4.2


# --- 10. A fork touches nothing -----------------------------------------------------------------------


async def test_law_10_a_fork_touches_nothing_of_its_source_and_inherits_no_later_answer(engine: Engine):
    source = await engine.run(asking, execution_id="source")
    before = await records_of(engine, "source")
    fork = await engine.fork(asking, "source")
    assert await records_of(engine, "source") == before
    assert ids_of(fork) != ids_of(source)

    await engine.resume(asking, "source", resume_value=YES)
    late = await engine.fork(asking, "source", checkpoint_id=first_step(before))
    assert late.status == "paused", "the answer came after the fork point"

    await engine.resume(asking, fork.execution_id, resume_value=NO)
    assert (await engine.run(asking, execution_id="source")).output is True
    assert (await engine.run(asking, execution_id=fork.execution_id)).output is False
    assert ran == [1]


def first_step(records: list[Any]) -> int:
    return next(r.seq for r in records if r.type == "completed")


# --- 11. Bad input is refused at the door -------------------------------------------------------------


async def test_law_11_bad_input_is_refused_by_a_typed_error_with_nothing_stored(engine: Engine):
    @workflow
    async def no_input() -> None:
        return None

    attempts = [
        (echoing, object(), None, SerializationError),
        (echoing, {"deep": [object()]}, None, SerializationError),
        (no_input, 5, None, InvalidInputError),
        (echoing, 5, "", InvalidInputError),
        (echoing, 5, "a\nb", InvalidInputError),
        (echoing, 5, "x" * 1000, InvalidInputError),
        (echoing, 5, 7, InvalidInputError),
    ]
    for flow, value, run_id, error in attempts:
        with pytest.raises(error):
            await engine.run(flow, value, execution_id=run_id)  # type: ignore[arg-type]
    assert await engine.store.run_list(RunFilter()) == []
    assert ran == []


# --- 12. The event loop never waits -------------------------------------------------------------------


async def test_law_12_while_another_holds_the_write_lock_for_3_s_the_loop_goes_on(engine: Engine, store_url: str):
    """The one timed assertion: a heartbeat on the loop is never late by 50 ms because of Perdure.

    What the machine makes late does not count: a heartbeat in a thread beside it, at the same time, is the allowance.
    """
    run_id = await engine.start(holding)
    await gate.reached.wait()
    machine = ThreadBeat()
    with write_lock(store_url):
        gate.open()
        starts = [asyncio.ensure_future(engine.run(echoing, n)) for n in range(20)]
        late_s = await latest_beat_s(3.0)
    allowance_s = machine.stop()
    results = await asyncio.gather(*starts)
    assert [result.output for result in results] == list(range(20))
    assert (await engine.run(holding, execution_id=run_id)).output == [1, "held"]
    assert late_s < 0.05 + allowance_s


async def latest_beat_s(seconds: float) -> float:
    """By how much the latest beat of a 5 ms heartbeat on this loop came late."""
    late_s, end = 0.0, time.monotonic() + seconds
    while (now := time.monotonic()) < end:
        await asyncio.sleep(0.005)
        late_s = max(late_s, time.monotonic() - now - 0.005)
    return late_s


class ThreadBeat:
    """The same heartbeat in a thread of its own: late only when the whole process is."""

    def __init__(self) -> None:
        self._late_s = 0.0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._beat)
        self._thread.start()

    def stop(self) -> float:
        """The latest beat's delay, in seconds."""
        self._stopped.set()
        self._thread.join()
        return self._late_s

    def _beat(self) -> None:
        now = time.monotonic()
        while not self._stopped.wait(0.005):
            self._late_s = max(self._late_s, time.monotonic() - now - 0.005)
            now = time.monotonic()


# --- 13. Terminal is final ----------------------------------------------------------------------------


async def test_law_13_a_completed_run_is_not_changed_by_anything(engine: Engine):
    await engine.run(echoing, 1, execution_id="r1")
    before = await records_of(engine, "r1"), await row_of(engine, "r1")
    assert await engine.cancel("r1") == "completed"
    with pytest.raises(AlreadyResumed):
        await engine.resume(echoing, "r1", resume_value=YES)
    with pytest.raises(AlreadyResumed):
        await engine.retry(echoing, "r1")
    await engine.recover([echoing])
    assert (await records_of(engine, "r1"), await row_of(engine, "r1")) == before


async def test_law_13_a_cancelled_run_never_becomes_anything_else(engine: Engine):
    run_id = await engine.start(holding)
    await gate.reached.wait()
    await engine.cancel(run_id)
    await status_that(engine, run_id, "cancelled")
    gate.open()
    for call in (engine.resume, engine.retry):
        with pytest.raises(AlreadyResumed):
            await call(holding, run_id)
    await engine.recover([holding])
    assert (await row_of(engine, run_id)).status == "cancelled"


async def test_law_13_the_one_way_on_is_a_retry_of_a_failed_run_on_the_same_journal(engine: Engine):
    is_broken = [True]

    @workflow
    async def flow() -> str:
        await note(1)
        if is_broken[0]:
            raise ValueError("broken")
        return "mended"

    with pytest.raises(ValueError, match="broken"):
        await engine.run(flow, execution_id="r1")
    before = shape(await records_of(engine, "r1"))
    is_broken[0] = False
    assert (await engine.retry(flow, "r1")).output == "mended"
    assert shape(await records_of(engine, "r1"))[: len(before)] == before
    assert ran == [1]


async def test_law_13_a_lost_owner_cannot_end_the_run(engine: Engine):
    @workflow
    async def flow() -> str:
        return await hold()

    run_id = await engine.start(flow)
    await gate.reached.wait()
    drive = engine.host.drives[run_id]
    await other.store.run_claim(other.host.worker_id, run_ids=[run_id], dead_workers=[engine.host.worker_id])
    gate.open()
    await drive.ended
    assert (await row_of(other, run_id)).status == "running"


# --- the sentence of the README -----------------------------------------------------------------------


async def test_law_06_an_idempotent_functions_effect_happens_once_per_key(engine: Engine, store_url: str):
    @idempotent
    async def pay(order: str) -> str:
        ran.append(f"pay {order}")
        return f"receipt {order}"

    @workflow
    async def flow() -> list[str]:
        first = await pay("a")
        second = await pay("a")
        await hold()
        return [first, second, await pay("a")]

    async with opened(store_url, HASTY) as first:
        run_id = await first.start(flow)
        await gate.reached.wait()
    gate.open()
    assert (await engine.run(flow, execution_id=run_id)).output == ["receipt a"] * 3
    assert ran == ["pay a", "hold", "hold"]
