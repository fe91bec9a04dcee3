"""DBOS Transact: sync workflows and steps on its thread pool, except in the crash workload (coroutines)."""

# The peers live in an environment of their own, where the type checker does not look.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

import asyncio
import os
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

from benchmarks.child import Gate, StepTimer, Task, elapsed_ms, latencies, report, turns, work


def _launch(task: Task, **settings: Any) -> SimpleNamespace:
    """Configured and launched, every workflow registered first: recovery needs them."""
    from dbos import DBOS

    url = task.url or f"sqlite:///{task.directory}/dbos.db"
    config = {"name": "bench", "system_database_url": url, "log_level": "ERROR", "application_version": "v1"}
    DBOS(config={**config, **settings})
    defined = _define(task)
    defined.launched_after = time.perf_counter()
    DBOS.launch()
    defined.app = DBOS
    return defined


def _define(task: Task) -> SimpleNamespace:
    from dbos import DBOS

    defined = SimpleNamespace(gate=None)

    @DBOS.step()
    def trivial(i: int) -> dict[str, Any]:
        return {"i": i, "ok": True}

    @DBOS.workflow()
    def chain(count: int) -> int:
        for i in range(count):
            trivial(i)
        return count

    @DBOS.workflow()
    def approval() -> Any:
        trivial(0)
        answer = DBOS.recv("approve", timeout_seconds=600)
        trivial(1)
        return answer

    @DBOS.step()
    def turn(i: int) -> dict[str, str]:
        return defined.said[i]

    @DBOS.workflow()
    def conversation(count: int) -> int:
        messages: list[dict[str, str]] = []
        for i in range(count):
            messages.append(turn(i))
        return len(messages)

    @DBOS.step()
    async def job_step(run: str, step: int) -> dict[str, Any]:
        return await work(task, defined.gate, run, step)

    @DBOS.workflow()
    async def job(run: str, steps: int) -> str:
        for step in range(steps):
            await job_step(run, step)
        return run

    defined.chain, defined.approval, defined.conversation, defined.job = chain, approval, conversation, job
    return defined


def w1(task: Task) -> dict[str, Any]:
    defined = _launch(task)
    defined.chain(2)
    with StepTimer(task.amount) as timer:
        defined.chain(task.amount)
    defined.app.destroy()
    return timer.result()


def w2(task: Task) -> dict[str, Any]:
    defined = _launch(task, max_executor_threads=task.concurrency)
    seconds: list[float] = []

    def one(_: int) -> None:
        begun = time.perf_counter()
        defined.chain(task.steps)
        seconds.append(time.perf_counter() - begun)

    begun = time.perf_counter()
    with ThreadPoolExecutor(task.concurrency) as threads:
        list(threads.map(one, range(task.amount)))
    wall_s = time.perf_counter() - begun
    defined.app.destroy()
    return latencies(seconds, wall_s)


def w3(task: Task) -> dict[str, Any] | None:
    """A journal as ours: what a step returned is stored, and the list is made of that again."""
    defined = _launch(task)
    defined.said = turns(task.amount)
    if task.stage == "empty":
        defined.app.destroy()
        report("DONE")
        return None
    with StepTimer(task.amount) as timer:
        assert defined.conversation(task.amount) == task.amount
    defined.app.destroy()
    return timer.result()


def w4(task: Task) -> None:
    begun = time.perf_counter()
    from dbos import SetWorkflowID

    defined = _launch(task)
    app = defined.app
    if task.stage == "pause":
        with SetWorkflowID("w4"):
            app.start_workflow(defined.approval)
        while len(app.list_workflow_steps("w4")) < 1:
            time.sleep(0.02)
        time.sleep(0.5)  # there is no "paused" to wait for: give the workflow time to reach recv
        report("PAUSED")
        os._exit(0)
    app.send("w4", "yes", "approve")
    while app.get_workflow_status("w4").status != "SUCCESS":
        time.sleep(0.005)
    import_ms = round((defined.launched_after - begun) * 1e3, 1)
    report("DONE", {"import_ms": import_ms, "after_ms": elapsed_ms(defined.launched_after)})
    os._exit(0)  # an orderly destroy() takes longer still; the run is complete


def w5(task: Task) -> None:
    defined = _launch(task)
    if task.stage == "start":
        asyncio.run(_start_all(task, defined))
        return
    while True:
        listed = defined.app.list_workflows(load_input=False, load_output=False)
        completed = sum(1 for workflow in listed if workflow.status == "SUCCESS")
        if completed >= task.amount:
            break
        time.sleep(0.05)
    report("DONE", {"completed": completed})
    os._exit(0)


async def _start_all(task: Task, defined: SimpleNamespace) -> None:
    from dbos import SetWorkflowID

    defined.gate = Gate(task.amount)
    handles = []
    for i in range(task.amount):
        with SetWorkflowID(f"r{i}"):
            handles.append(await defined.app.start_workflow_async(defined.job, f"r{i}", task.steps))
    await asyncio.gather(*[handle.get_result() for handle in handles])


WORKLOADS = {"w1": w1, "w2": w2, "w3": w3, "w4": w4, "w5": w5}
