"""The world outside: a file to which every effect of a program appends one line, synced, whatever becomes
of its process.

A line says which operation acted, in which process, what tokens it consumed and which fresh one it
returned. What the journals say later is compared with it by `audit`.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from perdure.flow.values import operation_id

_TOLD = ".told"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One effect, as it happened. The token of a failed one is in its error."""

    operation_id: str
    label: str
    consumed: list[str]
    token: str
    incarnation: str
    is_failure: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a process was told of a run: `{"paused": [interrupt ids]}`, or its end."""

    run_id: str
    what: dict[str, Any]
    incarnation: str


class Ledger:
    """The ledger, written by one process among others. What people were told is in a file beside it."""

    def __init__(self, path: str, incarnation: str) -> None:
        self._path = path
        self._incarnation = incarnation
        self._file = _open(path)
        self._told = _open(path + _TOLD)

    def effect(self, label: str, consumed: Sequence[str]) -> str:
        """Act once: returns a fresh token."""
        return self._append(label, consumed, is_failure=False)

    def fail(self, label: str, consumed: Sequence[str], times: int) -> None:
        """Raise `ValueError(token)` the first `times` times this operation comes here, counting earlier
        processes."""
        failures = [line for line in self.lines() if line.is_failure and line.operation_id == operation_id()]
        if len(failures) < times:
            raise ValueError(self._append(label, consumed, is_failure=True))

    def falter(self, label: str) -> None:
        """Raise `ValueError` in the first process that comes here. For code that is no effect and has no operation."""
        try:
            os.close(os.open(f"{self._path}.{label}", os.O_CREAT | os.O_EXCL | os.O_CLOEXEC))
        except FileExistsError:
            return
        raise ValueError(label)

    def has(self, label: str) -> bool:
        """Whether an effect of this label has happened."""
        return any(line.label == label for line in self.lines())

    def lines(self) -> list[Line]:
        return read(self._path)

    def _append(self, label: str, consumed: Sequence[str], *, is_failure: bool) -> str:
        token = new_token(label)
        line = Line(
            operation_id=operation_id(),
            label=label,
            consumed=list(consumed),
            token=token,
            incarnation=self._incarnation,
            is_failure=is_failure,
        )
        _write(self._file, asdict(line))
        return token

    def tell(self, run_id: str, what: dict[str, Any]) -> None:
        """Note what this process was told: from here on it must be true."""
        _write(self._told, asdict(Told(run_id=run_id, what=what, incarnation=self._incarnation)))


def _open(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


def _write(file: int, value: dict[str, Any]) -> None:
    # One write: lines of several processes do not mix, and a process dies before its line or after it.
    os.write(file, (json.dumps(value) + "\n").encode())
    os.fsync(file)


def new_token(label: str) -> str:
    """A value that nothing else ever returned."""
    return f"tok-{label}-{uuid.uuid4().hex}"


def read(path: str | Path) -> list[Line]:
    """All lines, in the order in which they were written; none if nothing has happened."""
    return [Line(**value) for value in _read(path)]


def read_told(path: str | Path) -> list[Told]:
    """What processes were told, in order."""
    return [Told(**value) for value in _read(f"{path}{_TOLD}")]


def _read(path: str | Path) -> list[dict[str, Any]]:
    try:
        text = Path(path).read_text()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text.splitlines()]


_ledger: Ledger | None = None


def use(ledger: Ledger) -> None:
    """The ledger of this process. Bodies run in contexts of the engine's, so there is no other way to
    them."""
    global _ledger
    _ledger = ledger


def ledger() -> Ledger:
    if _ledger is None:
        raise RuntimeError("this process has no ledger")
    return _ledger
