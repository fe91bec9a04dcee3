"""Random chains in one process: bodies whose results say all that they saw, and a person who brings runs to their end.

Shapes come from `perdure.testing.shapes`. Nothing of chance is in what bodies return, so two executions that saw the
same end the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from perdure import (
    Chain,
    ChainCycleError,
    ChainError,
    ChainResult,
    ChainRoutingError,
    ChainStateError,
    ChainTemplateError,
    DurableRecoveryError,
    Resume,
    operation_id,
)
from perdure.core import codec
from perdure.core.keys import operation_key
from perdure.core.records import Loaded, StoredRecord
from perdure.store.open import open_store
from perdure.testing.shapes import GIVEN, Bodies, Shape, answers_of, chain_of, patches_of

_FAILURES = (ChainError, ChainCycleError, ChainRoutingError, ChainStateError, ChainTemplateError)
_MAX_TURNS = 60
_MAX_TICKS = 40


class World(Bodies):
    """One process. `latency` draws how many turns of the loop a body takes; `payload_chars`: how much it returns at
    most beside the digest of what it saw."""

    def __init__(self, latency: random.Random | None = None, payload_chars: int = 0) -> None:
        self.performed: list[str] = []
        """Keys of the operations whose bodies have acted."""
        self.seen: dict[str, str] = {}
        """By key of the operation: the state that its last execution was given, encoded."""
        self._latency = latency
        self._payload_chars = payload_chars
        self._failures: Counter[str] = Counter()

    async def arrive(self) -> None:
        for _ in range(0 if self._latency is None else self._latency.randint(0, _MAX_TICKS)):
            await asyncio.sleep(0)

    def effect(self, consumed: Any, state: dict[str, Any]) -> str:
        key = _key()
        self.performed.append(key)
        self.seen[key] = codec.encode(state)
        digest = codec.digest(codec.encode([key, consumed, list(state.items())]))
        return digest + "." * random.Random(digest).randint(0, self._payload_chars)

    def fail(self, consumed: Any, times: int) -> None:
        key = _key()
        self._failures[key] += 1
        if self._failures[key] <= times:
            raise ConnectionError(key)

    def answer(self, answer: Resume) -> Any:
        return [answer.approved, answer.metadata]


def _key() -> str:
    """The key of the operation whose body this is."""
    return operation_id().partition("/")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """What became of a run. Texts, since the order of keys counts."""

    status: str
    output: str = ""
    state: str = ""
    results: dict[str, str] = field(default_factory=dict)


FAILED = End(status="failed")
"""Which of several branches fails first is a matter of time, so no more of it is compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A store, and runs of one shape in it. Each act has an engine of its own, as if in a process of its own."""

    url: str
    shape: Shape
    world: World

    @property
    def chain(self) -> Chain:
        return chain_of(self.shape, self.world)

    def finish(self, run_id: str) -> End:
        """Start the run, or go on with it, until it has ended."""
        chain, act = self.chain, self._run(run_id)
        for _ in range(_MAX_TURNS):
            try:
                result = asyncio.run(act(chain))
            except ConnectionError:
                act = self._retry(run_id)
                continue
            except DurableRecoveryError as error:
                act = self._repeat(run_id, error)
                continue
            except _FAILURES:
                assert self.loaded(run_id).run.status == "failed"
                return FAILED
            if result.status == "completed":
                return _end(result)
            act = self._answer(run_id, result)
        raise AssertionError(f"run {run_id} does not come to an end")

    def fork(self, run_id: str, checkpoint_id: str, new_id: str) -> End:
        """Branch off there and bring the new run to its end."""
        with contextlib.suppress(ConnectionError, *_FAILURES):
            asyncio.run(self.chain.afork(run_id, checkpoint_id=checkpoint_id, new_id=new_id, store=self.url))
        assert self.loaded(new_id).run.forked_from == run_id
        return self.finish(new_id)

    def _run(self, run_id: str) -> Act:
        return lambda chain: chain.arun(self.shape["state"], execution_id=run_id, store=self.url)

    def _retry(self, run_id: str) -> Act:
        return lambda chain: chain.aretry(run_id, store=self.url)

    def _repeat(self, run_id: str, error: DurableRecoveryError) -> Act:
        """Perform again what is in doubt; any other difference is a fault."""
        if "its end is not known" not in str(error):
            raise error
        return lambda chain: chain.aresume(run_id, repeat_operation=error.operation_id, store=self.url)

    def _answer(self, run_id: str, result: ChainResult) -> Act:
        """Answer one question, the first by its reason, with what it changes."""
        asked = min(result.pending_interrupts, key=lambda one: (one["reason"], one["interrupt_id"]))
        reason = asked["reason"]
        answer = Resume(approved=answers_of(self.shape)[reason], metadata={"to": reason})
        changed = {GIVEN: f"given with {reason}"} if reason in patches_of(self.shape) else None
        return lambda chain: chain.aresume(
            run_id, resume_value={asked["interrupt_id"]: answer}, modified_state=changed, store=self.url
        )

    def loaded(self, run_id: str) -> Loaded:
        """Everything that is stored of a run."""

        async def load() -> Loaded:
            store = await asyncio.to_thread(open_store, self.url)
            try:
                return await store.run_load(run_id)
            finally:
                await store.close()

        return asyncio.run(load())

    def records(self, run_id: str) -> list[StoredRecord]:
        return self.loaded(run_id).records


Act = Callable[[Chain], Coroutine[Any, Any, ChainResult]]


def _end(result: ChainResult) -> End:
    return End(
        status=result.status,
        output=codec.encode(result.output),
        state=codec.encode(result.final_state),
        results={node_id: codec.encode(value) for node_id, value in sorted(result.node_results.items())},
    )


def recorded(records: Sequence[StoredRecord]) -> set[str]:
    """Keys of the operations whose value these records hold."""
    return {operation_key(r.path, r.index) for r in records if (r.type, r.outcome) == ("completed", "value")}
