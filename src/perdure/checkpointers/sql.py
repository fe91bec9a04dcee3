"""A checkpointer over a SQL store: what `SQLiteCheckpointer` and `PostgresCheckpointer` have in common.

Decides nothing about rows or transactions; translates between what people see (`views`) and the store's concerns, and
holds the store open. The engine is handed `store`, not this.
"""

from __future__ import annotations

import builtins
import threading
from collections.abc import Hashable
from datetime import timedelta
from typing import Any, Self

from perdure.checkpointers import shared, views
from perdure.checkpointers.protocol import Checkpoint, PendingInterrupt
from perdure.core import codec, ids
from perdure.errors import InvalidInputError
from perdure.store.kept import PruneRequest
from perdure.store.sql_store import SqlStore

_MAX_LIMIT = 2**31 - 1


class SqlCheckpointer:
    """A `Checkpointer`, `ReplicatedCheckpointer` and `QuarantinableCheckpointer`; see the protocols.

    All methods block, and may be called from any thread, that of a running event loop included. Nothing is opened or
    created before the first of them is called. Checkpoints of runs are seen together with those that were put by hand;
    what is put by hand starts no run, and no worker ever claims it. Checkpoint ids are unique in a store.

    Errors: `DurableStorageError` if the store cannot be used, `InvalidInputError` (names the field) and
    `SerializationError` (names the path) with nothing stored.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._holding: shared.Holding | None = None

    # --- the store --------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """What the store is opened with."""
        raise NotImplementedError

    def _address(self) -> Hashable:
        """What tells this store from others of the process."""
        raise NotImplementedError

    def _open(self) -> SqlStore:
        raise NotImplementedError

    @property
    def store(self) -> SqlStore:
        """The open store; opened at the first use. One per address and process: checkpointers on one address share
        it."""
        with self._guard:
            if self._holding is None or not self._holding.is_of_this_process:
                self._holding = shared.hold(self._address(), self._open)
            return self._holding.store

    @property
    def is_open(self) -> bool:
        """Whether `store` has only to be looked up."""
        holding = self._holding
        return holding is not None and holding.is_of_this_process

    def setup(self) -> None:
        """Create the schema, or migrate it. Idempotent, safe against other processes that do the same."""
        _ = self.store

    def close(self) -> None:
        """Let go of the store; the last one on its address closes it. A later use opens it again. Idempotent."""
        with self._guard:
            holding, self._holding = self._holding, None
        if holding is not None:
            shared.release(holding)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- checkpoints ------------------------------------------------------------------------------------

    def put(self, checkpoint: Checkpoint) -> None:
        """Store a checkpoint as the last one of its execution. `DurableConflictError` if its id exists already. An
        empty `created_at` becomes the time of the database."""
        row = views.to_kept(checkpoint)
        self.store.checkpoints.checkpoint_put(row)

    def put_writes(self, execution_id: str, checkpoint_id: str, writes: builtins.list[Any]) -> None:
        """Keep what a step wrote, behind what was kept before. `DurableNotFoundError` if there is no such
        checkpoint."""
        place = _execution(execution_id), _checkpoint(checkpoint_id)
        self.store.checkpoints.write_put(*place, views.encoded(writes))

    def get_writes(self, execution_id: str, checkpoint_id: str) -> builtins.list[Any]:
        """What was kept beside a checkpoint, in the order in which it was put."""
        place = _execution(execution_id), _checkpoint(checkpoint_id)
        return [codec.decode(text) for text in self.store.checkpoints.write_list(*place)]

    def get_last(self, execution_id: str) -> Checkpoint | None:
        """The last one, in the order of commits; no clock is asked. None for an unknown execution."""
        loaded = self.store.checkpoints.execution_load(_execution(execution_id), limit=1, is_newest=True)
        found = views.of_execution(loaded)
        return found[-1] if found else None

    def get_by_id(self, execution_id: str, checkpoint_id: str) -> Checkpoint | None:
        """One checkpoint of an execution, or None."""
        run_id = _execution(execution_id)
        kept = self.store.checkpoints.checkpoint_get(run_id, _checkpoint(checkpoint_id))
        if kept is not None:
            return views.of_kept(kept)
        loaded = self.store.checkpoints.execution_load(run_id, limit=0).run
        points = [] if loaded is None else views.of_run(loaded)
        return next((point for _, point in points if point.checkpoint_id == checkpoint_id), None)

    def list(self, execution_id: str, *, limit: int = 100) -> builtins.list[Checkpoint]:
        """The oldest `limit` checkpoints, in the order of commits; empty for an unknown execution."""
        loaded = self.store.checkpoints.execution_load(_execution(execution_id), limit=_limit(limit))
        return views.of_execution(loaded)[:limit]

    # --- questions --------------------------------------------------------------------------------------

    def list_pending_interrupts(self, *, limit: int = 100) -> builtins.list[PendingInterrupt]:
        """Open questions of runs and of what is kept by hand, oldest first. Those claimed within the last minute are
        not listed."""
        return [views.of_question(asked) for asked in self.store.checkpoints.pending_list(limit=_limit(limit))]

    def record_interrupt(self, checkpoint: Checkpoint, pending: PendingInterrupt) -> None:
        """Store the checkpoint and the question asked there, in one transaction. As `put` otherwise."""
        row = views.to_kept(checkpoint)
        self.store.checkpoints.checkpoint_put(row, views.to_question(row, pending))

    def delete_pending_interrupt_atomic(self, execution_id: str) -> PendingInterrupt | None:
        """Claim the oldest open question of an execution: of all callers exactly one gets it, the others the next one
        or None.

        The row is kept. Who claims is to answer: a run by resuming it, which stores the answer; an execution kept by
        hand by putting its next checkpoint. A claim that is not followed up lapses after a minute by the database's
        clock, so that a caller that dies loses nothing.
        """
        asked = self.store.checkpoints.pending_claim(_execution(execution_id))
        return None if asked is None else views.of_question(asked)

    # --- results under keys -----------------------------------------------------------------------------

    def get_idempotent(self, execution_id: str, function_key: str) -> Any | None:
        """What was put under the key, exactly; None if there is no row. See the protocol for a stored None."""
        text = self.store.checkpoints.idempotent_get(_execution(execution_id), _key(function_key))
        return None if text is None else codec.decode(text)

    def put_idempotent(self, execution_id: str, function_key: str, result: Any) -> None:
        """Keep a result; the first one stays."""
        self.store.checkpoints.idempotent_put(_execution(execution_id), _key(function_key), codec.encode(result))

    # --- deleting ---------------------------------------------------------------------------------------

    def delete_execution(self, execution_id: str) -> None:
        """Delete everything of an execution and of the runs below it, a paused one with its questions. `RunBusy` if a
        worker has one of them, or will take it without being asked; nothing is deleted then. Nothing happens if there
        is no such execution."""
        self.store.maintenance.execution_delete(_execution(execution_id))

    def prune(self, older_than: timedelta, include_failed: bool = False) -> int:
        """Delete runs (whole, with those below them) and executions kept by hand that ended longer ago than this;
        returns how many.

        Of runs the completed and the cancelled ones, the failed ones only with `include_failed`, since they can be
        retried; of executions kept by hand those whose last checkpoint is old enough and that wait for nobody. Never
        what is live, asleep, paused or in doubt. A run leaves its id and the digest of its input behind, so that its
        submission is recognised when it comes once more.
        """
        if not isinstance(older_than, timedelta):
            raise InvalidInputError("older_than", f"must be a timedelta, not {type(older_than).__qualname__}")
        if older_than < timedelta(0):
            raise InvalidInputError("older_than", "must not be negative")
        request = PruneRequest(older_than_s=older_than.total_seconds(), has_failed=include_failed)
        return self.store.maintenance.prune(request).count

    # --- the plane --------------------------------------------------------------------------------------

    def fetch_unsynced(self, limit: int, project_id: str | None = None) -> builtins.list[dict[str, Any]]:
        """At most `limit` checkpoints that the plane has neither acknowledged nor refused for good, of one project if
        it is given: the fields of `Checkpoint`, and `project_id`. Oldest execution first, in each in the order of
        commits."""
        found: builtins.list[dict[str, Any]] = []
        for part in self.store.replica.unsynced_list(limit=_limit(limit), project_id=project_id):
            points = [views.of_kept(row) for row in part.kept]
            if part.run is not None:
                points += [point for seq, point in views.of_run(part.run) if seq in part.seqs]
            found += [{**point.model_dump(), "project_id": part.project_id} for point in points]
        return found

    def mark_synced(self, checkpoint_ids: builtins.list[str]) -> None:
        """The plane has acknowledged these. Unknown ids are passed over."""
        self.store.replica.synced_mark([str(each) for each in checkpoint_ids])

    def mark_quarantined(self, reasons: dict[str, str]) -> None:
        """The plane will never take these, and why. They are not fetched again."""
        self.store.replica.quarantine_mark({str(each): str(why) for each, why in reasons.items()})

    def list_quarantined(self, execution_id: str) -> dict[str, str]:
        """What was set aside of an execution, by checkpoint id, and why."""
        return self.store.replica.quarantine_list(_execution(execution_id))


def _execution(value: object) -> str:
    return ids.check_id(value, "execution_id")


def _checkpoint(value: object) -> str:
    return ids.check_id(value, "checkpoint_id")


def _key(value: object) -> str:
    return ids.check_id(value, "function_key")


def _limit(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InvalidInputError("limit", f"must be a whole number that is not negative, not {value!r}")
    return min(value, _MAX_LIMIT)
