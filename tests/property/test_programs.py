"""Random programs: whatever is killed and wherever, a run ends as if nothing had happened, and does
nothing recorded twice."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from tests.support import programs
from tests.support.child import child
from tests.support.prefix import cut

from perdure import Engine, open_engine
from perdure.core.fold import fold
from perdure.core.records import StoredRecord

_IS_LONG = os.environ.get("PERDURE_EXPLORE") == "all"
_EXAMPLES = 400 if _IS_LONG else 20
_PREFIXES = 10_000 if _IS_LONG else 6

# Long forms are told by their number of examples, not by a time.
pytestmark = pytest.mark.timeout(7200 if _IS_LONG else 300)
_settings = settings(
    max_examples=_EXAMPLES,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@contextmanager
def _directory() -> Iterator[Path]:
    """Where examples have their stores: in memory if there is such a place, since each example makes
    several."""
    place = Path("/dev/shm")
    directory = Path(tempfile.mkdtemp(prefix="perdure-test-", dir=place if place.is_dir() else None))
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


def _plain(trace: Any) -> Any:
    """A trace without what may differ between two undisturbed executions: who came first."""
    if not isinstance(trace, list):
        return trace
    if trace[:1] == ["group"]:
        return ["group", sorted(map(_plain, trace[1]), key=repr)]
    if trace[:1] == ["first"]:
        return ["first"]
    return [_plain(part) for part in trace]


async def _undisturbed(path: Path, data: list[Any], run_id: str) -> tuple[Any, list[StoredRecord]]:
    programs.forget()
    async with open_engine(f"sqlite:///{path}") as engine:
        trace = await programs.finish(engine, data, run_id)
        return trace, await engine.store.record_list(run_id, limit=100_000)


def _recorded(records: list[StoredRecord], run_id: str) -> set[str]:
    """Ids of the operations whose value these records hold (what failed may be tried again by a retry of the run)."""
    journal = fold(records)
    return {f"{run_id}/{key}" for key, op in journal.operations.items() if op.outcome == "value"}


async def _from_prefix(
    source: Path, target: Path, data: list[Any], run_id: str, records: list[StoredRecord], seq: int
) -> Any:
    """Go on from the first `seq` records: what they hold is neither changed nor performed again. Returns
    the trace."""
    cut(source, target, run_id, seq)
    programs.forget()
    async with open_engine(f"sqlite:///{target}") as engine:
        trace = await programs.finish(engine, data, run_id)
        again = await engine.store.record_list(run_id, limit=100_000)
    assert again[:seq] == records[:seq]
    assert not set(programs.performed) & _recorded(records[:seq], run_id)
    return trace


def _sample(count: int) -> list[int]:
    """Which prefixes are tried: all of them, or some that are spread evenly."""
    step = max(1, count // _PREFIXES)
    return list(range(1, count, step))


@_settings
@given(data=programs.programs)
def test_every_prefix_of_the_records_leads_to_the_same_end(data: list[Any]) -> None:
    """Killed after any record: the run ends with what the undisturbed one returned, and repeats nothing
    that is recorded."""

    async def main() -> None:
        with _directory() as directory:
            source, run_id = directory / "whole.db", "run"
            trace, records = await _undisturbed(source, data, run_id)
            event(f"records: {len(records) // 20 * 20}+")
            for seq in _sample(len(records)):
                target = directory / f"{seq}.db"
                again = await _from_prefix(source, target, data, run_id, records, seq)
                assert _plain(again) == _plain(trace)

    asyncio.run(main())


@_settings
@given(data=programs.programs)
def test_replay_of_all_records_is_exact_and_performs_nothing(data: list[Any]) -> None:
    """With only its end missing, a run sees the same in the same order, who came first included, and no
    body runs."""

    async def main() -> None:
        with _directory() as directory:
            source = directory / "whole.db"
            trace, records = await _undisturbed(source, data, "run")
            again = await _from_prefix(source, directory / "cut.db", data, "run", records, len(records) - 1)
            assert again == trace
            assert programs.performed == []

    asyncio.run(main())


async def _until_killed(engine: Engine, data: list[Any], run_id: str, seq: int) -> bool:
    """Run until the n-th record is committed, then record nothing more; False if the run has ended before."""
    running = asyncio.create_task(programs.finish(engine, data, run_id))
    while await engine.store.run_get(run_id) is None:
        await asyncio.sleep(0)
    is_killed = False
    async for seen in engine.stream(run_id):
        if seen.sequence >= seq:
            for drive in list(engine.host.drives.values()):
                drive.abandon("killed by the test")
            is_killed = True
            break
    running.cancel()
    await asyncio.wait([running])
    return is_killed


@settings(parent=_settings, max_examples=_EXAMPLES // 2)
@given(data=programs.programs, kills=st.lists(st.integers(1, 15), min_size=1, max_size=4))
def test_program_killed_several_times_ends_as_undisturbed(store_url: str, data: list[Any], kills: list[int]) -> None:
    """Killed again and again, each time some records further on, in one process after another on either store: the
    same end, and the records of each life are the beginning of the next."""

    async def main() -> None:
        with _directory() as directory:
            trace, _ = await _undisturbed(directory / "whole.db", data, "run")
        run_id, seq = str(uuid.uuid4()), 0
        before: list[StoredRecord] = []
        for further in kills:
            seq += further
            programs.forget()
            async with open_engine(store_url) as engine:
                is_killed = await _until_killed(engine, data, run_id, seq)
                records = await engine.store.record_list(run_id, limit=100_000)
            assert records[: len(before)] == before
            before = records
            if not is_killed:
                break
        async with open_engine(store_url) as engine:
            again = await programs.finish(engine, data, run_id)
            records = await engine.store.record_list(run_id, limit=100_000)
        assert _plain(again) == _plain(trace)
        assert records[: len(before)] == before
        assert [record.seq for record in records] == list(range(1, len(records) + 1))

    asyncio.run(main())


_KILLED_FOR_REAL = [
    [["gather", 1, 1, [["step", 1, 1, []], ["ask inside", 2, 1, []], ["thread", 3, 1, []]]], ["effect", 4, 1, []]],
    [["loop", 1, 3, [["step", 2, 1, []], ["timeout", 3, 1, []]]], ["sleep", 4, 2, []], ["ask", 5, 1, []]],
    [
        ["nested", 1, 1, [["fail", 2, 1, [["step", 3, 1, []]]], ["body", 4, 1, []]]],
        ["race", 6, 1, [["step", 7, 1, []], ["sleep", 8, 3, []]]],
    ],
]  # fmt: skip


@pytest.mark.timeout(300)
@pytest.mark.parametrize("data", _KILLED_FOR_REAL, ids=["gather", "loop", "nested"])
async def test_program_in_killed_processes_ends_as_undisturbed(store_url: str, tmp_path: Path, data: list[Any]) -> None:
    """The same with real processes and SIGKILL, in place of each n-th commit in turn."""
    trace, _ = await _undisturbed(tmp_path / "whole.db", data, "run")
    commits = range(1, 200) if _IS_LONG else range(3, 200, 3)
    before: list[StoredRecord] = []
    for commit in commits:
        with child("program", store_url, die_at=commit, data=data, execution_id="run") as one:
            code = await asyncio.to_thread(one.end)
        async with open_engine(store_url) as engine:
            records = await engine.store.record_list("run", limit=100_000)
        assert records[: len(before)] == before
        before = records
        if code == 0:
            break
        assert code == -9, one.lines
    async with open_engine(store_url) as engine:
        assert _plain(await programs.finish(engine, data, "run")) == _plain(trace)
