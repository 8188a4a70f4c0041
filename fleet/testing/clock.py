"""The clock of a test database.

All of Fleet's SQL asks ``fleet.now()`` for the time. In a database made for tests that function
is replaced by one that adds an offset, which tests move: delays, retries, keys, partitions and
schedules all follow, and nobody waits. The time itself stays the database's.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

import asyncpg

_INSTALL: Final = """
create table if not exists fleet.test_clock (shift interval not null);
insert into fleet.test_clock select interval '0' where not exists (select from fleet.test_clock);
grant select on fleet.test_clock to public;
create or replace function fleet.now() returns timestamptz
language sql stable
as 'select pg_catalog.statement_timestamp() + (select shift from fleet.test_clock)';
"""

_SHIFT: Final = "update fleet.test_clock set shift = shift + $1"

_NOW: Final = "select fleet.now()"


class Clock:
    """Moves the time of one test database; only forwards, as time does.

    >>> async def story(clock: Clock) -> None:
    ...     await clock.advance(minutes=5)
    """

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn

    async def install(self) -> None:
        """Replace ``fleet.now()`` in this database. Never do this to one that is not a test's."""
        await self._run(_INSTALL)

    async def now(self) -> datetime:
        """Return what time the database thinks it is."""
        conn = await asyncpg.connect(self._dsn)
        try:
            moment: datetime = await conn.fetchval(_NOW)
        finally:
            await conn.close()
        return moment

    async def advance(self, seconds: float = 0, *, minutes: float = 0, days: float = 0) -> None:
        """Let time pass."""
        step = timedelta(seconds=seconds, minutes=minutes, days=days)
        if step < timedelta(0):
            raise ValueError("time does not run backwards: give a positive step")
        await self._run(_SHIFT, step)

    async def _run(self, query: str, *args: object) -> None:
        conn = await asyncpg.connect(self._dsn)
        try:
            await conn.execute(query, *args)
        finally:
            await conn.close()
