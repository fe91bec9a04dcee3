"""Load: a process whose threads each have an engine of their own on one store, start runs and work off everybody's.

`python -m tests.support.storm URL OPTIONS` works until it is told to stop by a line on stdin, then until nothing is
left, and prints which runs it has begun.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import sys
import threading
from typing import Any

from perdure import DurableConflictError, DurableStorageError, Engine, open_engine
from perdure.core import codec
from perdure.core.records import NewRun
from tests.support import shop

_STEPS = 2


class _Thread:
    """One engine and what it has begun."""

    def __init__(self, url: str, name: str, ledger: str, stopped: threading.Event) -> None:
        self.url, self.name, self.ledger, self.stopped = url, name, ledger, stopped
        self.begun: list[str] = []

    def run(self) -> None:
        asyncio.run(self._main())

    async def _main(self) -> None:
        async with open_engine(self.url) as engine:
            working = asyncio.create_task(engine.work([shop.burst]))
            while not self.stopped.is_set():
                run_id = f"{self.name}-{len(self.begun)}"
                self.begun.append(run_id)
                # Every second run is for whoever claims it first.
                await _surely(self._enqueue if len(self.begun) % 2 else self._run, engine, run_id)
            working.cancel()
            await asyncio.wait([working])
            await _surely(self._work_off, engine, "")

    def _input(self, run_id: str) -> dict[str, Any]:
        return {"ledger": self.ledger, "steps": _STEPS, "name": run_id}

    async def _run(self, engine: Engine, run_id: str) -> None:
        await engine.run(shop.burst, self._input(run_id), execution_id=run_id)

    async def _enqueue(self, engine: Engine, run_id: str) -> None:
        data = shop.burst.encode_input(self._input(run_id))
        new = NewRun(
            run_id=run_id,
            root_id=run_id,
            runner=shop.burst.name,
            kind=shop.burst.kind,
            version=None,
            input_digest=codec.digest(data),
            input_data=data,
        )
        with contextlib.suppress(DurableConflictError):  # stored by an attempt whose answer was lost
            await engine.store.run_fork(new, [], [])

    async def _work_off(self, engine: Engine, _: str) -> None:
        await engine.work([shop.burst], until_idle=True)


async def _surely(action: Any, engine: Engine, run_id: str) -> None:
    """As a client does while its database is away: the same thing under the same id until it is done."""
    while True:
        try:
            return await action(engine, run_id)
        except DurableStorageError as error:
            print(f"away {error}", flush=True)
            await asyncio.sleep(0.05)


def main() -> None:
    url, options = sys.argv[1], json.loads(sys.argv[2])
    logging.basicConfig(stream=sys.stdout, level=logging.WARNING, format="log %(name)s %(message)s")
    stopped = threading.Event()
    workers = [_Thread(url, f"{os.getpid()}-{n}", options["ledger"], stopped) for n in range(options["threads"])]
    threads = [threading.Thread(target=worker.run) for worker in workers]
    for thread in threads:
        thread.start()
    print("working", flush=True)
    sys.stdin.readline()
    stopped.set()
    for thread in threads:
        thread.join()
    print("begun " + json.dumps([run_id for worker in workers for run_id in worker.begun]), flush=True)


if __name__ == "__main__":
    main()
