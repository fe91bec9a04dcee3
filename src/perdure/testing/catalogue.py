"""All programs of the explorer by name: a process that is to run one is told the name and finds it here."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.testing.chains import CHAINS
from perdure.testing.programs import WORKFLOWS, Program

PROGRAMS: Sequence[Program] = (*WORKFLOWS, *CHAINS)


def program(name: str) -> Program:
    return next(program for program in PROGRAMS if program.name == name)
