"""``fleet schedule``: what people see and do, and how it is refused."""

from __future__ import annotations

import pytest

from fleet.store import schedules

JOB = "insert into fleet.job (name, fingerprint, queue, step, priority, definition)"
KNOWN = f"{JOB} values ('report', 'x', 'reports', 'one', 0, '{{\"steps\": [{{}}]}}')"
DECLARED = {"name": "hourly", "cron": "0 * * * *", "timezone": "UTC", "job": "report"}
DECLARED |= {"input": "null", "key": None, "missed": "latest", "fingerprint": "x"}


@pytest.fixture
async def job(db):
    await db.execute(KNOWN)


async def test_u16_add_list_show_fire_pause_resume_remove(fleet, db, job):
    told = fleet("schedule", "add", "nightly", "@daily[America/Los_Angeles]", "report", '{"n": 1}')
    assert told.stdout.startswith("Schedule nightly is there: report is enqueued next at ")
    assert "00:00:00 P" in told.stdout, "in its own zone"

    (listed,) = fleet.json("schedule", "list")
    assert (listed["name"], listed["cron"], listed["timezone"]) == (
        "nightly",
        "@daily",
        "America/Los_Angeles",
    )
    assert listed["input"] == {"n": 1}
    assert listed["next_at"] is not None
    text = fleet("schedule", "list").stdout
    assert "00:00:00 P" in text
    assert "by hand (" in text

    task = fleet.json("schedule", "fire", "nightly")["task"]
    assert await db.fetchval("select input::text from fleet.task where id = $1", task) == '{"n": 1}'
    shown = fleet.json("schedule", "show", "nightly")
    assert [(t["task"], "@" in t["fired_by"]) for t in shown["ticks"]] == [(task, True)]
    assert str(task) in fleet("schedule", "show", "nightly").stdout

    assert "is paused" in fleet("schedule", "pause", "nightly").stdout
    assert "was paused already" in fleet("schedule", "pause", "nightly").stderr
    (listed,) = fleet.json("schedule", "list")
    assert (listed["paused"], listed["next_at"]) == (True, None)
    assert "fires next at" in fleet("schedule", "resume", "nightly").stdout
    assert "is removed" in fleet("schedule", "remove", "nightly").stdout
    assert fleet.json("schedule", "list") == []
    assert "There is no schedule" in fleet("schedule", "list").stdout


@pytest.mark.parametrize(
    ("call", "problem", "code"),
    [
        (["add", "s", "* * 31 2 *", "report"], "cannot work", 2),
        (["add", "s", "* * *", "report"], "Wrong number of fields", 2),
        (["add", "s", "@daily[Atlantis]", "report"], "there is no time zone 'Atlantis'", 2),
        (["add", "s", "@daily", "report", "{"], "is not JSON", 2),
        (["add", "S!", "@daily", "report"], "S!", 2),
        (["add", "s", "@daily", "Job!"], "Job!", 2),
        (["add", "s", "@daily", "report", "--missed", "some"], "some", 2),
        (["show", "nobody"], "there is no schedule nobody", 1),
        (["fire", "nobody"], "there is no schedule nobody", 1),
        (["pause", "nobody"], "there is no schedule nobody", 1),
        (["resume", "nobody"], "there is no schedule nobody", 1),
        (["remove", "nobody"], "there is no schedule nobody", 1),
    ],
)
def test_u16_what_cannot_be_done_is_refused_with_a_word(fleet, call, problem, code):
    assert problem in fleet("schedule", *call, code=code).stderr


def test_u16_one_that_is_there_is_changed_only_if_that_is_meant(fleet):
    fleet("schedule", "add", "s", "@daily", "report")
    assert "--replace" in fleet("schedule", "add", "s", "@hourly", "report", code=1).stderr
    assert "is changed" in fleet("schedule", "add", "s", "@hourly", "report", "--replace").stdout


async def test_r12_stale_ones_and_those_that_cannot_fire_say_so(fleet, db, job, fleet_clock):
    await schedules.declare(db, [DECLARED])
    (listed,) = fleet.json("schedule", "list")
    assert (listed["origin"], listed["stale"], listed["state"]) == ("app", False, "ok")
    refused = fleet("schedule", "remove", "hourly", code=1).stderr
    assert "is declared by an application that runs" in refused
    assert "fleet schedule pause hourly" in refused

    await fleet_clock.advance(minutes=2)
    assert "stale: no application that runs declares it" in fleet("schedule", "list").stdout
    await db.execute("update fleet.schedule set error = 'no job ''report'' is registered'")
    assert "cannot fire: no job 'report' is registered" in fleet("schedule", "list").stdout
    fleet("schedule", "remove", "hourly")


async def test_what_an_application_may_it_may_by_command_too(fleet, dsn, db, job):
    await db.execute("create role scheduler login")
    try:
        fleet("grant", "app", "scheduler")
        fleet.url = dsn.replace("fleet@", "scheduler@")
        fleet("schedule", "add", "s", "@daily", "report")
        assert fleet.json("schedule", "fire", "s")["task"] > 0
        assert len(fleet.json("schedule", "show", "s")["ticks"]) == 1
        fleet("schedule", "pause", "s")
        fleet("schedule", "remove", "s")
    finally:
        await db.execute("drop owned by scheduler; drop role scheduler")
