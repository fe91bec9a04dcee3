"""Absurd (Postgres only): its own worker and its default of one connection per worker."""

# The peers live in an environment of their own, where the type checker does not look.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

import asyncio
import os
import threading
import time
from typing import Any

from benchmarks.child import Gate, StepTimer, Task, elapsed_ms, latencies, report, work

WORKERS = 8  # of the many-runs workload: one worker has one connection, more workers scale it


def setup(task: Task) -> None:
    """The schema that absurdctl ships, and one queue. A stage of its own: other stages must not import it."""
    import absurdctl
    import psycopg

    with psycopg.connect(task.url, autocommit=True) as connection:
        connection.execute(absurdctl.BUNDLED_SCHEMA_SQL)
        connection.execute("SELECT absurd.create_queue('q')")
    report("DONE")


def w1(task: Task) -> dict[str, Any]:
    from absurd_sdk import Absurd

    app = Absurd(task.url, queue_name="q")

    @app.register_task(name="chain")
    def chain(params: Any, context: Any) -> int:
        for i in range(params["count"]):
            context.step(f"s{i}", lambda i=i: {"i": i, "ok": True})
        return params["count"]

    app.spawn("chain", {"count": 2})
    app.work_batch()
    app.spawn("chain", {"count": task.amount})
    with StepTimer(task.amount) as timer:
        app.work_batch(claim_timeout=300)
    app.close()
    return timer.result()


def w2(task: Task) -> dict[str, Any]:
    """A run's latency is from before its spawn until after the commit that completes it."""
    import absurd_sdk

    begun_at: dict[int, float] = {}
    seconds: list[float] = []
    slots = threading.Semaphore(task.concurrency)
    complete = absurd_sdk._complete_task_run

    def completed(connection: Any, queue: str, run_id: str, result: Any) -> None:
        complete(connection, queue, run_id, result)
        seconds.append(time.perf_counter() - begun_at[result["key"]])
        slots.release()

    absurd_sdk._complete_task_run = completed
    apps: list[Any] = []
    threads = [threading.Thread(target=_worker, args=(task, apps)) for _ in range(WORKERS)]
    for thread in threads:
        thread.start()
    while len(apps) < WORKERS:
        time.sleep(0.01)
    spawner = absurd_sdk.Absurd(task.url, queue_name="q")
    begun = time.perf_counter()
    for key in range(task.amount):
        slots.acquire()
        begun_at[key] = time.perf_counter()
        spawner.spawn("chain", {"key": key}, queue="q")
    while len(seconds) < task.amount:
        time.sleep(0.002)
    wall_s = time.perf_counter() - begun
    for app in apps:
        app.stop_worker()
    for thread in threads:
        thread.join()
    return latencies(seconds, wall_s)


def _worker(task: Task, apps: list[Any]) -> None:
    from absurd_sdk import Absurd

    app = Absurd(task.url, queue_name="q")

    @app.register_task(name="chain")
    def chain(params: Any, context: Any) -> dict[str, Any]:
        for i in range(task.steps):
            context.step(f"s{i}", lambda i=i: {"i": i, "ok": True})
        return {"key": params["key"]}

    apps.append(app)
    app.start_worker(concurrency=1, batch_size=task.concurrency // WORKERS + 1, poll_interval=0.01)
    app.close()


def w4(task: Task) -> None:
    begun = time.perf_counter()
    from absurd_sdk import Absurd

    app = Absurd(task.url, queue_name="q")
    finished: list[Any] = []

    @app.register_task(name="approval")
    def approval(params: Any, context: Any) -> Any:
        context.step("a", lambda: {"i": 1})
        answer = context.await_event("approve")
        context.step("b", lambda: {"i": 2})
        finished.append(answer)
        return answer

    defined = time.perf_counter()
    import_ms = round((defined - begun) * 1e3, 1)
    if task.stage == "pause":
        app.spawn("approval", {})
        app.work_batch()
        assert not finished
        report("PAUSED")
    else:
        app.emit_event("approve", {"ok": True})
        while not finished:
            app.work_batch()
        report("DONE", {"import_ms": import_ms, "after_ms": elapsed_ms(defined)})
    app.close()


def w5(task: Task) -> None:
    """A killed worker's runs come back when their claim expires: ``lease_s`` here, 120 s by its default."""
    asyncio.run(_w5(task))


async def _w5(task: Task) -> None:
    from absurd_sdk import AsyncAbsurd

    app = AsyncAbsurd(task.url, queue_name="q")
    gate = Gate(task.amount) if task.stage == "start" else None

    @app.register_task(name="job")
    async def job(params: Any, context: Any) -> str:
        for step in range(task.steps):
            await context.step(f"s{step}", lambda step=step: work(task, gate, params["run"], step))
        return params["run"]

    if task.stage == "start":
        for i in range(task.amount):
            await app.spawn("job", {"run": f"r{i}"})
    worker = asyncio.create_task(
        app.start_worker(
            concurrency=task.amount,
            batch_size=task.amount,
            claim_timeout=int(task.lease_s),
            poll_interval=0.05,
        )
    )
    if task.stage == "recover":
        report("DONE", {"completed": await _completed(task)})
        os._exit(0)
    await worker


async def _completed(task: Task) -> int:
    import psycopg

    query = "SELECT count(*) FROM absurd.t_q WHERE state = 'completed'"
    async with await psycopg.AsyncConnection.connect(task.url, autocommit=True) as connection:
        while True:
            row = await (await connection.execute(query)).fetchone()
            if row is not None and row[0] >= task.amount:
                return row[0]
            await asyncio.sleep(0.05)


WORKLOADS = {"setup": setup, "w1": w1, "w2": w2, "w4": w4, "w5": w5}
