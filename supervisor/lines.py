"""Lines: what the heap is a heap of. A queue's tasks of one kind, and how its fetching goes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from fleet.limits import NONE, Limits
from fleet.model import Seconds
from supervisor.watermark import Watermark

Kind: TypeAlias = Literal["async", "def"]
Place: TypeAlias = tuple[str, Kind, str]  # a line's queue, kind, and job if it has limits

SHORT: Final[Seconds] = 0.05
FOREIGN_EVERY: Final[Seconds] = 2.0


@dataclass(slots=True, eq=False)
class Line:
    """One queue's ``async def`` or ``def`` steps; those of a job with limits apart."""

    queue: str
    kind: Kind
    pool: str
    job: str = ""  # the only one here, if it has limits
    of_queue: Limits = NONE
    of_job: Limits = NONE
    capped: bool = False  # there may be work, and a limit lets none of it in
    weight: float = 1.0
    rank: int = 0
    known: tuple[str, ...] = ()
    foreign: bool = False  # no job of its queue has such steps; yet a task may be sent there
    look_at: float = 0.0  # of a foreign one: when to look again, at the earliest
    paused: bool = False
    has_work: bool = True  # the last look found more than it could take, or nobody has looked yet
    back: bool = True  # the next look goes back a little: the last one was short, or it is woken
    errors: int = 0
    took_at: float = 0.0
    held: int = 0  # tasks of this line that this host has claimed
    mark: Watermark = field(default_factory=Watermark)
    _ahead: int = 0
    _average: float = 0.0

    @property
    def limited(self) -> bool:
        """Whether its claims have to pass a gate."""
        return bool(self.of_queue) or bool(self.of_job)

    @property
    def counts(self) -> bool:
        """Whether the end of a task may let another one in."""
        return self.of_queue.most is not None or self.of_job.most is not None

    @property
    def wants(self) -> bool:
        """Whether it would take a slot if there were one."""
        return self.has_work and not self.paused and not self.capped

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

        None for long steps, or under a limit: what waits here in vain could run elsewhere.
        """
        return 0 if self._average > SHORT or self.limited else self._ahead


def place_of(queue: str, step: dict[str, Any]) -> Place:
    """Return the place of the line for a step, as a worker described it."""
    return queue, step["kind"], step["job"] if step.get("limits") else ""


def lines_of(steps: dict[str, dict[str, Any]], queues: Iterable[str]) -> dict[Place, list[str]]:
    """Group the steps that workers know by line: in whatever queue a task is, they can run it."""
    grouped: dict[Place, list[str]] = {}
    for queue in queues:
        for name, step in steps.items():
            grouped.setdefault(place_of(queue, step), []).append(name)
    return grouped
