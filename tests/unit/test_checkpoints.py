"""Checkpoints: a view over the records, for people and forks."""

from __future__ import annotations

import pytest
from tests.support.journals import done, loaded, stored

from perdure.core.checkpoints import checkpoints, fork_point
from perdure.errors import ChainCheckpointError, ChainResumeError

RECORDS = [
    stored(1, "submitted"),
    stored(2, "started"),
    done(3, name="reserve"),
    done(4, index=1, outcome="error", name="pay"),
    stored(5, "suspended", index=2, kind="interrupt", name="go on?"),
    done(6, "@pay:k", 0, kind="effect"),
    stored(7, "status", outcome="waiting"),
    stored(8, "status", outcome="completed", data="9"),
]


def test_one_for_each_operation_that_ended_or_asked_and_one_for_the_end():
    view = checkpoints(loaded(RECORDS))
    assert [(c.node_id, c.status, c.seq) for c in view] == [
        ("reserve", "completed", 3),
        ("pay", "failed", 4),
        ("go on?", "interrupted", 5),
        ("run_end", "completed", 8),
    ]
    assert [c.node_index for c in view] == [0, 1, 2, 3]


def test_each_names_the_one_before_it():
    view = checkpoints(loaded(RECORDS))
    assert [c.checkpoint_id for c in view] == ["r1:3", "r1:4", "r1:5", "r1:8"]
    assert [c.parent_checkpoint_id for c in view] == [None, "r1:3", "r1:4", "r1:5"]


def test_the_first_of_a_fork_names_where_it_was_forked():
    view = checkpoints(loaded(RECORDS, forked_from="source", forked_seq=4))
    assert view[0].parent_checkpoint_id == "source:4"


def test_a_run_without_steps_has_no_checkpoints_and_nothing_to_fork():
    run = loaded([stored(1, "submitted")])
    assert checkpoints(run) == []
    with pytest.raises(ChainResumeError, match="executed nothing"):
        fork_point(run, None)


def test_fork_points():
    run = loaded(RECORDS)
    assert fork_point(run, None) == 5
    for name in ("r1:4", "4", 4):
        assert fork_point(run, name) == 4


@pytest.mark.parametrize("name", ["r1:8", 8, "r1:2", 2, "r2:4", "", "x", -1, True])
def test_what_is_no_fork_point_is_refused(name: object):
    with pytest.raises(ChainCheckpointError):
        fork_point(loaded(RECORDS), name)  # type: ignore[arg-type]
