"""Many tasks at once from the command line: cancel, revive, purge; and ``fleet log``."""

from __future__ import annotations

import asyncio
import json
import signal

import pytest

from fleet.people import me
from fleet.testing import drain


async def charges(app, n: int, card: str = "valid", **options) -> list[int]:
    job = app.jobs["charge"]
    return [handle.id for handle in await job.enqueue_many([card] * n, **options)]


async def left(db, table: str = "task") -> int:
    return await db.fetchval(f"select count(*) from fleet.{table}")


# ── cancel ───────────────────────────────────────────────────────────────────────────────────────


async def test_many_are_cancelled_after_a_question(fleet, app, db):
    await charges(app, 3)
    await charges(app, 2, key="customer-7")
    await app.jobs["order-receipt"].enqueue({})

    said = fleet("task", "cancel", "--queue", "billing", stdin="n\n", code=1)
    assert "Cancel 6 tasks?" in said.stderr
    assert "nothing was changed" in said.stderr
    assert "give --yes" in fleet("task", "cancel", "--queue", "billing", code=2).stderr
    assert await left(db) == 6

    assert "No live task matches" in fleet("task", "cancel", "--key", "customer-8").stdout
    told = fleet.json("task", "cancel", "--job", "charge", "--key", "customer-7", "--yes")
    assert told == {"cancelled": 2, "requested": 0}
    said = fleet("task", "cancel", "--job", "charge", stdin="y\n").stdout
    assert "3 cancelled, 0 run and are told to stop" in said
    assert await left(db) == 1


@pytest.mark.parametrize("wrong", [(), (1, "--queue", "billing")])
def test_cancel_needs_ids_or_a_filter(fleet, wrong):
    assert "give ids, or --queue" in fleet("task", "cancel", *wrong, code=2).stderr


# ── revive ───────────────────────────────────────────────────────────────────────────────────────


async def test_revive_since(fleet, app, db, fleet_clock):
    await charges(app, 1, "expired")
    await drain(app)
    await fleet_clock.advance(3600)
    (new,) = await charges(app, 1, "expired")
    await drain(app)

    told = fleet.json("task", "revive", "--since", "10m", "--yes")
    assert told == {"revived": [new], "refused": []}
    told = fleet.json("task", "revive", "--since", "2000-01-01T00:00:00Z", "--yes")
    assert len(told["revived"]) == 1


async def test_many_are_revived_from_a_step_that_their_job_has(fleet, app, db):
    fleet("register", "jobs:app")
    await app.jobs["order-receipt"].enqueue_many([{"outages": 9}] * 2)
    await db.execute("update fleet.task set failures = 2")
    await drain(app)

    said = fleet("task", "revive", "--job", "order-receipt", "--step", "shred", "--yes", code=1)
    assert said.stderr.count("has no step 'shred'. It has receipt") == 2
    await db.execute("delete from fleet.job")
    fleet("task", "revive", "--job", "order-receipt", "--step", "email", "--yes")
    steps = await db.fetch("select step from fleet.task")
    assert [row["step"] for row in steps] == ["email", "email"]


# ── purge ────────────────────────────────────────────────────────────────────────────────────────


async def test_a_queue_is_purged_after_a_question(fleet, app, db):
    await charges(app, 3)
    await charges(app, 1, delay=60)

    said = fleet("queue", "purge", "billing", stdin="n\n", code=1)
    assert "Delete 4 tasks that wait in queue billing for good?" in said.stderr
    assert await left(db) == 4
    assert fleet.json("queue", "purge", "billing", "--yes") == {"queue": "billing", "purged": 4}
    assert await left(db) == await left(db, "archive") == 0
    assert "Nothing waits in queue billing" in fleet("queue", "purge", "billing").stdout


async def test_dead_letters_are_purged(fleet, app, db):
    await charges(app, 2, "expired")
    await drain(app)
    await charges(app, 1)

    assert (
        "2 deleted from queue billing"
        in fleet("queue", "purge", "billing", "--buried", "--yes").stdout
    )
    assert (await left(db), await left(db, "buried")) == (1, 0)


# ── log ──────────────────────────────────────────────────────────────────────────────────────────


async def test_everything_that_was_said_is_in_the_log(fleet, app, db):
    (one, *_) = await charges(app, 3)
    assert "Nothing was said" in fleet("log").stdout
    fleet("queue", "pause", "images", "--for", "2h")
    fleet("queue", "resume", "images")
    fleet("queue", "set", "images", "limit=20", "rate=100/s")
    fleet("queue", "reset", "images")
    fleet("task", "cancel", one)
    fleet("task", "cancel", "--queue", "billing", "--yes")
    fleet("queue", "purge", "billing", "--yes")

    said = [json.loads(line) for line in fleet("log", "--json").stdout.splitlines()]

    assert {line["who"] for line in said} == {me()}
    assert [(line["what"], line["target"]) for line in said] == [
        ("queue.pause", "images"),
        ("queue.resume", "images"),
        ("queue.set", "images"),
        ("queue.reset", "images"),
        ("task.cancel", str(one)),
        ("task.cancel", None),
    ]
    assert "until" in said[0]["detail"]
    assert said[2]["detail"]["limit"] == 20
    assert said[3]["detail"] == {"keys": ["limit", "rate"]}
    assert said[5]["detail"] == {"queue": "billing", "cancelled": 2, "requested": 0}
    shown = fleet("log").stdout
    assert f"{me()}  queue.reset images  keys = limit, rate" in shown
    billing = fleet("log", "--queue", "billing").stdout
    assert billing.count("task.cancel") == 2
    assert "images" not in billing


async def test_the_log_is_followed(fleet, db):
    await db.fetch("select fleet.pause('images')")
    process = fleet.start("log", "--follow", "--json")
    assert process.stdout is not None
    first = json.loads(await asyncio.to_thread(process.stdout.readline))
    await db.fetch("select fleet.resume('images')")
    second = json.loads(await asyncio.to_thread(process.stdout.readline))
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)

    assert (first["what"], second["what"]) == ("queue.pause", "queue.resume")
    assert (process.returncode, stderr) == (130, "")
