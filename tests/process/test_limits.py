"""Limits that hold in the whole fleet, whoever is killed, judged by the database's own record."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from contextlib import ExitStack

import psutil
import pytest

from tests.process.faults import FAST, host, kill
from tests.process.fleets import archived, enqueue, eventually, running_fleet

APP = """
import asyncio
from pathlib import Path
from fleet import Context, Fleet

app = Fleet()

async def nap(ctx: Context, seconds: float) -> None:
    await asyncio.sleep(seconds)

for queue in ("api", "mail", "free"):
    app.job(queue, queue=queue)(nap)
app.job("report", queue="free", limit=2)(nap)
app.job("ping", queue="free", rate="20/s")(nap)

@app.job("gate", queue="api")
async def gate(ctx: Context, name: str) -> None:
    while not Path(name).exists():
        await asyncio.sleep(0.01)
"""
CONFIG = (
    FAST
    + """
[queues.api]
limit = 3
[queues.mail]
limit = 5
[queues.free]
"""
)
LIMITS = {"queue api": 3, "queue mail": 5, "job report": 2}

# Every claim and every end of one, with its time: a claim is made with the gate's row locked, so it
# comes after the end, and its commit, of whatever made room for it.
_RECORD = """
create table public.record (at timestamptz default clock_timestamp(), what text, n int);
create function public.record() returns trigger language plpgsql security definer as $$
begin
    insert into public.record (what, n) values
        ('queue ' || old.queue,
         case when tg_op = 'UPDATE' and new.state = 'running' then 1 else -1 end),
        ('job ' || old.job,
         case when tg_op = 'UPDATE' and new.state = 'running' then 1 else -1 end);
    return null;
end $$;
create trigger recorded after update on fleet.task for each row
    when ((old.state = 'running') is distinct from (new.state = 'running'))
    execute function public.record();
create trigger recorded_end after delete on fleet.task for each row
    when (old.state = 'running') execute function public.record();
"""


async def most_at_once(db) -> Counter[str]:
    """The most that ran at any instant, of each queue and each job."""
    running: Counter[str] = Counter()
    most: Counter[str] = Counter()
    for row in await db.fetch("select what, n from public.record order by at"):
        running[row["what"]] += row["n"]
        most[row["what"]] = max(most[row["what"]], running[row["what"]])
    return most


async def disturb(hosts, db, seed: int) -> None:
    """Kill a worker every half second, and one of the supervisors once, until cancelled."""
    chance = random.Random(seed)
    doomed = hosts[-1]
    for n in range(1000):
        await asyncio.sleep(0.5)
        if n == 3:
            doomed.fleet.kill()
        alive = [h for h in hosts if h is not doomed or n < 3]
        if pids := chance.choice(alive).fleet.worker_pids():
            with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
                kill(chance.choice(pids))


async def test_limits_hold_on_four_hosts_whoever_is_killed(dsn, db, tmp_path):
    await db.execute(_RECORD)
    with ExitStack() as stack:
        hosts = [
            stack.enter_context(host(dsn, db, tmp_path, CONFIG, name=f"host-{n}", app=APP))
            for n in range(4)
        ]
        tasks = []
        for job, queue in (("api", "api"), ("mail", "mail"), ("report", "free")):
            tasks += await hosts[0].enqueue_many(job, [0.02] * 120, queue=queue)
        tasks += await hosts[0].enqueue_many("free", [0.02] * 500, queue="free")
        killing = asyncio.create_task(disturb(hosts, db, seed=4))
        try:
            rows = await hosts[0].ended(*tasks, patience=90)
        finally:
            killing.cancel()
        assert {row["how"] for row in rows} == {"succeeded"}, Counter(r["how"] for r in rows)
        most = await most_at_once(db)
        # Never above it, and all of it was used.
        assert {what: most[what] for what in LIMITS} == LIMITS
        assert most["queue free"] > LIMITS["job report"], "what has no limit is not held up"
        for each in hosts[:-1]:
            await each.stop_now()


async def test_a_rate_is_kept_by_the_whole_fleet(dsn, db, tmp_path):
    with (
        host(dsn, db, tmp_path, CONFIG, name="host-a", app=APP) as here,
        host(dsn, db, tmp_path, CONFIG, name="host-b", app=APP),
    ):
        await here.ended(*await here.enqueue_many("ping", [0] * 70, queue="free"))
        rows = await db.fetch(
            "select extract(epoch from started_at)::float8 as at from fleet.archive"
            " where job = 'ping' order by 1"
        )
        starts = [row["at"] for row in rows]
        # At most a bucket of 20, and 20 more a second: between any two starts. What the fleet
        # noted as a start is the step's, a little after the claim that was let in.
        for first in range(len(starts)):
            for last in range(first + 1, len(starts)):
                assert last - first + 1 <= 20 + 20 * (starts[last] - starts[first]) + 10


async def test_a_limit_is_set_live_and_what_runs_counts(dsn, db):
    with running_fleet(dsn, APP, FAST, name="host-a") as fleet:
        tasks = [await enqueue(db, "gate", "go", "api") for _ in range(8)]
        running = "select count(*) from fleet.task where queue = 'api' and state = 'running'"

        async def all_run() -> bool:
            return await db.fetchval(running) == 8

        await eventually(all_run)
        told = fleet.command("queue", "set", "api", "limit=2", "rate=1000/s").stdout
        assert "limit = 2, rate = 1000/s" in told
        fleet.wait_log("at most 2 at once in the fleet, no more than 1000/s")
        more = [await enqueue(db, "gate", "more", "api") for _ in range(4)]
        counted = "select count(*) from fleet.task where counted"

        async def all_counted() -> bool:
            return await db.fetchval(counted) == 8

        await eventually(all_counted)
        (fleet.folder / "go").touch()
        await archived(db, *tasks)

        async def two_run() -> bool:
            return await db.fetchval(running) == 2

        await eventually(two_run)
        assert await db.fetchval("select count(*) from fleet.task where queue = 'api'") == 4
        fleet.command("queue", "reset", "api", "limit")
        await eventually(lambda: _is(db, running, 4))
        (fleet.folder / "more").touch()
        await archived(db, *more)


async def _is(db, sql: str, value: object) -> bool:
    return bool(await db.fetchval(sql) == value)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("limit=0", "from 1 to 1,000,000"),
        ("rate=fast", 'must be a rate like "100/s"'),
        ("rate=10/s burst 0", 'must be a rate like "100/s"'),
    ],
)
def test_what_is_no_limit_is_refused(fleet, said, told):
    result = fleet("queue", "set", "images", said, code=1)
    assert told in result.stderr
