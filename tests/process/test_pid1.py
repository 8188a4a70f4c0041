"""``fleet run`` as PID 1, as in most containers: nobody else reaps, and signals have no default."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import psutil

from tests.process.fleets import archived, enqueue, eventually, running_fleet

APP = """
import asyncio, os, subprocess, time
from pathlib import Path
from fleet import Context, Fleet

app = Fleet()

@app.job("abandon")
async def abandon(ctx: Context, name: str) -> None:
    # A process of its own session whose parent ends: PID 1 inherits it, and it ends a little later.
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            while os.getppid() != 1:
                time.sleep(0.01)
            Path(name).write_text(str(os.getppid()))
        os._exit(0)
    os.wait()

@app.job("hold")
async def hold(ctx: Context, name: str) -> str:
    while not Path(name).exists():
        await asyncio.sleep(0.01)
    return name
"""
# Without root a namespace of users makes it possible.
AS_ROOT = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
PID_1 = ["unshare", *AS_ROOT, "--pid", "--fork", "--mount-proc"]


def init_of(fleet) -> psutil.Process:
    """The supervisor: what unshare has started."""
    (init,) = psutil.Process(fleet.pid).children()
    inside = Path(f"/proc/{init.pid}/status").read_text().split("NSpid:")[1].split("\n")[0]
    assert inside.split()[-1] == "1"
    return init


def zombies(init: psutil.Process) -> list[int]:
    found = []
    for child in init.children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if child.status() == psutil.STATUS_ZOMBIE:
                found.append(child.pid)
    return found


async def test_r13_as_pid_1_it_reaps_what_steps_leave_behind_and_drains_on_sigterm(dsn, db):
    with running_fleet(dsn, APP, "[supervisor]\nprocesses = 1\n", within=PID_1) as fleet:
        init = init_of(fleet)
        names = [f"abandoned-{n}" for n in range(5)]
        await archived(db, *[await enqueue(db, "abandon", name) for name in names])
        for name in names:
            fleet.until((fleet.folder / name).exists, f"{name} was inherited")
            assert (fleet.folder / name).read_text() == "1"
        fleet.until(lambda: not zombies(init), lambda: f"zombies: {zombies(init)}")

        # A worker that is killed is not taken for such an orphan: its exit code is known.
        os.kill(fleet.worker_pids()[0], signal.SIGKILL)
        fleet.wait_log("killed by SIGKILL")
        fleet.wait_ready()

        task = await enqueue(db, "hold", "go")
        await eventually(lambda: _runs(db, task))
        init.send_signal(signal.SIGTERM)
        fleet.wait_log("draining")
        assert fleet.alive
        (fleet.folder / "go").touch()
        assert fleet.ended() == 0, fleet.tail()
        (row,) = await archived(db, task)
        assert (row["result"], row["releases"]) == ('"go"', 0)
        assert await db.fetchval("select count(*) from fleet.owner") == 0


async def _runs(db, task) -> bool:
    return await db.fetchval("select state from fleet.task where id = $1", task) == "running"
