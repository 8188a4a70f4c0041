"""The commands as people and scripts call them: what is wrong first, then the small ones."""

from __future__ import annotations

import shutil
import socket
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from fleet.embedded.keeper import is_free
from fleet.store.migrations import LATEST
from tests.process.commands import Commands
from tests.servers import wait_until

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
        (["task", "cancel"], "give ids"),
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
        (["enqueue", "job", "1", "--app", "jobs:number"], "is int, not a Fleet"),
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
