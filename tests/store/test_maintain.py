"""Partitions come and go; live tasks are never touched (U19)."""

from __future__ import annotations

import asyncpg

from fleet.lifecycle import Completed, Refused
from fleet.model import Failure
from fleet.store import beats
from tests.store.conftest import ALICE, Table

ERROR = Failure(type="ValueError", message="bad")


async def maintain(db) -> list[tuple[str, str, int]]:
    return [tuple(r) for r in await db.fetch("select * from fleet.maintain()")]


async def partitions(db) -> int:
    return await db.fetchval(
        "select count(*) from pg_inherits where inhparent = 'fleet.archive'::regclass"
    )


async def place(db, task: int) -> str:
    return await db.fetchval(
        "select c.relname from fleet.archive a join pg_class c on c.oid = a.tableoid"
        " where a.id = $1",
        task,
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
    assert await place(table.db, old) != "archive_default"

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


async def test_u19_what_is_kept_for_longer_gets_its_day_and_goes_with_it(table: Table, fleet_clock):
    """In the default partition it would be in the way of its day's partition for ever."""
    await maintain(table.db)
    table.keep = 60 * 86_400.0
    (task,) = await table.enqueue("1")
    await table.settle(ALICE, (await table.claim_one(), Completed('"kept"')))
    assert await place(table.db, task) == "archive_default"

    ((action, part, _),) = await maintain(table.db)
    assert action == "made"
    assert await place(table.db, task) == part, "and the row has moved with it"
    assert await table.db.fetchval("select result from fleet.archive") == '"kept"'

    await fleet_clock.advance(days=40)
    assert "busy" not in {action for action, _, _ in await maintain(table.db)}
    assert await table.state(task) == "succeeded"
    await fleet_clock.advance(days=21)
    await beats.maintain(table.db)
    assert await table.state(task) == "nowhere"
    assert part not in {r["relname"] for r in await table.db.fetch("select relname from pg_class")}


async def test_u19_what_is_kept_for_years_waits_in_the_default_partition(table: Table, fleet_clock):
    table.keep = 500 * 86_400.0
    (task,) = await table.enqueue("1")
    await table.settle(ALICE, (await table.claim_one(), Completed("1")))
    await maintain(table.db)
    assert await place(table.db, task) == "archive_default"
    await fleet_clock.advance(days=200)
    await maintain(table.db)
    assert await place(table.db, task) != "archive_default"


async def test_u19_as_much_as_there_is_goes_in_one_round_of_maintenance(table: Table, fleet_clock):
    table.keep = 1.0
    await table.enqueue(*["1"] * 6000)
    await table.settle(ALICE, *[(c, Completed("1")) for c in await table.claim(limit=6000)])
    await fleet_clock.advance(days=1)
    await beats.maintain(table.db)
    assert await table.db.fetchval("select count(*) from fleet.archive") == 0


async def test_the_attempt_of_a_revived_task_is_kept_as_long_as_its_job_says(table: Table):
    (task,) = await table.enqueue("1")
    await table.settle(ALICE, (await table.claim_one(), Refused("fatal", ERROR)))
    await table.db.fetch("select fleet.revive($1)", task)
    kept = await table.db.fetchval("select keep_until - fleet.now() from fleet.attempt")
    assert 13 <= kept.days <= 14
