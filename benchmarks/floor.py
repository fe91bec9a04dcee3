"""What the machine allows without any framework: single-row durable commits, and bare imports."""

import json
import time
from typing import Any

from benchmarks.child import StepTimer, Task, elapsed_ms, latencies, report, turns

ROW = "x" * 200
MIN_COMMITS = 1000  # fewer say nothing
MAX_GROUP = 500  # rows a commit


def w1(task: Task) -> dict[str, Any]:
    """One row a commit, one after the other: the most that any step-by-step durable engine can reach."""
    return _w1_sqlite(task) if task.store == "sqlite" else _w1_postgres(task)


def _w1_sqlite(task: Task) -> dict[str, Any]:
    connection = _sqlite_table(f"{task.directory}/floor.db")
    count = max(task.amount, MIN_COMMITS)
    with StepTimer(count) as timer:
        for i in range(count):
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT INTO t VALUES ('r', ?, ?)", (i, ROW))
            connection.execute("COMMIT")
    connection.close()
    return timer.result()


def _sqlite(path: str) -> Any:
    import sqlite3  # local: as below

    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    return connection


def _sqlite_table(path: str) -> Any:
    connection = _sqlite(path)
    connection.execute("CREATE TABLE t (run TEXT, seq INT, v TEXT, PRIMARY KEY (run, seq)) WITHOUT ROWID")
    return connection


def _w1_postgres(task: Task) -> dict[str, Any]:
    import psycopg  # local: as above

    with psycopg.connect(task.url, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (run TEXT, seq INT, v TEXT, PRIMARY KEY (run, seq))")
        count = max(task.amount, MIN_COMMITS)
        with StepTimer(count) as timer:
            for i in range(count):
                connection.execute("INSERT INTO t VALUES ('r', %s, %s)", (i, ROW))
    return timer.result()


def w2(task: Task) -> dict[str, Any]:
    """The shape of the many-runs workload with no engine: a row for each start, step and end of a run.

    Each row is awaited durable; one writer thread commits in groups. What the disk and asyncio allow at most.
    """
    import asyncio  # local: the bare-import probe shares this module

    return asyncio.run(_grouped(task))


async def _grouped(task: Task) -> dict[str, Any]:
    import asyncio  # local: as above

    writer = _GroupWriter(f"{task.directory}/floor.db", asyncio.get_running_loop())
    seconds: list[float] = []
    slots = asyncio.Semaphore(task.concurrency)

    async def one(key: int) -> None:
        async with slots:
            begun = time.perf_counter()
            for seq in range(task.steps + 2):  # its start, its steps, its end
                await writer.put((f"r{key}", seq, ROW))
            seconds.append(time.perf_counter() - begun)

    await writer.put(("warm", 0, ROW))
    begun = time.perf_counter()
    await asyncio.gather(*[one(key) for key in range(task.amount)])
    wall_s = time.perf_counter() - begun
    writer.close()
    return latencies(seconds, wall_s)


class _GroupWriter:
    """One thread owns the connection; what arrives while it commits goes into the next commit."""

    def __init__(self, path: str, loop: Any) -> None:
        import queue
        import threading

        self._path, self._loop = path, loop
        self._queue: Any = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def put(self, row: tuple[str, int, str]) -> Any:
        """A future of the loop that is done once the row is on disk."""
        done = self._loop.create_future()
        self._queue.put((row, done))
        return done

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()

    def _write(self) -> None:
        connection = _sqlite_table(self._path)
        while (first := self._queue.get()) is not None:
            group = [first]
            while not self._queue.empty() and len(group) < MAX_GROUP:
                group.append(self._queue.get())
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany("INSERT INTO t VALUES (?, ?, ?)", [row for row, _ in group])
            connection.execute("COMMIT")
            self._loop.call_soon_threadsafe(_finish, [done for _, done in group])  # wakes the loop once
        connection.close()


def _finish(futures: list[Any]) -> None:
    for future in futures:
        future.set_result(None)


def w3(task: Task) -> dict[str, Any] | None:
    """What grows is appended, one row a commit: the least that a store must grow by."""
    insert, close = _appending(task)
    if task.stage == "empty":
        close()
        report("DONE")
        return None
    rows = [json.dumps(turn) for turn in turns(task.amount)]
    with StepTimer(task.amount) as timer:
        for i, row in enumerate(rows):
            insert(i, row)
    close()
    return timer.result()


def _appending(task: Task) -> tuple[Any, Any]:
    """Functions that append one row, and that close the connection; the table is made if it is not there."""
    table = "CREATE TABLE IF NOT EXISTS t (seq INTEGER PRIMARY KEY, v TEXT)"
    if task.store == "sqlite":
        connection = _sqlite(f"{task.directory}/floor.db")
        connection.execute(table)
        return lambda i, row: connection.execute("INSERT INTO t VALUES (?, ?)", (i, row)), connection.close
    import psycopg  # local: as above

    postgres = psycopg.connect(task.url, autocommit=True)
    postgres.execute(table)
    return lambda i, row: postgres.execute("INSERT INTO t VALUES (%s, %s)", (i, row)), postgres.close


def w4(task: Task) -> None:
    """A process that only imports the libraries that Perdure's resume loads on this store, and exits."""
    begun = time.perf_counter()
    if task.stage == "pause":
        report("PAUSED")
        return
    import asyncio
    import sqlite3

    import greenlet
    from pydantic import BaseModel  # an answer is one

    loaded = [asyncio, sqlite3, greenlet, BaseModel]
    if task.store == "postgres":
        import psycopg
        import psycopg_pool

        loaded += [psycopg, psycopg_pool]
    report("DONE", {"import_ms": elapsed_ms(begun), "modules": len(loaded)})


WORKLOADS = {"w1": w1, "w1chain": w1, "w1safe": w1, "w2": w2, "w3": w3, "w4": w4, "w4chain": w4}
