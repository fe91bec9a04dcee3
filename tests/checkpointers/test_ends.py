"""Where a run can be taken up or forked, by a checkpointer's rows."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.chain.checkpoint import RUN_END, Checkpoint, is_run_end, latest_forkable, latest_resumable
from perdure.checkpointers import Checkpointer, MemoryCheckpointer
from perdure.errors import AlreadyResumed, ChainCheckpointError


@pytest.fixture
def checkpointer() -> MemoryCheckpointer:
    return MemoryCheckpointer()


def put(checkpointer: Checkpointer, *nodes: str, **values: Any) -> Checkpoint:
    """A row for each node; the values are of the last one."""
    row = Checkpoint()
    for number, node in enumerate(nodes):
        given = values if number == len(nodes) - 1 else {}
        row = Checkpoint(checkpoint_id=f"{node or 'books'}-{number}", execution_id="r1", node_id=node, **given)
        checkpointer.put(row)
    return row


def end(checkpointer: Checkpointer, status: str) -> None:
    checkpointer.put(
        Checkpoint(checkpoint_id=f"end-{status}", execution_id="r1", node_id=RUN_END, step_type=RUN_END, status=status)
    )


def test_a_row_without_a_step_type_is_no_end() -> None:
    assert not is_run_end(Checkpoint(node_id="run_end", step_type=None))
    assert is_run_end(Checkpoint(step_type="run_end"))


def test_the_last_row_of_a_node_is_resumed(checkpointer: MemoryCheckpointer) -> None:
    last = put(checkpointer, "a", "b", status="interrupted")
    assert latest_resumable(checkpointer, "r1") == last
    assert latest_resumable(checkpointer, "r1", latest=last) == last


@pytest.mark.parametrize("status", ["completed", "cancelled"])
def test_a_run_that_is_over_is_not_resumed(checkpointer: MemoryCheckpointer, status: str) -> None:
    put(checkpointer, "a")
    end(checkpointer, status)
    with pytest.raises(AlreadyResumed, match=f"Chain 'r1' is {status}"):
        latest_resumable(checkpointer, "r1", runner="Chain")


def test_a_failed_run_is_resumed_at_its_last_node(checkpointer: MemoryCheckpointer) -> None:
    last = put(checkpointer, "a", "b", "", "")
    end(checkpointer, "failed")
    assert latest_resumable(checkpointer, "r1") == latest_forkable(checkpointer, "r1")
    assert (latest_resumable(checkpointer, "r1") or last).node_id == "b"


def test_a_history_longer_than_the_default_limit_is_read_whole(checkpointer: MemoryCheckpointer) -> None:
    put(checkpointer, *(f"n{number}" for number in range(700)))
    end(checkpointer, "failed")
    assert (latest_resumable(checkpointer, "r1") or Checkpoint()).node_id == "n699"


def test_what_has_nothing_but_its_end_has_no_place_to_go_on(checkpointer: MemoryCheckpointer) -> None:
    assert latest_resumable(checkpointer, "r1") is None
    assert latest_forkable(checkpointer, "r1") is None
    end(checkpointer, "failed")
    assert latest_resumable(checkpointer, "r1") is None
    assert latest_forkable(checkpointer, "r1") is None


def test_a_finished_run_is_forked_at_its_last_node(checkpointer: MemoryCheckpointer) -> None:
    last = put(checkpointer, "a", "b")
    end(checkpointer, "completed")
    assert latest_forkable(checkpointer, "r1") == last


def test_a_named_row_is_forked_unless_it_is_the_end(checkpointer: MemoryCheckpointer) -> None:
    put(checkpointer, "a", "b")
    end(checkpointer, "completed")
    assert (latest_forkable(checkpointer, "r1", checkpoint_id="a-0") or Checkpoint()).node_id == "a"
    for wrong in ("end-completed", "nowhere"):
        with pytest.raises(ChainCheckpointError, match=wrong):
            latest_forkable(checkpointer, "r1", checkpoint_id=wrong)
