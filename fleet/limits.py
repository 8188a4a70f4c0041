"""Limits of queues and jobs: how many run at once in the whole fleet, how many start in a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fleet.errors import InvalidSetting
from fleet.model import Seconds


@dataclass(frozen=True, slots=True)
class Rate:
    """So many in so much time: a bucket of tokens, each start takes one.

    >>> Rate(100, 1.0).size, Rate(60, 3600.0).size, Rate(60, 3600.0, burst=50).size
    (100.0, 1.0, 50.0)
    """

    count: int
    per: Seconds
    burst: int | None = None

    def __str__(self) -> str:
        unit = {1.0: "s", 60.0: "m", 3600.0: "h", 86400.0: "d"}.get(self.per, f"{self.per:g}s")
        return f"{self.count}/{unit}" + (f" burst {self.burst}" if self.burst else "")

    @property
    def per_second(self) -> float:
        """How fast the bucket fills."""
        return self.count / self.per

    @property
    def size(self) -> float:
        """How many may start at once after a rest: a second's worth, unless ``burst`` says it."""
        return float(self.burst) if self.burst is not None else max(1.0, self.per_second)


@dataclass(frozen=True, slots=True)
class Limits:
    """What holds for one queue or one job; None is no limit of that kind."""

    most: int | None = None
    rate: Rate | None = None

    def __bool__(self) -> bool:
        return self.most is not None or self.rate is not None

    def as_dict(self) -> dict[str, Any] | None:
        """Return the form that travels as JSON; None if nothing is limited."""
        if not self:
            return None
        rate = self.rate
        return {"most": self.most, "rate": rate and [rate.count, rate.per, rate.burst]}

    @classmethod
    def from_dict(cls, told: dict[str, Any] | None) -> Limits:
        """Read what ``as_dict`` has made."""
        if told is None:
            return NONE
        return cls(told["most"], Rate(*told["rate"]) if told["rate"] else None)


NONE = Limits()


def whole(name: str, value: object, most: int = 1_000_000) -> int:
    """Return a count that a definition may give: 1 or more."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise InvalidSetting(name, value, f"a whole number from 1 to {most}")
    return value
