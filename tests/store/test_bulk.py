"""Cancel, purge and revive in bulk: in batches, and one line of the log each (issue 4)."""

from __future__ import annotations

import asyncpg
import pytest

from fleet import Context, Fleet
from fleet.lifecycle import Completed, Refused
from fleet.model import Failure
from fleet.store import bulk, registry
from fleet.store.enqueue import insert_one
from tests.store.conftest import ALICE, Table
from tests.store.test_log import lines
from tests.store.test_unique import once

ERROR = Failure(type="ValueError", message="bad")


async def cancel(table: Table, *, up_to: int | None = None, **which):
    """Cancel what matches, a call at a time; return what each call said."""
    said, above, entry = [], 0, None
    named = ", ".join(f"{name} => '{value}'" for name, value in which.items())
    while above is not None:
        row = await table.db.fetchrow(
            f"select * from fleet.cancel_where({named}, at_most => 3, above => $1, entry => $2,"
            " up_to => $3, by => 'ann')",
            above,
            entry,
            up_to,
        )
        said.append((row["cancelled"], row["requested"]))
        above, entry = row["last"], row["entry"]
    return said


# ── cancel ───────────────────────────────────────────────────────────────────────────────────────


async def test_cancel_takes_what_matches_all_that_is_given(table: Table):
    mine = await table.enqueue("1", "2", key="a")
    others = [
        *await table.enqueue("3", key="b"),
        *await table.enqueue("4", key="a", job="other"),
        *await table.enqueue("5", key="a", queue="emails"),
    ]
    assert await cancel(table, queue="images", job="resize", key="a") == [(2, 0), (0, 0)]
    assert [await table.state(task) for task in mine] == ["cancelled"] * 2
    assert [await table.state(task) for task in others] == ["waiting"] * 3


async def test_cancel_ends_what_waits_and_asks_what_runs(table: Table):
    running, *rest = await table.enqueue("1", "2", "3")
    await table.enqueue("4", delay=60.0)
    await table.claim_one()
    heard: list[str] = []
    await table.db.add_listener("fleet_cancel", lambda *a: heard.append(a[-1]))
    assert await cancel(table, queue="images") == [(2, 1), (1, 0)]
    assert await table.db.fetchval("select array_agg(task_id) from fleet.cancellation") == [running]
    await table.db.fetchval("select 1")
    assert heard == [str(running)]
    assert [await table.state(task) for task in rest] == ["cancelled"] * 2


async def test_a_batch_locks_no_more_than_it_looks_at(table: Table):
    await table.enqueue(*["1"] * 10)
    async with table.db.transaction():
        row = await table.db.fetchrow("select * from fleet.cancel_where('images', at_most => 4)")
        assert row["cancelled"] == 4
        assert await table.db.fetchval("select count(*) from fleet.task") == 6


async def test_cancel_passes_over_others_a_batch_at_a_time(table: Table):
    await table.enqueue(*["1"] * 7)
    (last,) = await table.enqueue("2", queue="emails")
    assert await cancel(table, queue="emails") == [(0, 0), (0, 0), (1, 0)]
    assert await table.state(last) == "cancelled"


async def test_what_comes_after_an_operation_began_is_not_part_of_it(table: Table):
    (first,) = await table.enqueue("1")
    found = await bulk.count_live(table.db, queue="images")
    assert found == (1, first)
    (later,) = await table.enqueue("2")
    assert await cancel(table, queue="images", up_to=found.newest) == [(1, 0)]
    assert await table.state(later) == "ready"


async def test_all_batches_are_one_line_of_the_log(table: Table):
    await table.enqueue(*["1"] * 7)
    await table.claim_one()
    await cancel(table, queue="images")
    assert await lines(table.db) == [
        ("ann", "task.cancel", None, {"queue": "images", "cancelled": 6, "requested": 1})
    ]
    await cancel(table, queue="emails")
    assert len(await lines(table.db)) == 1, "nothing was done, so nothing is said"


async def test_nobody_counts_on_in_a_line_that_is_not_its_own(table: Table):
    entry = await table.db.fetchval("select fleet.note('queue.pause', 'images')")
    await table.enqueue("1")
    await table.db.fetch("select fleet.cancel_where('images', entry => $1)", entry)
    assert [(what, detail) for _, what, _, detail in await lines(table.db)] == [
        ("queue.pause", {}),
        ("task.cancel", {"queue": "images", "cancelled": 1, "requested": 0}),
    ]


async def test_a_cancel_without_a_filter_is_refused(table: Table):
    with pytest.raises(asyncpg.InvalidParameterValueError, match="nothing says which tasks"):
        await table.db.fetch("select fleet.cancel_where()")


async def test_a_bulk_cancel_hands_keys_and_unique_names_on(table: Table):
    await table.enqueue("1", key="k")
    (heir,) = await table.enqueue("2", key="k", job="other")
    await insert_one(table.db, once())
    await cancel(table, job="resize")
    assert (await insert_one(table.db, once())).created
    await table.db.fetch("select fleet.grant_keys()")
    assert await table.state(heir) == "ready"


async def test_f36_an_open_transaction_holds_no_bulk_cancel_up(table: Table, dsn: str):
    held, free = await table.enqueue("1", "2")
    other = await asyncpg.connect(dsn)
    transaction = other.transaction()
    await transaction.start()
    await other.fetch("select from fleet.task where id = $1 for update", held)
    await table.db.execute("set lock_timeout = '2s'")
    assert await cancel(table, queue="images") == [(1, 1)]
    assert await table.state(free) == "cancelled"
    await transaction.rollback()
    await other.close()
    await table.db.fetch("select fleet.cancel_leftovers()")
    assert await table.state(held) == "cancelled"


# ── purge ────────────────────────────────────────────────────────────────────────────────────────


async def purge(table: Table, **options) -> list[int]:
    batch = bulk.purge("images", buried=options.get("buried", False), up_to=2**62, by="ann")

    async def run(act):
        return await act(table.db)

    return [n async for n in bulk.in_batches(run, batch)]


async def test_purge_deletes_what_waits_and_never_what_runs(table: Table):
    (running,) = await table.enqueue("1")
    claim = await table.claim_one()
    waiting = [
        *await table.enqueue("2"),
        *await table.enqueue("3", delay=60.0),
        *await table.enqueue("4", key="k"),
    ]
    (elsewhere,) = await table.enqueue("5", queue="emails")

    assert await purge(table) == [3]
    assert [await table.state(task) for task in waiting] == ["nowhere"] * 3
    assert await table.state(running) == "running"
    assert await table.state(elsewhere) == "ready"
    assert (await table.settle(ALICE, (claim, Completed("1")))).fences
    assert await lines(table.db) == [("ann", "queue.purge", "images", {"purged": 3})]


async def test_purge_hands_on_the_key_of_a_task_that_had_it(table: Table):
    """It was granted and not claimed: ready, so purged; its heir waits in another queue's line."""
    await insert_one(table.db, once(key="k"))
    await table.db.fetch("select fleet.grant_keys()")
    assert await purge(table) == [1]
    assert await table.db.fetchval("select count(*) from fleet.key") == 0
    assert (await insert_one(table.db, once(key="k"))).created
    assert (await table.claim_one()).key == "k"


async def test_purge_of_the_dead_letters_of_a_queue(table: Table):
    (dead,) = await table.enqueue("1")
    await table.settle(ALICE, (await table.claim_one(), Refused("fatal", ERROR)))
    (live,) = await table.enqueue("2")
    assert await purge(table, buried=True) == [1]
    assert await table.state(dead) == "nowhere"
    assert await table.state(live) == "ready"
    assert await lines(table.db) == [
        ("ann", "queue.purge", "images", {"buried": True, "purged": 1})
    ]


async def test_purge_goes_on_where_it_stopped(table: Table):
    await table.enqueue(*["1"] * 7)
    said = []
    above, entry = 0, None
    while above is not None:
        row = await table.db.fetchrow(
            "select * from fleet.purge('images', at_most => 3, above => $1, entry => $2)",
            above,
            entry,
        )
        said.append(row["purged"])
        above, entry = row["last"], row["entry"]
    assert said == [3, 3, 1]
    assert [detail for *_, detail in await lines(table.db)] == [{"purged": 7}]


# ── revive ───────────────────────────────────────────────────────────────────────────────────────


async def bury(table: Table, *inputs: str, reason: str = "fatal", **options) -> list[int]:
    ids = await table.enqueue(*inputs, **options)
    found = await table.claim(limit=len(ids), queue=options.get("queue", "images"))
    await table.settle(ALICE, *[(claim, Refused(reason, ERROR)) for claim in found])
    return ids


async def revive(table: Table, **which):
    """Return who came back and who did not."""
    named = ", ".join(f"{name} => '{value}'" for name, value in which.items())
    row = await table.db.fetchrow(
        f"select revived, refused::text from fleet.revive_where({named}, by => 'ann')"
    )
    return row["revived"], row["refused"]


async def test_revive_takes_what_matches(table: Table, fleet_clock):
    (old,) = await bury(table, "1")
    await fleet_clock.advance(3600)
    since = await fleet_clock.now()
    (new,) = await bury(table, "2")
    (undecodable,) = await bury(table, "3", reason="undecodable")
    (elsewhere,) = await bury(table, "4", queue="emails")

    assert await revive(table, queue="images", reason="fatal", since=since) == ([new], "[]")
    assert await revive(table, job="resize", queue="emails") == ([elsewhere], "[]")
    assert await revive(table, reason="undecodable") == ([undecodable], "[]")
    assert await revive(table, since="-infinity") == ([old], "[]")
    assert [what for _, what, _, _ in await lines(table.db)] == ["task.revive"] * 4


async def test_one_that_cannot_come_back_stops_nobody(table: Table):
    first = await insert_one(table.db, once())
    await table.settle(ALICE, (await table.claim_one(), Refused("fatal", ERROR)))
    (second,) = await bury(table, "2")
    holder = await insert_one(table.db, once())

    revived, refused = await revive(table, queue="images")
    assert revived == [second]
    assert f"held by task {holder.id}" in refused
    assert await table.state(first.id) == "buried"
    ((_, _, _, detail),) = await lines(table.db)
    assert (detail["revived"], detail["refused"]) == (1, 1)


async def test_revive_from_a_step_that_the_job_has(table: Table):
    app = Fleet()
    job = app.job("resize")

    @job.step
    async def one(ctx: Context) -> None: ...

    @job.step
    async def two(ctx: Context) -> None: ...

    await registry.register(table.db, app)
    (task,) = await bury(table, "1")

    revived, refused = await revive(table, queue="images", step="three")
    assert revived == []
    assert "has no step 'three'. It has one, two" in refused
    assert await revive(table, queue="images", step="two") == ([task], "[]")
    assert (await table.row(task))["step"] == "two"
