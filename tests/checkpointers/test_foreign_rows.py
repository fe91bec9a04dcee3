"""The persisted form of rows, and what becomes of a history that is not whole."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.checkpointers.conftest import Opener
from tests.checkpointers.flows import YES, asking, did, steps
from tests.support.engines import opened
from tests.support.third_party import FileCheckpointer

from perdure.checkpointers.foreign_parts import parts_of
from perdure.checkpointers.protocol import Checkpoint
from perdure.core.records import Question, Record, RunChange
from perdure.errors import AlreadyResumed, DurableStorageError
from perdure.store.base import Lane
from perdure.store.driver import Batch

LANE = Lane(run_id="r1", root_id="r1", worker_id="w1", fence=1)


async def written(open_store: Opener) -> None:
    """A finished run `r1`, whose process has ended."""
    store = await asyncio.to_thread(open_store)
    async with opened(store) as engine:
        await engine.run(asking, 7, execution_id="r1")
        await engine.resume(asking, "r1", resume_value=YES)
    await store.close()


# --- the form -------------------------------------------------------------------------------------------


async def test_names_in_rows_are_data(open_store: Opener, looker: FileCheckpointer) -> None:
    """A run that is paused now must be readable by every later version."""
    await written(open_store)
    rows = looker.list("r1", limit=1000)
    assert all(list(row.state_snapshot) == ["perdure"] for row in rows)
    said = [json.loads(row.state_snapshot["perdure"]) for row in rows]
    assert {tuple(each) for each in said} == {
        ("v", "token", "previous", "announced", "run", "records", "asked", "changed")
    }
    assert {each["v"] for each in said} == {1}
    assert [each["previous"] for each in said] == [None, *(each["token"] for each in said[:-1])]
    assert [row.checkpoint_id for row in rows] == [f"r1:{each['records'][0]['seq']}" for each in said]
    first = said[0]["records"][0]
    assert first == {
        "run_id": "r1", "seq": 1, "type": "submitted", "path": "", "idx": 0, "kind": "workflow", "attempt": 0,
        "name": "foreign.asking", "digest": first["digest"], "data": "7", "clock_s": 0.0, "at": first["at"],
    }  # fmt: skip
    (asked,) = [question for each in said for question in each["asked"]]
    assert asked.keys() >= {"id", "run_id", "path", "idx", "slot", "reason", "context", "digest", "bind", "status"}
    answered = next(question for each in said for question in each["changed"])
    assert answered.keys() >= {"id", "status", "answer", "answered_by", "answered_at", "answer_seq", "delivered_at"}
    assert "context" not in answered


def batch(*records: Record, **values: Any) -> Batch:
    return Batch(LANE, 4, 6, list(records), **values)


def done(index: int) -> Record:
    return Record("completed", index=index)


def test_a_batch_is_cut_before_each_boundary() -> None:
    started, suspended = Record("started", index=1), Record("suspended", index=1)
    question = Question(
        interrupt_id="q1", path="", index=1, slot="0", reason='""', context="{}", digest="d", bind=False
    )
    parts = parts_of(batch(Record("started"), done(0), started, suspended, done(2), questions=[question]))
    assert [[(r.type, r.index) for r in part.records] for part in parts] == [
        [("started", 0)],
        [("completed", 0), ("started", 1)],
        [("suspended", 1)],
        [("completed", 2)],
    ]
    assert [part.questions for part in parts] == [[], [], [question], []]
    assert [(part.first_n, part.last_n) for part in parts] == [(4, 5), (6, 5), (6, 5), (6, 6)]


def test_what_is_recorded_in_passing_makes_no_part_of_its_own() -> None:
    passing = [Record("completed", index=1, kind=kind) for kind in ("value", "route", "patch")]
    assert len(parts_of(batch(done(0), *passing, Record("completed", "@key", 0), Record("completed", "%p", 0)))) == 1


def test_the_end_of_a_run_is_a_part_of_its_own() -> None:
    end = Record("status", outcome="completed")
    parts = parts_of(batch(done(0), end, change=RunChange(status="completed")))
    assert [part.records for part in parts] == [[done(0)], [end]]
    assert [part.change is None for part in parts] == [True, False]
    asleep = Record("status", outcome="waiting")
    assert len(parts_of(batch(done(0), asleep, change=RunChange(status="waiting")))) == 1


def test_what_has_entered_the_run_stays_with_what_it_led_to() -> None:
    end = Record("status", outcome="completed")
    assert len(parts_of(batch(done(0), done(1), delivered=["q1"]))) == 1
    assert len(parts_of(batch(done(0), done(1), abandoned=["q1"]))) == 1
    first, last = parts_of(batch(done(0), done(1), end, delivered=["q1"], change=RunChange(status="completed")))
    assert (first.records, first.delivered, last.records, last.delivered) == ([done(0), done(1)], ["q1"], [end], [])


def test_a_question_nobody_here_has_asked_keeps_the_batch_whole() -> None:
    question = Question(
        interrupt_id="q1", path="", index=9, slot="0", reason='""', context="{}", digest="d", bind=False
    )
    assert len(parts_of(batch(done(0), done(1), questions=[question]))) == 1
    named = Record("suspended", index=1, data='["q1"]')
    assert len(parts_of(batch(done(0), named, questions=[question]))) == 2


# --- a history that is not whole ------------------------------------------------------------------------


async def refused(open_store: Opener, kind: Callable[[str], FileCheckpointer] = FileCheckpointer) -> str:
    """What a new process says to the run; nothing of it has run."""
    did.clear()
    store = await asyncio.to_thread(open_store, kind)
    async with opened(store) as engine:
        with pytest.raises(DurableStorageError) as caught:
            await engine.resume(asking, "r1")
        with pytest.raises(DurableStorageError):
            await engine.run(asking, 7, execution_id="r1")
    assert did == []
    return str(caught.value)


class Cut(FileCheckpointer):
    """Caps its lists, as some do."""

    def list(self, execution_id: str, *, limit: int = 100) -> list[Checkpoint]:
        return super().list(execution_id, limit=min(limit, 3))


class CutOld(FileCheckpointer):
    def list(self, execution_id: str, *, limit: int = 100) -> list[Checkpoint]:
        return super().list(execution_id, limit=limit)[-3:]


@pytest.mark.parametrize("kind", [Cut, CutOld])
async def test_a_list_that_is_cut_silently_is_found_out(open_store: Opener, kind: type[FileCheckpointer]) -> None:
    await written(open_store)
    assert "list() cut it short, or rows were deleted" in await refused(open_store, kind)


@pytest.mark.parametrize("which", [0, 2, -1])
async def test_a_row_that_is_missing_is_found_out(open_store: Opener, looker: FileCheckpointer, which: int) -> None:
    """But for the last one: to lose that is to be a moment earlier."""
    await written(open_store)
    row = looker.list("r1", limit=1000)[which]
    looker.db.execute("DELETE FROM checkpoints WHERE id = ?", (row.checkpoint_id,))
    if which != -1:
        assert f"no row {row.checkpoint_id!r}" in await refused(open_store)
        return
    store = await asyncio.to_thread(open_store)
    async with opened(store) as engine:
        assert (await engine.resume(asking, "r1")).output == [7, True, -7]
    assert did == [7, -7]


class Shuffled(FileCheckpointer):
    def list(self, execution_id: str, *, limit: int = 100) -> list[Checkpoint]:
        rows = super().list(execution_id, limit=limit)
        return [*rows[::-1], *rows[:2]]


async def test_the_order_of_a_list_is_not_trusted(open_store: Opener) -> None:
    await written(open_store)
    store = await asyncio.to_thread(open_store, Shuffled)
    async with opened(store) as engine:
        assert (await engine.run(asking, 7, execution_id="r1")).output == [7, True, -7]
    assert did == [7, -7]


class Replaces(FileCheckpointer):
    """Its put replaces rows, against the contract."""

    def put(self, checkpoint: Checkpoint) -> None:
        self.db.execute(
            "DELETE FROM checkpoints WHERE execution = ? AND id = ?",
            (checkpoint.execution_id, checkpoint.checkpoint_id),
        )
        super().put(checkpoint)


async def test_a_run_whose_rows_were_replaced_by_another_process_is_refused(open_store: Opener) -> None:
    first, second = [await asyncio.to_thread(open_store, Replaces) for _ in range(2)]
    async with opened(first) as engine:
        paused = await engine.run(asking, 7, execution_id="r1")
    assert paused.pending_interrupt is not None
    question = paused.pending_interrupt["interrupt_id"]
    for store in (first, second):
        await store.run_load("r1")
    await first.interrupt_answer("r1", {question: '"1"'})
    await first.run_claim("w1", run_ids=["r1"])
    second._foreign._tails["r1"].worker_id = "w"  # it looks up to date to the second one, as it was a moment ago
    second._foreign._living.add("w")
    await second.interrupt_answer("r1", {question: '"2"'})
    assert "a row was replaced" in await refused(open_store)


def damaged(looker: FileCheckpointer, which: int, change: Callable[[dict[str, Any]], None]) -> None:
    """Change what a row holds."""
    row = looker.list("r1", limit=1000)[which]
    said = json.loads(row.state_snapshot["perdure"])
    change(said)
    row.state_snapshot["perdure"] = json.dumps(said)
    looker.db.execute("UPDATE checkpoints SET row = ? WHERE id = ?", (row.model_dump_json(), row.checkpoint_id))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda said: said.update(v=2), "newer version"),
        (lambda said: said["run"].update(colour="red"), "'colour'"),
        (lambda said: said["records"][0].update({"x) --": 1}), "'x) --'"),
        (lambda said: said.pop("records"), "damaged"),
        (lambda said: said.update(records=[]), "damaged"),
        (lambda said: said.update(token=None), "replaced"),
    ],
    ids=["newer", "column", "statement", "lost", "empty", "token"],
)
async def test_a_row_that_cannot_be_read_stops_the_run(
    open_store: Opener, looker: FileCheckpointer, change: Callable[[dict[str, Any]], None], says: str
) -> None:
    await written(open_store)
    damaged(looker, 2 if says == "replaced" else -1, change)
    assert says in await refused(open_store)


async def test_rows_of_somebody_else_are_left_alone(open_store: Opener, looker: FileCheckpointer) -> None:
    looker.put(Checkpoint(checkpoint_id="c1", execution_id="r1", node_id="theirs", state_snapshot={"a": 1}))
    assert "rows in foreign:FileCheckpointer that Perdure has not written" in await refused(open_store)
    await written_beside(open_store, looker)


async def written_beside(open_store: Opener, looker: FileCheckpointer) -> None:
    """Among ours they do no harm."""
    store = await asyncio.to_thread(open_store)
    async with opened(store) as engine:
        await engine.run(steps, 2, execution_id="r2")
        looker.put(Checkpoint(checkpoint_id="mine", execution_id="r2", node_id="theirs"))
    await store.close()
    store = await asyncio.to_thread(open_store)
    async with opened(store) as engine:
        assert (await engine.run(steps, 2, execution_id="r2")).output == [0, 1]
        with pytest.raises(AlreadyResumed):
            await engine.resume(steps, "r2")
