"""Lines: what the heap is a heap of. A queue's tasks of one kind, and how its fetching goes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from fleet.model import Seconds
from supervisor.watermark import Watermark

Kind: TypeAlias = Literal["async", "def"]

SHORT: Final[Seconds] = 0.05


@dataclass(slots=True, eq=False)
class Line:
    """One queue's ``async def`` or ``def`` steps."""

    queue: str
    kind: Kind
    pool: str
    weight: float = 1.0
    rank: int = 0
    known: tuple[str, ...] = ()
    paused: bool = False
    has_work: bool = True  # the last look found more than it could take, or nobody has looked yet
    back: bool = True  # the next look goes back a little: the last one was short, or it is woken
    errors: int = 0
    took_at: float = 0.0
    held: int = 0  # tasks of this line that this host has claimed
    mark: Watermark = field(default_factory=Watermark)
    _ahead: int = 0
    _average: float = 0.0

    def learn(self, known: tuple[str, ...]) -> bool:
        """Take note of the steps that ready workers know; True if there are new ones."""
        new = bool(set(known) - set(self.known))
        self.known = known
        if new:
            self.mark.reset()
        return new

    def came_back(self, *, full: bool, starved: bool, most: int) -> None:
        """Take note of a claim: was it full, and had the workers run out of tasks meanwhile?

        What ended during the last two round trips, as a rule for how much to claim ahead, grows by
        a constant from claim to claim (60,000 empty steps: 8,800/s). Doubling while the workers are
        starved finds the right amount within ten claims.
        """
        if not full:
            self._ahead //= 2
        elif starved:
            self._ahead = min(max(2 * self._ahead, 16), most)

    def overreached(self) -> None:
        """Take note that something was given back because it had waited here in vain."""
        self._ahead = 0

    def ended(self, took: Seconds) -> None:
        """Take note of a step's end."""
        self._average = took if not self._average else self._average + (took - self._average) * 0.05

    @property
    def ahead(self) -> int:
        """How many to claim beyond the free slots, so that nobody waits for a round trip.

        None for long steps: what waits here in vain could run elsewhere.
        """
        return 0 if self._average > SHORT else self._ahead


def lines_of(steps: dict[str, dict[str, Any]]) -> dict[tuple[str, Kind], list[str]]:
    """Group the steps that a worker knows by (queue, kind)."""
    grouped: dict[tuple[str, Kind], list[str]] = {}
    for name, step in steps.items():
        grouped.setdefault((step["queue"], step["kind"]), []).append(name)
    return grouped
