"""The auditor finds what it is there to find: facts of a real run, each doctored in one place."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perdure.testing import audit
from perdure.testing.catalogue import PROGRAMS, program
from perdure.testing.facts import Facts, Row, read_facts
from perdure.testing.ledger import Line, Told, new_token
from perdure.testing.programs import Program
from perdure.testing.roles import Job, perform


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    """What an undisturbed run of the program with two questions left behind."""
    return _facts(program("two_questions"), tmp_path_factory.mktemp("audit"))


@pytest.fixture(scope="module")
def chain_facts(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    """The same of a chain whose state a person changes with their answer."""
    return _facts(program("chain_patched"), tmp_path_factory.mktemp("audit"))


def _facts(chosen: Program, directory: Path) -> Facts:
    url = f"sqlite:///{directory / 'store.db'}"
    job = Job(
        role="person",
        program=chosen.name,
        value=chosen.value,
        answers=dict(chosen.answers),
        url=url,
        ledger=str(directory / "ledger"),
        incarnation="only",
        result=str(directory / "result"),
    )
    outcome = asyncio.run(_perform(job))
    return read_facts(url, directory / "ledger", outcome)


async def _perform(job: Job) -> dict[str, Any]:
    import json

    await asyncio.to_thread(perform, job)
    return json.loads(Path(job.result).read_text())["outcome"]


def _line(facts: Facts, label: str) -> Line:
    return next(line for line in facts.lines if line.label == label)


def _before(facts: Facts, label: str, **change: Any) -> Facts:
    """The same effect happened once more before the one that is recorded."""
    line = _line(facts, label)
    earlier = replace(line, **{"token": new_token(label), **change})
    at = facts.lines.index(line)
    return replace(facts, lines=[*facts.lines[:at], earlier, *facts.lines[at:]])


def _after(facts: Facts, label: str, **change: Any) -> Facts:
    line = replace(_line(facts, label), **{"token": new_token(label), **change})
    return replace(facts, lines=[*facts.lines, line])


def _with_line(facts: Facts, label: str, **change: Any) -> Facts:
    lines = [replace(line, **change) if line.label == label else line for line in facts.lines]
    return replace(facts, lines=lines)


def _record(facts: Facts, type: str, at: int = 0) -> Row:
    return [row for row in facts.records if row["type"] == type][at]


def _again(facts: Facts, type: str) -> Facts:
    """A record of this type is there once more, at the end."""
    row = {**_record(facts, type), "seq": len(facts.records) + 1}
    runs = [{**run, "seq": row["seq"]} for run in facts.runs]
    return replace(facts, records=[*facts.records, row], runs=runs)


def _with_record(facts: Facts, type: str, at: int, **change: Any) -> Facts:
    chosen = _record(facts, type, at)
    return replace(facts, records=[{**row, **change} if row is chosen else row for row in facts.records])


def _told(facts: Facts, what: dict[str, Any]) -> Facts:
    """A killed process had been told this."""
    return replace(facts, told=[*facts.told, Told(run_id="run", what=what, incarnation="x")])


def _with_run(facts: Facts, **change: Any) -> Facts:
    return replace(facts, runs=[{**run, **change} for run in facts.runs])


def _with_question(facts: Facts, **change: Any) -> Facts:
    first, *others = facts.interrupts
    return replace(facts, interrupts=[{**first, **change}, *others])


DOCTORED: dict[str, tuple[Callable[[Facts], Facts], str]] = {
    "acted twice in one process": (lambda f: _before(f, "before"), "acted 2 times in process only"),
    "acted again elsewhere": (lambda f: _before(f, "before", incarnation="x"), "which were not killed"),
    "acted after it was recorded": (
        lambda f: replace(_after(f, "before", incarnation="x"), killed=frozenset("x")),
        "acted last as",
    ),
    "manual without a decision": (
        lambda f: replace(_before(f, "between", incarnation="x"), killed=frozenset("x")),
        "with 0 decisions to repeat it",
    ),
    "another operation id": (
        lambda f: replace(_before(f, "after", incarnation="x", operation_id="run/9"), killed=frozenset("x")),
        "has the operation ids",
    ),
    "in no journal": (lambda f: _with_line(f, "after", operation_id="run/9"), "is in no journal"),
    "consumed the unknown": (
        lambda f: _with_line(f, "after", consumed=[new_token("lost")]),
        "which no journal has",
    ),
    "consumed other things than it was called with": (
        lambda f: _with_line(f, "after", consumed=[]),
        "its journal says",
    ),
    "recorded and never done": (
        lambda f: replace(f, lines=[line for line in f.lines if line.label != "after"]),
        "never acted",
    ),
    "completed twice": (lambda f: _again(f, "completed"), "completed twice"),
    "began after its end": (lambda f: _again(f, "started"), "began again after its end"),
    "a record is missing": (lambda f: replace(f, records=f.records[:3] + f.records[4:]), "not numbered"),
    "left running": (lambda f: _with_run(f, status="running", worker_id="w"), "left running by worker w"),
    "still owned": (lambda f: _with_run(f, worker_id="w"), "still owned"),
    "records without a run": (lambda f: _with_run(f, id="other"), "which does not exist"),
    "another result": (lambda f: replace(f, outcome={"run": {"completed": []}}), "outcome"),
    "asked twice": (
        lambda f: replace(f, interrupts=[*f.interrupts, {**f.interrupts[0], "id": "q_2"}]),
        "asked 2 times",
    ),
    "an unstable id": (lambda f: _with_question(f, id="q_2"), "another id than its place gives it"),
    "open after the end": (lambda f: _with_question(f, status="pending"), "its run has ended"),
    "never delivered": (lambda f: _with_question(f, delivered_at=None), "was never delivered"),
    "answered twice": (lambda f: _again(f, "answered"), "was answered 2 times"),
    "not used": (
        lambda f: _with_line(f, "between", consumed=_line(f, "between").consumed[:1]),
        "uses: too many [], missing",
    ),
    "told of another end": (
        lambda f: _told(f, {"completed": ["other"]}),
        "and then it was",
    ),
    "told of a question that is not there": (
        lambda f: _told(f, {"paused": ["q_0"]}),
        "which is not stored",
    ),
    "another recorded result": (
        lambda f: _with_record(f, "status", -1, data='["other"]'),
        "the last process was told",
    ),
    "a question of nobody": (lambda f: _with_question(f, idx=77), "of no suspended operation"),
}


@pytest.mark.parametrize(("doctor", "finding"), DOCTORED.values(), ids=DOCTORED.keys())
def test_the_auditor_finds(facts: Facts, doctor: Callable[[Facts], Facts], finding: str) -> None:
    """One thing is wrong, and it is said."""
    found = audit.violations(doctor(facts), audit.reference(facts))
    assert any(finding in text for text in found), found


def _outcome(facts: Facts, **change: Any) -> Facts:
    return replace(facts, outcome={"run": {**facts.outcome["run"], **change}})


def _with_state(facts: Facts, node: str, old: str, new: str) -> Facts:
    """The state after this node is stored as another one."""
    [chosen] = [row for row in facts.records if (row["type"], row["path"]) == ("completed", node)]
    assert old in chosen["state"]
    changed = {**chosen, "state": chosen["state"].replace(old, new)}
    return replace(facts, records=[changed if row is chosen else row for row in facts.records])


DOCTORED_CHAIN: dict[str, tuple[Callable[[Facts], Facts], str]] = {
    "told of another state": (lambda f: _outcome(f, state={}), "ends with the state"),
    "told of another result": (
        lambda f: _outcome(f, results={**f.outcome["run"]["results"], "plain": "other"}),
        "node plain of run run is recorded with",
    ),
    "another state is stored": (lambda f: _with_state(f, "plain", '["plain"]', '["plane"]'), "boundaries: too many"),
    "consumed what its checkpoint does not show": (
        lambda f: _with_line(f, "after", consumed=[_line(f, "before").token]),
        "its checkpoint shows",
    ),
    "recorded what never happened": (
        lambda f: _with_line(f, "plain", token=new_token("plain")),
        "which never happened",
    ),
    "a change that nobody saw": (
        lambda f: _with_line(f, "after", consumed=_line(f, "after").consumed[:2]),
        "uses: too many [], missing [('run patch', 'run after')]",
    ),
    "another order of the state": (
        lambda f: _outcome(f, state=dict(reversed(f.outcome["run"]["state"].items()))),
        "outcome",
    ),
}


@pytest.mark.parametrize(("doctor", "finding"), DOCTORED_CHAIN.values(), ids=DOCTORED_CHAIN.keys())
def test_the_auditor_finds_in_a_chain(chain_facts: Facts, doctor: Callable[[Facts], Facts], finding: str) -> None:
    """The same of states, and of what a chain's nodes took from them."""
    assert audit.violations(chain_facts, audit.reference(chain_facts)) == []
    found = audit.violations(doctor(chain_facts), audit.reference(chain_facts))
    assert any(finding in text for text in found), found


def test_the_auditor_accepts_a_repetition_in_doubt(facts: Facts) -> None:
    """A process was killed between the effect and its record: the same operation acted once more."""
    doubtful = replace(_before(facts, "before", incarnation="x"), killed=frozenset("x"))
    assert audit.violations(doubtful, audit.reference(facts)) == []


def test_every_program_is_named_once() -> None:
    """Programs are found by name in the child."""
    assert len({one.name for one in PROGRAMS}) == len(PROGRAMS)
    assert program("two_questions").answers == {"first?": True, "second?": False}
