"""docs/api-coverage.md is held to what it says: names that are delivered can be imported under the name in the table
and take what the references demand, files that it names exist, and what is planned is not there unnoticed.

`SIGNATURES` and `FIELDS` are what the references demand, not what we have: change them only if a reference changes.
"""

from __future__ import annotations

import importlib
import inspect
import re
import types
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.chain import checkpoint as chain_checkpoint
from perdure.checkpointers import memory, postgres, protocol
from perdure.cli import main
from perdure.cli.exits import Exit

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "api-coverage.md"
ROW = re.compile(r"^\| `([^`]+)` \|(.*?)\|(.*?)\| (\w+) \|$", re.MULTILINE)
LINK = re.compile(r"\[([^]]+)\]\(([^)]+)\)")

SIGNATURES = {
    "perdure.interrupt": "(reason, context)",
    "perdure.idempotent": "(fn=None, *, key_fn=None)",
    "perdure.Chain": "(name, state_schema=None, checkpoint_enabled=True, checkpointer=None, *, strict_routing=False)",
    "perdure.Chain.add_node": "(self, id, agent=None, tool=None, type=None, name='', *, node=None, fn=None, "
    "output_key=None, input_schema=None, output_schema=None, input_mapping=None, **config)",
    "perdure.Chain.connect": "(self, source, target, condition=None, max_iterations=None, exit_condition=None, "
    "label='')",
    "perdure.Chain.validate": "(self)",
    "perdure.Chain.run": "(self, initial_state=None, *, execution_id=None, context=None)",
    "perdure.Chain.arun": "async (self, initial_state=None, *, execution_id=None, context=None)",
    "perdure.Chain.execute": "(self, initial_state=None, *, execution_id=None, context=None)",
    "perdure.Chain.aexecute": "async (self, initial_state=None, *, execution_id=None, context=None)",
    "perdure.Chain.resume": "(self, execution_id, *, resume_value=None, modified_state=None)",
    "perdure.Chain.aresume": "async (self, execution_id, *, resume_value=None, modified_state=None, interrupt_id=None, "
    "repeat_operation=None)",
    "perdure.Chain.fork": "(self, execution_id, *, checkpoint_id=None, input=None, modified_state=None, context=None)",
    "perdure.Chain.afork": "async (self, execution_id, *, checkpoint_id=None, input=None, modified_state=None, "
    "context=None)",
    "perdure.Chain.cancel": "(self, execution_id)",
    "perdure.Chain.stream": "(self, initial_state=None, *, execution_id=None, context=None)",
    "perdure.Chain.astream": "(self, initial_state=None, *, execution_id=None, context=None)",
    "perdure.Chain.to_mermaid": "(self)",
    "perdure.FunctionTool": "(name, fn, description='')",
    "perdure.get_config": "()",
    "perdure.SQLiteCheckpointer": "(db_path=None)",
    "perdure.checkpointers.postgres.PostgresCheckpointer": "(connection_string, *, schema='perdure', min_pool_size=1, "
    "max_pool_size=10)",
    "perdure.chain.checkpoint.is_run_end": "(checkpoint)",
    "perdure.chain.checkpoint.latest_resumable": "(checkpointer, execution_id, *, latest=None, runner='Execution')",
    "perdure.chain.checkpoint.latest_forkable": "(checkpointer, execution_id, *, checkpoint_id=None)",
}

CHECKPOINTER_METHODS = {
    "setup": "(self)",
    "put": "(self, checkpoint)",
    "put_writes": "(self, execution_id, checkpoint_id, writes)",
    "get_last": "(self, execution_id)",
    "get_by_id": "(self, execution_id, checkpoint_id)",
    "list": "(self, execution_id, *, limit=100)",
    "list_pending_interrupts": "(self, *, limit=100)",
    "record_interrupt": "(self, checkpoint, pending)",
    "delete_pending_interrupt_atomic": "(self, execution_id)",
    "delete_execution": "(self, execution_id)",
    "get_idempotent": "(self, execution_id, function_key)",
    "put_idempotent": "(self, execution_id, function_key, result)",
    "prune": "(self, older_than)",
}
REPLICATION_METHODS = {
    "fetch_unsynced": "(self, limit, project_id=None)",
    "mark_synced": "(self, checkpoint_ids)",
    "mark_quarantined": "(self, reasons)",
}

NONE_OR_TEXT = str | None
FIELDS: dict[str, dict[str, Any]] = {
    "perdure.Resume": {"approved": bool, "metadata": dict[str, Any]},
    "perdure.PendingInterrupt": {
        "execution_id": str,
        "chain_name": str,
        "node_id": str,
        "reason": str,
        "context": dict[str, Any],
        "agent_path": NONE_OR_TEXT,
        "created_at": str,
    },
    "perdure.ChainResult": {
        "output": Any,
        "final_state": dict[str, Any],
        "execution_id": str,
        "node_results": dict[str, Any],
        "status": str,
        "pending_interrupt": dict[str, Any] | None,
        "trace_id": NONE_OR_TEXT,
    },
    "perdure.Checkpoint": {
        "checkpoint_id": str,
        "parent_checkpoint_id": NONE_OR_TEXT,
        "chain_name": str,
        "execution_id": str,
        "node_id": str,
        "node_index": int,
        "step_type": NONE_OR_TEXT,
        "status": str,
        "state_snapshot": dict[str, Any],
        "node_input": dict[str, Any],
        "node_output": Any,
        "iteration": int,
        "iteration_counters": dict[str, int],
        "interrupt_reason": NONE_OR_TEXT,
        "interrupt_context": dict[str, Any],
        "agent_path": NONE_OR_TEXT,
        "created_at": str,
    },
}
DEFAULTS = {
    "perdure.Resume": {"metadata": {}},
    "perdure.ChainResult": {"execution_id": "", "status": "completed", "pending_interrupt": None},
}

OPTIONS = {
    "perdure resume": {"--runner", "--value"},
    "perdure list-pending": {"--db-path"},
    "perdure inspect": {"--db-path"},
    "perdure setup-checkpointer": {"--backend", "--connection-string"},
}


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table of the page."""

    name: str
    links: tuple[tuple[str, str], ...]
    state: str


def _rows() -> list[Row]:
    return [
        Row(name, tuple(LINK.findall(where + test)), state)
        for name, where, test, state in ROW.findall(PAGE.read_text())
        if state in ("delivered", "planned")
    ]


ROWS = _rows()
DELIVERED = [row for row in ROWS if row.state == "delivered"]
PLANNED = [row for row in ROWS if row.state == "planned"]


def _find(name: str) -> Any:
    """What a dotted name stands for. Raises ImportError or AttributeError if it is not there."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            found = getattr(found, part)
        return found
    raise ImportError(name)


def _is_there(name: str) -> bool:
    if name.startswith("perdure "):
        return name.split()[1] in main._COMMANDS
    try:
        _find(name)
    except (ImportError, AttributeError):
        return False
    return True


# --- the page --------------------------------------------------------------------------------------------


def test_the_page_has_every_name_once() -> None:
    names = [row.name for row in ROWS]

    assert len(DELIVERED) > 50
    assert len(PLANNED) > 80
    assert {name for name in names if names.count(name) > 1} == set()


@pytest.mark.parametrize("row", DELIVERED, ids=lambda row: row.name)
def test_what_is_delivered_is_there(row: Row) -> None:
    assert _is_there(row.name)


@pytest.mark.parametrize("row", DELIVERED, ids=lambda row: row.name)
def test_what_is_delivered_has_a_place_and_a_test(row: Row) -> None:
    (shown, place), (shown_test, test) = row.links

    assert (place, test) == (f"../src/perdure/{shown}", f"../tests/{shown_test}")
    assert (DOCS / place).is_file()
    assert (DOCS / test).is_file()


@pytest.mark.parametrize("row", [row for row in PLANNED if row.name.startswith("perdure")], ids=lambda row: row.name)
def test_what_is_planned_is_not_there_yet(row: Row) -> None:
    assert not _is_there(row.name), "it is delivered: say where it is, and what tests it"


@pytest.mark.parametrize("name", [*SIGNATURES, *FIELDS, *OPTIONS])
def test_what_the_references_demand_is_on_the_page(name: str) -> None:
    assert name in {row.name for row in DELIVERED}


# --- signatures ------------------------------------------------------------------------------------------


def _demanded(text: str) -> types.FunctionType:
    """A function with this signature, e.g. `async (self, id, *, key=None)`."""
    prefix, _, parameters = text.rpartition("async ")
    scope: dict[str, Any] = {}
    exec(f"{'async ' if prefix or text.startswith('async ') else ''}def demanded{parameters}: ...", scope)
    return scope["demanded"]


def _differences(found: Any, text: str) -> Iterator[str]:
    """What keeps calls that fit the demanded signature from fitting ours."""
    demanded = _demanded(text)
    if inspect.iscoroutinefunction(demanded) != inspect.iscoroutinefunction(found):
        yield "one is async and the other is not"
    wanted = inspect.signature(demanded).parameters
    given = inspect.signature(found).parameters
    for place, (name, parameter) in enumerate(wanted.items()):
        ours = given.get(name)
        if ours is None:
            yield f"{name} is missing"
        elif parameter.kind is parameter.POSITIONAL_OR_KEYWORD and list(given)[place] != name:
            yield f"{name} is at another place"
        elif ours.kind is not parameter.kind and parameter.kind is not parameter.KEYWORD_ONLY:
            yield f"{name} is {ours.kind.description}"
        elif parameter.default is not parameter.empty and ours.default != parameter.default:
            yield f"{name} is {ours.default!r} by default"
    for name, parameter in given.items():
        is_variable = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if name not in wanted and not is_variable and parameter.default is parameter.empty:
            yield f"{name} is demanded by ours"


@pytest.mark.parametrize(("name", "text"), SIGNATURES.items())
def test_a_signature_takes_what_the_reference_says(name: str, text: str) -> None:
    assert list(_differences(_find(name), text)) == []


@pytest.mark.parametrize(
    "cls",
    [protocol.Checkpointer, perdure.SQLiteCheckpointer, postgres.PostgresCheckpointer, memory.MemoryCheckpointer],
    ids=lambda cls: cls.__name__,
)
def test_checkpointers_have_the_thirteen_methods(cls: type) -> None:
    assert len(CHECKPOINTER_METHODS) == 13
    for name, text in CHECKPOINTER_METHODS.items():
        assert list(_differences(getattr(cls, name), text)) == [], name


@pytest.mark.parametrize("cls", [perdure.SQLiteCheckpointer, postgres.PostgresCheckpointer], ids=lambda c: c.__name__)
def test_checkpointers_have_what_a_plane_needs(cls: type) -> None:
    for name, text in REPLICATION_METHODS.items():
        assert list(_differences(getattr(cls, name), text)) == [], name


def test_the_protocols_have_these_methods_and_no_others() -> None:
    def methods(cls: type) -> set[str]:
        return {name for name in vars(cls) if not name.startswith("_")}

    assert methods(protocol.Checkpointer) == set(CHECKPOINTER_METHODS)
    assert methods(protocol.ReplicatedCheckpointer) == {"fetch_unsynced", "mark_synced"}
    assert methods(protocol.QuarantinableCheckpointer) == {"mark_quarantined"}


def test_our_checkpointers_satisfy_the_protocols(tmp_path: Path) -> None:
    checkpointer = perdure.SQLiteCheckpointer(str(tmp_path / "x.db"))

    for each in (protocol.Checkpointer, protocol.ReplicatedCheckpointer, protocol.QuarantinableCheckpointer):
        assert isinstance(checkpointer, each)
    assert not isinstance(object(), protocol.Checkpointer)


@pytest.mark.parametrize(
    ("ours", "text", "difference"),
    [
        (lambda a, b: None, "(a)", ["b is demanded by ours"]),
        (lambda a: None, "(a, b=1)", ["b is missing"]),
        (lambda a, b=2: None, "(a, b=1)", ["b is 2 by default"]),
        (lambda b, a: None, "(a, b)", ["a is at another place", "b is at another place"]),
        (lambda a, *, b=1: None, "(a, b=1)", ["b is keyword-only"]),
        (lambda a: None, "async (a)", ["one is async and the other is not"]),
        (lambda a, b=1, *c, **d: None, "(a, *, b=1)", []),
    ],
)
def test_the_check_of_signatures_can_fail(ours: Any, text: str, difference: list[str]) -> None:
    assert list(_differences(ours, text)) == difference


# --- fields ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "fields"), FIELDS.items())
def test_a_model_has_the_fields_of_the_reference(name: str, fields: dict[str, Any]) -> None:
    model = _find(name)

    assert {field: model.model_fields[field].annotation for field in fields} == fields


@pytest.mark.parametrize(("name", "defaults"), DEFAULTS.items())
def test_a_field_has_the_default_of_the_reference(name: str, defaults: dict[str, Any]) -> None:
    model = _find(name)
    found = {field: model.model_fields[field].get_default(call_default_factory=True) for field in defaults}

    assert found == defaults


def test_a_resume_has_two_fields_and_no_default_for_the_decision() -> None:
    assert set(perdure.Resume.model_fields) == {"approved", "metadata"}
    assert perdure.Resume.model_fields["approved"].is_required()


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("perdure.chain.interrupt", "_execution_id"),
        ("perdure.chain.interrupt", "_resume_value"),
        ("perdure.chain.interrupt", "_agent_path"),
        ("perdure.chain.idempotent", "_current_checkpointer"),
    ],
)
def test_a_context_variable_is_at_its_path_and_empty_outside_of_runs(module: str, name: str) -> None:
    variable = getattr(importlib.import_module(module), name)

    assert isinstance(variable, ContextVar)
    assert variable.name == name
    assert variable.get() is None


def test_context_variables_say_where_running_code_is(tmp_path: Path) -> None:
    execution_id = importlib.import_module("perdure.chain.interrupt")._execution_id
    current = importlib.import_module("perdure.chain.idempotent")._current_checkpointer
    seen: list[Any] = []

    async def look() -> None:
        seen.extend([execution_id.get(), current.get()])

    with perdure.SQLiteCheckpointer(tmp_path / "x.db") as checkpointer:
        perdure.Chain("seen", checkpointer=checkpointer).add_node("look", fn=look).run(execution_id="here")

    assert seen == ["here", checkpointer]
    assert execution_id.get() is None


def test_signals_and_errors_are_what_the_reference_says() -> None:
    signal = perdure.InterruptSignal("why", {"a": 1})

    assert (signal.reason, signal.context) == ("why", {"a": 1})
    for error in (perdure.InterruptSignal, perdure.AlreadyResumed, perdure.IdempotencyError):
        assert issubclass(error, Exception)
    assert issubclass(perdure.ChainResumeError, perdure.ChainError)
    assert issubclass(perdure.ChainCheckpointError, perdure.ChainError)


def test_the_names_of_ends_and_nodes() -> None:
    assert chain_checkpoint.RUN_END == "run_end"
    assert {str(kind) for kind in perdure.NodeType} == {
        *("agent", "tool", "condition", "parallel", "hitl", "start", "end", "transformer")
    }


def test_names_are_importable_from_the_paths_of_the_reference() -> None:
    for module, names in {
        "perdure.chain": ["Chain", "ChainResult", "NodeType"],
        "perdure.chain.checkpoint": ["RUN_END", "Checkpoint", "is_run_end", "latest_forkable", "latest_resumable"],
        "perdure.chain.interrupt": ["interrupt", "Resume", "InterruptSignal", "AlreadyResumed"],
        "perdure.chain.idempotent": ["idempotent", "IdempotencyError"],
        "perdure.checkpointers": ["Checkpointer", "PendingInterrupt"],
        "perdure.checkpointers.protocol": ["Checkpoint", "Checkpointer", "PendingInterrupt"],
        "perdure.checkpointers.sqlite": ["SQLiteCheckpointer"],
        "perdure.checkpointers.postgres": ["PostgresCheckpointer"],
    }.items():
        found = importlib.import_module(module)
        for name in names:
            assert getattr(found, name) is getattr(perdure, name, getattr(found, name)), f"{module}.{name}"
            assert name in dir(found)


def test_the_package_of_chains_has_what_it_lists_and_nothing_else() -> None:
    chain = importlib.import_module("perdure.chain")

    assert chain.__all__ == sorted(chain.__all__, key=lambda name: (not name[0].isupper(), name))
    assert set(chain._WHERE) == set(chain.__all__)
    for name in chain.__all__:
        assert getattr(chain, name) is getattr(perdure, name, getattr(chain, name))
    with pytest.raises(AttributeError, match="no attribute 'Chian'"):
        _ = chain.Chian


# --- the command line ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("command", "options"), OPTIONS.items())
def test_a_command_has_the_options_of_the_reference(command: str, options: set[str]) -> None:
    name = command.split()[1]
    group: Any = main.typer.main.get_command(main.build([name]))

    assert options <= {option for parameter in group.commands[name].params for option in parameter.opts}


def test_exit_codes_of_the_reference() -> None:
    assert (Exit.UNKNOWN, Exit.ALREADY_RESUMED) == (1, 2)


# --- what is checked nowhere else ------------------------------------------------------------------------


async def test_a_stream_gives_what_was_committed_and_the_other_names_of_run_are_it(tmp_path: Path) -> None:
    chain = perdure.Chain("named").add_node("a", fn=lambda: {"x": 1})
    store = f"sqlite:///{tmp_path / 'x.db'}"

    events = [event async for event in chain.astream({}, execution_id="one", store=store)]
    result = await chain.aexecute({}, execution_id="one", store=store)

    assert [event.type for event in events][-1] == "status"
    assert result.final_state == {"x": 1}
    assert perdure.Chain.execute is perdure.Chain.run


def test_prune_takes_a_timedelta(tmp_path: Path) -> None:
    with perdure.SQLiteCheckpointer(tmp_path / "x.db") as checkpointer:
        chain = perdure.Chain("short", checkpointer=checkpointer).add_node("a", fn=lambda: {"x": 1})
        chain.run(execution_id="gone")

        assert [row.node_id for row in checkpointer.list("gone")] == ["a", "run_end"]
        assert checkpointer.prune(timedelta(0)) == 1
        assert checkpointer.list("gone") == []


def test_an_answer_is_told_to_readers_of_the_context_variable(tmp_path: Path) -> None:
    resume_value = importlib.import_module("perdure.chain.interrupt")._resume_value
    seen: list[Any] = []

    async def ask() -> dict[str, bool]:
        seen.append(resume_value.get())
        return {"yes": perdure.interrupt("Go?", {}).approved}

    with perdure.SQLiteCheckpointer(tmp_path / "x.db") as checkpointer:
        chain = perdure.Chain("asking", checkpointer=checkpointer).add_node("ask", fn=ask)
        chain.run(execution_id="asked")
        chain.resume("asked", resume_value=perdure.Resume(approved=True, metadata={"by": "ada"}))

    assert seen == [None, perdure.Resume(approved=True, metadata={"by": "ada"})]
    assert resume_value.get() is None
