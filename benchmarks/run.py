"""``python -m benchmarks.run``: every contender in turn (A B C A B C ...), medians, ratios, one document."""

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks import environment, goals, postgres, report
from benchmarks.plan import OURS, PEERS, STORES, WORKLOADS, Contender, contenders
from benchmarks.process import ROOT, Bench, MeasurementFailed


def main() -> int:
    """Exit code 1 when a measurement failed (the others are still reported)."""
    arguments = _parse()
    work = arguments.work_dir.resolve()
    work.mkdir(parents=True, exist_ok=True)
    facts = environment.machine(work)
    with ExitStack() as stack:
        server = None
        if "postgres" in arguments.stores:
            server = stack.enter_context(postgres.running(work / "postgres"))
            facts["postgres"] = ", ".join(f"{name}={value}" for name, value in server.settings().items())
        bench = Bench(
            own_python=sys.executable,
            peers_python=environment.peers_python(work),
            data=work / "data",
            server=server,
        )
        facts["versions"] = ", ".join(
            f"{name} {version}" for name, version in environment.versions(bench.peers_python).items()
        )
        facts["load before"] = environment.load()
        summaries, failures = _measure(bench, arguments)
        facts["load after"] = environment.load()
    _publish(summaries, failures, facts, arguments)
    return 1 if failures else 0


def _measure(bench: Bench, arguments: argparse.Namespace) -> tuple[list[report.Summary], list[str]]:
    measured: defaultdict[Contender, list[dict[str, Any]]] = defaultdict(list)
    failures: list[str] = []
    for contender in _turns(arguments):
        plan = WORKLOADS[contender.workload]
        try:
            figures = bench.measure(contender, plan.quick if arguments.quick else plan.full)
        except MeasurementFailed as failed:
            failures.append(str(failed))
            print(f"FAILED {failed}", file=sys.stderr)
            continue
        measured[contender].append(figures)
        value = f"{figures[plan.value]:>10,} {plan.unit}"
        print(f"{contender.workload:9}{contender.store:9}{contender.label:20}{value}", file=sys.stderr)
    summaries = [
        report.Summary(contender=contender, measurements=tuple(figures)) for contender, figures in measured.items()
    ]
    return summaries, failures


def _turns(arguments: argparse.Namespace) -> Iterator[Contender]:
    """Within a workload and a store everybody takes turns, so that a slow minute hits all alike."""
    for workload in arguments.workloads:
        for store in arguments.stores:
            taking_part = contenders(workload, store, arguments.peers)
            if arguments.without_ours:
                taking_part = [contender for contender in taking_part if contender.name != OURS]
            for _ in range(arguments.runs):
                yield from taking_part


def _publish(
    summaries: list[report.Summary], failures: list[str], facts: dict[str, str], arguments: argparse.Namespace
) -> None:
    results = {(s.contender.workload, s.contender.store, s.contender.name, s.contender.mode): s for s in summaries}
    notes = [f"Medians of {arguments.runs} measurements; range = lowest to highest of them."]
    if arguments.quick:
        notes.append("QUICK run with small counts: it shows that the harness works, not how fast anybody is.")
    notes += [f"FAILED: {failure.splitlines()[0]}" for failure in failures]
    document = report.markdown(summaries, goals.verdicts(results), facts, notes)
    print(document)
    if arguments.out is not None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.with_suffix(".md").write_text(document)
        arguments.out.with_suffix(".jsonl").write_text("".join(f"{s.json_line()}\n" for s in summaries))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    add = parser.add_argument
    add("--workloads", type=_names(tuple(WORKLOADS)), default=tuple(WORKLOADS), help=",".join(WORKLOADS))
    add("--stores", type=_names(STORES), default=STORES, help="sqlite,postgres")
    add("--peers", type=_names(PEERS), default=PEERS, help="dbos,langgraph,fastaiagent,absurd; none for ''")
    add("--runs", type=int, default=None, help="measurements of each contender (default 5; 2 with --quick)")
    add("--quick", action="store_true", help="small counts: does the harness work?")
    add("--without-ours", action="store_true", help="only the peers and the floor")
    add("--out", type=Path, default=None, metavar="FILE", help="write FILE.md and FILE.jsonl")
    add("--work-dir", type=Path, default=ROOT / ".benchmarks", help="peers, databases; must be on a disk")
    arguments = parser.parse_args()
    arguments.runs = arguments.runs or (2 if arguments.quick else 5)
    return arguments


def _names(allowed: tuple[str, ...]) -> Any:
    def parse(text: str) -> tuple[str, ...]:
        names = tuple(name for name in text.split(",") if name)
        unknown = [name for name in names if name not in allowed]
        if unknown:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: not one of {', '.join(allowed)}")
        return names

    return parse


if __name__ == "__main__":
    sys.exit(main())
