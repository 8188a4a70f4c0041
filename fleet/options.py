"""Checks of single option values, shared by enqueue, flow and settings.

Each returns the value in its one normal form or raises ``error(name, value, hint)``: an
``InvalidOption`` for a call, an ``InvalidSetting`` for a definition.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias

from fleet.errors import FleetError, InvalidOption
from fleet.model import MAX_DELAY, MAX_KEY, MAX_PRIORITY, MIN_PRIORITY, Seconds

Duration: TypeAlias = float | timedelta
Refusal: TypeAlias = Callable[[str, object, str], FleetError]

_SURROGATES: Final = range(0xD800, 0xE000)


def seconds(name: str, value: object, error: Refusal = InvalidOption) -> Seconds:
    """Return a duration as seconds: finite, not negative, not past the year 9999.

    >>> seconds("delay", timedelta(minutes=1))
    60.0
    """
    if isinstance(value, timedelta):
        duration = value.total_seconds()
    elif isinstance(value, bool) or not isinstance(value, int | float):
        raise error(name, value, "seconds as a number, or a timedelta")
    elif value > MAX_DELAY:  # also an int too large for a float
        raise error(name, value, "this would end past the year 9999")
    else:
        duration = float(value)
    if math.isnan(duration) or duration < 0:
        raise error(name, value, "must not be negative or NaN")
    if duration > MAX_DELAY:
        raise error(name, value, "this would end past the year 9999")
    return duration


def moment(name: str, value: object, error: Refusal = InvalidOption) -> datetime:
    """Return an aware datetime in UTC; a naive one is refused, for nobody can tell what it means.

    >>> from zoneinfo import ZoneInfo
    >>> moment("at", datetime(2030, 1, 1, 12, tzinfo=ZoneInfo('Europe/Berlin'))).isoformat()
    '2030-01-01T11:00:00+00:00'
    """
    if not isinstance(value, datetime):
        raise error(name, value, "an aware datetime")
    if value.utcoffset() is None:
        raise error(name, value, "this datetime is naive: give it a time zone, e.g. tzinfo=UTC")
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise error(name, value, "must lie between the years 1 and 9999 in UTC") from None


def priority(name: str, value: object, error: Refusal = InvalidOption) -> int:
    """Return a priority: an int in range, higher first."""
    # True is an int to Python, and 1 is not what anybody meant by it.
    if isinstance(value, bool) or not isinstance(value, int):
        raise error(name, value, "a whole number; higher runs first")
    if not MIN_PRIORITY <= value <= MAX_PRIORITY:
        raise error(name, value, f"between {MIN_PRIORITY} and {MAX_PRIORITY}; higher runs first")
    return value


def label(name: str, value: object, error: Refusal = InvalidOption) -> str:
    """Return a key or unique name: text that PostgreSQL can keep and an index can hold."""
    if not isinstance(value, str):
        raise error(name, value, "must be a str")
    if not value:
        raise error(name, value, "must not be empty; leave it out instead")
    if len(value) > MAX_KEY:
        raise error(name, f"{value[:20]}…", f"at most {MAX_KEY} characters, this has {len(value)}")
    if "\0" in value or any(ord(char) in _SURROGATES for char in value):
        raise error(name, value, "PostgreSQL keeps no NUL characters and no lone surrogates")
    return value
