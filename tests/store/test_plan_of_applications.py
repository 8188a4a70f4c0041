"""What other connections touch, and what claims write: no whole table, and no index."""

from __future__ import annotations

from typing import Final

import asyncpg

from fleet.lifecycle import Advanced, onward
from fleet.store import claims
from fleet.store.outcomes import write
from fleet.testing.plugin import scratch_database
from tests.store.plans import KNOWN, OWNER, READY, REAL_CLOCK, ended, rows_read


async def test_nothing_that_an_application_calls_reads_the_whole_table(
    fleet_server: str, fleet_template: str
):
    """Its connections have no settings of ours."""
    with scratch_database(fleet_server, fleet_template) as url:
        app = await asyncpg.connect(url)
        await app.execute("alter table fleet.task set (autovacuum_enabled = off)")
        await app.execute("analyze fleet.task")
        for _ in range(10):
            await the_calls_of_an_application(app)
        await app.execute(READY, "q", "x", 20_000)
        before = await rows_read(app)

        await the_calls_of_an_application(app)

        assert await rows_read(app) - before < 200
        await app.close()


async def the_calls_of_an_application(app: asyncpg.Connection) -> None:
    unique = "select fleet.enqueue('x', queue => 'q', unique_key => 'u')"
    task = await app.fetchval(unique)
    assert await app.fetchval(unique) == task
    assert await app.fetchval("select fleet.cancel($1)", task) == "cancelled"
    assert await app.fetchval("select fleet.cancel($1)", task) == "ended"
    keyed = "select fleet.enqueue('x', queue => 'q', key => 'k')"
    first, second = await app.fetchval(keyed), await app.fetchval(keyed)
    assert await app.fetchval("select fleet.grant_keys()") == 1
    for task in (first, second):
        assert await app.fetchval("select fleet.cancel($1)", task) == "cancelled"
    await app.fetchval("select fleet.cancel_leftovers()")
    await app.fetchval("select fleet.backlog('elsewhere')")


# ── no index is written ──────────────────────────────────────────────────────────────────────────

_UPDATES: Final = """
select n_tup_upd as updated, n_tup_hot_upd as hot
  from pg_stat_user_tables where relid = 'fleet.task'::regclass
"""


async def test_claims_and_next_steps_are_hot_updates(fleet_server: str, fleet_template: str):
    with scratch_database(fleet_server, fleet_template) as url:
        conn = await asyncpg.connect(url, server_settings=claims.SETTINGS)
        await conn.execute(REAL_CLOCK)
        await conn.execute(READY, "q", "x", 5_000)

        for _ in range(10):
            held = await claims.claim(conn, OWNER, "q", 500, KNOWN)
            for step in ("b", "a"):
                batch = [ended(claim, Advanced(step, '{"n": 1}')) for claim in held]
                report = await write(conn, OWNER, batch)
                held = [onward(o.claim, o.transition, report.fences[o.claim.id]) for o in batch]

        await conn.execute("select pg_stat_force_next_flush()")
        row = await conn.fetchrow(_UPDATES)
        assert row["updated"] == 5_000 * 3
        assert row["hot"] >= 0.99 * row["updated"]
        await conn.close()
