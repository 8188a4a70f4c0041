"""To: what a step may say instead of a plain value (U17)."""

from datetime import timedelta

import pytest

from fleet import To
from fleet.errors import InvalidOption
from fleet.flow import Done, Goto, Next, Snooze


def charge(ctx): ...


def test_u17_the_four_ways_are_values_to_match_on():
    assert To.next(1, delay=2) == Next(1, 2.0)
    assert To.step(charge, {"n": 1}) == Goto(charge, {"n": 1}, 0.0)
    assert To.step("charge") == Goto("charge", None, 0.0)
    assert To.done([1]) == Done([1])
    assert To.snooze(timedelta(minutes=1)) == Snooze(60.0)


def test_u17_no_value_means_none():
    assert To.next() == Next(None)
    assert To.done() == Done(None)


def test_u17_every_way_is_a_to():
    for way in (To.next(), To.step("x"), To.done(), To.snooze(1)):
        assert isinstance(way, To)


@pytest.mark.parametrize(
    "delay",
    [
        -1,
        -0.001,
        timedelta(seconds=-1),
        float("nan"),
        float("inf"),
        8_000 * 365.25 * 86_400,
        timedelta.max,
        10**400,
        True,
        "60",
        None,
    ],
)
def test_a_delay_that_cannot_be_is_refused(delay):
    for call in (
        lambda: To.next(1, delay=delay),
        lambda: To.step("x", delay=delay),
        lambda: To.snooze(delay),
    ):
        with pytest.raises(InvalidOption):
            call()
