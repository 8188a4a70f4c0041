"""fleet.log: who told the fleet what, written by whatever carries it out."""

from __future__ import annotations

import json

from tests.store.conftest import Table


async def lines(db) -> list[tuple]:
    """Return what the log says, the first first: who, what, to what, and how."""
    rows = await db.fetch(
        "select who, what, target, detail::text as detail from fleet.log order by id"
    )
    return [(r["who"], r["what"], r["target"], json.loads(r["detail"])) for r in rows]


async def test_a_line_says_who_by_its_own_account_and_by_the_servers(table: Table):
    role = await table.db.fetchval("select session_user")
    await table.db.fetch(
        "select fleet.note('queue.pause', 'images', '{\"until\": null}', 'ann@host')"
    )
    await table.db.fetch("select fleet.note('shutdown')")

    assert await lines(table.db) == [
        ("ann@host", "queue.pause", "images", {}),
        (role, "shutdown", None, {}),
    ]
    assert {row["role"] for row in await table.db.fetch("select role from fleet.log")} == {role}


async def test_lines_stay_ninety_days(table: Table, fleet_clock):
    await table.db.fetch("select fleet.note('shutdown')")
    await fleet_clock.advance(days=89)
    await table.db.fetch("select fleet.note('queue.pause', 'images')")
    await table.db.fetch("select * from fleet.maintain()")
    assert len(await lines(table.db)) == 2

    await fleet_clock.advance(days=2)
    done = await table.db.fetch("select * from fleet.maintain()")
    assert ("deleted", "log", 1) in [tuple(row) for row in done]
    assert [what for _, what, _, _ in await lines(table.db)] == ["queue.pause"]
