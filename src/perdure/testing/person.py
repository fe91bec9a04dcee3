"""The person at a program's side: starts it, answers its questions, retries, repeats what is in doubt,
until it has ended.

Decides everything from what the store says, so that a person in a new process goes on where the last one
was killed. What is asked and answered does not depend on when: a question is looked at when the run has
come to rest.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from perdure.core import codec, keys
from perdure.core.fold import fold
from perdure.core.records import RunRow
from perdure.core.resume import Resume
from perdure.core.states import Status, is_terminal
from perdure.engine.engine import Engine
from perdure.engine.results import RunResult
from perdure.errors import AlreadyResumed, DurableRecoveryError, DurableRunError
from perdure.flow.chain import Chain
from perdure.flow.chain_result import ChainResult
from perdure.flow.chain_runs import Bound
from perdure.testing.ledger import ledger, new_token
from perdure.testing.programs import Program

RUN_ID = "run"
FORK_ID = "run-fork"
_MAX_TURNS = 100

Result = RunResult[Any] | ChainResult
Attempt = Callable[[], Awaitable[Result]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """One person on one engine."""

    engine: Engine
    program: Program

    async def go(self) -> dict[str, Any]:
        """Bring everything of the program to its end: what became of each run, by id."""
        if not self.program.is_forked:
            return {RUN_ID: await self._to_end(RUN_ID, answers=True)}
        await self._fork_once()
        return {
            FORK_ID: await self._to_end(FORK_ID, answers=True),
            RUN_ID: await self._to_end(RUN_ID, answers=False),
        }

    async def _fork_once(self) -> None:
        """Fork the source where it is paused, before it is answered, unless the last person has done that."""
        if await self.engine.store.run_get(FORK_ID) is None:
            await self.engine.run(self.program.runner, self.program.value, execution_id=RUN_ID)
            await self.engine.fork(self.program.runner, RUN_ID, new_id=FORK_ID)

    async def _to_end(self, run_id: str, *, answers: bool) -> dict[str, Any]:
        """What became of the run. `answers=False` refuses everything."""
        run = self._run(run_id)
        attempt = run
        for _ in range(_MAX_TURNS):
            try:
                result = await attempt()
            except Exception as error:
                outcome = await self._after_error(run_id, error)
            else:
                outcome = await self._after_result(run_id, result, answers)
            if isinstance(outcome, dict):
                ledger().tell(run_id, outcome)
                return outcome
            attempt = outcome or run
        raise AssertionError(f"run {run_id} does not come to an end: {await self._row(run_id)}")

    async def _after_result(self, run_id: str, result: Result, answers: bool) -> dict[str, Any] | Attempt | None:
        if result.status == "completed":
            end = {"completed": result.output}
            if isinstance(result, ChainResult):
                end |= {"state": result.final_state, "results": result.node_results}
            return end
        ledger().tell(run_id, {"paused": [question["interrupt_id"] for question in result.pending_interrupts]})
        return await self._decide(run_id, answers)

    def _run(self, run_id: str) -> Attempt:
        return self._attempt(self.engine.run, self.program.value, execution_id=run_id)

    def _attempt(self, act: Callable[..., Awaitable[RunResult[Any]]], *args: Any, **options: Any) -> Attempt:
        """An act of the engine on the program, as the methods of a workflow or a chain do it."""

        async def attempt() -> Result:
            if not isinstance(self.program.runner, Chain):
                return await act(self.program.runner, *args, **options)
            bound = Bound(self.program.runner, None)
            return await bound.result(self.engine, await act(bound, *args, **options))

        return attempt

    async def _after_error(self, run_id: str, error: Exception) -> dict[str, Any] | Attempt:
        """What a failure means: an end, or another attempt."""
        row = await self._row(run_id)
        if row.status == Status.CANCELLED and isinstance(error, DurableRunError | AlreadyResumed):
            return {"cancelled": None}
        if row.status == Status.FAILED and not isinstance(error, DurableRecoveryError):
            if self.program.is_retried:
                return self._attempt(self.engine.retry, run_id)
            if self.program.is_resumed:
                return self._attempt(self.engine.resume, run_id)
            return {"failed": f"{type(error).__name__}: {error}"}
        if isinstance(error, DurableRecoveryError) and await self._is_in_doubt(row):
            return self._attempt(self.engine.resume, run_id, repeat_operation=row.blocked_operation)
        raise error

    async def _is_in_doubt(self, row: RunRow) -> bool:
        """Whether the run waits for a decision that is the person's; any other difference is a fault."""
        if row.status != Status.NEEDS_ATTENTION or row.blocked_operation is None:
            return False
        loaded = await self.engine.store.run_load(row.run_id)
        operations = fold(loaded.records).operations
        key = keys.key_of(row.blocked_operation, row.run_id, operations)
        return key is not None and operations[key].is_in_doubt

    async def _decide(self, run_id: str, answers: bool) -> Attempt | None:
        """The run has come to rest: answer the first question there is an answer to, or wait for news and
        look again."""
        row = await self._row(run_id)
        if is_terminal(row.status):
            return None
        if self.program.is_cancelled:
            await self.engine.cancel(run_id)
            return None
        questions = await self.engine.store.interrupt_list(run_id=run_id)
        by_reason = sorted((row.reason, row.interrupt_id) for row in questions)
        for reason, interrupt_id in by_reason:
            approved = self.program.answers.get(reason.strip('"'))
            if approved is not None:
                answer = Resume(approved=approved and answers, metadata={"token": new_token("answer")})
                decision = {"resume_value": {interrupt_id: answer}, "state_patch": self._patch(reason.strip('"'))}
                return self._attempt(self.engine.resume, run_id, answered_by="person", **decision)
        async for _ in self.engine.stream(run_id, after=row.seq):
            break
        return None

    def _patch(self, reason: str) -> str | None:
        """What the person changes in the state with this answer, as `modified_state` is handed to the engine."""
        key = self.program.patches.get(reason)
        return None if key is None else codec.encode({"state": {key: new_token(key)}})

    async def _row(self, run_id: str) -> RunRow:
        row = await self.engine.store.run_get(run_id)
        assert row is not None
        return row
