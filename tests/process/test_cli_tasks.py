"""``fleet status`` and ``fleet task``, as real processes on a real server."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from urllib.parse import urlsplit, urlunsplit

from fleet.store.migrations import LATEST
from fleet.testing import drain

# ── status ───────────────────────────────────────────────────────────────────────────────────────


def test_status_of_an_empty_fleet(fleet):
    said = fleet("status").stdout

    assert "No queue has a task yet" in said
    assert "Nobody runs tasks" in said
    assert f"schema {LATEST}" in said


async def test_status_shows_queues_and_warns_of_what_nobody_knows(fleet, app, db):
    fleet("register", "jobs:app")
    await app.jobs["order-receipt"].enqueue({})
    await db.fetchval("select fleet.enqueue('mystery', queue => 'elsewhere')")

    said = fleet("status").stdout
    told = fleet.json("status")

    assert "Warning: nobody has registered these" in said
    assert "mystery: 1 in elsewhere" in said
    queues = {queue["queue"]: queue for queue in told["queues"]}
    assert queues["billing"]["ready"] == queues["elsewhere"]["ready"] == 1
    assert {unknown["job"] for unknown in told["unknown"]} == {"mystery", "order-receipt"}
    assert told["schema_version"] == LATEST


def test_status_never_shows_a_password(fleet, dsn):
    parts = urlsplit(dsn)
    user, _, host = parts.netloc.rpartition("@")
    secret = urlunsplit(parts._replace(netloc=f"{user.partition(':')[0]}:hunter2@{host}"))

    for args in (["status"], ["status", "--json"], ["migrate"], ["migrate", "--json"]):
        said = fleet(*args, "--database-url", secret)
        assert "hunter2" not in said.stdout + said.stderr


def test_status_watches_until_ctrl_c_and_ends_quietly(fleet):
    process = fleet.start("status", "--watch", "--interval", "50ms", "--json")
    assert process.stdout is not None
    seen = [json.loads(process.stdout.readline()) for _ in range(3)]
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)

    assert len(seen) == 3
    assert process.returncode == 130
    assert stderr == ""


# ── task ─────────────────────────────────────────────────────────────────────────────────────────


async def test_the_whole_story_of_a_task_is_shown(fleet, app, db, fleet_clock):
    task = (await app.jobs["order-receipt"].enqueue({"outages": 2, "canary": 1})).id
    await drain(app, clock=fleet_clock)

    said = fleet("task", "show", task).stdout

    assert f"Task {task}  succeeded  order-receipt.email in billing" in said
    assert [f"render #{n}" in said for n in (1, 2, 3)] == [True] * 3
    assert said.count("ConnectionError: 503") == 2
    assert "█" in said
    assert "·" in said
    assert "canary" not in said
    assert "\x1b" not in said
    assert f"fleet task show {task} --result" in said
    assert '"sent a.pdf"' in fleet("task", "show", task, "--result").stdout

    told = fleet.json("task", "show", task)
    assert [attempt["outcome"] for attempt in told["attempts"]] == [
        *("failed", "failed", "next", "succeeded")
    ]
    assert "input" not in told
    assert fleet.json("task", "show", task, "--input")["input"] == "a.pdf"


async def test_a_buried_task_says_why_and_what_to_do(fleet, app, db):
    task = (await app.jobs["charge"].enqueue("expired")).id
    await drain(app)

    said = fleet("task", "show", task).stdout

    assert "because it was fatal" in said
    assert 'raise Fatal("the card has expired")' in said
    assert f"fleet task revive {task}" in said
    assert "expired" in fleet("task", "show", task, "--input").stdout.split("Timeline")[0]


async def test_every_state_can_be_shown(fleet, app, db):
    for state, options in {
        "ready": {},
        "deferred": {"delay": 60},
        "waiting": {"key": "k"},
    }.items():
        task = (await app.jobs["charge"].enqueue("valid", **options)).id
        said = fleet("task", "show", task).stdout
        assert f"Task {task}  {state}" in said
        assert f"fleet task cancel {task}" in said


async def test_colour_only_where_it_is_wanted(fleet, app, db):
    task = (await app.jobs["charge"].enqueue("valid")).id

    assert "\x1b[" not in fleet("task", "show", task).stdout
    assert "\x1b[" in fleet("task", "show", task, FORCE_COLOR="1").stdout
    assert "\x1b[3" not in fleet("task", "show", task, FORCE_COLOR="1", NO_COLOR="1").stdout


async def test_tasks_are_listed_and_paged(fleet, app, db):
    await app.jobs["charge"].enqueue_many(["valid"] * 3)
    await app.jobs["charge"].enqueue("expired", key="Größe [red]")
    await drain(app)

    assert [t["state"] for t in fleet.json("task", "list")] == ["buried", *["succeeded"] * 3]
    assert [t["id"] for t in fleet.json("task", "list", "--state", "buried")] == [4]
    said = fleet("task", "list", "--limit", "2").stdout
    assert "Größe [red]" in said
    assert "fatal: Fatal" in said
    assert "--after 3" in said
    assert [t["id"] for t in fleet.json("task", "list", "--after", 3)] == [2, 1]
    assert fleet("task", "list", "--queue", "nowhere").stdout == "No task matches.\n"


async def test_a_narrow_window_shortens_no_id_and_no_state(fleet, app, db):
    await app.jobs["order-receipt"].enqueue({"outages": 9}, key="k" * 200)
    await db.execute("update fleet.task set failures = 2")
    await drain(app)

    said = fleet("task", "list", FORCE_COLOR="1", NO_COLOR="1", COLUMNS="80").stdout

    assert re.search(r"^1 +.*buried", said, re.MULTILINE)
    assert said.count("k") >= 200
    shown = fleet("task", "show", 1, FORCE_COLOR="1", NO_COLOR="1", COLUMNS="80").stdout
    assert re.search(r"render #3 +exhausted", shown.partition("Attempts")[2])


async def test_tasks_are_cancelled(fleet, app, db):
    one, two = [handle.id for handle in await app.jobs["charge"].enqueue_many(["valid"] * 2)]

    assert f"Task {one} is cancelled." in fleet("task", "cancel", one, two).stdout
    said = fleet("task", "cancel", one, 42, code=1)
    assert "had ended already" in said.stdout
    assert "there is no task 42" in said.stderr
    assert fleet.json("task", "cancel", two, code=1) == [{"id": two, "said": "ended"}]


async def test_a_buried_task_is_revived_with_the_fix(fleet, app, db):
    task = (await app.jobs["charge"].enqueue("expired")).id
    await drain(app)

    assert "is live again" in fleet("task", "revive", task, "--input", '"valid"').stdout
    assert f"task {task} is live" in fleet("task", "revive", task, code=1).stderr
    await drain(app)

    assert fleet.json("task", "show", task, "--result")["result"] == "valid"


async def test_a_task_is_revived_at_another_step_if_its_job_has_it(fleet, app, db):
    fleet("register", "jobs:app")
    task = (await app.jobs["order-receipt"].enqueue({"outages": 9})).id
    await db.execute("update fleet.task set failures = 2")
    await drain(app)

    said = fleet("task", "revive", task, "--step", "shred", code=1).stderr
    assert "has no step 'shred'. It has receipt" in said
    await db.execute("delete from fleet.job")
    fleet("task", "revive", task, "--step", "email", "--input", '"x"')
    await drain(app)

    assert fleet.json("task", "show", task, "--result")["result"] == "sent x"


async def test_many_are_revived_after_a_question(fleet, app, db):
    await app.jobs["charge"].enqueue_many(["expired"] * 3)
    await drain(app)

    said = fleet("task", "revive", "--queue", "billing", stdin="n\n", code=1)
    assert "Revive 3 buried tasks?" in said.stderr
    assert await db.fetchval("select count(*) from fleet.buried") == 3
    assert "No buried task matches" in fleet("task", "revive", "--reason", "poison").stdout

    told = fleet.json("task", "revive", "--job", "charge", "--yes")
    assert told == {"revived": [1, 2, 3], "refused": []}


async def test_one_that_cannot_come_back_does_not_stop_the_others(fleet, app, db):
    await app.jobs["charge"].enqueue("expired", unique="once")
    await app.jobs["charge"].enqueue("expired")
    await drain(app)
    await app.jobs["charge"].enqueue("valid", unique="once")

    said = fleet("task", "revive", "--all", "--yes", code=1)

    assert "Task 2 is live again" in said.stdout
    assert "its unique slot 'once' is held by task 3" in said.stderr


async def test_failures_are_told_and_followed(fleet, app, db, fleet_clock):
    assert "Nothing failed" in fleet("task", "failures").stdout
    await app.jobs["order-receipt"].enqueue({"outages": 1})
    await drain(app, clock=fleet_clock)

    said = fleet("task", "failures").stdout
    assert "order-receipt.render #1 failed  ConnectionError: 503" in said
    assert "\x1b" not in said

    process = fleet.start("task", "failures", "--follow", "--since", "1h", "--json")
    assert process.stdout is not None
    first = json.loads(await asyncio.to_thread(process.stdout.readline))
    await app.jobs["charge"].enqueue("expired")
    await drain(app)
    second = json.loads(await asyncio.to_thread(process.stdout.readline))
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)

    assert (first["outcome"], first["final"]) == ("failed", False)
    assert (second["outcome"], second["final"]) == ("fatal", True)
    assert (process.returncode, stderr) == (130, "")


async def test_a_reader_that_leaves_early_is_no_error_worth_a_traceback(fleet, app, db):
    await app.jobs["charge"].enqueue_many(["valid"] * 2000)
    process = fleet.start("task", "list", "--limit", "2000")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    stderr = process.stderr.read()
    process.wait(timeout=30)

    assert "Traceback" not in stderr
