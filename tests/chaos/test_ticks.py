"""One task a tick, whatever dies between any two statements of a firing, and none is missed.

Each hour two processes fire what is due, and each dies at a statement of its own; a healthy one
comes after them.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from datetime import datetime, timedelta
from itertools import product

import asyncpg

from fleet.store import clock, schedules

# Before and after: becoming an owner, the beat, the statement that fires; and once more round.
BOUNDARIES = 8
FATES = [("never", 0), ("cut", 0), *(("kill", n) for n in range(1, BOUNDARIES + 1))]


async def fire(dsn: str, how: str, at: int) -> str:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "tests.chaos.ticker", dsn, how, str(at)),
        stderr=asyncio.subprocess.DEVNULL,
    )
    code = await process.wait()
    assert code in (0, -9), f"{how} {at} ended with {code}"
    return f"{how} {code}"


async def next_hour(db: asyncpg.Connection, fleet_clock) -> datetime:
    now = await clock.now(db)
    hour = now.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
    await fleet_clock.advance((hour - now).total_seconds() + 0.1)
    return hour


async def test_r11_f25_a_kill_between_any_two_statements_doubles_and_loses_nothing(
    dsn: str, db: asyncpg.Connection, fleet_clock
):
    await db.execute(
        "insert into fleet.job (name, fingerprint, queue, step, priority, definition)"
        " values ('report', 'x', 'reports', 'one', 0, '{\"steps\": [{}]}')"
    )
    for name in ("one", "two"):
        await db.fetch("select fleet.schedule($1, '0 * * * *', 'report')", name)
    await fire(dsn, "never", 0)
    fates: Counter[str] = Counter()
    hours = []
    pairs = [pair for n, pair in enumerate(product(FATES, FATES)) if n % 3 == 0]
    for first, second in pairs:
        hours.append(await next_hour(db, fleet_clock))
        fates.update(await asyncio.gather(fire(dsn, *first), fire(dsn, *second)))
        assert await fire(dsn, "never", 0) == "never 0"

    assert fates["kill -9"] > 20, fates
    assert fates["cut 0"] > 2, fates
    for name in ("one", "two"):
        ticks = await schedules.ticks(db, name, 1000)
        assert sorted(tick.tick for tick in ticks) == hours
    made = "select count(*) as n, count(distinct task) as d from fleet.tick"
    assert tuple(await db.fetchrow(made)) == (2 * len(hours), 2 * len(hours))
    assert await db.fetchval("select count(*) from fleet.task") == 2 * len(hours)
