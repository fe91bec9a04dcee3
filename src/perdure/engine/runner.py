"""What can be run, as the engine sees it. Chains, agents and workflow functions implement this; nobody asks what they
are."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any, Protocol


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
