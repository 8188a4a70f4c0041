"""conn=: a task commits and rolls back with the user's own connection, whatever its driver."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy
from psycopg.rows import dict_row
from sqlalchemy import orm
from sqlalchemy.ext import asyncio as sa_asyncio

from fleet import Context, Fleet, Job, errors
from fleet.store.connections import NamedRow, executor_for, is_sync

Opened = Callable[[str], Any]


@pytest.fixture
def job(dsn: str) -> Job[int, None]:
    @Fleet(dsn).job("resize", queue="images")
    async def resize(ctx: Context, image: int) -> None: ...

    return resize


# -- one of each kind: opened in a transaction, which ends by commit unless an error comes ---------


@asynccontextmanager
async def asyncpg_connection(dsn: str) -> AsyncIterator[Any]:
    conn = await asyncpg.connect(dsn)
    try:
        async with conn.transaction():
            yield conn
    finally:
        await conn.close()


@asynccontextmanager
async def asyncpg_pooled(dsn: str) -> AsyncIterator[Any]:
    async with (
        asyncpg.create_pool(dsn, min_size=1, max_size=1) as pool,
        pool.acquire() as conn,
        conn.transaction(),
    ):
        yield conn


@asynccontextmanager
async def psycopg_sync(dsn: str) -> AsyncIterator[Any]:
    with psycopg.connect(dsn) as conn:
        yield conn


@asynccontextmanager
async def psycopg_sync_in_autocommit(dsn: str) -> AsyncIterator[Any]:
    with (
        psycopg.connect(dsn, autocommit=True, row_factory=dict_row) as conn,
        conn.transaction(),
    ):
        yield conn


@asynccontextmanager
async def psycopg_raw_cursors(dsn: str) -> AsyncIterator[Any]:
    with psycopg.connect(dsn, cursor_factory=psycopg.RawCursor) as conn:
        yield conn


@asynccontextmanager
async def psycopg_async(dsn: str) -> AsyncIterator[Any]:
    async with await psycopg.AsyncConnection.connect(dsn, row_factory=dict_row) as conn:
        yield conn


@contextmanager
def engine_for(dsn: str):
    engine = sqlalchemy.create_engine(dsn.replace("postgresql:", "postgresql+psycopg:"))
    try:
        yield engine
    finally:
        engine.dispose()


@asynccontextmanager
async def async_engine_for(dsn: str, driver: str):
    engine = sa_asyncio.create_async_engine(dsn.replace("postgresql:", f"postgresql+{driver}:"))
    try:
        yield engine
    finally:
        await engine.dispose()


@asynccontextmanager
async def sqlalchemy_connection(dsn: str) -> AsyncIterator[Any]:
    with engine_for(dsn) as engine, engine.begin() as conn:
        yield conn


@asynccontextmanager
async def sqlalchemy_session(dsn: str) -> AsyncIterator[Any]:
    with engine_for(dsn) as engine, orm.Session(engine) as session, session.begin():
        yield session


class MySession(orm.Session):
    def execute(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("this application's session.execute does other things")


@asynccontextmanager
async def sqlalchemy_sessionmaker(dsn: str) -> AsyncIterator[Any]:
    with engine_for(dsn) as engine, orm.sessionmaker(engine, class_=MySession).begin() as session:
        yield session


@asynccontextmanager
async def sqlalchemy_scoped(dsn: str) -> AsyncIterator[Any]:
    with engine_for(dsn) as engine:
        registry = orm.scoped_session(orm.sessionmaker(engine))
        try:
            with registry.begin():
                yield registry
        finally:
            registry.remove()


@asynccontextmanager
async def sqlalchemy_async_connection(dsn: str) -> AsyncIterator[Any]:
    async with async_engine_for(dsn, "asyncpg") as engine, engine.begin() as conn:
        yield conn


@asynccontextmanager
async def sqlalchemy_async_psycopg(dsn: str) -> AsyncIterator[Any]:
    async with async_engine_for(dsn, "psycopg") as engine, engine.begin() as conn:
        yield conn


@asynccontextmanager
async def sqlalchemy_async_session(dsn: str) -> AsyncIterator[Any]:
    async with (
        async_engine_for(dsn, "asyncpg") as engine,
        sa_asyncio.async_sessionmaker(engine).begin() as session,
    ):
        yield session


@asynccontextmanager
async def sqlalchemy_async_scoped(dsn: str) -> AsyncIterator[Any]:
    async with async_engine_for(dsn, "asyncpg") as engine:
        maker = sa_asyncio.async_sessionmaker(engine)
        registry = sa_asyncio.async_scoped_session(maker, scopefunc=asyncio.current_task)
        try:
            async with registry.begin():
                yield registry
        finally:
            await registry.remove()


ASYNC: list[Opened] = [
    asyncpg_connection,
    asyncpg_pooled,
    psycopg_async,
    sqlalchemy_async_connection,
    sqlalchemy_async_psycopg,
    sqlalchemy_async_session,
    sqlalchemy_async_scoped,
]
SYNC: list[Opened] = [
    psycopg_sync,
    psycopg_sync_in_autocommit,
    psycopg_raw_cursors,
    sqlalchemy_connection,
    sqlalchemy_session,
    sqlalchemy_sessionmaker,
    sqlalchemy_scoped,
]
every_kind = pytest.mark.parametrize("opened", ASYNC + SYNC, ids=lambda kind: kind.__name__)


class ChangedMyMindError(Exception):
    pass


async def count(db: asyncpg.Connection) -> int:
    return await db.fetchval("select count(*) from fleet.task")


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong", [object(), "postgresql://localhost/shop", 7, sqlalchemy, asyncpg.connect]
)
async def test_anything_else_is_refused_with_what_would_be_right(job, wrong):
    with pytest.raises(errors.InvalidOption, match="asyncpg or psycopg 3") as caught:
        await job.enqueue(1, conn=wrong)
    assert "Django" in str(caught.value)
    with pytest.raises(errors.InvalidOption):
        is_sync(wrong)


async def test_pools_and_engines_are_no_connections(dsn, job):
    async with asyncpg.create_pool(dsn, min_size=0) as pool:
        with pytest.raises(errors.InvalidOption, match="not a connection"):
            await job.enqueue(1, conn=pool)
    with engine_for(dsn) as engine, pytest.raises(errors.InvalidOption, match="not a connection"):
        await job.enqueue(1, conn=engine)


async def test_a_bare_asyncpg_connection_outside_a_transaction_is_refused(db, job):
    with pytest.raises(errors.InvalidOption, match=r"conn\.transaction\(\)"):
        await job.enqueue(1, conn=db)
    assert await count(db) == 0


async def test_psycopg_in_autocommit_outside_a_transaction_is_refused(dsn, db, job):
    refusal = pytest.raises(errors.InvalidOption, match=r"conn\.transaction\(\)")
    with psycopg.connect(dsn, autocommit=True) as conn, refusal:
        await job.enqueue(1, conn=conn)
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
        with pytest.raises(errors.InvalidOption, match=r"conn\.transaction\(\)"):
            await job.enqueue(1, conn=conn)
    assert await count(db) == 0


async def test_sqlalchemy_on_another_database_is_refused(job):
    engine = sqlalchemy.create_engine("sqlite://")
    with engine.connect() as conn, pytest.raises(errors.InvalidOption, match="sqlite"):
        await job.enqueue(1, conn=conn)
    engine.dispose()


@every_kind
async def test_a_refusal_of_the_server_is_ours_and_keeps_the_drivers(opened, dsn, db, job):
    with pytest.raises(errors.InvalidName, match="lower-case letter") as caught:
        async with opened(dsn) as conn:
            await job.app._client.enqueue(job, bad(job), conn)
    assert caught.value.__cause__ is not None
    assert not isinstance(caught.value.__cause__, errors.FleetError)
    assert await count(db) == 0


def bad(job: Job[int, None]):
    submission = job.submission(1)
    object.__setattr__(submission, "queue", "Not Allowed")
    return submission


async def test_what_is_not_about_our_call_stays_the_drivers(dsn, job):
    with psycopg.connect(dsn) as conn:
        with pytest.raises(psycopg.errors.DivisionByZero):
            conn.execute("select 1 / 0")
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            await job.enqueue(1, conn=conn)


# -- commit and rollback ---------------------------------------------------------------------------


@every_kind
async def test_u04_a_task_is_there_when_the_connection_commits(opened, dsn, db, job):
    async with opened(dsn) as conn:
        handle = await job.enqueue(1, delay=60, key="k", conn=conn)
        many = await job.enqueue_many([2, 3], conn=conn)
        unique = await job.enqueue(4, unique="four", priority=5, conn=conn)
        again = await job.enqueue(5, unique="four", conn=conn)
        assert await count(db) == 0, "nobody sees it before the commit"
    rows = await db.fetch("select id, input::int, state from fleet.task order by id")
    assert [row["input"] for row in rows] == [1, 2, 3, 4]
    assert [row["id"] for row in rows] == [handle.id, many[0].id, many[1].id, unique.id]
    assert (again.id, again.created) == (unique.id, False)
    assert rows[0]["state"] == "deferred"


@every_kind
async def test_u04_a_task_is_gone_when_the_connection_rolls_back(opened, dsn, db, job):
    with pytest.raises(ChangedMyMindError):
        async with opened(dsn) as conn:
            await job.enqueue(1, conn=conn)
            await job.enqueue_many([2, 3], conn=conn)
            await job.enqueue(4, unique="four", conn=conn)
            raise ChangedMyMindError
    assert await count(db) == 0


@every_kind
async def test_rows_read_by_name_by_position_and_in_order(opened, dsn):
    query = "select $1::int as a, $2::text as b, 7 % 4 as c, $3::text[]::interval[] is null as d"
    async with opened(dsn) as conn:
        (row,) = await executor_for(conn).fetch(query, 1, "x", None)
    assert (row["a"], row["b"], row[2], row[3]) == (1, "x", 3, True)
    assert list(row) == [1, "x", 3, True]


@every_kind
async def test_a_statement_without_rows_returns_none(opened, dsn):
    async with opened(dsn) as conn:
        assert list(await executor_for(conn).fetch("create temp table t (n int)")) == []


@pytest.mark.parametrize("opened", ASYNC, ids=lambda kind: kind.__name__)
async def test_async_kinds_are_told_apart_and_refused_by_the_facade(opened, dsn, db, job):
    async with opened(dsn) as conn:
        assert not is_sync(conn)
        with pytest.raises(errors.InvalidOption, match="it is async"):
            job.app.sync.enqueue(job, 1, conn=conn)
    assert await count(db) == 0


@pytest.mark.parametrize("opened", SYNC, ids=lambda kind: kind.__name__)
async def test_sync_kinds_serve_the_facade_without_a_thread(opened, dsn, db, job):
    async with opened(dsn) as conn:
        assert is_sync(conn)
        handle = job.app.sync.enqueue(job, 1, conn=conn)
        many = job.app.sync.enqueue_many(job, [2, 3], conn=conn)
        assert job.app.sync._runner is None
    ids = [row[0] for row in await db.fetch("select id from fleet.task order by id")]
    assert ids == [handle.id, *(each.id for each in many)]


def test_a_named_row_knows_its_columns():
    row = NamedRow(["a", "b"], (1, 2))
    assert (row["b"], row[0], list(row)) == (2, 1, [1, 2])
    with pytest.raises(ValueError, match="'c' is not in list"):
        row["c"]


def test_no_driver_is_imported_for_itself():
    script = (
        "import sys, fleet.client.sync, fleet.store.connections, fleet.django\n"
        "print([m for m in ('psycopg', 'sqlalchemy', 'django', 'django.db') if m in sys.modules])"
    )
    said = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert said.stdout.strip() == "[]"


# -- statement(): the same for whoever executes it themselves --------------------------------------


async def test_p03_a_statement_runs_on_asyncpg(db, job):
    sql, params = job.statement(1, delay=60, unique="one", key="k")
    task = await db.fetchval(sql, *params)
    row = await db.fetchrow("select id, state, key, unique_slot from fleet.task")
    assert tuple(row) == (task, "deferred", "k", "one")


async def test_p03_a_statement_runs_on_psycopg(dsn, db, job):
    with psycopg.connect(dsn) as conn:
        task = conn.execute(*job.statement(1, priority=3, style="psycopg")).fetchone()[0]
    assert tuple(await db.fetchrow("select id, priority from fleet.task")) == (task, 3)


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_p03_a_statement_runs_in_sqlalchemys_text(dsn, db, job, driver):
    sql, params = job.statement(1, delay=60, style="named")
    async with async_engine_for(dsn, driver) as engine, engine.begin() as conn:
        task = (await conn.execute(sqlalchemy.text(sql), params)).scalar_one()
    assert tuple(await db.fetchrow("select id, state from fleet.task")) == (task, "deferred")
