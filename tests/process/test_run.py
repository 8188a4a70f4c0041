"""``fleet run``: starts, runs tasks, says what it does, and ends without a trace."""

from __future__ import annotations

from tests.process.fleets import archived, enqueue, running_fleet

APP = """
from fleet import Context, Fleet

app = Fleet()

@app.job("double")
async def double(ctx: Context, n: int) -> int:
    return 2 * n

@app.job("square", queue="images")
def square(ctx: Context, n: int) -> int:
    return n * n
"""


async def test_tasks_run_and_nothing_is_left(dsn, db):
    with running_fleet(dsn, APP, args=["--processes", "2"]) as fleet:
        tasks = [await enqueue(db, "double", 21), await enqueue(db, "square", 3, "images")]
        assert [row["result"] for row in await archived(db, *tasks)] == ["42", "9"]
        assert len(fleet.worker_pids("shared")) == 2
    assert await db.fetchval("select count(*) from fleet.owner") == 0
