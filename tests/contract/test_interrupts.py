"""Questions: how they are stored, listed and closed."""

from __future__ import annotations

import pytest
from tests.support import runs

from perdure.core.records import Record, RunChange
from perdure.errors import AlreadyResumed, DurableConflictError
from perdure.store.base import Store


async def test_interrupt_list_shows_what_was_asked(store: Store) -> None:
    owner = await runs.created(store, "r1", runner="refund")
    asked = runs.question("q1", path="0!", index=2, slot="key:x", reason='"r"', context='{"a":1}', bind=True)
    await owner.write(Record(type="suspended"), questions=[asked])
    (row,) = await store.interrupt_list()
    assert (row.interrupt_id, row.run_id, row.path, row.index, row.slot) == ("q1", "r1", "0!", 2, "key:x")
    assert (row.reason, row.context, row.digest, row.bind) == ('"r"', '{"a":1}', "q1", True)
    assert (row.status, row.answer, row.answered_at, row.delivered_at) == ("pending", None, None, None)
    assert row.runner == "refund"


async def test_interrupt_list_oldest_first_and_at_most_limit(store: Store) -> None:
    for number in range(4):
        owner = await runs.created(store, f"r{number}")
        await owner.write(questions=[runs.question(f"q{number}")])
    assert [row.interrupt_id for row in await store.interrupt_list(limit=3)] == ["q0", "q1", "q2"]


async def test_interrupt_list_by_run_and_status(store: Store) -> None:
    await runs.waiting(store, "r1", "q1", "q2")
    await runs.waiting(store, "r2", "q3")
    await store.interrupt_answer("r1", {"q1": '"yes"'})
    assert [row.interrupt_id for row in await store.interrupt_list()] == ["q2", "q3"]
    assert [row.interrupt_id for row in await store.interrupt_list(run_id="r1", status=None)] == ["q1", "q2"]
    assert [row.interrupt_id for row in await store.interrupt_list(status="answered")] == ["q1"]


async def test_a_question_under_a_taken_id_is_refused_with_its_entry(store: Store) -> None:
    owner = await runs.created(store, "r1")
    await owner.write(questions=[runs.question("q1")])
    with pytest.raises(DurableConflictError):
        await owner.write(runs.completed(0), questions=[runs.question("q1", reason='"other"')])
    assert await runs.types(store, "r1") == ["submitted"]
    assert [row.reason for row in await store.interrupt_list()] == ['"approve?"']


async def test_withdrawn_questions_open_again_with_a_retry(store: Store) -> None:
    owner = await runs.created(store, "r1")
    await owner.write(questions=[runs.question("q1"), runs.question("q2")])
    await store.interrupt_answer("r1", {"q2": '"yes"'})
    await owner.end("failed")
    assert await store.interrupt_list() == []
    await store.run_retry("r1", [])
    assert [row.interrupt_id for row in await store.interrupt_list()] == ["q1"]
    assert [row.status for row in (await store.run_load("r1")).interrupts] == ["pending", "answered"]


async def test_an_answer_is_delivered_once_with_its_time(store: Store) -> None:
    owner = await runs.created(store, "r1")
    await owner.write(questions=[runs.question("q1")])
    await store.interrupt_answer("r1", {"q1": '"yes"'})
    await owner.write(Record(type="delivered"), delivered=["q1"])
    (first,) = (await store.run_load("r1")).interrupts
    assert first.delivered_at is not None
    await owner.write(Record(type="delivered"), delivered=["q1"])
    (second,) = (await store.run_load("r1")).interrupts
    assert second.delivered_at == first.delivered_at


async def test_an_abandoned_question_is_open_no_more(store: Store) -> None:
    owner = await runs.created(store, "r1")
    await owner.write(questions=[runs.question("q1"), runs.question("q2")])
    await owner.write(abandoned=["q1"])
    await owner.write(questions=[runs.question("q3")], abandoned=["q3"])
    assert await statuses(store) == {"q1": "abandoned", "q2": "pending", "q3": "abandoned"}
    for name in ("q1", "q3"):
        with pytest.raises(AlreadyResumed):
            await store.interrupt_answer("r1", {name: '"yes"'})


async def test_an_answer_to_an_abandoned_question_keeps_nobody_awake(store: Store) -> None:
    owner = await runs.created(store, "r1")
    await owner.write(questions=[runs.question("q1"), runs.question("q2")])
    await store.interrupt_answer("r1", {"q1": '"yes"'})
    await owner.write(abandoned=["q1"], delivered=["q1"])
    assert (await store.facts(runs.WORKER)).answers == []
    assert await owner.end("waiting") == "waiting"
    asked = {row.interrupt_id: row for row in (await store.run_load("r1")).interrupts}
    assert (asked["q1"].status, asked["q1"].answer, asked["q1"].delivered_at) == ("abandoned", '"yes"', None)


async def test_what_has_entered_the_run_is_not_abandoned(store: Store) -> None:
    owner = await runs.created(store, "r1")
    await owner.write(questions=[runs.question("q1")])
    await store.interrupt_answer("r1", {"q1": '"yes"'})
    await owner.write(delivered=["q1"])
    await owner.write(abandoned=["q1"])
    assert await statuses(store) == {"q1": "answered"}


async def test_the_end_of_a_run_leaves_abandoned_questions_alone(store: Store) -> None:
    owner = await runs.created(store, "r1")
    await owner.write(questions=[runs.question("q1"), runs.question("q2"), runs.question("q3")])
    await owner.write(abandoned=["q1"])
    await owner.write(abandoned=["q2"], change=RunChange(status="failed", is_release=True))
    assert await statuses(store) == {"q1": "abandoned", "q2": "abandoned", "q3": "withdrawn"}


async def test_a_retry_asks_abandoned_questions_again_and_finds_their_answers(store: Store) -> None:
    owner = await runs.created(store, "r1")
    await owner.write(questions=[runs.question("q1"), runs.question("q2")])
    await store.interrupt_answer("r1", {"q2": '"yes"'})
    await owner.write(abandoned=["q1", "q2"])
    await owner.end("failed")
    await store.run_retry("r1", [])
    assert await statuses(store) == {"q1": "pending", "q2": "answered"}
    (claim,) = await store.run_claim(runs.WORKER)
    assert [row.interrupt_id for row in (await store.facts(runs.WORKER)).answers] == ["q2"]
    assert await runs.owner_of(store, claim, runs.WORKER).end("waiting") == "pending"


async def statuses(store: Store) -> dict[str, str]:
    """Status of each question."""
    return {row.interrupt_id: row.status for row in await store.interrupt_list(status=None)}
