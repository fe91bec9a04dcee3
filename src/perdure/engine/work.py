"""The worker loop: claims what is runnable, buries the dead, continues their runs. Decides only when to look again."""

from __future__ import annotations

import logging

from perdure.engine.host import Host
from perdure.engine.runner import Runner
from perdure.errors import DurableStorageError

log = logging.getLogger("perdure")

_IDLE_S = 1.0
_ERROR_S = 0.5


class Work:
    """One worker loop over some runners."""

    def __init__(self, host: Host, runners: dict[str, Runner], concurrency: int | None) -> None:
        self._host = host
        self._runners = runners
        self._most = concurrency or host.settings.max_concurrent_runs
        self._is_stopping = False
        self._had_more = False

    def stop(self) -> None:
        """Claim nothing more; `run` returns soon. Drives are the host's to end."""
        self._is_stopping = True
        self._host.news.tell()

    async def run(self, *, until_idle: bool) -> None:
        """Work until stopped; with `until_idle`, until nothing is runnable, running or due within the stay."""
        host = self._host
        while not self._is_stopping and not host.is_closing:
            mark = host.news.mark()
            try:
                claimed = await self._claim()
                wait_s = 0.0 if claimed else await self._next_look_s()
            except DurableStorageError as error:
                log.warning("the worker could not look for runs: %s", error)
                claimed, wait_s = False, _ERROR_S
            if until_idle and not claimed and await self._is_idle():
                return
            await host.news.wait(mark, wait_s)

    async def _claim(self) -> bool:
        host = self._host
        dead = await host.dead_workers()
        if dead:
            await host.bury(dead)
        free = self._most - len(host.drives)
        if free <= 0:
            return False
        return bool(await host.claim(self._runners, limit=free))

    async def _next_look_s(self) -> float:
        host = self._host
        if len(host.drives) >= self._most:
            return _IDLE_S
        due_s = await host.store.run_due_in(list(self._runners))
        workers = await host.store.worker_list()
        has_peers = any(worker.worker_id != host.worker_id for worker in workers)
        await self._look_for_strays(sum(w.run_count for w in workers if w.worker_id == host.worker_id))
        wait_s = host.settings.poll_s if has_peers else _IDLE_S
        return max(0.01, min(wait_s, due_s)) if due_s is not None else wait_s

    async def _look_for_strays(self, owned_count: int) -> None:
        """More runs are ours than we drive, twice in a row: not just one being loaded."""
        is_more = owned_count > len(self._host.drives)
        if is_more and self._had_more:
            await self._host.take_stray(self._runners)
        self._had_more = is_more

    async def _is_idle(self) -> bool:
        """Nothing of ours is running, runnable, due soon, or run by a live peer that may still die with it."""
        host = self._host
        if any(not drive.is_paused for drive in host.drives.values()):
            return False
        due_s = await host.store.run_due_in(list(self._runners))
        if due_s is not None and due_s < host.settings.stay_s:
            return False
        return not await host.store.run_running_count(list(self._runners), except_worker=host.worker_id)
