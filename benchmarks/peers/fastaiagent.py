"""fastaiagent chains of tool nodes, its checkpointer on, its tracing off (tracing halves its rate); what grows is the
conversation of its agent.
"""

# The peers live in an environment of their own, where the type checker does not look.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

import asyncio
import os
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from benchmarks.child import Gate, StepTimer, Task, elapsed_ms, latencies, report, turns, work

MAX_NODES = 400  # a chain of it has a hard limit of 500 steps
TURNS_OF_A_RUN = 50  # an agent of it is limited to 100 in one run; the next one is given the messages so far


def _configure(task: Task) -> None:
    """Before its import: it reads its environment then, and writes into the current directory."""
    os.environ["FASTAIAGENT_LOCAL_DB"] = f"{task.directory}/local.db"
    os.environ["FASTAIAGENT_TRACE_ENABLED"] = "0"


def _checkpointer(task: Task) -> Any:
    _configure(task)
    if task.store == "sqlite":
        from fastaiagent import SQLiteCheckpointer

        checkpointer: Any = SQLiteCheckpointer(db_path=f"{task.directory}/local.db")
    else:
        from fastaiagent.checkpointers.postgres import PostgresCheckpointer

        checkpointer = PostgresCheckpointer(task.url)
    checkpointer.setup()
    return checkpointer


def _trivial() -> dict[str, Any]:
    return {"i": 1, "ok": True}


def _chain(count: int, checkpointer: Any, body: Callable[[int], Callable[..., Any]] | None = None) -> Any:
    from fastaiagent import FunctionTool
    from fastaiagent.chain import Chain

    chain = Chain("bench", checkpointer=checkpointer)
    for i in range(count):
        tool = FunctionTool(name=f"step{i}", fn=body(i)) if body else FunctionTool(name="step", fn=_trivial)
        chain.add_node(f"n{i}", tool=tool)
        if i:
            chain.connect(f"n{i - 1}", f"n{i}")
    return chain


def w1(task: Task) -> dict[str, Any]:
    checkpointer = _checkpointer(task)
    count = min(task.amount, MAX_NODES)
    chain = _chain(count, checkpointer)
    _chain(2, checkpointer).execute({"x": 1})
    with StepTimer(count) as timer:
        result = chain.execute({"x": 1})
    assert result.status == "completed", result
    checkpointer.close()
    return timer.result()


def w2(task: Task) -> dict[str, Any]:
    return asyncio.run(_w2(task))


async def _w2(task: Task) -> dict[str, Any]:
    chain = _chain(task.steps, _checkpointer(task))
    await chain.aexecute({"x": 1})
    seconds: list[float] = []
    slots = asyncio.Semaphore(task.concurrency)

    async def one() -> None:
        async with slots:
            begun = time.perf_counter()
            await chain.aexecute({"x": 1})
            seconds.append(time.perf_counter() - begun)

    begun = time.perf_counter()
    await asyncio.gather(*[one() for _ in range(task.amount)])
    return latencies(seconds, time.perf_counter() - begun)


def w3(task: Task) -> dict[str, Any] | None:
    """Its agent with a scripted model that calls one tool a turn: 512 characters said by each."""
    checkpointer = _checkpointer(task)
    if task.stage == "empty":
        checkpointer.close()
        report("DONE")
        return None
    from fastaiagent import Agent, FunctionTool
    from fastaiagent.agent.agent import AgentConfig
    from fastaiagent.testing.models import FunctionModel

    said = turns(task.amount)
    done, left = 0, 0

    def answer(messages: Any) -> Any:
        nonlocal done, left
        if not left:
            return "done"
        done, left = done + 1, left - 1
        return said[done - 1]["assistant"], [{"name": "tool", "arguments": {"i": done - 1}}]

    def tool(i: int) -> str:
        return said[i]["user"]

    agent = Agent(
        name="bench",
        llm=FunctionModel(answer),
        tools=[FunctionTool(name="tool", fn=tool)],
        checkpointer=checkpointer,
        config=AgentConfig(max_iterations=TURNS_OF_A_RUN + 10),
    )
    history: Any = None
    with StepTimer(task.amount) as timer:
        while done < task.amount:
            left = min(TURNS_OF_A_RUN, task.amount - done)
            history = agent.run("go", messages=history, trace=False).messages
    assert len(history) >= 2 * task.amount, len(history)
    checkpointer.close()
    return timer.result()


def w4(task: Task) -> None:
    begun = time.perf_counter()
    _configure(task)
    from fastaiagent import FunctionTool, Resume, interrupt
    from fastaiagent.chain import Chain

    checkpointer = _checkpointer(task)

    def ask() -> dict[str, Any]:
        return {"approved": interrupt(reason="approve", context={"q": "?"}).approved}

    chain = Chain("w4", checkpointer=checkpointer)
    chain.add_node("a", tool=FunctionTool(name="first", fn=_trivial))
    chain.add_node("ask", tool=FunctionTool(name="ask", fn=ask))
    chain.add_node("b", tool=FunctionTool(name="first", fn=_trivial))
    chain.connect("a", "ask")
    chain.connect("ask", "b")
    defined = time.perf_counter()
    import_ms = round((defined - begun) * 1e3, 1)
    if task.stage == "pause":
        paused = chain.execute({}, execution_id="w4")
        assert paused.status == "paused", paused
        report("PAUSED")
    else:
        result = asyncio.run(chain.resume("w4", resume_value=Resume(approved=True)))
        assert result.status == "completed", result
        report("DONE", {"import_ms": import_ms, "after_ms": elapsed_ms(defined)})
    checkpointer.close()


def w5(task: Task) -> None:
    asyncio.run(_w5(task))


async def _w5(task: Task) -> None:
    checkpointer = _checkpointer(task)
    gate = Gate(task.amount) if task.stage == "start" else None
    current: ContextVar[str] = ContextVar("current")  # its tools are not told which run they belong to

    def body(step: int) -> Callable[..., Any]:
        async def job_step() -> dict[str, Any]:
            return await work(task, gate, current.get(), step)

        return job_step

    chain = _chain(task.steps, checkpointer, body)

    async def begin(run: str) -> None:
        current.set(run)
        await chain.aexecute({"run": run}, execution_id=run)

    async def go_on(run: str) -> None:
        current.set(run)
        await chain.aresume(run)

    runs = [f"r{i}" for i in range(task.amount)]
    if gate is not None:
        await asyncio.gather(*[begin(run) for run in runs])
        return
    # It has no recovery scan: find the unfinished executions in its table, then resume each.
    known, ended = _executions(task, checkpointer)
    await asyncio.gather(*[go_on(run) for run in known - ended])
    lost = [run for run in runs if run not in known]  # killed in its first step: no row at all
    await asyncio.gather(*[begin(run) for run in lost])
    report("DONE", {"completed": len(known) + len(lost), "unknown_to_store": len(lost)})
    checkpointer.close()


def _executions(task: Task, checkpointer: Any) -> tuple[set[str], set[str]]:
    """The executions that the store knows, and those of them that have ended."""
    query = "SELECT DISTINCT execution_id, step_type FROM {}"
    if task.store == "sqlite":
        rows = checkpointer._conn().fetchall(query.format("checkpoints"))
        pairs = [(row["execution_id"], row["step_type"]) for row in rows]
    else:
        with checkpointer._get_pool().connection() as connection:
            pairs = connection.execute(query.format(checkpointer._t_checkpoints)).fetchall()
    known = {execution for execution, _ in pairs}
    return known, {execution for execution, step_type in pairs if step_type == "run_end"}


WORKLOADS = {"w1": w1, "w1chain": w1, "w2": w2, "w3": w3, "w4": w4, "w4chain": w4, "w5": w5}
