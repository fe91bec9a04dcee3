"""Runs over a third party's checkpointer: what lasts, what people see of it, questions, owners, failures."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from tests.checkpointers.conftest import Opener
from tests.checkpointers.flows import (
    NO,
    YES,
    asking,
    asking_all,
    asking_oddly,
    did,
    echo,
    failing,
    gates,
    holding,
    steps,
)
from tests.support.engines import HASTY, opened, records_of, row_of
from tests.support.third_party import FileCheckpointer, opened_over

from perdure import open_engine
from perdure.chain.checkpoint import is_run_end, latest_forkable, latest_resumable
from perdure.checkpointers import ForeignCheckpointerWarning, ForeignStore, MemoryCheckpointer, open_foreign
from perdure.checkpointers.protocol import Checkpoint, PendingInterrupt
from perdure.checkpointers.sqlite import SQLiteCheckpointer
from perdure.core import checkpoints
from perdure.core.records import Record, RunFilter
from perdure.errors import (
    AlreadyResumed,
    ChainCheckpointError,
    DurableConflictError,
    DurableRecoveryError,
    DurableStorageError,
    InvalidInputError,
)
from perdure.store.kept import PruneRequest


async def reopened(store: ForeignStore, open_store: Opener, **kind: Any) -> ForeignStore:
    """The process ends, and another one begins."""
    await store.close()
    return await asyncio.to_thread(open_store, *kind.values())


# --- what lasts -----------------------------------------------------------------------------------------


async def test_a_run_goes_on_in_a_new_process_from_its_rows(open_store: Opener) -> None:
    store = await asyncio.to_thread(open_store)
    async with opened(store) as engine:
        paused = await engine.run(asking, 7, execution_id="r1")
    store = await reopened(store, open_store)
    async with opened(store) as engine:
        assert (await engine.run(asking, 7, execution_id="r1")).pending_interrupts == paused.pending_interrupts
        assert (await engine.resume(asking, "r1", resume_value=YES)).output == [7, True, -7]
    assert did == [7, -7]


async def test_a_run_whose_process_died_goes_on_when_it_is_named(open_store: Opener) -> None:
    """Its rows say that somebody runs it, who is nobody to the next process."""
    first = await asyncio.to_thread(open_store)
    async with opened(first, HASTY) as engine:
        await engine.start(holding, execution_id="r1")
        await gates[-1].reached.wait()
        second = await asyncio.to_thread(open_store)
        async with opened(second) as heir:
            assert (await row_of(heir, "r1")).worker_id is None
            gates[-1].open()
            assert (await heir.run(holding, execution_id="r1")).output == ["before", "held", "after"]
    assert did.count("before") == 1


async def test_a_finished_run_is_read_again_with_its_result(open_store: Opener) -> None:
    store = await asyncio.to_thread(open_store)
    async with opened(store) as engine:
        await engine.run(steps, 3, execution_id="r1")
    store = await reopened(store, open_store)
    async with opened(store) as engine:
        assert (await engine.run(steps, 3, execution_id="r1")).output == [0, 1, 2]
        with pytest.raises(DurableConflictError):
            await engine.run(steps, 4, execution_id="r1")
        with pytest.raises(AlreadyResumed):
            await engine.resume(steps, "r1")
    assert did == [0, 1, 2]


async def test_a_failed_run_is_retried_in_a_new_process(open_store: Opener) -> None:
    store = await asyncio.to_thread(open_store)
    async with opened(store) as engine:
        with pytest.raises(ValueError, match="no luck"):
            await engine.run(failing, execution_id="r1")
    store = await reopened(store, open_store)
    async with opened(store) as engine:
        with pytest.raises(ValueError, match="no luck"):
            await engine.retry(failing, "r1")
        assert (await row_of(engine, "r1")).attempt == 2
    assert did == [1, "failed", "failed"]


@pytest.mark.parametrize(
    "value",
    ["a\0b", "\ud800", "😀", {"b": 1, "a": [1.0, -0.0, 10**40, None]}, {"$type": "x"}, (1, {2}, b"\xff"), "\\u0000"],
    ids=["nul", "surrogate", "pair", "numbers", "tag", "types", "escape"],
)
async def test_what_goes_in_comes_out_in_a_new_process(open_store: Opener, value: Any) -> None:
    store = await asyncio.to_thread(open_store)
    async with opened(store) as engine:
        first = await engine.run(echo, value, execution_id="r1")
    store = await reopened(store, open_store)
    async with opened(store) as engine:
        again = await engine.run(echo, value, execution_id="r1")
        fork = await engine.fork(echo, "r1")
    assert repr(first.output) == repr(again.output) == repr(fork.output) == repr(value)


async def test_runs_that_ended_are_not_all_remembered_and_read_when_they_are_named(open_store: Opener) -> None:
    store = await asyncio.to_thread(open_store)
    async with opened(store) as engine:
        for number in range(205):
            await engine.run(steps, 0, execution_id=f"r{number}")
        known = {run.run_id for run in await store.run_list(RunFilter(limit=1000))}
        assert len(known) == 200
        assert "r0" not in known
        assert (await engine.run(steps, 0, execution_id="r0")).output == []
        assert (await store.record_list("r1"))[-1].outcome == "completed"


async def test_an_execution_that_was_deleted_is_unknown(open_store: Opener, looker: FileCheckpointer) -> None:
    store = await asyncio.to_thread(open_store)
    async with opened(store) as engine:
        await engine.run(steps, 1, execution_id="r1")
        looker.delete_execution("r1")
        with pytest.raises(ChainCheckpointError):
            await engine.resume(steps, "r1")
        assert (await engine.run(steps, 2, execution_id="r1")).output == [0, 1]


# --- what people see ------------------------------------------------------------------------------------


async def test_rows_are_what_people_expect_of_checkpoints(open_store: Opener, looker: FileCheckpointer) -> None:
    store = await asyncio.to_thread(open_store)
    async with opened(store) as engine:
        await engine.run(asking, 7, execution_id="r1")
        await engine.resume(asking, "r1", resume_value=YES)
    rows = looker.list("r1", limit=1000)
    assert [(r.node_id, r.step_type, r.status, r.node_output) for r in rows if r.node_id] == [
        ("foreign.note", "node", "completed", 7),
        ("go on?", "hitl_pause", "interrupted", {}),
        ("go on?", "hitl_pause", "completed", {"approved": True, "metadata": {}}),
        ("foreign.note", "node", "completed", -7),
        ("run_end", "run_end", "completed", [7, True, -7]),
    ]
    assert [r.parent_checkpoint_id for r in rows] == [None, *(r.checkpoint_id for r in rows[:-1])]
    assert [r.node_index for r in rows] == list(range(len(rows)))
    assert {(r.chain_name, r.execution_id) for r in rows} == {("foreign.asking", "r1")}
    (asked,) = [r for r in rows if r.interrupt_reason]
    assert (asked.interrupt_reason, asked.interrupt_context) == ("go on?", {"n": 7})
    assert rows[0].node_input == {"input": 7}
    assert all(r.created_at.endswith("+00:00") for r in rows)


async def test_every_row_of_a_node_can_be_forked_by_its_id(open_store: Opener, looker: FileCheckpointer) -> None:
    store = await asyncio.to_thread(open_store)
    async with opened(store) as engine:
        await engine.run(asking, 7, execution_id="r1")
        await engine.resume(asking, "r1", resume_value=NO)
        ids = [row.checkpoint_id for row in looker.list("r1", limit=1000) if row.node_id]
        assert ids == [each.checkpoint_id for each in checkpoints.checkpoints(await store.run_load("r1"))]
        paused = await engine.fork(asking, "r1", checkpoint_id=ids[0], new_id="again")
        assert paused.status == "paused"
        branch = looker.list("again")[0]
        assert (branch.step_type, branch.parent_checkpoint_id) == ("fork_origin", ids[0])
        assert (await engine.fork(asking, "r1", checkpoint_id=ids[2])).output == [7, False, -7]
        with pytest.raises(ChainCheckpointError):
            await engine.fork(asking, "r1", checkpoint_id=ids[-1])
    assert did == [7, -7, -7]


@pytest.mark.parametrize(("act", "status"), [("answer", "completed"), ("cancel", "cancelled")])
async def test_the_last_row_is_the_end_and_says_so(
    open_store: Opener, looker: FileCheckpointer, act: str, status: str
) -> None:
    store = await asyncio.to_thread(open_store)
    async with opened(store) as engine:
        await engine.run(asking, 7, execution_id="r1")
        assert (latest_resumable(looker, "r1") or Checkpoint()).node_id == "go on?"
        if act == "answer":
            await engine.resume(asking, "r1", resume_value=YES)
        else:
            await engine.cancel("r1")
    last = looker.get_last("r1")
    assert last is not None
    assert is_run_end(last)
    assert last.status == status
    with pytest.raises(AlreadyResumed):
        latest_resumable(looker, "r1")
    assert (latest_forkable(looker, "r1") or Checkpoint()).node_id == ("foreign.note" if act == "answer" else "go on?")


async def test_the_end_of_a_failed_run_is_stepped_over(open_store: Opener, looker: FileCheckpointer) -> None:
    store = await asyncio.to_thread(open_store)
    async with opened(store) as engine:
        with pytest.raises(ValueError, match="no luck"):
            await engine.run(failing, execution_id="r1")
    last = latest_resumable(looker, "r1")
    assert last is not None
    assert (last.node_id, last.status) == ("foreign.fail", "failed")


async def test_rows_take_no_more_room_the_longer_a_run_is(open_store: Opener, looker: FileCheckpointer) -> None:
    store = await asyncio.to_thread(open_store)
    async with opened(store) as engine:
        for count in (50, 200):
            await engine.run(steps, count, execution_id=f"of {count}")
    sizes = {n: sum(len(row.model_dump_json()) for row in looker.list(f"of {n}", limit=1000)) for n in (50, 200)}
    assert sizes[200] < 4.5 * sizes[50]


# --- questions ------------------------------------------------------------------------------------------


async def test_a_question_is_pending_together_with_its_row(open_store: Opener, looker: FileCheckpointer) -> None:
    store = await asyncio.to_thread(open_store)
    async with opened(store) as engine:
        paused = await engine.run(asking, 7, execution_id="r1")
        (pending,) = looker.list_pending_interrupts()
        assert paused.pending_interrupt is not None
        assert pending.model_dump() | {"created_at": ""} == {
            "execution_id": "r1", "chain_name": "foreign.asking", "node_id": "go on?", "reason": "go on?",
            "context": {"n": 7}, "agent_path": None, "created_at": "",
            "interrupt_id": paused.pending_interrupt["interrupt_id"],
        }  # fmt: skip
        await engine.resume(asking, "r1", resume_value=YES)
        assert looker.list_pending_interrupts() == []


async def test_open_questions_are_asked_one_after_the_other(open_store: Opener, looker: FileCheckpointer) -> None:
    store = await asyncio.to_thread(open_store)
    asked: list[Any] = []
    async with opened(store) as engine:
        result = await engine.run(asking_all, execution_id="r1")
        while result.status == "paused":
            (question,) = result.pending_interrupts
            (pending,) = looker.list_pending_interrupts()
            assert (question["context"], question["interrupt_id"]) == (pending.context, pending.interrupt_id)
            asked.append(question["context"]["name"])
            result = await engine.resume(asking_all, "r1", resume_value=YES if asked[-1] != "b" else NO)
    assert asked == ["a", "b", "c"]
    assert result.output == [True, False, True]
    assert looker.list_pending_interrupts() == []


async def test_the_end_of_a_run_leaves_no_question_pending(open_store: Opener, looker: FileCheckpointer) -> None:
    store = await asyncio.to_thread(open_store)
    async with opened(store) as engine:
        await engine.run(asking_all, execution_id="r1")
        assert await engine.cancel("r1") == "cancelled"
    assert looker.list_pending_interrupts() == []


async def test_questions_of_other_processes_are_found(open_store: Opener, looker: FileCheckpointer) -> None:
    first, second = [await asyncio.to_thread(open_store) for _ in range(2)]
    async with opened(first) as engine:
        await engine.run(asking, 1, execution_id="r1")
        await engine.run(asking, 2, execution_id="r2")
    assert [row.run_id for row in await second.interrupt_list(limit=1)] == ["r1"]
    assert [row.run_id for row in await second.interrupt_list()] == ["r1", "r2"]
    looker.db.execute("DELETE FROM checkpoints WHERE id = 'r1:1'")
    third = await asyncio.to_thread(open_store)
    assert [row.run_id for row in await third.interrupt_list()] == ["r2"]  # one that cannot be read hides no other


class FailsToClaim(FileCheckpointer):
    """Dies, as it were, between an answer and its claim."""

    is_down = False

    def delete_pending_interrupt_atomic(self, execution_id: str) -> PendingInterrupt | None:
        if self.is_down:
            raise OSError("gone")
        return super().delete_pending_interrupt_atomic(execution_id)


async def test_a_crash_between_answer_and_claim_loses_nothing(open_store: Opener, looker: FileCheckpointer) -> None:
    store = await asyncio.to_thread(open_store, FailsToClaim)
    async with opened(store) as engine:
        await engine.run(asking_all, execution_id="r1")
        store.checkpointer.is_down = True  # type: ignore[attr-defined]
        await engine.answer("r1", NO)
        assert [each.context for each in looker.list_pending_interrupts()] == [{"name": "a"}]
    store = await reopened(store, open_store)
    async with opened(store) as engine:
        (question,) = await store.interrupt_list(run_id="r1")
        assert question.context == '{"name":"b"}'
        assert [each.context for each in looker.list_pending_interrupts()] == [{"name": "b"}]
        await engine.resume(asking_all, "r1", resume_value=YES)
        assert (await engine.resume(asking_all, "r1", resume_value=YES)).output == [False, True, True]


async def test_an_answer_counts_though_somebody_took_the_pending_row(
    open_store: Opener, looker: FileCheckpointer
) -> None:
    """Who has put the row has answered; a claim without an answer decides nothing."""
    store = await asyncio.to_thread(open_store)
    async with opened(store) as engine:
        await engine.run(asking, 7, execution_id="r1")
        assert looker.delete_pending_interrupt_atomic("r1") is not None
        assert (await engine.resume(asking, "r1", resume_value=YES)).output == [7, True, -7]


async def test_of_two_processes_that_answer_one_has_answered(open_store: Opener) -> None:
    stores = [await asyncio.to_thread(open_store) for _ in range(3)]
    async with opened(stores[0]) as engine:
        paused = await engine.run(asking, 7, execution_id="r1")
    assert paused.pending_interrupt is not None
    question = paused.pending_interrupt["interrupt_id"]
    for store in stores:
        await store.run_load("r1")  # all know it as it was
    outcomes = await asyncio.gather(
        *(store.interrupt_answer("r1", {question: f'"{n}"'}) for n, store in enumerate(stores)), return_exceptions=True
    )
    winners = [n for n, outcome in enumerate(outcomes) if not isinstance(outcome, BaseException)]
    losers = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    assert len(winners) == 1
    assert all(isinstance(loser, AlreadyResumed) for loser in losers)
    for store in stores:
        (row,) = (await store.run_load("r1")).interrupts
        assert row.answer == f'"{winners[0]}"'


async def test_questions_may_hold_what_a_backend_stumbles_over(open_store: Opener, looker: FileCheckpointer) -> None:
    store = await asyncio.to_thread(open_store)
    async with opened(store) as engine:
        paused = await engine.run(asking_oddly, execution_id="r1")
        assert paused.pending_interrupt is not None
        assert paused.pending_interrupt["reason"] == "go \0 on \ud800"
        (pending,) = looker.list_pending_interrupts()
        assert pending.reason == "go \\x00 on \\ud800"
        assert pending.context == {"encoded": '{"what":"\\u0000"}'}
        assert (await engine.resume(asking_oddly, "r1", resume_value=YES)).output is True


# --- owners ---------------------------------------------------------------------------------------------


async def test_an_owner_that_was_overtaken_records_nothing_more(open_store: Opener) -> None:
    """Each row's id is known beforehand, so the slower one finds it taken."""
    first, second = [await asyncio.to_thread(open_store) for _ in range(2)]
    async with opened(first) as owner, opened(second) as taker:
        mine = asyncio.ensure_future(owner.run(holding, execution_id="r1"))
        await gates[-1].reached.wait()
        old = gates[-1]
        gates.append(type(old)())
        gates[-1].open()
        assert (await taker.run(holding, execution_id="r1")).output == ["before", "held", "after"]
        count = len(await records_of(taker, "r1"))
        old.open()
        assert (await mine).output == ["before", "held", "after"]
        assert "r1" not in owner.host.drives
        assert len(await records_of(owner, "r1")) == len(await records_of(taker, "r1")) == count
    assert did == ["before", "held", "after", "held"]


async def test_engines_of_one_process_share_one_owner_table(open_store: Opener) -> None:
    store = await asyncio.to_thread(open_store)
    assert await asyncio.to_thread(opened_over, store.checkpointer) is store
    async with opened(store) as one, opened(store) as other:
        run_id = await one.start(holding)
        await gates[-1].reached.wait()
        waiting = asyncio.ensure_future(other.run(holding, execution_id=run_id))
        assert (await row_of(other, run_id)).worker_id == one.host.worker_id
        gates[-1].open()
        assert (await waiting).output == ["before", "held", "after"]
    assert did == ["before", "held", "after"]


async def test_nobodys_run_is_cancelled_at_once(open_store: Opener) -> None:
    first, second = [await asyncio.to_thread(open_store) for _ in range(2)]
    async with opened(first, HASTY) as owner, opened(second) as other:
        await owner.start(holding, execution_id="r1")
        await gates[-1].reached.wait()
        assert await other.cancel("r1") == "cancelled"
        gates[-1].open()
        assert (await row_of(owner, "r1")).status in ("running", "cancelled")
    assert (await second.run_load("r1")).run.status == "cancelled"


async def test_a_persons_patch_is_a_row(open_store: Opener) -> None:
    store = await asyncio.to_thread(open_store)
    async with opened(store) as engine:
        await engine.run(asking, 7, execution_id="r1")
    await store.run_patch("r1", [Record("patched", data='{"a":1}', state='{"whole":1}')])
    store = await reopened(store, open_store)
    last = (await store.run_load("r1")).records[-1]
    assert (last.type, last.data, last.state) == ("patched", '{"a":1}', '{"whole":1}')


# --- failures -------------------------------------------------------------------------------------------


class Flaky(FileCheckpointer):
    """Fails at the n-th row, before or after it is stored; `get_by_id` fails with it if it is down altogether."""

    fails_at = stored_at = -1
    is_down = False
    count = 0

    def put(self, checkpoint: Checkpoint) -> None:
        self.count += 1
        if self.count == self.fails_at:
            raise OSError("disk full")
        super().put(checkpoint)
        if self.count == self.stored_at:
            raise TimeoutError("no reply")

    def get_by_id(self, execution_id: str, checkpoint_id: str) -> Checkpoint | None:
        if self.is_down:
            self.is_down = False
            raise OSError("no route")
        return super().get_by_id(execution_id, checkpoint_id)


def flaky(**values: Any) -> Callable[[str], Flaky]:
    def make(path: str) -> Flaky:
        checkpointer = Flaky(path)
        vars(checkpointer).update(values)
        return checkpointer

    return make


async def test_a_row_that_cannot_be_put_refuses_its_run_and_nothing_of_it_is_known(open_store: Opener) -> None:
    store = await asyncio.to_thread(open_store, flaky(fails_at=1))
    async with opened(store) as engine:
        with pytest.raises(DurableStorageError, match=r"put\(\) of foreign:Flaky failed: OSError: disk full") as caught:
            await engine.run(steps, 1, execution_id="r1")
        assert isinstance(caught.value.__cause__, OSError)
        assert await store.run_get("r1") is None
        assert (await engine.run(steps, 1, execution_id="r1")).output == [0]


@pytest.mark.parametrize("fails_at", range(2, 6))
async def test_a_run_goes_on_when_the_checkpointer_is_back(open_store: Opener, fails_at: int) -> None:
    store = await asyncio.to_thread(open_store, flaky(fails_at=fails_at))
    async with opened(store) as engine:
        with pytest.raises(DurableStorageError):
            await engine.run(steps, 3, execution_id="r1")
        assert (await engine.run(steps, 3, execution_id="r1")).output == [0, 1, 2]
    assert sorted(set(did)) == [0, 1, 2]


@pytest.mark.parametrize("is_down", [False, True])
@pytest.mark.parametrize("stored_at", range(1, 6))
async def test_a_row_that_was_stored_though_put_failed_is_found_out(
    open_store: Opener, looker: FileCheckpointer, stored_at: int, is_down: bool
) -> None:
    store = await asyncio.to_thread(open_store, flaky(stored_at=stored_at, is_down=is_down))
    async with opened(store) as engine:
        try:
            result = await engine.run(steps, 3, execution_id="r1")
        except DurableStorageError:
            assert is_down
            result = await engine.run(steps, 3, execution_id="r1")
    assert result.output == [0, 1, 2]
    firsts = [record.seq for record in await store.record_list("r1")]
    assert firsts == list(range(1, len(firsts) + 1))
    assert looker.get_by_id("r1", f"r1:{firsts[-1]}") is not None


async def test_an_outside_write_that_fails_changes_nothing(open_store: Opener) -> None:
    store = await asyncio.to_thread(open_store, Flaky)
    async with opened(store) as engine:
        await engine.run(asking, 7, execution_id="r1")
        checkpointer = store.checkpointer
        assert isinstance(checkpointer, Flaky)
        checkpointer.fails_at = checkpointer.count + 1
        with pytest.raises(DurableStorageError):
            await engine.answer("r1", YES)
        assert (await row_of(engine, "r1")).status == "waiting"
        assert (await engine.resume(asking, "r1", resume_value=NO)).output == [7, False, -7]


class OneThread(FileCheckpointer):
    """Notes which threads call it."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.threads: set[int] = set()

    def __getattribute__(self, name: str) -> Any:
        if name in ("setup", "put", "get_last", "list", "record_interrupt", "delete_pending_interrupt_atomic"):
            self.threads.add(threading.get_ident())
        return super().__getattribute__(name)


async def test_every_call_is_made_in_one_thread_that_is_not_the_loops(open_store: Opener) -> None:
    store = await asyncio.to_thread(open_store, OneThread)
    checkpointer = store.checkpointer
    assert isinstance(checkpointer, OneThread)
    checkpointer.threads.clear()  # what asked whether it has the methods
    async with opened(store) as engine, opened(store) as other:
        await asyncio.gather(*(engine.run(asking, n, execution_id=f"r{n}") for n in range(5)))
        await asyncio.gather(*(other.resume(asking, f"r{n}", resume_value=YES) for n in range(5)))
        await store.interrupt_list()
    assert len(checkpointer.threads) == 1
    assert threading.get_ident() not in checkpointer.threads


# --- opening --------------------------------------------------------------------------------------------


def test_who_opens_one_is_warned_of_what_is_not_promised(path: str) -> None:
    checkpointer = FileCheckpointer(path)
    with pytest.warns(ForeignCheckpointerWarning, match="FileCheckpointer drives runs in this process only"):
        store = open_foreign(checkpointer)
    assert open_foreign(checkpointer) is store  # and is warned once
    store.close_now()


def test_a_closed_store_is_opened_anew(path: str) -> None:
    checkpointer = FileCheckpointer(path)
    first = opened_over(checkpointer)
    first.close_now()
    second = opened_over(checkpointer)
    assert second is not first
    second.close_now()


def test_an_object_without_the_methods_is_refused() -> None:
    class Half:
        def put(self, checkpoint: Checkpoint) -> None: ...

    with pytest.raises(InvalidInputError, match=r"Half has no delete_execution, .*setup"):
        open_foreign(Half())  # type: ignore[arg-type]


def test_a_checkpointer_with_a_store_of_its_own_is_refused(path: str) -> None:
    with pytest.raises(InvalidInputError, match="has a store of its own"):
        open_foreign(SQLiteCheckpointer(path))


async def test_what_the_checkpointer_does_itself_is_refused(open_store: Opener) -> None:
    store = await asyncio.to_thread(open_store)
    with pytest.raises(DurableStorageError, match="use the checkpointer itself"):
        store.maintenance.prune(PruneRequest(older_than_s=0.0))


def test_a_checkpointer_that_cannot_be_set_up_is_not_opened() -> None:
    with pytest.raises(DurableStorageError, match=r"setup\(\) of foreign:FileCheckpointer failed"):
        opened_over(FileCheckpointer("/no such directory/x.db"))


def test_a_store_that_nobody_has_ends_its_thread() -> None:
    checkpointer = MemoryCheckpointer()
    store = open_foreign(checkpointer)
    gone = weakref.ref(store)
    (thread,) = [each for each in threading.enumerate() if each is store._writer._thread]
    del store
    gc.collect()
    assert gone() is None
    thread.join(20)
    assert not thread.is_alive()


async def test_a_run_of_another_runner_is_refused(open_store: Opener) -> None:
    store = await asyncio.to_thread(open_store)
    async with open_engine(store) as engine:
        await engine.run(steps, 1, execution_id="r1")
        with pytest.raises(DurableRecoveryError):
            await engine.resume(asking, "r1")
