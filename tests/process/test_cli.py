"""The commands as people and scripts run them: real processes on a real server."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

from fleet import Context, Fatal, Fleet, Retry
from fleet.embedded.keeper import is_free
from fleet.store.migrations import LATEST
from fleet.testing import drain
from fleet.testing.plugin import scratch_database
from tests.servers import wait_until

JOBS = """
from dataclasses import dataclass
from fleet import Context, Fleet

app = Fleet()
number = 42

@dataclass
class Order:
    order_id: int

@app.job("order-receipt", queue="billing", priority=3)
async def receipt(ctx: Context, order: Order) -> str:
    return "sent"
"""


@pytest.fixture
def folder(tmp_path):
    """A project's folder with an application in it."""
    (tmp_path / "jobs.py").write_text(JOBS)
    return tmp_path


@pytest.fixture
def empty(server):
    """The URL of a database without anything in it."""
    with scratch_database(server.dsn, "template0") as url:
        yield url


@pytest.fixture
def fleet(folder, dsn):
    """Run a command on the test's database and return what it said."""
    return Commands(folder, dsn)


class Commands:
    def __init__(self, folder: Path, url: str | None) -> None:
        self.folder, self.url = folder, url

    def environment(self, **more: str) -> dict[str, str]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("FLEET_", "DATABASE_", "PG", "COLUMNS", "NO_COLOR"))
        }
        return kept | ({"FLEET_DATABASE_URL": self.url} if self.url else {}) | more

    def start(self, *args: object, **env: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "fleet", *map(str, args)],
            cwd=self.folder,
            env=self.environment(**env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __call__(
        self, *args: object, stdin: str = "", code: int = 0, **env: str
    ) -> subprocess.CompletedProcess[str]:
        process = self.start(*args, **env)
        stdout, stderr = process.communicate(stdin, timeout=60)
        done = subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)
        assert "Traceback" not in stderr, stderr
        assert done.returncode == code, (stdout, stderr)
        return done

    def json(self, *args: object, **options: object):
        return json.loads(self(*args, "--json", **options).stdout)


@pytest.fixture
async def app(dsn):
    """An application whose tasks have a history."""
    app = Fleet(dsn)
    receipts = app.job("order-receipt", queue="billing")

    @receipts.step(retry=Retry(max_attempts=3))
    async def render(ctx: Context, order: dict) -> str:
        if ctx.attempt <= order.get("outages", 0):
            raise ConnectionError("503 from the \x1b[31mPDF service")
        return "a.pdf"

    @receipts.step
    async def email(ctx: Context, key: str) -> str:
        return f"sent {key}"

    @app.job("charge", queue="billing")
    async def charge(ctx: Context, card: str) -> str:
        if card == "expired":
            raise Fatal("the card has expired")
        return card

    async with app:
        yield app


# ── what is wrong, first ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["nonsense"], "No such command 'nonsense'"),
        (["status", "--nonsense"], "No such option"),
        (["task", "show"], "Missing argument"),
        (["task", "show", "abc"], "'abc' is no task id"),
        (["task", "show", "-1"], "-1"),
        (["task", "show", "0"], "'0' is no task id"),
        (["task", "show", "99999999999999999999"], "is no task id"),
        (["task", "show", "١"], "is no task id"),
        (["task", "cancel"], "Missing argument"),
        (["task", "list", "--state", "failed"], "'failed' is not one of"),
        (["task", "list", "--limit", "0"], "0 is not in the range"),
        (["task", "revive"], "give ids"),
        (["task", "revive", "1", "--all"], "give ids"),
        (["task", "revive", "--all", "--input", "1"], "--input goes with ids"),
        (["enqueue"], "Missing argument"),
        (["enqueue", "job", "{"], "not JSON"),
        (["enqueue", "job", ""], "not JSON"),
        (["enqueue", "job", "NaN"], "NaN is no JSON value"),
        (["enqueue", "job", "[" * 100_000], "nested too deep"),
        (["enqueue", "job", "1", "--delay", "-5s"], "must be a duration"),
        (["enqueue", "job", "1", "--delay", "5"], "must be a duration"),
        (["enqueue", "job", "1", "--at", "tomorrow"], "is not ISO 8601"),
        (["enqueue", "job", "1", "--at", "2030-01-01T00:00:00"], "has no time zone"),
        (["enqueue", "job", "1", "--delay", "1s", "--at", "2030-01-01T00:00:00Z"], "not both"),
        (["enqueue", "job", "1", "--priority", "high"], "not a valid integer"),
        (["enqueue", "job", "1", "--timeout", "1s"], "--timeout goes with --wait"),
        (["enqueue", "job", "1", "--unique-scope", "ever"], "is not one of"),
        (["grant", "king", "me"], "'king' is not one of"),
        (["migrate", "--to", "0"], "0 is not in the range"),
        (["migrate", "--from", "1"], "--from goes with --print"),
        (["demo", "--seconds", "-1"], "-1"),
    ],
)
def test_a_wrong_call_is_told_so_and_exits_with_2(tmp_path, args, says):
    said = Commands(tmp_path, "postgresql://nobody@127.0.0.1:1/none")(*args, code=2)

    assert says in said.stderr
    assert said.stdout == ""


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["enqueue", "x'; drop table fleet.task; --", "1", "--queue", "q"], "job name"),
        (["enqueue", "Upper", "1", "--queue", "q"], "a lower-case letter"),
        (["enqueue", "größe", "1", "--queue", "q"], "a lower-case letter"),
        (["enqueue", "j" * 64, "1", "--queue", "q"], "63 characters"),
        (["enqueue", "job", "1", "--queue", "Bad Queue"], "queue name"),
        (["enqueue", "job", "1", "--queue", "q", "--step", "a b"], "step name"),
        (["enqueue", "job", "1", "--queue", "q", "--priority", "10001"], "priority"),
        (["enqueue", "job", "1", "--queue", "q", "--key", "k" * 256], "255"),
        (["enqueue", "job", '"\\u0000"', "--queue", "q"], "Unicode"),
        (["enqueue", "job", "1"], "no job 'job' is registered"),
        (["enqueue", "job", "1", "--app", "nowhere:app"], "no module nowhere"),
        (["enqueue", "job", "1", "--app", "jobs:nothing"], "jobs has no nothing"),
        (["enqueue", "job", "1", "--app", "jobs:number"], "is a int, not a Fleet"),
        (["enqueue", "job", "1", "--app", "jobs"], "must be module:attribute"),
        (["enqueue", "job", "1", "--app", "jobs:app"], "it has order-receipt"),
        (["enqueue", "order-receipt", '{"order_id": "x"}', "--app", "jobs:app"], "order_id"),
        (["register"], "module:attribute"),
        (["task", "show", "42"], "there is no task 42"),
        (["task", "cancel", "42"], "there is no task 42"),
        (["task", "revive", "42"], "no buried task 42"),
        (["grant", "client", "nobody-here"], "there is no role 'nobody-here'"),
        (["migrate", "--to", "99"], f"versions 1 to {LATEST}"),
        (["status", "-c", "missing.toml"], "there is no such file"),
    ],
)
def test_what_cannot_be_done_is_one_line_on_stderr_and_exits_with_1(fleet, args, says):
    said = fleet(*args, code=1)

    assert says in said.stderr
    assert said.stderr.startswith("Error: ")
    assert said.stderr.count("\n") == 1
    assert said.stdout == ""


def test_bad_json_is_pointed_at(fleet):
    said = fleet("enqueue", "job", '{"order_id": 42,\n "name" "Ada"}', code=2)

    assert "line 2 column 9" in said.stderr
    assert '   "name" "Ada"}\n          ^' in said.stderr


def test_without_a_database_the_choices_are_named(folder):
    for args in (["status"], ["task", "list"], ["migrate"], ["enqueue", "job", "1"]):
        said = Commands(folder, None)(*args, code=1)
        assert "no database is configured" in said.stderr
        assert "FLEET_DATABASE_URL" in said.stderr


@pytest.mark.parametrize("port", ["1", "nobody"])
def test_a_wrong_database_is_said_to_be_away_soon_and_without_its_password(fleet, dsn, port):
    host = "127.0.0.1:1" if port == "1" else urlsplit(dsn).netloc.rpartition("@")[2]
    began = time.monotonic()

    said = fleet("status", "--database-url", f"postgresql://me:hunter2@{host}/none", code=1)

    assert time.monotonic() - began < 8
    assert "is not available" in said.stderr
    assert "me:***@" in said.stderr
    assert "hunter2" not in said.stderr


def test_a_database_that_does_not_answer_is_away_after_five_seconds(folder):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        began = time.monotonic()
        said = Commands(folder, f"postgresql://me@127.0.0.1:{port}/none")("status", code=1)

    assert 4.5 < time.monotonic() - began < 9
    assert "no reply within 5s" in said.stderr


def test_a_database_without_the_schema_names_the_command_to_type(folder, empty):
    for args in (
        ["status"],
        ["task", "show", "1"],
        ["enqueue", "job", "1"],
        ["grant", "app", "me"],
    ):
        said = Commands(folder, empty)(*args, code=1)
        assert "has not been created" in said.stderr
        assert "Run: fleet migrate" in said.stderr


# ── fleet itself ─────────────────────────────────────────────────────────────────────────────────


def test_help_and_version_need_no_database(folder):
    fleet = Commands(folder, None)

    assert fleet("--version").stdout.startswith("fleet 0.")
    listed = fleet("--help").stdout
    assert all(word in listed for word in ("init", "demo", "migrate", "grant", "enqueue", "task"))
    assert "revive" in fleet("task", "--help").stdout


# ── migrate ──────────────────────────────────────────────────────────────────────────────────────


def test_migrate_shows_what_it_applies_and_says_the_version(folder, empty):
    fleet = Commands(folder, empty)
    assert fleet("migrate", "--check", code=1).stdout.count("pending") == LATEST

    said = fleet("migrate").stdout

    assert said.count("applied 0") == LATEST
    assert f"at version {LATEST} now" in said
    assert "nothing to do" in fleet("migrate").stdout
    assert fleet.json("migrate", "--check") == {"version": LATEST, "pending": []}


def test_migrate_from_several_processes_at_once_applies_each_file_once(folder, empty):
    fleet = Commands(folder, empty)
    running = [fleet.start("migrate", "--json") for _ in range(4)]
    reports = [json.loads(process.communicate(timeout=60)[0]) for process in running]

    assert [process.returncode for process in running] == [0] * 4
    applied = [name for report in reports for name in report["applied"]]
    assert len(applied) == len(set(applied)) == LATEST
    assert {report["version"] for report in reports} == {LATEST}


def test_migrate_stops_where_it_is_told_and_the_rest_refuses_until_it_goes_on(folder, empty):
    fleet = Commands(folder, empty)
    assert fleet.json("migrate", "--to", LATEST - 1)["version"] == LATEST - 1
    assert fleet.json("migrate", "--to", LATEST - 1)["applied"] == []

    said = fleet("status", code=1)
    assert (
        f"is at version {LATEST - 1}, this release needs {LATEST}. Run: fleet migrate"
        in said.stderr
    )

    assert len(fleet.json("migrate")["applied"]) == 1
    fleet("status")


async def test_migrate_prints_sql_for_other_tools(folder, empty):
    everything = Commands(folder, None)("migrate", "--print").stdout
    conn = await asyncpg.connect(empty)
    try:
        await conn.execute(everything)
    finally:
        await conn.close()

    fleet = Commands(folder, empty)
    assert fleet.json("migrate", "--check")["pending"] == []
    assert "nothing to do" in fleet("migrate", "--print").stdout
    later = fleet("migrate", "--print", "--from", LATEST - 1).stdout
    assert later.count("insert into fleet.migration") == 1
    early = fleet("migrate", "--print", "--from", 0, "--to", 2).stdout
    assert early.count("insert into fleet.migration") == 2
    assert "versions 1 to" in fleet("migrate", "--print", "--from", 99, code=1).stderr


def test_migrate_prints_everything_where_the_database_is_away(folder):
    said = Commands(folder, "postgresql://me:hunter2@127.0.0.1:1/none")("migrate", "--print")

    assert "from version 0" in said.stdout
    assert "Warning" in said.stderr
    assert "hunter2" not in said.stdout + said.stderr


async def test_migrate_refuses_a_file_that_was_changed(fleet, db):
    await db.execute("update fleet.migration set checksum = 'other' where version = 2")

    for args in (["migrate"], ["migrate", "--check"], ["migrate", "--print"]):
        assert "was changed after it was applied" in fleet(*args, code=1).stderr


async def test_migrate_without_the_right_to_says_what_is_needed(folder, empty):
    name = f"owner_{uuid.uuid4().hex[:8]}"
    conn = await asyncpg.connect(empty)
    try:
        await conn.execute(f"create role {name} login")
        parts = urlsplit(empty)
        host = parts.netloc.rpartition("@")[2]
        fleet = Commands(folder, urlunsplit(parts._replace(netloc=f"{name}@{host}")))

        said = fleet("migrate", code=1).stderr
        assert f"CREATE SCHEMA fleet AUTHORIZATION {name}" in said

        await conn.execute(f"create schema fleet authorization {name}")
        assert fleet.json("migrate")["version"] == LATEST
    finally:
        await conn.execute(f"drop owned by {name} cascade; drop role {name}")
        await conn.close()


# ── grant ────────────────────────────────────────────────────────────────────────────────────────


async def test_grant_prints_or_does(fleet, db):
    role = f'Ab "c" {uuid.uuid4().hex[:8]}'
    quoted = await db.fetchval("select quote_ident($1)", role)
    await db.execute(f"create role {quoted} login")
    try:
        printed = fleet("grant", "client", role, "--print").stdout
        assert f"grant usage on schema fleet to {quoted};" in printed
        assert not await db.fetchval("select has_schema_privilege($1, 'fleet', 'usage')", role)

        assert "may enqueue, and nothing else" in fleet("grant", "client", role).stdout
        assert await db.fetchval("select has_schema_privilege($1, 'fleet', 'usage')", role)
        fleet("grant", "worker", role)
        assert await db.fetchval("select has_table_privilege($1, 'fleet.task', 'delete')", role)

    finally:
        await db.execute(f"drop owned by {quoted}; drop role {quoted}")


async def test_migrate_reminds_of_grants(folder, empty):
    fleet = Commands(folder, empty)
    fleet("migrate", "--to", LATEST - 1)
    role = f"Ab c {uuid.uuid4().hex[:8]}"
    conn = await asyncpg.connect(empty)
    try:
        await conn.execute(f'create role "{role}"; grant usage on schema fleet to "{role}"')

        said = fleet("migrate").stdout

        assert f'fleet grant client|app|worker ROLE for "{role}"' in said
    finally:
        await conn.execute(f'drop owned by "{role}"; drop role "{role}"')
        await conn.close()


async def test_grant_to_the_owner_and_by_another(fleet, db, dsn):
    owner = await db.fetchval("select current_user")
    assert "may do everything already" in fleet("grant", "worker", owner).stdout

    role = f"stranger_{uuid.uuid4().hex[:8]}"
    await db.execute(f"create role {role} login")
    try:
        fleet("grant", "worker", role)
        parts = urlsplit(dsn)
        host = parts.netloc.rpartition("@")[2]
        stranger = Commands(fleet.folder, urlunsplit(parts._replace(netloc=f"{role}@{host}")))
        assert "who owns the schema fleet" in stranger("grant", "app", role, code=1).stderr
    finally:
        await db.execute(f"drop owned by {role}; drop role {role}")


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
    assert "has no step 'shred'; it has receipt" in said
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


# ── init ─────────────────────────────────────────────────────────────────────────────────────────


def test_init_writes_a_project_that_works_and_overwrites_nothing(tmp_path, fleet):
    tmp_path = tmp_path / "new"
    tmp_path.mkdir()
    there = Commands(tmp_path, fleet.url)

    said = there("init").stdout
    assert "Wrote fleet.toml" in said
    assert "fleet migrate" in said
    there("register")
    assert there.json("enqueue", "order-receipt", '{"order_id": 42}')["id"] == 1

    (tmp_path / "jobs.py").write_text("# mine\n")
    said = there("init").stdout
    assert "jobs.py is there already" in said
    assert "fleet.toml is there already" in said
    assert (tmp_path / "jobs.py").read_text() == "# mine\n"


def test_init_asks_for_an_embedded_server_which_starts_and_stops():
    # Not pytest's folder: the server's own user must get in.
    root = Path(tempfile.mkdtemp(prefix="fleet-test-"))
    root.chmod(0o755)
    fleet = Commands(root, None)
    try:
        fleet("init")
        assert fleet.json("migrate")["version"] == LATEST
        fleet("register")
        fleet("enqueue", "order-receipt", '{"order_id": 42}')
        assert fleet.json("status")["queues"][0]["ready"] == 1
        lock = root / ".fleet" / "postgres" / "server.lock"
        wait_until(lambda: is_free(lock))
    finally:
        shutil.rmtree(root)
