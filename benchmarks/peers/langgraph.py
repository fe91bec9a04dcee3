"""LangGraph with its own savers. The mode is its ``durability`` argument: sync, or async, its default; in the growing
workload with its channel for differences, too.
"""

# The peers live in an environment of their own, where the type checker does not look.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from typing import Annotated, Any, TypedDict

from benchmarks.child import Gate, StepTimer, Task, elapsed_ms, latencies, report, turns, work

POOL = 20  # connections, on Postgres
CONNECTION = {"autocommit": True, "prepare_threshold": 0}  # as its documentation asks


class Counter(TypedDict):
    i: int
    last: dict[str, Any]


class Answer(TypedDict):
    i: int
    answer: str


class Job(TypedDict):
    run: str
    step: int


def _thread(name: str, steps: int = 50) -> Any:
    return {"configurable": {"thread_id": name}, "recursion_limit": steps + 10}


@contextmanager
def _saver(task: Task, *, pooled: bool = False) -> Iterator[Any]:
    if task.store == "sqlite":
        from langgraph.checkpoint.sqlite import SqliteSaver

        with SqliteSaver.from_conn_string(f"{task.directory}/langgraph.db") as saver:
            yield saver
        return
    from langgraph.checkpoint.postgres import PostgresSaver

    if not pooled:
        with PostgresSaver.from_conn_string(task.url) as saver:
            saver.setup()
            yield saver
        return
    from psycopg.rows import dict_row
    from psycopg_pool import ConnectionPool

    settings = {**CONNECTION, "row_factory": dict_row}
    with ConnectionPool(task.url, min_size=POOL, max_size=POOL, kwargs=settings) as pool:
        saver = PostgresSaver(pool)
        saver.setup()
        yield saver


@asynccontextmanager
async def _async_saver(task: Task) -> AsyncIterator[Any]:
    if task.store == "sqlite":
        from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

        async with AsyncSqliteSaver.from_conn_string(f"{task.directory}/langgraph.db") as saver:
            yield saver
        return
    from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
    from psycopg.rows import dict_row
    from psycopg_pool import AsyncConnectionPool

    settings = {**CONNECTION, "row_factory": dict_row}
    async with AsyncConnectionPool(task.url, min_size=POOL, max_size=POOL, open=False, kwargs=settings) as pool:
        saver = AsyncPostgresSaver(pool)
        await saver.setup()
        yield saver


def _trivial(state: Counter) -> dict[str, Any]:
    return {"i": state["i"] + 1, "last": {"i": state["i"], "ok": True}}


def _loop(count: int) -> Any:
    """One node that goes round until it has run ``count`` times."""
    from langgraph.graph import END, START, StateGraph

    graph = StateGraph(Counter)
    graph.add_node("trivial", _trivial)
    graph.add_edge(START, "trivial")
    graph.add_conditional_edges("trivial", lambda state: "trivial" if state["i"] < count else END, ["trivial", END])
    return graph


def _chain(steps: int) -> Any:
    from langgraph.graph import END, START, StateGraph

    graph = StateGraph(Counter)
    names = [f"n{i}" for i in range(steps)]
    for name in names:
        graph.add_node(name, _trivial)
    for source, target in zip([START, *names], [*names, END], strict=True):
        graph.add_edge(source, target)
    return graph


def w1(task: Task) -> dict[str, Any]:
    with _saver(task) as saver:
        graph = _loop(task.amount).compile(checkpointer=saver)
        graph.invoke({"i": task.amount - 2, "last": {}}, _thread("warm"), durability=task.mode)
        with StepTimer(task.amount) as timer:
            graph.invoke({"i": 0, "last": {}}, _thread("w1", task.amount), durability=task.mode)
    return timer.result()


def w1chain(task: Task) -> dict[str, Any]:
    with _saver(task) as saver:
        _chain(2).compile(checkpointer=saver).invoke({"i": 0, "last": {}}, _thread("warm"), durability=task.mode)
        graph = _chain(task.amount).compile(checkpointer=saver)
        with StepTimer(task.amount) as timer:
            result = graph.invoke({"i": 0, "last": {}}, _thread("w1", task.amount), durability=task.mode)
    assert result["i"] == task.amount, result
    return timer.result()


def w3(task: Task) -> dict[str, Any] | None:
    with _saver(task) as saver:
        saver.setup()
        if task.stage == "empty":
            report("DONE")
            return None
        durability, _, channel = task.mode.partition(", ")
        graph = _conversation(task.amount, channel).compile(checkpointer=saver)
        with StepTimer(task.amount) as timer:
            result = graph.invoke({"i": 0, "messages": []}, _thread("w3", task.amount), durability=durability)
    assert len(result["messages"]) == 2 * task.amount, len(result["messages"])
    return timer.result()


def _conversation(count: int, channel: str) -> Any:
    """One node that goes round; its messages are kept whole at each step, or (``delta``) as differences."""
    from langchain_core.messages import AIMessage, HumanMessage
    from langgraph.graph import END, START, StateGraph
    from langgraph.graph.message import add_messages

    kept: Any = add_messages
    if channel == "delta":
        from langgraph.channels.delta import DeltaChannel
        from langgraph.graph.message import _messages_delta_reducer

        kept = DeltaChannel(_messages_delta_reducer)
    said = turns(count)

    class Conversation(TypedDict):
        i: int
        messages: Annotated[list, kept]

    def turn(state: Any) -> dict[str, Any]:
        i = state["i"]
        question, answer = said[i]["user"], said[i]["assistant"]
        return {"i": i + 1, "messages": [HumanMessage(question, id=f"u{i}"), AIMessage(answer, id=f"a{i}")]}

    graph = StateGraph(Conversation)
    graph.add_node("turn", turn)
    graph.add_edge(START, "turn")
    graph.add_conditional_edges("turn", lambda state: "turn" if state["i"] < count else END, ["turn", END])
    return graph


def w2(task: Task) -> dict[str, Any]:
    """The sync saver under many threads: its fastest way here (its async savers take more CPU a step)."""
    seconds: list[float] = []
    with _saver(task, pooled=True) as saver:
        graph = _chain(task.steps).compile(checkpointer=saver)
        graph.invoke({"i": 0, "last": {}}, _thread("warm"), durability=task.mode)

        def one(key: int) -> None:
            begun = time.perf_counter()
            graph.invoke({"i": 0, "last": {}}, _thread(f"t{key}"), durability=task.mode)
            seconds.append(time.perf_counter() - begun)

        begun = time.perf_counter()
        with ThreadPoolExecutor(task.concurrency) as threads:
            list(threads.map(one, range(task.amount)))
        return latencies(seconds, time.perf_counter() - begun)


def w4(task: Task) -> None:
    begun = time.perf_counter()
    from langgraph.graph import END, START, StateGraph
    from langgraph.types import Command, interrupt

    graph = StateGraph(Answer)
    graph.add_node("a", lambda state: {"i": 1})
    graph.add_node("ask", lambda state: {"answer": interrupt("approve?")})
    graph.add_node("b", lambda state: {"i": 2})
    for source, target in ((START, "a"), ("a", "ask"), ("ask", "b"), ("b", END)):
        graph.add_edge(source, target)
    with _saver(task) as saver:
        app = graph.compile(checkpointer=saver)
        defined = time.perf_counter()
        import_ms = round((defined - begun) * 1e3, 1)
        if task.stage == "pause":
            paused: Any = app.invoke({"i": 0, "answer": ""}, _thread("w4"), durability="sync")
            assert "__interrupt__" in paused
            report("PAUSED")
            return
        result: Any = app.invoke(Command(resume="yes"), _thread("w4"), durability="sync")
        assert result["answer"] == "yes" and result["i"] == 2
        report("DONE", {"import_ms": import_ms, "after_ms": elapsed_ms(defined)})


def w5(task: Task) -> None:
    asyncio.run(_w5(task))


async def _w5(task: Task) -> None:
    gate = Gate(task.amount) if task.stage == "start" else None
    runs = [f"r{i}" for i in range(task.amount)]
    async with _async_saver(task) as saver:
        app = _job(task, gate).compile(checkpointer=saver)

        def begin(run: str) -> Any:
            return app.ainvoke({"run": run, "step": 0}, _thread(run), durability=task.mode)

        if gate is not None:
            await asyncio.gather(*[begin(run) for run in runs])
            return
        # It has no recovery scan: list the threads, then go on with each that is unfinished. (.tasks, not
        # .next, which is empty when the in-flight node's writes are saved but its checkpoint is not.)
        known = await _threads(task, saver)
        unfinished = [run for run in known if (await app.aget_state(_thread(run))).tasks]
        await asyncio.gather(*[app.ainvoke(None, _thread(run), durability=task.mode) for run in unfinished])
        lost = [run for run in runs if run not in known]  # only the caller's own list can bring these back
        await asyncio.gather(*[begin(run) for run in lost])
        report("DONE", {"completed": len(known) + len(lost), "unknown_to_store": len(lost)})


def _job(task: Task, gate: Gate | None) -> Any:
    from langgraph.graph import END, START, StateGraph

    async def job_step(state: Job) -> dict[str, Any]:
        await work(task, gate, state["run"], state["step"])
        return {"step": state["step"] + 1}

    graph = StateGraph(Job)
    graph.add_node("work", job_step)
    graph.add_edge(START, "work")
    graph.add_conditional_edges("work", lambda state: "work" if state["step"] < task.steps else END, ["work", END])
    return graph


async def _threads(task: Task, saver: Any) -> set[str]:
    query = "SELECT DISTINCT thread_id FROM checkpoints"
    if task.store == "sqlite":
        async with saver.conn.execute(query) as cursor:
            return {row[0] async for row in cursor}
    async with saver.conn.connection() as connection:
        return {row["thread_id"] for row in await (await connection.execute(query)).fetchall()}


WORKLOADS = {"w1": w1, "w1chain": w1chain, "w1safe": w1, "w2": w2, "w3": w3, "w4": w4, "w4chain": w4, "w5": w5}
