"""Who gets the slots: shared and dedicated queues, the heap, and no more claimed than can run."""

from __future__ import annotations

import asyncio
import signal

import asyncpg
import pytest

from tests.process.faults import APP, FAST, host
from tests.process.fleets import eventually

QUEUES = (
    APP
    + """

def make(queue):
    @app.job(f"job-{queue}", queue=queue)
    async def job(ctx: Context, seconds: float) -> None:
        note(ctx, queue)
        await asyncio.sleep(seconds)

for queue in ("a", "b", "c"):
    make(queue)
"""
)


async def test_r02_one_pool_serves_every_shared_queue(dsn, db, tmp_path):
    """Also those that no file names; a dedicated queue has processes of its own."""
    config = FAST + "[queues.a]\n[queues.b]\n[queues.images]\nprocesses = 1\n"
    with host(dsn, db, tmp_path, config, app=QUEUES) as here:
        here.fleet.wait_ready(2)
        tasks = []
        for queue in ("a", "b", "c"):
            tasks += await here.enqueue_many(f"job-{queue}", [0.01] * 20, queue=queue)
        tasks += await here.enqueue_many("images", [10] * 20, queue="images")
        for row in await here.ended(*tasks):
            assert row["how"] == "succeeded"
        by_pool = await db.fetch(
            "select distinct queue, split_part(split_part(worker, '/', 3), '#', 1) as pool"
            "  from fleet.archive order by 1"
        )
        assert [tuple(row) for row in by_pool] == [
            ("a", "shared"),
            ("b", "shared"),
            ("c", "shared"),
            ("images", "images"),
        ]


async def test_r05_a_full_queue_does_not_starve_another(dsn, db, tmp_path):
    """Lines that are due take turns, whatever one of them has claimed ahead."""
    config = FAST.replace("concurrency = 10", "concurrency = 4")
    with host(dsn, db, tmp_path, config, app=QUEUES) as here:
        many = await here.enqueue_many("job-a", [0.02] * 600, queue="a")
        await eventually(lambda: db.fetchval("select count(*) > 20 from fleet.archive"))
        few = await here.enqueue_many("job-b", [0.02] * 20, queue="b")
        await here.ended(*few, patience=15)
        left = await db.fetchval("select count(*) from fleet.task where queue = 'a'")
        assert left > 100, f"{left}: they waited for the whole of the first queue"
        await here.ended(*many)


async def test_r05_the_queues_of_a_strict_pool_go_in_the_order_of_the_file(dsn, db, tmp_path):
    config = (
        FAST.replace("concurrency = 10", 'concurrency = 2\nbalance = "strict"')
        + "[queues.a]\n[queues.b]\n"
    )
    with host(dsn, db, tmp_path, config, app=QUEUES) as here:
        async with db.transaction():
            tasks = await here.enqueue_many("job-b", [0.02] * 40, queue="b")
            tasks += await here.enqueue_many("job-a", [0.02] * 40, queue="a")
        await here.ended(*tasks)
        order = [line["what"] for line in here.ledger.lines()]
        assert order.index("b") >= 30, "".join(order)


async def test_p13_never_more_is_claimed_than_there_are_slots(dsn, db, tmp_path):
    """Steps of over 50 ms: nothing is claimed ahead of a free slot."""
    config = FAST.replace("concurrency = 10", "concurrency = 3").replace(
        "processes = 1", "processes = 2"
    )
    with host(dsn, db, tmp_path, config) as here:
        here.fleet.wait_ready(2)
        await here.ended(*await here.enqueue_many("nap", [0.1] * 12))
        watcher = await asyncpg.connect(dsn)
        try:
            tasks = await here.enqueue_many("nap", [0.1] * 60)
            most, done = 0, False
            ending = asyncio.create_task(here.ended(*tasks))
            while not done:
                held = await watcher.fetchval(
                    "select count(*) from fleet.task where state = 'running'"
                )
                most, done = max(most, held), ending.done()
            await ending
        finally:
            await watcher.close()
        # A task whose outcome is on its way is claimed still, and its slot is free already.
        assert 6 <= most <= 12
        lines = here.ledger.lines()
        running = high = 0
        for line in sorted(lines, key=lambda line: line["at"]):
            running += 1 if line["what"] == "start" else -1
            high = max(high, running)
        assert high == 6


async def test_p13_a_def_step_does_not_hold_up_what_others_could_run(dsn, db, tmp_path):
    """Nothing is given to a worker that a def step has to itself."""
    config = FAST.replace("processes = 1", "processes = 2")
    with host(dsn, db, tmp_path, config) as here:
        here.fleet.wait_ready(2)
        busy = await here.enqueue("work", 3)
        await here.running(busy)
        tasks = await here.enqueue_many("nap", [0.01] * 30)
        await here.ended(*tasks)
        assert not here.ledger.lines(busy, "end"), "they waited for it"
        assert {line["pid"] for line in here.ledger.lines() if line["task"] in tasks}.isdisjoint(
            {here.ledger.pid(busy)}
        )
        assert await db.fetchval("select max(fence) from fleet.archive where id <> $1", busy) == 1
        await here.stop_now()
    assert here.fleet.process.returncode in (0, -signal.SIGTERM)


@pytest.mark.parametrize("queue", ["images", "emails"])
async def test_r02_a_task_runs_in_the_queue_it_was_enqueued_in(dsn, db, tmp_path, queue):
    """Not only in its job's own: in one with workers of its own, and in one that no job names."""
    config = FAST + "[queues.images]\nprocesses = 1\n[queues.emails]\n"
    with host(dsn, db, tmp_path, config) as here:
        here.fleet.wait_ready(2)
        tasks = [
            await here.enqueue("quick", 1, queue=queue),
            await here.enqueue("work", 0.01, queue=queue),
            *await here.enqueue_many("three", [1], queue=queue),
        ]
        for row in await here.ended(*tasks, patience=10):
            assert row["how"] == "succeeded"
        pools = await db.fetch("select worker from fleet.archive")
        expected = "images#" if queue == "images" else "shared#"
        assert all(expected in row["worker"] for row in pools), pools
