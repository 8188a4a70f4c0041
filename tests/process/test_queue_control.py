"""``fleet queue``: a pause and settings that beat every file, on the whole fleet at once."""

from __future__ import annotations

import json

import pytest

from tests.process.fleets import archived, enqueue, eventually, running_fleet

APP = """
from pathlib import Path
import asyncio
from fleet import Context, Fleet

app = Fleet()

@app.job("noop")
async def noop(ctx: Context, n: int) -> int:
    return n

@app.job("resize", queue="images")
async def resize(ctx: Context, name: str) -> str:
    while name and not Path(name).exists():
        await asyncio.sleep(0.01)
    return name
"""
IMAGES = "[queues.images]\nprocesses = 1\nconcurrency = 2\n"


async def states(db, *tasks):
    rows = await db.fetch("select state from fleet.task where id = any ($1::bigint[])", list(tasks))
    return {row["state"] for row in rows}


async def test_pause_and_resume_across_two_supervisors(dsn, db):
    with (
        running_fleet(dsn, APP, name="host-a") as a,
        running_fleet(dsn, APP, name="host-b") as b,
    ):
        told = a.command("queue", "pause", "images").stdout
        assert "Queue images is paused, on host-a, host-b." in told
        for fleet in (a, b):
            fleet.wait_log("queue images is paused")
        held = [await enqueue(db, "resize", "", "images") for _ in range(5)]
        await archived(db, *[await enqueue(db, "noop", n) for n in range(5)])
        assert await states(db, *held) == {"ready"}

        a.command("queue", "resume", "images")
        await archived(db, *held)


async def test_a_pause_is_known_before_the_first_claim(dsn, db, fleet):
    fleet("queue", "pause", "images")
    held = await enqueue(db, "resize", "", "images")
    with running_fleet(dsn, APP) as running:
        await archived(db, *[await enqueue(db, "noop", n) for n in range(3)])
        assert await states(db, held) == {"ready"}
        assert running.records("starting")[0]["overrides"][0]["queue"] == "images"


async def test_a_pause_ends_by_itself(dsn, db, fleet_clock):
    with running_fleet(dsn, APP) as fleet:
        fleet.command("queue", "pause", "images", "--for", "2h")
        fleet.wait_log("queue images is paused")
        held = await enqueue(db, "resize", "", "images")
        await fleet_clock.advance(7201)
        await archived(db, held)
        assert fleet.command.json("queue", "list")[-1]["overrides"] == []


async def test_set_changes_processes_on_every_host_and_reset_takes_it_back(dsn, db):
    with (
        running_fleet(dsn, APP, IMAGES, name="host-a") as a,
        running_fleet(dsn, APP, IMAGES, name="host-b") as b,
    ):
        running = await enqueue(db, "resize", "go", "images")
        a.command("queue", "set", "images", "processes=3")
        for fleet in (a, b):
            fleet.until(lambda f=fleet: len(f.worker_pids("images")) == 3, "three workers")
        for fleet in (a, b):
            (fleet.folder / "go").touch()
        await archived(db, running)

        b.command("queue", "reset", "images")
        for fleet in (a, b):
            fleet.until(lambda f=fleet: len(f.worker_pids("images")) == 1, "one worker")
        await archived(db, await enqueue(db, "resize", "", "images"))


async def test_another_concurrency_replaces_the_workers_and_drops_nothing(dsn, db):
    with running_fleet(dsn, APP, IMAGES) as fleet:
        first = [await enqueue(db, "resize", "go", "images") for _ in range(5)]

        async def two():
            sql = "select count(*) from fleet.task where queue = 'images' and state = 'running'"
            return await db.fetchval(sql) == 2

        await eventually(two)
        before = fleet.worker_pids("images")
        fleet.command("queue", "set", "images", "concurrency=3", "--for", "1h")

        async def five():
            sql = "select count(*) from fleet.task where queue = 'images' and state = 'running'"
            return await db.fetchval(sql) == 5

        await eventually(five)  # the old one ends what it has, the new one takes three
        (fleet.folder / "go").touch()
        rows = await archived(db, *first)
        assert [(row["releases"], row["crashes"], row["failures"]) for row in rows] == [
            (0, 0, 0)
        ] * 5
        fleet.until(lambda: not set(before) & set(fleet.worker_pids("images")), "it is replaced")


async def test_what_cannot_work_is_refused(fleet):
    for call, told in (
        (["set", "images", "processes=0"], "must be a whole number from 1 to 1,024"),
        (["set", "images", "processes=many"], "must be a whole number"),
        (["set", "images", "proceses=2"], "did you mean processes?"),
        (["set", "images", "max_tasks=5"], "cannot be changed live"),
        (["set", "images", "limit=0"], "from 1 to 1,000,000"),
    ):
        assert told in fleet("queue", *call, code=1).stderr, call
    assert "is not KEY=VALUE" in fleet("queue", "set", "images", "5", code=2).stderr
    assert (
        "not both"
        in fleet(
            *("queue", "pause", "images", "--for", "1h", "--until", "2999-01-01T00:00:00Z"), code=2
        ).stderr
    )
    assert (
        "is over"
        in fleet("queue", "pause", "images", "--until", "1999-01-01T00:00:00Z", code=2).stderr
    )
    assert fleet.json("queue", "list") == []


async def test_an_override_that_does_not_fit_a_host_is_said_there(dsn, db):
    with running_fleet(dsn, APP) as fleet:
        fleet.command("queue", "set", "images", "processes=3")
        fleet.wait_log("this queue is served by the shared pool")
        await archived(db, await enqueue(db, "resize", "", "images"))
        assert not fleet.worker_pids("images")


async def test_list_shows_the_file_and_what_was_set_by_whom(dsn, db):
    with running_fleet(dsn, APP, IMAGES) as fleet:
        fleet.command("queue", "set", "images", "concurrency=4", "--for", "2h")
        fleet.command("queue", "pause", "default")
        told = fleet.command("queue", "list").stdout
        assert "1 processes x 2" in told
        assert "concurrency = 4 until" in told
        assert "paused (by " in told
        listed = {row["queue"]: row for row in fleet.command.json("queue", "list")}
        assert listed["images"]["config"]["concurrency"] == 2
        assert listed["images"]["overrides"][0]["value"] == 4
        assert listed["default"]["hosts"] == ["host-a"]
        assert "Set by hand: images" in fleet.command("status").stdout


@pytest.mark.parametrize("name", ["", "a b", "x" * 200])
async def test_a_queue_needs_a_name_that_it_may_have(fleet, name):
    assert "queue name" in fleet("queue", "pause", name, code=2).stderr
    assert json.loads(fleet("queue", "list", "--json").stdout) == []
