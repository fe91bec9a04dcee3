"""Random chains: a shape is data, and makes the same chain in every process that has it.

A shape is JSON: `{"name", "nodes": [{"id", "do", "takes", ...}], "edges": [[source, target, {...}]], "state"}`.
Where it leads does not depend on tokens or on time: conditions read the state that the run begins with, counters, and
answers. What its nodes do outside is a matter of `Bodies`.
"""

from __future__ import annotations

import operator
import random
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from perdure.flow.asking import interrupt
from perdure.flow.chain import Chain
from perdure.flow.values import operation_id
from perdure.testing.facts import tokens_of
from perdure.testing.ledger import ledger
from perdure.testing.programs import INPUT, REFUSED, Program

GIVEN = "given"
"""The key of the state that people change."""

Shape = dict[str, Any]
Node = dict[str, Any]

_PLAIN = ("put", "put", "put", "look", "thread", "pay", "flaky", "log", "ask", "twice", "hitl", "text", "which")
_LARGE = ("chain", "own", "map", "branches", "cycle")
_POLICIES = {"look": "safe", "pay": "manual"}
_MOST_TURNS = 3


class Bodies(ABC):
    """What the nodes of a random chain do. `consumed` is what the state had for them, `state` all of it."""

    @abstractmethod
    async def arrive(self) -> None:
        """Called as an asynchronous body begins."""

    @abstractmethod
    def effect(self, consumed: Any, state: dict[str, Any]) -> Any:
        """Act once; returns what the node returns."""

    @abstractmethod
    def fail(self, consumed: Any, times: int) -> None:
        """Raise the first `times` times that this operation comes here."""

    @abstractmethod
    def answer(self, answer: Any) -> Any:
        """What a body consumes of an answer."""

    async def act(self, consumed: Any, state: dict[str, Any]) -> Any:
        await self.arrive()
        return self.effect(consumed, state)

    def act_in_thread(self, consumed: Any, state: dict[str, Any]) -> Any:
        return self.effect(consumed, state)

    async def flaky(self, consumed: Any, state: dict[str, Any]) -> Any:
        await self.arrive()
        self.fail(consumed, 1)
        return self.effect(consumed, state)

    async def log(self, consumed: Any, state: dict[str, Any], id: str) -> dict[str, Any]:
        await self.arrive()
        value = self.effect(consumed, state)
        return {id: value, "log": [value]}

    async def turn(self, consumed: Any, state: dict[str, Any], id: str, count: int) -> dict[str, Any]:
        await self.arrive()
        return {id: self.effect(consumed, state), _counter(id): count + 1}

    async def ask(self, consumed: Any, state: dict[str, Any], reasons: list[str]) -> Any:
        await self.arrive()
        answers = [self.answer(interrupt(reason, {"of": reason})) for reason in reasons]
        return self.effect([consumed, answers], state)

    async def item(self, item: str, consumed: Any, state: dict[str, Any]) -> Any:
        await self.arrive()
        if item == "bad":
            self.fail(consumed, 1000)
        return self.effect(consumed, state)


class LedgerBodies(Bodies):
    """Effects in the ledger; each is labelled with its operation."""

    async def arrive(self) -> None:
        """They act at once."""

    def effect(self, consumed: Any, state: dict[str, Any]) -> str:
        return ledger().effect(_label(), _strings(consumed))

    def fail(self, consumed: Any, times: int) -> None:
        ledger().fail(_label(), _strings(consumed), times)

    def answer(self, answer: Any) -> str:
        return answer.metadata["token"] + ("" if answer.approved else REFUSED)


def _label() -> str:
    return re.sub(r"[^a-z0-9]+", "-", operation_id().partition("/")[2])


def _strings(value: Any) -> list[str]:
    """The tokens in a value, in order."""
    match value:
        case str():
            refused = REFUSED if value.endswith(REFUSED) else ""
            return [value] if value == INPUT else [token + refused for token in tokens_of(value)]
        case dict():
            return [token for item in value.values() for token in _strings(item)]
        case list() | tuple():
            return [token for item in value for token in _strings(item)]
        case _:
            return []


def _counter(id: str) -> str:
    return f"count_of_{id}"


# --- a shape as a chain ---------------------------------------------------------------------------------


def chain_of(shape: Shape, bodies: Bodies) -> Chain:
    """The chain of this shape."""
    chain = Chain(shape["name"], reducers={"log": operator.add})
    for node in shape["nodes"]:
        _ADDERS[node["do"]](chain, node, bodies)
    for source, target, options in shape["edges"]:
        chain.connect(source, target, **options)
    return chain


def _consumed(node: Node) -> list[str]:
    return [f"{{{{state.{name} | default('none')}}}}" for name in node["takes"]]


def _tool(method: str) -> Callable[[Chain, Node, Bodies], Chain]:
    def add(chain: Chain, node: Node, bodies: Bodies) -> Chain:
        mapping = {"consumed": _consumed(node), **{name: node[name] for name in ("reasons",) if name in node}}
        if method in ("log", "turn"):
            mapping["id"] = node["id"]
        if method == "turn":
            mapping["count"] = f"{{{{state.{_counter(node['id'])} | default(0)}}}}"
        policy = _POLICIES.get(node["do"], "idempotent")
        return chain.add_node(node["id"], fn=getattr(bodies, method), input_mapping=mapping, recovery=policy)

    return add


def _add_hitl(chain: Chain, node: Node, bodies: Bodies) -> Chain:
    return chain.add_node(node["id"], type="hitl", reason=node["reasons"][0], context={"of": _consumed(node)})


def _add_text(chain: Chain, node: Node, bodies: Bodies) -> Chain:
    return chain.add_node(node["id"], type="transformer", template={"made of": _consumed(node)}, output_key=node["id"])


def _add_which(chain: Chain, node: Node, bodies: Bodies) -> Chain:
    ways = [{"expression": f"state.{flag}", "handle": flag} for flag in node["flags"]] or [{"expression": "false"}]
    return chain.add_node(node["id"], type="condition", conditions=ways)


def _add_chain(chain: Chain, node: Node, bodies: Bodies) -> Chain:
    """A nested chain that goes on from the state."""
    return chain.add_node(node["id"], agent=chain_of(node["of"], bodies))


def _add_own(chain: Chain, node: Node, bodies: Bodies) -> Chain:
    """A nested chain with a state of its own."""
    inner = node["of"]
    given = {"value": _consumed(node), **{name: value for name, value in inner["state"].items() if name != "value"}}
    return chain.add_node(node["id"], agent=chain_of(inner, bodies), input_mapping=given, output_key=node["id"])


def _add_map(chain: Chain, node: Node, bodies: Bodies) -> Chain:
    return chain.add_node(
        node["id"],
        type="parallel",
        over=f"{{{{state.{node['items']}}}}}",
        fn=bodies.item,
        input_mapping={"consumed": _consumed(node)},
        failure_mode="continue",
        max_concurrency=node["width"],
        output_key=node["id"],
    )


def _add_branches(chain: Chain, node: Node, bodies: Bodies) -> Chain:
    """A function and a chain side by side, each with the whole state; what the chain writes stays in it."""

    async def act(state: dict[str, Any]) -> Any:
        return await bodies.act([state.get(name) for name in node["takes"]], state)

    branches = {"act": act, "chain": chain_of(node["of"], bodies)}
    return chain.add_node(node["id"], type="parallel", branches=branches, output_key=node["id"])


_ADDERS: dict[str, Callable[[Chain, Node, Bodies], Chain]] = {
    "put": _tool("act"),
    "look": _tool("act"),
    "pay": _tool("act"),
    "thread": _tool("act_in_thread"),
    "flaky": _tool("flaky"),
    "log": _tool("log"),
    "turn": _tool("turn"),
    "ask": _tool("ask"),
    "twice": _tool("ask"),
    "hitl": _add_hitl,
    "text": _add_text,
    "which": _add_which,
    "chain": _add_chain,
    "own": _add_own,
    "map": _add_map,
    "branches": _add_branches,
}


# --- random shapes --------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Maker:
    """One shape being made. `is_wild`: edges may lead back from anywhere to anywhere before, so that one node may be
    reached by several visits at once, and chains may fail."""

    choose: random.Random
    name: str
    depth: int
    is_wild: bool
    nodes: list[Node] = field(default_factory=list)
    edges: list[list[Any]] = field(default_factory=list)
    state: dict[str, Any] = field(default_factory=lambda: {"value": INPUT})

    def make(self, count: int) -> Shape:
        ways_out: list[str] = []
        """Nodes from which later ones may follow; a segment's last."""
        for number in range(count):
            many = 2 if len(ways_out) > 1 and self.choose.random() < 0.35 else 1
            recent = ways_out[-3:]
            parents = self.choose.sample(recent, min(many, len(recent)))
            ways_out.append(self._add(f"{self.name}{number}", sorted(parents)))
        self._choose_ways()
        if self.is_wild and self.choose.random() < 0.5:
            self._lead_back()
        return {"name": self.name, "nodes": self.nodes, "edges": self.edges, "state": self.state}

    def _add(self, id: str, parents: list[str]) -> str:
        """Add a node, or a segment of nodes; returns from where it goes on."""
        is_large = self.choose.random() < 0.3
        do = self.choose.choice(_LARGE if is_large else _PLAIN)
        if do in ("chain", "own", "branches") and self.depth == 0:
            do = "put"
        takes = [self._source(parent) for parent in parents] or ["value"]
        if self.choose.random() < 0.3:
            takes.append(GIVEN)
        if do == "cycle":
            return self._add_cycle(id, parents, takes)
        self.nodes.append({"id": id, "do": do, "takes": takes, **self._more(do, id)})
        self._follow(parents, id)
        return id

    def _follow(self, parents: list[str], id: str) -> None:
        self.edges += [[parent, id, {}] for parent in parents]

    def _more(self, do: str, id: str) -> Node:
        match do:
            case "ask" | "hitl":
                return self._questions(f"{id}?")
            case "twice":
                return self._questions(f"{id}?", f"{id} again?")
            case "which":
                return {"flags": []}
            case "map":
                self.state[f"items_of_{id}"] = self.choose.choices(
                    ["good", "bad", "better"], k=self.choose.randint(0, 4)
                )
                return {"items": f"items_of_{id}", "width": self.choose.choice([None, 1, 2])}
            case "chain" | "own" | "branches":
                inner = _Maker(self.choose, f"{id}x", self.depth - 1, self.is_wild)
                of = inner.make(self.choose.randint(1, 4))
                if do != "own":
                    self.state |= of["state"]
                return {"of": of}
        return {}

    def _questions(self, *reasons: str) -> Node:
        """What is asked, what the person says, and whether they change the state then."""
        is_patched = self.choose.random() < 0.3
        approved = self.choose.random() < 0.7
        return {"reasons": list(reasons), "approved": approved, "patched": list(reasons[-1:]) if is_patched else []}

    def _flag(self, id: str) -> str:
        """A name in the state that says whether the way to a node is open."""
        self.state.setdefault(f"to_{id}", self.choose.random() < 0.5)
        return f"to_{id}"

    def _add_cycle(self, id: str, parents: list[str], takes: list[str]) -> str:
        """Two nodes that are visited in turn, a few times."""
        first, last = f"{id}first", f"{id}last"
        self.nodes.append({"id": first, "do": "turn", "takes": [*takes, last]})
        self.nodes.append({"id": last, "do": "turn", "takes": [first]})
        self._follow(parents, first)
        self._follow([first], last)
        turns = self.choose.randint(1, _MOST_TURNS)
        self.edges.append([last, first, {"max_iterations": turns + 1, "exit_condition": _is_done(last, turns)}])
        return last

    def _source(self, parent: str) -> str:
        """Under which name the state has what came of a node."""
        node = next(node for node in self.nodes if node["id"] == parent)
        return node["of"]["nodes"][-1]["id"] if node["do"] == "chain" else parent

    def _choose_ways(self) -> None:
        """Where several edges lead on, conditions may choose; from a condition node, labels do."""
        for node in self.nodes:
            leaving = [edge for edge in self.edges if edge[0] == node["id"] and "max_iterations" not in edge[2]]
            if node["do"] == "which" and leaving:
                node["flags"] = [self._flag(edge[1]) for edge in leaving[1:]]
                for edge, label in zip(leaving, ["default", *node["flags"]], strict=True):
                    edge[2]["label"] = label
            elif len(leaving) > 1 and self.choose.random() < 0.4:
                for edge in leaving[1:]:
                    edge[2]["condition"] = f"state.{self._flag(edge[1])}"
            elif node["do"] == "hitl" and len(leaving) == 1 and self.choose.random() < 0.5:
                leaving[0][2]["condition"] = f"not state.{node['id']}.approved"

    def _lead_back(self) -> None:
        """An edge from a node to one from which it can be reached, or to itself."""
        last = self.choose.choice(self.nodes)
        target = self.choose.choice(sorted(self._before(last["id"])))
        if last["do"] in ("which", "hitl") or any(edge[:2] == [last["id"], target] for edge in self.edges):
            return
        if last["do"] in ("put", "look", "thread", "pay"):
            last["do"] = "turn"
        turns = self.choose.randint(1, _MOST_TURNS)
        options = {"max_iterations": turns + 1, "exit_condition": _is_done(last["id"], turns)}
        self.edges.append([last["id"], target, options])

    def _before(self, id: str) -> set[str]:
        found, new = {id}, [id]
        while new:
            at = new.pop()
            new += [edge[0] for edge in self.edges if edge[1] == at and edge[0] not in found]
            found.update(new)
        return found


def _is_done(id: str, turns: int) -> str:
    return f"state.{_counter(id)} | default(0) >= {turns}"


def random_shape(choose: random.Random, *, is_wild: bool = False) -> Shape:
    """A chain of three to eight nodes (a cycle counts as one), with chains of up to four nodes in it, two deep."""
    return _Maker(choose, "n", 2, is_wild).make(choose.randint(3, 8))


def answers_of(shape: Shape) -> dict[str, bool]:
    """Answers to whatever a chain of this shape may ask, by reason."""
    return {reason: node["approved"] for node in _nodes(shape) for reason in node.get("reasons", ())}


def patches_of(shape: Shape) -> dict[str, str]:
    """Which key of the state changes with the answer to which reason."""
    return {reason: GIVEN for node in _nodes(shape) for reason in node.get("patched", ())}


def _nodes(shape: Shape) -> Iterator[Node]:
    for node in shape["nodes"]:
        yield node
        if "of" in node:
            yield from _nodes(node["of"])


def program_of(shape: Shape) -> Program:
    """The program of this shape, with effects in the ledger."""
    chain = chain_of(shape, LedgerBodies())
    return Program(
        runner=chain,
        value=shape["state"],
        answers=answers_of(shape),
        patches=patches_of(shape),
        shape=shape,
        is_retried=True,
    )
