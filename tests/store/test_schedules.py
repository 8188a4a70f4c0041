"""Schedules in the database: made by hand, fired once a tick whoever is at it, missed, paused."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

from fleet import Context, Fleet
from fleet.model import OwnerId
from fleet.schedule import Schedule
from fleet.store import beats, clock, registry, schedules
from fleet.store.schedules import Fired, Waiting
from tests.store.test_log import lines

app = Fleet("postgresql://unused")


@app.job("report", queue="reports", priority=3)
async def report(ctx: Context, days: int) -> None: ...


@app.job("charge", queue="billing", key=lambda order: order["customer"])
async def charge(ctx: Context, order: dict) -> None: ...


@pytest.fixture(autouse=True)
async def known_jobs(db):
    await registry.register(db, app)


async def make(db, name: str = "nightly", cron: str = "0 * * * *", **options) -> None:
    said = Schedule(name=name, cron=cron, job="report", **({"input": "7"} | options))
    assert await schedules.add(db, said, "ann@host") == "made"


async def one(db) -> Waiting:
    (waiting,), _ = await schedules.due(db)
    return waiting


async def fire(db) -> list[Fired | None]:
    """Do what a supervisor does with all that is due."""
    waiting, now = await schedules.due(db)
    done = []
    for each in waiting:
        ticks, following = each.schedule().due(now, since=each.since, next_at=each.next_at)
        done.append(await schedules.fire(db, each, ticks, following))
    return done


async def to_next_hour(db, fleet_clock, hours: int = 1, past: float = 1) -> datetime:
    """Move the clock just past a full hour, and return that hour."""
    now = await clock.now(db)
    hour = now.replace(minute=0, second=0, microsecond=0) + timedelta(hours=hours)
    await fleet_clock.advance((hour - now).total_seconds() + past)
    return hour


async def tasks(db) -> list[tuple]:
    rows = await db.fetch(
        "select job, queue, step, priority, key, input::text from fleet.task order by id"
    )
    return [tuple(row) for row in rows]


REPORT = ("report", "reports", "report", 3, None, "7")


# ── fired ────────────────────────────────────────────────────────────────────────────────────────


async def test_u16_it_fires_first_at_the_first_tick_after_it_was_made(db, fleet_clock):
    await to_next_hour(db, fleet_clock)
    await make(db)
    assert (await one(db)).next_at is None, "a supervisor is to say when"
    assert await fire(db) == [Fired([], None)]
    assert await schedules.due(db) == (
        [],
        pytest.approx(await clock.now(db), abs=timedelta(minutes=1)),
    )

    hour = await to_next_hour(db, fleet_clock)
    ((ids, error),) = await fire(db)
    assert (len(ids), error) == (1, None)
    assert await tasks(db) == [REPORT], "as its job was registered"
    (tick,) = await schedules.ticks(db, "nightly")
    assert (tick.tick, tick.task, tick.fired_by) == (hour, ids[0], None)
    (known,) = await schedules.known(db)
    assert (known.last_tick, known.last_task) == (hour, ids[0])
    assert known.next_at == hour + timedelta(hours=1)


async def test_u16_a_tick_that_came_before_anybody_looked_at_the_new_schedule_is_fired(
    db, fleet_clock
):
    await make(db)
    await to_next_hour(db, fleet_clock)
    ((ids, _),) = await fire(db)
    assert len(ids) == 1


async def test_r11_many_supervisors_at_once_make_one_task_a_tick(db, dsn, fleet_clock):
    await make(db)
    await fire(db)
    hosts = [await asyncpg.connect(dsn) for _ in range(8)]
    for _ in range(5):
        await to_next_hour(db, fleet_clock)
        fired = await asyncio.gather(*(fire(host) for host in hosts))
        assert sum(len(done.tasks) for each in fired for done in each if done is not None) == 1
    assert len(await schedules.ticks(db, "nightly")) == len(await tasks(db)) == 5
    for host in hosts:
        await host.close()


async def test_r11_who_dies_before_the_commit_has_done_nothing(db, dsn, fleet_clock):
    await make(db)
    await fire(db)
    await to_next_hour(db, fleet_clock)
    victim = await asyncpg.connect(dsn)
    transaction = victim.transaction()
    await transaction.start()
    ((ids, _),) = await fire(victim)
    assert len(ids) == 1
    assert await fire(db) == [None], "somebody is at it: nobody waits for its lock"
    victim.terminate()

    async def again() -> list[Fired | None]:
        while (done := await fire(db)) == [None]:
            pass  # until the server has seen it die
        return done

    ((ids, _),) = await asyncio.wait_for(again(), 10)
    assert len(ids) == len(await tasks(db)) == 1


async def test_r11_what_was_computed_before_a_change_fires_nothing(db, fleet_clock):
    await make(db)
    await fire(db)
    hour = await to_next_hour(db, fleet_clock)
    before = await one(db)
    changed = Schedule(name="nightly", cron="30 * * * *", job="report", input="7")
    assert await schedules.add(db, changed, "bob@host") == "changed"
    assert await schedules.fire(db, before, [hour], hour + timedelta(hours=1)) is None

    await schedules.remove(db, "nightly", "bob@host")
    await make(db)
    assert await schedules.fire(db, before, [hour], hour + timedelta(hours=1)) is None
    assert await tasks(db) == []


async def test_r11_a_tick_never_fires_twice_even_if_its_schedule_goes_back(db, fleet_clock):
    await make(db)
    await fire(db)
    await to_next_hour(db, fleet_clock)
    await fire(db)
    await db.execute("update fleet.schedule set next_at = last_tick")
    assert await fire(db) == [Fired([], None)]
    assert len(await tasks(db)) == 1


async def test_u16_a_job_that_nobody_has_registered_yet_costs_no_tick(db, fleet_clock):
    await db.execute("delete from fleet.job")
    await make(db)
    await fire(db)
    hour = await to_next_hour(db, fleet_clock)
    ((ids, error),) = await fire(db)
    assert ids == []
    assert "no job 'report' is registered" in (error or "")
    (known,) = await schedules.known(db)
    assert known.error == error
    assert known.next_at == hour, "it is still due"

    await registry.register(db, app)
    await fire(db)
    (known,) = await schedules.known(db)
    assert (known.error, known.last_tick) == (None, hour)


@pytest.mark.parametrize(("missed", "fired"), [("latest", 1), ("skip", 0), ("all", 30)])
async def test_u16_missed_ticks_follow_the_policy(db, fleet_clock, missed, fired):
    await make(db, missed=missed)
    await fire(db)
    hour = await to_next_hour(db, fleet_clock, 30, past=1800)
    await fire(db)
    found = await schedules.ticks(db, "nightly", 100)
    assert len(found) == len(await tasks(db)) == fired
    assert [t.tick for t in found] == [hour - timedelta(hours=n) for n in range(fired)]
    (known,) = await schedules.known(db)
    assert known.next_at == hour + timedelta(hours=1)


async def test_u16_very_many_missed_ticks_come_in_portions_and_all_come(db, fleet_clock):
    await make(db, cron="*/10 * * * * *", missed="all")
    await fire(db)
    await fleet_clock.advance(minutes=200)
    portions = []
    while done := await fire(db):
        portions.append(len(done[0].tasks))
    assert portions[:2] == [500, 500]
    assert 1200 <= sum(portions) == await db.fetchval("select count(*) from fleet.tick")
    late = "select extract(epoch from max(tick) - min(tick)) / 10 + 1 from fleet.tick"
    assert await db.fetchval(late) == sum(portions), "none is missing in between"


async def test_u16_the_beat_brings_what_is_due_and_wakes_at_the_next_tick(db, fleet_clock):
    owner = await beats.register(db, "host-a", 1, 15.0)
    await make(db)
    await fire(db)
    hour = await to_next_hour(db, fleet_clock, past=-0.5)
    told = await beats.beat(db, owner, "running", [], [])
    assert told is not None
    assert told.ticks == []
    assert told.due_in == pytest.approx(0.5, abs=0.4)
    await fleet_clock.advance(1)
    told = await beats.beat(db, OwnerId(owner), "running", [], [])
    assert told is not None
    assert [(w.name, w.next_at, w.by_hand) for w in told.ticks] == [("nightly", hour, True)]
    assert told.due_in is None, "what is due is no reason to beat in a circle"


# ── by hand ──────────────────────────────────────────────────────────────────────────────────────


async def test_u16_fired_by_hand_it_goes_on_as_it_was(db, fleet_clock):
    await make(db)
    await fire(db)
    (before,) = await schedules.known(db)
    first = await schedules.fire_now(db, "nightly", "ann@host")
    second = await schedules.fire_now(db, "nightly", "ann@host")
    assert await schedules.known(db) == [before]
    assert await tasks(db) == [REPORT, REPORT]
    found = await schedules.ticks(db, "nightly")
    assert [(t.task, t.fired_by) for t in found] == [(second, "ann@host"), (first, "ann@host")]
    with pytest.raises(asyncpg.NoDataFoundError, match="there is no schedule 'weekly'"):
        await schedules.fire_now(db, "weekly", "ann@host")


async def test_u16_what_would_have_fired_during_a_pause_was_not_missed(db, fleet_clock):
    await make(db, missed="all")
    await fire(db)
    assert await schedules.pause(db, "nightly", "ann@host")
    assert not await schedules.pause(db, "nightly", "ann@host"), "it was"
    hour = await to_next_hour(db, fleet_clock, 5)
    assert await fire(db) == []
    assert await schedules.pause(db, "nightly", "ann@host", pause=False)
    assert await fire(db) == [Fired([], None)]
    (known,) = await schedules.known(db)
    assert known.next_at == hour + timedelta(hours=1)


async def test_u16_changed_in_other_things_it_keeps_its_next_tick(db, fleet_clock):
    await make(db)
    await fire(db)
    (before,) = await schedules.known(db)
    same = Schedule(name="nightly", cron="0 * * * *", job="report", input="7")
    other = Schedule(name="nightly", cron="0 * * * *", job="report", input="8")
    later = Schedule(name="nightly", cron="1 * * * *", job="report", input="8")
    assert await schedules.add(db, same, "bob@host") == "same"
    assert await schedules.add(db, other, "bob@host") == "changed"
    assert (await schedules.known(db))[0].next_at == before.next_at
    assert await schedules.add(db, later, "bob@host") == "changed"
    assert (await schedules.known(db))[0].next_at is None


async def test_what_people_do_is_in_the_log(db):
    await make(db)
    await schedules.fire_now(db, "nightly", "bob@host")
    await schedules.pause(db, "nightly", "bob@host")
    await schedules.pause(db, "nightly", "bob@host", pause=False)
    await schedules.remove(db, "nightly", "bob@host")
    assert not await schedules.remove(db, "nightly", "bob@host")
    said = [(who, what) for who, what, target, _ in await lines(db) if target == "nightly"]
    assert said == [
        ("ann@host", "schedule.add"),
        ("bob@host", "schedule.fire"),
        ("bob@host", "schedule.pause"),
        ("bob@host", "schedule.resume"),
        ("bob@host", "schedule.remove"),
    ]


async def test_u16_sql_makes_one_with_its_zone_in_brackets(db, fleet_clock):
    how = "select fleet.schedule('la', '@daily[America/Los_Angeles]', 'report', '7')"
    assert await db.fetchval(how) == "made"
    assert await db.fetchval(how) == "same"
    (known,) = await schedules.known(db)
    assert (known.cron, known.timezone) == ("@daily", "America/Los_Angeles")
    await fire(db)
    (known,) = await schedules.known(db)
    assert known.next_at is not None
    assert known.next_at.astimezone(UTC).hour in (7, 8), "midnight over there"


async def test_f25_a_zone_that_this_host_does_not_know_is_an_error_that_is_noted(db):
    await make(db)
    await db.execute("update fleet.schedule set timezone = 'Europe/Atlantis'")
    waiting = await one(db)
    await schedules.note_error(db, waiting, "there is no time zone 'Europe/Atlantis'")
    (known,) = await schedules.known(db)
    assert known.error == "there is no time zone 'Europe/Atlantis'"
