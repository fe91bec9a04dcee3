"""Random chains: however long their nodes take, wherever they are interrupted or forked, and on whatever store, they
end with the same state; and what is stored of their states is right and small."""

from __future__ import annotations

import gc
import json
import os
import random
import shutil
import tempfile
import uuid
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from tests.support.chain_worlds import FAILED, Place, World, recorded
from tests.support.prefix import cut

from perdure import Chain, Resume, interrupt, open_engine, operation_id
from perdure.core import codec
from perdure.core.checkpoints import RUN_END, Checkpoint, checkpoints, decoded_state
from perdure.core.codec.text import dumps
from perdure.core.keys import operation_id as operation_id_of
from perdure.core.records import Loaded, RecordType
from perdure.testing.shapes import Shape, random_shape

_IS_LONG = os.environ.get("PERDURE_EXPLORE") == "all"
_EXAMPLES = 400 if _IS_LONG else 10
_PREFIXES = 10_000 if _IS_LONG else 6

pytestmark = pytest.mark.timeout(7200 if _IS_LONG else 300)
_settings = settings(
    max_examples=_EXAMPLES,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
_RUN = "run"


@st.composite
def _shapes(draw: st.DrawFn, *, is_wild: bool = False) -> Shape:
    """Chains made from a seed: a smaller seed makes no smaller chain, but a failure says which chain it was."""
    return random_shape(random.Random(draw(st.integers(0, 1_000_000))), is_wild=is_wild)


_seeds = st.integers(0, 1_000_000)


@contextmanager
def _directory() -> Iterator[Path]:
    """Where an example has its stores: in memory if there is such a place."""
    memory = Path("/dev/shm")
    directory = Path(tempfile.mkdtemp(prefix="perdure-test-", dir=memory if memory.is_dir() else None))
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


def _place(path: Path, shape: Shape, world: World | None = None) -> Place:
    return Place(url=f"sqlite:///{path}", shape=shape, world=world or World())


_DONE = frozenset({"completed"})


def _boundaries(loaded: Loaded, statuses: frozenset[str] = _DONE | {"interrupted"}) -> Counter[str]:
    """What the checkpoints of a run say, without their order and without failures, which may be many."""
    return Counter(
        json.dumps([c.operation, c.node_id, c.step_type, c.status, c.state, c.node_input, c.interrupt_reason])
        for c in checkpoints(loaded)
        if c.status in statuses
    )


def _questions(loaded: Loaded) -> set[tuple[str, str | None]]:
    return {(c.operation, c.interrupt_reason) for c in checkpoints(loaded) if c.status == "interrupted"}


def _difference(one: Loaded, other: Loaded) -> tuple[list[str], list[str]] | None:
    """The checkpoints that only one of two runs has."""
    mine, theirs = _boundaries(one), _boundaries(other)
    return None if mine == theirs else (sorted((mine - theirs).elements()), sorted((theirs - mine).elements()))


# --- time -----------------------------------------------------------------------------------------------


@_settings
@given(shape=_shapes(), seed=_seeds)
def test_what_ends_first_changes_nothing(shape: Shape, seed: int) -> None:
    """Nodes that take longer or shorter: the same state, results, questions and checkpoints as in the order of
    declaration."""
    with _directory() as directory:
        usual = _place(directory / "usual.db", shape)
        end = usual.finish(_RUN)
        event(end.status)
        for number in range(2):
            other = _place(directory / f"{number}.db", shape, World(random.Random(seed + number)))
            assert other.finish(_RUN) == end
            assert not _difference(other.loaded(_RUN), usual.loaded(_RUN))


@settings(parent=_settings, max_examples=_EXAMPLES * 2)
@given(shape=_shapes(is_wild=True), seed=_seeds)
def test_edges_that_lead_back_into_branches_change_nothing_about_that(shape: Shape, seed: int) -> None:
    """Cycles around joins and conditions, and two visits of one node at once; where branches write one key, the chain
    fails whoever was first."""
    with _directory() as directory:
        end = _place(directory / "usual.db", shape).finish(_RUN)
        event(end.status)
        assert _place(directory / "other.db", shape, World(random.Random(seed))).finish(_RUN) == end


def _ring(first: Callable[..., Any], second: Callable[..., Any]) -> Chain:
    """Two nodes, both led to from the start and each from the other: whatever lies behind them is declared first."""
    chain = Chain("ring")
    chain.add_node("behind", fn=lambda: "behind").add_node("start", type="start")
    chain.add_node("first", fn=first).add_node("second", fn=second)
    for target in ("first", "second", "behind"):
        chain.connect("start", target)
    chain.connect("first", "second").connect("second", "behind")
    return chain.connect("second", "first", max_iterations=2, exit_condition="true")


async def test_of_nodes_that_wait_for_each_other_the_first_begins_and_not_what_is_behind_them(store_url: str) -> None:
    """What lies behind a ring waits for it, wherever it is declared."""
    acted: list[str] = []
    chain = _ring(lambda: acted.append("first"), lambda: acted.append("second"))
    result = await chain.arun({}, store=store_url)
    assert acted == ["first", "second"]
    assert result.output == "behind"


async def test_nodes_that_wait_for_each_other_do_not_wait_for_questions_elsewhere(store_url: str) -> None:
    """Somebody is asked in a branch that does not lead to the ring."""
    chain = _ring(lambda: {"first": 1}, lambda: {"second": 2})
    chain.add_node("asked", type="hitl").connect("start", "asked")
    result = await chain.arun({}, store=store_url)
    assert result.status == "paused"
    assert set(result.node_results) == {"start", "first", "second", "behind"}


async def test_a_change_of_the_state_behind_a_ring_is_replayed_there(store_url: str) -> None:
    """At replay the change is known from the beginning on; the ring begins as it did when nobody knew of it."""

    def ask(reason: str) -> Callable[[], bool]:
        return lambda: interrupt(reason).approved

    chain = _ring(ask("first?"), ask("second?"))
    result = await chain.arun({}, execution_id="run", store=store_url)
    while result.status == "paused":
        async with open_engine(store_url) as engine:  # a process of its own for each answer
            result = await chain.aresume(
                "run",
                resume_value=Resume(approved=True),
                modified_state={"changed": result.pending_interrupts[0]["reason"]},
                store=engine.store,
            )
    assert result.final_state["changed"] == "second?"


# --- interruptions --------------------------------------------------------------------------------------


def _sample(count: int) -> list[int]:
    """Which prefixes or checkpoints are tried, from 1: all of them, or some that are spread evenly."""
    return list(range(1, count, max(1, count // _PREFIXES)))


@_settings
@given(shape=_shapes(), seed=_seeds)
def test_every_prefix_of_the_records_leads_to_the_same_end(shape: Shape, seed: int) -> None:
    """Killed after any record, whatever was running: the same end and the same checkpoints, and nothing recorded is
    performed again."""
    with _directory() as directory:
        whole = _place(directory / "whole.db", shape, World(random.Random(seed)))
        end, loaded = whole.finish(_RUN), whole.loaded(_RUN)
        for seq in _sample(len(loaded.records)):
            cut(directory / "whole.db", directory / f"{seq}.db", _RUN, seq)
            again = _place(directory / f"{seq}.db", shape, World(random.Random(seed + seq)))
            assert again.finish(_RUN) == end
            assert not _difference(again.loaded(_RUN), loaded)
            assert again.records(_RUN)[:seq] == loaded.records[:seq]
            assert not set(again.world.performed) & recorded(loaded.records[:seq])


def test_items_whose_turn_has_not_come_leave_nothing_behind() -> None:
    """A list of which one item asks and the others wait: the process goes, and no coroutine complains."""

    async def ask(item: int) -> bool:
        return interrupt(f"{item}?").approved

    chain = Chain("each").add_node("each", type="parallel", over="{{state.items}}", fn=ask, max_concurrency=1)
    with _directory() as directory, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = chain.run({"items": [1, 2, 3]}, store=f"sqlite:///{directory / 'store.db'}")
        gc.collect()
    assert result.status == "paused"
    assert caught == []


async def test_a_fork_from_inside_a_nested_chain_that_has_failed_can_be_retried(store_url: str) -> None:
    """The nested chain has begun before the error in it, in the fork too: it did not handle that error."""
    failed: list[str] = []

    async def flaky() -> str:
        if operation_id() not in failed:
            failed.append(operation_id())
            raise ConnectionError("once a run")
        return "done"

    chain = Chain("outer").add_node("inner", agent=Chain("inner").add_node("flaky", fn=flaky))
    with pytest.raises(ConnectionError):
        await chain.arun({}, execution_id="source", store=store_url)
    async with open_engine(store_url) as engine:
        loaded = await engine.store.run_load("source")
    [point] = [one for one in checkpoints(loaded) if one.node_id == "flaky"]
    with pytest.raises(ConnectionError):
        await chain.afork("source", checkpoint_id=point.checkpoint_id, new_id="fork", store=store_url)
    failed.append(operation_id_of("fork", point.operation))
    result = await chain.aretry("fork", store=store_url)
    assert result.final_state == {"flaky": "done"}


async def test_a_retry_forgets_no_error_that_a_node_has_handled(store_url: str) -> None:
    """A list with an item that fails, in a node that goes on without it; then another node fails, and is retried."""
    failures = iter([ConnectionError("first time")])

    async def per_item(item: int) -> int:
        return 1 // item

    async def flaky() -> str:
        for failure in failures:
            raise failure
        return "done"

    chain = Chain("handled").add_node(
        "each", type="parallel", over="{{state.items}}", fn=per_item, failure_mode="continue"
    )
    chain.add_node("flaky", fn=flaky).connect("each", "flaky")
    with pytest.raises(ConnectionError):
        await chain.arun({"items": [1, 0]}, execution_id="run", store=store_url)
    await chain.aretry("run", store=store_url)
    async with open_engine(store_url) as engine:
        records = await engine.store.record_list("run")
    assert [record.name for record in records if record.type == RecordType.DROPPED] == ["flaky"]


@_settings
@given(shape=_shapes(), seed=_seeds)
def test_a_fork_at_every_checkpoint_ends_like_its_source(shape: Shape, seed: int) -> None:
    """Branched off anywhere, and asked again what was answered later: the same end, and nothing inherited is performed
    again; the source stays as it was."""
    with _directory() as directory:
        place = _place(directory / "store.db", shape, World(random.Random(seed)))
        end, loaded = place.finish(_RUN), place.loaded(_RUN)
        points = [one for one in checkpoints(loaded) if one.step_type != RUN_END and one.status != "failed"]
        event(f"checkpoints: {len(points) // 5 * 5}+")
        for number in _sample(len(points) + 1):
            point = points[number - 1]
            forked = _place(directory / "store.db", shape, World(random.Random(seed + number)))
            assert forked.fork(_RUN, point.checkpoint_id, f"fork{number}") == end, point
            inherited = [record for record in loaded.records if record.seq <= point.seq]
            assert not set(forked.world.performed) & recorded(inherited)
            again = forked.loaded(f"fork{number}")
            assert _boundaries(again, _DONE) == _boundaries(loaded, _DONE)
            # What was asked and answered before is no question of the fork; what is asked again is the same.
            assert _questions(again) <= _questions(loaded)
        assert place.records(_RUN) == loaded.records


# --- stores ---------------------------------------------------------------------------------------------


@_settings
@given(shape=_shapes(), seed=_seeds)
def test_both_stores_have_the_same_of_a_chain(postgres_dsn: str, shape: Shape, seed: int) -> None:
    """The same end and the same checkpoints."""
    run_id = f"run-{uuid.uuid4().hex}"
    with _directory() as directory:
        one = _place(directory / "store.db", shape)
        other = Place(url=postgres_dsn, shape=shape, world=World(random.Random(seed)))
        assert one.finish(run_id) == other.finish(run_id)
        assert not _difference(one.loaded(run_id), other.loaded(run_id))


# --- what is stored of states ---------------------------------------------------------------------------


@settings(parent=_settings, max_examples=_EXAMPLES * 2)
@given(shape=_shapes(is_wild=True), seed=_seeds)
def test_stored_states_are_those_the_code_had(shape: Shape, seed: int) -> None:
    """After a node: what its body was given, and what it returned on top. At a question: what its body was given. At
    the end: what the result says."""
    with _directory() as directory:
        place = _place(directory / "store.db", shape, World(random.Random(seed)))
        end, loaded = place.finish(_RUN), place.loaded(_RUN)
        found = checkpoints(loaded)
        for checkpoint in found:
            if (given := place.world.seen.get(checkpoint.operation)) is not None and checkpoint.status == "completed":
                assert codec.encode(decoded_state(checkpoint)) == _after(checkpoint, given), checkpoint
        if end != FAILED:
            assert codec.encode(decoded_state(found[-1])) == end.state


def _after(checkpoint: Checkpoint, given: str) -> str:
    """The state after a node, from the one before it and its result. Branches of a parallel node write nothing."""
    state, value = codec.decode(given), codec.decode(checkpoint.output or "null")
    if checkpoint.node_id in ("item", "act"):
        return codec.encode(state)
    written = value if isinstance(value, dict) else {checkpoint.node_id: value}
    for name, item in written.items():
        state[name] = [*state.get(name, []), *item] if name == "log" else item
    return codec.encode(state)


@settings(parent=_settings, max_examples=_EXAMPLES * 2)
@given(shape=_shapes(), payload=st.sampled_from([0, 100, 3000]))
def test_storage_is_linear_in_what_nodes_returned(shape: Shape, payload: int) -> None:
    """Law 9: states cost no more than a multiple of the results they are made of, and to read one costs no more than
    about twice its size."""
    with _directory() as directory:
        place = _place(directory / "store.db", shape, World(payload_chars=payload))
        place.finish(_RUN)
        loaded = place.loaded(_RUN)
        journal = [record for record in loaded.records if record.name != "topology"]
        size = sum(len(record.data or "") + len(record.state or "") for record in journal)
        outputs = sum(len(r.data or "") for r in journal if r.type in (RecordType.SUBMITTED, RecordType.COMPLETED))
        assert size <= 3 * outputs + 300 * len(journal)
        for checkpoint in checkpoints(loaded):
            assert checkpoint.read_chars <= 2.2 * len(dumps(checkpoint.state)) + 200, checkpoint
