"""Workers that cannot boot, boot for ever, or are told to stop the moment they are started."""

from __future__ import annotations

import asyncio
import os
import random
import signal

from tests.process.faults import APP, FAST, host
from tests.process.fleets import running_fleet

# Only the worker of one pool knows which one it is: by its title.
BROKEN_FOR_IMAGES = (
    APP
    + """
import setproctitle
if "worker images" in setproctitle.getproctitle() and not os.path.exists(os.environ["MENDED"]):
    raise ImportError("libimage.so is missing")
"""
)
SLOW_FOR_IMAGES = BROKEN_FOR_IMAGES.replace(
    'raise ImportError("libimage.so is missing")', "time.sleep(600)"
)
CONFIG = (
    FAST.replace("drain_timeout", 'preload = false\nboot_timeout = "3s"\ndrain_timeout')
    + "[queues.images]\nprocesses = 1\n"
)


async def test_f11_an_import_error_costs_one_pool_and_says_why_once(dsn, db, tmp_path):
    mended = tmp_path / "mended"
    env = {"MENDED": str(mended)}
    with host(dsn, db, tmp_path, CONFIG, app=BROKEN_FOR_IMAGES, env=env) as here:
        waiting = await here.enqueue("images", 3, queue="images")
        await here.ended(*await here.enqueue_many("quick", list(range(20))))
        here.fleet.until(
            lambda: here.fleet.log_text().count("the application could not be loaded") >= 3,
            "several attempts",
        )
        told = [r for r in here.fleet.records("libimage.so is missing") if r["level"] == "error"]
        assert len(told) == 1, told
        assert "Traceback" in told[0]["message"]
        assert (await here.row(waiting))["state"] == "ready"
        await here.ended(*await here.enqueue_many("quick", list(range(20))))

        mended.touch()
        row = await here.end(waiting)
        assert (row["how"], row["crashes"], row["losses"]) == ("succeeded", 0, 0)


async def test_f11_a_slow_import_hits_the_deadline_of_the_boot(dsn, db, tmp_path):
    mended = tmp_path / "mended"
    env = {"MENDED": str(mended)}
    with host(dsn, db, tmp_path, CONFIG, app=SLOW_FOR_IMAGES, env=env) as here:
        waiting = await here.enqueue("images", 3, queue="images")
        here.fleet.wait_log("boot: it did not finish within 3s")
        await here.ended(*await here.enqueue_many("quick", list(range(20))))
        mended.touch()
        await here.end(waiting)


async def test_f11_the_fork_server_survives_an_application_that_does_not_load(dsn, db, tmp_path):
    """Preloading swallows it, the worker tells it, and a mended file is loaded at the next try."""
    source = "import os\nif not os.path.exists(os.environ['MENDED']): 1 / 0\n" + APP
    mended = tmp_path / "mended"
    env = {"MENDED": str(mended)}
    with host(dsn, db, tmp_path, app=source, env=env, ready=False) as here:
        here.fleet.wait_log("ZeroDivisionError")
        mended.touch()
        here.fleet.wait_ready()
        await here.end(await here.enqueue("quick", 1))


async def test_r06_a_job_that_nobody_knows_stays_ready_and_blocks_nobody(dsn, db, tmp_path):
    with host(dsn, db, tmp_path) as here:
        unknown = await here.enqueue_many("from-tomorrow", [1, 2, 3])
        await here.ended(*await here.enqueue_many("quick", list(range(50))))
        for task in unknown:
            row = await here.row(task)
            assert (row["state"], row["fence"], row["failures"]) == ("ready", 0, 0)


async def test_f26_sigterm_within_milliseconds_of_a_spawn(dsn, db, tmp_path):
    """No claim after it, no orphan, no task held: whenever in a boot it comes."""
    times = int(os.environ.get("FLEET_TEST_F26") or 20)
    config = FAST.replace("processes = 1", "processes = 2")
    await db.execute(
        "select fleet.enqueue('nap', '30', queue => 'default') from generate_series(1, 50)"
    )
    chance = random.Random(26)
    for number in range(times):
        env = {"LEDGER": str(tmp_path / "ledger")}
        with running_fleet(dsn, APP, config, env, name=f"host-{number}", ready=False) as fleet:
            # A worker has just been forked: it is in the middle of its boot, or about to be given
            # its first tasks. Half of the time the fork server is only just there.
            what = "fleet: worker" if number % 2 else "forkserver"
            fleet.until(lambda what=what: what in " ".join(fleet.processes().values()), what)
            await asyncio.sleep(chance.uniform(0, 0.005))  # the moment is what is varied
            fleet.send(signal.SIGTERM)
            await _stopped(fleet, db)
        left = "select count(*) from fleet.task where state <> 'ready'"
        assert await db.fetchval(left) == 0, fleet.tail()
        assert await db.fetchval("select count(*) from fleet.owner") == 0, fleet.tail()
    rows = await db.fetch("select crashes, losses, failures from fleet.task")
    assert len(rows) == 50
    assert {tuple(row) for row in rows} == {(0, 0, 0)}


async def _stopped(fleet, db) -> None:
    """Wait for its end; a step that it has begun is not waited for."""
    while fleet.alive:
        if await db.fetchval("select 1 from fleet.owner where state = 'draining'"):
            fleet.send(signal.SIGTERM)
        await asyncio.sleep(0.02)
    assert fleet.ended() == 0, fleet.tail()
