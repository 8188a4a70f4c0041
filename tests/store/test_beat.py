"""What follows the renewal in a beat can fail, and cannot cost the lease."""

from __future__ import annotations

import asyncpg
import pytest

from fleet.model import OwnerId
from fleet.store import beats
from tests.store.conftest import Table


@pytest.fixture
async def owner(db) -> OwnerId:
    return await beats.register(db, "host-a", 1, 15.0)


async def counter(db, owner: OwnerId) -> int:
    return await db.fetchval("select beat from fleet.owner where id = $1", owner)


async def test_p05_one_statement_renews_and_tells(table: Table, owner: OwnerId):
    await table.enqueue("1")
    told = await beats.beat(table.db, owner, "running", [], ["images", "emails"])
    assert told is not None
    assert (told.ready, told.heard, told.trouble) == (["images"], True, None)
    told = await beats.beat(table.db, owner, "running", [], ["images"], looks=[])
    assert told is not None
    assert told.ready == [], "it was not asked to look"
    assert await counter(table.db, owner) == 2


@pytest.mark.parametrize("broken", ["promote", "cancel_leftovers"])
async def test_f20_an_error_in_its_work_is_told_and_the_lease_renewed(
    table: Table, owner: OwnerId, broken: str
):
    await table.enqueue("1", delay=0.001)
    await table.db.execute(f"drop function fleet.{broken}")
    told = await beats.beat(table.db, owner, "running", [], ["images"])
    assert told is not None
    assert broken in (told.trouble or "")
    assert told.heard, "the rest of the news is there"
    assert await counter(table.db, owner) == 1


async def test_f20_a_statement_timeout_costs_no_lease(table: Table, owner: OwnerId, dsn: str):
    await table.db.execute(
        "create or replace function fleet.cancel_leftovers() returns int"
        " language sql as 'select 1 from pg_sleep(60)'"
    )
    host = await asyncpg.connect(dsn, server_settings={"statement_timeout": "200"})
    told = await beats.beat(host, owner, "running", [], ["images"])
    await host.close()
    assert told is not None
    assert "statement timeout" in (told.trouble or "")
    assert await counter(table.db, owner) == 1


async def test_f20_tables_locked_by_somebody_cost_no_lease(table: Table, owner: OwnerId, dsn: str):
    other = await asyncpg.connect(dsn)
    async with other.transaction():
        await other.execute("lock table fleet.task, fleet.override")
        told = await beats.beat(table.db, owner, "running", [], ["images"])
        assert told is not None
        assert not told.heard
        assert told.trouble is None, "it is no trouble: it comes again with the next beat"
    await other.close()
    assert await counter(table.db, owner) == 1
    told = await beats.beat(table.db, owner, "running", [], ["images"])
    assert told is not None
    assert told.heard
