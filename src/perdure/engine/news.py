"""Whether anything has happened since somebody last looked. A look that begins before the news cannot miss them."""

from __future__ import annotations

import asyncio


class News:
    """Counts news on one event loop. Take `mark()` before looking, then `wait(mark, ...)`: news in between end the
    wait."""

    def __init__(self) -> None:
        self._count = 0
        self._waiters: set[asyncio.Future[None]] = set()

    def tell(self) -> None:
        """Something has happened: everybody looks again."""
        self._count += 1
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def mark(self) -> int:
        """Where we are now."""
        return self._count

    async def wait(self, mark: int, timeout_s: float) -> None:
        """Until there is news after `mark`, at most `timeout_s`."""
        if self._count != mark or timeout_s <= 0:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await asyncio.wait((waiter,), timeout=timeout_s)
        finally:
            self._waiters.discard(waiter)
