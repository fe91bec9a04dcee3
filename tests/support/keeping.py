"""Processes that keep rows by hand on one store, claim questions, and die in the middle of it.

`python -m tests.support.keeping VERB URL OPTIONS` says what it does line by line, and goes on at a line on stdin.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from perdure.checkpointers.sql import SqlCheckpointer
from perdure.core.records import Record, RunChange
from perdure.store.driver import Session
from perdure.store.kept import PruneRequest
from perdure.store.open import open_store
from perdure.store.sql_store import SqlStore
from tests.support import kept, runs


def checkpointer(url: str) -> SqlCheckpointer:
    """The checkpointer for a store's address."""
    if url.startswith("sqlite:///"):
        from perdure.checkpointers.sqlite import SQLiteCheckpointer  # a child loads only what it uses

        return SQLiteCheckpointer(url.removeprefix("sqlite:///"))
    from perdure.checkpointers.postgres import PostgresCheckpointer

    return PostgresCheckpointer(url)


def opened(url: str) -> SqlStore:
    store = open_store(url)
    assert isinstance(store, SqlStore)
    return store


# --- claiming -------------------------------------------------------------------------------------------


def claim(url: str, _: dict[str, Any]) -> None:
    """Claim whatever is listed, until nothing is; says which questions it got."""
    with checkpointer(url) as found:
        found.setup()
        print("ready", flush=True)
        sys.stdin.readline()
        got: list[str] = []
        while listed := found.list_pending_interrupts(limit=50):
            for asked in listed:
                claimed = found.delete_pending_interrupt_atomic(asked.execution_id)
                if claimed is not None:
                    got.append(claimed.interrupt_id)
    print("result " + json.dumps(got), flush=True)


# --- dying ----------------------------------------------------------------------------------------------


class _Dying:
    """A session whose process is gone before its n-th statement."""

    def __init__(self, session: Session, n: int) -> None:
        self._session = session
        self._left = n

    @property
    def now(self) -> float:
        return self._session.now

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._session, name)
        return self._counted(found) if name in ("all", "one", "run", "many") else found

    def _counted(self, execute: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            self._left -= 1
            if self._left < 0:
                _die()
            return execute(*arguments)

        return counted


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    while True:
        signal.pause()


def _dies_in(store: SqlStore, n: int) -> None:
    """From now on the process dies before the n-th statement of a write."""
    driver = store._driver
    transact = driver.transact
    driver.transact = lambda work: transact(lambda session: work(_Dying(session, n)))  # type: ignore[assignment, return-value]


def _put(store: SqlStore, n: int) -> None:
    row = kept.row(f"c{n}", f"e{n}", status="interrupted")
    store.checkpoints.checkpoint_put(row, kept.question(f"q{n}", f"c{n}", f"e{n}"))


def _prune(store: SqlStore, _: int) -> None:
    store.maintenance.prune(PruneRequest(older_than_s=0.0), now=kept.FAR)


def _delete(store: SqlStore, _: int) -> None:
    store.maintenance.execution_delete("r1")


def _claim_one(store: SqlStore, _: int) -> None:
    store.checkpoints.pending_claim("r1")


_OPERATIONS = {"put": _put, "prune": _prune, "delete": _delete, "claim": _claim_one}


def die(url: str, options: dict[str, Any]) -> None:
    """Do something in one process after the other, each of which dies one statement later, until one lives. After each
    the store is looked at from outside, which is told by a line."""
    n = 0
    while True:
        pid = os.fork()  # nothing is open here
        if pid == 0:
            store = opened(url)
            _dies_in(store, n)
            _OPERATIONS[options["operation"]](store, n)
            store.close_now()
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        is_dead = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        print("died" if is_dead else f"lived {os.waitstatus_to_exitcode(status)}", flush=True)
        sys.stdin.readline()
        if not is_dead:
            return
        n += 1


def hold(url: str, _: dict[str, Any]) -> None:
    """Own a run that waits for an answer, until killed."""
    asyncio.run(_hold(opened(url)))


async def _hold(store: SqlStore) -> None:
    owner = await runs.created(store, "r1")
    change = RunChange(status="waiting")
    await owner.write(Record(type="suspended"), questions=[runs.question("q1")], change=change)
    print("holding", flush=True)
    await asyncio.to_thread(sys.stdin.readline)


def main() -> None:
    verb, url, options = sys.argv[1:]
    {"claim": claim, "die": die, "hold": hold}[verb](url, json.loads(options))


if __name__ == "__main__":
    main()
