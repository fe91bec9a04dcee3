"""A group of batches as one statement. Decides which statement, its parameters, and what its answer says
of each batch.

Executes on the driver's write connection, in autocommit. The rules it must keep are those of `Driver.write`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from perdure.core.records import Record, RecordType
from perdure.core.states import is_terminal
from perdure.errors import DurableConflictError, RunLost
from perdure.store import queries, rows
from perdure.store.base import Lane
from perdure.store.driver import Batch, refusal_of_missing
from perdure.store.postgres_wire import (
    Statement,
    Wire,
    booleans,
    floating,
    floats,
    integer,
    integers,
    text,
    texts,
)

MAX_LONE_RECORDS = 4
"""Up to here values beat arrays; each count is a statement of its own that stays prepared."""

_LONE_COLUMNS: tuple[tuple[str, Callable[[Any], bytes | None]], ...] = (
    *(("text", text),) * 2,
    ("int8", integer),
    *(("text", text),) * 4,
    ("int8", integer),
    *(("text", text),) * 2,
    *(("float8", floating),) * 2,
    ("text", text),
)
"""Type and form of each field of `Record`."""
_STATUS = RecordType.STATUS.value


class GroupWriter:
    """Writes groups through one `Wire`. `channel` is the NOTIFY channel."""

    def __init__(self, wire: Wire, schema: str, channel: str) -> None:
        named = queries.load("postgres")
        self._wire = wire
        self._channel = channel.encode()
        self._group = Statement("group_write", named["group_write"], schema)
        self._state = Statement("group_state", named["group_state"], schema)
        self._tombstones = Statement("group_tombstones", named["group_tombstones"], schema)
        self._lone = [_lone_statement(named["group_lone"], schema, count) for count in range(1, MAX_LONE_RECORDS + 1)]

    def write(self, batches: Sequence[Batch], *, doubtful: Collection[Lane], is_told: bool) -> None:
        """Commit the group and fill in the replies. `doubtful`: lanes whose batch may be stored already.
        `is_told`: notify others.

        Raises `psycopg.Error`; then no reply is valid.
        """
        if len(batches) == 1 and not is_told and _is_lone(batches[0]):
            written = {batches[0].lane.run_id: None} if self._write_lone(batches[0]) else {}
        else:
            written = self._write_group(batches, is_told)
        missing = [batch for batch in batches if batch.lane.run_id not in written]
        for batch in batches:
            batch.refusal = None
            batch.status = written.get(batch.lane.run_id) if batch.change else None
        if missing:
            self._judge(missing, doubtful)

    def _write_lone(self, batch: Batch) -> bool:
        lane, records = batch.lane, batch.records
        head = (
            integer(len(records)),
            integer(batch.last_n),
            text(lane.run_id),
            integer(lane.fence),
            text(lane.worker_id),
            integer(batch.first_n),
        )
        values = [pack(value) for record in records for (_, pack), value in zip(_LONE_COLUMNS, record, strict=True)]
        return self._wire.command(self._lone[len(records) - 1], (*head, *values)) > 0

    def _write_group(self, batches: Sequence[Batch], is_told: bool) -> dict[str, str | None]:
        params: dict[str, bytes] = {"channel": self._channel if is_told else b""}
        for columns in (_batch_columns, _new_columns, _record_columns, _question_columns, _delivered_columns):
            params |= columns(batches)
        rows = self._wire.execute(self._group, [params[name] for name in self._group.params])
        return {_str(row[0]): _str(row[1]) for row in rows}

    def _judge(self, missing: Sequence[Batch], doubtful: Collection[Lane]) -> None:
        """Tell batches that the first sending of this group stored from those that are refused."""
        run_ids = [batch.lane.run_id for batch in missing]
        rows = self._wire.execute(self._state, [texts(run_ids)])
        states = {_str(row[0]): _state(row) for row in rows}
        pruned = self._pruned([run_id for run_id in run_ids if run_id not in states])
        for batch in missing:
            run_id = batch.lane.run_id
            judge(batch, states.get(run_id), pruned.get(run_id), is_doubtful=batch.lane in doubtful)

    def _pruned(self, run_ids: Sequence[str]) -> dict[str, rows.Row]:
        found = self._wire.execute(self._tombstones, [texts(run_ids)]) if run_ids else []
        return {row[0]: row for row in (tuple(_str(value) for value in each) for each in found)}


def judge(batch: Batch, state: Sequence[Any] | None, tombstone: Sequence[Any] | None, *, is_doubtful: bool) -> None:
    """Whether a batch that was not written is stored already or refused. `state`: (id, fence, worker,
    entry_n, status, ...) of its run's row; `tombstone`: what is left of it if it was pruned."""
    lane = batch.lane
    # What is sent the first time and creates cannot be stored already: another lane made this run, maybe
    # of this process.
    if state is not None and (is_doubtful or batch.create is None) and _is_stored(batch, state):
        batch.status = state[4] if batch.change else None
    elif state is None:
        batch.refusal = refusal_of_missing(batch, tombstone)
    elif batch.create is not None:
        batch.refusal = DurableConflictError(f"run {lane.run_id} exists already")
    elif is_terminal(state[4]):
        batch.refusal = RunLost(lane.run_id, f"it is {state[4]}")
    else:
        batch.refusal = RunLost(lane.run_id, f"it is worker {state[2]}'s now (fence {state[1]}, ours was {lane.fence})")


def _is_stored(batch: Batch, state: Sequence[Any]) -> bool:
    """Whether the run's row is as this batch left it. A released run has no owner any more; its fence
    still tells."""
    _, fence, worker_id, entry_n, *_ = state
    is_released = worker_id is None and batch.change is not None and batch.change.is_release
    is_own = is_released or worker_id == batch.lane.worker_id
    return is_own and fence == batch.lane.fence and entry_n >= batch.last_n


def _state(row: Sequence[bytes | None]) -> tuple[str, int, str | None, int, str]:
    run_id, fence, worker_id, entry_n, status = row
    return (
        _str(run_id),
        int(fence or 0),
        None if worker_id is None else _str(worker_id),
        int(entry_n or 0),
        _str(status),
    )


def _is_lone(batch: Batch) -> bool:
    return (
        batch.change is None
        and batch.create is None
        and not batch.questions
        and not batch.delivered
        and not batch.abandoned
        and 0 < len(batch.records) <= MAX_LONE_RECORDS
    )


def _lone_statement(sql: str, schema: str, count: int) -> Statement:
    rows = (
        f"({n}, " + ", ".join(f":v{n}_{column}::{cast}" for column, (cast, _) in enumerate(_LONE_COLUMNS)) + ")"
        for n in range(1, count + 1)
    )
    return Statement(f"group_lone_{count}", sql.replace(":records", ", ".join(rows)), schema)


def _batch_columns(batches: Sequence[Batch]) -> dict[str, bytes]:
    lanes = [batch.lane for batch in batches]
    changes = [batch.change for batch in batches]
    return {
        "run_ids": texts([lane.run_id for lane in lanes]),
        "fences": integers([lane.fence for lane in lanes]),
        "worker_ids": texts([lane.worker_id for lane in lanes]),
        "first_ns": integers([batch.first_n for batch in batches]),
        "last_ns": integers([batch.last_n for batch in batches]),
        "record_counts": integers([len(batch.records) for batch in batches]),
        "statuses": texts([change and change.status for change in changes]),
        "releases": booleans([bool(change and change.is_release) for change in changes]),
        "dues_in_s": floats([change and change.due_in_s for change in changes]),
        "blockeds": texts([change and change.blocked_operation for change in changes]),
        "errors": texts([change and change.error for change in changes]),
        "creates": booleans([batch.create is not None for batch in batches]),
    }


def _new_columns(batches: Sequence[Batch]) -> dict[str, bytes]:
    news = [batch.create for batch in batches if batch.create is not None]
    return {
        "new_ids": texts([new.run_id for new in news]),
        "new_roots": texts([new.root_id for new in news]),
        "new_parents": texts([new.parent_id for new in news]),
        "new_runners": texts([new.runner for new in news]),
        "new_kinds": texts([new.kind for new in news]),
        "new_versions": texts([new.version for new in news]),
        "new_digests": texts([new.input_digest for new in news]),
        "new_forked_from": texts([new.forked_from for new in news]),
        "new_forked_seq": integers([new.forked_seq for new in news]),
    }


_RECORD_ARRAYS: tuple[tuple[str, Callable[..., bytes]], ...] = (
    ("record_types", texts),
    ("record_paths", texts),
    ("record_idxs", integers),
    ("record_kinds", texts),
    ("record_names", texts),
    ("record_digests", texts),
    ("record_recoveries", texts),
    ("record_attempts", integers),
    ("record_outcomes", texts),
    ("record_datas", texts),
    ("record_waits_s", floats),
    ("record_clocks_s", floats),
    ("record_states", texts),
)


def _record_columns(batches: Sequence[Batch]) -> dict[str, bytes]:
    records = [record for batch in batches for record in batch.records]
    columns = zip(*records, strict=True) if records else ((),) * len(_RECORD_ARRAYS)
    arrays = {name: pack(column) for (name, pack), column in zip(_RECORD_ARRAYS, columns, strict=True)}
    return arrays | {
        "record_runs": texts([batch.lane.run_id for batch in batches for _ in batch.records]),
        "record_ns": integers([n for batch in batches for n in range(1, len(batch.records) + 1)]),
        "record_is_change": booleans([_is_change(batch, record) for batch in batches for record in batch.records]),
    }


def _is_change(batch: Batch, record: Record) -> bool:
    """Whether this is the `status` record that must tell what was really written."""
    return record.type == _STATUS and batch.change is not None and record.outcome == batch.change.status


def _question_columns(batches: Sequence[Batch]) -> dict[str, bytes]:
    asked = [(batch.lane.run_id, question) for batch in batches for question in batch.questions]
    questions = [question for _, question in asked]
    return {
        "question_runs": texts([run_id for run_id, _ in asked]),
        "question_ids": texts([question.interrupt_id for question in questions]),
        "question_paths": texts([question.path for question in questions]),
        "question_idxs": integers([question.index for question in questions]),
        "question_slots": texts([question.slot for question in questions]),
        "question_reasons": texts([question.reason for question in questions]),
        "question_contexts": texts([question.context for question in questions]),
        "question_digests": texts([question.digest for question in questions]),
        "question_binds": booleans([question.bind for question in questions]),
        "question_ordinals": integers([question.ordinal for question in questions]),
    }


def _delivered_columns(batches: Sequence[Batch]) -> dict[str, bytes]:
    return {
        "delivered_runs": texts([batch.lane.run_id for batch in batches for _ in batch.delivered]),
        "delivered_ids": texts([interrupt_id for batch in batches for interrupt_id in batch.delivered]),
        "abandoned_runs": texts([batch.lane.run_id for batch in batches for _ in batch.abandoned]),
        "abandoned_ids": texts([interrupt_id for batch in batches for interrupt_id in batch.abandoned]),
    }


def _str(value: bytes | None) -> str:
    return "" if value is None else value.decode()
