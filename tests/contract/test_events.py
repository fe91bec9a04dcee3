"""The journal as a stream, and who is told of news."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from tests.support import runs

from perdure.store.base import Store

Opener = Callable[[], Awaitable[Store]]


class Listener:
    """Counts calls and wakes whoever waits for the next one."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.event = asyncio.Event()
        self.count = 0

    def __call__(self) -> None:
        self.count += 1
        self.loop.call_soon_threadsafe(self.event.set)

    async def next(self) -> None:
        await self.event.wait()
        self.event.clear()


async def test_record_list_after_a_number_in_pages(store: Store) -> None:
    owner = await runs.created(store, "r1")
    await owner.write(*(runs.completed(index) for index in range(9)))
    assert [record.seq for record in await store.record_list("r1", after=4, limit=3)] == [5, 6, 7]
    assert [record.seq for record in await store.record_list("r1", after=9)] == [10]
    assert await store.record_list("r1", after=10) == []
    assert await store.record_list("nowhere") == []


async def test_record_list_never_shows_a_number_before_the_one_below(store: Store, open_another: Opener) -> None:
    owner = await runs.created(store, "r1")
    reader = await open_another()

    async def write() -> None:
        for index in range(60):
            owner.append(runs.completed(index), runs.completed(index))
            await asyncio.sleep(0)
        await owner.wait(owner.lane.enqueued)

    async def read() -> list[int]:
        seen: list[int] = []
        while len(seen) < 121:
            seen += [record.seq for record in await reader.record_list("r1", after=seen[-1] if seen else 0)]
        return seen

    _, seen = await asyncio.gather(write(), read())
    assert seen == list(range(1, 122))


async def test_subscribe_tells_own_commits(store: Store) -> None:
    listener = Listener()
    unsubscribe = store.subscribe(listener)
    owner = await runs.created(store, "r1")
    await listener.next()
    unsubscribe()
    await owner.write(runs.completed(0))


async def test_subscribe_tells_commits_of_another_store(store: Store, open_another: Opener) -> None:
    other = await open_another()
    owner = await runs.created(store, "r1")
    listener = Listener()
    unsubscribe = other.subscribe(listener, is_foreign_only=True)
    for index in range(3):  # the first call may be the one that says "look now", so one commit proves nothing
        listener.event.clear()
        await owner.write(runs.completed(index))
        await listener.next()
    unsubscribe()


async def test_subscribe_tells_answers_and_cancels(store: Store, open_another: Opener) -> None:
    other = await open_another()
    owner = await runs.created(store, "r1")
    await owner.write(questions=[runs.question("q1")])
    listener = Listener()
    unsubscribe = store.subscribe(listener, is_foreign_only=True)
    for act in (other.interrupt_answer("r1", {"q1": '"yes"'}), other.run_cancel("r1")):
        listener.event.clear()
        await act
        await listener.next()
    facts = await store.facts(runs.WORKER)
    assert (len(facts.answers), facts.cancels) == (1, ["r1"])
    unsubscribe()


async def test_unsubscribe_ends_the_calls(store: Store) -> None:
    first, second = Listener(), Listener()
    stop_first, stop_second = store.subscribe(first), store.subscribe(second)
    owner = await runs.created(store, "r1")
    stop_first()
    stop_first()
    count = first.count
    await second.next()
    await owner.write(runs.completed(0))
    await owner.write(runs.completed(1))
    assert first.count == count
    stop_second()


async def test_subscribe_with_a_callback_that_fails_harms_nobody(store: Store) -> None:
    def fail() -> None:
        raise ValueError("a listener's fault")

    listener = Listener()
    stops = [store.subscribe(fail), store.subscribe(listener)]
    owner = await runs.created(store, "r1")
    await listener.next()
    await owner.write(runs.completed(0))
    for stop in stops:
        stop()
