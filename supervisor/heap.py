"""The min-heap: which line is fetched next.

A *line* is a queue's tasks of one kind (``async def`` or ``def``: they need different slots).
Each has one entry, keyed by when to fetch it. Lines that are due at the same moment take turns:
whoever was put back last comes last, so one that is always full cannot starve another.
"""

from __future__ import annotations

import heapq
import itertools
import math
from typing import Final, Generic, TypeVar

T = TypeVar("T")

NEVER: Final = math.inf


class Heap(Generic[T]):
    """Items by the moment at which each is due; an item is in it at most once.

    >>> heap = Heap[str]()
    >>> heap.set("emails", 5.0); heap.set("images", 3.0)
    >>> heap.next_at
    3.0
    >>> heap.pop(now=4.0)
    'images'
    >>> heap.pop(now=4.0) is None
    True
    """

    def __init__(self) -> None:
        self._entries: list[tuple[float, int, T]] = []
        self._current: dict[T, int] = {}  # the entry that counts; others of an item are stale
        self._numbers = itertools.count()

    def set(self, item: T, at: float) -> None:
        """Make ``item`` due at a moment, whatever was said before; ``NEVER`` parks it."""
        number = next(self._numbers)
        self._current[item] = number
        if at != NEVER:
            heapq.heappush(self._entries, (at, number, item))

    def hasten(self, item: T, at: float) -> None:
        """Make ``item`` due at a moment, or leave it if it is due earlier."""
        entry = self._entry(item)
        if entry is None or at < entry:
            self.set(item, at)

    def discard(self, item: T) -> None:
        """Forget ``item``."""
        self._current.pop(item, None)

    def pop(self, now: float) -> T | None:
        """Take out the item that has been due for longest; None if none is due."""
        self._drop_stale()
        if not self._entries or self._entries[0][0] > now:
            return None
        _, _, item = heapq.heappop(self._entries)
        self._current[item] = -1
        return item

    @property
    def next_at(self) -> float:
        """When the next item is due; ``NEVER`` if all are parked."""
        self._drop_stale()
        return self._entries[0][0] if self._entries else NEVER

    def _entry(self, item: T) -> float | None:
        number = self._current.get(item)
        return next((at for at, n, _ in self._entries if n == number), None)

    def _drop_stale(self) -> None:
        while self._entries and self._current.get(self._entries[0][2]) != self._entries[0][1]:
            heapq.heappop(self._entries)
