"""``fleet status``: hosts, work that nobody takes, and what was set by hand."""

from __future__ import annotations

import re

from fleet.store import beats, control
from fleet.store.registry import register
from fleet.testing import drain

WORKERS = [
    {"name": "shared#1", "pid": 71, "state": "ready", "running": ["charge.charge"] * 3},
    {"name": "images#2", "pid": 72, "state": "booting", "running": []},
]


async def host(db, *queues, name="web-1", lease=15.0, state="running", workers=()):
    """A supervisor that has just said what it does, by its own statement."""
    owner = await beats.register(db, name, 4242, lease)
    await beats.beat(db, owner, state, list(workers), list(queues))
    return owner


async def fall_silent(db, owner, seconds):
    await db.execute(
        "update fleet.owner set beaten_at = fleet.now() - $2 * interval '1 s' where id = $1",
        owner,
        seconds,
    )


async def test_hosts_and_what_each_worker_runs_now(fleet, db):
    owner = await host(db, "billing", workers=WORKERS)

    said = fleet("status").stdout
    told = fleet.json("status")["owners"][0]

    assert re.search(rf"web-1 +{owner} +4242 +running", said)
    assert re.search(r"shared#1 +71 +3 × charge\.charge", said)
    assert re.search(r"images#2 +72 +booting", said)
    assert (told["state"], told["lease"], told["alive"]) == ("running", 15.0, True)
    assert told["workers"] == WORKERS
    assert told["serves"] == ["billing"]


async def test_a_host_is_judged_by_its_own_lease(fleet, db):
    patient = await host(db, "billing", name="patient", lease=600.0)
    brief = await host(db, "billing", name="brief", lease=2.0)
    for owner in (patient, brief):
        await fall_silent(db, owner, 60)

    said = fleet("status").stdout
    alive = {o["host"]: o["alive"] for o in fleet.json("status")["owners"]}

    assert alive == {"patient": True, "brief": False}
    assert "host brief" in said
    assert "longer than its lease" in said


async def test_work_that_no_live_host_takes_is_said(fleet, app, db):
    await app.jobs["charge"].enqueue("valid")
    assert fleet.json("status")["unserved"] == ["billing"]
    assert "1 task waits in billing, which no live host serves" in fleet("status").stdout

    owner = await host(db, "emails")
    assert fleet.json("status")["unserved"] == ["billing"]
    await beats.beat(db, owner, "running", None, ["billing"])
    assert fleet.json("status")["unserved"] == []

    # Neither one that drains nor one that is gone will take it.
    await beats.beat(db, owner, "draining", None, ["billing"])
    assert fleet.json("status")["unserved"] == ["billing"]
    await beats.beat(db, owner, "running", None, ["billing"])
    await fall_silent(db, owner, 60)
    assert fleet.json("status")["unserved"] == ["billing"]


async def test_deferred_work_that_is_due_counts_when_there_is_nobody_to_promote_it(
    fleet, app, db, fleet_clock
):
    await app.jobs["charge"].enqueue("valid", delay=60)
    assert fleet.json("status")["unserved"] == []

    await fleet_clock.advance(minutes=2)

    assert fleet.json("status")["unserved"] == ["billing"]


async def test_jobs_are_unknown_when_no_live_worker_has_them_any_more(fleet, app, db):
    await host(db, "billing")
    await register(db, app)
    await app.jobs["charge"].enqueue("valid")
    await db.fetchval("select fleet.enqueue('charge', '1', step => 'gone', queue => 'billing')")
    steps = [(u["job"], u["step"]) for u in fleet.json("status")["unknown"]]
    assert steps == [("charge", "gone")]

    await db.execute("update fleet.job set last_seen = fleet.now() - interval '1 hour'")

    steps = [(u["job"], u["step"]) for u in fleet.json("status")["unknown"]]
    assert steps == [("charge", "charge"), ("charge", "gone")]
    assert "charge at step gone: 1 in billing" in fleet("status").stdout


async def test_what_was_set_by_hand_is_shown_with_who_and_when(fleet, db):
    await control.pause(db, "billing", 3600, "ada")
    await control.override(db, "images", {"limit": 3}, None, "grace")
    await control.pause(db, "over", 60, "nobody")
    await db.execute("update fleet.override set until = fleet.now() where queue = 'over'")

    said = fleet("status").stdout
    told = {o["queue"]: o for o in fleet.json("status")["overrides"]}

    assert re.search(r"billing: paused until \S+ \S+ \(by ada, ", said)
    assert re.search(r"images: limit = 3 \(by grace, ", said)
    assert re.search(r"^billing .*paused$", said, re.MULTILINE)
    assert told.keys() == {"billing", "images"}
    assert (told["images"]["key"], told["images"]["value"]) == ("limit", 3)


async def test_a_task_that_every_drain_hands_back_raises_an_alert(fleet, app, db):
    await app.jobs["charge"].enqueue_many(["valid"] * 2)
    await db.execute("update fleet.task set releases = 2 + 3 * (id % 2)")

    said = fleet("status").stdout

    assert "task 1 (charge.charge in billing) was handed back 5 times in a row" in said
    assert [r["task_id"] for r in fleet.json("status")["released"]] == [1]


async def test_the_rate_is_what_the_last_minute_archived(fleet, app, db):
    await app.jobs["charge"].enqueue_many(["valid"] * 120)
    await drain(app)
    assert fleet.json("status")["queues"][0]["rate"] == 2.0
    assert re.search(r"billing .* 2\.0 *$", fleet("status").stdout, re.MULTILINE)

    await db.execute("update fleet.archive set finished_at = finished_at - interval '2 minutes'")

    assert fleet.json("status")["queues"] == []


async def test_a_role_that_may_only_look_sees_the_fleet(fleet, app, db, dsn):
    await app.jobs["charge"].enqueue("valid")
    await db.execute("create role watcher login")
    try:
        fleet("grant", "app", "watcher")
        seen = fleet.json("status", "--database-url", re.sub("//[^@]*@", "//watcher@", dsn))
        assert seen["queues"][0]["ready"] == 1
    finally:
        await db.execute("drop owned by watcher; drop role watcher")
