"""The command worker: recovers and continues what a store holds, until it is told to stop."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli import options, session
from perdure.cli.output import complain, emit_lines
from perdure.cli.runners import load_runners
from perdure.errors import InvalidInputError

if TYPE_CHECKING:
    from perdure.engine.runner import Runner


def worker(
    runners: options.Runners,
    until_idle: Annotated[
        bool,
        typer.Option("--until-idle", help="End when nothing is left to run; runs that wait for answers may remain."),
    ] = False,
    concurrency: Annotated[
        int | None,
        typer.Option("--concurrency", min=1, help="At most so many runs at once.", show_default=False),
    ] = None,
    store: options.Store = None,
    is_json: options.Json = False,
) -> None:
    """Continue the runs of a store: new ones, those of dead workers, those that were answered or whose timer
    is due.

    SIGTERM and Ctrl-C end it in good order: started operations may end within the grace period, then its runs
    are given back.
    """
    loaded = load_runners(runners)
    url = _store_url(store, loaded)
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="perdure: %(message)s")

    async def work() -> None:
        import perdure

        async with perdure.open_engine(url) as engine:
            if not is_json:
                complain(f"worker {os.getpid()} has {', '.join(runner.name for runner in loaded)}")
            await engine.work(loaded, until_idle=until_idle, concurrency=concurrency)

    try:
        session.run_async(work)
    except session.Stopped as stopped:
        # A worker is ended by a signal in the ordinary course of things.
        emit_lines(is_json, {"stopped_by": str(stopped)}, [])
        return
    emit_lines(is_json, {"stopped_by": "idle"}, [])


def _store_url(store: str | None, runners: Sequence[Runner]) -> str:
    """One worker works on one store."""
    urls = {session.store_url(store, runner=runner) for runner in runners}
    if len(urls) > 1:
        raise InvalidInputError("--store", "is missing: the runners keep their runs in different stores")
    return urls.pop() if urls else session.store_url(store)
