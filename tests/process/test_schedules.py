"""Schedules on real hosts: one task a tick whoever is killed, none missed, wrong clocks."""

from __future__ import annotations

import os
import random
from datetime import UTC, datetime, timedelta

import pytest

from fleet.store import clock
from tests.process.fleets import Fleet, eventually, running_fleet

EVERY_SECOND = """
from fleet import Context, Fleet

app = Fleet()

@app.job("tock")
async def tock(ctx: Context, n: int) -> None: ...

app.schedule("tick", "* * * * * *", tock, 1)
"""
# Of itself the beat would come much too late.
SLOW = '[fetch]\nempty_delay = "4s"\n'


async def fired(db) -> list[datetime]:
    return [row["tick"] for row in await db.fetch("select tick from fleet.tick order by tick")]


async def assert_one_task_a_tick(db) -> list[datetime]:
    """None is missing between the first and the last, and each has a task of its own."""
    ticks = await fired(db)
    assert ticks == [ticks[0] + timedelta(seconds=n) for n in range(len(ticks))]
    made = [row["task"] for row in await db.fetch("select task from fleet.tick order by task")]
    there = "select id from fleet.task union all select id from fleet.archive order by id"
    assert made == [row["id"] for row in await db.fetch(there)]
    return ticks


async def so_many_more(db, count: int) -> None:
    wanted = len(await fired(db)) + count

    async def look() -> bool:
        return len(await fired(db)) >= wanted

    await eventually(look, 60)


async def just_about_a_tick(db, past: int) -> None:
    """Wait until these microseconds of a second are over: in the first 40 ms hosts fire."""
    while not past <= (await clock.now(db)).microsecond < past + 10_000:
        pass


async def test_u16_r11_two_supervisors_and_kills_make_one_task_a_tick_and_miss_none(dsn, db):
    chance = random.Random(1)
    with (
        running_fleet(dsn, EVERY_SECOND, SLOW, name="host-a") as a,
        running_fleet(dsn, EVERY_SECOND, SLOW, name="host-b") as b,
    ):
        hosts: list[Fleet] = [a, b]
        for _ in range(5):
            await so_many_more(db, 2)
            await just_about_a_tick(db, chance.randrange(40_000))
            victim = chance.choice(hosts)
            victim.kill()
            victim.assert_no_orphans()
            victim.start().wait_ready()
        await so_many_more(db, 2)
    assert len(await assert_one_task_a_tick(db)) >= 12


async def test_u16_a_tick_fires_when_it_is_due_not_at_the_next_beat(dsn, db):
    with running_fleet(dsn, EVERY_SECOND, SLOW):
        await so_many_more(db, 8)
    ticks = await assert_one_task_a_tick(db)
    moments = await db.fetchval("select count(distinct fired_at) from fleet.tick")
    assert moments > len(ticks) / 2, "four at a time, had it waited for a beat"


@pytest.mark.parametrize("hours", [-1, 1])
async def test_f24_a_host_whose_clock_is_wrong_fires_as_any_other(dsn, db, hours):
    """Every clock that Python has but the monotonic one is an hour off in that host."""
    wrong = f"""
import time
for name, unit in (("time", 1), ("time_ns", 10**9)):
    def shifted(right=getattr(time, name), by={hours * 3600} * unit):
        return right() + by
    setattr(time, name, shifted)
"""
    with running_fleet(dsn, EVERY_SECOND, SLOW, ready=False) as fleet:
        fleet.kill()
        fleet.assert_no_orphans()
        (fleet.folder / "sitecustomize.py").write_text(wrong)
        path = [str(fleet.folder), os.environ.get("PYTHONPATH", "")]
        fleet.env["PYTHONPATH"] = os.pathsep.join(path)
        fleet.start().wait_ready()
        said = datetime.fromisoformat(fleet.records("starting")[-1]["at"])
        off = datetime.now(UTC) - said
        assert abs(off + timedelta(hours=hours)) < timedelta(minutes=30), "it is wrong there"
        await so_many_more(db, 4)
    ticks = await assert_one_task_a_tick(db)
    now = await clock.now(db)
    assert all(now - timedelta(minutes=30) < tick <= now for tick in ticks), "by the server's clock"
    assert await db.fetchval("select count(*) from fleet.archive") > 0, "and they ran"
