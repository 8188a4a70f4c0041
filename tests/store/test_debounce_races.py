"""Repeats at the same moment, in open transactions, and under old snapshots (U07, F36)."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import asyncpg
import pytest

from fleet.lifecycle import Completed
from fleet.store import claims
from fleet.store.enqueue import insert_one
from tests.store.conftest import ALICE, BOB, Table
from tests.store.test_client import until
from tests.store.test_debounce import count, once_a_minute, one


@asynccontextmanager
async def open_transaction(dsn: str, isolation: str = "read_committed"):
    conn = await asyncpg.connect(dsn)
    transaction = conn.transaction(isolation=isolation)
    await transaction.start()
    try:
        yield conn, transaction
    finally:
        await conn.close()


@pytest.mark.parametrize("make", [one, once_a_minute])
@pytest.mark.parametrize("on_repeat", ["keep", "replace", "push_back"])
async def test_u07_callers_at_the_same_moment_agree_on_one(dsn, table: Table, make, on_repeat):
    async def call(n: int):
        conn = await asyncpg.connect(dsn)
        try:
            return await insert_one(conn, make(str(n), on_repeat=on_repeat, delay=60.0))
        finally:
            await conn.close()

    made = await asyncio.gather(*[call(n) for n in range(12)])
    assert len({each.id for each in made}) == 1
    assert sum(each.created for each in made) == 1
    assert await count(table) == 1


@pytest.mark.parametrize("on_repeat", ["replace", "push_back"])
@pytest.mark.parametrize("key", [None, "k"])
async def test_f36_a_repeat_in_an_open_transaction_holds_nobody_up(
    dsn, table: Table, on_repeat, key
):
    mine = await insert_one(table.db, one("1", key=key, delay=None))
    (other,) = await table.enqueue("2", key="another")
    await table.db.execute("set lock_timeout = '2s'")
    async with open_transaction(dsn) as (caller, transaction):
        await insert_one(caller, one("3", key=key, on_repeat=on_repeat, delay=60.0))

        # All that a beat does, and a claim: the row is passed over, the others are served.
        owner = await table.db.fetchval(
            "insert into fleet.owner (host, pid) values ('a', 1) returning id"
        )
        beat = await table.db.fetchval(
            "select fleet.beat($1, 'running', null, null, '{images}')", owner
        )
        assert "locked" not in beat
        assert "trouble" not in beat
        (claim,) = await table.claim(limit=5)
        assert claim.id == other
        assert (await table.settle(ALICE, (claim, Completed("1")))).fences
        assert await table.db.fetchval("select fleet.cancel($1)", mine.id) == "requested"
        await table.db.fetch("select fleet.cancel_leftovers()")
        await transaction.rollback()
    await table.db.fetch("select fleet.cancel_leftovers()")
    assert await table.state(mine.id) == "cancelled", "as was wished while it was locked"


async def test_f36_a_period_taken_in_an_open_transaction_holds_no_host_up(dsn, table: Table):
    await table.db.execute("set lock_timeout = '2s'")
    async with open_transaction(dsn) as (caller, transaction):
        await insert_one(caller, once_a_minute())
        (task,) = await table.enqueue("1")
        claim = await table.claim_one()
        assert claim.id == task
        await table.settle(ALICE, (claim, Completed("1")))
        await table.db.fetch("select * from fleet.maintain()")
        await transaction.commit()
    assert not (await insert_one(table.db, once_a_minute())).created


async def test_u07_a_repeat_that_waited_for_a_claim_makes_a_task_of_its_own(dsn, table: Table):
    """Otherwise its input would be lost: the claim has already read the old one."""
    first = await insert_one(table.db, one("1"))
    async with open_transaction(dsn) as (host, claiming):
        (claim,) = await claims.claim(host, BOB, "images", 1, ["resize/one"])
        assert claim.id == first.id
        caller = await asyncpg.connect(dsn)
        repeat = asyncio.create_task(insert_one(caller, one("2", on_repeat="replace")))
        pid = caller.get_server_pid()
        await until(lambda: table.db.fetchval("select cardinality(pg_blocking_pids($1)) > 0", pid))
        await claiming.commit()
    again = await repeat
    await caller.close()
    assert again.created
    assert [
        row["input"] for row in await table.db.fetch("select input from fleet.task order by id")
    ] == [
        "1",
        "2",
    ]


@pytest.mark.parametrize("isolation", ["repeatable_read", "serializable"])
@pytest.mark.parametrize("make", [one, once_a_minute])
@pytest.mark.parametrize("on_repeat", ["keep", "replace", "push_back"])
async def test_u07_an_old_snapshot_is_right_or_told_to_try_again(
    dsn, table: Table, isolation, make, on_repeat
):
    repeat = make("2", on_repeat=on_repeat, delay=60.0)
    async with open_transaction(dsn, isolation) as (caller, _):
        await caller.fetch("select 1 from fleet.task")
        first = await insert_one(table.db, make("1"))
        with pytest.raises(asyncpg.SerializationError):
            await insert_one(caller, repeat)
    async with open_transaction(dsn, isolation) as (caller, transaction):
        again = await insert_one(caller, repeat)
        await transaction.commit()
    assert (again.id, again.created) == (first.id, False)
    assert await count(table) == 1


async def test_u07_an_old_snapshot_never_changes_what_has_been_claimed_since(dsn, table: Table):
    await insert_one(table.db, one("1", unique_scope="while_live"))
    async with open_transaction(dsn, "repeatable_read") as (caller, _):
        await caller.fetch("select 1 from fleet.task")
        await table.claim_one()
        with pytest.raises(asyncpg.SerializationError):
            await insert_one(caller, one("2", unique_scope="while_live", on_repeat="replace"))
