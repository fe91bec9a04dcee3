"""The checkpointer in memory keeps the protocol's promises."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.support.third_party import FileCheckpointer

from perdure import interrupt, open_engine, step, workflow
from perdure.checkpointers import Checkpoint, Checkpointer, MemoryCheckpointer, PendingInterrupt, open_foreign
from perdure.core.resume import Resume
from perdure.errors import DurableConflictError


@pytest.fixture
def checkpointer() -> MemoryCheckpointer:
    return MemoryCheckpointer()


def row(number: int = 0, execution_id: str = "r1", **values: Any) -> Checkpoint:
    return Checkpoint(checkpoint_id=f"c{number}", execution_id=execution_id, **values)


def question(execution_id: str = "r1", created_at: str = "2026-01-01T00:00:00+00:00") -> PendingInterrupt:
    return PendingInterrupt(
        execution_id=execution_id, chain_name="c", node_id="n", reason="why?", context={"a": [1]}, agent_path=None,
        created_at=created_at,
    )  # fmt: skip


def test_both_are_checkpointers(checkpointer: MemoryCheckpointer) -> None:
    assert isinstance(checkpointer, Checkpointer)
    assert isinstance(FileCheckpointer(":memory:"), Checkpointer)


def test_rows_come_out_in_the_order_in_which_they_were_put(checkpointer: MemoryCheckpointer) -> None:
    for number in range(150):
        checkpointer.put(row(number))
    assert [each.checkpoint_id for each in checkpointer.list("r1")] == [f"c{number}" for number in range(100)]
    assert len(checkpointer.list("r1", limit=1000)) == 150
    assert checkpointer.get_last("r1") == row(149)
    assert checkpointer.get_by_id("r1", "c7") == row(7)
    assert checkpointer.get_by_id("r2", "c7") is checkpointer.get_last("r2") is None
    assert checkpointer.list("r2") == []


def test_a_row_is_never_replaced(checkpointer: MemoryCheckpointer) -> None:
    checkpointer.put(row(node_id="a"))
    with pytest.raises(DurableConflictError):
        checkpointer.put(row(node_id="b"))
    with pytest.raises(DurableConflictError):
        checkpointer.record_interrupt(row(node_id="b"), question())
    checkpointer.put(row(execution_id="r2"))
    assert [each.node_id for each in checkpointer.list("r1")] == ["a"]
    assert checkpointer.list_pending_interrupts() == []


def test_what_goes_in_and_comes_out_is_a_copy(checkpointer: MemoryCheckpointer) -> None:
    given = row(state_snapshot={"items": [1]})
    checkpointer.put(given)
    checkpointer.record_interrupt(row(1), asked := question())
    checkpointer.put_idempotent("r1", "k", result := {"value": [1]})
    given.state_snapshot["items"].append(2)
    asked.context["a"].append(2)
    result["value"].append(2)
    checkpointer.list("r1")[0].state_snapshot["items"].append(3)
    checkpointer.list_pending_interrupts()[0].context["a"].append(3)
    checkpointer.get_idempotent("r1", "k")["value"].append(3)  # type: ignore[index]
    assert checkpointer.list("r1")[0].state_snapshot == {"items": [1]}
    assert checkpointer.list_pending_interrupts() == [question()]
    assert checkpointer.get_idempotent("r1", "k") == {"value": [1]}


def test_a_question_is_claimed_by_one(checkpointer: MemoryCheckpointer) -> None:
    checkpointer.record_interrupt(row(), question())
    start = threading.Barrier(8)

    def claim(_: int) -> PendingInterrupt | None:
        start.wait()
        return checkpointer.delete_pending_interrupt_atomic("r1")

    with ThreadPoolExecutor(8) as threads:
        claimed = [each for each in threads.map(claim, range(8)) if each is not None]
    assert claimed == [question()]
    assert checkpointer.list_pending_interrupts() == []
    assert checkpointer.delete_pending_interrupt_atomic("nowhere") is None


def test_one_question_of_an_execution_is_pending_at_a_time(checkpointer: MemoryCheckpointer) -> None:
    checkpointer.record_interrupt(row(), question())
    with pytest.raises(DurableConflictError):
        checkpointer.record_interrupt(row(1), question())
    assert len(checkpointer.list("r1")) == 1


def test_open_questions_are_listed_oldest_first(checkpointer: MemoryCheckpointer) -> None:
    for number in (3, 1, 2):
        asked = question(f"r{number}", created_at=f"2026-01-0{number}T00:00:00+00:00")
        checkpointer.record_interrupt(row(execution_id=f"r{number}"), asked)
    assert [each.execution_id for each in checkpointer.list_pending_interrupts(limit=2)] == ["r1", "r2"]


def test_the_first_result_under_a_key_stays(checkpointer: MemoryCheckpointer) -> None:
    assert checkpointer.get_idempotent("r1", "k") is None
    checkpointer.put_idempotent("r1", "k", {"value": None})
    checkpointer.put_idempotent("r1", "k", {"value": 2})
    assert checkpointer.get_idempotent("r1", "k") == {"value": None}
    assert checkpointer.get_idempotent("r1", "other") is checkpointer.get_idempotent("r2", "k") is None


def test_delete_execution_removes_everything_of_it(checkpointer: MemoryCheckpointer) -> None:
    checkpointer.record_interrupt(row(), question())
    checkpointer.put_writes("r1", "c0", [1])
    checkpointer.put_idempotent("r1", "k", {"value": 1})
    checkpointer.put(row(execution_id="r2"))
    checkpointer.delete_execution("r1")
    checkpointer.delete_execution("nowhere")
    assert checkpointer.list("r1") == checkpointer.list_pending_interrupts() == []
    assert checkpointer.get_idempotent("r1", "k") is None
    assert len(checkpointer.list("r2")) == 1


def test_prune_takes_what_is_over_for_good_and_nothing_else(checkpointer: MemoryCheckpointer) -> None:
    old = (datetime.now(UTC) - timedelta(days=9)).isoformat()
    for name, status in {"done": "completed", "cancelled": "cancelled", "failed": "failed"}.items():
        checkpointer.put(row(0, name, created_at=old))
        checkpointer.put(row(1, name, created_at=old, step_type="run_end", status=status))
    checkpointer.put(row(0, "naive", created_at=old.partition("+")[0], step_type="run_end"))
    checkpointer.put(row(0, "young", created_at=datetime.now(UTC).isoformat(), step_type="run_end"))
    checkpointer.record_interrupt(row(0, "waits", created_at=old), question("waits"))
    checkpointer.put(row(0, "running", created_at=old))
    checkpointer.put_writes("empty", "c0", [])
    assert checkpointer.prune(timedelta(days=1)) == 5
    kept = [name for name in ("failed", "young", "waits", "running") if checkpointer.list(name)]
    assert kept == ["failed", "young", "waits", "running"]


async def test_it_drives_runs_and_nobody_is_warned() -> None:
    """Nothing was to outlast the process, so there is nothing to warn of."""
    calls: list[int] = []

    @step(name="memory.once")
    async def once(n: int) -> int:
        calls.append(n)
        return n

    @workflow(name="memory.flow")
    async def flow() -> list[Any]:
        return [await once(1), interrupt("go on?").approved]

    store = await asyncio.to_thread(open_foreign, MemoryCheckpointer())  # a warning would be an error
    async with open_engine(store) as engine:
        await engine.run(flow, execution_id="r1")
        result = await engine.resume(flow, "r1", resume_value=Resume(approved=True))
    await store.close()
    assert result.output == [1, True]
    assert calls == [1]
