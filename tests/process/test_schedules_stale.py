"""R12: versions that run side by side leave each other's schedules alone; what is stale rests."""

from __future__ import annotations

import pytest

from tests.process.fleets import eventually, running_fleet

APP = """
from fleet import Context, Fleet

app = Fleet()

@app.job("tock")
async def tock(ctx: Context, who: str) -> None: ...

app.schedule("both", "* * * * * *", tock, "{name}")
app.schedule("{name}", "* * * * * *", tock, "{name}")
"""
OLD, NEW = APP.replace("{name}", "old"), APP.replace("{name}", "new")


async def counts(db) -> dict[str, int]:
    rows = await db.fetch("select schedule::text, count(*) as n from fleet.tick group by 1")
    return {row["schedule"]: row["n"] for row in rows}


async def fires_on(db, *names: str, times: int = 2) -> None:
    """Wait until each of these has fired so many times more."""
    before = await counts(db)

    async def look() -> bool:
        now = await counts(db)
        return all(now.get(name, 0) >= before.get(name, 0) + times for name in names)

    await eventually(look, 60)


async def test_r12_in_a_rolling_deploy_each_keeps_its_own_and_the_newer_definition_counts(dsn, db):
    with running_fleet(dsn, OLD, name="host-a") as old:
        await fires_on(db, "both", "old")
        with running_fleet(dsn, NEW, name="host-b"):
            await fires_on(db, "both", "old", "new", times=4)
            assert await db.fetchval("select input from fleet.schedule where name = 'both'") == (
                '"new"'
            )
            old.stop()
            await fires_on(db, "both", "new")
            names = "select array_agg(name::text order by name) from fleet.schedule"
            assert await db.fetchval(names) == ["both", "new", "old"], "nobody removes it"


@pytest.mark.parametrize(
    ("policy", "resting"), [("stale", {"old"}), ("all", {"old", "hand"}), ("manual", set())]
)
async def test_r12_what_no_live_application_declares_rests_as_the_policy_says(
    dsn, db, fleet_clock, policy, resting
):
    with running_fleet(dsn, OLD, name="host-a"):
        await fires_on(db, "old", times=1)
    await db.fetch("select fleet.schedule('hand', '* * * * * *', 'tock', '\"hand\"')")
    await fleet_clock.advance(minutes=2)
    before = await counts(db)
    config = f'[supervisor]\nstale_schedules = "{policy}"\n'
    with running_fleet(dsn, NEW, config, name="host-b"):
        await fires_on(db, *({"new", "old", "hand"} - resting), times=4)
    after = await counts(db)
    assert {name for name in ("old", "hand") if after.get(name) == before.get(name)} == resting
    assert await db.fetchval("select count(*) from fleet.schedule") == 4, "none is removed"
