"""Storage of chains: what is stored grows with what was said, not with how often it was passed on."""

from __future__ import annotations

import json
import operator
from pathlib import Path
from typing import Any

import pytest
from tests.support.chains import YES, load

from perdure import Chain, Resume, interrupt
from perdure.core.checkpoints import checkpoints


def _turns(name: str, count: int, *, is_whole: bool) -> Chain:
    """A conversation: each turn adds 5 kB, as its own message or as the whole list it has grown to."""

    def turn(n: int) -> dict[str, Any]:
        return {"messages": ["abcdefgh"[n % 8] * 5000], "n": n + 1}

    def whole(messages: list[str], n: int) -> dict[str, Any]:
        return {"messages": [*messages, "abcdefgh"[n % 8] * 5000], "n": n + 1}

    chain = Chain(name, reducers={} if is_whole else {"messages": operator.add})
    chain.add_node("turn", fn=whole if is_whole else turn)
    return chain.connect("turn", "turn", max_iterations=count + 1, exit_condition=f"n == {count}")


def _bytes(path: Path) -> int:
    """Bytes of the database, its WAL included."""
    return sum(file.stat().st_size for file in path.parent.glob(path.name + "*"))


@pytest.mark.parametrize("is_whole", [False, True], ids=["message", "whole list"])
def test_L7_a_growing_state_takes_space_for_what_was_added(tmp_path: Path, is_whole: bool) -> None:
    """Turns of 5 kB take less than 5 times their bytes; twice as many less than 2.2 times that. Whether a node returns
    its message or the whole list makes no difference to that."""
    sizes = {}
    counts = (50, 100) if is_whole else (200, 400)
    for count in counts:
        directory = tmp_path / str(count)
        directory.mkdir()
        path = directory / "perdure.db"
        chain = _turns("l7", count, is_whole=is_whole)
        result = chain.run({"messages": [], "n": 0}, store=f"sqlite:///{path}")
        assert len(result.final_state["messages"]) == count
        sizes[count] = _bytes(path)
    assert sizes[counts[0]] < 5 * counts[0] * 5000
    assert sizes[counts[1]] < 2.2 * sizes[counts[0]]


def test_L7_a_large_constant_of_the_state_is_stored_once(store_url: str) -> None:
    """200 kB that come in, are looked at by twenty nodes, passed on and asked about ten times."""
    large = {"text": "x" * 200_000}

    def looks(doc: dict[str, Any], n: int) -> dict[str, Any]:
        return {"doc": doc, "n": n + 1}  # as it was: nothing new is said

    def asks(n: int) -> None:
        interrupt("go on?", {"n": n})

    chain = Chain("l7 constant").add_node("looks", fn=looks, recovery="safe").add_node("asks", fn=asks)
    chain.connect("looks", "asks").connect("asks", "looks", max_iterations=20, exit_condition="n == 10")
    result: Any = chain.run({"doc": large, "n": 0}, execution_id="l7", store=store_url)
    while result.status == "paused":
        result = chain.resume("l7", resume_value=Resume(approved=True), store=store_url)
    loaded = load(store_url, "l7")
    stored = sum(len(r.data or "") + len(r.state or "") for r in loaded.records)
    assert result.final_state == {"doc": large, "n": 10}
    assert stored < 2 * 200_000


@pytest.mark.parametrize("letter", ["x", "日"])
def test_L7_a_checkpoint_is_read_at_a_cost_of_its_own_size(store_url: str, letter: str) -> None:
    """However long the run, however often the same key was written: no checkpoint takes more than about twice its
    state to be read."""

    def turn(n: int) -> dict[str, Any]:
        return {"draft": f"{n} " + letter * 1000, "n": n + 1}

    chain = Chain("l7 reading").add_node("turn", fn=turn)
    chain.connect("turn", "turn", max_iterations=100, exit_condition="n == 60")
    chain.add_node("ask", type="hitl").connect("turn", "ask")
    chain.run({"n": 0}, execution_id="l7", store=store_url)
    chain.resume("l7", resume_value=YES, store=store_url)
    for one in checkpoints(load(store_url, "l7")):
        assert one.read_chars <= 2.2 * len(json.dumps(one.state)) + 200, one.node_id
