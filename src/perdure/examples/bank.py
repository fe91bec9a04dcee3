"""Stands in for a payment provider: a ledger file that knows each payment by the key it was asked with.

It is all that the demo has of the outside world, and it survives any kill: one line for a payment, written at
once and forced to disk before the caller hears of it. A key that is in the ledger is recognised, and nothing
is paid again.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from decimal import Decimal
from pathlib import Path

GATE_VARIABLE = "PERDURE_DEMO_GATE"
"""Set by the demo only: `<write fd>,<read fd>,<hold at>`; see `_Gate`."""

_LATENCY_S = 0.02
"""How long the provider takes, as one in a network would."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Payment:
    """One line of the ledger. `amount` is in euros with two decimals; `pid` is the process that paid."""

    key: str
    to: str
    amount: str
    pid: int


def transfer(account: str, *, key: str, to: str, amount: Decimal) -> str:
    """Pay once for each `key`, however often asked; returns the payment's reference. Blocks.

    `account` is a directory: `ledger.jsonl` in it has the payments, `requests.jsonl` what was asked,
    repetitions included.
    """
    payment = Payment(key=key, to=to, amount=str(amount), pid=os.getpid())
    time.sleep(_LATENCY_S)
    with _locked(account):
        _append(Path(account) / "requests.jsonl", payment)
        if not _is_known(account, key):
            _append(Path(account) / "ledger.jsonl", payment)
    _gate.pass_through()
    return f"payment of {amount} EUR to {to}"


def payments(account: str | Path) -> list[Payment]:
    """What was paid, in order."""
    return _read(Path(account) / "ledger.jsonl")


def requests(account: str | Path) -> list[Payment]:
    """What was asked for, in order: one line each time that code asked to pay."""
    return _read(Path(account) / "requests.jsonl")


@contextmanager
def _locked(account: str) -> Iterator[None]:
    with open(Path(account) / "ledger.lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


_known: dict[str, tuple[int, set[str]]] = {}
"""By account: how far its ledger was read, and the keys up to there."""


def _is_known(account: str, key: str) -> bool:
    offset, keys = _known.get(account, (0, set()))
    path = Path(account) / "ledger.jsonl"
    if path.exists():
        with path.open("rb") as ledger:
            ledger.seek(offset)
            new = ledger.read()
        keys.update(json.loads(line)["key"] for line in new.splitlines())
        _known[account] = (offset + len(new), keys)
    return key in keys


def _append(path: Path, payment: Payment) -> None:
    line = json.dumps(asdict(payment)).encode() + b"\n"
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(file, line)  # one call: a killed process has written the line or has not
        os.fsync(file)
    finally:
        os.close(file)


def _read(path: Path) -> list[Payment]:
    if not path.exists():
        return []
    return [Payment(**json.loads(line)) for line in path.read_text().splitlines()]


class _Gate:
    """Where the demo kills: tells it of each payment, and holds one of them before anybody records it.

    A payment that is held has moved the money and nobody in this process knows yet: the worst moment to die.
    If the demo itself dies, the pipe to it closes and the payment goes on.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count(1)  # payments come from several threads; next() is one step

    def pass_through(self) -> None:
        setting = os.environ.get(GATE_VARIABLE)
        if not setting:
            return
        tell, wait, hold_at = map(int, setting.split(","))
        is_held = next(self._numbers) == hold_at
        try:
            os.write(tell, b"!" if is_held else b".")
            if is_held:
                os.read(wait, 1)
        except OSError:
            os.environ.pop(GATE_VARIABLE, None)


_gate = _Gate()
