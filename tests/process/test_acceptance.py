"""One dedicated and three shared queues, mixed work, and a worker killed again and again.

FLEET_TEST_LONG=1 is the long form: 10,000 tasks, a worker a second for 20 s.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import time

import pytest

from tests.process.faults import APP, FAST, host, kill
from tests.process.fleets import eventually

LONG = bool(os.environ.get("FLEET_TEST_LONG"))
TASKS, KILLS, PAUSE = (10_000, 20, 1.0) if LONG else (3_000, 8, 0.7)

MIXED = (
    APP
    + """

@app.job("email", queue="emails")
async def email(ctx: Context, n: int) -> int:
    await asyncio.sleep(n % 7 / 200)
    return n


@app.job("entry", queue="ledger")
async def entry(ctx: Context, n: int) -> int:
    return n


@app.job("effect", queue="emails")
def effect(ctx: Context, n: int) -> int:
    return sum(range(n * 20))


booked: Job[int, int] = app.job("booked")


@booked.step
async def prepare(ctx: Context, n: int) -> int:
    return n


@booked.step(transactional=True)
async def book(ctx: Context, n: int) -> int:
    await ctx.tx.execute("insert into effects (task) values ($1)", ctx.task_id)
    return n


@booked.step
async def close(ctx: Context, n: int) -> int:
    return n


@app.job("crop", queue="images")
def crop(ctx: Context, n: int) -> int:
    time.sleep(0.002)
    return n
"""
)
CONFIG = (
    FAST.replace("processes = 1", "processes = 2").replace('lease = "3s"', 'lease = "10s"')
    + "[queues.default]\n[queues.emails]\nweight = 2\n[queues.ledger]\n"
    + "[queues.images]\nprocesses = 1\n"
)
JOBS = [
    ("quick", "default"),
    ("booked", "default"),
    ("three", "default"),
    ("email", "emails"),
    ("effect", "emails"),
    ("entry", "ledger"),
    ("crop", "images"),
]


@pytest.mark.timeout(300)
async def test_acceptance_ten_thousand_tasks_and_a_worker_killed_every_second(dsn, db, tmp_path):
    await db.execute("create table effects (task bigint not null)")
    chance = random.Random(3)
    with host(dsn, db, tmp_path, CONFIG, app=MIXED) as here:
        here.fleet.wait_ready(3)
        tasks: list[int] = []
        killed = 0
        share = TASKS // KILLS
        for _ in range(KILLS):
            # As they come: most of it is under way when a worker dies.
            for job, queue in JOBS:
                numbers = [chance.randrange(50) for _ in range(-(-share // len(JOBS)))]
                tasks += await here.enqueue_many(job, numbers, queue=queue)
            workers = here.fleet.worker_pids()
            if workers:
                kill(chance.choice(workers))
                killed += 1
            await asyncio.sleep(PAUSE)  # the pace of the killer
        rows = await here.ended(*tasks, patience=60)

        assert len(tasks) >= TASKS
        assert {row["how"] for row in rows} == {"succeeded"}
        assert {(row["losses"], row["failures"]) for row in rows} == {(0, 0)}
        assert max(row["crashes"] for row in rows) <= 2
        assert await db.fetchval("select count(*) from fleet.task") == 0
        doubled = "select id from fleet.archive group by id having count(*) > 1"
        assert await db.fetch(doubled) == []

        # What is written in the step's own transaction happened once for each.
        ledger = await db.fetchrow(
            "select count(*) as n, count(distinct task) as tasks from effects"
        )
        booked = await db.fetchval("select count(*) from fleet.archive where job = 'booked'")
        assert (ledger["n"], ledger["tasks"]) == (booked, booked)

        # Causes are what happened: every restart was a kill of ours.
        causes = {
            cause: int(float(number))
            for cause, number in re.findall(
                r'restarts[^{\n]*\{[^}]*cause="([^"]+)"[^}]*\} (\S+)', here.fleet.get("/metrics")[1]
            )
        }
        assert {cause: n for cause, n in causes.items() if n} == {"signal": killed}, causes
        crashed = await db.fetch(
            "select error ->> 'message' as said from fleet.attempt where outcome = 'crashed'"
        )
        assert all("killed by SIGKILL" in row["said"] for row in crashed)
        fences = "select task_id from fleet.attempt group by task_id, fence having count(*) > 1"
        assert await db.fetch(fences) == []
        held = "select count(*) from pg_stat_activity where datname = current_database()"
        assert await db.fetchval(held) <= 1 + 4 + 3 * 4  # ours, its four, four a worker
    assert here.fleet.process is not None
    assert here.fleet.process.returncode == 0
    await eventually(lambda: _nobody_connected(db))
    assert await db.fetchval("select count(*) from fleet.owner") == 0


async def _nobody_connected(db) -> bool:
    sql = """
    select count(*) = 0 from pg_stat_activity
     where datname = current_database() and pid <> pg_backend_pid() and application_name ~ '^fleet'
    """
    return await db.fetchval(sql)


async def test_f01_targets_from_kill_to_running_again(dsn, db, tmp_path, record_property):
    """p99 of a hundred (FLEET_TEST_KILLS) is to be under a second; here a generous bound."""
    times = int(os.environ.get("FLEET_TEST_KILLS") or 5)
    took = []
    with host(dsn, db, tmp_path) as here:
        for _ in range(times):
            task = await here.enqueue("long-once")
            await here.running(task)
            pid = here.ledger.pid(task)
            killed = time.monotonic()
            kill(pid)
            await here.running(task, times=2)
            took.append(here.ledger.lines(task, "start")[1]["at"] - killed)
            await here.end(task)
    took.sort()
    record_property("p50", took[times // 2])
    record_property("p99", took[int(times * 0.99)])
    assert took[times // 2] < 2
