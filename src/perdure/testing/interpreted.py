"""Random programs: a tree of what to do is the workflow's input, and one workflow carries it out.

A tree is JSON: `{"do": ..., "of": [...]}`. What it does does not depend on tokens or on time, so that every
execution of one tree does the same; which way a branch goes depends on an answer.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from typing import Any

from perdure.flow.asking import interrupt
from perdure.flow.values import sleep
from perdure.flow.workflow import workflow
from perdure.testing.programs import (
    INPUT,
    Program,
    flaky,
    look,
    pay,
    put,
    put_in_thread,
    refund,
    token_of,
)

Tree = dict[str, Any]

_STEPS: dict[str, Callable[[str, list[str]], Coroutine[Any, Any, str]]] = {
    "look": look,
    "put": put,
    "pay": pay,
    "thread": put_in_thread,
    "refund": refund,
}
_LEAVES = (*_STEPS, "put", "put", "ask", "sleep")
_INNER = ("seq", "gather", "group", "loop", "catch", "branch")
_MAX_WIDTH = 3
_LOOPS = 2
_CONSUMED = 4
"""Tokens an effect consumes at most; what is recorded of arguments is bounded."""


@workflow(name="interpreted")
async def interpret(value: dict[str, Any]) -> list[str]:
    return await _do(value["tree"], "t", [value["token"]])


async def _do(tree: Tree, at: str, tokens: list[str]) -> list[str]:
    """Carry out the tree at this place with the last tokens; returns the new ones."""
    do = tree["do"]
    if do in _STEPS:
        return [await _STEPS[do](at, tokens[-_CONSUMED:])]
    return await _HANDLERS[do](tree, at, tokens)


async def _ask(tree: Tree, at: str, tokens: list[str]) -> list[str]:
    return [*tokens, token_of(interrupt(f"{at}?", {"at": at}))]


async def _sleep(tree: Tree, at: str, tokens: list[str]) -> list[str]:
    await sleep(0.01)
    return tokens


async def _seq(tree: Tree, at: str, tokens: list[str]) -> list[str]:
    for n, child in enumerate(tree["of"]):
        tokens = await _do(child, f"{at}-{n}", tokens)
    return tokens


async def _gather(tree: Tree, at: str, tokens: list[str]) -> list[str]:
    branches = [_do(child, f"{at}-{n}", tokens) for n, child in enumerate(tree["of"])]
    return [token for result in await asyncio.gather(*branches) for token in result]


async def _group(tree: Tree, at: str, tokens: list[str]) -> list[str]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_do(child, f"{at}-{n}", tokens)) for n, child in enumerate(tree["of"])]
    return [token for task in tasks for token in task.result()]


async def _loop(tree: Tree, at: str, tokens: list[str]) -> list[str]:
    for turn in range(_LOOPS):
        tokens = await _seq(tree, f"{at}-l{turn}", tokens)
    return tokens


async def _catch(tree: Tree, at: str, tokens: list[str]) -> list[str]:
    first, *cleanup = tree["of"]
    try:
        tokens = await _do(first, f"{at}-try", tokens)
        return [await flaky(f"{at}-doomed", tokens[-_CONSUMED:], 1000)]
    except ValueError:
        return await _seq({"of": cleanup}, f"{at}-except", tokens)


async def _branch(tree: Tree, at: str, tokens: list[str]) -> list[str]:
    answer = interrupt(f"{at}?", {"at": at})
    first, *others = tree["of"]
    chosen = [first] if answer.approved else others
    return await _seq({"of": chosen}, f"{at}-{'yes' if answer.approved else 'no'}", [*tokens, token_of(answer)])


_HANDLERS: dict[str, Callable[[Tree, str, list[str]], Coroutine[Any, Any, list[str]]]] = {
    "ask": _ask,
    "sleep": _sleep,
    "seq": _seq,
    "gather": _gather,
    "group": _group,
    "loop": _loop,
    "catch": _catch,
    "branch": _branch,
}

PROGRAM = Program(runner=interpret)


def random_program(choose: random.Random) -> Program:
    """A program and answers to whatever it may ask; it ends with an effect that consumes an answer, if
    there is one."""
    tree = {"do": "seq", "of": [_tree(choose, 3), {"do": "put"}]}
    # Every place that might ask, so that nobody has to foresee which ways are taken.
    answers = {f"{at}?": choose.random() < 0.7 for at in _places(tree, "t")}
    return replace(PROGRAM, value={"token": INPUT, "tree": tree}, answers=answers)


def _tree(choose: random.Random, depth: int) -> Tree:
    if depth == 0:
        return {"do": choose.choice(_LEAVES)}
    do = choose.choice(_INNER)
    width = choose.randint(2, _MAX_WIDTH)
    return {"do": do, "of": [_tree(choose, choose.randint(0, depth - 1)) for _ in range(width)]}


def _places(tree: Tree, at: str) -> Iterator[str]:
    """Where questions may be asked."""
    if tree["do"] in ("ask", "branch"):
        yield at
    children = tree.get("of", [])
    match tree["do"]:
        case "seq" | "gather" | "group":
            places = [(child, f"{at}-{n}") for n, child in enumerate(children)]
        case "loop":
            places = [(c, f"{at}-l{turn}-{n}") for turn in range(_LOOPS) for n, c in enumerate(children)]
        case "catch":
            places = [(children[0], f"{at}-try")]
            places += [(child, f"{at}-except-{n}") for n, child in enumerate(children[1:])]
        case "branch":
            places = [(children[0], f"{at}-yes-0")]
            places += [(child, f"{at}-no-{n}") for n, child in enumerate(children[1:])]
        case _:
            places = []
    for child, place in places:
        yield from _places(child, place)
