"""Hosts fall silent, stall, or lose the database: what they held runs elsewhere, and only there."""

from __future__ import annotations

import contextlib
import os
import signal
import time

from tests.process.faults import FAST, alive, host, kill
from tests.process.fleets import eventually


def stop_all(pids, number):
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


async def test_f04_p04_a_killed_supervisor_takes_its_workers_with_it(dsn, db, tmp_path):
    """... also one whose step holds the interpreter; another host takes the tasks over."""
    two = FAST.replace("processes = 1", "processes = 2")
    with host(dsn, db, tmp_path, two) as here:
        here.fleet.wait_ready(2)
        napping = await here.enqueue("long-once")
        await here.running(napping)
        stuck = await here.enqueue("gil-long")
        await here.running(stuck)
        assert here.ledger.pid(napping) != here.ledger.pid(stuck)
        workers = here.fleet.worker_pids()
        with host(dsn, db, tmp_path, two, name="host-b") as there:
            there.fleet.wait_ready(2)
            here.fleet.kill()
            killed = time.monotonic()
            here.fleet.until(lambda: not any(map(alive, workers)), "the workers are gone", 5)
            await there.running(napping, times=2)
            taken = time.monotonic() - killed
            # Never before the lease is over: as a whole lease is watched by somebody else.
            assert 2.4 < taken < 15
            row = await there.end(napping)
            assert (row["how"], row["losses"], row["crashes"]) == ("succeeded", 1, 0)
            assert [how for how, _ in await there.attempts(napping)] == ["lost"]
            assert there.ledger.started(napping) == 2
            await there.stop_now()
    assert await db.fetchval("select count(*) from fleet.owner where state <> 'taken'") == 0


async def test_f06_p07_a_stalled_host_cannot_write_what_was_taken_over(dsn, db, tmp_path):
    with host(dsn, db, tmp_path) as here, host(dsn, db, tmp_path, name="host-b") as there:
        # Which of the two claims it is chance: whoever does is the one that stalls.
        task = await here.enqueue("nap", 1.5)
        await here.running(task)
        stalled, other = (
            (here, there) if here.ledger.pid(task) in here.fleet.worker_pids() else (there, here)
        )
        owner = (await here.row(task))["owner"]
        tree = list(stalled.fleet.processes())
        stop_all(tree, signal.SIGSTOP)
        try:
            await other.running(task, times=2)
            fence = (await other.row(task))["fence"]
        finally:
            stop_all(tree, signal.SIGCONT)
        stalled.fleet.wait_log("has taken this one's tasks over")
        row = await other.end(task)
        assert (row["how"], row["losses"]) == ("succeeded", 1)
        worker, written = await db.fetchrow(
            "select worker, fence from fleet.archive where id = $1", task
        )
        assert worker.startswith(other.fleet.name)
        assert written == fence
        assert [how for how, _ in await other.attempts(task)] == ["lost"]
        # What it would have written does not count as written.
        stalled.fleet.until(lambda: 'lease_losses_total{queue="default"} 1.0' in _told(stalled), "")
        assert 'outcome="released"' not in _told(stalled)

        # It starts again as somebody new, and works.
        more = await here.enqueue_many("quick", list(range(100)))
        await here.ended(*more)
        owners = await db.fetch("select id from fleet.owner where state <> 'taken'")
        assert len(owners) == 2
        assert owner not in {o["id"] for o in owners}
        assert await db.fetchval("select count(*) from fleet.task where owner = $1", owner) == 0


def _told(here) -> str:
    """What it tells Prometheus."""
    return here.fleet.get("/metrics")[1]


async def test_f06_nothing_stays_claimed_by_an_owner_that_is_gone(dsn, db, tmp_path):
    """A host that is taken over while it claims must not strand what it got."""
    with host(dsn, db, tmp_path) as here:
        for _ in range(3):
            await here.ended(await here.enqueue("quick", 1))
            # As a takeover does it, at a moment at which the host has no idea.
            tasks = await here.enqueue_many("quick", list(range(200)))
            await db.execute("delete from fleet.owner")
            tasks += await here.enqueue_many("quick", list(range(200)))
            for row in await here.ended(*tasks, patience=20):
                assert (row["how"], row["losses"], row["crashes"]) == ("succeeded", 0, 0)


async def test_u11_p05_one_lease_an_owner_bumped_by_the_beat(dsn, db, tmp_path):
    """Task rows are not touched by it, however many there are."""
    with host(dsn, db, tmp_path) as here:
        tasks = await here.enqueue_many("nap", [20.0] * 8)
        await here.running(*tasks)
        versions = "select array_agg(xmin::text order by id) from fleet.task"
        before = await db.fetchval(versions)
        first = await db.fetchval("select beat from fleet.owner")

        async def beaten() -> bool:
            return await db.fetchval("select beat from fleet.owner") >= first + 4

        await eventually(beaten)
        assert await db.fetchval(versions) == before
        assert await db.fetchval("select count(*) from fleet.owner") == 1
        await here.stop_now()
    rows = await db.fetch("select state, losses, crashes, releases from fleet.task")
    assert {tuple(row) for row in rows} == {("ready", 0, 0, 1)}


async def test_f08_r07_a_step_that_holds_the_interpreter_keeps_its_lease(dsn, db, tmp_path):
    """It is alive, because its supervisor is: nobody takes it over, it is killed at its timeout."""
    with host(dsn, db, tmp_path) as here, host(dsn, db, tmp_path, name="host-b"):
        task = await here.enqueue("gil-long")
        await here.running(task)
        row = await here.row(task)
        beat = "select beat from fleet.owner where id = $1"
        first = await db.fetchval(beat, row["owner"])

        async def over_a_lease() -> bool:
            return (await db.fetchval(beat, row["owner"]) or 0) > first + 8

        await eventually(over_a_lease)
        now = await here.row(task)
        assert (now["owner"], now["fence"]) == (row["owner"], row["fence"])
        assert here.ledger.started(task) == 1
        kill(here.ledger.pid(task))
        await db.execute("select fleet.cancel($1)", task)


async def test_p06_without_a_renewal_the_steps_are_aborted_free_of_charge(
    server, dsn, db, tmp_path
):
    """The database is away for longer than 0.8 of the lease."""
    with host(dsn, db, tmp_path) as here:
        task = await here.enqueue("long-once")
        await here.running(task)
        pid = here.ledger.pid(task)
        server.stop(signal.SIGINT)
        try:
            here.fleet.until(lambda: not alive(pid), "its worker is stopped", 10)
            here.fleet.wait_log("all workers are stopped")
        finally:
            server.start()
        await here.running(task, times=2)
        fresh = await eventually(lambda: connected(dsn))
        try:
            here.db = fresh
            row = await here.end(task)
            assert (row["how"], row["losses"], row["crashes"]) == ("succeeded", 0, 0)
            assert [how for how, _ in await here.attempts(task)] == ["released"]
            assert await fresh.fetchval("select count(*) from fleet.owner") == 1
        finally:
            await fresh.close()


async def connected(dsn):
    import asyncpg

    try:
        return await asyncpg.connect(dsn)
    except (OSError, asyncpg.PostgresError):
        return None
