"""fleet.job: what SQL knows about jobs, while two versions of an application are live."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from fleet import Context, Fleet, Retry
from fleet.store import registry
from fleet.store.enqueue import insert_many, insert_one


def shop(*, attempts: int = 5, queue: str = "billing") -> Fleet:
    """Return a version of an application; what is given makes its definition another one."""
    app = Fleet()
    receipts = app.job("order-receipt", queue=queue, priority=7)

    @receipts.step(retry=Retry(max_attempts=attempts))
    async def render(ctx: Context, order: dict[str, int]) -> str:
        return "a.pdf"

    @receipts.step
    async def email(ctx: Context, key: str) -> None: ...

    @app.job("welcome-email")
    async def welcome(ctx: Context) -> None: ...

    return app


async def test_a_registered_job_gives_sql_its_queue_first_step_and_priority(db):
    made = await registry.register(db, shop())

    assert [(d.name, d.queue, d.step, d.priority, d.new) for d in made] == [
        ("order-receipt", "billing", "render", 7, True),
        ("welcome-email", "default", "welcome", 0, True),
    ]
    task = await db.fetchval("select fleet.enqueue('order-receipt', '{\"order_id\": 1}')")
    row = await db.fetchrow("select queue, step, priority from fleet.task where id = $1", task)
    assert tuple(row) == ("billing", "render", 7)


async def key_of(db: asyncpg.Connection[asyncpg.Record], call: str) -> str | None:
    task = await db.fetchval(f"select fleet.enqueue({call})")
    key: str | None = await db.fetchval("select key from fleet.task where id = $1", task)
    return key


async def test_a_jobs_key_is_that_of_tasks_enqueued_from_sql_too(db):
    app = Fleet()

    @app.job("ledger", queue="books", key="the-ledger")
    async def ledger(ctx: Context) -> None: ...

    await registry.register(db, app)

    assert await key_of(db, "'ledger'") == "the-ledger"
    assert await key_of(db, "'ledger', key => 'another'") == "another"
    assert await key_of(db, "'ledger', queue => 'elsewhere'") == "the-ledger"
    assert await key_of(db, "'ledger', queue => 'elsewhere', step => 'other'") == "the-ledger"
    assert await db.fetchval("select state from fleet.task limit 1") == "waiting"
    await insert_many(db, [ledger.submission(key="mine")])
    assert await db.fetchval("select key from fleet.task order by id desc limit 1") == "mine"


async def test_a_key_that_python_computes_must_be_given_in_sql(db):
    app = Fleet()

    @app.job("account-change", key=lambda change: change.get("account"))
    async def change(ctx: Context, change: dict) -> None: ...

    await registry.register(db, app)

    for call in ("'account-change'", "'account-change', queue => 'elsewhere'"):
        with pytest.raises(asyncpg.InvalidParameterValueError, match=r"key .* computed") as told:
            await db.fetch(f"select fleet.enqueue({call})")
        assert "key =>" in told.value.hint
    assert await key_of(db, "'account-change', key => 'account-7'") == "account-7"
    # Python has computed it, and may have found that there is none.
    await insert_one(db, change.submission({}, unique="once"))
    assert await db.fetchval("select key from fleet.task where unique_slot = 'once'") is None


async def test_a_text_that_looks_like_nothing_in_particular_is_a_key_like_any_other(db):
    app = Fleet()

    @app.job("odd", key="<computed>")
    async def odd(ctx: Context) -> None: ...

    await registry.register(db, app)
    assert await key_of(db, "'odd'") == "<computed>"


async def test_an_application_without_jobs_writes_nothing(db):
    assert await registry.register(db, Fleet()) == []


async def test_seen_again_a_definition_keeps_when_it_was_first_seen(db, fleet_clock):
    first = await registry.register(db, shop())
    await fleet_clock.advance(minutes=5)
    again = await registry.register(db, shop())

    assert [d.first_seen for d in again] == [d.first_seen for d in first]
    assert all(new.last_seen > old.last_seen for new, old in zip(again, first, strict=True))
    assert not any(d.new for d in again)
    assert await db.fetchval("select count(*) from fleet.job") == 2


async def test_during_a_rolling_deploy_both_versions_are_live_and_the_newer_one_counts(
    db, fleet_clock
):
    old, new = shop(queue="old"), shop(queue="new")
    await registry.register(db, old)
    await fleet_clock.advance(minutes=10)
    await registry.register(db, new)
    await registry.register(db, old)  # an old worker boots again: it must not win the name back

    live = await registry.live(db)

    assert [d.queue for d in live["order-receipt"]] == ["new", "old"]
    assert await queue_of_a_new_task(db) == "new"


async def test_after_a_roll_back_the_old_version_counts_once_the_new_one_is_gone(db, fleet_clock):
    old = shop(queue="old")
    await registry.register(db, old)
    await fleet_clock.advance(minutes=10)
    await registry.register(db, shop(queue="new"))
    await fleet_clock.advance(minutes=2)
    await registry.register(db, old)

    assert [d.queue for d in (await registry.live(db))["order-receipt"]] == ["old"]
    assert await queue_of_a_new_task(db) == "old"
    assert [(d.queue, d.live) for d in await registry.definitions(db, "order-receipt")] == [
        ("old", True),
        ("new", False),
    ]


async def test_a_change_of_a_policy_is_another_definition(db):
    await registry.register(db, shop(attempts=5))
    await registry.register(db, shop(attempts=6))

    found = await registry.definitions(db, "order-receipt")

    assert len({d.fingerprint for d in found}) == 2


async def test_many_workers_that_boot_at_once_do_not_deadlock(dsn, db):
    async def boot(turn: int) -> None:
        conn = await asyncpg.connect(dsn)
        try:
            for _ in range(5):
                await registry.register(conn, shop(attempts=2 + turn % 2))
        finally:
            await conn.close()

    await asyncio.gather(*(boot(turn) for turn in range(8)))

    assert await db.fetchval("select count(*) from fleet.job") == 3


async def queue_of_a_new_task(db: asyncpg.Connection[asyncpg.Record]) -> str:
    task = await db.fetchval("select fleet.enqueue('order-receipt')")
    queue: str = await db.fetchval("select queue from fleet.task where id = $1", task)
    return queue
