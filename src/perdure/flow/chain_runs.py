"""The runs of a chain: starting, resuming, forking, cancelling, streaming. Decides what the arguments mean and which
store it is; everything else is the engine's.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from perdure.core import codec
from perdure.errors import InvalidInputError
from perdure.flow import ambient

if TYPE_CHECKING:
    from perdure.checkpointers.memory import MemoryCheckpointer
    from perdure.core.resume import Resume
    from perdure.engine.engine import Engine
    from perdure.engine.results import RunResult
    from perdure.engine.streams import Event
    from perdure.flow.chain import Chain
    from perdure.flow.chain_result import ChainResult, SettledChainResult
    from perdure.flow.front import Front
    from perdure.store.base import Store

T = TypeVar("T")


class Bound:
    """A chain with the context of one call; the engine's `Runner`. It keeps what its run came to."""

    def __init__(self, chain: Chain, context: Any) -> None:
        self.name = chain.name
        self.kind = chain.kind
        self.version = chain.version
        self.accepts = chain.accepts
        self.errors: Sequence[type[BaseException]] = chain.errors
        self.check = chain.check
        self.enter = chain.enter
        self.encode_input = chain.encode_input
        self.decode_input = chain.decode_input
        self.encode_output = chain.encode_output
        self.decode_output = chain.decode_output
        self.front: Front | None = None
        self._chain = chain
        self._context = context

    def drive(self, value: Any) -> Coroutine[Any, Any, Any]:
        return self._chain.drive_with(value, self._context, self._begun)

    def _begun(self, front: Front) -> None:
        self.front = front

    async def result(self, engine: Engine, run: RunResult[Any]) -> ChainResult:
        """What a run has come to: from memory if it ended here, else from its records."""
        from perdure.flow.chain_result import ChainResult, state_of  # pydantic is loaded when there is a result

        if run.status == "completed" and self.front is not None and self.front.has_ended:
            state, results = self.front.final_state(), self.front.results
        else:
            state, results = state_of(await engine.store.run_load(run.execution_id), self._chain.plan)
        if run.status == "completed":
            self._chain.forget(run.execution_id)
        return ChainResult(
            output=run.output,
            final_state=state,
            execution_id=run.execution_id,
            node_results=results,
            status=run.status,
            pending_interrupt=run.pending_interrupt,
            pending_interrupts=run.pending_interrupts,
        )


class ChainRuns:
    """The methods of `Chain` that start and steer runs. `store` (a URL or an open store) is instead of the chain's
    checkpointer."""

    checkpointer: Any
    checkpoint_enabled: bool
    _memory: MemoryCheckpointer | None = None

    async def arun(
        self,
        initial_state: Mapping[str, Any] | None = None,
        *,
        execution_id: str | None = None,
        context: Any = None,
        store: str | Store | None = None,
    ) -> ChainResult:
        """Run until the end or a question. An `execution_id` that exists already is the same run. `context` is handed
        to nodes that take it, and is stored nowhere. Raises what a node failed with; see `Engine.run`."""
        engine = await self._engine(store)
        bound = self._bound(context)
        return await bound.result(engine, await engine.run(bound, initial_state, execution_id=execution_id))

    def run(
        self,
        initial_state: Mapping[str, Any] | None = None,
        *,
        execution_id: str | None = None,
        context: Any = None,
        store: str | Store | None = None,
    ) -> ChainResult:
        """`arun` for callers without an event loop; raises at once inside one."""
        bound = self._bound(context)

        async def work(engine: Engine) -> ChainResult:
            return await bound.result(engine, await engine.run(bound, initial_state, execution_id=execution_id))

        return self._sync(store, work)

    aexecute = arun
    execute = run

    async def aresume(
        self,
        execution_id: str,
        *,
        resume_value: Resume | Mapping[str, Resume] | None = None,
        modified_state: Mapping[str, Any] | None = None,
        interrupt_id: str | None = None,
        repeat_operation: str | None = None,
        context: Any = None,
        answered_by: str | None = None,
        store: str | Store | None = None,
    ) -> ChainResult:
        """Answer and go on, or go on after a crash or a failure. `modified_state` sets keys of the state for every node
        that has not completed; it is stored with the decision, or not at all.

        Raises `ChainCheckpointError` (unknown id), `ChainResumeError` (a question is open and no answer given),
        `AlreadyResumed` (answered before, or the run has ended), `AmbiguousAnswer`, `RunBusy` (somebody runs it),
        `DurableRecoveryError` (another runner's, or the chain has changed). Nothing is consumed then.
        """
        return await self._resume(
            await self._engine(store),
            context,
            execution_id,
            resume_value=resume_value,
            interrupt_id=interrupt_id,
            repeat_operation=repeat_operation,
            answered_by=answered_by,
            state_patch=self.encode_patch(modified_state, None),
        )

    def resume(
        self,
        execution_id: str,
        *,
        resume_value: Resume | Mapping[str, Resume] | None = None,
        modified_state: Mapping[str, Any] | None = None,
        interrupt_id: str | None = None,
        repeat_operation: str | None = None,
        context: Any = None,
        answered_by: str | None = None,
        store: str | Store | None = None,
    ) -> SettledChainResult:
        """`aresume`, awaitable as well. Without a running event loop it has run to the end when this returns, and what
        it returns is the `ChainResult` itself; in one it has not, and must be awaited."""
        if _is_in_loop():
            return self.aresume(  # type: ignore[return-value]  # it is awaited, and nothing else
                execution_id,
                resume_value=resume_value,
                modified_state=modified_state,
                interrupt_id=interrupt_id,
                repeat_operation=repeat_operation,
                context=context,
                answered_by=answered_by,
                store=store,
            )
        from perdure.flow.chain_result import SettledChainResult

        patch = self.encode_patch(modified_state, None)
        result = self._sync(
            store,
            lambda engine: self._resume(
                engine,
                context,
                execution_id,
                resume_value=resume_value,
                interrupt_id=interrupt_id,
                repeat_operation=repeat_operation,
                answered_by=answered_by,
                state_patch=patch,
            ),
        )
        return SettledChainResult.model_construct(**result.__dict__)

    async def _resume(self, engine: Engine, context: Any, execution_id: str, **options: Any) -> ChainResult:
        bound = self._bound(context)
        return await bound.result(engine, await engine.resume(bound, execution_id, **options))

    async def afork(
        self,
        execution_id: str,
        *,
        checkpoint_id: str | int | None = None,
        input: Mapping[str, Any] | None = None,
        modified_state: Mapping[str, Any] | None = None,
        context: Any = None,
        new_id: str | None = None,
        store: str | Store | None = None,
    ) -> ChainResult:
        """Branch into a new run from a checkpoint (default: the last executed step). The source is untouched; an open
        question is asked again under the new id. `input` and `modified_state` set keys of the state for every node
        that had not completed; `input` is what templates call the input, too.

        Raises `ChainCheckpointError` (unknown run or checkpoint, or the run's end), `ChainResumeError` (nothing to fork
        from), `RunBusy` (somebody runs it, and no checkpoint is named).
        """
        patch = self.encode_patch(modified_state, input)
        return await self._fork(await self._engine(store), context, execution_id, checkpoint_id, patch, new_id)

    def fork(
        self,
        execution_id: str,
        *,
        checkpoint_id: str | int | None = None,
        input: Mapping[str, Any] | None = None,
        modified_state: Mapping[str, Any] | None = None,
        context: Any = None,
        new_id: str | None = None,
        store: str | Store | None = None,
    ) -> ChainResult:
        """`afork` for callers without an event loop."""
        patch = self.encode_patch(modified_state, input)
        return self._sync(store, lambda engine: self._fork(engine, context, execution_id, checkpoint_id, patch, new_id))

    async def _fork(
        self, engine: Engine, context: Any, execution_id: str, checkpoint_id: Any, patch: str | None, new_id: str | None
    ) -> ChainResult:
        bound = self._bound(context)
        run = await engine.fork(bound, execution_id, checkpoint_id=checkpoint_id, new_id=new_id, state_patch=patch)
        return await bound.result(engine, run)

    async def aretry(self, execution_id: str, *, context: Any = None, store: str | Store | None = None) -> ChainResult:
        """A new attempt of a failed run: its trailing errors are forgotten, everything else stands."""
        engine = await self._engine(store)
        bound = self._bound(context)
        return await bound.result(engine, await engine.retry(bound, execution_id))

    def retry(self, execution_id: str, *, context: Any = None, store: str | Store | None = None) -> ChainResult:
        """`aretry` for callers without an event loop."""
        bound = self._bound(context)

        async def work(engine: Engine) -> ChainResult:
            return await bound.result(engine, await engine.retry(bound, execution_id))

        return self._sync(store, work)

    async def acancel(
        self, execution_id: str, *, cancelled_by: str | None = None, store: str | Store | None = None
    ) -> str:
        """Ask for the run to be cancelled; durable when this returns. See `Engine.cancel`."""
        engine = await self._engine(store)
        return await engine.cancel(execution_id, cancelled_by=cancelled_by)

    def cancel(self, execution_id: str, *, cancelled_by: str | None = None, store: str | Store | None = None) -> str:
        """`acancel` for callers without an event loop."""
        return self._sync(store, lambda engine: engine.cancel(execution_id, cancelled_by=cancelled_by))

    # Streams.

    async def astream(
        self,
        initial_state: Mapping[str, Any] | None = None,
        *,
        execution_id: str | None = None,
        after: int = 0,
        context: Any = None,
        store: str | Store | None = None,
    ) -> AsyncIterator[Event]:
        """Run, and yield what has been committed, in order, until the end or a question. A run that exists already is
        followed from `after` on. Whoever stops listening stops nothing but the listening. Raises what the run failed
        with, after the last event."""
        engine = await self._engine(store)
        bound = self._bound(context)
        run_id = await engine.start(bound, initial_state, execution_id=execution_id)
        following = asyncio.ensure_future(engine.run(bound, initial_state, execution_id=run_id))
        events = engine.stream(run_id, after=after)
        try:
            async for event in _until(events, following, engine, run_id, after):
                yield event
            await following
        finally:
            following.cancel()
            with contextlib.suppress(BaseException):
                await following

    def stream(
        self,
        initial_state: Mapping[str, Any] | None = None,
        *,
        execution_id: str | None = None,
        after: int = 0,
        context: Any = None,
        store: str | Store | None = None,
    ) -> Iterator[Event]:
        """`astream` for callers without an event loop."""
        if _is_in_loop():
            raise RuntimeError("a synchronous call inside a running event loop would stop it; use astream()")
        options: dict[str, Any] = {"execution_id": execution_id, "after": after, "context": context, "store": store}
        with asyncio.Runner() as runner:
            events = aiter(self.astream(initial_state, **options))
            while True:
                try:
                    yield runner.run(_next(events))
                except StopAsyncIteration:
                    return

    # Which store, which runner.

    def _bound(self, context: Any) -> Bound:
        return Bound(self, context)  # type: ignore[arg-type]  # every ChainRuns is a Chain

    def encode_patch(self, state: Mapping[str, Any] | None, given: Mapping[str, Any] | None) -> str | None:
        """Keys of the state to be set, and the input (`given`), as `Engine.resume` and `Engine.fork` record them
        (`state_patch`); None for neither. Raises `InvalidInputError`, `ChainStateError` or `SerializationError`, with
        nothing stored."""
        if state is None and given is None:
            return None
        said = {}
        if given is not None:
            said["input"] = checked_state("input", given)
        said["state"] = {**said.get("input", {}), **checked_state("modified_state", {} if state is None else state)}
        schema = self._bound(None)._chain.plan.schema
        if schema is not None:
            schema.check(said["state"])
        return codec.encode(said)

    async def _engine(self, store: str | Store | None) -> Engine:
        return await ambient.engine(store if store is not None else await self._own_store())

    async def _own_store(self) -> Store | None:
        if self.checkpointer is None and self.checkpoint_enabled:
            return None
        if getattr(self.checkpointer, "is_open", False):
            return self._open_own_store()
        return await asyncio.to_thread(self._open_own_store)

    def _open_own_store(self) -> Store | None:
        """The checkpointer's store; over a third party's object, an adapter; without any, this process's memory."""
        if self.checkpoint_enabled and self.checkpointer is None:
            return None
        if self.checkpoint_enabled:
            from perdure.checkpointers.sql import SqlCheckpointer  # loaded by who gives a checkpointer

            if isinstance(self.checkpointer, SqlCheckpointer):
                return self.checkpointer.store
        from perdure.checkpointers.foreign import open_foreign  # loaded by who gives another's, or none
        from perdure.checkpointers.memory import MemoryCheckpointer

        if self.checkpoint_enabled:
            return open_foreign(self.checkpointer)
        self._memory = self._memory or MemoryCheckpointer()
        return open_foreign(self._memory)

    def forget(self, execution_id: str) -> None:
        """Let go of a completed run that is kept in memory only."""
        if self._memory is not None and not self.checkpoint_enabled:
            self._memory.delete_execution(execution_id)

    def _sync(self, store: str | Store | None, work: Callable[[Engine], Coroutine[Any, Any, T]]) -> T:
        return ambient.run_sync(store if store is not None else self._open_own_store(), work)


def checked_state(field: str, value: Any) -> dict[str, Any]:
    """A state, or a part of one, as callers give it. Raises `InvalidInputError`."""
    if not isinstance(value, Mapping):
        raise InvalidInputError(field, f"must be a dict, not {type(value).__name__}")
    for name in value:
        if not isinstance(name, str) or not name or name.startswith("$"):
            raise InvalidInputError(field, f"a key is a text that does not begin with $, not {name!r}")
    return dict(value)


def _is_in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def _next(events: AsyncIterator[Event]) -> Event:
    return await anext(events)


async def _until(
    events: AsyncIterator[Event], following: asyncio.Future[Any], engine: Engine, run_id: str, after: int
) -> AsyncIterator[Event]:
    """Events until the run has ended or paused, and everything committed by then was seen."""
    last: int | None = None
    upcoming = asyncio.ensure_future(_next(events))
    try:
        while True:
            await asyncio.wait({upcoming} if last is not None else {upcoming, following}, return_when="FIRST_COMPLETED")
            if last is None and following.done():
                row = await engine.store.run_get(run_id)
                last = row.seq if row is not None else 0
            if upcoming.done():
                if isinstance(upcoming.exception(), StopAsyncIteration):
                    return
                event = upcoming.result()
                after = event.sequence
                yield event
                upcoming = asyncio.ensure_future(_next(events))
            if last is not None and after >= last:
                return
    finally:
        upcoming.cancel()
        with contextlib.suppress(BaseException):
            await upcoming
        closing: Any = getattr(events, "aclose", None)
        if closing is not None:
            await closing()
