"""A task's life from enqueue to its end, on a real database: a story a row of the parity table."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import pytest

from fleet import Context, Fleet, Job, Retry, TaskBuried, To
from fleet.testing import Clock, drain
from tests.store.histories import history


@dataclass
class Order:
    order_id: int


@dataclass
class Receipt:
    key: str


@pytest.fixture
def app(dsn: str) -> Fleet:
    return Fleet(dsn)


async def test_u17_steps_run_in_order_and_each_gets_what_the_one_before_returned(app, db):
    receipts: Job[Order, str] = app.job("order-receipt", queue="billing")

    @receipts.step
    async def render(ctx: Context, order: Order) -> Receipt:
        return Receipt(key=f"receipts/{order.order_id}.pdf")

    @receipts.step
    def sign(ctx: Context, receipt: Receipt) -> Receipt:
        return Receipt(key=receipt.key + ".sig")

    @receipts.step
    async def email(ctx: Context, receipt: Receipt) -> str:
        return f"sent {receipt.key}"

    async with app:
        handles = await receipts.enqueue_many([Order(n) for n in range(3)])
        drained = await drain(app)
        assert [await h.result(timeout=0) for h in handles] == [
            f"sent receipts/{n}.pdf.sig" for n in range(3)
        ]
    assert drained.attempts == 9
    assert await history(db, handles[0].id) == [("render", 1, "next"), ("sign", 1, "next")]
    assert await db.fetchval("select count(*) from fleet.task") == 0


async def test_p02_any_step_may_follow_any_and_attempts_start_again_at_each(app, db):
    machine: Job[int, int] = app.job("machine")
    seen: list[tuple[str, int, str]] = []

    @machine.step(retry=Retry(max_attempts=2, initial=0, jitter=0))
    async def count(ctx: Context, n: int) -> To[int]:
        seen.append(("count", ctx.attempt, ctx.idempotency_key))
        if n == 1 and ctx.attempt == 1:
            raise RuntimeError("once")
        return To.step(check, n + 1)

    @machine.step
    async def check(ctx: Context, n: int) -> To[int]:
        seen.append(("check", ctx.attempt, ctx.idempotency_key))
        return To.done(n) if n >= 3 else To.step("count", n)

    @machine.step
    async def never(ctx: Context, n: int) -> int:
        raise AssertionError("To.done ends the task whatever steps would follow")

    async with app:
        handle = await machine.enqueue(0)
        await drain(app)
        assert await handle.result(timeout=0) == 3
    t = handle.id
    assert seen == [
        ("count", 1, f"{t}/count/1"),
        ("check", 1, f"{t}/check/2"),
        ("count", 1, f"{t}/count/3"),
        ("count", 2, f"{t}/count/3"),
        ("check", 1, f"{t}/check/4"),
        ("count", 1, f"{t}/count/5"),
        ("check", 1, f"{t}/check/6"),
    ]


async def test_a_delayed_next_step_waits_for_its_time(app, db, fleet_clock: Clock):
    later: Job[None, str] = app.job("later")

    @later.step
    async def first(ctx: Context) -> To[str]:
        return To.next("hello", delay=60)

    @later.step
    async def second(ctx: Context, word: str) -> str:
        return word

    async with app:
        handle = await later.enqueue()
        await drain(app)
        row = await db.fetchrow("select state, step, due_at - fleet.now() as left from fleet.task")
        assert (row["state"], row["step"]) == ("deferred", "second")
        assert timedelta(seconds=50) < row["left"] <= timedelta(seconds=60)

        await drain(app)
        assert (await handle.status()).state == "deferred", "nothing starts before its time"
        await fleet_clock.advance(61)
        await drain(app)
        assert await handle.result(timeout=0) == "hello"


async def test_a_snooze_is_no_failure(app, db, fleet_clock: Clock):
    polls: list[int] = []

    @app.job("poll", retry=Retry(max_attempts=1))
    async def poll(ctx: Context) -> To[str] | str:
        polls.append(ctx.attempt)
        return To.snooze(30) if len(polls) < 4 else "there"

    async with app:
        handle = await poll.enqueue()
        await drain(app, clock=fleet_clock)
        assert await handle.result(timeout=0) == "there"
    assert polls == [1, 1, 1, 1]
    assert [outcome for _, _, outcome in await history(db, handle.id)] == ["snoozed"] * 3


async def test_u02_retries_wait_longer_each_time_by_the_clock_of_the_database(
    app, db, fleet_clock: Clock
):
    @app.job("flaky", retry=Retry(max_attempts=5, initial=1, coefficient=2, maximum=60, jitter=0))
    async def flaky(ctx: Context) -> None:
        raise ConnectionError("away")

    async with app:
        handle = await flaky.enqueue()
        for wait in (1, 2, 4, 8):
            await drain(app)
            row = await db.fetchrow("select failures, due_at - fleet.now() as left from fleet.task")
            assert timedelta(seconds=wait * 0.5) < row["left"] <= timedelta(seconds=wait)
            await fleet_clock.advance(wait)
        drained = await drain(app)
        assert drained.buried == [handle.id]
        with pytest.raises(TaskBuried, match="exhausted"):
            await handle.result(timeout=0)
    buried = await db.fetchrow("select failures, attempt, reason, error from fleet.buried")
    assert (buried["failures"], buried["attempt"], buried["reason"]) == (5, 5, "exhausted")


async def test_u08_a_failed_transactional_step_leaves_nothing_behind(app, db, fleet_clock: Clock):
    await db.execute("create table ledger (note text)")
    booking: Job[None, None] = app.job("booking")

    @booking.step(transactional=True)
    async def book(ctx: Context) -> None:
        await ctx.tx.execute("insert into ledger values ($1)", f"attempt {ctx.attempt}")
        ctx.enqueue(other)
        if ctx.attempt < 3:
            raise RuntimeError("after the write")

    @app.job("other")
    async def other(ctx: Context) -> None: ...

    async with app:
        handle = await booking.enqueue()
        drained = await drain(app, clock=fleet_clock)
    assert [r["note"] for r in await db.fetch("select note from ledger")] == ["attempt 3"]
    assert drained.succeeded[0] == handle.id
    assert len(drained.succeeded) == 2, "its enqueue committed once, with the attempt that did"


async def test_a_step_without_transaction_says_so(app, db):
    caught: list[str] = []

    @app.job("plain")
    async def plain(ctx: Context) -> None:
        try:
            ctx.tx  # noqa: B018
        except Exception as error:
            caught.append(str(error))

    async with app:
        await plain.enqueue()
        await drain(app)
    assert "transactional=True" in caught[0]


async def test_a_retry_never_doubles_what_a_step_enqueues(app, db, fleet_clock: Clock):
    @app.job("child")
    async def child(ctx: Context, n: int) -> None: ...

    @app.job("parent")
    def parent(ctx: Context) -> None:
        for n in range(5):
            ctx.enqueue(child, n, priority=n)
        ctx.enqueue("child", 99, unique="only-one")
        if ctx.attempt < 3:
            raise RuntimeError("again")

    async with app:
        await parent.enqueue()
        drained = await drain(app, clock=fleet_clock)
    assert len(drained.succeeded) == 1 + 6


async def test_r10_jobs_that_keep_no_history_leave_no_row(app, db):
    @app.job("quiet", on_success="delete")
    async def quiet(ctx: Context) -> int:
        return 1

    @app.job("careless", on_failure="delete", retry=Retry(max_attempts=1))
    async def careless(ctx: Context) -> None:
        raise RuntimeError

    @app.job("careful", retry=Retry(max_attempts=1))
    async def careful(ctx: Context) -> None:
        raise RuntimeError

    async with app:
        for job in (quiet, careless, careful):
            await job.enqueue()
        await drain(app)
    counts = await db.fetchrow(
        "select (select count(*) from fleet.task) as live, (select count(*) from fleet.archive) as "
        "archived, (select count(*) from fleet.buried) as buried"
    )
    assert tuple(counts) == (0, 0, 1)


async def test_u01_retention_is_a_setting_of_each_job_and_step(app, db):
    @app.job("default")
    async def default(ctx: Context) -> None: ...

    short: Job[None, None] = app.job("short", keep=timedelta(days=1))

    @short.step(keep=timedelta(days=3), priority=7)
    async def one(ctx: Context) -> None: ...

    @short.step(priority=9)
    async def two(ctx: Context) -> None: ...

    async with app:
        handles = [await default.enqueue(), await short.enqueue()]
        await drain(app)

    async def kept(table: str, column: str, task: int) -> int:
        return await db.fetchval(
            f"select round(extract(epoch from keep_until - fleet.now()) / 86400) from fleet.{table}"
            f" where {column} = $1",
            task,
        )

    assert await kept("archive", "id", handles[0].id) == 14
    assert await kept("attempt", "task_id", handles[1].id) == 3
    assert await kept("archive", "id", handles[1].id) == 1
    assert await db.fetchval("select priority from fleet.archive where id = $1", handles[1].id) == 9


async def test_r01_step_over_job_over_default(app, db):
    layered: Job[None, None] = app.job("layered", retry=Retry(max_attempts=3, initial=0))

    @layered.step(retry=Retry(max_attempts=1))
    async def strict(ctx: Context) -> None:
        raise RuntimeError

    lax: Job[None, None] = app.job("lax", retry=Retry(max_attempts=3, initial=0))

    @lax.step
    async def inherits(ctx: Context) -> None:
        raise RuntimeError

    async with app:
        await layered.enqueue()
        await lax.enqueue()
        await drain(app)
    rows = await db.fetch("select job, attempt from fleet.buried order by job")
    assert [tuple(r) for r in rows] == [("lax", 3), ("layered", 1)]


async def test_p01_the_whole_state_of_a_task_is_one_readable_row(app, db):
    @app.job("plain", queue="emails")
    async def plain(ctx: Context, n: int) -> None: ...

    async with app:
        await plain.enqueue(5, priority=2)
    row = dict(await db.fetchrow("select * from fleet.task"))
    assert {k: row[k] for k in ("state", "queue", "job", "step", "priority", "input")} == {
        "state": "ready",
        "queue": "emails",
        "job": "plain",
        "step": "plain",
        "priority": 2,
        "input": "5",
    }
