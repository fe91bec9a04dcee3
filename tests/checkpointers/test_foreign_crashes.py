"""A process that dies at any call of its checkpointer: the next one goes on with everything that had been said."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.checkpointers.flows import ask, did, note
from tests.support.engines import HASTY, opened
from tests.support.third_party import FileCheckpointer, opened_over

from perdure import interrupt, workflow
from perdure.checkpointers.protocol import Checkpoint, PendingInterrupt
from perdure.core.resume import Resume
from perdure.engine.engine import Engine
from perdure.errors import DurableStorageError

FIRST = asyncio.FIRST_COMPLETED

ANSWERS = {"a": True, "b": False, "c": True, "direct": False}


@workflow(name="foreign.everything")
async def everything() -> list[object]:
    first = await note(1)
    answers = await asyncio.gather(*(ask(name) for name in "abc"))
    second = await note(2)
    direct = interrupt("may I?", {"name": "direct"}).approved
    return [first, *answers, second, direct, await note(3)]


class Dies(FileCheckpointer):
    """Every call fails from a given write on, which is stored still or not."""

    def __init__(self, path: str, dies_at: int, is_stored: bool) -> None:
        super().__init__(path)
        self.left, self.is_stored = dies_at, is_stored
        self.loop = asyncio.get_running_loop()
        self.death = self.loop.create_future()

    def __getattribute__(self, name: str) -> object:
        if name in ("list", "get_last", "get_by_id", "list_pending_interrupts") and self.left <= 0:
            raise OSError("dead")
        return super().__getattribute__(name)

    def put(self, checkpoint: Checkpoint) -> None:
        with_interrupt = self.db.in_transaction
        if not with_interrupt:
            self.step()
        super().put(checkpoint)
        if not with_interrupt:
            self.end()

    def record_interrupt(self, checkpoint: Checkpoint, pending: PendingInterrupt) -> None:
        self.step()
        super().record_interrupt(checkpoint, pending)
        self.end()

    def delete_pending_interrupt_atomic(self, execution_id: str) -> PendingInterrupt | None:
        self.step()
        claimed = super().delete_pending_interrupt_atomic(execution_id)
        self.end()
        return claimed

    def step(self) -> None:
        self.left -= 1
        if self.left < 0 or (self.left == 0 and not self.is_stored):
            self.die()

    def end(self) -> None:
        if self.left <= 0:
            self.die()

    def die(self) -> None:
        self.loop.call_soon_threadsafe(lambda: self.death.done() or self.death.set_result(None))
        raise OSError("dead")


async def driven(checkpointer: FileCheckpointer, acknowledged: set[str]) -> list[object] | None:
    """Run and answer until the end, which is returned; None if the process has died. `acknowledged` are the questions
    whose answer was taken: they must not be asked again."""
    store = await asyncio.to_thread(opened_over, checkpointer)
    async with opened(store, HASTY) as engine:
        work = asyncio.ensure_future(answered(engine, acknowledged))
        await asyncio.wait({work, *([checkpointer.death] if isinstance(checkpointer, Dies) else [])}, return_when=FIRST)
        has_ended = work.done() and not isinstance(work.exception(), DurableStorageError)
        work.cancel()  # whoever waits for a store that is gone would wait on
    await asyncio.wait({work})
    await store.close()
    return work.result() if has_ended else None


async def answered(engine: Engine, acknowledged: set[str]) -> list[object]:
    result = await engine.run(everything, execution_id="r1")
    while result.status == "paused":
        assert result.pending_interrupt is not None
        name = result.pending_interrupt["context"]["name"]
        assert name not in acknowledged
        await engine.answer("r1", Resume(approved=ANSWERS[name]))
        acknowledged.add(name)
        result = await engine.run(everything, execution_id="r1")
    assert result.output is not None
    return result.output


@pytest.mark.parametrize("is_stored", [False, True])
async def test_a_process_may_die_at_any_write(tmp_path: Path, is_stored: bool) -> None:
    deaths = 0
    for number, path in numbered(tmp_path):
        did.clear()
        acknowledged: set[str] = set()
        output = await driven(dying := Dies(path, number, is_stored), acknowledged)
        died_having_done = list(did)
        if not dying.death.done():
            break
        deaths += 1
        output = await driven(FileCheckpointer(path), acknowledged)
        assert output == [1, True, False, True, 2, False, 3]
        # What had been recorded is not done again: of the bodies only the one under way at the death.
        assert set(did[len(died_having_done) :]) & set(died_having_done) <= set(died_having_done[-1:])
        look = FileCheckpointer(path)
        look.setup()
        assert look.list_pending_interrupts() == []
    assert deaths > 20


def numbered(directory: Path) -> Iterator[tuple[int, str]]:
    for number in range(1, 200):
        yield number, str(directory / f"{number}.db")
