"""fleet.testing itself: drain on an open connection, lifespans, middleware, progress, contexts."""

from __future__ import annotations

import contextlib
import threading

import asyncpg
import psycopg
import pytest

from fleet import Context, Fatal, Fleet, FleetError, Job, Retry, To
from fleet.store.enqueue import insert_many
from fleet.testing import drain, drain_sync, make_context


async def test_everything_runs_inside_an_open_transaction_and_rolls_back(dsn, db):
    app = Fleet(dsn)
    two: Job[int, int] = app.job("two")

    @two.step
    async def first(ctx: Context, n: int) -> int:
        return n + 1

    @two.step(transactional=True)
    async def second(ctx: Context, n: int) -> int:
        await ctx.tx.execute("insert into notes values ($1)", n)
        return n

    await db.execute("create table notes (n int)")
    transaction = db.transaction()
    await transaction.start()
    await two.enqueue(1, conn=db)
    drained = await drain(app, conn=db)
    assert len(drained.succeeded) == 1
    assert await db.fetchval("select n from notes") == 2
    await transaction.rollback()
    for table in ("notes", "fleet.task", "fleet.archive", "fleet.owner"):
        assert await db.fetchval(f"select count(*) from {table}") == 0


def test_drain_sync_on_a_connection_that_blocks(dsn):
    app = Fleet(dsn)

    @app.job("double")
    def double(ctx: Context, n: int) -> int:
        return n * 2

    with psycopg.connect(dsn) as conn:
        app.sync.enqueue(double, 21, conn=conn)
        assert len(drain_sync(app, conn=conn).succeeded) == 1
        (result,) = conn.execute("select result::text from fleet.archive").fetchone()
        assert result == "42"
        conn.rollback()
    assert drain_sync(app).attempts == 0


async def cancelled_while_it_runs(dsn: str, job: Job[int, object], **options):
    """Drain one task that is cancelled by its own first step, as by somebody from outside."""
    app = job.app
    async with app:
        handle = await job.enqueue(1)
        drained = await drain(app, **options)
        status = await handle.status()
    conn = await asyncpg.connect(dsn)
    wishes = await conn.fetchval("select count(*) from fleet.cancellation")
    await conn.close()
    assert wishes == 0, "the wish is granted or too late, and gone"
    return handle.id, drained, status


async def ask_to_cancel(dsn: str, task_id: int) -> None:
    conn = await asyncpg.connect(dsn)
    assert await conn.fetchval("select fleet.cancel($1)", task_id) == "requested"
    await conn.close()


async def test_a_step_that_fails_after_a_cancel_is_not_tried_again(dsn, db, fleet_clock):
    app, tries = Fleet(dsn), []

    @app.job("flaky")
    async def flaky(ctx: Context, n: int) -> None:
        tries.append(ctx.attempt)
        await ask_to_cancel(dsn, ctx.task_id)
        raise ValueError("down")

    task, drained, status = await cancelled_while_it_runs(dsn, flaky, clock=fleet_clock)
    assert (drained.cancelled, status.state, tries) == ([task], "cancelled", [1])


@pytest.mark.parametrize("transactional", [False, True])
async def test_a_step_that_goes_on_after_a_cancel_is_the_last(dsn, db, transactional):
    app, ran = Fleet(dsn), []
    chain: Job[int, int] = app.job("chain", keep=86_400)

    @app.job("audit")
    async def audit(ctx: Context) -> None: ...

    @chain.step(transactional=transactional)
    async def first(ctx: Context, n: int) -> int:
        ran.append("first")
        ctx.enqueue(audit)
        await ask_to_cancel(dsn, ctx.task_id)
        return n

    @chain.step
    async def second(ctx: Context, n: int) -> int:
        ran.append("second")
        return n

    task, drained, status = await cancelled_while_it_runs(dsn, chain)
    assert ran == ["first"]
    assert (drained.cancelled, status.state, status.step) == ([task], "cancelled", "second")
    assert len(drained.succeeded) == 1, "what the step enqueued was written with its outcome"
    kept = await db.fetchval(
        "select extract(epoch from keep_until - finished_at)::int from fleet.archive where id = $1",
        task,
    )
    assert kept == 86_400


async def test_a_step_that_ends_its_task_after_a_cancel_has_ended_it(dsn, db):
    app = Fleet(dsn)

    @app.job("last")
    async def last(ctx: Context, n: int) -> int:
        await ask_to_cancel(dsn, ctx.task_id)
        return n

    task, drained, status = await cancelled_while_it_runs(dsn, last)
    assert (drained.succeeded, drained.cancelled, status.state) == ([task], [], "succeeded")


async def test_a_def_step_that_timed_out_does_not_hold_up_the_next(dsn, db):
    app = Fleet(dsn)
    end = threading.Event()

    @app.job("stuck", timeout=0.05, retry=Retry(max_attempts=1), priority=1)
    def stuck(ctx: Context) -> None:
        end.wait(30)

    @app.job("quick", timeout=5, retry=Retry(max_attempts=1))
    def quick(ctx: Context) -> None: ...

    await insert_many(db, [stuck.submission(), quick.submission()])
    drained = await drain(app)
    end.set()
    assert (len(drained.buried), len(drained.succeeded)) == (1, 1)


async def test_a_job_that_loops_for_ever_fails_its_test(dsn, db):
    app = Fleet(dsn)

    @app.job("loop")
    async def loop(ctx: Context) -> To[None]:
        return To.step("loop")

    await insert_many(db, [loop.submission()])
    with pytest.raises(FleetError, match="50 attempts and no end"):
        await drain(app, limit=50)


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_the_lifespan_is_entered_once_and_what_it_yields_is_the_state(dsn, db, kind):
    events: list[str] = []

    @contextlib.contextmanager
    def plain():
        events.append("up")
        yield {"client": "http"}
        events.append("down")

    @contextlib.asynccontextmanager
    async def asynchronous():
        with plain() as state:
            yield state

    app = Fleet(dsn, lifespan=plain if kind == "plain" else asynchronous)

    @app.job("uses-state")
    async def uses(ctx: Context) -> None:
        events.append(ctx.state["client"])

    await insert_many(db, [uses.submission()] * 2)
    await drain(app)
    assert events == ["up", "http", "http", "down"]


async def test_middleware_wraps_every_attempt_in_order(dsn, db):
    events: list[str] = []

    async def outer(ctx, call_next):
        events.append(f"outer {ctx.step}")
        try:
            return await call_next()
        except ValueError as error:
            raise Fatal("translated") from error

    async def inner(ctx, call_next):
        events.append("inner")
        return await call_next()

    app = Fleet(dsn, middleware=[outer, inner])

    @app.job("good")
    def good(ctx: Context) -> int:
        events.append("step")
        return 1

    @app.job("bad")
    async def bad(ctx: Context) -> None:
        raise ValueError

    await insert_many(db, [good.submission(), bad.submission()])
    drained = await drain(app)
    assert events == ["outer good", "inner", "step", "outer bad", "inner"]
    assert len(drained.buried) == 1


async def test_progress_is_in_the_row_while_the_step_runs(dsn, db):
    app = Fleet(dsn)
    seen: list[str | None] = []

    @app.job("long")
    async def long(ctx: Context) -> None:
        ctx.progress(0.4, "rendering")
        conn = await asyncpg.connect(dsn)
        while (row := await conn.fetchval("select progress::text from fleet.task")) is None:
            pass
        seen.append(row)
        await conn.close()

    await insert_many(db, [long.submission()])
    await drain(app)
    assert seen == ['{"message": "rendering", "fraction": 0.4}']


async def test_a_step_is_a_function_that_a_unit_test_calls():
    app = Fleet()

    @app.job("child")
    async def child(ctx: Context, n: int) -> None: ...

    @app.job("parent")
    async def parent(ctx: Context, n: int) -> int:
        ctx.progress(0.5)
        ctx.enqueue(child, n)
        return n + ctx.attempt

    context = make_context(app=app, attempt=3)
    assert await parent.fn(context, 1) == 4
    assert [s.job for s in context.enqueued] == ["child"]
    assert context.progressed == [(0.5, "")]
    for wrong in (-0.1, 1.1, float("nan"), True, "half"):
        with pytest.raises(FleetError, match="0 to 1"):
            context.progress(wrong)
