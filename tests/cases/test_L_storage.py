"""Storage: what is stored grows with what a run has said, not with how often it was said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from perdure import Resume, interrupt, open_engine, step, workflow


def _size(path: Path) -> int:
    """Bytes of the database, its WAL included."""
    return sum(file.stat().st_size for file in path.parent.glob(path.name + "*"))


async def _turn(question: str, history_length: int) -> str:
    return question[0] * 5000


@workflow(name="l7_turns")
async def turns(count: int) -> int:
    history: list[str] = []
    for n in range(count):
        history.append(await step(_turn, "abcdefgh"[n % 8], len(history)))
    return sum(map(len, history))


async def _stored(path: Path, count: int) -> int:
    async with open_engine(f"sqlite:///{path}") as engine:
        result = await engine.run(turns, count)
    assert result.output == count * 5000
    return _size(path)


async def test_L7_storage_is_linear_in_the_turns(tmp_path: Path) -> None:
    """200 turns of 5 kB take less than 5 times their bytes; 400 less than 2.2 times what 200 take."""
    sizes = {}
    for count in (200, 400):
        directory = tmp_path / str(count)
        directory.mkdir()
        sizes[count] = await _stored(directory / "perdure.db", count)
    assert sizes[200] < 5 * 200 * 5000
    assert sizes[400] < 2.2 * sizes[200]


async def test_L7_large_constant_input_is_stored_once(store_url: str) -> None:
    """An input of 200 kB handed to twenty steps, and kept over ten questions, is stored once."""
    large = {"text": "x" * 200_000}

    async def measure(value: dict[str, Any], n: int) -> int:
        return len(value["text"]) + n

    @workflow
    async def l7_constant(value: dict[str, Any]) -> int:
        total = 0
        for n in range(10):
            total += await step(measure, value, n) + await step(measure, value, n)
            interrupt("go on?", {"n": n})
        return total

    async with open_engine(store_url) as engine:
        result = await engine.run(l7_constant, large)
        run_id = result.execution_id
        while result.status == "paused":
            result = await engine.resume(l7_constant, run_id, resume_value=Resume(approved=True))
        records = await engine.store.record_list(run_id)
    assert sum(len(record.data or "") for record in records) < 2 * 200_000


async def test_L7_cost_of_a_pause_does_not_grow(store_url: str) -> None:
    """The records that a pause and its answer add are as many and as large at the thirtieth question as at
    the first."""

    async def note(n: int) -> str:
        return f"{n:04}"

    @workflow
    async def l7_asks_often(count: int) -> int:
        for n in range(count):
            await step(note, n)
            interrupt("go on?", {"n": 1000 + n})
        return count

    added: list[int] = []
    async with open_engine(store_url) as engine:
        result = await engine.run(l7_asks_often, 30)
        run_id, seen = result.execution_id, 0
        while result.status == "paused":
            records = await engine.store.record_list(run_id, after=seen)
            seen = records[-1].seq
            added.append(sum(len(record.data or "") + 1 for record in records))
            result = await engine.resume(l7_asks_often, run_id, resume_value=Resume(approved=True))
    assert len(added) == 30
    assert max(added[2:]) <= 1.2 * min(added[2:])
