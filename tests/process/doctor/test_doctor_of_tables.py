"""``fleet doctor``: what it finds in the tables, and who keeps vacuum from them."""

from __future__ import annotations

import asyncio

from tests.process.doctor.visits import as_role, one, visit
from tests.servers import wait_until


async def test_a_table_that_is_not_vacuumed(fleet, app, db):
    await db.execute("alter table fleet.task set (autovacuum_enabled = off)")
    assert "reset (autovacuum_enabled)" in one(visit(fleet), "autovacuum", "warning")

    await app.jobs["charge"].enqueue_many(["valid"] * 12_000)
    await db.execute("delete from fleet.task")
    await db.execute("select pg_stat_force_next_flush()")
    warnings = [told for told in visit(fleet)["autovacuum"] if told[0] == "warning"]
    assert any("dead" in told[1] for told in warnings)


async def test_autovacuum_off_for_the_whole_server(fleet, db):
    await db.execute("alter system set autovacuum = off")
    try:
        await db.execute("select pg_reload_conf()")
        await asyncio.to_thread(
            wait_until, lambda: any(told[0] == "warning" for told in visit(fleet)["autovacuum"])
        )
        assert "autovacuum is off" in one(visit(fleet), "autovacuum", "warning")
    finally:
        await db.execute("alter system reset autovacuum")
        await db.execute("select pg_reload_conf()")


async def test_an_old_snapshot_and_who_holds_it(fleet, db, dsn, role):
    await db.execute("set application_name = 'report'")
    await db.execute("begin isolation level repeatable read")
    await db.execute("select count(*) from fleet.task")
    pid = await db.fetchval("select pg_backend_pid()")

    found = visit(fleet, "--patience", "1ms")
    assert f"session pid {pid} report" in one(found, "idle-in-transaction", "warning")
    assert f"pg_terminate_backend({pid})" in one(found, "idle-in-transaction", "warning")
    assert found["snapshot"][0][0] == "ok"  # said once
    # One that is at work and holds its snapshot.
    working = asyncio.create_task(db.execute("select pg_sleep(60)"))
    found = await asyncio.to_thread(visit, fleet, "--patience", "1ms")
    assert f"pid {pid} report of " in one(found, "snapshot", "warning")
    assert found["idle-in-transaction"][0][0] == "ok"
    assert visit(fleet, "--patience", "1h")["snapshot"][0][0] == "ok"
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    await db.execute("rollback")

    fleet("grant", "worker", role)
    blind = visit(fleet, "--database-url", as_role(dsn, role))
    assert "pg_read_all_stats" in one(blind, "snapshot", "note")


async def test_a_prepared_transaction_that_was_forgotten(fleet, db):
    await db.execute("begin; insert into fleet.key values ('q', 'k'); prepare transaction 'lost-1'")
    try:
        said = one(visit(fleet, "--patience", "1ms"), "snapshot", "warning")
        assert "prepared transaction lost-1" in said
        assert "rollback prepared 'lost-1'" in said
    finally:
        await db.execute("rollback prepared 'lost-1'")


async def test_partitions_that_are_missing_and_rows_without_one(fleet, db, fleet_clock):
    assert len(visit(fleet)["partitions"]) == 2  # the template of test databases has none at all
    await db.execute("select fleet.maintain()")
    assert one(visit(fleet), "partitions", "ok")
    await db.execute(
        """
        insert into fleet.attempt (keep_until, task_id, fence, started_at, ended_at, visit, attempt,
                                   queue, job, step, outcome)
        values (fleet.now() + interval '90 days', 1, 1, now(), now(), 1, 1, 'q', 'j', 's', 'failed')
        """
    )
    assert "kept for over 3 weeks" in one(visit(fleet), "partitions", "note")

    await fleet_clock.advance(days=6)
    said = [told[1] for told in visit(fleet)["partitions"]]
    assert "fleet.archive has partitions for 1 more days" in said

    await fleet_clock.advance(days=70)
    said = [told[1] for told in visit(fleet)["partitions"]]
    assert "1 rows in fleet.attempt_default that have no day there" in said
