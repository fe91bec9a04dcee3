"""Exit codes. Decides what a script can tell from one; the table is in the help and in the quickstart.

Usage errors are 3, not the 2 that command lines often take: 2 says that a question was answered before.
"""

from __future__ import annotations

from enum import IntEnum

from perdure import errors


class Exit(IntEnum):
    """What the command ended with."""

    OK = 0
    UNKNOWN = 1
    ALREADY_RESUMED = 2
    INVALID = 3
    NEEDS_ATTENTION = 4
    RUN_FAILED = 5
    CONFLICT = 6
    STORAGE = 7
    DEFECT = 70
    INTERRUPTED = 130
    TERMINATED = 143


MEANINGS = {
    Exit.OK: "done; a run that waits for an answer is no error",
    Exit.UNKNOWN: "no such run, question or checkpoint",
    Exit.ALREADY_RESUMED: "the question was answered before, or the run has ended",
    Exit.INVALID: "something given is missing or wrong; nothing was stored",
    Exit.NEEDS_ATTENTION: "the run needs a person: code and journal differ, or an operation is in doubt",
    Exit.RUN_FAILED: "the run has failed or was cancelled",
    Exit.CONFLICT: "the run is busy, or not in a state for this; or the id is taken",
    Exit.STORAGE: "the store cannot be used",
    Exit.DEFECT: "a defect in perdure, with a traceback",
}
"""One line for each code but 130 and 143, which say that SIGINT or SIGTERM ended the command."""

# The first class that fits decides, so subclasses stand before their base.
_BY_CLASS: tuple[tuple[type[BaseException], Exit], ...] = (
    (errors.AlreadyResumed, Exit.ALREADY_RESUMED),
    (errors.DurableNotFoundError, Exit.UNKNOWN),
    (errors.DurableRecoveryError, Exit.NEEDS_ATTENTION),
    (errors.RunBusy, Exit.CONFLICT),
    (errors.DurableConflictError, Exit.CONFLICT),
    (errors.DurableStorageError, Exit.STORAGE),
    (errors.DurableRunError, Exit.RUN_FAILED),
    (errors.OperationError, Exit.RUN_FAILED),
    (errors.UnawaitedOperation, Exit.RUN_FAILED),
    (errors.PerdureError, Exit.INVALID),
)


def exit_code(error: BaseException) -> Exit:
    """The code for an error that a command ended with."""
    return next((code for cls, code in _BY_CLASS if isinstance(error, cls)), Exit.DEFECT)


def table() -> str:
    """The codes, one to a line, for the help."""
    return "\n".join(f"{code:>3}  {meaning}" for code, meaning in MEANINGS.items())
