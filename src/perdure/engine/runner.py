"""What can be run, as the engine sees it. Chains, agents and workflow functions implement this; nobody asks what they
are."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any, Protocol

from perdure.core.records import RunRow
from perdure.store.base import Store


class Runner(Protocol):
    """Something with a name that can be driven against a journal."""

    @property
    def name(self) -> str:
        """Persisted: a run is continued by the runner of this name."""
        ...

    @property
    def kind(self) -> str: ...

    @property
    def version(self) -> str | None: ...

    @property
    def accepts(self) -> Sequence[str]:
        """Versions of runs that this code continues although its own differs."""
        ...

    @property
    def errors(self) -> Sequence[type[BaseException]]:
        """Exception classes to rebuild when a recorded failure is raised again."""
        ...

    async def check(self, store: Store, run_id: str) -> None:
        """Raise `DurableRecoveryError` if this code is known not to fit what the run has recorded. Asked before an
        answer is stored, a failure forgotten or a fork made, so that nothing is consumed by code that has changed."""
        ...

    def enter(self, run_id: str) -> None:
        """Set context variables for the run's code; called once in its context."""
        ...

    def encode_input(self, value: Any) -> str:
        """Raises `SerializationError` or `InvalidInputError`; nothing is stored then."""
        ...

    def decode_input(self, data: str) -> Any: ...

    def encode_output(self, value: Any) -> str: ...

    def decode_output(self, data: str | None) -> Any: ...

    def drive(self, value: Any) -> Coroutine[Any, Any, Any]:
        """The run's code, to be executed on the run's loop; what it returns is the run's output."""
        ...


def unfit(runner: Runner, run: RunRow) -> str | None:
    """Why a runner may not go on with a run, for people; None if it may, as far as the run's row tells."""
    if run.runner != runner.name or run.kind != runner.kind:
        return f"run {run.run_id} belongs to {run.kind} {run.runner!r}, not to {runner.kind} {runner.name!r}"
    if run.version is not None and run.version != runner.version and run.version not in runner.accepts:
        return (
            f"run {run.run_id} was started by version {run.version!r} of {runner.name!r}; this is {runner.version!r} "
            "(accepts=[...] says that it continues them)"
        )
    return None
