"""``fleet register`` and ``fleet enqueue``, as real processes on a real server."""

from __future__ import annotations

import asyncio

from fleet.testing import drain
from tests.process.commands import Commands

# ── register and enqueue ─────────────────────────────────────────────────────────────────────────


async def test_a_registered_job_can_be_enqueued_by_its_name(fleet, db):
    assert "new" in fleet("register", "jobs:app").stdout
    assert fleet.json("register", "jobs:app")[0]["new"] is False

    said = fleet("enqueue", "order-receipt", '{"order_id": 42}').stdout

    assert "Look: fleet task show 1" in said
    row = await db.fetchrow("select queue, step, priority, input from fleet.task where id = 1")
    assert tuple(row) == ("billing", "receipt", 3, '{"order_id": 42}')


async def test_the_application_of_fleet_toml_is_the_default(fleet, db):
    (fleet.folder / "fleet.toml").write_text('app = "jobs:app"\n')
    below = fleet.folder / "below"
    below.mkdir()

    Commands(below, fleet.url)("register")

    assert await db.fetchval("select count(*) from fleet.job") == 1


def test_an_application_that_cannot_be_imported_is_told_with_its_place(fleet):
    (fleet.folder / "broken.py").write_text("import fleet\n\nraise RuntimeError('on fire')\n")

    said = fleet("register", "broken:app", code=1).stderr

    assert "RuntimeError: on fire" in said
    assert "broken.py:3" in said


async def test_enqueue_takes_every_option(fleet, db):
    fleet(
        *("enqueue", "job", "-", "--queue", "q", "--step", "two", "--priority", "-7"),
        *("--key", "Größe 'x'", "--unique", 'ein "Name"', "--unique-scope", "while_waiting"),
        *("--delay", "1h30m"),
        stdin='{"from": "stdin"}',
    )

    row = await db.fetchrow(
        """
        select state, step, priority, key, unique_slot, unique_scope, input,
               round(extract(epoch from due_at - enqueued_at))::int as delay
          from fleet.task
        """
    )
    assert tuple(row) == (
        *("deferred", "two", -7, "Größe 'x'", 'ein "Name"', "while_waiting"),
        *('{"from": "stdin"}', 5400),
    )


async def test_enqueue_at_a_moment(fleet, db):
    fleet("enqueue", "job", "--queue", "q", "--at", "2099-01-31T09:00:00+01:00")

    due = await db.fetchval("select due_at from fleet.task")
    assert due.isoformat() == "2099-01-31T08:00:00+00:00"


def test_enqueue_under_a_unique_name_finds_the_task_that_is_there(fleet):
    first = fleet.json("enqueue", "job", "1", "--queue", "q", "--unique", "once")
    again = fleet.json("enqueue", "job", "1", "--queue", "q", "--unique", "once")

    assert (first["created"], again["created"]) == (True, False)
    assert first["id"] == again["id"]
    said = fleet("enqueue", "job", "1", "--queue", "q", "--unique", "once").stdout
    assert "has the unique name 'once' already" in said


async def test_u07_a_repeat_from_the_command_line(fleet, db):
    call = ("enqueue", "job", "--queue", "q", "--unique", "once", "--unique-for", "1h")
    first = fleet.json(*call, "1")
    again = fleet.json(*call, "2", "--on-repeat", "push_back", "--delay", "1h")

    assert again == {"id": first["id"], "created": False}
    row = await db.fetchrow("select state, input from fleet.task")
    assert tuple(row) == ("deferred", "2")
    for wrong, why in [
        (("--on-repeat", "push_back"), "give delay= too"),
        (("--unique-scope", "while_live"), "not both"),
    ]:
        assert why in fleet(*call, *wrong, code=1).stderr


async def test_enqueue_with_an_application_checks_and_encodes_its_types(fleet, db):
    fleet("enqueue", "order-receipt", '{"order_id": 42}', "--app", "jobs:app", "--priority", "9")

    row = await db.fetchrow("select queue, step, priority, input from fleet.task")
    assert tuple(row) == ("billing", "receipt", 9, '{"order_id": 42}')


async def test_enqueue_waits_for_the_result(fleet, app, db):
    for card, code in (("valid", 0), ("expired", 1)):
        process = fleet.start("enqueue", "charge", f'"{card}"', "--queue", "billing", "--wait")
        assert process.stdout is not None
        said = await asyncio.to_thread(process.stdout.readline)
        assert "is enqueued" in said
        await drain(app)
        stdout, stderr = await asyncio.to_thread(process.communicate, timeout=30)
        assert process.returncode == code
        assert ('"valid"' in stdout) == (code == 0)
        assert ("the card has expired" in stderr) == (code == 1)


def test_enqueue_gives_up_waiting_when_told_so(fleet):
    said = fleet(
        *("enqueue", "job", "1", "--queue", "q", "--wait", "--timeout", "200ms", "--json"), code=1
    )

    assert "had not ended after 0.2s; it is ready" in said.stderr
