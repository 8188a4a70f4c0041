"""Enqueues under ``unique`` that wait for an application's open transaction: F36 for clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from fleet import Context, Fleet, errors
from fleet.client import Client
from fleet.errors import UniqueBlocked
from tests.store.test_client import _WAITS, until

HELD = 12  # many more than the client has connections


@pytest.fixture
def app(dsn: str) -> Fleet:
    app = Fleet(dsn)

    @app.job("resize", queue="images")
    async def resize(ctx: Context, image: int) -> None: ...

    return app


@pytest.fixture
async def holder(app: Fleet, dsn: str) -> AsyncIterator[asyncpg.transaction.Transaction]:
    """Another application's open transaction, which has enqueued under many unique names."""
    conn = await asyncpg.connect(dsn, server_settings={"application_name": "forgetful"})
    transaction = conn.transaction()
    await transaction.start()
    for n in range(HELD):
        await app.jobs["resize"].enqueue(n, unique=f"held-{n}", conn=conn)
    yield transaction
    await conn.close()


async def blocked(app: Fleet, db: asyncpg.Connection) -> list[asyncio.Task]:
    """Enqueue under names that are held; return once somebody waits in the server."""
    job = app.jobs["resize"]
    calls = [asyncio.create_task(job.enqueue(n, unique=f"held-{n}")) for n in range(HELD)]
    await until(lambda: db.fetchval(_WAITS))
    return calls


async def test_f36_blocked_unique_enqueues_leave_the_client_to_everybody_else(app, db, holder):
    app._opened = Client(app, budget=60.0)
    job = app.jobs["resize"]
    async with app:
        first = await job.enqueue(0)
        calls = await blocked(app, db)

        assert (await first.status()).state == "ready"
        assert len(await job.enqueue_many([1, 2])) == 2
        assert (await job.enqueue(3, unique="free")).created, "it gets its turn among the blocked"
        assert not any(call.done() for call in calls)
        await holder.rollback()
        assert all(handle.created for handle in await asyncio.gather(*calls))


async def test_f36_when_the_holder_commits_its_task_is_found(app, db, holder):
    app._opened = Client(app, budget=60.0)
    async with app:
        call = asyncio.create_task(app.jobs["resize"].enqueue(0, unique="held-0"))
        await until(lambda: db.fetchval(_WAITS))
        await holder.commit()
        handle = await call
    assert not handle.created
    assert await db.fetchval("select count(*) from fleet.task where id = $1", handle.id) == 1


async def test_f36_who_waits_too_long_is_told_for_whom(app, db, holder):
    app._opened = Client(app, budget=3.0)
    async with app:
        with pytest.raises(UniqueBlocked) as caught:
            await app.jobs["resize"].enqueue(0, unique="held-0")
    said = str(caught.value)
    pid = holder._connection.get_server_pid()
    assert "'held-0'" in said
    assert f"process {pid} (forgetful, idle in transaction" in said
    assert f"pg_terminate_backend({pid})" in said
    assert not isinstance(caught.value, errors.DatabaseUnavailable)
    await holder.rollback()
    assert await db.fetchval("select count(*) from fleet.task") == 0, "nothing was written"


async def test_f36_who_never_had_a_turn_is_told_why(app, db, holder):
    app._opened = Client(app, budget=0.6, connections=1)
    async with app:
        ends = await asyncio.gather(
            *(app.jobs["resize"].enqueue(n, unique=f"held-{n}") for n in range(HELD)),
            return_exceptions=True,
        )
    assert {type(end) for end in ends} == {UniqueBlocked}
    assert all("Nothing was written" in str(end) for end in ends)


async def test_f36_what_waits_for_a_lock_leaves_no_setting_behind(app, db, holder):
    app._opened = Client(app, budget=0.5, connections=1)
    async with app:
        with pytest.raises(UniqueBlocked):
            await app.jobs["resize"].enqueue(0, unique="held-0")
        assert (await app.jobs["resize"].enqueue(0, unique="free")).created
        others = app._opened._opened.others
        assert await others.run(lambda conn: conn.fetchval("show lock_timeout")) == "0"
