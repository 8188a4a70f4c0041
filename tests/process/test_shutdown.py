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

@app.job("polite-image", queue="images")
async def polite_image(ctx: Context) -> str:
    await ctx.draining.wait()
    return "hurried"

@app.job("stubborn-image", queue="images")
def stubborn_image(ctx: Context) -> None:
    time.sleep(1000)

@app.job("deaf-image", queue="images")
async def deaf_image(ctx: Context) -> None:
    while True:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            pass

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


async def test_u14_a_shared_queue_is_drained_for_so_long_and_its_neighbours_run_on(dsn, db):
    config = '[supervisor]\ndrain_timeout = "500ms"\nprocesses = 2\n'
    with running_fleet(dsn, APP, config) as fleet:
        fleet.wait_ready(2)
        cut_off = [await enqueue(db, "stubborn-image", queue="images")]
        await running(db, "stubborn-image")
        neighbour = await enqueue(db, "hold", "go")
        polite = await enqueue(db, "polite-image", queue="images")
        cut_off += [await enqueue(db, "resize", "never", "images") for _ in range(3)]
        await eventually(lambda: _all_run(db, 6))
        pids = set(fleet.worker_pids())
        told = fleet.command.json("shutdown", "--queue", "images", "--wait")
        assert [owner["state"] for owner in told["owners"]] == ["down"]

        assert (await archived(db, polite))[0]["result"] == '"hurried"'
        for task in cut_off:
            row = await state_of(db, task)
            assert (row["state"], row["owner"]) == ("ready", None)
            assert (row["releases"], row["failures"], row["crashes"]) == (1, 0, 0)
        row = await state_of(db, neighbour)
        assert (row["state"], row["fence"]) == ("running", 1)
        (fleet.folder / "go").touch()
        (done,) = await archived(db, neighbour)
        assert done["releases"] == 0
        # A coroutine is stopped without its process, a function only with it.
        fleet.until(lambda: len(fleet.worker_pids()) == 2, "two workers again")
        assert len(pids & set(fleet.worker_pids())) == 1


async def test_u14_a_coroutine_that_will_not_stop_goes_with_its_process(dsn, db):
    config = '[supervisor]\ndrain_timeout = "100ms"\nprocesses = 1\n'
    with running_fleet(dsn, APP, config) as fleet:
        task = await enqueue(db, "deaf-image", queue="images")
        await eventually(lambda: _all_run(db, 1))
        fleet.command("shutdown", "--queue", "images", "--wait")
        row = await state_of(db, task)
        assert (row["state"], row["releases"], row["crashes"]) == ("ready", 1, 0)
        await archived(db, await enqueue(db, "noop", 1))


async def _all_run(db, n):
    return await db.fetchval("select count(*) from fleet.task where state = 'running'") == n


async def test_an_old_command_does_not_stop_who_starts_later(dsn, db):
    with running_fleet(dsn, APP) as fleet:
        fleet.command("shutdown", "--wait")
        assert fleet.ended() == 0
        fleet.start()
        fleet.until(lambda: len(fleet.records("starting")) == 2, "it has started again")
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


async def test_u14_who_loses_its_lease_while_it_drains_still_answers(dsn, db):
    """Under the name by which it was told, whatever it is called since."""
    with running_fleet(dsn, APP) as fleet:
        await enqueue(db, "hold", "never")
        await running(db, "hold")
        owner = await db.fetchval("select id from fleet.owner")
        waiting = fleet.command.start("shutdown", "--wait", "--json")
        fleet.wait_log("told to shut down")
        await db.execute("delete from fleet.owner")  # as a takeover does
        fleet.wait_log("has taken this one's tasks over")
        told = json.loads(waiting.communicate(timeout=30)[0])
        assert [(each["owner"], each["state"]) for each in told["owners"]] == [(owner, "down")]
        assert fleet.ended() == 0


async def test_u14_who_disappears_without_a_word_is_not_called_down(dsn, db):
    config = '[supervisor]\nlease = "2s"\n[fetch]\nempty_delay = "100ms"\n'
    with running_fleet(dsn, APP, config) as fleet:
        fleet.send(signal.SIGSTOP)
        waiting = fleet.command.start("shutdown", "--wait")
        await eventually(lambda: db.fetchval("select count(*) from fleet.shutdown"))
        await db.execute("delete from fleet.owner")
        said, warned = waiting.communicate(timeout=30)
        assert waiting.returncode == 0
        assert "is down" not in said
        assert "disappeared without a word" in said
        assert "never said that it is down" in warned
        fleet.send(signal.SIGCONT)
        assert fleet.ended() == 0


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
