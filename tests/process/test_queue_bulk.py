"""Cancel and purge in bulk while two hosts run the queue."""

from __future__ import annotations

from fleet import Fleet
from tests.process.fleets import archived, enqueue, eventually, running_fleet
from tests.process.test_queue_control import APP, IMAGES


async def test_a_bulk_cancel_reaches_what_runs_on_every_host(dsn, db):
    with (
        running_fleet(dsn, APP, IMAGES, name="host-a"),
        running_fleet(dsn, APP, IMAGES, name="host-b"),
    ):
        tasks = [await enqueue(db, "resize", "/never/there", "images") for _ in range(10)]

        async def four_run() -> bool:
            return await db.fetchval("select count(*) from fleet.task where state = 'running'") == 4

        await eventually(four_run)
        async with Fleet(dsn) as app:
            assert await app.cancel(queue="images") == (6, 4)
        rows = await archived(db, *tasks)
        assert {row["outcome"] for row in rows} == {"cancelled"}


async def test_a_purge_leaves_what_runs_to_its_end(dsn, db, tmp_path):
    end = tmp_path / "end"
    with running_fleet(dsn, APP, IMAGES) as fleet:
        tasks = [await enqueue(db, "resize", str(end), "images") for _ in range(6)]

        async def two_run() -> bool:
            return await db.fetchval("select count(*) from fleet.task where state = 'running'") == 2

        await eventually(two_run)
        assert "4 deleted" in fleet.command("queue", "purge", "images", "--yes").stdout
        end.touch()
        await archived(db, *tasks[:2])
        assert await db.fetchval("select count(*) from fleet.archive") == 2
