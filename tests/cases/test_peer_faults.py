"""What a package of this kind was seen to get wrong, each with the right behaviour as its assertion:
approvals and recovery."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import pydantic
import pytest
from tests.support import shop
from tests.support.child import child

import perdure
from perdure import (
    AlreadyResumed,
    AmbiguousAnswer,
    ChainCheckpointError,
    ChainResumeError,
    DurableRecoveryError,
    InterruptSignal,
    InvalidInputError,
    Resume,
    RunBusy,
    SerializationError,
    interrupt,
    open_engine,
    step,
    workflow,
)
from perdure.core.records import RunFilter


@pytest.fixture
def ledger(tmp_path: Path) -> str:
    return str(tmp_path / "ledger")


# --- A: approvals that are lost, or are given by nobody ---------------------------------------------------


async def test_peer_A1_crash_after_the_claim_keeps_the_approval(store_url: str, ledger: str) -> None:
    """Killed while the approved effect runs: whoever recovers knows the answer, and nobody is asked again."""
    async with open_engine(store_url) as engine:
        run_id = (await engine.run(shop.approve, {"ledger": ledger})).execution_id
    with child(
        "resume", store_url, hold=("before pay",), runner="shop_approve", execution_id=run_id,
        answer={"approved": True},
    ) as first:  # fmt: skip
        await asyncio.to_thread(first.expect, "holding before pay")
        first.kill()
    with child("work", store_url) as second:
        await asyncio.to_thread(second.result)
    async with open_engine(store_url) as engine:
        row = await engine.store.run_get(run_id)
        questions = await engine.store.interrupt_list(run_id=run_id, status=None)
    assert row is not None
    assert row.status == "completed"
    assert len(questions) == 1
    assert shop.effects(ledger) == ["prepare", "pay", "receipt"]


async def test_peer_A2_exception_after_the_approval_keeps_it(store_url: str) -> None:
    """What was approved fails once: going on tries again with the same approval."""
    attempts: list[bool] = []

    async def fragile(approved: bool) -> str:
        attempts.append(approved)
        if len(attempts) == 1:
            raise ConnectionError("gone")
        return "paid"

    @workflow
    async def pays(_: None) -> str:
        return await step(fragile, interrupt("pay?", {}).approved)

    async with open_engine(store_url) as engine:
        run_id = (await engine.run(pays)).execution_id
        with pytest.raises(ConnectionError):
            await engine.resume(pays, run_id, resume_value=Resume(approved=True))
        result = await engine.resume(pays, run_id)
        questions = await engine.store.interrupt_list(run_id=run_id, status=None)
    assert (result.output, attempts) == ("paid", [True, True])
    assert [row.status for row in questions] == ["answered"]


async def test_peer_A2_exception_in_the_body_that_asked_keeps_the_approval(store_url: str) -> None:
    """The same inside the very step that asked."""
    attempts: list[bool] = []

    async def asks_and_pays() -> str:
        attempts.append(interrupt("pay?", {}).approved)
        if len(attempts) == 1:
            raise ConnectionError("gone")
        return "paid"

    @workflow
    async def pays_inside(_: None) -> str:
        return await step(asks_and_pays)

    async with open_engine(store_url) as engine:
        run_id = (await engine.run(pays_inside)).execution_id
        with pytest.raises(ConnectionError):
            await engine.resume(pays_inside, run_id, resume_value=Resume(approved=True))
        result = await engine.retry(pays_inside, run_id)
        questions = await engine.store.interrupt_list(run_id=run_id, status=None)
    assert (result.output, attempts) == ("paid", [True, True])
    assert len(questions) == 1


async def test_peer_A4_other_workflow_cannot_consume_the_question(store_url: str, ledger: str) -> None:
    """A resume through another workflow is refused with nothing stored, and the question stays open."""
    async with open_engine(store_url) as engine:
        paused = await engine.run(shop.approve, {"ledger": ledger})
        run_id = paused.execution_id
        before = await engine.store.record_list(run_id)
        with pytest.raises(DurableRecoveryError, match="shop_approve"):
            await engine.resume(shop.three_effects, run_id, resume_value=Resume(approved=True))
        assert await engine.store.record_list(run_id) == before
        (question,) = await engine.store.interrupt_list(run_id=run_id)
        assert question.interrupt_id == paused.pending_interrupts[0]["interrupt_id"]
        result = await engine.resume(shop.approve, run_id, resume_value=Resume(approved=True))
    assert result.output == {"paid": True}


async def test_peer_A4_renamed_step_consumes_nothing(store_url: str) -> None:
    """Code in which the step before the question has another name is refused; the right code goes on with
    the answer."""
    ran: list[str] = []

    async def prepare() -> str:
        ran.append("prepare")
        return "ready"

    async def prepare_order() -> str:
        ran.append("prepare_order")
        return "ready"

    code = {"prepare": prepare}

    @workflow(name="a4_renamed")
    async def renamed(_: None) -> bool:
        await step(code["prepare"])
        return interrupt("go?", {}).approved

    async with open_engine(store_url) as engine:
        run_id = (await engine.run(renamed)).execution_id
        code["prepare"] = prepare_order
        with pytest.raises(DurableRecoveryError) as refused:
            await engine.resume(renamed, run_id, resume_value=Resume(approved=True))
        assert "prepare_order" in str(refused.value)
        (question,) = await engine.store.interrupt_list(run_id=run_id, status=None)
        assert question.delivered_at is None
        code["prepare"] = prepare
        result = await engine.resume(renamed, run_id)
    assert (result.output, ran) == (True, ["prepare"])


@pytest.mark.timeout(180)
def test_peer_A7_claims_from_several_processes(store_url: str, ledger: str) -> None:
    """Six processes answer at once: one goes on, five are told so, none meets a locked database, the run
    ends."""
    run_id = shop.approve.run({"ledger": ledger}, store=store_url).execution_id
    options: dict[str, Any] = {
        "runner": "shop_approve", "execution_id": run_id, "answer": {"approved": True}, "wait": True
    }  # fmt: skip
    with contextlib.ExitStack() as stack:
        children = [stack.enter_context(child("resume", store_url, **options)) for _ in range(6)]
        for one in children:
            one.expect("open")
        for one in children:
            one.go()
        for one in children:
            one.end()
        said = [one.lines[-1] for one in children]
    assert sorted(line.split()[0] for line in said) == ["error"] * 5 + ["result"], said
    assert all("AlreadyResumed" in line for line in said if line.startswith("error")), said
    assert shop.effects(ledger) == ["prepare", "pay", "receipt"]


@pytest.mark.parametrize("empty", [{}, True, "yes", 1, {"approved": True}], ids=repr)
async def test_peer_A8_nothing_but_a_resume_approves(store_url: str, ledger: str, empty: Any) -> None:
    """An empty or bare value is refused at the door and the question stays."""
    async with open_engine(store_url) as engine:
        run_id = (await engine.run(shop.approve, {"ledger": ledger})).execution_id
        before = await engine.store.record_list(run_id)
        with pytest.raises(perdure.PerdureError):
            await engine.resume(shop.approve, run_id, resume_value=empty)
        with pytest.raises(ChainResumeError):
            await engine.resume(shop.approve, run_id)
        assert await engine.store.record_list(run_id) == before
        assert len(await engine.store.interrupt_list(run_id=run_id)) == 1
    assert shop.effects(ledger) == ["prepare"]


def test_peer_A8_resume_has_no_default() -> None:
    """Approval is never what is left when nothing was said."""
    with pytest.raises(pydantic.ValidationError):
        Resume()  # type: ignore[call-arg]


# --- B: questions that are confused or swallowed ----------------------------------------------------------


async def test_peer_B1_two_questions_need_two_answers(store_url: str) -> None:
    """Two questions of one function are asked one after the other, and one answer is never both."""

    @workflow
    async def asks_twice(_: None) -> list[bool]:
        first = interrupt("first?", {})
        second = interrupt("second?", {})
        return [first.approved, second.approved]

    async with open_engine(store_url) as engine:
        paused = await engine.run(asks_twice)
        run_id = paused.execution_id
        assert [q["reason"] for q in paused.pending_interrupts] == ["first?"]
        paused = await engine.resume(asks_twice, run_id, resume_value=Resume(approved=True))
        assert [q["reason"] for q in paused.pending_interrupts] == ["second?"]
        result = await engine.resume(asks_twice, run_id, resume_value=Resume(approved=False))
    assert result.output == [True, False]


async def test_peer_B1_same_reason_twice_is_two_questions(store_url: str) -> None:
    """Also if both read alike, in a body and in a loop."""

    async def asks_alike() -> list[bool]:
        return [interrupt("sure?", {}).approved for _ in range(2)]

    @workflow
    async def asks_alike_run(_: None) -> list[bool]:
        return [interrupt("sure?", {}).approved, *(await step(asks_alike))]

    async with open_engine(store_url) as engine:
        result = await engine.run(asks_alike_run)
        run_id, seen = result.execution_id, set()
        for approved in (True, False, True):
            seen.add(result.pending_interrupts[0]["interrupt_id"])
            result = await engine.resume(asks_alike_run, run_id, resume_value=Resume(approved=approved))
    assert result.output == [True, False, True]
    assert len(seen) == 3


@pytest.mark.filterwarnings("ignore:.*asked a question and then:RuntimeWarning")
@pytest.mark.parametrize("is_sync", [False, True], ids=["async", "sync"])
async def test_peer_B5_swallowed_signal_pauses_all_the_same(store_url: str, is_sync: bool) -> None:
    """`except Exception` around a question in a body ends in one question and a paused run; nothing after
    it is recorded."""
    went_on: list[bool] = []

    def swallow() -> str:
        try:
            return f"approved {interrupt('go?', {}).approved}"
        except Exception:
            went_on.append(True)
            return "went on"

    async def swallow_async() -> str:
        return swallow()

    body = swallow if is_sync else swallow_async

    @workflow
    async def swallows(_: None) -> str:
        return await step(body)

    async with open_engine(store_url) as engine:
        paused = await engine.run(swallows)
        assert (paused.status, len(paused.pending_interrupts)) == ("paused", 1)
        result = await engine.resume(swallows, paused.execution_id, resume_value=Resume(approved=True))
    assert result.output == "approved True"
    assert went_on == [True]


async def test_peer_B5_handlers_in_workflow_code_never_see_a_question(store_url: str) -> None:
    """Nor do `except` and `else` of the workflow around a direct question or a step that asks."""
    seen: list[str] = []

    async def asks() -> bool:
        return interrupt("inner?", {}).approved

    @workflow
    async def guards(_: None) -> list[bool]:
        answers = []
        try:
            answers.append(interrupt("outer?", {}).approved)
            answers.append(await step(asks))
        except Exception as error:
            if not isinstance(error, InterruptSignal):
                seen.append(repr(error))
            raise
        return answers

    async with open_engine(store_url) as engine:
        run_id = (await engine.run(guards)).execution_id
        paused = await engine.resume(guards, run_id, resume_value=Resume(approved=True))
        assert paused.status == "paused"
        result = await engine.resume(guards, run_id, resume_value=Resume(approved=True))
    assert result.output == [True, True]
    assert seen == []


# --- C: recovery ------------------------------------------------------------------------------------------


async def test_peer_C4_failure_of_the_first_step_is_resumable(store_url: str) -> None:
    """The input is durable before the first step, so its failure can be mended and gone on from, in
    another process too."""
    fails = [True]

    async def first(order: dict[str, Any]) -> int:
        if fails.pop() if fails else False:
            raise LookupError("no stock")
        return order["amount"]

    @workflow
    async def starts(order: dict[str, Any]) -> int:
        return await step(first, order)

    async with open_engine(store_url) as engine:
        with pytest.raises(LookupError):
            await engine.run(starts, {"amount": 7}, execution_id="c4")
    async with open_engine(store_url) as engine:
        result = await engine.resume(starts, "c4")
    assert result.output == 7


async def test_peer_C4_kill_before_the_first_record_is_resumable(store_url: str, ledger: str) -> None:
    """Killed inside the first step: the run is there with its input, and ends."""
    with child(
        "run", store_url, hold=("before one",), runner="shop_three_effects", input={"ledger": ledger},
        execution_id="c4",
    ) as first:  # fmt: skip
        await asyncio.to_thread(first.expect, "holding before one")
        first.kill()
    async with open_engine(store_url) as engine:
        result = await engine.resume(shop.three_effects, "c4")
    assert result.output == ["one", "two", "three"]
    assert shop.effects(ledger) == ["one", "two", "three"]


async def test_peer_C5_three_resumers_one_payment(store_url: str, ledger: str) -> None:
    """Three resumers of one crashed run: it is paid once, and each gets the result or is told that
    somebody runs it."""
    with child(
        "run", store_url, hold=("before pay",), runner="shop_pay_again_run", execution_id="c5",
        input={"ledger": ledger, "amount": 5},
    ) as first:  # fmt: skip
        await asyncio.to_thread(first.expect, "holding before pay")
        first.kill()
    with contextlib.ExitStack() as stack:
        options: dict[str, Any] = {"runner": "shop_pay_again_run", "execution_id": "c5", "wait": True}
        children = [stack.enter_context(child("resume", store_url, **options)) for _ in range(3)]
        for one in children:
            await asyncio.to_thread(one.expect, "open")
        for one in children:
            one.go()
        for one in children:
            await asyncio.to_thread(one.end)
        said = [one.lines[-1] for one in children]
    results = [line for line in said if line.startswith("result")]
    assert results, said
    assert all('"output": 5' in line for line in results), said
    refused = [line for line in said if not line.startswith("result")]
    assert all("RunBusy" in line or "AlreadyResumed" in line for line in refused), said
    assert shop.effects(ledger) == ["pay 5", "receipt"]


async def test_peer_C5_live_run_is_not_resumed(store_url: str, ledger: str) -> None:
    """A run that a live process is running: resume is refused with `RunBusy`, and it goes on where it is."""
    with child(
        "run", store_url, hold=("before one",), runner="shop_three_effects", input={"ledger": ledger},
        execution_id="c5",
    ) as owner:  # fmt: skip
        await asyncio.to_thread(owner.expect, "holding before one")
        async with open_engine(store_url) as engine:
            with pytest.raises(RunBusy):
                await engine.resume(shop.three_effects, "c5")
            with pytest.raises(AlreadyResumed):
                await engine.resume(shop.three_effects, "c5", resume_value=Resume(approved=True))
        owner.go()
        result = await asyncio.to_thread(owner.result)
    assert result["output"] == ["one", "two", "three"]
    assert shop.effects(ledger) == ["one", "two", "three"]


async def test_peer_C5_live_run_resumed_in_its_own_process(store_url: str) -> None:
    """The same within one process."""
    inside, go = asyncio.Event(), asyncio.Event()

    async def waits() -> str:
        inside.set()
        await go.wait()
        return "done"

    @workflow
    async def is_live(_: None) -> str:
        return await step(waits)

    async with open_engine(store_url) as engine:
        running = asyncio.create_task(engine.run(is_live, execution_id="c5"))
        await inside.wait()
        with pytest.raises(RunBusy):
            await engine.resume(is_live, "c5")
        go.set()
        assert (await running).output == "done"


async def test_peer_C11_clock_skew_hides_no_finished_run(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What happened last is decided by the run's own sequence: with clocks off by an hour a finished run
    stays finished."""
    import time  # patched below

    async def work(n: int) -> int:
        return n

    @workflow
    async def short(_: None) -> int:
        answer = interrupt("go?", {})
        return await step(work, int(answer.approved))

    real = time.time
    async with open_engine(store_url) as engine:
        run_id = (await engine.run(short)).execution_id
    monkeypatch.setattr(time, "time", lambda: real() - 3600)
    async with open_engine(store_url) as engine:
        await engine.resume(short, run_id, resume_value=Resume(approved=True))
    monkeypatch.setattr(time, "time", lambda: real() + 3600)
    async with open_engine(store_url) as engine:
        with pytest.raises(AlreadyResumed):
            await engine.resume(short, run_id)
        assert (await engine.run(short, execution_id=run_id)).output == 1
        records = await engine.store.record_list(run_id)
    assert [record.seq for record in records] == list(range(1, len(records) + 1))
    assert (records[-1].type, records[-1].outcome) == ("status", "completed")


# --- E: values, growth, the loop --------------------------------------------------------------------------


async def test_peer_E1_unstorable_result_is_an_error_and_not_repeated(store_url: str) -> None:
    """A result that cannot be recorded is recorded as the error it is, with its path: recovery does not
    run the effect again."""
    ran: list[int] = []

    async def returns_a_socket_like() -> dict[str, Any]:
        ran.append(1)
        return {"items": [1, object()]}

    @workflow
    async def handles(_: None) -> str:
        try:
            await step(returns_a_socket_like)
        except SerializationError as error:
            caught = error.path
        approved = interrupt("go on?", {}).approved
        return f"{caught} {approved}"

    async with open_engine(store_url) as engine:
        run_id = (await engine.run(handles)).execution_id
    async with open_engine(store_url) as engine:
        result = await engine.resume(handles, run_id, resume_value=Resume(approved=True))
    assert "items[1]" in result.output
    assert ran == [1]


async def test_peer_E1_unstorable_argument_fails_before_the_effect(store_url: str) -> None:
    """An argument without a recordable form raises at the call."""
    ran: list[int] = []

    async def takes(value: Any) -> None:
        ran.append(1)

    @workflow
    async def passes(_: None) -> None:
        await step(takes, object())

    async with open_engine(store_url) as engine:
        with pytest.raises(SerializationError, match="takes"):
            await engine.run(passes)
        with pytest.raises(SerializationError):
            await engine.run(shop.three_effects, {"ledger": object()})
        runs = await engine.store.run_list(RunFilter())
    assert ran == []
    assert [row.status for row in runs] == ["failed"]


async def test_peer_E2_growth_is_linear(store_url: str) -> None:
    """Twice the steps store at most about twice the bytes: nothing accumulates into every record."""
    payload = "x" * 2000

    async def grow(previous: str) -> str:
        return payload

    @workflow
    async def grows(count: int) -> int:
        history = []
        for _ in range(count):
            history.append(await step(grow, history[-1] if history else ""))
        return sum(map(len, history))

    async def stored(count: int) -> int:
        async with open_engine(store_url) as engine:
            run_id = (await engine.run(grows, count)).execution_id
            records = await engine.store.record_list(run_id, limit=10_000)
        return sum(len(record.data or "") for record in records)

    small, large = await stored(50), await stored(100)
    assert large < 2.2 * small
    assert large < 100 * len(payload) * 1.5


async def test_peer_E3_loop_goes_on_while_the_database_is_locked(tmp_path: Path) -> None:
    """Another process holds SQLite's write lock: our loop turns as before, and the run goes on once the
    lock is free."""
    path = tmp_path / "perdure.db"

    async def work() -> str:
        return "done"

    @workflow
    async def waits_for_disk(_: None) -> str:
        return await step(work)

    async with open_engine(f"sqlite:///{path}") as engine:
        other = sqlite3.connect(path, isolation_level=None)
        try:
            other.execute("BEGIN IMMEDIATE")
            running = asyncio.create_task(engine.run(waits_for_disk))
            # If anything waited for the lock on the loop, the lock would never be given back.
            for _ in range(200):
                await asyncio.sleep(0.001)
            assert not running.done()
            other.execute("ROLLBACK")
        finally:
            other.close()
        assert (await running).output == "done"


@pytest.mark.timeout(180)
def test_peer_E5_concurrent_first_use(store_url: str, ledger: str) -> None:
    """Six processes use an empty store for the first time at once: all of them work."""
    with contextlib.ExitStack() as stack:
        children = [
            stack.enter_context(
                child(
                    "run",
                    store_url,
                    runner="shop_burst",
                    input={"ledger": ledger, "steps": 2, "name": str(n)},
                )
            )
            for n in range(6)
        ]
        results = [one.result() for one in children]
    assert [result["status"] for result in results] == ["completed"] * 6
    assert sorted(shop.effects(ledger)) == sorted(f"{n}:{k}" for n in range(6) for k in range(2))


def test_peer_E7_unknown_fields_are_dropped_loudly() -> None:
    """A field that a `Resume` does not have is dropped with a warning that names it."""
    with pytest.warns(UserWarning, match="reviewer"):
        answer = Resume(approved=True, reviewer="ann")  # type: ignore[call-arg]
    assert not hasattr(answer, "reviewer")


@pytest.mark.parametrize("approved", ["yes", "true", 1, 0, None, [], "no"], ids=repr)
def test_peer_E7_approved_is_a_bool(approved: Any) -> None:
    """Nothing that merely looks like a yes is one."""
    with pytest.raises(pydantic.ValidationError):
        Resume(approved=approved)


async def test_peer_E7_metadata_reaches_the_code(store_url: str) -> None:
    """What the approver added arrives as it was given."""
    said = {"note": "ok", "limit": 12, "items": [1, {"a": None}], "ü": "\x00"}

    @workflow
    async def reads(_: None) -> dict[str, Any]:
        return interrupt("go?", {}).metadata

    async with open_engine(store_url) as engine:
        run_id = (await engine.run(reads)).execution_id
        result = await engine.resume(reads, run_id, resume_value=Resume(approved=True, metadata=said))
    assert result.output == said


async def test_peer_errors_of_resume(store_url: str, ledger: str) -> None:
    """Unknown id, ambiguous answers, a finished run: each its own error, with nothing changed."""
    async with open_engine(store_url) as engine:
        with pytest.raises(ChainCheckpointError):
            await engine.resume(shop.approve, "nowhere", resume_value=Resume(approved=True))
        paused = await engine.run(shop.three_questions, {"tools": ["a", "b"]})
        with pytest.raises(AmbiguousAnswer):
            await engine.resume(shop.three_questions, paused.execution_id, resume_value=Resume(approved=True))
        with pytest.raises(InvalidInputError):
            await engine.resume(shop.three_questions, paused.execution_id, resume_value={})
        done = await engine.run(shop.three_effects, {"ledger": ledger})
        for value in (None, Resume(approved=True)):
            with pytest.raises(AlreadyResumed):
                await engine.resume(shop.three_effects, done.execution_id, resume_value=value)
