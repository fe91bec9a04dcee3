"""Kills a program at its points and looks whether the laws hold afterwards.

One scenario: a process runs the program and is killed at a point (and, of a pair, its successor at
another); then a new person goes on in a new process while a worker process competes for the runs; then
`audit` compares. Scenarios are independent: as many run at a time as there are sites.
"""

from __future__ import annotations

import json
import random
import shutil
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any, ClassVar, Protocol
from zlib import crc32

from perdure.testing import audit, facts
from perdure.testing.programs import Program
from perdure.testing.roles import Job
from perdure.testing.zygote import Child, Zygote

_TIMEOUT_S = 60.0
"""Nothing here takes a second; a process that is not done by then hangs."""


class Site(Protocol):
    """A place for one scenario at a time."""

    kind: ClassVar[str]

    def fresh(self) -> str:
        """Empty it; returns the store's URL."""
        ...


@dataclass(slots=True)
class SqliteSite:
    """A file, copied from one that is set up already."""

    kind: ClassVar[str] = "sqlite"
    template: Path
    directory: Path
    count: int = 0

    def fresh(self) -> str:
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(parents=True)
        self.count += 1
        path = self.directory / f"store{self.count}.db"
        shutil.copyfile(self.template, path)
        return f"sqlite:///{path}"


@dataclass(frozen=True, slots=True)
class PostgresSite:
    """A database whose tables are emptied; it is set up already."""

    kind: ClassVar[str] = "postgres"
    url: str

    def fresh(self) -> str:
        import psycopg  # optional dependency: perdure[postgres]

        with psycopg.connect(self.url, autocommit=True, options="-c search_path=perdure") as connection:
            connection.execute("TRUNCATE run, record, interrupt, worker")
        return self.url


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Where processes are killed: the first at a named point, the second at its `ordinal`-th."""

    point: str
    ordinal: int | None = None

    def __str__(self) -> str:
        return self.point if self.ordinal is None else f"{self.point}, then the recovery's point {self.ordinal}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a scenario showed. `kills` counts processes that were really killed."""

    scenario: Scenario
    kills: int
    violations: list[str]
    trail: list[str]

    def __str__(self) -> str:
        return "\n  ".join([f"killed at {self.scenario} ({'; '.join(self.trail)}):", *self.violations])


@dataclass(slots=True)
class Report:
    """Counts of one program on one store, and what did not hold."""

    points: int = 0
    kills: int = 0
    pairs: int = 0
    findings: list[Finding] = field(default_factory=list)

    def add(self, finding: Finding) -> None:
        self.kills += finding.kills
        self.pairs += finding.kills > 1
        if finding.violations:
            self.findings.append(finding)


class Explorer:
    """Runs scenarios of one program. `directory` is for ledgers and logs; `sites` are used one scenario
    each. `may_miss`: a point may not come, since how often the run sleeps depends on time; then nobody is killed, and
    the laws hold all the same."""

    def __init__(
        self,
        program: Program,
        zygote: Zygote,
        sites: Sequence[Site],
        directory: Path,
        *,
        is_inline: bool = False,
        may_miss: bool = False,
    ) -> None:
        self.program = program
        self.store = sites[0].kind + (", inline" if is_inline else "")
        self._is_inline = is_inline
        self._may_miss = may_miss
        self._zygote = zygote
        self._directory = directory
        self._site_count = len(sites)
        self._sites: SimpleQueue[Site] = SimpleQueue()
        for site in sites:
            self._sites.put(site)
        self._scenario_count = 0

    def undisturbed(self) -> tuple[audit.Reference, list[str]]:
        """A run that nobody kills: what it leaves, and its points in order. Raises `AssertionError` if it
        is not right itself."""
        with self._site() as site:
            place = self._place(site)
            place.run("undisturbed")
            left = place.facts(())
            reference = audit.reference(left)
            found = audit.violations(left, reference)
            assert not found, f"{self.program.name}, undisturbed: {found}"
            for run_id, outcome in left.outcome.items():
                assert self.program.ends in outcome, f"{self.program.name}: {run_id} ended as {outcome}"
            return reference, place.trace()

    def explore(
        self, scenarios: Sequence[Scenario], reference: audit.Reference, report: Report | None = None
    ) -> Report:
        """Run the scenarios, as many at a time as there are sites."""
        report = report or Report()
        with ThreadPoolExecutor(self._site_count) as pool:
            for finding in pool.map(lambda scenario: self._run(scenario, reference), scenarios):
                report.add(finding)
        return report

    def _run(self, scenario: Scenario, reference: audit.Reference) -> Finding:
        with self._site() as site:
            return self._place(site).scenario(scenario, reference, may_miss=self._may_miss)

    def _place(self, site: Site) -> _Place:
        self._scenario_count += 1
        directory = self._directory / f"scenario{self._scenario_count}"
        directory.mkdir(parents=True)
        return _Place(self.program, self._zygote, site.fresh(), directory, self._is_inline)

    @contextmanager
    def _site(self) -> Iterator[Site]:
        site = self._sites.get()
        try:
            yield site
        finally:
            self._sites.put(site)


class _Hung(Exception):
    """A process did not come to an end."""


class _Place:
    """One scenario's store, ledger and processes."""

    def __init__(self, program: Program, zygote: Zygote, url: str, directory: Path, is_inline: bool) -> None:
        self._program = program
        self._is_inline = is_inline
        self._zygote = zygote
        self._url = url
        self._directory = directory
        self._ledger = directory / "ledger"
        self._last = ""

    def scenario(self, scenario: Scenario, reference: audit.Reference, *, may_miss: bool) -> Finding:
        trail: list[str] = []
        killed: list[str] = []
        try:
            found = self._disturb(scenario, killed, trail, may_miss)
            found = found or audit.violations(self.facts(killed), reference)
        except _Hung as error:
            found = [str(error)]
        if not found:
            shutil.rmtree(self._directory)
        return Finding(scenario=scenario, kills=len(killed), violations=found, trail=trail)

    def _disturb(self, scenario: Scenario, killed: list[str], trail: list[str], may_miss: bool) -> list[str]:
        code = self._victim("first", killed, trail, point=scenario.point)
        if code == 0 and may_miss:
            return []
        if code != -signal.SIGKILL:
            return [f"the point was not reached (exit status {code})", self._log("first")]
        if scenario.ordinal is not None:
            code = self._victim("second", killed, trail, ordinal=scenario.ordinal)
            if code == 0:
                return []
            if code != -signal.SIGKILL:
                return [f"the second process failed (exit status {code})", self._log("second")]
        return self._recover(recovers=crc32(str(scenario).encode()) % 2 == 0)

    def _victim(
        self,
        name: str,
        killed: list[str],
        trail: list[str],
        *,
        point: str | None = None,
        ordinal: int | None = None,
    ) -> int:
        note = self._directory / f"{name}.point"
        code = self._wait(name, self._spawn("person", name, point=point, ordinal=ordinal, note=str(note)))
        if code == -signal.SIGKILL:
            killed.append(name)
            trail.append(note.read_text())
        return code

    def _recover(self, *, recovers: bool) -> list[str]:
        worker = self._spawn("worker", "worker")
        try:
            code = self._wait("last", self._spawn("person", "last", recovers=recovers))
        finally:
            worker.signal(signal.SIGTERM)
            worker_code = self._wait("worker", worker)
        found = [] if code == 0 else [f"the recovery failed (exit status {code})", self._log("last")]
        if worker_code != 0:
            found += [f"the worker failed (exit status {worker_code})", self._log("worker")]
        return found

    def run(self, name: str) -> None:
        """One process to its end."""
        code = self._wait(name, self._spawn("person", name))
        assert code == 0, f"{self._program.name}: exit status {code}\n{self._log(name)}"

    def facts(self, killed: Sequence[str]) -> facts.Facts:
        outcome = self._result()["outcome"]
        return facts.read_facts(self._url, self._ledger, outcome, killed)

    def trace(self) -> list[str]:
        return self._result()["trace"]

    def _result(self) -> dict[str, Any]:
        return json.loads((self._directory / f"{self._last}.json").read_text())

    def _spawn(
        self,
        role: str,
        name: str,
        *,
        recovers: bool = False,
        point: str | None = None,
        ordinal: int | None = None,
        note: str | None = None,
    ) -> Child:
        if role == "person":
            self._last = name
        job = Job(
            role=role,
            program=self._program.name,
            value=self._program.value,
            answers=dict(self._program.answers),
            shape=self._program.shape,
            url=self._url,
            ledger=str(self._ledger),
            incarnation=name,
            result=str(self._directory / f"{name}.json"),
            recovers=recovers,
            is_inline=self._is_inline and role == "person",
            point=point,
            ordinal=ordinal,
            note=note,
        )
        return self._zygote.spawn(job, log=str(self._directory / f"{name}.log"))

    def _wait(self, name: str, child: Child) -> int:
        code = child.wait(_TIMEOUT_S)
        if code is None:
            child.signal(signal.SIGKILL)
            child.wait(_TIMEOUT_S)
            raise _Hung(f"process {name} hangs\n{self._log(name)}")
        return code

    def _log(self, name: str) -> str:
        path = self._directory / f"{name}.log"
        return path.read_text()[-4000:] if path.exists() else ""


# --- which scenarios ------------------------------------------------------------------------------------


def singles(points: Sequence[str]) -> list[Scenario]:
    """Each point once."""
    return [Scenario(point=point) for point in points]


def pairs(points: Sequence[str], count: int, choose: random.Random) -> list[Scenario]:
    """Pairs: a point, and how many points the recovery lives to see."""
    return [Scenario(point=choose.choice(points), ordinal=choose.randint(1, 12)) for _ in range(count)]


def sample(points: Sequence[str], count: int, choose: random.Random) -> list[Scenario]:
    """Some of the points."""
    return singles(choose.sample(list(points), min(count, len(points))))
