"""A drain outlives what steps do wrong: each is a failure of its attempt, and says what it was."""

from __future__ import annotations

from decimal import Decimal

import asyncpg
import psycopg
import pytest

from fleet import Context, Fleet, Job, Retry
from fleet.store.enqueue import insert_many
from fleet.testing import drain

ONCE = Retry(max_attempts=1)


async def drained_error(app: Fleet, db: asyncpg.Connection, job: Job) -> tuple[str, str]:
    """Drain one task of ``job``, which must be buried; return its error's type and message."""
    await insert_many(db, [job.submission()])
    drained = await drain(app)
    assert len(drained.buried) == 1
    sql = "select error ->> 'type', error ->> 'message' from fleet.buried"
    kind, message = await db.fetchrow(sql)
    assert await db.fetchval("select count(*) from fleet.task") == 0
    return kind, message


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        (Decimal(1), "must be a str"),
        (7, "must be a str"),
        ("", "must not be empty"),
        ("x" * 300, "at most"),
        ("a\0b", "no NUL"),
        ("\ud800", "lone surrogates"),
    ],
)
async def test_a_key_of_a_wrong_kind_is_a_failure(dsn, db, key, hint):
    app = Fleet(dsn)
    keyed: Job[None, int] = app.job("keyed", retry=ONCE)

    @keyed.step
    async def first(ctx: Context) -> int:
        return 1

    @keyed.step(key=lambda n: key)
    async def second(ctx: Context, n: int) -> int:
        return n

    kind, message = await drained_error(app, db, keyed)
    assert kind == "InvalidOption"
    assert message.startswith("step 'second': key=")
    assert hint in message


async def test_a_key_function_may_say_that_there_is_none(dsn, db):
    app = Fleet(dsn)
    keyed: Job[None, int] = app.job("keyed", retry=ONCE)

    @keyed.step
    async def first(ctx: Context) -> int:
        return 1

    @keyed.step(key=lambda n: None)
    async def second(ctx: Context, n: int) -> int:
        return n

    await insert_many(db, [keyed.submission()])
    assert len((await drain(app)).succeeded) == 1


@pytest.mark.parametrize(
    ("message", "kept"),
    [("a\0b", r"a\0b"), ("\ud800", r"\ud800"), ("x" * 5_000, "x" * 4_000)],
    ids=["nul", "surrogate", "long"],
)
async def test_progress_is_kept_as_a_worker_keeps_it(dsn, db, message, kept):
    app = Fleet(dsn)
    seen: list[str] = []

    @app.job("reports", retry=ONCE)
    async def reports(ctx: Context) -> None:
        ctx.progress(0.5, message)
        sql = "select progress ->> 'message' from fleet.task"
        while (row := await db.fetchval(sql)) is None:
            pass
        seen.append(row)

    await insert_many(db, [reports.submission()])
    assert len((await drain(app)).succeeded) == 1
    assert seen == [kept]


async def test_an_exception_that_cannot_be_read_is_a_failure(dsn, db):
    app = Fleet(dsn)

    class Unreadable(Exception):
        def __str__(self) -> str:
            raise ValueError("no words")

    @app.job("unreadable", retry=ONCE)
    async def unreadable(ctx: Context) -> None:
        raise Unreadable

    kind, message = await drained_error(app, db, unreadable)
    assert kind.endswith("Unreadable")
    assert message == "its message could not be read: its __str__ raised ValueError"


@pytest.mark.parametrize("commits", [True, False])
async def test_enqueue_after_finish_is_refused(dsn, db, caplog, commits):
    app = Fleet(dsn)

    @app.job("child")
    async def child(ctx: Context) -> None: ...

    @app.job("parent", retry=ONCE)
    def parent(ctx: Context) -> None:
        with psycopg.connect(dsn) as conn:
            ctx.finish(conn=conn)
            if commits:
                conn.commit()
            ctx.enqueue(child)

    await insert_many(db, [parent.submission()])
    drained = await drain(app)
    assert (len(drained.succeeded), len(drained.buried)) == ((1, 0) if commits else (0, 1))
    # What is raised after the commit changes nothing, so it is in the log as well.
    assert "before ctx.finish" in caplog.text


async def test_enqueue_between_an_async_finish_and_its_await_is_refused(dsn, db):
    app = Fleet(dsn)

    @app.job("parent", retry=ONCE)
    async def parent(ctx: Context) -> None:
        conn = await asyncpg.connect(dsn)
        try:
            async with conn.transaction():
                finishing = ctx.finish(conn=conn)
                try:
                    ctx.enqueue("parent")
                finally:
                    await finishing
        finally:
            await conn.close()

    assert "before ctx.finish" in (await drained_error(app, db, parent))[1]


async def test_a_finish_that_failed_leaves_enqueue_as_it_was(dsn, db):
    app = Fleet(dsn)

    @app.job("child")
    async def child(ctx: Context) -> None: ...

    @app.job("parent", retry=ONCE)
    def parent(ctx: Context) -> None:
        with psycopg.connect(dsn) as conn, pytest.raises(psycopg.Error):
            conn.close()
            ctx.finish(conn=conn)
        ctx.enqueue(child)

    await insert_many(db, [parent.submission()])
    assert len((await drain(app)).succeeded) == 2


@pytest.mark.parametrize("kind", ["async", "def"])
@pytest.mark.filterwarnings("error::RuntimeWarning")
async def test_a_finish_that_nobody_awaited_is_a_failure(dsn, db, kind):
    app = Fleet(dsn)

    @app.job("async", retry=ONCE)
    async def awaits(ctx: Context) -> str:
        conn = await asyncpg.connect(dsn)
        async with conn.transaction():
            ctx.finish("lost", conn=conn)
        await conn.close()
        return "fell through"

    @app.job("def", retry=ONCE)
    def plain(ctx: Context) -> str:
        ctx.finish("lost", conn=other)
        return "fell through"

    other = await asyncpg.connect(dsn)
    async with other.transaction():
        _, message = await drained_error(app, db, app.jobs[kind])
    await other.close()
    assert "await ctx.finish" in message
