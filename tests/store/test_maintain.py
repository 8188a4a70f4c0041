"""Partitions come and go; live tasks are never touched (U19)."""

from __future__ import annotations

import asyncpg

from fleet.lifecycle import Completed, Refused
from fleet.model import Failure
from tests.store.conftest import ALICE, Table

ERROR = Failure(type="ValueError", message="bad")


async def maintain(db) -> list[tuple[str, str, int]]:
    return [tuple(r) for r in await db.fetch("select * from fleet.maintain()")]


async def partitions(db) -> int:
    return await db.fetchval(
        "select count(*) from pg_inherits where inhparent = 'fleet.archive'::regclass"
    )


async def test_u19_partitions_are_made_ahead_and_dropped_when_their_day_is_over(
    table: Table, fleet_clock
):
    made = await maintain(table.db)
    assert {a for a, _, _ in made} == {"made"}
    assert await partitions(table.db) == 23, "today, three weeks, and the default"
    assert await maintain(table.db) == [], "nothing to do twice"

    table.keep = 10 * 86_400.0
    (old,) = await table.enqueue("1")
    await table.settle(ALICE, (await table.claim_one(), Completed("1")))
    (live,) = await table.enqueue("2")
    assert await table.db.fetchval("select tableoid::regclass::text from fleet.archive") != (
        "fleet.archive_default"
    )

    await fleet_clock.advance(days=3)
    dropped: list[str] = []
    while True:
        names = [name for action, name, _ in await maintain(table.db) if action == "dropped"]
        if not names:
            break
        dropped += names
    assert len(dropped) == 6, "three days, archive and attempts"
    assert await table.state(old) == "succeeded", "kept as long as its job says"
    assert await table.state(live) == "ready", "a live task is never touched"


async def test_u19_what_is_past_its_time_goes_from_the_default_partition_too(
    table: Table, fleet_clock
):
    (task,) = await table.enqueue("1")
    await table.settle(ALICE, (await table.claim_one(), Completed("1")))
    await fleet_clock.advance(days=2)
    assert ("deleted", "archive_default", 1) in await maintain(table.db)
    assert await table.state(task) == "nowhere"


async def test_u19_buried_tasks_stay_ninety_days(table: Table, fleet_clock):
    (task,) = await table.enqueue("1")
    await table.settle(ALICE, (await table.claim_one(), Refused("fatal", ERROR)))
    await fleet_clock.advance(days=89)
    await maintain(table.db)
    assert await table.state(task) == "buried"
    await fleet_clock.advance(days=2)
    await maintain(table.db)
    assert await table.state(task) == "nowhere"


async def test_an_open_reader_delays_a_drop_and_never_a_finish(table: Table, dsn, fleet_clock):
    await maintain(table.db)
    reader = await asyncpg.connect(dsn)
    transaction = reader.transaction()
    await transaction.start()
    await reader.fetch("select count(*) from fleet.archive")

    await fleet_clock.advance(days=3)
    assert "busy" in {a for a, _, _ in await maintain(table.db)}
    await table.enqueue("1")
    await table.db.execute("set lock_timeout = '2s'")
    assert (await table.settle(ALICE, (await table.claim_one(), Completed("1")))).fences

    await transaction.rollback()
    await reader.close()
    assert "dropped" in {a for a, _, _ in await maintain(table.db)}


async def test_rows_of_a_day_without_partition_are_kept_and_found(table: Table, fleet_clock):
    await fleet_clock.advance(days=400)
    (task,) = await table.enqueue("1")
    await table.settle(ALICE, (await table.claim_one(), Completed("1")))
    await maintain(table.db)
    assert await table.state(task) == "succeeded"
