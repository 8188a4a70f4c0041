"""ctx.finish: the outcome on the user's own connection, of any kind, in async and plain steps."""

from __future__ import annotations

import asyncpg
import psycopg
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from fleet import Context, Fleet, Job, Retry
from fleet.testing import drain


@pytest.fixture
async def app(dsn: str, db: asyncpg.Connection) -> Fleet:
    await db.execute("create table ledger (note text)")
    return Fleet(dsn)


async def ledger(db: asyncpg.Connection) -> list[str]:
    return [r["note"] for r in await db.fetch("select note from ledger order by 1")]


async def test_psycopg_in_a_plain_step(app, db, dsn):
    pay: Job[int, str] = app.job("pay")

    @pay.step
    def charge(ctx: Context, amount: int) -> int:
        with psycopg.connect(dsn) as conn:
            conn.execute("insert into ledger values (%s)", (f"charged {amount}",))
            ctx.enqueue("told", amount)
            ctx.finish(amount + 1, conn=conn)
        return -1  # ignored: the outcome is written

    @pay.step
    async def confirm(ctx: Context, amount: int) -> str:
        return f"paid {amount}"

    @app.job("told")
    async def told(ctx: Context, amount: int) -> None: ...

    async with app:
        handle = await pay.enqueue(41)
        drained = await drain(app)
        assert await handle.result(timeout=0) == "paid 42"
    assert await ledger(db) == ["charged 41"]
    assert len(drained.succeeded) == 2


async def test_a_rollback_takes_the_outcome_with_it(app, db, dsn):
    @app.job("pay", retry=Retry(max_attempts=2, initial=0, jitter=0))
    def pay(ctx: Context) -> str:
        with psycopg.connect(dsn) as conn:
            conn.execute("insert into ledger values (%s)", (f"attempt {ctx.attempt}",))
            ctx.finish("done", conn=conn)
            if ctx.attempt == 1:
                raise RuntimeError("after finish, before commit")
        return ""

    async with app:
        handle = await pay.enqueue()
        await drain(app)
        assert await handle.result(timeout=0) == "done"
    assert await ledger(db) == ["attempt 2"]


async def test_a_commit_that_never_came_is_a_failure_that_says_so(app, db, dsn):
    @app.job("pay", retry=Retry(max_attempts=1))
    def pay(ctx: Context) -> None:
        conn = psycopg.connect(dsn)
        conn.execute("insert into ledger values ('never')")
        ctx.finish("done", conn=conn)
        conn.rollback()
        conn.close()

    async with app:
        handle = await pay.enqueue()
        await drain(app)
    error = await db.fetchval("select error->>'message' from fleet.buried where id = $1", handle.id)
    assert "never committed" in error
    assert await ledger(db) == []


async def test_an_exception_after_the_commit_does_not_run_it_again(app, db, dsn):
    @app.job("pay")
    def pay(ctx: Context) -> str:
        with psycopg.connect(dsn) as conn:
            conn.execute("insert into ledger values ('once')")
            ctx.finish("kept", conn=conn)
        raise RuntimeError("too late to matter")

    async with app:
        handle = await pay.enqueue()
        await drain(app)
        assert await handle.result(timeout=0) == "kept"
    assert await ledger(db) == ["once"]


async def test_sqlalchemy_session_in_a_plain_step(app, db, dsn):
    engine = create_engine(dsn.replace("postgresql://", "postgresql+psycopg://"))

    @app.job("pay")
    def pay(ctx: Context) -> dict:
        with Session(engine) as session, session.begin():
            session.execute(text("insert into ledger values ('alchemy')"))
            ctx.finish({"ok": True}, conn=session)

    async with app:
        handle = await pay.enqueue()
        await drain(app)
        assert await handle.result(timeout=0) == {"ok": True}
    assert await ledger(db) == ["alchemy"]
    engine.dispose()


async def test_asyncpg_in_an_async_step(app, db, dsn):
    @app.job("pay")
    async def pay(ctx: Context) -> int:
        conn = await asyncpg.connect(dsn)
        async with conn.transaction():
            await conn.execute("insert into ledger values ('asyncpg')")
            await ctx.finish(5, conn=conn)
        await conn.close()

    async with app:
        handle = await pay.enqueue()
        await drain(app)
        assert await handle.result(timeout=0) == 5
    assert await ledger(db) == ["asyncpg"]


async def test_a_lost_lease_breaks_the_users_transaction(app, db, dsn):
    @app.job("pay", retry=Retry(max_attempts=1))
    def pay(ctx: Context) -> None:
        with psycopg.connect(dsn) as conn:
            conn.execute("insert into ledger values ('late')")
            with psycopg.connect(dsn) as thief:
                thief.execute("update fleet.task set fence = fence + 1")
            ctx.finish(conn=conn)

    async with app:
        await pay.enqueue()
        drained = await drain(app)
    assert await ledger(db) == []
    assert len(drained.lost) == 1
