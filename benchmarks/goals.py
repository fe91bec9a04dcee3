"""What we want the figures to say: each goal is a ratio within one run, never an absolute rate."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol


class Measured(Protocol):
    """A contender's medians, and its worst measurement of a figure that must never be high."""

    @property
    def value(self) -> float: ...

    def median(self, figure: str) -> float: ...

    def worst(self, figure: str) -> float: ...


Key = tuple[str, str, str, str]  # workload, store, contender, mode
Results = Mapping[Key, Measured]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    goal: str
    measured: str
    is_met: bool
    missed_by: str = ""


def verdicts(results: Results) -> list[Verdict]:
    """Judge every goal whose contenders were all measured; a goal without its figures is left out."""
    found: list[Verdict] = []
    for goal in _GOALS:
        try:
            found += goal(results)
        except KeyError:
            continue
    return found


def _at_least(goal: str, value: float, wanted: float, unit: str = "x") -> Verdict:
    missed = f"by {(1 - value / wanted) * 100:.0f} %"
    return Verdict(goal=goal, measured=f"{value:.2f}{unit}", is_met=value >= wanted, missed_by=missed)


def _at_most(goal: str, value: float, wanted: float, unit: str) -> Verdict:
    missed = f"by {value - wanted:.1f}{unit}"
    return Verdict(goal=goal, measured=f"{value:.2f}{unit}", is_met=value <= wanted, missed_by=missed)


def _peers(results: Results, workload: str, store: str) -> dict[str, Measured]:
    """The peers of a table by name. Raises ``KeyError`` when there is none."""
    found = {
        name: measured
        for (measured_in, on, name, _), measured in results.items()
        if (measured_in, on) == (workload, store) and name not in ("perdure", "floor", "imports")
    }
    if not found:
        raise KeyError((workload, store))
    return found


def _sequential(store: str) -> Callable[[Results], list[Verdict]]:
    def judge(results: Results) -> list[Verdict]:
        ours, floor = results["w1", store, "perdure", "arun"].value, results["w1", store, "floor", ""].value
        fastest = max(peer.value for peer in _peers(results, "w1", store).values())
        return [
            _at_least(f"w1 {store}: arun at 40 % of the floor", ours / floor * 100, 40, " %"),
            _at_least(f"w1 {store}: arun not below the fastest peer", ours / fastest, 1),
        ]

    return judge


def _sequential_sync(results: Results) -> list[Verdict]:
    ours, floor = results["w1", "sqlite", "perdure", "run"].value, results["w1", "sqlite", "floor", ""].value
    return [_at_least("w1 sqlite: run() at 55 % of the floor", ours / floor * 100, 55, " %")]


def _chain(store: str) -> Callable[[Results], list[Verdict]]:
    def judge(results: Results) -> list[Verdict]:
        fastest = max(peer.value for peer in _peers(results, "w1chain", store).values())
        return [
            _at_least(
                f"w1chain {store}: {call} not below the fastest peer",
                results["w1chain", store, "perdure", call].value / fastest,
                1,
            )
            for call in ("arun", "run")
        ]

    return judge


def _growing(store: str, mode: str, factor: float) -> Callable[[Results], list[Verdict]]:
    def judge(results: Results) -> list[Verdict]:
        ours, floor = results["w3", store, "perdure", mode], results["w3", store, "floor", ""]
        return [
            _at_most(
                f"w3 {store}, {mode}: 4 times the steps, at most 4.4 times the bytes", ours.worst("growth"), 4.4, "x"
            ),
            _at_most(
                f"w3 {store}, {mode}: at most {factor:g}x the bytes of the floor", ours.value / floor.value, factor, "x"
            ),
        ]

    return judge


def _written_behind(store: str, factor: float) -> Callable[[Results], list[Verdict]]:
    def judge(results: Results) -> list[Verdict]:
        ours = results["w1safe", store, "perdure", "safe"]
        theirs = results["w1safe", store, "langgraph", "async"].value
        late_ms = ours.worst("max_late_ms")
        return [
            _at_least(f"w1safe {store}: {factor:g}x LangGraph's async mode", ours.value / theirs, factor),
            _at_most(f"w1safe {store}: a task on the loop late by at most 50 ms", late_ms, 50, " ms"),
        ]

    return judge


def _many_runs(store: str, factor: float) -> Callable[[Results], list[Verdict]]:
    def judge(results: Results) -> list[Verdict]:
        ours = results["w2", store, "perdure", ""]
        fastest = max(peer.value for peer in _peers(results, "w2", store).values())
        spread = ours.median("p99_ms") / ours.median("p50_ms")
        return [
            _at_least(f"w2 {store}: {factor:g}x the fastest peer", ours.value / fastest, factor),
            _at_most(f"w2 {store}: p99 of a run below 2.5 x its p50", spread, 2.5, "x"),
        ]

    return judge


def _cold_resume_sqlite(results: Results) -> list[Verdict]:
    ours = results["w4", "sqlite", "perdure", ""].value
    fastest = min(peer.value for peer in _peers(results, "w4", "sqlite").values())
    return [_at_most("w4 sqlite: below every peer on SQLite", ours / fastest, 1, "x")]


def _cold_chain(store: str) -> Callable[[Results], list[Verdict]]:
    def judge(results: Results) -> list[Verdict]:
        ours = results["w4chain", store, "perdure", ""].value
        fastest = min(peer.value for peer in _peers(results, "w4chain", store).values())
        return [_at_most(f"w4chain {store}: below every peer", ours / fastest, 1, "x")]

    return judge


def _cold_resume_absurd(results: Results) -> list[Verdict]:
    ours = results["w4", "sqlite", "perdure", ""].value
    theirs = results["w4", "postgres", "absurd", ""].value
    return [_at_most("w4 sqlite: at most 1.15 x Absurd (on Postgres)", ours / theirs, 1.15, "x")]


def _cold_resume_postgres(results: Results) -> list[Verdict]:
    ours = results["w4", "postgres", "perdure", ""].value
    imports = results["w4", "postgres", "imports", ""].value
    return [_at_most("w4 postgres: bare imports + 60 ms", ours - imports, 60, " ms")]


def _import(results: Results) -> list[Verdict]:
    ours = results["w4", "sqlite", "perdure", ""].median("import_ms")
    return [_at_most("import perdure below 100 ms", ours, 100, " ms")]


def _crash(store: str) -> Callable[[Results], list[Verdict]]:
    def judge(results: Results) -> list[Verdict]:
        ours = results["w5", store, "perdure", ""]
        fastest = min(peer.value for peer in _peers(results, "w5", store).values())
        again = ours.worst("twice_recorded")
        return [
            _at_most(f"w5 {store}: faster than every peer", ours.value / fastest, 1, "x"),
            _at_most(f"w5 {store}: bodies run again although recorded: 0", again, 0, ""),
        ]

    return judge


_GOALS: tuple[Callable[[Results], list[Verdict]], ...] = (
    _sequential("sqlite"),
    _sequential("postgres"),
    _sequential_sync,
    _chain("sqlite"),
    _chain("postgres"),
    _written_behind("sqlite", 15),
    _written_behind("postgres", 8),
    _many_runs("sqlite", 4),
    _many_runs("postgres", 3),
    _growing("sqlite", "reducer", 2),
    _growing("sqlite", "whole list", 2.5),  # which is the run's output, too
    _growing("postgres", "reducer", 2),
    _growing("postgres", "whole list", 2.5),
    _cold_chain("sqlite"),
    _cold_chain("postgres"),
    _cold_resume_sqlite,
    _cold_resume_absurd,
    _cold_resume_postgres,
    _import,
    _crash("sqlite"),
    _crash("postgres"),
)
