"""conn= of SQLAlchemy in autocommit, however it came to be, is refused: nothing could roll back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy import Engine, orm
from sqlalchemy.ext import asyncio as sa_asyncio

from fleet import Context, Fleet, Job, errors

AUTOCOMMIT = {"isolation_level": "AUTOCOMMIT"}
BY_THE_DRIVER = {"connect_args": {"autocommit": True}}

# How an engine is brought into autocommit: arguments of create_engine, and options of the engine.
WAYS = {
    "engine": (AUTOCOMMIT, {}),
    "driver": (BY_THE_DRIVER, {}),
    "options": ({}, AUTOCOMMIT),
    "options when made": ({"execution_options": AUTOCOMMIT}, {}),
}
ASYNC_WAYS = [
    *(("psycopg", way) for way in WAYS),
    *(("asyncpg", way) for way in WAYS if way != "driver"),  # it has no such argument
]


@pytest.fixture
def job(dsn: str) -> Job[int, None]:
    @Fleet(dsn).job("resize", queue="images")
    async def resize(ctx: Context, image: int) -> None: ...

    return resize


@pytest.fixture
def engine(dsn: str) -> Iterator[Callable[..., Engine]]:
    made: list[Engine] = []

    def make(**options: Any) -> Engine:
        url = dsn.replace("postgresql:", "postgresql+psycopg:")
        made.append(sqlalchemy.create_engine(url, **options))
        return made[-1]

    yield make
    for each in made:
        each.dispose()


@pytest.mark.parametrize("way", WAYS)
async def test_u04_an_engine_in_autocommit_is_refused(engine, db, job, way):
    made, options = WAYS[way]
    automatic = engine(**made).execution_options(**options)
    with automatic.connect() as conn:
        with pytest.raises(errors.InvalidOption, match="AUTOCOMMIT"):
            await job.enqueue(1, conn=conn)
        with pytest.raises(errors.InvalidOption, match="AUTOCOMMIT"):
            job.app.sync.enqueue(job, 1, conn=conn)
    with (
        orm.Session(automatic) as session,
        pytest.raises(errors.InvalidOption, match="AUTOCOMMIT"),
    ):
        await job.enqueue(1, conn=session)
    assert await db.fetchval("select count(*) from fleet.task") == 0


@pytest.mark.parametrize(("driver", "way"), ASYNC_WAYS)
async def test_u04_an_async_engine_in_autocommit_is_refused(dsn, db, job, driver, way):
    made, options = WAYS[way]
    url = dsn.replace("postgresql:", f"postgresql+{driver}:")
    made_engine = sa_asyncio.create_async_engine(url, **made)
    automatic = made_engine.execution_options(**options)
    async with automatic.connect() as conn:
        with pytest.raises(errors.InvalidOption, match="AUTOCOMMIT"):
            await job.enqueue(1, conn=conn)
    async with sa_asyncio.AsyncSession(automatic) as session:
        with pytest.raises(errors.InvalidOption, match="AUTOCOMMIT"):
            await job.enqueue(1, conn=session)
    await made_engine.dispose()
    assert await db.fetchval("select count(*) from fleet.task") == 0


async def test_a_connection_brought_into_autocommit_is_refused(engine, db, job):
    with engine().connect() as conn:
        conn.execution_options(**AUTOCOMMIT)
        with pytest.raises(errors.InvalidOption, match="AUTOCOMMIT"):
            await job.enqueue(1, conn=conn)
    assert await db.fetchval("select count(*) from fleet.task") == 0


async def test_u04_a_connection_brought_out_of_autocommit_rolls_back(engine, db, job):
    with engine(**AUTOCOMMIT).connect() as conn:
        conn.execution_options(isolation_level="READ COMMITTED")
        await job.enqueue(1, conn=conn)
        conn.rollback()
        assert await db.fetchval("select count(*) from fleet.task") == 0
        await job.enqueue(1, conn=conn)
        conn.commit()
    assert await db.fetchval("select count(*) from fleet.task") == 1


async def test_whether_a_connection_is_in_autocommit_is_known_without_a_question(engine, job):
    asked: list[str] = []
    quiet = engine()
    with quiet.begin() as conn:
        sqlalchemy.event.listen(quiet, "before_cursor_execute", lambda *args: asked.append(args[2]))
        await job.enqueue(1, conn=conn)
    assert len(asked) == 1
