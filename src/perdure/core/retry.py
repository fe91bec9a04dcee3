"""Whether a failed attempt gets a successor, and after how long. The caller stores the time, and waits."""

from __future__ import annotations

import math
from dataclasses import dataclass

from perdure.errors import DurableLimitError, InvalidInputError, SerializationError

# Trying again cannot mend these: the same value is refused in the same way.
_PERMANENT = (SerializationError, InvalidInputError, DurableLimitError)

_Classes = tuple[type[BaseException], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Attempts of one operation. Delays double by default and are capped; jitter spreads them downwards.

    `jitter` is the part of a delay that is random: 0 waits exactly, 1 anything from nothing to the whole
    delay. An error is tried again if it is a `retry_on` and no `give_up_on`. Raises `InvalidInputError` for
    values that make no sense.
    """

    max_attempts: int = 1
    initial_delay_s: float = 1.0
    max_delay_s: float = 60.0
    multiplier: float = 2.0
    jitter: float = 1.0
    retry_on: _Classes = (Exception,)
    give_up_on: _Classes = ()

    def __post_init__(self) -> None:
        if type(self.max_attempts) is not int or self.max_attempts < 1:
            raise InvalidInputError("max_attempts", "must be an int of at least 1")
        _check_number("initial_delay_s", self.initial_delay_s, least=0.0)
        _check_number("max_delay_s", self.max_delay_s, least=self.initial_delay_s)
        _check_number("multiplier", self.multiplier, least=1.0)
        _check_number("jitter", self.jitter, least=0.0, most=1.0)
        _check_classes("retry_on", self.retry_on)
        _check_classes("give_up_on", self.give_up_on)


def next_attempt(policy: RetryPolicy, failed_attempts: int, error: BaseException, random: float) -> float | None:
    """Seconds until the next attempt, or None to give up.

    `failed_attempts` counts the one that failed just now, so it is at least 1; `random` is in [0, 1].
    """
    if failed_attempts >= policy.max_attempts or not is_retried(policy, error):
        return None
    delay_s = _capped_delay_s(policy, failed_attempts)
    return delay_s * (1.0 - policy.jitter * random)


def is_retried(policy: RetryPolicy, error: BaseException) -> bool:
    """Whether the policy tries again after this error, attempts permitting. Only an `Exception` ever is."""
    if not isinstance(error, Exception) or isinstance(error, _PERMANENT):
        return False
    return isinstance(error, policy.retry_on) and not isinstance(error, policy.give_up_on)


def _capped_delay_s(policy: RetryPolicy, failed_attempts: int) -> float:
    try:
        growth = policy.multiplier ** (failed_attempts - 1)
    except OverflowError:
        return policy.max_delay_s if policy.initial_delay_s else 0.0
    return min(policy.max_delay_s, policy.initial_delay_s * growth)


def _check_number(field: str, value: object, *, least: float, most: float = math.inf) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InvalidInputError(field, "must be a finite number")
    if not least <= value <= most:
        bounds = f"at least {least}" if most == math.inf else f"from {least} to {most}"
        raise InvalidInputError(field, f"must be {bounds}, not {value}")


def _check_classes(field: str, classes: object) -> None:
    if not isinstance(classes, tuple):
        raise InvalidInputError(field, "must be a tuple of exception classes")
    for cls in classes:
        if not (isinstance(cls, type) and issubclass(cls, BaseException)):
            raise InvalidInputError(field, f"{cls!r} is not an exception class")
