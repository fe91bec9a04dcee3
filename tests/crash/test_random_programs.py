"""Random programs and chains under random kills equal their undisturbed run.

A few by default, many with PERDURE_EXPLORE=all. A failure says which seed repeats it.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from perdure.testing.explorer import Explorer, Report, Site, pairs, sample
from perdure.testing.interpreted import random_program
from perdure.testing.programs import Program
from perdure.testing.shapes import program_of, random_shape
from perdure.testing.zygote import Zygote

_IS_ALL = os.environ.get("PERDURE_EXPLORE") == "all"
_PROGRAMS = 40 if _IS_ALL else 4
_SAMPLE = 8 if _IS_ALL else 3
_PAIRS = 4 if _IS_ALL else 1
_SEED_VARIABLE = "PERDURE_EXPLORE_SEED"

pytestmark = pytest.mark.timeout(3600 if _IS_ALL else 120)


Count = Callable[[str, object], None]


def test_random_programs_killed_at_random_equal_their_undisturbed_run(
    zygote: Zygote, sites: list[Site], tmp_path: Path, record_property: Count
) -> None:
    """Steps of every policy, branches, loops, caught errors, questions and sleeps, in any nesting."""
    _explore(random_program, zygote, sites, tmp_path, record_property)


def test_random_chains_killed_at_random_equal_their_undisturbed_run(
    zygote: Zygote, sites: list[Site], tmp_path: Path, record_property: Count
) -> None:
    """Nodes of every kind and policy, joins, conditions, cycles, questions, lists, and chains in chains."""
    _explore(_random_chain, zygote, sites, tmp_path, record_property)


def _random_chain(choose: random.Random) -> Program:
    return program_of(random_shape(choose))


def _explore(
    make: Callable[[random.Random], Program],
    zygote: Zygote,
    sites: list[Site],
    tmp_path: Path,
    record_property: Count,
) -> None:
    seed = os.environ.get(_SEED_VARIABLE) or os.urandom(4).hex()
    choose = random.Random(seed)
    report, found = Report(), []
    for number in range(_PROGRAMS):
        program = make(choose)
        explorer = Explorer(program, zygote, sites, tmp_path / f"program{number}", may_miss=True)
        reference, points = explorer.undisturbed()
        of_program = explorer.explore([*sample(points, _SAMPLE, choose), *pairs(points, _PAIRS, choose)], reference)
        report.points += len(points)
        report.kills += of_program.kills
        report.pairs += of_program.pairs
        shown = json.dumps(program.shape or program.value)
        found += [f"program {shown}: {finding}" for finding in of_program.findings]

    assert report.kills > _PROGRAMS * (_SAMPLE + _PAIRS) // 2, "hardly anybody was killed"
    record_property("store", sites[0].kind)
    record_property("programs", _PROGRAMS)
    record_property("points", report.points)
    record_property("kills", report.kills)
    record_property("pairs", report.pairs)
    assert not found, f"repeat with {_SEED_VARIABLE}={seed}\n" + "\n".join(found)
