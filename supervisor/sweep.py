"""Owners that have fallen silent, and what they held.

An owner is taken over only by a supervisor that has itself watched its counter stand still for a
whole lease, by its own monotonic clock, on a connection that did not break meanwhile. No clock is
compared with another one, so an outage, a promoted standby or a jump of a clock takes nothing
over by mistake.

Taken over in two rounds, a lease apart: in the first it is told that it may claim no more, and what
it held is put back; in the second, what a claim that was under way has taken is put back too, and
the owner is forgotten.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from fleet.lifecycle import Lost, decide
from fleet.model import Claim, Failure, OwnerId, Seconds
from fleet.policy import Policy
from fleet.store.beats import forget, take
from fleet.store.claims import held
from fleet.store.executor import Executor
from fleet.store.outcomes import Outcome, write

_log: Final = logging.getLogger("fleet.supervisor")


class _Seen(NamedTuple):
    beat: int
    since: float


class Watch:
    """What this supervisor has seen of the others' counters."""

    def __init__(self) -> None:
        self._seen: dict[int, _Seen] = {}
        self._connects = 0

    def silent(
        self, owners: Mapping[int, tuple[int, Seconds]], now: float, connects: int
    ) -> list[int]:
        """Return the owners whose counter has stood still for their whole lease.

        ``connects`` counts our connections: a new one means that we may have missed beats, so
        everybody's time starts again.
        """
        if connects != self._connects:
            self._connects = connects
            self._seen.clear()
        silent = []
        for owner, (beat, lease) in owners.items():
            seen = self._seen.get(owner)
            if seen is None or seen.beat != beat:
                self._seen[owner] = _Seen(beat, now)
            elif now - seen.since >= lease:
                silent.append(owner)
        for owner in self._seen.keys() - owners.keys():
            del self._seen[owner]
        return silent

    def dealt_with(self, owner: int, now: float) -> None:
        """Come back to an owner that was taken over after another lease."""
        if seen := self._seen.get(owner):
            self._seen[owner] = seen._replace(since=now)


async def take_over(
    conn: Executor, owner: OwnerId, policy: Callable[[Claim], Policy], by: str
) -> bool:
    """Put back what a silent owner held; True when that is done, for this round."""
    first = await take(conn, owner)
    claims = await held(conn, owner)
    error = Failure(type="LeaseExpired", message=f"its host fell silent; noticed by {by}")
    outcomes = [
        Outcome(c, decide(c, Lost(error), policy(c), 0.0), "?", 0.0, policy(c).keep) for c in claims
    ]
    report = await write(conn, owner, outcomes)
    if claims:
        _log.warning("owner %s fell silent: %d of its tasks run again", owner, len(report.fences))
    if not report.busy and not first:
        await forget(conn, owner)
    return not report.busy
