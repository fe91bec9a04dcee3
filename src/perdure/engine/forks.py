"""What a fork begins with. Decides what it inherits: nothing that was answered or recorded after its fork point
(law 10). Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from perdure.core import codec, ids, keys, recovery
from perdure.core.fold import fold
from perdure.core.records import InterruptRow, Loaded, NewRun, Record, RecordType
from perdure.core.states import Status
from perdure.engine.runner import Runner


@dataclass(frozen=True, slots=True)
class ForkPoint:
    """The source's records up to `seq`, or a new input instead of them; then what a person changed."""

    run_id: str
    seq: int
    input_data: str | None
    patches: Sequence[Record]


@dataclass(frozen=True, slots=True)
class Fork:
    """A new run as the store takes it."""

    run: NewRun
    records: Sequence[Record]
    answered: Sequence[InterruptRow]


def fork_of(runner: Runner, source: Loaded, point: ForkPoint) -> Fork:
    """The run that branches off at this point."""
    is_new = point.input_data is not None
    data = point.input_data or fold(source.records).recorded_input()
    run = NewRun(
        run_id=point.run_id,
        root_id=point.run_id,
        runner=runner.name,
        kind=runner.kind,
        version=runner.version if is_new else source.run.version,
        input_digest=codec.digest(data),
        input_data=data,
        forked_from=source.run.run_id,
        forked_seq=point.seq,
    )
    if is_new:
        return Fork(run, point.patches, [])
    renamed = {row.interrupt_id: _inherited(row, point.run_id).interrupt_id for row in source.interrupts}
    kept = [
        _asking_its_own(record, renamed)
        for record in recovery.fork_records(source.records, point.seq)
        if record.type != RecordType.SUBMITTED
    ]
    answered = [
        _inherited(row, point.run_id)
        for row in source.interrupts
        if row.answer is not None and (row.answer_seq or 0) <= point.seq and row.delivered_at is not None
    ]
    return Fork(run, [*kept, *_forgotten(source, kept), *point.patches], answered)


def _forgotten(source: Loaded, kept: Sequence[Record]) -> list[Record]:
    """Of a failed run: the errors that a retry would forget, too. A fork that began with them could only fail."""
    if source.run.status != Status.FAILED:
        return []
    ended = {(record.path, record.index) for record in kept if record.type == RecordType.COMPLETED}
    return [drop for drop in recovery.plan_retry_of(source.records).drops if (drop.path, drop.index) in ended]


def _asking_its_own(record: Record, renamed: Mapping[str, str]) -> Record:
    """A record that names questions, with the ids they have in the fork."""
    if record.type not in (RecordType.SUSPENDED, RecordType.DELIVERED) or record.data is None:
        return record
    said = codec.decode(record.data)
    named = [renamed.get(one, one) for one in said] if isinstance(said, list) else renamed.get(said, said)
    return record._replace(data=codec.encode(named))


def _inherited(row: InterruptRow, run_id: str) -> InterruptRow:
    """An answered question under an id of the fork's own."""
    key = keys.operation_key(row.path, row.index)
    return replace(row, run_id=run_id, interrupt_id=ids.interrupt_id(run_id, key, row.slot))
