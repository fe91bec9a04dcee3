"""Perdure in the workloads: plain workflow functions and chains, its defaults everywhere."""

import asyncio
import time
from typing import Any

from benchmarks.child import Gate, StepTimer, Task, elapsed_ms, latencies, report, turns, work

BEAT_S = 0.005


def _url(task: Task) -> str:
    return task.url or f"sqlite:///{task.directory}/perdure.db"


def w1(task: Task) -> dict[str, Any]:
    from perdure import step, workflow

    async def trivial(i: int) -> dict[str, Any]:
        return {"i": i, "ok": True}

    @workflow
    async def chain(count: int) -> int:
        for i in range(count):
            await step(trivial, i)
        return count

    if task.mode == "run":
        return _sequential_sync(task, chain)
    return asyncio.run(_sequential(task, chain))


def w1safe(task: Task) -> dict[str, Any]:
    """Steps that may run again: nobody waits for their records, and the loop must keep turning meanwhile."""
    from perdure import step, workflow

    @step(recovery="safe")
    async def trivial(i: int) -> dict[str, Any]:
        return {"i": i, "ok": True}

    @workflow
    async def chain(count: int) -> int:
        for i in range(count):
            await trivial(i)
        return count

    return asyncio.run(_sequential_with_heartbeat(task, chain))


def _sequential_sync(task: Task, chain: Any) -> dict[str, Any]:
    chain.run(2, execution_id="warm", store=_url(task))
    with StepTimer(task.amount) as timer:
        result = chain.run(task.amount, execution_id="w1", store=_url(task))
    assert result.status == "completed" and result.output == task.amount, result
    return timer.result()


async def _sequential(task: Task, chain: Any) -> dict[str, Any]:
    await chain.arun(2, execution_id="warm", store=_url(task))
    with StepTimer(task.amount) as timer:
        result = await chain.arun(task.amount, execution_id="w1", store=_url(task))
    assert result.status == "completed" and result.output == task.amount, result
    return timer.result()


async def _sequential_with_heartbeat(task: Task, chain: Any) -> dict[str, Any]:
    late_s: list[float] = []
    heartbeat = asyncio.create_task(_beat(late_s))
    await asyncio.sleep(0)
    figures = await _sequential(task, chain)
    heartbeat.cancel()
    return {**figures, "beats": len(late_s), "max_late_ms": round(max(late_s, default=0.0) * 1e3, 2)}


async def _beat(late_s: list[float]) -> None:
    """How much later than asked this task wakes up, each time: what any other task on the loop would feel."""
    due = time.perf_counter() + BEAT_S
    try:
        while True:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            now = time.perf_counter()
            late_s.append(now - due)
            due = now + BEAT_S
    except asyncio.CancelledError:
        late_s.append(time.perf_counter() - due)  # a loop that never turned has not beaten at all
        raise


def w1chain(task: Task) -> dict[str, Any]:
    if task.mode == "run":
        _line(2).run({"i": 0}, execution_id="warm", store=_url(task))
        chain = _line(task.amount)
        with StepTimer(task.amount) as timer:
            result = chain.run({"i": 0}, execution_id="w1", store=_url(task))
    else:
        timer, result = asyncio.run(_line_arun(task))
    assert result.status == "completed" and result.final_state["i"] == task.amount, result
    return timer.result()


async def _line_arun(task: Task) -> tuple[StepTimer, Any]:
    await _line(2).arun({"i": 0}, execution_id="warm", store=_url(task))
    chain = _line(task.amount)
    with StepTimer(task.amount) as timer:
        result = await chain.arun({"i": 0}, execution_id="w1", store=_url(task))
    return timer, result


def _line(count: int) -> Any:
    from perdure import Chain

    async def trivial(i: int) -> dict[str, Any]:
        return {"i": i + 1, "ok": True}

    chain = Chain("line")
    for number in range(count):
        chain.add_node(f"n{number}", fn=trivial)
        if number:
            chain.connect(f"n{number - 1}", f"n{number}")
    return chain


def w3(task: Task) -> dict[str, Any] | None:
    return asyncio.run(_w3(task))


async def _w3(task: Task) -> dict[str, Any] | None:
    said = turns(task.amount)
    # The same run in both stages: in the second it is only looked up, which opens the store and adds nothing.
    await _conversation(task.mode, said, 1).arun({"i": 0, "messages": []}, execution_id="warm", store=_url(task))
    if task.stage == "empty":
        report("DONE")
        return None
    chain = _conversation(task.mode, said, task.amount)
    with StepTimer(task.amount) as timer:
        result = await chain.arun({"i": 0, "messages": []}, execution_id="w3", store=_url(task))
    assert result.status == "completed" and result.final_state["messages"] == said, result.status
    return timer.result()


def _conversation(mode: str, said: list[dict[str, str]], count: int) -> Any:
    """A node that goes round, and adds one message at a time; or gives back all of them, one more each time."""
    import operator

    from perdure import Chain

    async def add(i: int) -> dict[str, Any]:
        return {"i": i + 1, "messages": [said[i]]}

    async def rewrite(i: int, messages: list[Any]) -> dict[str, Any]:
        return {"i": i + 1, "messages": [*messages, said[i]]}

    chain = Chain("conversation", reducers={"messages": operator.add} if mode == "reducer" else None)
    chain.add_node("turn", fn=add if mode == "reducer" else rewrite)
    return chain.connect("turn", "turn", max_iterations=count, exit_condition=f"state.i >= {count}")


def w2(task: Task) -> dict[str, Any]:
    return asyncio.run(_w2(task))


async def _w2(task: Task) -> dict[str, Any]:
    from perdure import step, workflow

    async def trivial(i: int) -> dict[str, Any]:
        return {"i": i, "ok": True}

    @workflow
    async def chain(count: int) -> int:
        for i in range(count):
            await step(trivial, i)
        return count

    seconds: list[float] = []
    slots = asyncio.Semaphore(task.concurrency)

    async def one(key: int) -> None:
        async with slots:
            begun = time.perf_counter()
            result = await chain.arun(task.steps, execution_id=f"r{key}", store=_url(task))
            seconds.append(time.perf_counter() - begun)
            assert result.status == "completed", result

    await chain.arun(task.steps, execution_id="warm", store=_url(task))
    begun = time.perf_counter()
    await asyncio.gather(*[one(key) for key in range(task.amount)])
    return latencies(seconds, time.perf_counter() - begun)


def w4(task: Task) -> None:
    begun = time.perf_counter()
    from perdure import Resume, interrupt, step, workflow

    imported_ms = elapsed_ms(begun)

    async def first(i: int) -> dict[str, Any]:
        return {"i": i}

    @workflow
    async def approval(_: None) -> bool:
        await step(first, 1)
        answer = interrupt("approve", {"q": "?"})
        await step(first, 2)
        return answer.approved

    defined = time.perf_counter()
    if task.stage == "pause":
        paused = approval.run(None, execution_id="w4", store=_url(task))
        assert paused.status == "paused", paused
        report("PAUSED")
        return
    result = approval.resume("w4", resume_value=Resume(approved=True), store=_url(task))
    assert result.status == "completed" and result.output is True, result
    report("DONE", {"import_ms": imported_ms, "after_ms": elapsed_ms(defined)})


def w4chain(task: Task) -> None:
    begun = time.perf_counter()
    from perdure import Chain, Resume, interrupt

    imported_ms = elapsed_ms(begun)

    async def first() -> dict[str, Any]:
        return {"i": 1}

    async def ask() -> dict[str, Any]:
        return {"approved": interrupt("approve", {"q": "?"}).approved}

    chain = Chain("approval").add_node("a", fn=first).add_node("ask", fn=ask).add_node("b", fn=first)
    chain.connect("a", "ask").connect("ask", "b")
    defined = time.perf_counter()
    if task.stage == "pause":
        paused = chain.run({}, execution_id="w4", store=_url(task))
        assert paused.status == "paused", paused
        report("PAUSED")
        return
    result: Any = chain.resume("w4", resume_value=Resume(approved=True), store=_url(task))
    assert result.status == "completed" and result.final_state["approved"] is True, result
    report("DONE", {"import_ms": imported_ms, "after_ms": elapsed_ms(defined)})


def w5(task: Task) -> None:
    if task.stage == "durable":
        report("DONE", {"steps": _recorded(task)})
    else:
        asyncio.run(_w5(task))


async def _w5(task: Task) -> None:
    import perdure

    gate = Gate(task.amount) if task.stage == "start" else None

    async def job_step(run: str, number: int) -> dict[str, Any]:
        return await work(task, gate, run, number)

    @perdure.workflow
    async def job(run: str) -> str:
        for number in range(task.steps):
            await perdure.step(job_step, run, number)
        return run

    runs = [f"r{i}" for i in range(task.amount)]

    def run(name: str) -> Any:
        return job.arun(name, execution_id=name, store=_url(task))

    if gate is not None:
        await asyncio.gather(*[run(name) for name in runs])
        return
    settings = perdure.EngineSettings(max_concurrent_runs=task.amount)  # all at once, as the peers do it
    async with perdure.open_engine(_url(task), settings=settings) as engine:
        await engine.recover([job])
    report("DONE")
    # After the clock: an id that exists gives its recorded result and runs nothing.
    results = await asyncio.gather(*[run(name) for name in runs])
    assert all(result.status == "completed" for result in results), results


def _recorded(task: Task) -> list[str]:
    """The ``run step`` pairs whose completion is in the store now: they must never run again."""
    from perdure.core.codec import decode

    query = "SELECT run_id, data FROM {} WHERE type = 'completed' AND kind = 'step' AND outcome = 'value'"
    return [f"{run} {decode(data)['step']}" for run, data in _rows(task, query)]


def _rows(task: Task, query: str) -> list[Any]:
    if task.store == "sqlite":
        import sqlite3  # local: the cold-resume workload shares this module

        connection = sqlite3.connect(f"{task.directory}/perdure.db")
        try:
            return connection.execute(query.format("record")).fetchall()
        finally:
            connection.close()
    import psycopg  # local: as above

    with psycopg.connect(task.url) as connection:
        found = connection.execute("SELECT schemaname FROM pg_tables WHERE tablename = 'record'").fetchone()
        assert found is not None, "no journal in this database"
        return connection.execute(query.format(f'"{found[0]}".record')).fetchall()  # type: ignore[arg-type]


WORKLOADS = {
    "w1": w1,
    "w1safe": w1safe,
    "w1chain": w1chain,
    "w2": w2,
    "w3": w3,
    "w4": w4,
    "w4chain": w4chain,
    "w5": w5,
}
