"""``fleet doctor``: what it finds of hosts, queues and settings."""

from __future__ import annotations

from fleet.store import beats, control
from fleet.store.registry import register
from tests.process.doctor.visits import one, visit


async def host(db, *queues, name="web-1", lease=15.0, silent=0):
    owner = await beats.register(db, name, 1, lease)
    await beats.beat(db, owner, "running", [], list(queues))
    await db.execute(
        "update fleet.owner set beaten_at = fleet.now() - $2 * interval '1 s' where id = $1",
        owner,
        silent,
    )


async def test_hosts_that_are_gone_or_late(fleet, db):
    assert "no host runs tasks" in one(visit(fleet), "hosts", "note")

    await host(db, silent=60)
    assert "start a host" in one(visit(fleet), "hosts", "warning")
    await host(db, name="web-2")
    assert "a live host takes them over" in one(visit(fleet), "hosts", "warning")

    await host(db, name="web-3", lease=60.0, silent=40)
    found = visit(fleet)
    assert "web-3" in one(found, "lease", "warning")
    assert "different leases: 15.0 s, 1m 0s" in one(found, "lease", "note")


async def test_work_that_nobody_will_take(fleet, app, db):
    await app.jobs["charge"].enqueue("valid")
    assert "1 task waits in billing" in one(visit(fleet, code=1), "unserved", "error")

    await host(db, "billing")
    found = visit(fleet)
    assert one(found, "unserved", "ok")
    assert "charge" in one(found, "unknown", "warning")
    await register(db, app)
    assert one(visit(fleet), "unknown", "ok")

    await db.execute("update fleet.task set releases = 5")
    assert "task 1 (charge.charge)" in one(visit(fleet), "released", "warning")


async def test_a_queue_that_was_set_by_hand(fleet, db):
    await control.pause(db, "a", None, "ada")
    assert "a: paused (by ada" in one(visit(fleet), "set-by-hand", "note")


async def test_settings_that_do_not_fit_the_jobs(fleet, app, db):
    await register(db, app)
    (fleet.folder / "fleet.toml").write_text("[queues.biling]\nweight = 2\n")
    found = visit(fleet)
    assert "jobs name billing" in one(found, "strays", "warning")
    assert "charge.charge (900s)" in one(found, "drain", "note")

    (fleet.folder / "fleet.toml").write_text('[supervisor]\ndrain_timeout = "20m"\n')
    found = visit(fleet)
    assert one(found, "drain", "ok")
    assert one(found, "strays", "ok")
