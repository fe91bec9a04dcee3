"""Figures to medians, ratios and tables: JSON lines for machines, Markdown for ``docs/benchmarks.md``."""

import json
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from benchmarks.goals import Verdict
from benchmarks.plan import OURS, WORKLOADS, Contender, WorkloadPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One contender in one workload on one store: every measurement, and their medians."""

    contender: Contender
    measurements: tuple[dict[str, Any], ...]

    @property
    def plan(self) -> WorkloadPlan:
        return WORKLOADS[self.contender.workload]

    @property
    def value(self) -> float:
        return self.median(self.plan.value)

    def median(self, figure: str) -> float:
        """Median over the measurements. Raises ``KeyError`` when no measurement has the figure."""
        values = [measured[figure] for measured in self.measurements if figure in measured]
        if not values:
            raise KeyError(figure)
        return statistics.median(values)

    def worst(self, figure: str) -> float:
        return max(measured[figure] for measured in self.measurements)

    def spread(self) -> str:
        values = [measured[self.plan.value] for measured in self.measurements]
        return f"{_number(min(values))}-{_number(max(values))}"

    def json_line(self) -> str:
        """The measurements with their medians, as one line."""
        numeric = [k for k, v in self.measurements[0].items() if isinstance(v, int | float)]
        return json.dumps(
            {
                "contender": self.contender.name,
                "mode": self.contender.mode,
                "workload": self.contender.workload,
                "store": self.contender.store,
                "durability": self.contender.durability,
                "median": {figure: self.median(figure) for figure in numeric},
                "measurements": self.measurements,
            }
        )


def markdown(
    summaries: list[Summary], verdicts: list[Verdict], facts: dict[str, str], notes: Iterable[str] = ()
) -> str:
    """The whole document body: facts, one table per workload and store, goals, durability."""
    parts = ["### Machine and versions", _facts(facts), *notes]
    for workload, plan in WORKLOADS.items():
        for store in ("sqlite", "postgres"):
            rows = [s for s in summaries if (s.contender.workload, s.contender.store) == (workload, store)]
            if rows:
                parts += [f"### {workload} on {store}: {plan.title}", _table(rows)]
    if verdicts:
        parts += ["### Goals", _verdicts(verdicts)]
    return "\n\n".join([*parts, "### What each side promises", _durability(summaries)]) + "\n"


def _table(rows: list[Summary]) -> str:
    plan = rows[0].plan
    columns = [column for column in plan.columns if any(column in row.measurements[0] for row in rows)]
    heads = ["", plan.unit, "range", *_ratio_heads(rows), *[column.replace("_", " ") for column in columns]]
    ordered = sorted(rows, key=lambda row: row.value, reverse=plan.is_higher_better)
    lines = [_row([_name(row), *_cells(row, rows, columns)]) for row in ordered]
    return "\n".join([_row(heads), _row(["---", *["--:"] * (len(heads) - 1)]), *lines])


def _ratio_heads(rows: list[Summary]) -> list[str]:
    return [f"{row.contender.label} is better by" for row in rows if row.contender.name == OURS]


def _cells(row: Summary, rows: list[Summary], columns: list[str]) -> list[str]:
    ours = [other for other in rows if other.contender.name == OURS]
    ratios = ["" if row is own else f"{_advantage(own, row):.2f}x" for own in ours]
    return [_number(row.value), row.spread(), *ratios, *[_figure(row, column) for column in columns]]


def _advantage(own: Summary, other: Summary) -> float:
    """How many times better ours is: above 1 is better, whichever direction the figure has."""
    return own.value / other.value if own.plan.is_higher_better else other.value / own.value


def _figure(row: Summary, figure: str) -> str:
    try:
        return _number(row.median(figure))
    except KeyError:
        return ""


def _name(row: Summary) -> str:
    return f"**{row.contender.label}**" if row.contender.name == OURS else row.contender.label


def _facts(facts: dict[str, str]) -> str:
    return "\n".join(["| | |", "|---|---|", *[_row([name, value]) for name, value in facts.items()]])


def _verdicts(verdicts: list[Verdict]) -> str:
    lines = [_row([v.goal, v.measured, "met" if v.is_met else f"MISSED {v.missed_by}"]) for v in verdicts]
    return "\n".join([_row(["goal", "measured", ""]), "|---|---|---|", *lines])


def _durability(summaries: list[Summary]) -> str:
    promises = {
        (s.contender.label, s.contender.store): s.contender.durability for s in summaries if s.contender.durability
    }
    lines = [_row([label, store, promise]) for (label, store), promise in promises.items()]
    return "\n".join([_row(["", "store", "a step's record"]), "|---|---|---|", *lines])


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _number(value: float) -> str:
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"
