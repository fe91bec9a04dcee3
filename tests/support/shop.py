"""Workflows for tests that need several processes, and the command that runs them in one (see `child`).

Effects are lines in a ledger file: what was done, under which operation id, by which process. A body may be
held at a named place (environment variable PERDURE_TEST_HOLD): it says so on stdout and goes on when a line
comes in.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from perdure import (
    Engine,
    EngineSettings,
    Resume,
    Workflow,
    idempotent,
    interrupt,
    open_engine,
    open_store,
    operation_id,
    sleep,
    step,
    workflow,
)
from perdure.engine.results import RunResult
from perdure.store.base import Store

_reading = threading.Lock()


def gate(place: str) -> None:
    """Stop here if this process is to be held at this place, once."""
    held = _held()
    if place in held:
        held.remove(place)
        print(f"holding {place}", flush=True)
        with _reading:
            sys.stdin.readline()


@functools.cache
def _held() -> list[str]:
    return json.loads(os.environ.get("PERDURE_TEST_HOLD", "[]"))


def note(ledger: str, what: str) -> None:
    """An effect: one line that is there or not, however many processes write."""
    line = json.dumps({"what": what, "operation": operation_id(), "pid": os.getpid()}) + "\n"
    handle = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(handle, line.encode())
    finally:
        os.close(handle)


def entries(ledger: str | Path) -> list[dict[str, Any]]:
    """The lines of a ledger."""
    path = Path(ledger)
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def effects(ledger: str | Path) -> list[str]:
    """What was done, in order."""
    return [entry["what"] for entry in entries(ledger)]


@step(name="shop_effect")
def effect(ledger: str, what: str) -> str:
    """A step with an effect, in a thread."""
    gate(f"before {what}")
    note(ledger, what)
    gate(f"after {what}")
    return what


@step(name="shop_manual", recovery="manual")
def manual_effect(ledger: str, what: str) -> str:
    gate(f"before {what}")
    note(ledger, what)
    gate(f"after {what}")
    return what


@idempotent(name="shop_pay")
async def pay(ledger: str, amount: int) -> int:
    await asyncio.to_thread(gate, "before pay")
    note(ledger, f"pay {amount}")
    await asyncio.to_thread(gate, "after pay")
    return amount


@idempotent(name="shop_pay_again", recovery="idempotent")
async def pay_again(ledger: str, amount: int) -> int:
    await asyncio.to_thread(gate, "before pay")
    note(ledger, f"pay {amount}")
    await asyncio.to_thread(gate, "after pay")
    return amount


@step(name="shop_asking_step")
def asking_step(ledger: str) -> str:
    """A body that may die before it asks."""
    note(ledger, "enter")
    gate("before ask")
    answer = interrupt("go on?", {"step": "asking"})
    note(ledger, f"approved {answer.approved}")
    return f"approved {answer.approved}"


@step(name="shop_blocking_step")
async def blocking_step(ledger: str, what: str) -> str:
    """Blocks the event loop itself."""
    note(ledger, what)
    gate(f"blocking {what}")
    return what


@workflow(name="shop_three_effects")
async def three_effects(order: dict[str, Any]) -> list[str]:
    return [await effect(order["ledger"], what) for what in ("one", "two", "three")]


@workflow(name="shop_approve")
async def approve(order: dict[str, Any]) -> dict[str, Any]:
    """Prepare, ask, pay."""
    await effect(order["ledger"], "prepare")
    answer = interrupt("pay?", {"amount": order.get("amount", 10)})
    if not answer.approved:
        return {"paid": False}
    await effect(order["ledger"], "pay")
    await effect(order["ledger"], "receipt")
    return {"paid": True, **answer.metadata}


@workflow(name="shop_manual_run")
async def manual_run(order: dict[str, Any]) -> str:
    await effect(order["ledger"], "prepare")
    return await manual_effect(order["ledger"], "wire")


@workflow(name="shop_pay_once")
async def pay_once(order: dict[str, Any]) -> int:
    paid = await pay(order["ledger"], order["amount"])
    await effect(order["ledger"], "receipt")
    return paid


@workflow(name="shop_pay_again_run")
async def pay_again_run(order: dict[str, Any]) -> int:
    paid = await pay_again(order["ledger"], order["amount"])
    await effect(order["ledger"], "receipt")
    return paid


@workflow(name="shop_asking")
async def asking(order: dict[str, Any]) -> str:
    return await asking_step(order["ledger"])


@workflow(name="shop_inner")
async def inner(order: dict[str, Any]) -> str:
    await effect(order["ledger"], "charge")
    answer = interrupt("ship?", {})
    return f"shipped {answer.approved}"


@workflow(name="shop_middle")
async def middle(order: dict[str, Any]) -> str:
    await effect(order["ledger"], "reserve")
    return await inner(order)


@workflow(name="shop_outer")
async def outer(order: dict[str, Any]) -> str:
    await effect(order["ledger"], "open")
    done = await middle(order)
    await effect(order["ledger"], "close")
    return done


@workflow(name="shop_three_questions")
async def three_questions(order: dict[str, Any]) -> list[str]:
    async def one(name: str) -> str:
        answer = interrupt("use the tool?", {"tool": name})
        return f"{name}:{answer.metadata.get('note')}"

    return list(await asyncio.gather(*(one(name) for name in order["tools"])))


@workflow(name="shop_sleeper")
async def sleeper(order: dict[str, Any]) -> str:
    await effect(order["ledger"], "before sleep")
    await sleep(order["seconds"])
    await effect(order["ledger"], "after sleep")
    return "awake"


@workflow(name="shop_blocking")
async def blocking(order: dict[str, Any]) -> str:
    return await blocking_step(order["ledger"], "blocked")


@workflow(name="shop_burst")
async def burst(order: dict[str, Any]) -> int:
    """Several steps, one effect line each."""
    for n in range(order["steps"]):
        await effect(order["ledger"], f"{order['name']}:{n}")
    return order["steps"]


@workflow(name="shop_unrecordable")
async def unrecordable(order: dict[str, Any]) -> str:
    """Hands a step what has no recordable form."""
    return await effect(order["ledger"], object())  # type: ignore[arg-type]


RUNNERS = {
    runner.name: runner
    for runner in (
        approve, asking, blocking, burst, inner, manual_run, middle, outer, pay_again_run, pay_once, sleeper,
        three_effects, three_questions, unrecordable,
    )
}  # fmt: skip


def shown(result: RunResult) -> dict[str, Any]:
    return {
        "status": result.status,
        "output": result.output,
        "execution_id": result.execution_id,
        "pending": [question["interrupt_id"] for question in result.pending_interrupts],
    }


def die_at(driver: Any, commit: int) -> None:
    """End this process as by SIGKILL in place of its n-th commit."""
    left = [commit]

    def dying(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **kwargs)

        return call

    driver.write, driver.transact = dying(driver.write), dying(driver.transact)


async def _command(verb: str, url: str, options: dict[str, Any]) -> Any:
    settings = EngineSettings(**options.pop("settings", {}))
    runner = RUNNERS.get(options.pop("runner", ""))
    store = await asyncio.to_thread(open_store, url)
    if commit := options.pop("die_at", None):
        die_at(store._driver, commit)
    try:
        return await _perform(verb, store, settings, runner, options)
    finally:
        await store.close()


async def _perform(
    verb: str, store: Store, settings: EngineSettings, runner: Workflow | None, options: dict[str, Any]
) -> Any:
    async with open_engine(store, settings=settings) as engine:
        print(f"open {engine.host.worker_id}", flush=True)
        if options.pop("wait", False):
            await asyncio.to_thread(sys.stdin.readline)
        match verb:
            case "run":
                assert runner is not None
                return shown(await engine.run(runner, options["input"], execution_id=options.get("execution_id")))
            case "resume":
                assert runner is not None
                answer = options.pop("answer", None)
                value = None if answer is None else Resume(**answer)
                return shown(await engine.resume(runner, resume_value=value, **options))
            case "fork":
                assert runner is not None
                return shown(await engine.fork(runner, **options))
            case "hold many":
                return await _hold_many(engine, options["ledger"], options["count"])
            case "program":
                from tests.support import programs  # only for this command: it needs hypothesis

                return await programs.finish(engine, options["data"], options["execution_id"])
            case "work":
                await engine.work(RUNNERS.values(), until_idle=options.get("until_idle", True))
                return None
    raise AssertionError(verb)


async def _hold_many(engine: Engine, ledger: str, count: int) -> list[str]:
    """Own several runs, each inside its first body, until a line comes in."""
    entered = threading.Semaphore(0)
    line_came = threading.Event()

    def stand(place: str) -> None:
        entered.release()
        line_came.wait()

    global gate
    gate = stand
    for n in range(count):
        order = {"ledger": ledger, "steps": 2, "name": f"frozen-{n}"}
        await engine.start(burst, order, execution_id=f"frozen-{n}")
    for _ in range(count):
        await asyncio.to_thread(entered.acquire)
    print("all inside", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    line_came.set()
    while engine.host.drives:
        await asyncio.sleep(0.01)
    return []


def main() -> None:
    verb, url, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    try:
        result = asyncio.run(_command(verb, url, options))
    except Exception as error:
        print(f"error {type(error).__name__}: {error}", flush=True)
    else:
        print(f"result {json.dumps(result)}", flush=True)


if __name__ == "__main__":
    # One module under one name, so that names of functions are claimed once.
    from tests.support import shop

    shop.main()
