"""How often a failed step is tried again, and after how long."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

from fleet.errors import InvalidSetting
from fleet.model import MAX_DELAY, Seconds

Strategy: TypeAlias = Literal["exponential", "linear", "fixed"]

# Past a million failures every growing strategy has long met its maximum; the bound keeps the
# arithmetic in floats whatever number a row carries.
_MOST_FAILURES: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """What follows a step's failure: how many attempts in all, and the wait before each.

    The wait after the n-th failure, before jitter and never above ``maximum``:

    * ``exponential``: ``initial × coefficient^(n-1)``
    * ``linear``: ``initial × n``
    * ``fixed``: ``initial``

    ``jitter`` spreads retries that failed together: the wait is scaled by a random factor in
    [1 - jitter, 1], so ``maximum`` stays the most there is. 0 switches it off.

    >>> policy = Retry(max_attempts=5, initial=1.0, coefficient=2.0, maximum=60.0, jitter=0)
    >>> [policy.delay(failures, random=0.5) for failures in (1, 2, 3, 10)]
    [1.0, 2.0, 4.0, 60.0]
    """

    max_attempts: int = 5
    initial: Seconds = 1.0
    coefficient: float = 2.0
    maximum: Seconds = 60.0
    jitter: float = 0.5
    strategy: Strategy = "exponential"

    def __post_init__(self) -> None:
        if isinstance(self.max_attempts, bool) or not isinstance(self.max_attempts, int):
            raise InvalidSetting("retry.max_attempts", self.max_attempts, "a whole number")
        if not 1 <= self.max_attempts <= _MOST_FAILURES:
            raise InvalidSetting(
                "retry.max_attempts", self.max_attempts, "at least 1, which means no retry"
            )
        self._check("initial", 0, MAX_DELAY)
        self._check("maximum", 0, MAX_DELAY)
        self._check("coefficient", 1, 1_000_000)
        self._check("jitter", 0, 1)
        if self.initial > self.maximum:
            raise InvalidSetting(
                "retry.maximum", self.maximum, f"must not be below initial ({self.initial:g})"
            )
        if self.strategy not in get_args(Strategy):
            raise InvalidSetting(
                "retry.strategy", self.strategy, f"one of {', '.join(get_args(Strategy))}"
            )

    def _check(self, field: str, low: float, high: float) -> None:
        value: object = getattr(self, field)
        if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
            raise InvalidSetting(f"retry.{field}", value, "a number")
        if not low <= value <= high:
            raise InvalidSetting(f"retry.{field}", value, f"between {low:g} and {high:g}")

    def delay(self, failures: int, random: float) -> Seconds:
        """Return the wait after the ``failures``-th failure; ``random`` is drawn from [0, 1]."""
        return self._base(min(max(failures, 1), _MOST_FAILURES)) * (1.0 - self.jitter * random)

    def _base(self, failures: int) -> Seconds:
        match self.strategy:
            case "fixed":
                return float(self.initial)
            case "linear":
                return min(float(self.initial * failures), float(self.maximum))
            case "exponential":
                try:
                    grown = self.initial * float(self.coefficient) ** (failures - 1)
                except OverflowError:
                    return float(self.maximum)
                return min(grown, float(self.maximum))
