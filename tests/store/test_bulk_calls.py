"""What people tell the fleet, as Python calls: app.queue(), app.cancel(), app.revive()."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

from fleet import ConfigError, Context, DatabaseError, Fatal, Fleet, InvalidName, InvalidOption
from fleet.people import me
from fleet.store import control
from fleet.testing import drain
from tests.store.test_grants import grant, login, role  # noqa: F401 -- a fixture
from tests.store.test_log import lines


def application(dsn: str) -> Fleet:
    app = Fleet(dsn)

    @app.job("charge", queue="billing")
    async def charge(ctx: Context, card: str) -> str:
        if card == "expired":
            raise Fatal("the card has expired")
        return card

    return app


@pytest.fixture
async def app(dsn: str):
    async with application(dsn) as app:
        yield app
    app.sync.close()


async def said(db) -> list[tuple]:
    return [(o.queue, o.key, o.value) for o in await control.overrides(db)]


async def test_a_queue_is_paused_set_and_left_to_the_files_again(app, db, fleet_clock):
    images = app.queue("images")
    await images.pause(for_=timedelta(hours=1))
    await images.set(limit=20, rate="100/s", for_=7200)
    assert ("images", "paused", True) in await said(db)
    assert ("images", "limit", 20) in await said(db)
    await fleet_clock.advance(3601)
    assert ("images", "paused", True) not in await said(db), "it ends by itself"
    assert not await images.resume()

    await images.pause(until=await fleet_clock.now() + timedelta(minutes=1))
    assert await images.resume()
    assert await images.reset("limit")
    assert [key for _, key, _ in await said(db)] == ["rate"]
    assert await images.reset()
    assert not await images.reset()
    assert [(who, what) for who, what, _, _ in await lines(db)] == [
        (me(), f"queue.{what}") for what in ("pause", "set", "pause", "resume", "reset", "reset")
    ]


@pytest.mark.parametrize("channel", ["fleet_control"])
async def test_whoever_listens_hears_at_once(app, db, channel):
    heard: asyncio.Queue[str] = asyncio.Queue()
    await db.add_listener(channel, lambda *args: heard.put_nowait(args[-1]))
    for tell in (app.queue("images").pause, app.queue("images").resume):
        await tell()
        assert await asyncio.wait_for(heard.get(), 10) == "queue"


async def test_what_cannot_be_is_refused_as_the_command_line_does(app, db):
    images = app.queue("images")
    with pytest.raises(ConfigError, match="concurrency"):
        await images.set(concurrency=0)
    with pytest.raises(ConfigError, match="colour"):
        await images.set(colour="red")
    with pytest.raises(InvalidOption, match="give one or more"):
        await images.set()
    with pytest.raises(InvalidOption, match="not both"):
        await images.pause(for_=1, until=datetime.now(UTC))
    with pytest.raises(InvalidOption, match="is over"):
        await images.pause(until=datetime(2001, 1, 1, tzinfo=UTC))
    with pytest.raises(InvalidOption, match="Give a moment to come"):
        await images.pause(for_=0)
    with pytest.raises(InvalidName):
        app.queue("No Such")
    assert await said(db) == await lines(db) == []


async def test_tasks_are_cancelled_purged_and_revived(app, db):
    charge = app.jobs["charge"]
    one, two, *_ = await charge.enqueue_many(["valid"] * 5)
    assert await app.cancel(one.id, two.id, 4711) == (2, 0)
    assert await app.cancel(job=charge, queue="billing") == (3, 0)
    await charge.enqueue_many(["valid"] * 3)
    assert await app.queue("billing").purge() == 3

    dead = [handle.id for handle in await charge.enqueue_many(["expired"] * 3)]
    await drain(app)
    done = await app.revive(dead[0], 4711)
    assert done.revived == dead[:1]
    assert "no buried task 4711" in done.refused[4711]
    assert (await app.revive(queue="billing", reason="fatal")).revived == dead[1:]
    await drain(app)
    assert (await app.revive(since=datetime(2001, 1, 1, tzinfo=UTC))).revived == dead
    await drain(app)
    assert await app.queue("billing").purge(buried=True) == 3


async def test_the_same_from_code_that_does_not_await(app, db):
    def story() -> None:
        images, billing = app.sync.queue("images"), app.sync.queue("billing")
        images.pause(for_=60)
        images.set(limit=3)
        assert images.resume()
        assert images.reset()
        task = app.sync.enqueue("charge", "valid")
        assert app.sync.cancel(task.id) == (1, 0)
        app.sync.enqueue_many("charge", ["valid"] * 2, key="k")
        assert app.sync.cancel(key="k") == (2, 0)
        app.sync.enqueue("charge", "valid")
        assert billing.purge() == 1
        assert app.sync.revive(queue="billing") == ([], {})

    await asyncio.to_thread(story)


async def test_who_is_meant_must_be_said_one_way(app):
    for wrong in ({}, {"ids": (1,), "queue": "billing"}):
        ids = wrong.pop("ids", ())
        with pytest.raises(InvalidOption, match="give ids, or what they have in common"):
            await app.cancel(*ids, **wrong)
        with pytest.raises(InvalidOption, match="give ids, or what they have in common"):
            await app.revive(*ids, **wrong)
    with pytest.raises(InvalidOption, match="one of exhausted"):
        await app.revive(reason="bored")


async def test_an_app_may_cancel_in_bulk_and_operators_are_workers(dsn, db, role):  # noqa: F811
    await grant(db, "app", role)
    async with application(login(dsn, role)) as app:
        await app.jobs["charge"].enqueue_many(["valid"] * 2)
        assert await app.cancel(job="charge") == (2, 0)
        for forbidden in (
            app.queue("billing").pause(),
            app.queue("billing").purge(),
            app.revive(queue="billing"),
        ):
            with pytest.raises(DatabaseError, match="or worker, to tell queues"):
                await forbidden
    await grant(db, "worker", role)
    async with application(login(dsn, role)) as app:
        await app.queue("billing").pause()
        assert await app.queue("billing").purge() == 0
    assert await db.fetchval("select array_agg(distinct role) from fleet.log") == [role]


async def test_sql_says_the_same(app, db):
    await db.fetch("select fleet.pause('images', until => fleet.now() + '1 h')")
    assert await said(db) == [("images", "paused", True)]
    assert await db.fetchval("select fleet.resume('images')")
    assert not await db.fetchval("select fleet.resume('images')")
    for wrong in ("fleet.pause('No')", "fleet.pause('a', 'yesterday')", "fleet.purge('No')"):
        with pytest.raises(asyncpg.InvalidParameterValueError):
            await db.fetch(f"select {wrong}")
