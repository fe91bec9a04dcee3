"""Runs a command's coroutine: opens the store or the engine, and lets signals end it in good order.

The first SIGINT or SIGTERM cancels the command: an engine that it holds starts nothing more, lets started
bodies end within the grace period, records them and gives its runs back. The second ends the process.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeVar
from urllib.parse import unquote

from perdure.cli.output import complain
from perdure.errors import InvalidInputError

if TYPE_CHECKING:
    from perdure.store.sql_store import SqlStore

T = TypeVar("T")


class Stopped(BaseException):
    """A signal ended the command. `number` is the signal's."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def run_async(work: Callable[[], Awaitable[T]]) -> T:
    """Run a command's work on a loop of its own. Raises `Stopped` if a signal ended it."""
    return asyncio.run(_until_signal(work))


async def _until_signal(work: Callable[[], Awaitable[T]]) -> T:
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work())
    caught: list[int] = []

    def stop(number: int) -> None:
        caught.append(number)
        complain(f"{signal.Signals(number).name}: what has started may end first; once more ends it at once")
        task.cancel()
        for each in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(each)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)
    try:
        return await task
    except asyncio.CancelledError:
        if caught:
            raise Stopped(caught[0]) from None
        raise


def ask(prompt: str) -> str:
    """The line that the person at the terminal types. Raises `EOFError` at the end of the input.

    The loop is blocked meanwhile and could act on a signal only after the answer, so a signal ends the command at
    once (`Stopped`). `input()` would miss one that comes between its prompt and its wait.
    """
    with _signals_to() as signals:
        print(prompt, end="", flush=True)
        while sys.stdin not in select.select([sys.stdin, signals], [], [])[0]:
            os.read(signals, 1024)
        line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.rstrip("\n")


@contextmanager
def _signals_to() -> Iterator[int]:
    """A descriptor that can be read when a signal has come; SIGINT and SIGTERM raise `Stopped`."""

    def stop(number: int, _: object) -> NoReturn:
        raise Stopped(number)

    numbers = (signal.SIGINT, signal.SIGTERM)
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    wakeup = signal.set_wakeup_fd(writable)  # the loop's: else it would hear of the signal, too
    before = [signal.signal(number, stop) for number in numbers]
    try:
        yield readable
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        os.close(readable)
        os.close(writable)


def store_url(store: str | None, db_path: str | None = None, runner: object = None) -> str:
    """The store that a command is about: the one it names, or the runner's own, or the configured one."""
    if store is not None and db_path is not None:
        raise InvalidInputError("--db-path", "is given beside --store; use one of the two")
    from perdure.core.settings import get_config

    return store or db_path or _own_store(runner) or get_config().store_url


def _own_store(runner: object) -> str | None:
    checkpointer = getattr(runner, "checkpointer", None)
    if checkpointer is None:
        return None
    from perdure.checkpointers.sql import SqlCheckpointer

    url = checkpointer.url if isinstance(checkpointer, SqlCheckpointer) else ""
    if "://" not in url:
        raise InvalidInputError("--store", "is missing: what the runner's own checkpointer is has no URL")
    return url


def address(url: str) -> list[str]:
    """The option that names the store in a command we show; none for the default. A password is left out."""
    from perdure.core.settings import get_config

    return [] if url == get_config().store_url else ["--store", redacted(url)]


def redacted(url: str) -> str:
    """The store's address without its password."""
    if is_file(url):
        return url
    from perdure.store import postgres_url

    return postgres_url.redacted(url)


def missing_file(url: str) -> Path | None:
    """The SQLite file of the store if it is not there. Looking at a store must not create one."""
    if not is_file(url):
        return None
    file = sqlite_file(url)
    return None if file.exists() else file


def is_file(url: str) -> bool:
    """Whether the address names an SQLite file. What is no address is refused when it is opened."""
    return "://" not in url or url.startswith("sqlite:///")


def sqlite_file(url: str) -> Path:
    """The file that an SQLite address names."""
    if "://" not in url:
        return Path(url)
    return Path(unquote(url.removeprefix("sqlite:///").partition("?")[0]))


@asynccontextmanager
async def reading(url: str) -> AsyncIterator[SqlStore]:
    """The store, for looking at it: nothing is claimed and no worker is registered."""
    from perdure.store.open import open_store

    store = await asyncio.to_thread(open_store, url)
    try:
        yield store
    finally:
        await store.close()


def user() -> str:
    """Who runs this process, as the system says; what is typed or set in the environment does not count."""
    try:
        import pwd  # not on every system

        return pwd.getpwuid(os.getuid()).pw_name
    except (ImportError, KeyError):
        import getpass

        try:
            return getpass.getuser()
        except (KeyError, OSError):
            return f"uid {os.getuid()}"
