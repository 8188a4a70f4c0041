"""F25: hosts fire once a tick while the clocks change, both ways, in three zones."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from fleet.store import clock, schedules
from fleet.testing import Clock
from tests.process.fleets import eventually, running_fleet

APP = """
from fleet import Context, Fleet

app = Fleet()

@app.job("tock", on_success="delete")
async def tock(ctx: Context) -> None: ...
"""
QUICK = '[fetch]\nempty_delay = "50ms"\n'
CHANGES = {  # both ways, after the tests' own time and in its order
    "America/New_York": [datetime(2031, 3, 9, 7), datetime(2031, 11, 2, 6)],
    "Europe/Rome": [datetime(2031, 3, 30, 1), datetime(2031, 10, 26, 1)],
    "Australia/Lord_Howe": [datetime(2031, 4, 5, 15), datetime(2031, 10, 4, 15, 30)],
}
CRONS = {"fixed": "45 1 * * *", "skipped": "15 2 * * *", "clock": "*/15 * * * *"}


def wanted(zone: str, start: datetime, end: datetime) -> dict[str, list[datetime]]:
    """Return when each is to fire, by looking at every minute's face of the clock."""
    quarters = [start + timedelta(minutes=n) for n in range(24 * 60)]
    faces = [(at, at.astimezone(ZoneInfo(zone))) for at in quarters if start < at <= end]
    found: dict[str, list[datetime]] = {
        "clock": [at for at, face in faces if face.minute % 15 == 0]
    }
    for name, hour, minute in (("fixed", 1, 45), ("skipped", 2, 15)):
        exact = [at for at, face in faces if (face.hour, face.minute) == (hour, minute)]
        # Shown twice: the first time. Never shown: when the clock first shows a later time.
        later = [at for at, face in faces if (face.hour, face.minute) > (hour, minute)]
        found[name] = (exact or later)[:1]
    return found


async def test_f25_one_task_a_tick_while_the_clocks_change_and_hosts_die(dsn, db, fleet_clock):
    with (
        running_fleet(dsn, APP, QUICK, name="host-a") as a,
        running_fleet(dsn, APP, QUICK, name="host-b") as b,
    ):
        moments = sorted((at, zone) for zone, both in CHANGES.items() for at in both)
        for number, (at, zone) in enumerate(moments):
            change = at.replace(tzinfo=UTC)
            midnight = datetime.combine(change.astimezone(ZoneInfo(zone)), datetime.min.time())
            start = midnight.replace(tzinfo=ZoneInfo(zone)).astimezone(UTC) + timedelta(minutes=5)
            end = start + timedelta(hours=6)
            await move_to(db, fleet_clock, start)
            for name, cron in CRONS.items():
                await db.fetch(
                    "select fleet.schedule($1, $2, 'tock', timezone => $3, missed => 'all')",
                    f"{name}-{number}",
                    cron,
                    zone,
                )
            expected = wanted(zone, start, end)
            assert len(expected["clock"]) == 24
            victim = (a, b)[number % 2]
            while (now := await clock.now(db)) < end:
                await nothing_is_due(db)
                if now > change and victim.alive:
                    victim.kill()
                    await move_to(db, fleet_clock, min(now + timedelta(minutes=40), end))
                    victim.assert_no_orphans()
                    victim.start()
                await move_to(db, fleet_clock, min(now + timedelta(minutes=20), end))
            await nothing_is_due(db)
            for name in CRONS:
                ticks = await schedules.ticks(db, f"{name}-{number}", 100)
                found = sorted(tick.tick for tick in ticks)
                assert [t for t in found if t <= end] == expected[name], (name, zone, change)
                await schedules.remove(db, f"{name}-{number}", "test")
        a.wait_ready()
        b.wait_ready()
    made = "select count(*) = count(distinct task) from fleet.tick"
    assert await db.fetchval(made)


async def move_to(db, fleet_clock: Clock, moment: datetime) -> None:
    left = (moment - await clock.now(db)).total_seconds()
    await fleet_clock.advance(max(left, 0))


async def nothing_is_due(db) -> None:
    async def look() -> bool:
        return (await schedules.due(db))[0] == []

    await eventually(look)
