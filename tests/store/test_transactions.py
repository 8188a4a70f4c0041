"""Steps and their connections: transactions that break, stay open, are many, or take long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime, timedelta

import asyncpg
import psycopg
import pytest

from fleet import Context, Fleet, FleetError, Job, Retry, To
from fleet.lifecycle import Advance, Bury, Finish, PutBack
from fleet.store.failures import is_disconnect
from fleet.testing import drain
from fleet.worker import transactions as module
from fleet.worker.runner import Runner
from fleet.worker.transactions import Transactions
from tests.store.conftest import ALICE, Table

CONCURRENCY = 10


@pytest.fixture
def app(dsn: str) -> Fleet:
    return Fleet(dsn)


@pytest.fixture
async def pool(dsn: str) -> AsyncIterator[Transactions]:
    made = Transactions(dsn, ALICE, limit=CONCURRENCY, patience=5.0)
    yield made
    made.close()


@pytest.fixture
async def runner(app: Fleet, pool: Transactions) -> AsyncIterator[Runner]:
    made = Runner(app, ALICE, "worker-1", connect=pool.connect, look=pool.look)
    yield made
    made.close()


def end_of(backend: int, dsn: str) -> None:
    """End a server process at once, without a turn of the event loop in which it could show."""
    with psycopg.connect(dsn, autocommit=True) as other:
        other.execute("select pg_terminate_backend(%s, 5000)", (backend,))


# ── ctx.finish without a commit ──────────────────────────────────────────────────────────────────


def never_commits(app: Fleet, left_open: list[psycopg.Connection], dsn: str) -> None:
    @app.job("resize", queue="images", retry=Retry(max_attempts=1))
    def one(ctx: Context, n: int) -> None:
        conn = psycopg.connect(dsn)
        left_open.append(conn)
        ctx.finish(n, conn=conn)


async def test_a_transaction_that_the_step_left_open_is_told_and_not_waited_for(
    app, dsn, runner, table: Table
):
    left_open: list[psycopg.Connection] = []
    never_commits(app, left_open, dsn)
    (task,) = await table.enqueue("1")
    attempt = await asyncio.wait_for(runner.run(await table.claim_one()), 30)

    assert attempt.fence is None, "nothing is written"
    assert isinstance(attempt.outcome.transition, Bury)
    assert attempt.outcome.transition.error.type == "NotCommitted"
    assert "before the step returns" in attempt.outcome.transition.error.message
    left_open[0].close()
    assert await table.state(task) == "running"


async def test_a_drain_says_whose_transaction_is_still_open(app, dsn, db):
    left_open: list[psycopg.Connection] = []
    never_commits(app, left_open, dsn)
    async with app:
        await app.jobs["resize"].enqueue(1)
    with pytest.raises(FleetError, match=r"still open.*NotCommitted.*before the step returns"):
        await asyncio.wait_for(drain(app), 30)
    left_open[0].close()


async def test_a_commit_that_comes_a_moment_after_the_step_counts(app, dsn, runner, table: Table):
    loop, committed, conn = asyncio.get_running_loop(), [], psycopg.connect(dsn)

    @app.job("resize", queue="images")
    def one(ctx: Context, n: int) -> None:
        ctx.finish(n, conn=conn)
        committed.append(loop.run_in_executor(None, conn.commit))

    (task,) = await table.enqueue("1")
    attempt = await runner.run(await table.claim_one())
    await committed[0]
    conn.close()
    assert attempt.fence is not None
    assert await table.state(task) == "succeeded"


# ── as many as may run at once ───────────────────────────────────────────────────────────────────


async def test_every_transactional_step_that_may_run_has_a_connection(app, runner, table: Table):
    together = asyncio.Barrier(CONCURRENCY)
    job: Job[int, int] = app.job("resize", queue="images")

    @job.step(transactional=True)
    async def one(ctx: Context, n: int) -> int:
        await ctx.tx.execute("select 1")
        await together.wait()  # nobody ends before all have begun
        return n

    await table.enqueue(*map(str, range(CONCURRENCY)))
    claims = await table.claim(limit=CONCURRENCY)
    async with asyncio.timeout(30):
        attempts = await asyncio.gather(*map(runner.run, claims))
    assert [type(a.outcome.transition) for a in attempts] == [Finish] * CONCURRENCY
    assert all(a.fence is not None for a in attempts)


async def test_a_connection_that_cannot_be_had_in_time_is_an_error_that_says_what_to_do(
    dsn, monkeypatch
):
    monkeypatch.setattr(module, "CONNECT_TIMEOUT", 0.05)
    pool = Transactions(dsn, ALICE, limit=1, patience=5.0)
    try:
        async with pool.connect():
            with pytest.raises(module.NoConnection, match="max_connections") as caught:
                async with pool.connect():
                    pass
    finally:
        pool.close()
    assert is_disconnect(caught.value), "so that the worker hands the task back at no cost"


# ── connections that break ───────────────────────────────────────────────────────────────────────


async def test_what_the_step_raised_is_told_although_the_rollback_fails(
    app, dsn, runner, table: Table
):
    job: Job[int, int] = app.job("resize", queue="images", retry=Retry(max_attempts=1))

    @job.step(transactional=True)
    async def one(ctx: Context, n: int) -> int:
        end_of(ctx.tx.get_server_pid(), dsn)
        raise ValueError("the step's own")

    await table.enqueue("1")
    attempt = await runner.run(await table.claim_one())
    assert isinstance(attempt.outcome.transition, Bury)
    assert attempt.outcome.transition.error.message == "the step's own"


async def test_a_drain_goes_on_after_a_step_whose_connection_broke(app, dsn, db):
    job: Job[int, int] = app.job("resize", queue="images", retry=Retry(max_attempts=1))

    @job.step(transactional=True)
    async def one(ctx: Context, n: int) -> int:
        if n == 1:
            end_of(ctx.tx.get_server_pid(), dsn)
            raise ValueError("the step's own")
        return n

    async with app:
        await job.enqueue_many([1, 2])
        drained = await drain(app)
    assert (len(drained.buried), len(drained.succeeded)) == (1, 1)
    assert await db.fetchval("select error->>'type' from fleet.buried") == "ValueError"


@pytest.mark.parametrize("wrapped", [False, True], ids=["as it came", "in the step's own words"])
async def test_a_step_that_fails_for_its_lost_connection_is_not_charged(
    app, dsn, runner, table: Table, wrapped
):
    job: Job[int, int] = app.job("resize", queue="images", retry=Retry(max_attempts=1))

    @job.step(transactional=True)
    async def one(ctx: Context, n: int) -> int:
        end_of(ctx.tx.get_server_pid(), dsn)
        try:
            await ctx.tx.execute("select 1")
        except Exception as error:
            if wrapped:
                raise LookupError("no stock") from error
            raise
        return n

    await table.enqueue("1")
    attempt = await runner.run(await table.claim_one())
    assert isinstance(attempt.outcome.transition, PutBack)
    assert attempt.outcome.transition.outcome == "released"


async def test_a_statement_that_the_step_left_under_way_is_its_failure(app, runner, table: Table):
    job: Job[int, int] = app.job("resize", queue="images", retry=Retry(max_attempts=1))
    left: list[asyncio.Task[str]] = []

    @job.step(transactional=True)
    async def one(ctx: Context, n: int) -> int:
        left.append(asyncio.create_task(ctx.tx.execute("select pg_sleep(600)")))
        await asyncio.sleep(0)  # let it begin
        return n

    await table.enqueue("1")
    attempt = await asyncio.wait_for(runner.run(await table.claim_one()), 30)
    assert isinstance(attempt.outcome.transition, Bury)
    assert "another operation is in progress" in attempt.outcome.transition.error.message
    await asyncio.gather(*left, return_exceptions=True)


# ── time ─────────────────────────────────────────────────────────────────────────────────────────


async def test_a_delay_counts_from_the_end_of_a_transactional_step(app, db, runner, table: Table):
    ends: list[datetime] = []
    job: Job[int, int] = app.job("resize", queue="images")

    @job.step(transactional=True)
    async def one(ctx: Context, n: int) -> To[int]:
        await ctx.tx.execute("select 1")  # the transaction has begun
        ctx.enqueue(job, 2, delay=60)
        ends.append(await db.fetchval("select clock_timestamp()"))
        return To.next(n, delay=60)

    @job.step
    async def two(ctx: Context, n: int) -> int:
        return n

    await table.enqueue("1")
    attempt = await runner.run(await table.claim_one())
    assert not isinstance(attempt.outcome.transition, Advance)
    due = await db.fetch("select due_at from fleet.task where state = 'deferred'")
    assert len(due) == 2
    assert all(row["due_at"] >= ends[0] + timedelta(seconds=60) for row in due)


async def test_the_run_of_a_broken_start_tells_the_start(app, dsn, db, table: Table):
    """A connection that is dead when it is lent: BEGIN fails, and so does the rollback."""
    job: Job[int, int] = app.job("resize", queue="images")

    @job.step(transactional=True)
    async def one(ctx: Context, n: int) -> int:
        return n

    conn = await asyncpg.connect(dsn)

    class Lent:
        async def __aenter__(self) -> asyncpg.Connection:
            end_of(conn.get_server_pid(), dsn)
            return conn

        async def __aexit__(self, *_: object) -> None: ...

    pool = Transactions(dsn, ALICE, limit=1, patience=5.0)
    runner = Runner(app, ALICE, "worker-1", connect=Lent, look=pool.look)
    await table.enqueue("1")
    attempt = await runner.run(await table.claim_one())
    runner.close()
    pool.close()
    assert isinstance(attempt.outcome.transition, PutBack)
    assert attempt.outcome.transition.outcome == "released"
