"""Repeats under unique, in every way Python has to enqueue (U07)."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import asyncpg
import pytest

from fleet import Context, Fleet, InvalidOption, UniqueBlocked
from fleet.client import Client
from fleet.testing import drain


@pytest.fixture
async def app(dsn: str):
    app = Fleet(dsn)

    @app.job("index", queue="search")
    async def index(ctx: Context, page: int) -> int:
        return page

    @app.job("edit", queue="search")
    async def edit(ctx: Context, page: int) -> None:
        ctx.enqueue("index", page, unique="pages", on_repeat="push_back", delay=10)

    async with app:
        yield app
    app.sync.close()


DEBOUNCED = {"unique": "pages", "on_repeat": "push_back", "delay": 10}


async def tasks(db) -> list[tuple]:
    return [tuple(row) for row in await db.fetch("select state, input from fleet.task order by id")]


async def test_u07_every_way_to_enqueue_debounces(app, db, dsn, fleet_clock):
    index = app.jobs["index"]
    first = await index.enqueue(1, **DEBOUNCED)
    assert first.created
    assert await tasks(db) == [("deferred", "1")]

    again = await index.enqueue(2, **DEBOUNCED)
    assert (again.id, again.created) == (first.id, False)
    assert await tasks(db) == [("deferred", "2")]

    assert not (await asyncio.to_thread(app.sync.enqueue, index, 3, **DEBOUNCED)).created
    assert await tasks(db) == [("deferred", "3")]

    conn = await asyncpg.connect(dsn)
    async with conn.transaction():
        assert not (await index.enqueue(4, conn=conn, **DEBOUNCED)).created
    sql, params = index.statement(5, **DEBOUNCED)
    assert await conn.fetchval(sql, *params) == first.id
    await conn.close()
    assert await tasks(db) == [("deferred", "5")]

    edit = await app.jobs["edit"].enqueue(8)
    await drain(app, clock=fleet_clock)
    assert (await edit.status()).state == "succeeded"
    assert await first.result(timeout=1) == 8


async def test_u07_a_period_in_python(app, db, fleet_clock):
    index = app.jobs["index"]
    first = await index.enqueue(1, unique="pages", unique_for=60)
    await drain(app)
    again = await index.enqueue(2, unique="pages", unique_for=60)
    assert (again.id, again.created) == (first.id, False)
    assert await again.result(timeout=1) == 1
    await fleet_clock.advance(61)
    assert (await index.enqueue(3, unique="pages", unique_for=60)).created


async def test_u07_what_makes_no_sense_is_refused_before_it_is_sent(app):
    with pytest.raises(InvalidOption, match="on_repeat='push_back': give delay= too"):
        await app.jobs["index"].enqueue(1, unique="pages", on_repeat="push_back")
    with pytest.raises(InvalidOption, match="unique_scope= or unique_for="):
        await app.jobs["index"].enqueue(
            1, unique="pages", unique_for=60, unique_scope="while_waiting"
        )


@asynccontextmanager
async def repeated_elsewhere(dsn: str, index):
    """Hold the waiting task by a repeat whose transaction does not end."""
    conn = await asyncpg.connect(dsn)
    transaction = conn.transaction()
    await transaction.start()
    await index.enqueue(2, conn=conn, **DEBOUNCED)
    try:
        yield transaction
    finally:
        await conn.close()


async def test_f36_a_repeat_behind_an_open_one_waits_its_turn_and_says_for_whom(app, db, dsn):
    index = app.jobs["index"]
    await index.enqueue(1, **DEBOUNCED)
    impatient = Client(app, budget=0.5)
    await impatient.open()
    async with repeated_elsewhere(dsn, index):
        with pytest.raises(UniqueBlocked):
            await impatient.enqueue(index, index.submission(3, **DEBOUNCED))
        plain = await impatient.enqueue(index, index.submission(4))
        assert plain.created, "and nobody else waits with it"
    await impatient.close()


async def test_u07_repeats_in_open_transactions_come_one_after_another(app, db, dsn):
    index = app.jobs["index"]
    await index.enqueue(1, **DEBOUNCED)
    async with repeated_elsewhere(dsn, index) as transaction:
        later = asyncio.create_task(index.enqueue(3, **DEBOUNCED))
        await transaction.commit()
    assert not (await later).created
    assert await tasks(db) == [("deferred", "3")]
