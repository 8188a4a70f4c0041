"""The database goes away, in whole or in part: everything comes back by itself, nothing is lost."""

from __future__ import annotations

import signal
import time

import asyncpg

from tests.process.faults import FAST, host
from tests.process.fleets import eventually

PATIENT = FAST.replace('lease = "3s"', 'lease = "30s"')


async def _terminate(db, purpose: str) -> int:
    return await db.fetchval(
        "select count(pg_terminate_backend(pid)) from pg_stat_activity "
        " where datname = current_database() and application_name = $1",
        f"fleet {purpose}",
    )


async def _connected(dsn):
    try:
        return await asyncpg.connect(dsn)
    except (OSError, asyncpg.PostgresError):
        return None


async def test_p12_f14_postgresql_restarts_under_load(server, dsn, db, tmp_path):
    """At once (-m immediate): 0 acknowledged tasks lost, none charged, one log line in 5 s."""
    # The suite's servers are not durable; what is acknowledged must at least have been written.
    await db.execute(f"alter database {dsn.rsplit('/', 1)[1]} set synchronous_commit = on")
    await db.execute("set synchronous_commit = on")
    with host(dsn, db, tmp_path, PATIENT) as here:
        tasks = await here.enqueue_many("nap", [0.1] * 200)
        tasks += await here.enqueue_many("three", list(range(200)))

        await eventually(lambda: db.fetchval("select count(*) > 20 from fleet.archive"))
        server.restart(signal.SIGQUIT)
        back = time.monotonic()
        here.db = await eventually(lambda: _connected(dsn))
        try:

            async def claims() -> bool:
                sql = "select 1 from fleet.task where claimed_at > pg_postmaster_start_time()"
                return bool(await here.db.fetchval(sql))

            await eventually(claims)
            assert time.monotonic() - back < 10
            for row in await here.ended(*tasks):
                assert (row["how"], row["crashes"], row["losses"]) == ("succeeded", 0, 0)
            said = here.fleet.records("is not available")
            assert len(said) <= 1 + (time.monotonic() - back) / 5
        finally:
            await here.db.close()


async def test_p12_a_server_that_forgot_what_it_had_confirmed_strands_nothing(
    server, dsn, db, tmp_path
):
    """synchronous_commit = off, as many run it: finished tasks are back, and claimed by us."""
    await db.execute(f"alter database {dsn.rsplit('/', 1)[1]} set synchronous_commit = off")
    with host(dsn, db, tmp_path, PATIENT) as here:
        await here.enqueue_many("nap", [0.1] * 100)
        await eventually(lambda: db.fetchval("select count(*) > 20 from fleet.archive"))
        server.restart(signal.SIGQUIT)
        here.db = await eventually(lambda: _connected(dsn))
        try:
            await eventually(lambda: here.db.fetchval("select count(*) = 0 from fleet.task"))
            await here.end(await here.enqueue("quick", 1))
        finally:
            await here.db.close()


async def test_p12_every_connection_may_break_at_any_time(dsn, db, tmp_path):
    with host(dsn, db, tmp_path) as here:
        tasks = []
        for round_ in range(8):
            tasks += await here.enqueue_many("three", [round_] * 40)
            for purpose in ("claims", "writes", "beat", "listen"):
                await _terminate(db, purpose)
        for row in await here.ended(*tasks):
            assert (row["how"], row["crashes"], row["losses"]) == ("succeeded", 0, 0)
        for task in tasks:
            # A reply that is lost may cost a second run of a step, never two next steps at once.
            notes = [line["what"] for line in here.ledger.lines(task)]
            assert sorted(set(notes)) == ["last", "one", "two"]
        assert await db.fetchval("select count(*) from fleet.task") == 0
        assert "a part of the supervisor failed" not in here.fleet.log_text()


async def test_f34_after_a_lost_reply_to_a_claim_the_tasks_run_free_of_charge(dsn, db, tmp_path):
    """Claimed in the name of the owner, and its supervisor has never heard of it."""
    with host(dsn, db, tmp_path) as here:
        await here.ended(await here.enqueue("quick", 1))
        owner = await db.fetchval("select id from fleet.owner")
        async with db.transaction():
            tasks = await here.enqueue_many("quick", list(range(20)))
            await db.execute(
                "update fleet.task set state = 'running', owner = $1, fence = fence + 1,"
                " claimed_at = fleet.now() where id = any ($2::bigint[])",
                owner,
                tasks,
            )
        # The connection breaks, so the supervisor must ask itself what it may have missed.
        await _terminate(db, "claims")
        await here.enqueue("quick", 1)
        for row in await here.ended(*tasks):
            assert (row["how"], row["crashes"], row["losses"]) == ("succeeded", 0, 0)
            assert await here.attempts(row["id"]) == []
        here.fleet.wait_log("never reached us")


async def test_f34_a_lock_on_what_is_to_be_given_back_is_waited_out(dsn, db, tmp_path):
    config = FAST.replace("concurrency = 10", "concurrency = 1")
    with host(dsn, db, tmp_path, config) as here:
        task = await here.enqueue("nap", 0.5)
        await here.running(task)
        other = await asyncpg.connect(dsn)
        try:
            async with other.transaction():
                await other.execute("select from fleet.task where id = $1 for update", task)
                await here.enqueue_many("quick", list(range(10)))
                here.fleet.until(lambda: here.ledger.lines(task, "end"), "its step has ended")
            row = await here.end(task)
            assert (row["how"], row["crashes"], here.ledger.started(task)) == ("succeeded", 0, 1)
        finally:
            await other.close()


async def test_p12_a_beat_that_fails_is_said_now_and_then(dsn, db, tmp_path):
    """Somebody took a right away, or is in the middle of a migration."""
    with host(dsn, db, tmp_path) as here:
        await here.end(await here.enqueue("quick", 1))
        beat = "fleet.beat(bigint, text, jsonb, text[], text[])"
        began = time.monotonic()
        await db.execute(f"alter function {beat} rename to gone")
        here.fleet.wait_log("could not be renewed")
        said = len(here.fleet.records("the beat failed"))
        assert 1 <= said <= 1 + (time.monotonic() - began) / 5
        await db.execute(f"alter function {beat.replace('beat', 'gone')} rename to beat")
        await here.end(await here.enqueue("quick", 2))


async def test_f20_a_locked_table_costs_no_lease(dsn, db, tmp_path):
    """... although another owner has fallen silent and is to be taken over just then."""
    with host(dsn, db, tmp_path) as here:
        task = await here.enqueue("long-once")
        await here.running(task)
        await db.execute("insert into fleet.owner (host, pid, lease) values ('gone', 1, 1)")
        owner = (await here.row(task))["owner"]
        first = await db.fetchval("select beat from fleet.owner where id = $1", owner)
        other = await asyncpg.connect(dsn)
        try:
            async with other.transaction():
                await other.execute("lock table fleet.task in access exclusive mode")

                async def over_a_lease() -> bool:
                    beat = await other.fetchval("select beat from fleet.owner where id = $1", owner)
                    return beat > first + 8

                await eventually(over_a_lease)
        finally:
            await other.close()
        assert here.ledger.started(task) == 1
        assert (await here.row(task))["owner"] == owner
        await eventually(lambda: _only(db, owner))
        await here.stop_now()


async def _only(db, owner) -> bool:
    return await db.fetchval("select array_agg(id) from fleet.owner") == [owner]
