"""Shutdown: by signal and by NOTIFY, to the fleet, a host or a queue; acknowledged, and awaited."""

from __future__ import annotations

import json
import os
import signal
import time

from tests.process.fleets import archived, enqueue, eventually, running_fleet

# "hold" runs until its file is there, or a drain asks it to hurry if its input says so.
APP = """
import asyncio
import time
from pathlib import Path
from fleet import Context, Fleet

app = Fleet()

@app.job("noop")
async def noop(ctx: Context, n: int) -> int:
    return n

async def until_told(ctx: Context, name: str) -> str:
    while not Path(name).exists():
        await asyncio.sleep(0.01)
    return name

@app.job("hold")
async def hold(ctx: Context, name: str) -> str:
    return await until_told(ctx, name)

@app.job("resize", queue="images")
async def resize(ctx: Context, name: str) -> str:
    return await until_told(ctx, name)

@app.job("polite")
async def polite(ctx: Context) -> str:
    while not ctx.draining.is_set():
        await asyncio.sleep(0.01)
    return "hurried"

@app.job("stubborn")
def stubborn(ctx: Context) -> None:
    while not Path("go").exists():
        time.sleep(0.01)
"""
IMAGES = "[queues.images]\nprocesses = 1\n"
RUNNING = "select count(*) from fleet.task where state = 'running' and job = $1"


async def running(db, job, n=1):
    async def look():
        return await db.fetchval(RUNNING, job) == n

    await eventually(look)


async def state_of(db, task):
    return await db.fetchrow("select * from fleet.task where id = $1", task)


# ── signals ──────────────────────────────────────────────────────────────────────────────────────


async def test_sigterm_lets_a_running_step_finish(dsn, db):
    with running_fleet(dsn, APP) as fleet:
        task, hurried = await enqueue(db, "hold", "go"), await enqueue(db, "polite")
        await running(db, "hold")
        await running(db, "polite")
        fleet.send(signal.SIGTERM)
        fleet.wait_log("draining")
        late = await enqueue(db, "noop", 1)
        assert (await archived(db, hurried))[0]["result"] == '"hurried"'
        assert fleet.alive
        (fleet.folder / "go").touch()
        assert fleet.ended() == 0
        fleet.assert_no_orphans()

        assert (await archived(db, task))[0]["result"] == '"go"'
        assert (await state_of(db, late))["state"] == "ready"
        assert await db.fetchval("select count(*) from fleet.owner") == 0


async def test_after_drain_timeout_the_rest_is_released_at_no_cost(dsn, db):
    config = '[supervisor]\ndrain_timeout = "300ms"\n'
    with running_fleet(dsn, APP, config) as fleet:
        tasks = [await enqueue(db, "hold", "never"), await enqueue(db, "stubborn")]
        await running(db, "hold")
        await running(db, "stubborn")
        assert fleet.stop() == 0

        for task in tasks:
            row = await state_of(db, task)
            assert (row["state"], row["owner"]) == ("ready", None)
            assert (row["releases"], row["failures"], row["crashes"]) == (1, 0, 0)
        assert await db.fetchval("select count(*) from fleet.buried") == 0


async def test_the_second_sigterm_ends_it_now(dsn, db):
    with running_fleet(dsn, APP) as fleet:  # its drain would take 25 s
        task = await enqueue(db, "hold", "never")
        await running(db, "hold")
        fleet.send(signal.SIGTERM)
        fleet.wait_log("draining")
        began = time.monotonic()
        assert fleet.stop() == 0
        assert time.monotonic() - began < 10
        row = await state_of(db, task)
        assert (row["state"], row["releases"], row["crashes"]) == ("ready", 1, 0)


# When each claim was made, by the database's clock, which is this machine's.
CLAIMS = """
create table public.claims (at timestamptz);
create function public.note() returns trigger language plpgsql as $$ begin
    insert into public.claims
    select clock_timestamp() from after_it join before_it using (id)
     where after_it.state = 'running' and before_it.state = 'ready' limit 1;
    return null;
end $$;
create trigger note after update on fleet.task
    referencing new table as after_it old table as before_it
    for each statement execute function public.note();
"""
MANY = """
select count(fleet.enqueue('noop', to_jsonb(n), queue => 'default'))
  from generate_series(1, 20000) n
"""


async def test_nothing_is_claimed_after_sigterm(dsn, db):
    await db.execute(CLAIMS)
    await db.execute(MANY)
    with running_fleet(dsn, APP, args=["--processes", "2"]) as fleet:

        async def begun():
            return await db.fetchval("select count(*) from fleet.archive") > 500

        await eventually(begun)
        sent = time.time()
        fleet.send(signal.SIGTERM)
        assert fleet.ended() == 0

        last = await db.fetchval("select extract(epoch from max(at))::float8 from claims")
        left = await db.fetchval("select count(*) from fleet.task where state = 'ready'")
        done = await db.fetchval("select count(*) from fleet.archive")
        assert left > 0, "it drained before the work was done"
        assert left + done == 20_000
        assert last - sent < 1.0  # measured: 0 to 26 ms, the claim that was under way


# ── by NOTIFY ────────────────────────────────────────────────────────────────────────────────────


async def test_u14_p11_the_whole_fleet_is_told_and_awaited(dsn, db):
    with (
        running_fleet(dsn, APP, name="host-a") as a,
        running_fleet(dsn, APP, name="host-b") as b,
    ):
        await enqueue(db, "polite")
        told = a.command.json("shutdown", "--wait")
        assert {owner["host"]: owner["state"] for owner in told["owners"]} == {
            "host-a": "down",
            "host-b": "down",
        }
        assert (a.ended(), b.ended()) == (0, 0)
        states = await db.fetch("select state from fleet.shutdown_ack")
        assert [row["state"] for row in states] == ["down", "down"]
        assert await db.fetchval("select count(*) from fleet.owner") == 0


async def test_u14_one_host(dsn, db):
    with (
        running_fleet(dsn, APP, name="host-a") as a,
        running_fleet(dsn, APP, name="host-b") as b,
    ):
        said = a.command("shutdown", "--host", "host-a", "--wait").stdout
        assert "host-a" in said
        assert "is down" in said
        assert "host-b" not in said
        assert a.ended() == 0
        assert (await archived(db, await enqueue(db, "noop", 1)))[0]["result"] == "1"
        assert b.alive


async def test_u14_one_queue_with_workers_of_its_own(dsn, db):
    with running_fleet(dsn, APP, IMAGES) as fleet:
        fleet.wait_ready(2)
        task = await enqueue(db, "resize", "go", "images")
        await running(db, "resize")
        fleet.command("shutdown", "--queue", "images")
        fleet.wait_log("told to shut down queue images")
        (fleet.folder / "go").touch()
        await archived(db, task)
        fleet.until(lambda: not fleet.worker_pids("images"), "its workers are gone")

        late = await enqueue(db, "resize", "go", "images")
        await archived(db, await enqueue(db, "noop", 1))
        assert (await state_of(db, late))["state"] == "ready"

        # Until the supervisor starts again, and no longer.
        assert fleet.stop() == 0
        fleet.start().wait_ready(2)
        await archived(db, late)


async def test_u14_one_queue_of_the_shared_pool(dsn, db):
    with running_fleet(dsn, APP) as fleet:
        task = await enqueue(db, "resize", "go", "images")
        await running(db, "resize")
        waiting = fleet.command.start("shutdown", "--queue", "images", "--wait", "--json")
        fleet.wait_log("told to shut down queue images")
        assert waiting.poll() is None
        (fleet.folder / "go").touch()
        assert json.loads(waiting.communicate(timeout=30)[0])["owners"][0]["state"] == "down"
        await archived(db, task)
        late = await enqueue(db, "resize", "go", "images")
        await archived(db, await enqueue(db, "noop", 1))
        assert (await state_of(db, late))["state"] == "ready"
        assert fleet.alive


async def test_an_old_command_does_not_stop_who_starts_later(dsn, db):
    with running_fleet(dsn, APP) as fleet:
        fleet.command("shutdown", "--wait")
        assert fleet.ended() == 0
        fleet.start()
        fleet.until(lambda: len(fleet.records("started")) == 2, "it has started again")
        fleet.wait_ready()
        await archived(db, await enqueue(db, "noop", 1))
        assert fleet.alive


async def test_wait_ends_with_an_error_when_time_is_up(dsn, db):
    with running_fleet(dsn, APP) as fleet:
        await enqueue(db, "hold", "go")
        await running(db, "hold")
        told = fleet.command("shutdown", "--wait", "--timeout", "500ms", code=1)
        assert "drains" in told.stdout
        assert "not down after 0.5s: host-a" in told.stderr
        (fleet.folder / "go").touch()
        assert fleet.ended() == 0


async def test_wait_takes_a_silent_host_for_dead(dsn, db):
    config = '[supervisor]\nlease = "600ms"\n[fetch]\nempty_delay = "100ms"\n'
    with running_fleet(dsn, APP, config) as fleet:
        fleet.kill()
        fleet.assert_no_orphans()
        assert "taken for dead" in fleet.command("shutdown", "--wait").stdout


async def test_a_scope_that_nobody_has_is_refused(dsn, fleet):
    assert "Nobody runs tasks" in fleet("shutdown", "--wait").stdout
    with running_fleet(dsn, APP) as running:
        told = running.command("shutdown", "--host", "host-z", code=1).stderr
        assert "no supervisor has host 'host-z'. Hosts: host-a. Queues: default, images" in told
        told = running.command("shutdown", "--queue", "imagse", code=1).stderr
        assert "no supervisor has queue 'imagse'" in told
        assert running.alive


async def test_a_killed_supervisor_takes_its_workers_along(dsn, db):
    with running_fleet(dsn, APP, args=["--processes", "2"]) as fleet:
        await enqueue(db, "hold", "never")
        await running(db, "hold")
        os.kill(fleet.pid, signal.SIGKILL)
        fleet.ended()
        fleet.assert_no_orphans()
