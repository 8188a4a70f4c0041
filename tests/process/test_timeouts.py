"""Timeouts and cancels are real: whoever will not stop is stopped with its process."""

from __future__ import annotations

import json
import signal

from tests.process.faults import FAST, alive, host, kill
from tests.process.fleets import eventually

TWO = FAST.replace("processes = 1", "processes = 2")


async def test_f05_a_stopped_worker_is_killed_at_the_steps_timeout(dsn, db, tmp_path):
    with host(dsn, db, tmp_path) as here:
        task = await here.enqueue("hang")
        await here.running(task)
        pid = here.ledger.pid(task)
        kill(pid, signal.SIGSTOP)
        row = await here.end(task)
        assert (row["how"], row["failures"], row["crashes"]) == ("exhausted", 1, 0)
        assert "timeout of 1s" in row["error"]
        here.fleet.until(lambda: not alive(pid), "the stopped worker is gone")
        await here.end(await here.enqueue("quick", 1))


async def test_f08_a_step_that_holds_the_interpreter_is_killed_at_its_timeout(dsn, db, tmp_path):
    with host(dsn, db, tmp_path) as here:
        task = await here.enqueue("gil")
        await here.running(task)
        pid = here.ledger.pid(task)
        row = await here.end(task)
        assert (row["how"], row["failures"], row["crashes"]) == ("exhausted", 1, 0)
        assert here.ledger.started(task) == 1
        assert not alive(pid)


async def test_f08_neighbours_of_one_that_holds_the_interpreter_are_only_suspects(
    dsn, db, tmp_path
):
    with host(dsn, db, tmp_path) as here:
        neighbours = await here.enqueue_many("long-once", [None] * 2)
        await here.running(*neighbours)
        culprit = await here.enqueue("gil")
        await here.running(culprit)
        # Once in company, where nobody can say who it was, then alone.
        row = await here.end(culprit)
        assert (row["how"], row["failures"], row["crashes"]) == ("exhausted", 1, 0)
        for row in await here.ended(*neighbours):
            assert (row["how"], row["failures"], row["crashes"]) == ("succeeded", 0, 0)


async def test_f09_r08_a_step_that_will_not_be_cancelled_is_killed(dsn, db, tmp_path):
    """Its neighbours end first."""
    with host(dsn, db, tmp_path) as here:
        neighbour = await here.enqueue("nap", 4.0)
        task = await here.enqueue("deaf")
        await here.running(task, neighbour)
        pid = here.ledger.pid(task)
        row = await here.end(task)
        assert (row["how"], row["failures"], row["crashes"]) == ("exhausted", 1, 0)
        assert "did not end within its timeout of 1s" in row["error"]
        assert here.ledger.lines(task, "refused"), "it was asked first"
        assert not alive(pid)
        spared = await here.end(neighbour)
        assert (spared["how"], spared["crashes"], spared["releases"]) == ("succeeded", 0, 0)
        assert here.ledger.started(neighbour) == 1


async def test_r08_an_async_step_is_cancelled_at_its_timeout_and_its_worker_lives(
    dsn, db, tmp_path
):
    config = FAST + '[queues.default]\ntimeout = "0.5s"\nretry = { max_attempts = 1 }\n'
    with host(dsn, db, tmp_path, config) as here:
        task = await here.enqueue("nap", 60)
        row = await here.end(task)
        assert row["how"] == "exhausted"
        assert json.loads(row["error"])["type"].endswith("StepTimeout")
        assert alive(here.ledger.pid(task))


async def test_r08_a_def_step_is_killed_at_its_timeout(dsn, db, tmp_path):
    with host(dsn, db, tmp_path) as here:
        task = await here.enqueue("hang")
        await here.running(task)
        pid = here.ledger.pid(task)
        row = await here.end(task)
        assert (row["how"], row["failures"]) == ("exhausted", 1)
        assert not alive(pid)


async def test_u18_a_running_step_is_told_and_may_stop_by_itself(dsn, db, tmp_path):
    with host(dsn, db, tmp_path) as here:
        task = await here.enqueue("stoppable")
        await here.running(task)
        pid = here.ledger.pid(task)
        assert await db.fetchval("select fleet.cancel($1)", task) == "requested"
        row = await here.end(task)
        assert here.ledger.lines(task, "stopped")
        assert row["how"] in ("cancelled", "succeeded")
        assert alive(pid)


async def test_u18_who_does_not_stop_is_stopped(dsn, db, tmp_path):
    """A coroutine is cancelled; a plain function ends with its process, and is not charged."""
    with host(dsn, db, tmp_path, TWO) as here:
        here.fleet.wait_ready(2)
        coroutine = await here.enqueue("nap", 60)
        function = await here.enqueue("work", 60)
        await here.running(coroutine, function)
        pids = here.ledger.pid(coroutine), here.ledger.pid(function)
        for task in (coroutine, function):
            assert await db.fetchval("select fleet.cancel($1)", task) == "requested"
        for row in await here.ended(coroutine, function):
            assert (row["how"], row["crashes"], row["failures"]) == ("cancelled", 0, 0)
        assert alive(pids[0])
        here.fleet.until(lambda: not alive(pids[1]), "the def step's process is gone")
        assert await db.fetchval("select count(*) from fleet.task") == 0

        async def forgotten() -> bool:
            return await db.fetchval("select count(*) from fleet.cancellation") == 0

        await eventually(forgotten)


async def test_u18_a_cancel_without_any_notify_is_heard_by_the_beat(dsn, db, tmp_path):
    with host(dsn, db, tmp_path) as here:
        task = await here.enqueue("stoppable")
        await here.running(task)
        await db.execute("insert into fleet.cancellation (task_id) values ($1)", task)
        await here.end(task)
        assert here.ledger.lines(task, "stopped")
