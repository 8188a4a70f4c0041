"""Schedules that applications declare: rolling deploys, stale ones, what autoscalers see."""

from __future__ import annotations

import asyncpg
import pytest

from fleet import Context, Fleet
from fleet.schedule import Schedule
from fleet.store import registry, schedules
from tests.store.test_schedules import fire, make, to_next_hour


def version(cron: str = "0 * * * *", days: int = 1, *, name: str = "nightly") -> Fleet:
    app = Fleet("postgresql://unused")

    @app.job("report", queue="reports")
    async def report(ctx: Context, days: int) -> None: ...

    app.schedule(name, cron, report, days)
    return app


async def declare(db, app: Fleet) -> None:
    """Say what a supervisor says every 20 s."""
    await registry.register(db, app)
    await schedules.declare(db, [each.definition() for each in app.schedules.values()])


async def state(db, name: str = "nightly") -> tuple[str, str, str, bool]:
    (known,) = await schedules.known(db, name)
    return known.cron, known.input, known.origin, known.declared


async def test_u16_what_is_declared_fires(db, fleet_clock):
    await declare(db, version())
    await fire(db)
    await to_next_hour(db, fleet_clock)
    await declare(db, version())
    ((ids, error),) = await fire(db)
    assert (len(ids), error) == (1, None)
    assert await db.fetchval("select input::text from fleet.task") == "1"


async def test_r12_in_a_rolling_deploy_the_new_definition_counts_and_nothing_flaps(db, fleet_clock):
    old, new = version(), version("30 * * * *", 2)
    await declare(db, old)
    await fleet_clock.advance(10)
    await declare(db, new)
    for _ in range(4):
        await fleet_clock.advance(20)
        await declare(db, old)
        await declare(db, new)
        assert await state(db) == ("30 * * * *", "2", "app", True)
        await fire(db)
    (before,) = await schedules.known(db)
    assert before.next_at is not None, "nobody has set it back"

    # The deploy is taken back: a minute after the last of the new ones, the old definition counts.
    for _ in range(4):
        await fleet_clock.advance(20)
        await declare(db, old)
    assert await state(db) == ("0 * * * *", "1", "app", True)


async def test_r12_neither_version_removes_what_only_the_other_declares(db, fleet_clock):
    old, new = version(name="old-one"), version(name="new-one")
    for _ in range(6):
        await declare(db, old)
        await declare(db, new)
        await fleet_clock.advance(20)
        found = {known.name: known.declared for known in await schedules.known(db)}
        assert found == {"old-one": True, "new-one": True}
    for _ in range(4):
        await declare(db, new)
        await fleet_clock.advance(20)
    found = {known.name: known.declared for known in await schedules.known(db)}
    assert found == {"old-one": False, "new-one": True}, "stale, and still there"


async def test_r12_an_application_that_was_away_goes_on_where_it_was(db, fleet_clock):
    await declare(db, version())
    await fire(db)
    await to_next_hour(db, fleet_clock)
    await declare(db, version())
    await fire(db)
    (before,) = await schedules.known(db)

    hour = await to_next_hour(db, fleet_clock, 24 * 20, past=600)
    (waiting,), _ = await schedules.due(db)
    assert not waiting.declared, "whoever hears this goes by stale_schedules"
    await db.fetch("select * from fleet.maintain()")
    await declare(db, version())
    ((ids, _),) = await fire(db)
    assert len(ids) == 1, "the latest of those that were missed"
    (after,) = await schedules.known(db)
    assert (after.created_at, after.last_tick) == (before.created_at, hour)


async def test_r12_stale_ones_are_gone_after_a_month_unless_somebody_fires_them(db, fleet_clock):
    await declare(db, version())
    await declare(db, version(name="kept"))
    await make(db, name="by-hand")
    await fire(db)
    for _ in range(5):
        await fleet_clock.advance(days=8)
        waiting, now = await schedules.due(db)
        for each in waiting:
            if each.name == "kept":  # as under stale_schedules = "manual"
                found = each.schedule().due(now, since=each.since, next_at=each.next_at)
                await schedules.fire(db, each, *found)
        await db.fetch("select * from fleet.maintain()")
    assert [known.name for known in await schedules.known(db)] == ["by-hand", "kept"]
    assert [r["name"] for r in await db.fetch("select name::text from fleet.declared")] == ["kept"]


async def test_r11_ticks_are_kept_for_a_month(db, fleet_clock):
    await declare(db, version())
    await schedules.fire_now(db, "nightly", "ann")
    await fleet_clock.advance(days=20)
    await schedules.fire_now(db, "nightly", "ann")
    await fleet_clock.advance(days=11)
    await declare(db, version())
    done = [tuple(row) for row in await db.fetch("select * from fleet.maintain()")]
    assert ("deleted", "tick", 1) in done
    assert len(await schedules.ticks(db, "nightly")) == 1


# ── by hand over the application ─────────────────────────────────────────────────────────────────


async def test_u16_what_is_said_by_hand_beats_the_application_until_it_is_taken_back(db):
    app = version()
    await declare(db, app)
    by_hand = Schedule(name="nightly", cron="15 * * * *", job="report", input="9")
    assert await schedules.add(db, by_hand, "ann@host") == "changed"
    await declare(db, app)
    assert await state(db) == ("15 * * * *", "9", "hand", True)
    assert await schedules.remove(db, "nightly", "ann@host")
    assert await state(db) == ("0 * * * *", "1", "app", True)


async def test_u16_what_an_application_declares_is_removed_in_its_code(db, fleet_clock):
    await declare(db, version())
    with pytest.raises(asyncpg.ObjectNotInPrerequisiteStateError, match="is declared by an app"):
        await schedules.remove(db, "nightly", "ann@host")
    await fleet_clock.advance(minutes=2)
    assert await schedules.remove(db, "nightly", "ann@host"), "once it is stale, anybody may"
    assert await schedules.known(db) == []


async def test_u16_a_pause_outlives_a_deploy(db, fleet_clock):
    await declare(db, version())
    await schedules.pause(db, "nightly", "ann@host")
    await fleet_clock.advance(20)
    await declare(db, version("30 * * * *"))
    (known,) = await schedules.known(db)
    assert (known.cron, known.paused) == ("30 * * * *", True)


async def test_a_schedule_that_somebody_changes_in_an_open_transaction_holds_nobody_up(
    db, dsn, fleet_clock
):
    await declare(db, version())
    other = await asyncpg.connect(dsn)
    async with other.transaction():
        await schedules.pause(other, "nightly", "ann@host")
        await fleet_clock.advance(1)
        async with db.transaction():
            await db.execute("set local lock_timeout = '1s'")
            await declare(db, version("30 * * * *"))
    await other.close()
    await declare(db, version("30 * * * *"))
    assert (await state(db))[0] == "30 * * * *"


async def test_u16_a_schedule_without_an_input_enqueues_null(db):
    app = Fleet("postgresql://unused")

    @app.job("sweep")
    async def sweep(ctx: Context) -> None: ...

    app.schedule("sweeps", "@hourly", sweep)
    await declare(db, app)
    await schedules.fire_now(db, "sweeps", "ann@host")
    assert await db.fetchval("select input::text from fleet.task") == "null"


# ── keys ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("customer", ["ann", None])
async def test_u16_a_key_that_is_computed_comes_with_the_declaration(db, fleet_clock, customer):
    app = Fleet("postgresql://unused")

    @app.job("charge", queue="billing", key=lambda order: order["customer"])
    async def charge(ctx: Context, order: dict) -> None: ...

    app.schedule("monthly", "0 * * * *", charge, {"customer": customer})
    await declare(db, app)
    await fire(db)
    await to_next_hour(db, fleet_clock)
    await fire(db)
    assert await db.fetchval("select key from fleet.task") == customer


# ── autoscalers ──────────────────────────────────────────────────────────────────────────────────


async def backlog(db, queue: str = "reports") -> int:
    return await db.fetchval("select fleet.backlog($1)", queue)


async def test_u16_a_due_tick_is_backlog_also_with_no_replica_left(db, fleet_clock):
    await declare(db, version())
    assert await backlog(db) == 1, "somebody is to say when it is due"
    await fire(db)
    assert await backlog(db) == 0
    await to_next_hour(db, fleet_clock, 12)
    assert await backlog(db) == 1, "all replicas are gone, and it is due"
    assert await backlog(db, "emails") == 0

    # A version without it is here: for an autoscaler it must not be a reason to run for ever.
    await declare(db, version(name="other"))
    waiting, now = await schedules.due(db)
    assert [(each.name, each.declared) for each in waiting] == [("other", True), ("nightly", False)]
    found = waiting[0].schedule().due(now, since=waiting[0].since, next_at=None)
    await schedules.fire(db, waiting[0], *found)
    assert await backlog(db) == 0
