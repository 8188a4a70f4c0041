"""F31: a step does its worst to the descriptors of its process. The others go on."""

from __future__ import annotations

from tests.process.faults import FAST, host

TWO = FAST.replace("processes = 1", "processes = 2")


async def test_f31_a_step_that_floods_its_output_harms_nobody(dsn, db, tmp_path):
    with host(dsn, db, tmp_path) as here:
        floods = await here.enqueue_many("flood", [None] * 3)
        others = await here.enqueue_many("quick", list(range(100)))
        for row in await here.ended(*floods, *others):
            assert (row["how"], row["crashes"]) == ("succeeded", 0)


async def test_f31_a_step_that_closes_its_descriptors_ends_its_own_process_only(dsn, db, tmp_path):
    with host(dsn, db, tmp_path, TWO) as here:
        here.fleet.wait_ready(2)
        task = await here.enqueue("close-fds")
        await here.running(task)
        others = await here.enqueue_many("nap", [0.05] * 40)
        for row in await here.ended(*others):
            assert row["how"] == "succeeded"
        row = await here.end(task)
        assert row["how"] in ("poison", "succeeded")
        await here.ended(*await here.enqueue_many("quick", list(range(20))))


async def test_f31_nonsense_in_the_channel_ends_the_worker_that_sent_it(dsn, db, tmp_path):
    with host(dsn, db, tmp_path, TWO) as here:
        here.fleet.wait_ready(2)
        task = await here.enqueue("garbage")
        await here.running(task)
        others = await here.enqueue_many("quick", list(range(100)))
        for row in await here.ended(*others):
            assert row["how"] == "succeeded"
        row = await here.end(task)
        assert (row["how"], row["crashes"]) == ("poison", 3)


async def test_f31_a_progress_that_cannot_be_stored_costs_nobody_anything(dsn, db, tmp_path):
    with host(dsn, db, tmp_path) as here:
        tasks = await here.enqueue_many("progress", ["nul", "surrogate", "plain"])
        for row in await here.ended(*tasks):
            assert row["how"] == "succeeded"
        assert "a part of the supervisor failed" not in here.fleet.log_text()
