"""What can be run, as the engine sees it. Chains, agents and workflow functions implement this; nobody asks what they are."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any, Protocol


class Runner(Protocol):
    """Something with a name that can be driven against a journal."""

    name: str
    """Persisted: a run is continued by the runner of this name."""
    kind: str
    version: str | None
    accepts: Sequence[str]
    """Versions of runs that this code continues although its own differs."""
    errors: Sequence[type[BaseException]]

    def enter(self, run_id: str) -> None:
        """Set context variables for the run's code; called once in its context."""
        ...

    def encode_input(self, value: Any) -> str:
        """Raises `SerializationError` or `InvalidInputError`; nothing is stored then."""
        ...

    def decode_input(self, data: str | None) -> Any: ...

    def encode_output(self, value: Any) -> str: ...

    def decode_output(self, data: str | None) -> Any: ...

    def drive(self, value: Any) -> Coroutine[Any, Any, Any]:
        """The run's code, to be executed on the run's loop; what it returns is the run's output."""
        ...
