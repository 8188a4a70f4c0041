"""fleet.log: who told the fleet what, written by whatever carries it out."""

from __future__ import annotations

import json
from datetime import timedelta

from fleet.lifecycle import Refused
from fleet.model import Failure
from fleet.store import control, log, results, tasks
from tests.store.conftest import ALICE, Table


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


async def test_a_shutdown_is_in_the_log(table: Table):
    number = await control.request_shutdown(table.db, "web-1", "images", "ann@host")
    assert await lines(table.db) == [
        ("ann@host", "shutdown", "web-1", {"request": number, "queue": "images"})
    ]


async def test_one_cancel_and_one_revival_are_in_the_log_once(table: Table):
    (task,) = await table.enqueue("1")
    claim = await table.claim_one()
    for _ in range(2):
        assert await results.cancel(table.db, task, "ann@host") == "requested"
    await table.settle(ALICE, (claim, Refused("fatal", Failure(type="X", message=""))))
    assert await results.cancel(table.db, task, "ann@host") == "ended"
    await tasks.revive(table.db, task, new_input="2", by="bob@host")

    about = {"job": "resize", "queue": "images"}
    assert await lines(table.db) == [
        ("ann@host", "task.cancel", str(task), about | {"said": "requested"}),
        ("bob@host", "task.revive", str(task), about | {"input": "new"}),
    ]


async def test_what_was_rolled_back_was_not_said(table: Table):
    transaction = table.db.transaction()
    await transaction.start()
    await table.db.fetch("select fleet.pause('images')")
    await transaction.rollback()
    assert await lines(table.db) == []


async def test_lines_are_read_by_time_and_queue(table: Table, fleet_clock):
    await table.db.fetch("select fleet.pause('images')")
    await fleet_clock.advance(3600)
    since = await fleet_clock.now()
    await table.db.fetch("select fleet.pause('emails')")
    await table.enqueue("1")
    await table.db.fetch("select fleet.cancel_where('images')")

    async def read(**options) -> list[tuple[str, str | None]]:
        return [(line.what, line.target) for line in await log.lines(table.db, **options)]

    assert await read(since=since) == [("queue.pause", "emails"), ("task.cancel", None)]
    assert await read(since=since, limit=1) == [("task.cancel", None)]
    assert await read(since=since - timedelta(hours=2), queue="images") == [
        ("queue.pause", "images"),
        ("task.cancel", None),
    ]
