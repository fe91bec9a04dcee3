"""Every error a caller can see. Decides names, codes and what each carries; knows nothing of storage or transport.

PerdureError
├── InterruptSignal             control flow: a question was asked
├── InvalidInputError           bad input, names the field (also a ValueError)
├── SerializationError          a value cannot be recorded, names the path
├── IdempotencyError            an @idempotent call has no stable key or no storable result
├── AlreadyResumed              the question was answered, or the run has ended
├── AmbiguousAnswer             several questions are open and the answer names none
├── RunBusy                     somebody is running it
├── OperationError              what an operation raised, when its class cannot be rebuilt
├── UnawaitedOperation          the workflow returned while calls were not awaited
├── ChainError                  a chain is built, or a run of one used, in a way it cannot be
│   ├── ChainCycleError         a cycle has reached its bound
│   ├── ChainRoutingError       no edge leads on from a node
│   ├── ChainStateError         the state does not fit its schema
│   ├── ChainTemplateError      a template or an expression names what is not there
│   ├── ChainResumeError        the run cannot be resumed or forked like this
│   └── ChainCheckpointError    no such run or checkpoint (also a DurableNotFoundError)
├── DurableRunError             the result of a failed or cancelled run
├── DurableRecoveryError        code and journal differ, or an operation is in doubt
├── DurableNotFoundError        unknown run
├── DurableConflictError        the id is taken by other content
├── DurableStorageError         the store cannot be used
└── DurableLimitError           a limit was exceeded
RunLost (BaseException)         this process may not go on with the run; never catch it
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class PerdureError(Exception):
    """Root of all errors. `code` is stable and lower case; data is in attributes."""

    code = "perdure_error"


class InterruptSignal(PerdureError):
    """Raised by `interrupt()` to unwind the code that asked. The executor catches it; user code should not.

    Registration, not this exception, is what pauses: code that swallows it pauses all the same.
    """

    code = "interrupted"

    def __init__(self, reason: str, context: dict[str, Any]) -> None:
        super().__init__(f"waiting for an answer: {reason}")
        self.reason = reason
        self.context = context


class InvalidInputError(PerdureError, ValueError):
    """Bad input, refused at the door: nothing was stored. `field` names what is wrong."""

    code = "invalid_input"

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class SerializationError(PerdureError):
    """A value cannot be recorded exactly. `path` says where, e.g. `$.items[3].price`."""

    code = "not_serializable"

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}")
        self.path = path
        self.message = message


class IdempotencyError(PerdureError):
    """An `@idempotent` call has no stable key, calls itself, or returned what cannot be stored."""

    code = "idempotency"


class AlreadyResumed(PerdureError):
    """The question was answered before, or the run has ended. Nothing was changed."""

    code = "already_resumed"

    def __init__(self, run_id: str, message: str) -> None:
        super().__init__(message)
        self.run_id = run_id


class AmbiguousAnswer(PerdureError):
    """Several questions are open and the answer does not say which. `interrupt_ids` lists them; nothing was stored."""

    code = "ambiguous_answer"

    def __init__(self, run_id: str, interrupt_ids: Sequence[str]) -> None:
        super().__init__(
            f"run {run_id} has {len(interrupt_ids)} open questions; name one of: {', '.join(interrupt_ids)}"
        )
        self.run_id = run_id
        self.interrupt_ids = tuple(interrupt_ids)


class RunBusy(PerdureError):
    """The run is being run right now. Nothing was changed; wait for it, or cancel it."""

    code = "run_busy"

    def __init__(self, run_id: str, message: str = "") -> None:
        super().__init__(message or f"run {run_id} is being run right now; wait for it, or cancel it")
        self.run_id = run_id


class OperationError(PerdureError):
    """What an operation raised, as recorded: its class is not built in and was not declared with `errors=[...]`."""

    code = "operation_failed"

    def __init__(self, type_name: str, message: str, traceback_text: str = "") -> None:
        super().__init__(f"{type_name}: {message}" if message else type_name)
        self.type_name = type_name
        self.message = message
        self.traceback_text = traceback_text


class UnawaitedOperation(PerdureError):
    """The workflow returned while operations it had called were not awaited. The run has failed."""

    code = "unawaited_operation"

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(f"returned without awaiting: {', '.join(names)}; await every call, or cancel it")
        self.names = tuple(names)


class ChainError(PerdureError):
    """A chain, or a runner resumed like one, was used in a way it cannot be."""

    code = "chain_error"


class ChainCycleError(ChainError):
    """A cycle has run as often as it may, and its exit condition is still false. The run has failed; what it has
    recorded stands."""

    code = "chain_cycle"


class ChainRoutingError(ChainError):
    """A node has completed and no edge leads on from it, in a chain that demands one. Its result is recorded."""

    code = "chain_routing"


class ChainStateError(ChainError):
    """The state, or a node's input or output, does not fit its schema. `field` names the key."""

    code = "chain_state"

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class ChainTemplateError(ChainError):
    """A template or an expression cannot be read, or names a path that is not there. `path` is that path or text."""

    code = "chain_template"

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}")
        self.path = path


class ChainResumeError(ChainError):
    """The run cannot be resumed or forked like this (an answer is missing, or there is nothing to go on from)."""

    code = "cannot_resume"


class DurableRunError(PerdureError):
    """The run has failed or was cancelled; there is no result."""

    code = "run_error"

    def __init__(self, run_id: str, status: str, message: str = "") -> None:
        super().__init__(f"run {run_id} is {status}" + (f": {message}" if message else ""))
        self.run_id = run_id
        self.status = status


class DurableRecoveryError(PerdureError):
    """The journal no longer fits the code, or a `manual` operation is in doubt. The run needs attention; nothing ran.

    `operation_id` names the operation that differs or is in doubt.
    """

    code = "recovery"

    def __init__(self, message: str, operation_id: str | None = None) -> None:
        super().__init__(message)
        self.operation_id = operation_id


class DurableNotFoundError(PerdureError):
    """No such run, question or checkpoint in this store."""

    code = "not_found"


class ChainCheckpointError(ChainError, DurableNotFoundError):
    """No such run or checkpoint to resume or fork from."""

    code = "checkpoint_not_found"


class DurableConflictError(PerdureError):
    """The id is taken by other content, or the name by another function. Nothing was stored."""

    code = "conflict"


class DurableStorageError(PerdureError):
    """The store cannot be used (or refuses to be opened). What was acknowledged before is safe."""

    code = "storage"


class DurableLimitError(PerdureError):
    """A size or count limit was exceeded. Nothing of it was stored."""

    code = "limit"


class RunLost(BaseException):
    """This process may not go on with the run: it was paused, taken over, or its journal refused an entry.

    A `BaseException`, so that `except Exception` in user code does not hold it up. Whatever the code does after it is
    discarded.
    """

    def __init__(self, run_id: str, reason: str) -> None:
        super().__init__(f"run {run_id}: {reason}")
        self.run_id = run_id
        self.reason = reason
