"""Failures as they come."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime

import asyncpg
import pytest

from fleet import Context, Fleet, errors
from fleet.lifecycle import Failed
from fleet.model import Failure
from tests.store.conftest import ALICE, Table

ERROR = Failure(type="ValueError", message="bad", traceback="Traceback …")


@dataclass
class Size:
    width: int
    height: int


@pytest.fixture
def app(dsn: str) -> Fleet:
    app = Fleet(dsn)

    @app.job("resize", queue="images")
    async def one(ctx: Context, image: int) -> Size: ...

    return app


class Follower:
    """Reads ``app.failures()`` on the side."""

    def __init__(self, app: Fleet, since: datetime | None = None) -> None:
        self._failures = app.failures(since, interval=0.02)

    async def next(self):
        async with asyncio.timeout(10):
            return await anext(self._failures)

    async def nothing_more(self) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await anext(self._failures)


async def test_p14_a_naive_since_is_refused(app):
    async with app:
        with pytest.raises(errors.InvalidOption, match="naive"):
            await Follower(app, datetime(2030, 1, 1)).next()


async def test_p14_every_failure_and_the_burial_come_once(app, table, fleet_clock):
    async with app:
        handle = await app.jobs["resize"].enqueue(7)
        start = await table.db.fetchval("select fleet.now()")
        follower = Follower(app, start)
        for attempt in range(1, 6):
            await table.settle(ALICE, (await table.claim_one(), Failed(ERROR)))
            failure = await follower.next()
            assert (failure.task_id, failure.attempt) == (handle.id, attempt)
            assert (failure.job, failure.step, failure.queue) == ("resize", "one", "images")
            assert failure.error == ERROR
            assert failure.final == (attempt == 5)
            assert failure.outcome == ("exhausted" if attempt == 5 else "failed")
            await fleet_clock.advance(70)
        await follower.nothing_more()

        again = Follower(app, start)
        assert [(await again.next()).attempt for _ in range(5)] == [1, 2, 3, 4, 5]


async def test_p14_without_since_what_was_before_is_not_shown(app, table, fleet_clock):
    async with app:
        await app.jobs["resize"].enqueue(7)
        await table.settle(ALICE, (await table.claim_one(), Failed(ERROR)))
        follower = Follower(app)
        reading = asyncio.create_task(follower.next())
        async with asyncio.timeout(10):
            while not await table.db.fetchval(_HAS_LOOKED):  # noqa: ASYNC110 -- it is far away
                await asyncio.sleep(0.01)
        await fleet_clock.advance(70)
        await table.settle(ALICE, (await table.claim_one(), Failed(ERROR)))
        assert (await reading).attempt == 2


_HAS_LOOKED = """
select count(*) > 0 from pg_stat_activity
 where datname = current_database() and application_name = 'fleet client' and state = 'idle'
   and query like '%from fleet.attempt%'
"""


async def test_p14_a_late_commit_is_not_missed(app, table, dsn):
    async with app:
        await app.jobs["resize"].enqueue_many([1, 2])
        start = await table.db.fetchval("select fleet.now()")
        follower = Follower(app, start)
        early, late = await table.claim(limit=2)
        slow = Table(await asyncpg.connect(dsn), table.policy)
        transaction = slow.db.transaction()
        await transaction.start()
        await slow.settle(ALICE, (early, Failed(ERROR)))
        await table.settle(ALICE, (late, Failed(ERROR)))

        assert (await follower.next()).task_id == late.id
        await transaction.commit()
        shown = await follower.next()
        assert shown.task_id == early.id
        await follower.nothing_more()
        await slow.db.close()


async def test_p14_more_failures_than_a_page_holds_all_come_once(app, table):
    start = await table.db.fetchval("select fleet.now()")
    ids = await table.enqueue(*["1"] * 1_200)
    claims = await table.claim(limit=1_200)
    await table.settle(ALICE, *((claim, Failed(ERROR)) for claim in claims))
    async with app:
        follower = Follower(app, start)
        assert sorted([(await follower.next()).task_id for _ in ids]) == sorted(ids)
        await follower.nothing_more()


async def test_p14_it_ends_when_the_application_closes(app):
    await app.open()
    follower = asyncio.create_task(Follower(app).next())
    await asyncio.sleep(0)
    await app.close()
    with pytest.raises(StopAsyncIteration):
        await follower


async def test_p14_it_survives_the_end_of_its_connection(app, table):
    start = await table.db.fetchval("select fleet.now()")
    await table.enqueue("1", "2")
    async with app:
        follower = Follower(app, start)
        for _ in range(2):
            await table.settle(ALICE, (await table.claim_one(), Failed(ERROR)))
            await follower.next()
            await table.db.execute("""
                select pg_terminate_backend(pid) from pg_stat_activity
                 where application_name = 'fleet client' and datname = current_database()
            """)
