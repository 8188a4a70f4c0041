"""The clock of a test database.

All of Fleet's SQL asks ``fleet.now()`` for the time. In a database made for tests that function
is replaced by one that adds an offset, which tests move: delays, retries, keys, partitions and
schedules all follow, and nobody waits. The time itself stays the database's.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from fleet.store import clock
from fleet.testing.connections import connection


class Clock:
    """Moves the time of one test database; only forwards, as time does.

    >>> async def story(clock: Clock) -> None:
    ...     await clock.advance(minutes=5)
    """

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn

    async def install(self) -> None:
        """Replace ``fleet.now()`` in this database. Never do this to one that is not a test's."""
        async with connection(self._dsn) as conn:
            await clock.make_movable(conn)

    async def now(self) -> datetime:
        """Return what time the database thinks it is."""
        async with connection(self._dsn) as conn:
            return await clock.now(conn)

    async def advance(self, seconds: float = 0, *, minutes: float = 0, days: float = 0) -> None:
        """Let time pass."""
        step = timedelta(seconds=seconds, minutes=minutes, days=days)
        if step < timedelta(0):
            raise ValueError("time does not run backwards: give a positive step")
        async with connection(self._dsn) as conn:
            await clock.move(conn, step)
