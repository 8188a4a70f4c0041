"""Where a worker takes a step's timeout and retries from: step over job over queue over config."""

from __future__ import annotations

import json

import pytest

from tests.process.faults import FAST, host

APP = """
import asyncio, time
from fleet import Context, Fleet, Job, Retry

app = Fleet()


async def sleep(ctx: Context) -> None:
    await asyncio.sleep(60)


app.job("of-config")(sleep)
app.job("of-queue", queue="billing")(sleep)
app.job("of-job", queue="billing", timeout=0.3, retry=Retry(max_attempts=1))(sleep)
of_step: Job[None, None] = app.job("of-step", queue="billing", timeout=50, retry=Retry())
of_step.step(timeout=0.4, retry=Retry(max_attempts=4, initial=0.01))(sleep)


@app.job("def-of-config")
def def_of_config(ctx: Context) -> None:
    time.sleep(60)
"""
CONFIG = (
    FAST
    + """
[defaults]
timeout = "100ms"
retry.max_attempts = 2
retry.initial = "10ms"

[queues.billing]
timeout = "200ms"
retry.max_attempts = 3
retry.initial = "10ms"
"""
)


@pytest.mark.parametrize(
    ("job", "queue", "timeout", "attempts"),
    [
        ("of-config", "default", 0.1, 2),
        ("of-queue", "billing", 0.2, 3),
        ("of-job", "billing", 0.3, 1),
        ("of-step", "billing", 0.4, 4),
        ("def-of-config", "default", 0.1, 2),
    ],
)
async def test_r01_a_worker_goes_by_the_strongest_that_says_something(
    dsn, db, tmp_path, job, queue, timeout, attempts
):
    with host(dsn, db, tmp_path, CONFIG, app=APP) as here:
        row = await here.end(await here.enqueue(job, queue=queue))
        assert (row["how"], row["failures"], row["attempt"]) == ("exhausted", attempts, attempts)
        assert f"{timeout:g}s" in json.loads(row["error"])["message"]


async def test_r01_what_workers_resolve_is_what_the_registry_shows(dsn, db, tmp_path):
    """So that SQL, which knows no fleet.toml, goes by the same."""
    with host(dsn, db, tmp_path, CONFIG, app=APP) as here:
        await here.end(await here.enqueue("of-config"))
        sql = "select definition::text from fleet.job where name = $1"
        found = {
            job: json.loads(await db.fetchval(sql, job))["steps"][0]["timeout"]
            for job in ("of-config", "of-queue", "of-job", "of-step")
        }
        assert found == {"of-config": 0.1, "of-queue": 0.2, "of-job": 0.3, "of-step": 0.4}
