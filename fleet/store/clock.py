"""What time it is, by the one clock that counts; in a test's database that clock can be moved."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

import asyncpg

from fleet.store.executor import Executor

_NOW: Final = "select fleet.now() as now"

# Never in a database that is not a test's. Whoever is granted anything reads the time, too.
_MAKE_MOVABLE: Final = """
create table if not exists fleet.test_clock (shift interval not null);
insert into fleet.test_clock select interval '0' where not exists (select from fleet.test_clock);
grant select on fleet.test_clock to public;
create or replace function fleet.now() returns timestamptz
language sql stable
as 'select pg_catalog.statement_timestamp() + (select shift from fleet.test_clock)';
"""

_MOVE: Final = "update fleet.test_clock set shift = shift + $1::interval"


async def now(executor: Executor) -> datetime:
    """Return what time the database thinks it is."""
    moment: datetime = (await executor.fetch(_NOW))[0]["now"]
    return moment


async def make_movable(conn: asyncpg.Connection[asyncpg.Record]) -> None:
    """Replace ``fleet.now()`` by one that adds an offset."""
    await conn.execute(_MAKE_MOVABLE)


async def move(executor: Executor, step: timedelta) -> None:
    """Let time pass in a database whose clock is movable."""
    await executor.fetch(_MOVE, step)
