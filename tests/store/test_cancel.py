"""Cancel, from pending to running (the database's half of U18)."""

from __future__ import annotations

import asyncpg
import pytest

from fleet import Context, Fleet
from fleet.lifecycle import Cancelled, Completed, Refused, Released
from fleet.model import Failure
from fleet.store import registry
from tests.store.conftest import ALICE, Table


@pytest.mark.parametrize("options", [{}, {"delay": 60.0}, {"key": "k"}])
async def test_u18_a_pending_task_is_cancelled_at_once(table: Table, options):
    (task,) = await table.enqueue("1", **options)
    assert await table.db.fetchval("select fleet.cancel($1)", task) == "cancelled"
    assert await table.state(task) == "cancelled"
    assert await table.claim(limit=5) == []
    assert await table.db.fetchval("select fleet.cancel($1)", task) == "ended"


async def test_u18_a_running_task_is_asked_and_its_owner_ends_it(table: Table):
    (task,) = await table.enqueue("1")
    claim = await table.claim_one()
    assert await table.db.fetchval("select fleet.cancel($1)", task) == "requested"
    assert await table.db.fetchval("select fleet.cancel($1)", task) == "requested", "twice is once"
    assert await table.db.fetchval("select fleet.cancel_leftovers()") == 0, "it still runs"

    await table.settle(ALICE, (claim, Cancelled()))
    assert await table.state(task) == "cancelled"
    assert await table.db.fetchval("select count(*) from fleet.cancellation") == 0


async def test_u18_a_wish_survives_the_owner_that_never_saw_it(table: Table):
    (task,) = await table.enqueue("1")
    claim = await table.claim_one()
    await table.db.fetch("select fleet.cancel($1)", task)
    await table.settle(ALICE, (claim, Released()))
    assert await table.db.fetchval("select fleet.cancel_leftovers()") == 1
    assert await table.state(task) == "cancelled"


async def test_u18_a_task_that_ends_first_has_ended(table: Table):
    (task,) = await table.enqueue("1")
    claim = await table.claim_one()
    await table.db.fetch("select fleet.cancel($1)", task)
    await table.settle(ALICE, (claim, Completed("1")))
    assert await table.db.fetchval("select fleet.cancel_leftovers()") == 0
    assert await table.state(task) == "succeeded"
    assert await table.db.fetchval("select count(*) from fleet.cancellation") == 0


async def test_a_cancel_in_an_open_transaction_holds_no_finish_up(table: Table, dsn: str):
    (task,) = await table.enqueue("1")
    claim = await table.claim_one()
    operator = await asyncpg.connect(dsn)
    transaction = operator.transaction()
    await transaction.start()
    assert await operator.fetchval("select fleet.cancel($1)", task) == "requested"

    await table.db.execute("set lock_timeout = '2s'")
    assert (await table.settle(ALICE, (claim, Completed("1")))).fences
    await transaction.rollback()
    await operator.close()


async def test_an_unknown_task_is_no_error(table: Table):
    assert await table.db.fetchval("select fleet.cancel(4711)") is None


async def days_kept(table: Table, **options) -> float:
    (task,) = await table.enqueue("1", **options)
    assert await table.db.fetchval("select fleet.cancel($1)", task) == "cancelled"
    days: float = await table.db.fetchval(
        "select extract(epoch from keep_until - finished_at)::float8 / 86400 from fleet.archive"
        " where id = $1",
        task,
    )
    return days


async def test_a_cancelled_task_is_kept_as_long_as_its_job_says(table: Table):
    app = Fleet()
    resize = app.job("resize", keep=3 * 86_400)

    @resize.step
    async def one(ctx: Context) -> None: ...

    @resize.step(keep=2 * 86_400)
    async def two(ctx: Context) -> None: ...

    assert await days_kept(table) == 14, "nobody has registered it"
    await registry.register(table.db, app)
    assert await days_kept(table) == 3
    assert await days_kept(table, step="two") == 2
    assert await days_kept(table, step="") == 3
    assert await days_kept(table, step="of-an-older-release") == 3
    assert await days_kept(table, job="other") == 14


async def test_u18_a_wish_that_came_too_late_does_not_cancel_the_revived_task(table: Table):
    (task,) = await table.enqueue("1")
    claim = await table.claim_one()
    assert await table.db.fetchval("select fleet.cancel($1)", task) == "requested"
    await table.settle(ALICE, (claim, Refused("fatal", Failure(type="ValueError", message="bad"))))

    await table.db.fetch("select fleet.revive($1)", task)
    await table.db.fetch("select fleet.cancel_leftovers()")
    assert await table.state(task) == "ready"
