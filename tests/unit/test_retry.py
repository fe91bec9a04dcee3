"""Whether and when another attempt follows."""

import pytest

from perdure.core.retry import RetryPolicy, is_retried, next_attempt
from perdure.errors import InvalidInputError, SerializationError


def delays(policy: RetryPolicy, random: float = 0.0) -> list[float | None]:
    return [next_attempt(policy, failed, ValueError(), random) for failed in range(1, policy.max_attempts + 1)]


def test_one_attempt_is_the_default():
    assert delays(RetryPolicy()) == [None]


def test_delays_double_up_to_the_cap():
    policy = RetryPolicy(max_attempts=6, initial_delay_s=1, max_delay_s=5, jitter=0)
    assert delays(policy) == [1, 2, 4, 5, 5, None]
    assert delays(policy, random=1.0) == [1, 2, 4, 5, 5, None]


def test_jitter_only_shortens():
    policy = RetryPolicy(max_attempts=3, initial_delay_s=2, jitter=0.5)
    assert delays(policy, random=0.0) == [2, 4, None]
    assert delays(policy, random=0.5) == [1.5, 3, None]
    assert delays(policy, random=1.0) == [1, 2, None]
    assert delays(RetryPolicy(max_attempts=2), random=1.0) == [0, None]


def test_no_number_of_attempts_overflows():
    policy = RetryPolicy(max_attempts=10**9, max_delay_s=9, jitter=0)
    assert next_attempt(policy, 10**8, ValueError(), 0.0) == 9
    assert next_attempt(RetryPolicy(max_attempts=10**9, initial_delay_s=0), 10**8, ValueError(), 0.0) == 0


def test_only_chosen_errors_are_tried_again():
    policy = RetryPolicy(max_attempts=2, retry_on=(OSError,), give_up_on=(FileNotFoundError,))
    assert next_attempt(policy, 1, TimeoutError(), 0.0) is not None
    assert next_attempt(policy, 1, FileNotFoundError(), 0.0) is None
    assert next_attempt(policy, 1, ValueError(), 0.0) is None


def test_case_z8_what_cannot_get_better_is_not_tried_again():
    policy = RetryPolicy(max_attempts=9, retry_on=(BaseException,))
    assert not is_retried(policy, SerializationError("$", "no"))
    assert not is_retried(policy, InvalidInputError("f", "no"))
    assert not is_retried(policy, KeyboardInterrupt())
    assert is_retried(policy, ValueError())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("max_attempts", value) for value in (0, -1, 1.0, True, "3")),
        *(("initial_delay_s", value) for value in (-1, float("nan"), float("inf"), "1", True)),
        *(("max_delay_s", value) for value in (-1, 0.5, float("nan"))),
        *(("multiplier", value) for value in (0.5, float("inf"))),
        *(("jitter", value) for value in (-0.1, 1.1)),
        *(("retry_on", value) for value in (ValueError, [ValueError], ("x",), (int,))),
        ("give_up_on", None),
    ],
    ids=range(22),
)
def test_law_11_values_without_sense_name_the_field(field, value):
    with pytest.raises(InvalidInputError) as caught:
        RetryPolicy(**{field: value})
    assert caught.value.field == field
