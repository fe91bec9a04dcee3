"""Programs killed at every kind of instant, by SIGKILL, in processes of their own; see
`perdure.testing.explorer`.

A sample of the points by default; all of them, and more pairs, with PERDURE_EXPLORE=all. A failure says
which seed repeats it.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from perdure.testing.catalogue import PROGRAMS
from perdure.testing.explorer import Explorer, Scenario, Site, pairs, sample, singles
from perdure.testing.programs import Program
from perdure.testing.zygote import Zygote

_IS_ALL = os.environ.get("PERDURE_EXPLORE") == "all"
_SAMPLE = 3
_SAMPLE_INLINE = 1
_PAIRS = 40 if _IS_ALL else 1
_SEED_VARIABLE = "PERDURE_EXPLORE_SEED"

pytestmark = pytest.mark.timeout(3600 if _IS_ALL else 120)


def _seed() -> str:
    return os.environ.get(_SEED_VARIABLE) or os.urandom(4).hex()


Count = Callable[[str, object], None]

every_program = pytest.mark.parametrize("program", PROGRAMS, ids=[program.name for program in PROGRAMS])


@every_program
def test_a_program_killed_anywhere_ends_as_if_nobody_had_killed_it(
    program: Program, zygote: Zygote, sites: list[Site], tmp_path: Path, record_property: Count
) -> None:
    """Its result, its journal, its questions and its effects: nothing lost, nothing twice, nothing left behind."""
    _explore(Explorer(program, zygote, sites, tmp_path / "scenarios"), _SAMPLE, record_property)


@every_program
def test_the_same_for_a_run_that_commits_on_its_own_loop(
    program: Program, zygote: Zygote, sqlite_sites: list[Site], tmp_path: Path, record_property: Count
) -> None:
    """The sync `run()` commits inline where the store can; its kill points lie in another thread."""
    explorer = Explorer(program, zygote, sqlite_sites, tmp_path / "scenarios", is_inline=True)
    _explore(explorer, _SAMPLE_INLINE, record_property)


def _explore(explorer: Explorer, count: int, record_property: Count) -> None:
    reference, points = explorer.undisturbed()
    again, points_again = explorer.undisturbed()
    assert sorted(points) == sorted(points_again)
    assert reference == again

    seed = _seed()
    choose = random.Random(seed)
    first = singles(points) if _IS_ALL else sample(points, count, choose)
    report = explorer.explore([*first, *pairs(points, _PAIRS, choose)], reference)

    record_property("store", explorer.store)
    record_property("programs", 1)
    record_property("points", len(points))
    record_property("kills", report.kills)
    record_property("pairs", report.pairs)
    found = "\n".join(str(finding) for finding in report.findings)
    assert not report.findings, f"repeat with {_SEED_VARIABLE}={seed}\n{found}"


def test_a_point_that_is_not_reached_is_a_finding(zygote: Zygote, sites: list[Site], tmp_path: Path) -> None:
    """An explorer that kills nobody must not look like one that found nothing."""
    explorer = Explorer(PROGRAMS[0], zygote, sites, tmp_path / "scenarios")
    reference, _ = explorer.undisturbed()
    report = explorer.explore([Scenario(point="run 99 completed:value a1 @committed")], reference)
    assert report.kills == 0
    assert "was not reached" in str(report.findings[0])
