"""Which contenders meet in which workload, on which store, with what promise. Data only."""

from dataclasses import dataclass

STORES = ("sqlite", "postgres")
PEERS = ("dbos", "langgraph", "fastaiagent", "absurd")
OURS = "perdure"


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much of a workload one measurement does."""

    amount: int  # steps (w1, w3) or runs (w2, w5)
    steps: int = 0  # steps of a run (w2, w5)
    concurrency: int = 0  # runs at a time (w2)
    counts: tuple[int, ...] = ()  # ascending; each on a store of its own instead of `amount` (w3)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadPlan:
    title: str
    value: str  # the headline figure of a measurement
    unit: str
    is_higher_better: bool
    columns: tuple[str, ...]  # the other figures worth a column, by name
    full: Size
    quick: Size


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One side of a comparison, as it takes part in one workload on one store."""

    name: str
    workload: str
    store: str
    mode: str = ""
    module: str
    durability: str  # when a step is on disk, and how
    is_staged: bool = False  # its database needs a setup stage of its own
    reads_records: bool = False  # it can say which steps a store holds as durable

    @property
    def label(self) -> str:
        return f"{self.name} ({self.mode})" if self.mode else self.name

    @property
    def is_peer(self) -> bool:
        return self.name in PEERS


WORKLOADS = {
    "w1": WorkloadPlan(
        title="one run of sequential trivial steps, each on disk before the next begins",
        value="steps_per_s",
        unit="steps/s",
        is_higher_better=True,
        columns=("count", "cpu_us_per_step", "wal_syncs_per_step", "transactions_per_step"),
        full=Size(amount=1000),
        quick=Size(amount=200),
    ),
    "w1safe": WorkloadPlan(
        title="one run of sequential trivial steps, written behind: may lose the last moments",
        value="steps_per_s",
        unit="steps/s",
        is_higher_better=True,
        columns=("count", "cpu_us_per_step", "max_late_ms", "wal_syncs_per_step"),
        full=Size(amount=1000),
        quick=Size(amount=200),
    ),
    "w1chain": WorkloadPlan(
        title="the same as a chain: a line of trivial nodes over one state",
        value="steps_per_s",
        unit="nodes/s",
        is_higher_better=True,
        columns=("count", "cpu_us_per_step", "wal_syncs_per_step", "transactions_per_step"),
        full=Size(amount=1000),
        quick=Size(amount=200),
    ),
    "w2": WorkloadPlan(
        title="many short runs, 50 at a time",
        value="runs_per_s",
        unit="runs/s",
        is_higher_better=True,
        columns=("count", "p50_ms", "p99_ms"),
        full=Size(amount=2000, steps=3, concurrency=50),
        quick=Size(amount=200, steps=3, concurrency=50),
    ),
    "w3": WorkloadPlan(
        title="a state that grows by 1 KB a step: what the store has grown by, and how long it took",
        value="kb",
        unit="KB for the most steps",
        is_higher_better=False,
        columns=("kb_50", "kb_100", "kb_200", "kb_400", "growth", "s_100", "s_200", "s_400", "s_growth"),
        full=Size(amount=400, counts=(50, 100, 200, 400)),
        quick=Size(amount=100, counts=(25, 50, 100)),
    ),
    "w4": WorkloadPlan(
        title="a cold process resumes a paused run to its end and exits",
        value="exit_ms",
        unit="ms until exit",
        is_higher_better=False,
        columns=("done_ms", "import_ms", "after_ms"),
        full=Size(amount=1),
        quick=Size(amount=1),
    ),
    "w4chain": WorkloadPlan(
        title="a cold process resumes a paused chain to its end and exits",
        value="exit_ms",
        unit="ms until exit",
        is_higher_better=False,
        columns=("done_ms", "import_ms", "after_ms"),
        full=Size(amount=1),
        quick=Size(amount=1),
    ),
    "w5": WorkloadPlan(
        title="kill -9 with every run in flight, restart, all complete (spawn to complete)",
        value="recover_s",
        unit="s",
        is_higher_better=False,
        columns=("in_flight", "ran_twice", "twice_finished", "twice_recorded", "unknown_to_store"),
        full=Size(amount=200, steps=10),
        quick=Size(amount=50, steps=6),
    ),
}

_DURABILITY = {
    ("perdure", "sqlite"): "WAL, synchronous=FULL; a step is on disk before the next begins",
    ("perdure", "postgres"): "synchronous_commit=on; a step is on disk before the next begins",
    ("dbos", "sqlite"): "rollback journal, synchronous=FULL; a step is on disk before the next begins",
    ("dbos", "postgres"): "synchronous_commit=on; a step is on disk before the next begins",
    ("langgraph", "sqlite"): "WAL, synchronous=FULL; on disk before the next super-step (two commits)",
    ("langgraph", "postgres"): "synchronous_commit=on; on disk before the next super-step (two commits)",
    ("fastaiagent", "sqlite"): "WAL, synchronous=FULL; a node is on disk before the next begins",
    ("fastaiagent", "postgres"): "synchronous_commit=on; a node is on disk before the next begins",
    ("absurd", "postgres"): "synchronous_commit=on; a step is on disk before the next begins",
    ("floor", "sqlite"): "WAL, synchronous=FULL, one row a commit",
    ("floor", "postgres"): "synchronous_commit=on, one row a commit, one connection",
}
_BEHIND = "written behind, on disk some time later; all of it before the run is reported complete"
_MODES = {  # the variants that take part; a contender that is not named takes part once, without a mode
    ("perdure", "w1"): ("arun", "run"),
    ("perdure", "w1chain"): ("arun", "run"),
    ("perdure", "w1safe"): ("safe",),
    ("perdure", "w3"): ("reducer", "whole list"),
    ("floor", "w2"): ("group commit",),
    ("langgraph", "w1"): ("sync",),
    ("langgraph", "w1chain"): ("sync",),
    ("langgraph", "w1safe"): ("async",),
    ("langgraph", "w2"): ("sync",),
    ("langgraph", "w3"): ("sync", "sync, delta"),
    ("langgraph", "w5"): ("sync",),
}
_PROBES = {
    ("w1", "sqlite"): ["floor"],
    ("w1", "postgres"): ["floor"],
    ("w1chain", "sqlite"): ["floor"],
    ("w1chain", "postgres"): ["floor"],
    ("w1safe", "sqlite"): ["floor"],
    ("w1safe", "postgres"): ["floor"],
    ("w2", "sqlite"): ["floor"],
    ("w3", "sqlite"): ["floor"],
    ("w3", "postgres"): ["floor"],
    ("w4", "sqlite"): ["imports"],
    ("w4", "postgres"): ["imports"],
    ("w4chain", "sqlite"): ["imports"],
    ("w4chain", "postgres"): ["imports"],
}
_PEERS_OF = {  # where not everybody takes part
    "w1safe": ("langgraph",),  # the only one that has a mode for it
    "w1chain": ("langgraph", "fastaiagent"),  # the ones with graphs over a state
    "w3": ("dbos", "langgraph", "fastaiagent"),
    "w4chain": ("langgraph", "fastaiagent"),
}
_MODULES = {
    "perdure": "benchmarks.ours",
    "floor": "benchmarks.floor",
    "imports": "benchmarks.floor",
    "dbos": "benchmarks.peers.dbos",
    "langgraph": "benchmarks.peers.langgraph",
    "fastaiagent": "benchmarks.peers.fastaiagent",
    "absurd": "benchmarks.peers.absurd",
}


def contenders(workload: str, store: str, peers: tuple[str, ...]) -> list[Contender]:
    """Everybody who takes part, in the order in which they take turns."""
    return [
        _contender(name, workload, store, mode)
        for name in _names(workload, store, peers)
        for mode in _MODES.get((name, workload), ("",))
    ]


def _names(workload: str, store: str, peers: tuple[str, ...]) -> list[str]:
    probes = _PROBES.get((workload, store), [])
    present = [name for name in peers if name != "absurd" or store == "postgres"]
    present = [name for name in present if name in _PEERS_OF.get(workload, PEERS)]
    return [*probes, OURS, *present]


def _contender(name: str, workload: str, store: str, mode: str) -> Contender:
    durability = _DURABILITY.get((name, store), "")
    if workload == "w1safe" and name not in _PROBES.get((workload, store), ()):
        durability = _BEHIND
    if (name, workload) == ("floor", "w2"):
        durability = "WAL, synchronous=FULL, all rows that are waiting a commit"
    return Contender(
        name=name,
        workload=workload,
        store=store,
        mode=mode,
        module=_MODULES[name],
        durability=durability,
        is_staged=name == "absurd",
        reads_records=name == OURS,
    )
