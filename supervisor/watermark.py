"""Where a queue's claims have got to, so that they need not walk over what they took before.

One mark a rank. A full batch goes on from the marks. A short one, or a wake-up, goes back to the
marks of five seconds ago: positions are drawn before a transaction commits, so a lower one may
appear later. What stayed invisible for longer (a caller's long transaction) is found by a look
from the start, which repeats no sooner than twenty times its own duration, because under an old
snapshot it may be slow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from fleet.model import Claim, Seconds
from fleet.store.claims import EVERYTHING, Span

MEMORY: Final[Seconds] = 5.0
PATIENCE: Final = 20
LOOK_EVERY: Final[Seconds] = 5.0


class Watermark:
    """The marks of one line; times are the monotonic clock's."""

    def __init__(self) -> None:
        self._marks: dict[int, int] = {}
        self._past: deque[tuple[float, dict[int, int]]] = deque()
        self._look_again_at = 0.0

    def spans(self, now: float, *, back: bool) -> tuple[Span, ...]:
        """Return where to look: on from the marks, or ``back`` at those of a while ago."""
        if back and now >= self._look_again_at:
            return EVERYTHING
        return _spans(self._before(now - MEMORY) if back else self._marks)

    def took(self, claims: Iterable[Claim], now: float) -> None:
        """Move the marks past what was claimed."""
        moved = dict(self._marks)
        for claim in claims:
            if claim.pos > moved.get(claim.rank, 0):
                moved[claim.rank] = claim.pos
        if moved != self._marks:
            if not self._past or now - self._past[-1][0] > MEMORY / 10:
                self._past.append((now, self._marks))
            self._marks = moved
        while len(self._past) > 1 and self._past[1][0] <= now - MEMORY:
            self._past.popleft()

    def looked(self, spans: tuple[Span, ...], now: float, duration: Seconds) -> None:
        """Take note that a look from the start has been made, and of what it cost."""
        if spans == EVERYTHING:
            self._look_again_at = now + max(PATIENCE * duration, LOOK_EVERY)

    def reset(self) -> None:
        """Start over: the line has learnt new steps, and what it passed over may be theirs."""
        self._marks = {}
        self._past.clear()
        self._look_again_at = 0.0

    def _before(self, moment: float) -> dict[int, int]:
        """Return the marks as they were at ``moment``."""
        for at, marks in self._past:
            if at > moment:
                return marks
        return self._marks


def _spans(marks: dict[int, int]) -> tuple[Span, ...]:
    """Turn marks into spans that leave no gap between them."""
    if not marks:
        return EVERYTHING
    ranks = sorted(marks)
    first = Span(EVERYTHING[0].rank, EVERYTHING[0].pos, ranks[0])
    ends = [*ranks[1:], EVERYTHING[0].below]
    return (first, *(Span(r, marks[r], end) for r, end in zip(ranks, ends, strict=True)))
