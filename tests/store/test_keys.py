"""Keys: one task at a time a key, strictly by id, in the whole fleet, and nobody waits for an
application's open transaction (U07, F36)."""

from __future__ import annotations

import asyncio
import random

import asyncpg

from fleet import Context, Fleet
from fleet.lifecycle import Advanced, Cancelled, Completed, Failed, Refused, Released, Snoozed
from fleet.model import Failure, Submission
from fleet.store import claims, registry
from fleet.store.enqueue import children_json, insert_many, insert_one
from fleet.store.outcomes import write
from fleet.testing import drain
from tests.store.conftest import ALICE, BOB, Table

ERROR = Failure(type="ValueError", message="bad")


async def test_u07_one_at_a_time_a_key_strictly_in_order_and_nothing_is_burned(table):
    ids = await table.enqueue("1", "2", "3", key="customer-7")
    order = []
    for _ in ids:
        (claim,) = await table.claim(limit=10)
        assert await table.claim(BOB, limit=10) == [], "the others wait, also for another host"
        assert (claim.attempt, claim.failures, claim.releases) == (1, 0, 0)
        order.append(claim.id)
        await table.settle(ALICE, (claim, Completed("1")))
    assert order == ids
    assert await table.db.fetchval("select count(*) from fleet.key") == 0


async def test_u07_a_blocked_key_never_blocks_the_queue_behind_it(table):
    await table.enqueue(*["1"] * 50, key="busy")
    free = await table.enqueue("2")
    other = await table.enqueue("3", key="idle")
    got = await table.claim(limit=100)
    assert len(got) == 3
    assert {c.id for c in got} >= {*free, *other}


async def test_u07_a_key_is_kept_through_steps_retries_snoozes_and_delays(table, fleet_clock):
    first, second = await table.enqueue("1", "2", key="k")
    for event in (
        Failed(ERROR),
        Snoozed(60),
        Released(),
        Advanced("two", "1", delay=60),
        Advanced("one", "1"),
    ):
        await fleet_clock.advance(120)
        (claim,) = await table.claim(limit=10)
        assert claim.id == first
        report = await table.settle(ALICE, (claim, event))
        await claims.grant_keys(table.db)
        assert await table.state(second) == "waiting", f"given up at {event}"
    moved = claim._replace(fence=report.fences[first], step="one", visit=claim.visit + 1)
    await table.settle(ALICE, (moved, Completed("1")))
    assert (await table.claim_one()).id == second


async def test_u07_burial_cancel_and_an_operators_delete_hand_the_key_on(table):
    ids = await table.enqueue(*["1"] * 4, key="k")
    await table.settle(ALICE, (await table.claim_one(), Refused("fatal", ERROR)))
    await table.settle(ALICE, (await table.claim_one(), Cancelled()))
    await table.claim_one()
    await table.db.execute("delete from fleet.task where id = $1", ids[2])
    assert (await table.claim_one()).id == ids[3]


async def test_scope_of_a_key_is_its_queue(table):
    await table.enqueue("1", key="k")
    await table.enqueue("2", key="k", queue="other")
    assert len(await table.claim(queue="images")) == 1
    assert len(await table.claim(queue="other")) == 1


async def test_a_cancelled_waiter_is_passed_over(table):
    ids = await table.enqueue(*["1"] * 3, key="k")
    holder = await table.claim_one()
    assert await table.db.fetchval("select fleet.cancel($1)", ids[1]) == "cancelled"
    await table.settle(ALICE, (holder, Completed("1")))
    assert (await table.claim_one()).id == ids[2]


async def test_a_step_may_have_a_key_of_its_own(table):
    first, second = await table.enqueue("1", "2", key="k")
    (other,) = await table.enqueue("3", key="printer")
    claims_ = {c.id: c for c in await table.claim(limit=10)}
    report = await table.settle(ALICE, (claims_[first], Advanced("two", "1", key="printer")))
    assert report.fences
    assert await table.state(first) == "waiting"
    assert (await table.claim_one()).id == second, "the old key went on"
    await table.settle(ALICE, (claims_[other], Completed("1")))
    again = await table.claim_one()
    assert (again.id, again.step, again.key) == (first, "two", "printer")


async def test_delayed_keyed_tasks_join_when_they_are_due(table, fleet_clock):
    (late,) = await table.enqueue("1", key="k", delay=60.0)
    (now,) = await table.enqueue("2", key="k")
    claim = await table.claim_one()
    assert claim.id == now
    await fleet_clock.advance(61)
    assert await table.claim() == []
    assert await table.state(late) == "waiting"
    await table.settle(ALICE, (claim, Completed("1")))
    assert (await table.claim_one()).id == late


async def test_f36_an_open_transaction_that_enqueued_keyed_and_unique_tasks_holds_nobody_up(
    table, dsn
):
    await table.enqueue("1", "2", key="k")
    app = await asyncpg.connect(dsn)
    transaction = app.transaction()
    await transaction.start()
    await insert_many(
        app, [Submission(job="resize", step="one", queue="images", input="9", key="k")]
    )
    await app.fetch("select fleet.enqueue('resize', '1', queue => 'images', unique_key => 'u')")

    await table.db.execute("set lock_timeout = '2s'")
    for _ in range(2):
        await table.settle(ALICE, (await table.claim_one(), Completed("1")))
    assert await table.claim() == []

    await transaction.commit()
    await app.close()
    assert len(await table.claim(limit=5)) == 2


async def test_an_open_cancel_of_the_next_in_line_holds_nobody_up(table, dsn):
    ids = await table.enqueue(*["1"] * 3, key="k")
    holder = await table.claim_one()
    operator = await asyncpg.connect(dsn)
    transaction = operator.transaction()
    await transaction.start()
    assert await operator.fetchval("select fleet.cancel($1)", ids[1]) == "cancelled"

    await table.db.execute("set lock_timeout = '2s'")
    await table.settle(ALICE, (holder, Completed("1")))
    assert await table.claim() == [], "never wait, and never pass the place on to the third"

    await transaction.rollback()
    await operator.close()
    assert (await table.claim_one()).id == ids[1]


async def test_u07_many_hosts_many_keys_never_two_at_once_and_always_by_id(dsn, db):
    """Four hosts claim, finish and crash at random while a producer goes on enqueueing."""
    chance = random.Random(7)
    keys = ["a", "b", "c"]
    total, running, order = 300, set(), {key: [] for key in keys}
    expected: dict[str, list[int]] = {key: [] for key in keys}
    done = 0

    async def produce() -> None:
        conn = await asyncpg.connect(dsn)
        for _ in range(total):
            key = chance.choice(keys)
            (task,) = await Table(conn, None).enqueue("1", key=key)
            expected[key].append(task)
        await conn.close()

    async def host(number: int) -> None:
        nonlocal done
        conn = await asyncpg.connect(dsn)
        from fleet.policy import Policy

        table = Table(conn, Policy())
        owner = type(ALICE)(2000 + number)
        while done < total:
            for claim in await table.claim(owner, limit=3):
                assert claim.key not in running, f"{claim.key} runs twice"
                running.add(claim.key)
                await asyncio.sleep(0)
                running.remove(claim.key)
                if chance.random() < 0.2:
                    await table.settle(owner, (claim, Released()))
                else:
                    order[claim.key].append(claim.id)
                    done += 1
                    await table.settle(owner, (claim, Completed("1")))
        await conn.close()

    async with asyncio.timeout(100):
        await asyncio.gather(produce(), *[host(n) for n in range(4)])
    assert order == expected
    assert await db.fetchval("select count(*) from fleet.key") == 0
    assert await claims.grant_keys(db) == 0


async def test_a_key_that_is_handed_over_under_an_older_snapshot_strands_nobody(table, dsn):
    (first,) = await table.enqueue("1", key="k")
    await claims.grant_keys(table.db)
    operator = await asyncpg.connect(dsn)
    transaction = operator.transaction(isolation="repeatable_read")
    await transaction.start()
    await operator.fetch("select 1 from fleet.task")  # its snapshot is taken here
    (second,) = await table.enqueue("2", key="k")
    await claims.grant_keys(table.db)
    assert await operator.fetchval("select fleet.cancel($1)", first) == "cancelled"
    await transaction.commit()
    await operator.close()
    assert (await table.claim_one()).id == second


async def test_an_open_transaction_that_ended_a_holder_holds_up_no_other_key(table, dsn):
    (holder,) = await table.enqueue("1", key="k")
    await claims.grant_keys(table.db)
    operator = await asyncpg.connect(dsn)
    transaction = operator.transaction()
    await transaction.start()
    assert await operator.fetchval("select fleet.cancel($1)", holder) == "cancelled"

    await table.db.execute("set lock_timeout = '2s'")
    (behind,) = await table.enqueue("2", key="k")
    (other,) = await table.enqueue("3", key="elsewhere")
    assert (await table.claim_one()).id == other
    await transaction.commit()
    await operator.close()
    assert (await table.claim_one()).id == behind


async def test_f36_a_step_that_enqueues_what_an_open_transaction_enqueues_holds_no_batch_up(
    table, dsn
):
    unique = {"job": "resize", "queue": "images", "step": "one", "input": "1", "unique": "u"}
    app = await asyncpg.connect(dsn)
    transaction = app.transaction()
    await transaction.start()
    await insert_one(app, Submission(**unique))
    await table.enqueue(*["1"] * 10)
    outcomes = [table.outcome(c, Completed("1")) for c in await table.claim(limit=10)]
    culprit = outcomes[3]._replace(children=children_json([Submission(**unique)]))
    outcomes[3] = culprit

    await table.db.execute("set lock_timeout = '200ms'")
    report = await write(table.db, ALICE, outcomes)
    assert report.busy == {culprit.claim.id}
    assert len(report.fences) == 9
    await transaction.commit()
    await app.close()
    assert (await write(table.db, ALICE, [culprit])).fences


async def allow(table: Table, most: int) -> None:
    app = Fleet()

    @app.job("resize", queue="images", key_limit=most)
    async def one(ctx: Context, image: int) -> None: ...

    await registry.register(table.db, app)


async def test_u07_a_key_with_a_count_is_held_by_so_many_in_the_order_they_came(table: Table):
    await allow(table, 3)
    ids = await table.enqueue(*["1"] * 8, key="k")
    other = await table.enqueue("1", key="other")
    first = await table.claim(limit=9)
    assert [c.id for c in first] == [*ids[:3], *other]
    assert await table.claim(limit=9) == []
    await table.settle(ALICE, (first[1], Completed("1")))
    assert [c.id for c in await table.claim(limit=9)] == ids[3:4]
    await table.settle(ALICE, (first[0], Completed("1")), (first[2], Completed("1")))
    assert [c.id for c in await table.claim(limit=9)] == ids[4:6]


async def test_u07_the_key_goes_when_its_last_holder_does(table: Table):
    await allow(table, 2)
    await table.enqueue("1", "2", key="k")
    one, two = await table.claim(limit=9)
    await table.settle(ALICE, (two, Completed("1")))
    assert await table.db.fetchval("select holder from fleet.key") == one.id
    (third,) = await table.enqueue("3", key="k")
    assert [c.id for c in await table.claim(limit=9)] == [third], "there is room beside the first"
    await table.settle(ALICE, (one, Completed("1")))
    await table.db.execute("delete from fleet.task")
    assert await table.db.fetchval("select count(*) from fleet.key") == 0


async def test_u07_a_smaller_count_holds_for_who_comes_next(table: Table):
    await allow(table, 3)
    await table.enqueue(*["1"] * 5, key="k")
    held = await table.claim(limit=9)
    await allow(table, 1)
    await table.settle(ALICE, *[(c, Completed("1")) for c in held[:2]])
    assert await table.claim(limit=9) == [], "one of them still holds it"
    await table.settle(ALICE, (held[2], Completed("1")))
    assert len(await table.claim(limit=9)) == 1


async def test_f36_a_locked_key_with_a_thousand_behind_it_keeps_no_other_key_waiting(table, dsn):
    await table.enqueue("1", key="locked")
    held = await table.claim_one()
    operator = await asyncpg.connect(dsn)
    async with operator.transaction():
        await operator.execute("delete from fleet.task where id = $1", held.id)
        await table.enqueue(*["1"] * 1200, key="locked")
        (other,) = await table.enqueue("1", key="other")
        assert await claims.grant_keys(table.db) == 1
        assert [c.id for c in await table.claim(limit=9)] == [other]
    await operator.close()


async def test_f36_the_end_of_one_of_several_holders_never_waits_for_another(table, dsn):
    await allow(table, 2)
    ids = await table.enqueue(*["1"] * 4, key="k")
    one, two = await table.claim(limit=9)
    open_one = Table(await asyncpg.connect(dsn), table.policy)
    transaction = open_one.db.transaction()
    await transaction.start()
    await open_one.settle(ALICE, (one, Completed("1")))
    async with asyncio.timeout(5):
        await table.settle(ALICE, (two, Completed("1")))
    await transaction.commit()
    await open_one.db.close()
    assert [c.id for c in await table.claim(limit=9)] == ids[2:], "and nobody waits in vain"


async def test_u07_keys_go_on_in_a_database_with_another_default_isolation(db, dsn, fleet_db):
    app = Fleet(dsn)

    @app.job("serial", key="k")
    async def serial(ctx: Context, n: int) -> int:
        return n

    name = await db.fetchval("select current_database()")
    await db.execute(f"alter database {name} set default_transaction_isolation = 'serializable'")
    async with app:
        handles = [await serial.enqueue(n) for n in range(3)]
        await drain(app)
        assert [await handle.result(timeout=5) for handle in handles] == [0, 1, 2]
