"""How fast tasks end: right, and read from the end of the archive, however long that is."""

from __future__ import annotations

import json
from typing import Final

import asyncpg
import pytest

from fleet.store import rates
from fleet.store.rates import PAGES
from tests.store.plans import Plan, Question

# One row a moment: the last of ``n`` ended now, those before it ``every`` seconds apart.
_ENDED: Final = """
insert into fleet.archive (keep_until, id, fence, enqueued_at, ready_at, finished_at, visit,
    attempt, failures, crashes, losses, releases, priority, outcome, queue, job, step, input)
select fleet.now() + $4::int * interval '1 day', n, 1, fleet.now(), fleet.now(),
       fleet.now() - ($2::int - n) * $3::float8 * interval '1 s' - $5::float8 * interval '1 s',
       1, 1, 0, 0, 0, 0, 0, 'succeeded', $1::text, 'x', 'a', 'null'
  from generate_series(1, $2::int) n
"""


async def ended(
    db: asyncpg.Connection, queue: str, n: int, *, every: float, days: int = 14, ago: float = 0.0
) -> None:
    await db.execute(_ENDED, queue, n, every, days, ago)


@pytest.fixture
async def stopped(db: asyncpg.Connection) -> asyncpg.Connection:
    """Time stands still, so that it does not matter how long the test takes."""
    now = await db.fetchval("select fleet.now()::text")
    await db.execute(
        "create or replace function fleet.now() returns timestamptz "
        f"language sql stable as $$ select timestamptz '{now}' $$"
    )
    return db


@pytest.fixture
async def history(stopped: asyncpg.Connection) -> asyncpg.Connection:
    await stopped.execute("select fleet.maintain()")
    return stopped


async def explain(db: asyncpg.Connection) -> Plan:
    question = Question()
    await rates.rates(question)
    how = "explain (analyze, buffers, format json) "
    return Plan(json.loads(await db.fetchval(how + question.query, *question.args))[0]["Plan"])


async def test_what_ended_in_the_last_minute_counts_by_queue(history):
    await ended(history, "billing", 120, every=0.5)
    await ended(history, "images", 6, every=10)
    await ended(history, "emails", 6, every=10, ago=61)

    assert await rates.rates(history) == pytest.approx({"billing": 2.0, "images": 0.1}, rel=0.02)


async def test_however_long_a_job_s_tasks_are_kept(history):
    for days in (0, 1, 14, 21, 60):  # the last has no partition of its own
        await ended(history, "billing", 60, every=1, days=days)

    assert await rates.rates(history) == pytest.approx({"billing": 5.0}, rel=0.02)


async def test_before_there_are_partitions(stopped):
    await ended(stopped, "billing", 60, every=1)

    assert await rates.rates(stopped) == pytest.approx({"billing": 1.0}, rel=0.02)


async def test_more_than_fits_on_the_pages_that_are_read_is_told_of_the_time_that_does(history):
    n = 30_000
    await ended(history, "billing", n, every=0.001)
    pages = await history.fetchval("select sum(pg_relation_size(inhrelid)) / 8192 from pg_inherits")
    assert pages > 1.5 * PAGES, "or the test proves nothing"

    assert await rates.rates(history) == pytest.approx({"billing": 1000.0}, rel=0.05)


async def test_a_long_archive_is_not_read(history):
    await ended(history, "billing", 100_000, every=0.1, ago=100)
    await ended(history, "billing", 60, every=1)
    await history.execute("analyze fleet.archive")

    plan = await explain(history)

    read = [node for node in plan.nodes() if node.get("Relation Name", "").startswith("archive")]
    assert sum(node["Actual Rows"] * node["Actual Loops"] for node in read) < 20_000
    assert sum(node["Shared Hit Blocks"] + node["Shared Read Blocks"] for node in read) <= PAGES + 5
    assert await rates.rates(history) == pytest.approx({"billing": 1.0}, rel=0.02)
