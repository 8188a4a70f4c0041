"""Workers die, each in its way: their tasks run again at once, and blame goes where it belongs."""

from __future__ import annotations

import asyncio
import itertools
import json
import time

import asyncpg
import psutil
import pytest

from tests.process.faults import APP, FAST, alive, fork_server, host, kill
from tests.process.fleets import eventually

SHARED_AND_IMAGES = FAST + "[queues.images]\nprocesses = 1\n"


@pytest.fixture(params=["on", "off"], ids=["pidfd", "no-pidfd"])
def watched(request):
    """How a death is seen: macOS has no pidfd, and goes by sentinels."""
    return {"FLEET_PIDFD": request.param}


async def test_f01_a_killed_worker_releases_its_task_at_once(dsn, db, tmp_path, watched):
    with host(dsn, db, tmp_path, env=watched) as here:
        task = await here.enqueue("long-once")
        await here.running(task)
        kill(here.ledger.pid(task))
        killed = time.monotonic()
        await here.running(task, times=2)
        assert time.monotonic() - killed < 3
        ended = await here.end(task)
        assert (ended["how"], ended["crashes"], ended["losses"]) == ("succeeded", 1, 0)
        ((how, why),) = await here.attempts(task)
        assert how == "crashed"
        assert "killed by SIGKILL" in why


async def test_f01_of_several_in_a_dead_worker_nobody_is_charged(dsn, db, tmp_path, watched):
    with host(dsn, db, tmp_path, env=watched) as here:
        tasks = await here.enqueue_many("long-once", [None] * 3)
        await here.running(*tasks)
        kill(here.ledger.pid(tasks[0]))
        ended = await here.ended(*tasks)
        assert [(row["how"], row["crashes"]) for row in ended] == [("succeeded", 0)] * 3
        # Suspects run alone: no two of their second runs overlap.
        spans = sorted(
            (here.ledger.lines(t, "start")[1]["at"], here.ledger.lines(t, "end")[0]["at"])
            for t in tasks
        )
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))


async def test_f01_what_had_not_started_is_no_suspect(dsn, db, tmp_path):
    config = FAST.replace("concurrency = 10", "concurrency = 1")
    with host(dsn, db, tmp_path, config) as here:
        # Short steps first, so that more is claimed ahead than runs.
        await here.ended(*await here.enqueue_many("quick", list(range(300))))
        async with db.transaction():
            running = await here.enqueue("long-once")
            behind = await here.enqueue_many("quick", list(range(4)))
        await here.running(running)
        kill(here.ledger.pid(running))
        assert (await here.end(running))["crashes"] == 1
        for row in await here.ended(*behind):
            assert (row["crashes"], row["losses"], row["releases"]) == (0, 0, 0)
            assert await here.attempts(row["id"]) == []
        assert await _most_claims(db, behind) <= 4


async def test_p13_what_waits_behind_a_long_step_is_given_back_and_left_alone(dsn, db, tmp_path):
    """It is claimed ahead once, by mistake, and not again and again."""
    config = FAST.replace("concurrency = 10", "concurrency = 1")
    with host(dsn, db, tmp_path, config) as here:
        await here.ended(*await here.enqueue_many("quick", list(range(300))))
        async with db.transaction():
            running = await here.enqueue("nap", 2.0)
            behind = await here.enqueue_many("quick", list(range(4)))
        await here.ended(running, *behind)
        assert await _most_claims(db, behind) <= 3


async def test_p13_nothing_is_claimed_for_workers_that_can_take_nothing(dsn, db, tmp_path):
    """It would be given back, and claimed again, as fast as the database can."""
    with host(dsn, db, tmp_path) as here:
        await here.ended(*await here.enqueue_many("quick", list(range(300))))
        running = await here.enqueue("work", 0.7)  # a def step: the only process is its own
        await here.running(running)
        behind = await here.enqueue_many("quick", list(range(4)))
        await here.ended(running, *behind)
        assert await _most_claims(db, behind) <= 3


async def _most_claims(db, tasks) -> int:
    """How often the unluckiest of them was claimed."""
    return await db.fetchval("select max(fence) from fleet.archive where id = any ($1)", tasks)


async def test_f07_poison_is_buried_after_three_and_its_siblings_run_on(dsn, db, tmp_path):
    with host(dsn, db, tmp_path, SHARED_AND_IMAGES) as here:
        poison = {how: await here.enqueue("die", how) for how in ("segfault", "memory")}
        siblings = await here.enqueue_many("quick", list(range(50)))
        elsewhere = await here.enqueue_many("images", list(range(50)), queue="images")
        for row in await here.ended(*siblings, *elsewhere):
            assert row["how"] == "succeeded"
        for how, signal_ in (("segfault", "SIGSEGV"), ("memory", "SIGKILL")):
            row = await here.end(poison[how])
            assert (row["how"], row["crashes"], row["failures"]) == ("poison", 3, 0)
            assert f"killed by {signal_}" in row["error"]
            assert here.ledger.started(poison[how]) <= 4  # once in company, thrice alone


async def test_f07_exiting_the_process_is_a_crash_of_the_step_that_did_it(
    dsn, db, tmp_path, watched
):
    with host(dsn, db, tmp_path, env=watched) as here:
        for job, how, code in (
            ("die", "os._exit", 9),
            ("die", "sys.exit", 3),
            ("die-def", "sys.exit", 3),
        ):
            row = await here.end(await here.enqueue(job, how))
            if row["how"] == "poison":
                assert f"exit code {code}" in row["error"], row
            else:  # an exception like any other
                assert "SystemExit" in row["error"], row


DIES_UNHEARD = (
    APP
    + """
import fleet.worker.main as worker

booked: Job[int, int] = app.job("booked")


@booked.step(transactional=True)
async def book(ctx: Context, n: int) -> int:
    await ctx.tx.execute("insert into effects (task) values ($1)", ctx.task_id)
    note(ctx, "start")
    return n


@booked.step(transactional=True)
async def close(ctx: Context, n: int) -> int:
    return n + 1


import orjson

told = worker.Worker.WHERE


def die_first(self, *args):
    outcomes = orjson.loads(orjson.dumps([*args, *self.outbox]))
    if any(packed[2] == os.environ["STEP"] for packed in outcomes):
        if not os.path.exists(os.environ["LEDGER"] + ".died"):
            open(os.environ["LEDGER"] + ".died", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
    told(self, *args)


worker.Worker.WHERE = die_first
"""
)


@pytest.mark.parametrize("step", ["book", "close"])
@pytest.mark.parametrize("where", ["_report", "_flush"])
async def test_f02_who_dies_after_its_own_commit_is_not_run_again(dsn, db, tmp_path, where, step):
    """The outcome is in the database, and its worker could not say so any more."""
    await db.execute("create table effects (task bigint not null)")
    app = DIES_UNHEARD.replace("WHERE", where)
    with host(dsn, db, tmp_path, app=app, env={"STEP": step}) as here:
        task = await here.enqueue("booked", 7)
        row = await here.end(task)
        assert (row["how"], row["result"], row["crashes"]) == ("succeeded", "8", 0)
        assert here.ledger.started(task) == 1
        assert await db.fetchval("select count(*) from effects") == 1
        here.fleet.wait_log("killed by SIGKILL")
        assert "no longer holds" not in here.fleet.log_text()


async def test_r13_a_dead_worker_is_restarted_and_the_others_never_notice(
    dsn, db, tmp_path, watched
):
    config = SHARED_AND_IMAGES.replace("processes = 1\nconcurrency", "processes = 2\nconcurrency")
    with host(dsn, db, tmp_path, config, env=watched) as here:
        here.fleet.wait_ready(3)
        before = set(here.fleet.worker_pids())
        task = await here.enqueue("long-once")
        await here.running(task)
        victim = here.ledger.pid(task)
        kill(victim)
        await here.end(task)
        here.fleet.until(lambda: len(here.fleet.worker_pids()) == 3, "three workers again")
        after = set(here.fleet.worker_pids())
        assert before - after == {victim}


async def test_f10_what_a_step_has_started_dies_with_its_worker(dsn, db, tmp_path, watched):
    with host(dsn, db, tmp_path, env=watched) as here:
        task = await here.enqueue("fork", 60)
        await here.running(task)
        (child,) = here.ledger.children()
        assert alive(child)
        kill(here.ledger.pid(task))
        await here.running(task, times=2)
        here.fleet.until(lambda: not alive(child), "the step's child is gone")
        second = here.ledger.children()[1]
        # Also with the whole host, where nobody is left to kill it.
        here.fleet.kill()
        here.fleet.until(lambda: not alive(second), "the second one too", 5)
        here.fleet.assert_no_orphans()


async def test_f13_the_fork_server_may_die(dsn, db, tmp_path, watched):
    with host(dsn, db, tmp_path, env=watched) as here:
        task = await here.enqueue("nap", 0.6)
        await here.running(task)
        first = fork_server(here.fleet)
        kill(first)
        here.fleet.until(lambda: not alive(first), "the fork server is gone")
        row = await here.end(task)
        assert (row["crashes"], row["losses"], row["releases"]) == (0, 0, 0)
        assert here.ledger.started(task) == 1

        # A worker that is killed now is replaced by the child of a new fork server.
        again = await here.enqueue("long-once")
        await here.running(again)
        kill(here.ledger.pid(again))
        row = await here.end(again)
        assert (row["how"], row["crashes"]) == ("succeeded", 1)
        assert fork_server(here.fleet) != first


async def test_f13_there_is_no_manager_to_kill(dsn, db, tmp_path):
    with host(dsn, db, tmp_path) as here:
        here.fleet.wait_ready()
        for child in psutil.Process(here.fleet.pid).children(recursive=True):
            line = " ".join(child.cmdline())
            assert any(w in line for w in ("forkserver", "resource_tracker", "fleet: worker")), line


async def test_f12_a_worker_that_has_grown_is_recycled_between_steps(dsn, db, tmp_path):
    config = FAST + '[queues.leaky]\nprocesses = 1\nconcurrency = 2\nmax_memory = "120MiB"\n'
    with host(dsn, db, tmp_path, config) as here:
        here.fleet.wait_ready(2)
        pids = set()
        for _ in range(4):
            tasks = await here.enqueue_many("leak", [30 << 20] * 2, queue="leaky")
            for row in await here.ended(*tasks):
                assert (row["how"], row["crashes"], row["releases"]) == ("succeeded", 0, 0)
                pids.add(row["result"])
        await eventually(lambda: _recycled(here))
        assert "grown past its limit" in here.fleet.log_text()


async def _recycled(here) -> bool:
    (row,) = await here.ended(await here.enqueue("leak", 1024, queue="leaky"))
    first = here.ledger.lines(what="start")[0]["pid"]
    return json.loads(row["result"]) != first


async def test_f12_a_worker_is_recycled_after_so_many_tasks(dsn, db, tmp_path, watched):
    config = FAST + "[queues.leaky]\nprocesses = 1\nconcurrency = 2\nmax_tasks = 20\n"
    with host(dsn, db, tmp_path, config, env=watched) as here:
        here.fleet.wait_ready(2)
        tasks = []
        while len({line["pid"] for line in here.ledger.lines()}) < 3:
            tasks += (batch := await here.enqueue_many("leak", [1024] * 10, queue="leaky"))
            await here.ended(*batch)
            assert len(tasks) < 3_000, "nobody is recycled"
        for row in await here.ended(*tasks):
            assert (row["how"], row["crashes"]) == ("succeeded", 0)


async def test_f01_a_suspect_gets_its_turn_although_there_is_always_other_work(dsn, db, tmp_path):
    config = FAST.replace("concurrency = 10", "concurrency = 4")
    with host(dsn, db, tmp_path, config) as here:
        busy = asyncio.create_task(_keep_busy(dsn))
        try:
            await eventually(lambda: _much_started(here))
            async with db.transaction():
                # As it is after two losses, on a host that has work already.
                suspect = await here.enqueue("work", 0.1)
                await db.execute("update fleet.task set alone = true where id = $1", suspect)
            row = await here.end(suspect, patience=10)
            assert (row["how"], row["crashes"]) == ("succeeded", 0)
            start, end = here.ledger.lines(suspect)
            between = [
                line
                for line in here.ledger.lines()
                if start["at"] < line["at"] < end["at"] and line["pid"] == start["pid"]
            ]
            assert between == [], "it did not run alone"
        finally:
            busy.cancel()


async def test_r02_def_steps_get_their_turn_although_there_is_always_async_work(dsn, db, tmp_path):
    config = FAST.replace("concurrency = 10", "concurrency = 4")
    with host(dsn, db, tmp_path, config) as here:
        busy = asyncio.create_task(_keep_busy(dsn))
        try:
            await eventually(lambda: _much_started(here))
            tasks = await here.enqueue_many("work", [0.05] * 3)
            for row in await here.ended(*tasks, patience=10):
                assert row["how"] == "succeeded"
        finally:
            busy.cancel()


async def _much_started(here) -> bool:
    return len(here.ledger.lines()) > 20


async def _keep_busy(dsn) -> None:
    """Keep a backlog of short steps: whatever ends is replaced."""
    conn = await asyncpg.connect(dsn)
    try:
        while True:
            backlog = await conn.fetchval("select fleet.backlog('default')")
            await conn.execute(
                "select fleet.enqueue('nap', '0.05', queue => 'default')"
                "  from generate_series(1, greatest($1::int, 1))",
                40 - backlog,
            )
    finally:
        conn.terminate()
