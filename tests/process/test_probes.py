"""/healthz, /readyz and /metrics: what they answer, and when."""

from __future__ import annotations

import json
import os
import signal
import socket

from prometheus_client.parser import text_string_to_metric_families

from tests.process.fleets import archived, enqueue, eventually, running_fleet

APP = """
import asyncio
from pathlib import Path
from fleet import Context, Fleet, Retry

app = Fleet()

@app.job("double", retry=Retry(max_attempts=2, initial=0.01))
async def double(ctx: Context, n: int) -> int:
    if n < 0 and ctx.attempt == 1:
        raise ValueError("below zero")
    return 2 * n

@app.job("hold")
async def hold(ctx: Context) -> str:
    while not Path("go").exists():
        await asyncio.sleep(0.01)
    return "held"
"""


def metrics(fleet):
    status, text = fleet.get("/metrics")
    assert status == 200
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_healthz_never_asks_the_database_and_readyz_says_why_not(dsn):
    with running_fleet(dsn, APP) as fleet:
        assert fleet.get("/healthz") == (200, "ok\n")
        status, body = fleet.get("/readyz")
        assert status == 200
        assert json.loads(body)["news"] in ("listening", "polling")
        assert json.loads(body)["why"] == []


async def test_not_ready_before_a_worker_is_and_while_it_drains(dsn, db):
    broken = "import does_not_exist"
    with running_fleet(dsn, broken, ready=False) as fleet:
        fleet.wait_log("does_not_exist")
        assert fleet.get("/healthz")[0] == 200
        status, body = fleet.get("/readyz")
        assert status == 503
        assert "no worker is ready" in json.loads(body)["why"]
        fleet.until(lambda: "does_not_exist" in fleet.get("/readyz")[1], "the cause is told")

    with running_fleet(dsn, APP) as fleet:
        await enqueue(db, "hold")
        fleet.until(lambda: metrics(fleet)["fleet_running", "shared"] == 1, "it runs")
        fleet.send(signal.SIGTERM)
        fleet.until(lambda: fleet.get("/readyz")[0] == 503, "it drains")
        assert "it is draining" in json.loads(fleet.get("/readyz")[1])["why"]
        assert fleet.get("/healthz")[0] == 200
        (fleet.folder / "go").touch()


async def test_metrics_count_what_happens(dsn, db):
    with running_fleet(dsn, APP, args=["--processes", "1"]) as fleet:
        assert metrics(fleet)["fleet_workers", "ready", "shared"] == 1
        await archived(db, *[await enqueue(db, "double", n) for n in (1, 2, -3)])

        async def counted():
            seen = metrics(fleet)
            return seen if seen.get(("fleet_finished_total", "default", "succeeded")) == 3 else None

        seen = await eventually(counted)
        assert seen["fleet_claimed_total", "default"] == 4
        assert seen["fleet_finished_total", "default", "failed"] == 1
        assert seen["fleet_step_duration_seconds_count", "default"] == 4
        assert seen["fleet_step_duration_seconds_bucket", "+Inf", "default"] == 4
        assert seen["fleet_wait_seconds_count", "default"] == 4
        assert 0 <= seen["fleet_wait_seconds_sum", "default"] < 30
        assert seen["fleet_free_slots", "shared"] == 10
        assert seen["fleet_pool_unhealthy", "shared"] == 0
        assert seen["fleet_lease_left_seconds",] > 0

        os.kill(fleet.worker_pids()[0], signal.SIGKILL)
        fleet.until(
            lambda: metrics(fleet).get(("fleet_worker_restarts_total", "signal")) == 1, "a restart"
        )


async def test_depths_are_of_the_whole_fleet(dsn, db):
    for _ in range(3):
        await enqueue(db, "unknown", queue="elsewhere")
    await db.execute("select fleet.enqueue('later', '1', queue => 'elsewhere', delay => '1 hour')")
    with running_fleet(dsn, APP) as fleet:
        seen = metrics(fleet)
        assert seen["fleet_queue_ready", "elsewhere"] == 3
        assert seen["fleet_queue_deferred", "elsewhere"] == 1
        assert seen["fleet_queue_oldest_ready_seconds", "elsewhere"] > 0


async def test_nothing_else_is_there(dsn):
    with running_fleet(dsn, APP) as fleet:
        assert fleet.get("/")[0] == 404
        assert fleet.get("/metrics/x")[0] == 404
        assert fleet.get("/readyz", "POST")[0] == 405
        assert fleet.get("/metrics", "DELETE")[0] == 405


async def test_an_address_that_is_taken_is_an_error_that_names_the_key(dsn, db):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with running_fleet(dsn, APP, args=["--http", address], ready=False) as fleet:
            assert fleet.ended() == 1
            assert f"supervisor.http = '{address}': cannot be listened on" in fleet.log_text()
    assert await db.fetchval("select count(*) from fleet.owner") == 0
