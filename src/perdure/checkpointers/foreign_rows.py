"""How a run's journal is written into checkpoint rows, and read from them. Decides the persisted form; pure.

A row holds what one transaction made of one run, as text under one key of `state_snapshot`: the records exactly as
encoded, the questions, and the run's own row. Everything else in it is a view for people and is never read back.

A row's id is `<run id>:<number of its first record>`, so the next row's id is known to everybody, and of two processes
that write at the same time one finds it taken. Each row names the token of the one before it: what was lost or
replaced is found out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from perdure.checkpointers.ends import RUN_END
from perdure.checkpointers.protocol import Checkpoint, PendingInterrupt
from perdure.core import checkpoints, keys
from perdure.core.codec import text as json_text
from perdure.core.records import Loaded, RecordType, StoredRecord
from perdure.core.states import Status
from perdure.errors import DurableStorageError, SerializationError
from perdure.store import rows

KEY = "perdure"
"""Where in `state_snapshot` the text is."""
VERSION = 1

Columns = dict[str, Any]
"""A database row by column name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """What one transaction changed of one run. `asked` are new questions; `changed` have what is new of known ones;
    `open_ids` are all that are open after it, in the order in which they are to be asked."""

    run: Columns
    records: Sequence[Columns]
    asked: Sequence[Columns] = ()
    changed: Sequence[Columns] = ()
    open_ids: Sequence[str] = ()
    first_open: Columns | None = None

    @property
    def run_id(self) -> str:
        return self.run["id"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What chains rows: `announced` is the question that the checkpointer shows as pending after this row."""

    token: str
    previous: str | None
    announced: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row as read."""

    row_id: str
    link: Link
    draft: Draft

    @property
    def first_seq(self) -> int:
        return self.draft.records[0]["seq"]

    @property
    def next_seq(self) -> int:
        return self.draft.records[-1]["seq"] + 1


def row_id(run_id: str, first_seq: int) -> str:
    """The id of the row that begins with this record."""
    return f"{run_id}:{first_seq}"


# --- the persisted form ---------------------------------------------------------------------------------


def encode(draft: Draft, link: Link) -> str:
    """The text that a row holds: ASCII, so that no backend can change it."""
    return json_text.dumps(
        {
            "v": VERSION,
            "token": link.token,
            "previous": link.previous,
            "announced": link.announced,
            "run": _said(draft.run),
            "records": [_said(record) for record in draft.records],
            "asked": [_said(question) for question in draft.asked],
            "changed": list(draft.changed),
        }
    )


def decode(checkpoint: Checkpoint) -> Row | None:
    """What a row holds; None if it is not one of ours. `DurableStorageError` if it cannot be read."""
    snapshot = checkpoint.state_snapshot
    said = snapshot.get(KEY) if isinstance(snapshot, Mapping) else None
    if said is None:
        return None
    name = f"row {checkpoint.checkpoint_id!r} of execution {checkpoint.execution_id!r}"
    try:
        tree = json_text.loads(said)
        if tree["v"] != VERSION:
            raise DurableStorageError(f"{name} was written by a newer version of Perdure; upgrade this one")
        link = Link(token=tree["token"], previous=tree["previous"], announced=tree["announced"])
        draft = Draft(run=tree["run"], records=tree["records"], asked=tree["asked"], changed=tree["changed"])
        return Row(row_id=row_id(draft.run_id, draft.records[0]["seq"]), link=link, draft=draft)
    except (SerializationError, LookupError, TypeError) as error:
        raise DurableStorageError(f"{name} is damaged: {type(error).__name__}: {error}") from error


def token_of(checkpoint: Checkpoint) -> str | None:
    """The token of a row; None if it is not one of ours."""
    row = decode(checkpoint)
    return None if row is None else row.link.token


def _said(columns: Columns) -> Columns:
    return {name: value for name, value in columns.items() if value is not None}


def ordered(run_id: str, found: Sequence[Row]) -> list[Row]:
    """A run's rows from its first on, whatever order they come in. `DurableStorageError` if one is missing or was
    replaced: what it recorded might be done again."""
    rows = sorted({row.link.token: row for row in found}.values(), key=lambda row: row.first_seq)
    next_seq, token = 1, None
    for row in rows:
        if row.first_seq != next_seq:
            raise lost(run_id, next_seq)
        if row.link.previous != token:
            raise replaced(row.row_id)
        next_seq, token = row.next_seq, row.link.token
    return rows


def lost(run_id: str, seq: int) -> DurableStorageError:
    """Rows are missing."""
    return DurableStorageError(
        f"the history of execution {run_id!r} has no row {row_id(run_id, seq)!r}: list() cut it short, or rows were "
        "deleted. Nothing is run on a part of it"
    )


def replaced(row: str) -> DurableStorageError:
    """A row does not follow the one before it."""
    return DurableStorageError(
        f"row {row!r} does not follow the one before it: a row was replaced. Two processes have written to one "
        "execution over a checkpointer whose put() replaces rows"
    )


# --- the view for people --------------------------------------------------------------------------------


def view(draft: Draft, text: str, *, index: int, parent_id: str | None, asks: Columns | None) -> Checkpoint:
    """The row as it is put. `index` is its place among the run's rows, `asks` the question that becomes pending with
    it."""
    run = draft.run
    checkpoint = Checkpoint(
        checkpoint_id=row_id(draft.run_id, draft.records[0]["seq"]),
        parent_checkpoint_id=parent_id,
        chain_name=run["runner"],
        execution_id=draft.run_id,
        node_index=index,
        state_snapshot={KEY: text},
        created_at=_iso(draft.records[-1]["at"]),
    )
    boundary = _boundary(draft)
    if boundary is not None:
        checkpoint.node_id = boundary.node_id
        checkpoint.status = boundary.status
        checkpoint.step_type = boundary.step_type
        checkpoint.node_output = {} if boundary.status == "interrupted" else _shown(boundary.output)
    if draft.records[0]["type"] == RecordType.SUBMITTED:
        given = _shown(draft.records[0].get("data"))
        checkpoint.node_input = given if isinstance(given, dict) else {"input": given}
    if run.get("forked_from") and parent_id is None:
        checkpoint.step_type = "fork_origin"
        checkpoint.parent_checkpoint_id = row_id(run["forked_from"], run["forked_seq"])
    elif boundary is None and draft.open_ids:
        checkpoint.status = "interrupted"
    question = asks or next(iter(draft.asked), None)
    if question is not None:
        checkpoint.interrupt_reason = _reason(question)
        checkpoint.interrupt_context = _context(question)
    return checkpoint


def pending(checkpoint: Checkpoint, asks: Columns, node_id: str | None) -> PendingInterrupt:
    """The question that becomes pending with a row, and the name of the node that asked it."""
    return PendingInterrupt(
        execution_id=checkpoint.execution_id,
        chain_name=checkpoint.chain_name,
        node_id=node_id or keys.operation_key(asks["path"], asks["idx"]),
        reason=_reason(asks),
        context=_context(asks),
        agent_path=checkpoint.agent_path,
        created_at=_iso(asks["created_at"]),
        interrupt_id=asks["id"],
    )


def _boundary(draft: Draft) -> checkpoints.Checkpoint | None:
    """The boundary that the row is shown as: the first, which gives it its id; where it asks or forks, the last."""
    records = [StoredRecord._make(values) for values in _values("record", draft.records)]
    run = rows.run_row(next(iter(_values("run", [draft.run]))), records[-1].at)
    # A cancelled run has no checkpoint of its end among the workflow's, but its rows are to have one.
    is_cancelled = run.status == Status.CANCELLED and records[-1].type == RecordType.STATUS
    if is_cancelled:
        records[-1] = records[-1]._replace(outcome=Status.FAILED.value)
    found = checkpoints.checkpoints(Loaded(run=run, records=records, interrupts=[], now=records[-1].at))
    if not found:
        return None
    if is_cancelled and found[-1].step_type == RUN_END:
        return replace(found[-1], status=Status.CANCELLED.value)
    is_first_of_fork = run.forked_from is not None and records[0].type == RecordType.SUBMITTED
    return found[-1] if draft.asked or is_first_of_fork else found[0]


def _values(table: str, found: Sequence[Columns]) -> list[tuple[Any, ...]]:
    names = [column.partition(".")[2] for column in rows.COLUMNS[table]]
    return [tuple(each.get(name) for name in names) for each in found]


def _reason(question: Columns) -> str:
    said = json_text.loads(question["reason"])
    return keys.storable(said) if isinstance(said, str) else question["reason"]


def _context(question: Columns) -> dict[str, Any]:
    shown = _shown(question["context"])
    return shown if isinstance(shown, dict) else {"context": shown}


def _shown(encoded: str | None) -> Any:
    """A value for people: as its text has it, or the text itself where a backend might stumble over what is in it."""
    if encoded is None:
        return {}
    try:
        tree = json_text.loads(encoded)
    except SerializationError:
        return {"encoded": encoded}
    return {"encoded": encoded} if "\\u0000" in encoded or json_text.has_surrogates(tree) else tree


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat()
