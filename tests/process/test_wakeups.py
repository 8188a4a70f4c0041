"""Wake-ups: heard at once, by everybody who can work, and never load-bearing."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

import psutil

from tests.process.faults import FAST, host
from tests.process.fleets import eventually

# A beat so slow that nothing of what follows can come from it.
SLOW_BEAT = FAST.replace('lease = "3s"', 'lease = "60s"').replace(
    'empty_delay = "0.5s"', 'empty_delay = "15s"'
)


async def _armed(db, queue: str = "default") -> bool:
    """Whether the host sleeps, and asks to be woken."""
    return bool(await db.fetchval("select 1 from fleet.armed where queue = $1", queue))


async def test_u13_a_wake_fills_every_free_slot(dsn, db, tmp_path):
    with host(dsn, db, tmp_path, SLOW_BEAT) as here:
        await eventually(lambda: _armed(db))
        tasks = await here.enqueue_many("long-once", [None] * 10)
        began = time.monotonic()
        await here.running(*tasks)
        assert time.monotonic() - began < 5
        await here.stop_now()


async def test_u13_a_bad_payload_is_logged_and_ignored(dsn, db, tmp_path):
    with host(dsn, db, tmp_path, SLOW_BEAT) as here:
        await eventually(lambda: _armed(db))
        for channel in ("fleet_wake", "fleet_cancel", "fleet_control", "fleet_echo"):
            for payload in ("", "x", "-1", "{", "\u00e9\u4e16" * 100, "9" * 100, "' or 1=1; --"):
                await db.execute("select pg_notify($1, $2)", channel, payload)
        here.fleet.wait_log("NOTIFY fleet_cancel: ignored")
        await here.end(await here.enqueue("quick", 1), patience=10)
        assert here.fleet.alive
        assert "failed" not in here.fleet.log_text()


async def test_f17_u15_only_the_listening_backend_is_killed(dsn, db, tmp_path):
    with host(dsn, db, tmp_path, SLOW_BEAT) as here:
        listening = "select pid from pg_stat_activity where application_name = 'fleet listen'"
        for _ in range(3):
            await eventually(lambda: _armed(db))
            before = await eventually(lambda: db.fetchval(listening + _HERE))
            await db.execute("select pg_terminate_backend($1)", before)
            # Enqueued in the very gap: LISTEN comes first, then a look, so it is not missed.
            lost = await here.enqueue("quick", 1)
            began = time.monotonic()
            await here.end(lost, patience=10)
            assert time.monotonic() - began < 5

            async def again(before=before) -> bool:
                now = await db.fetchval(listening + _HERE)
                return now is not None and now != before

            await eventually(again)
            await here.end(await here.enqueue("quick", 2), patience=10)


_HERE = " and datname = current_database()"


async def test_p10_a_delayed_task_runs_when_it_is_due(dsn, db, tmp_path):
    """It is not late by a poll; one that is due before the next beat, by that beat at the most."""
    slow = FAST.replace('empty_delay = "0.5s"', 'empty_delay = "1s"')
    with host(dsn, db, tmp_path, slow) as here:
        tasks = [
            await db.fetchval(
                "select fleet.enqueue('quick', '1', queue => 'default', delay => $1::interval)",
                timedelta(seconds=delay),
            )
            for delay in (0.3, 1.35, 1.8, 2.2)
        ]
        snoozed = await here.enqueue("snooze", 0.2)
        await here.ended(*tasks, snoozed)
        sql = """
        select id, extract(epoch from started_at - ready_at)::float8 as late from fleet.archive
        """
        late = {row["id"]: row["late"] for row in await db.fetch(sql)}
        assert all(late[task] >= -0.001 for task in (*tasks, snoozed)), "before its time"
        assert late[tasks[0]] < 1.5
        assert max(late[task] for task in (*tasks[1:], snoozed)) < 0.5, late


async def test_p10_an_idle_fleet_hardly_asks(server, dsn, db, tmp_path):
    """A statement a beat; what else there is comes twice a minute or less."""
    await db.execute(f"alter database {dsn.rsplit('/', 1)[1]} set log_statement = 'all'")
    config = FAST.replace('empty_delay = "0.5s"', 'empty_delay = "1s"')
    with host(dsn, db, tmp_path, config) as here:
        await here.end(await here.enqueue("quick", 1))
        await eventually(lambda: _armed(db))
        sql = "select beat from fleet.owner"
        start = await db.fetchval(sql)
        await eventually(lambda: db.fetchval(f"select beat > {start} + 2 from fleet.owner"))
        supervisor = psutil.Process(here.fleet.pid)
        busy, before = supervisor.cpu_times(), server.log.read_text()
        # The time itself is what is measured here; nobody else asks meanwhile.
        await asyncio.sleep(4)
        now, after = supervisor.cpu_times(), server.log.read_text()
        made = [line for line in after[len(before) :].splitlines() if "LOG:  execute" in line]
        assert 3 <= len(made) <= 7, made
        cpu = now.user + now.system - busy.user - busy.system
        assert cpu / 4 < 0.2, f"{100 * cpu / 4:.0f} % of a CPU"
