"""Retry: how long a failed step waits (U02, R09)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet import Retry
from fleet.errors import ConfigError, DefinitionError, InvalidSetting


def test_u02_defaults_are_five_attempts_from_one_second_doubling_to_sixty():
    retry = Retry()

    assert retry.max_attempts == 5
    assert [retry.delay(n, random=0.0) for n in range(1, 9)] == [1, 2, 4, 8, 16, 32, 60, 60]


def test_u02_jitter_scales_the_delay_down_to_half_of_it():
    assert Retry().delay(3, random=0.0) == 4.0
    assert Retry().delay(3, random=0.5) == 3.0
    assert Retry().delay(3, random=1.0) == 2.0


def test_r09_linear_grows_by_initial_and_meets_the_maximum():
    retry = Retry(strategy="linear", initial=10, maximum=35, jitter=0)

    assert [retry.delay(n, random=0.7) for n in range(1, 6)] == [10, 20, 30, 35, 35]


def test_r09_fixed_stays():
    retry = Retry(strategy="fixed", initial=7, jitter=0)

    assert {retry.delay(n, random=0.7) for n in (1, 2, 100)} == {7.0}


@given(
    strategy=st.sampled_from(["exponential", "linear", "fixed"]),
    initial=st.floats(0, 1e6),
    coefficient=st.floats(1, 1e6),
    spread=st.floats(0, 1e9),
    jitter=st.floats(0, 1),
    failures=st.integers(-5, 10**400),
    random=st.floats(0, 1),
)
def test_r09_every_delay_is_finite_and_at_most_the_maximum(
    *, strategy, initial, coefficient, spread, jitter, failures, random
):
    maximum = initial + spread
    retry = Retry(
        strategy=strategy, initial=initial, coefficient=coefficient, maximum=maximum, jitter=jitter
    )

    assert 0 <= retry.delay(failures, random) <= maximum


def test_a_huge_count_of_failures_with_coefficient_one_stays_at_initial():
    assert Retry(coefficient=1, jitter=0).delay(10**400, random=0.0) == 1.0


@pytest.mark.parametrize(
    ("setting", "value", "hint"),
    [
        ("max_attempts", 0, "at least 1"),
        ("max_attempts", True, "a whole number"),
        ("max_attempts", 2.5, "a whole number"),
        ("initial", -1, "between 0 and"),
        ("initial", float("nan"), "a number"),
        ("initial", float("inf"), "between 0 and"),
        ("initial", "1s", "a number"),
        ("coefficient", 0.5, "between 1 and"),
        ("maximum", 0.5, "below initial (1)"),
        ("jitter", 1.5, "between 0 and 1"),
        ("strategy", "fibonacci", "exponential, linear, fixed"),
    ],
)
def test_a_wrong_setting_is_named_with_what_would_be_right(setting, value, hint):
    with pytest.raises(InvalidSetting) as error:
        Retry(**{setting: value})

    assert f"retry.{setting} = {value!r}" in str(error.value)
    assert hint in str(error.value)
    assert isinstance(error.value, ConfigError)
    assert isinstance(error.value, DefinitionError)
