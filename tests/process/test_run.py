"""``fleet run``: starts, says what it runs, hears signals, and ends without a trace."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fleet.store import migrations
from tests.process.commands import Commands
from tests.process.fleets import archived, enqueue, eventually, running_fleet
from tests.servers import wait_until

APP = """
import asyncio
from pathlib import Path
from fleet import Context, Fleet

app = Fleet()

@app.job("double", timeout=5)
async def double(ctx: Context, n: int) -> int:
    ctx.log.info("doubling", extra={"colour": "red"})
    return 2 * n

@app.job("square", queue="images", timeout=60)
def square(ctx: Context, n: int) -> int:
    return n * n

@app.job("hold")
async def hold(ctx: Context) -> str:
    while not Path("go").exists():
        await asyncio.sleep(0.01)
    return "held"
"""


async def test_tasks_run_and_nothing_is_left(dsn, db):
    with running_fleet(dsn, APP, args=["--processes", "2"]) as fleet:
        tasks = [await enqueue(db, "double", 21), await enqueue(db, "square", 3, "images")]
        assert [row["result"] for row in await archived(db, *tasks)] == ["42", "9"]
        assert len(fleet.worker_pids("shared")) == 2
        assert fleet.processes()[fleet.pid] == "fleet: supervisor host-a"
    assert await db.fetchval("select count(*) from fleet.owner") == 0
    sql = "select count(*) from pg_stat_activity where application_name like 'fleet %'"
    assert await db.fetchval(f"{sql} and datname = current_database()") == 0


# ── what it says ─────────────────────────────────────────────────────────────────────────────────


async def test_logs_are_lines_of_json_with_what_steps_add(dsn, db):
    with running_fleet(dsn, APP, "[queues.images]\nprocesses = 1\n") as fleet:
        await archived(db, await enqueue(db, "double", 1))
        fleet.until(lambda: fleet.records("doubling"), "the step's line")
        assert fleet.stop() == 0

        lines = [json.loads(line) for line in fleet.log_text().splitlines()]
        assert all({"at", "level", "logger", "message"} <= line.keys() for line in lines)
        started = fleet.records("starting")[0]
        assert [pool["pool"] for pool in started["pools"]] == ["images", "shared"]
        assert (started["host"], started["schema"]) == ("host-a", migrations.LATEST)
        said = fleet.records("doubling")[0]
        assert (said["logger"], said["colour"], said["job"]) == ("fleet.step", "red", "double")
        warned = fleet.records("longer than a drain waits")[0]["message"]
        assert "square.square (60s)" in warned
        assert "double" not in warned


def test_a_person_reads_a_summary_on_a_terminal(dsn, tmp_path):
    (tmp_path / "jobs.py").write_text(APP)
    config = 'app = "jobs:app"\n[queues.images]\nprocesses = 1\nmax_tasks = 500\n'
    (tmp_path / "fleet.toml").write_text(config)
    reading, writing = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "fleet", "run", "--http", "127.0.0.1:0"],
        cwd=tmp_path,
        env=Commands(tmp_path, dsn.replace("://fleet@", "://fleet:hunter2@")).environment(),
        stderr=writing,
        start_new_session=True,
    )
    os.close(writing)
    seen = b""
    while b"Ready in" not in seen:
        seen += os.read(reading, 4096)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 0
    os.close(reading)
    told = seen.decode()
    assert "starts on" in told
    assert "images  images" in told
    assert "recycled after 500 tasks" in told
    assert "/healthz /readyz /metrics" in told
    assert "fleet:***@" in told
    assert "hunter2" not in told


async def test_r13_it_is_ready_when_its_workers_are_and_says_how_long_that_took(dsn, db):
    config = "[supervisor]\nprocesses = 2\n[queues.images]\nprocesses = 1\n"
    waits = APP + "\nimport time\nwhile not Path('boot').exists():\n    time.sleep(0.01)\n"
    with running_fleet(dsn, waits, config, ready=False) as fleet:
        fleet.until(lambda: fleet.records("starting"), "it says that it starts")
        assert fleet.get("/readyz")[0] == 503
        assert not fleet.records("ready")
        (fleet.folder / "boot").touch()
        fleet.until(lambda: fleet.records("ready"), "it says that it is ready")
        (said,) = fleet.records("ready")
        assert (said["workers"], said["unhealthy"]) == (3, {})
        assert said["took"] > 0


async def test_r13_a_pool_that_cannot_boot_is_named_when_the_others_are_ready(dsn, db):
    config = "[supervisor]\nprocesses = 1\n[queues.images]\nprocesses = 1\n"
    picky = (
        APP
        + """
from multiprocessing import current_process
if "images" in current_process().name:
    raise RuntimeError("no GPU here")
"""
    )
    with running_fleet(dsn, picky, config, env={"FLEET_SUPERVISOR_PRELOAD": "false"}) as fleet:
        fleet.until(lambda: fleet.records("ready, but"), "it says what is not")
        (said,) = fleet.records("ready, but")
        assert said["workers"] == 1
        assert "no GPU here" in said["unhealthy"]["images"]


async def test_no_password_is_ever_printed(dsn, db):
    url = dsn.replace("://fleet@", "://fleet:hunter2@")
    with running_fleet(url, APP) as fleet:
        sql = "select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid()"
        await db.execute(f"{sql} and datname = current_database()")
        await archived(db, await enqueue(db, "double", 1))
        fleet.send(signal.SIGUSR1)
        fleet.wait_log("── workers")
        assert fleet.stop() == 0
        assert "fleet:***@" in fleet.log_text()
        assert "hunter2" not in fleet.log_text()

    gone = url.replace("/fleet_test", "/no_such_database")
    with running_fleet(gone, APP, ready=False) as fleet:
        assert fleet.ended() == 1
        assert "no_such_database" in fleet.log_text()
        assert "hunter2" not in fleet.log_text()


# ── what it refuses ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("config", "args", "told"),
    [
        ("[supervisor]\nproceses = 2\n", [], "did you mean processes?"),
        ("", ["--processes", "lots"], "supervisor.processes = 'lots'"),
        ("", ["--http", "here"], "supervisor.http = 'here'"),
        ('[supervisor]\nlease = "2s"\n', [], "at least three beats"),
        ("", ["jobs"], "must be module:attribute"),
    ],
)
async def test_a_bad_configuration_starts_nothing(dsn, db, config, args, told):
    with running_fleet(dsn, APP, config, args=args, ready=False) as fleet:
        assert fleet.ended() == 1
        assert told in fleet.log_text()
        assert "Traceback" not in fleet.log_text()
    assert await db.fetchval("select last_value from fleet.owner_id_seq") == 1
    assert await db.fetchval("select count(*) from fleet.owner") == 0


def test_an_application_must_be_named(fleet, tmp_path):
    (tmp_path / "fleet.toml").unlink(missing_ok=True)
    told = fleet("run", code=1).stderr
    assert "fleet run shop.jobs:app" in told
    assert 'app = "shop.jobs:app"' in told


def test_an_old_schema_is_one_line(empty, folder):
    told = Commands(folder, empty)("run", "jobs:app", "--http", "off", code=1).stderr
    assert "fleet migrate" in told


def test_a_database_that_is_away_is_one_line(folder):
    url = "postgresql://fleet:hunter2@127.0.0.1:1/x"
    told = Commands(folder, url)("run", "jobs:app", "--http", "off", code=1).stderr
    assert "fleet:***@127.0.0.1:1" in told
    assert "hunter2" not in told


# ── signals ──────────────────────────────────────────────────────────────────────────────────────


async def test_sighup_changes_the_processes_live_and_drops_nothing(dsn, db):
    with running_fleet(dsn, APP, "[supervisor]\nprocesses = 1\n") as fleet:
        task = await enqueue(db, "hold")

        async def runs():
            return (
                await db.fetchval("select state from fleet.task where id = $1", task) == "running"
            )

        await eventually(runs)
        file = fleet.folder / "fleet.toml"
        more = "[supervisor]\nprocesses = 3\n[queues.images]\nprocesses = 2\n"
        file.write_text(f'app = "jobs:app"\n{more}')
        fleet.send(signal.SIGHUP)
        fleet.until(lambda: len(fleet.worker_pids("shared")) == 3, "three shared")
        fleet.until(lambda: len(fleet.worker_pids("images")) == 2, "two of images")

        file.write_text('app = "jobs:app"\n[supervisor]\nprocesses = 1\nlease = "20s"\n')
        fleet.send(signal.SIGHUP)
        fleet.until(lambda: not fleet.worker_pids("images"), "images is shared again")
        fleet.wait_log("supervisor.lease has changed, which takes effect at the next start")
        square = await enqueue(db, "square", 3, "images")
        (fleet.folder / "go").touch()
        row, _ = await archived(db, task, square)
        assert (row["releases"], row["crashes"], row["attempt"]) == (0, 0, 1)
        fleet.until(lambda: len(fleet.worker_pids()) == 1, "one is left")


async def test_a_bad_reload_is_said_and_the_old_configuration_stays(dsn, db):
    with running_fleet(dsn, APP, args=["--processes", "1"]) as fleet:
        (fleet.folder / "fleet.toml").write_text('app = "jobs:app"\n[supervisor]\nlease = 3\n')
        fleet.send(signal.SIGHUP)
        fleet.wait_log("the old one stays: supervisor.lease = 3")
        (fleet.folder / "fleet.toml").write_text("not toml")
        fleet.send(signal.SIGHUP)
        fleet.wait_log("is not valid TOML")
        await archived(db, await enqueue(db, "double", 1))


async def test_sigusr1_shows_stacks_and_tables(dsn, db):
    with running_fleet(dsn, APP) as fleet:
        await enqueue(db, "hold")
        fleet.until(lambda: "1" in fleet.get("/metrics")[1], "it runs")
        fleet.send(signal.SIGUSR1)
        fleet.wait_log("── pools")
        fleet.wait_log("Stack for <Task")
        text = fleet.log_text()
        assert "Current thread" in text
        assert "images/def" in text
        assert "shared#1" in text
        (fleet.folder / "go").touch()


# ── where it runs ────────────────────────────────────────────────────────────────────────────────


def test_the_folder_of_fleet_toml_is_where_modules_are_found(dsn, tmp_path):
    (tmp_path / "jobs.py").write_text(APP)
    (tmp_path / "fleet.toml").write_text('app = "jobs:app"\n')
    below = tmp_path / "deep" / "er"
    below.mkdir(parents=True)
    process = Commands(below, dsn).start("run", "--http", "off")
    command = Commands(below, dsn)
    wait_until(lambda: command.json("status")["owners"])
    wait_until(lambda: [q for q in command.json("queue", "list") if q["hosts"]])
    process.terminate()
    process.communicate(timeout=30)
    assert process.returncode == 0


def test_the_embedded_database_stays_up_while_it_runs(tmp_path):
    (tmp_path / "jobs.py").write_text(APP)
    (tmp_path / "fleet.toml").write_text('app = "jobs:app"\nembedded = true\n')
    command = Commands(tmp_path, None)
    command("migrate")
    process = command.start("run", "--http", "off")
    wait_until(lambda: [q for q in command.json("queue", "list") if q["hosts"]], 60)
    task = command.json("enqueue", "double", "21")["id"]
    wait_until(lambda: command.json("task", "show", task)["state"] == "succeeded", 60)
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 0


ORPHAN = """
import ctypes, os, subprocess, sys, time
ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: as if we were PID 1
from supervisor.orphans import reap
# A child that leaves a grandchild behind; and one of ours, which somebody else waits for.
subprocess.run(["sh", "-c", "sleep 0.05 & exit 0"])
ours = subprocess.Popen(["true"])
reaped = []
while not reaped:
    reaped = reap({ours.pid})
    time.sleep(0.01)
assert ours.pid not in reaped
assert ours.wait() == 0
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only Linux has containers")
def test_as_pid_1_it_reaps_what_steps_leave_behind():
    subprocess.run([sys.executable, "-c", ORPHAN], check=True, timeout=20)
