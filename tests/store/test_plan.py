"""What the hot statements touch, judged by their plans and buffers and never by time.

The worst that can happen to a plan is to be made when the table was empty, and kept: so two
connections prepare everything on an empty, analysed table and poll it ten times. Only then come a
million ready, a million deferred and a million archived rows, and nobody runs ANALYZE. One
connection chooses its plans as PostgreSQL does by default, the other is made to use the generic one
that it has cached.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Final

import asyncpg
import pytest
import pytest_asyncio

from fleet.lifecycle import Advanced, Cancelled, Completed, Failed, Refused, Released
from fleet.model import Claim
from fleet.policy import Policy
from fleet.store import claims
from fleet.store.claims import Span
from fleet.testing.plugin import scratch_database
from tests.store.plans import (
    AN_OWNER,
    ARCHIVED,
    BATCH,
    DEFERRED,
    DUE,
    ERROR,
    KNOWN,
    MILLION,
    OWNER,
    READY,
    REAL_CLOCK,
    Veteran,
    asks_to_claim,
    asks_to_write,
    rows_read,
    touches_no_more_than,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

# ── a table that was empty and is not ────────────────────────────────────────────────────────────

SOMEBODY: Final = Claim._make([0, 0, "q", "x", "a", 1, "null", *[0] * 6, False, *[None] * 4, 1, 1])
A_BEAT: Final = ("select fleet.beat($1, 'running', null, $2, $2)", OWNER, ["q"])
WRITES: Final = {
    "finish": Completed("1"),
    "finish_and_forget": Completed("1"),
    "advance": Advanced("b", "1"),
    "retry": Failed(ERROR),
    "release": Released(),
    "bury": Refused("fatal", ERROR),
    "cancel": Cancelled(),
}


def policy_of(name: str) -> Policy:
    return Policy(on_success="delete" if name == "finish_and_forget" else "archive")


@pytest.fixture(scope="module")
def grown_db(fleet_server: str, fleet_template: str) -> Iterator[str]:
    with scratch_database(fleet_server, fleet_template) as url:
        yield url


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def veterans(grown_db: str) -> AsyncIterator[dict[str, Veteran]]:
    # A bad plan must fail its test, not stop the suite: it can take minutes.
    ours = claims.SETTINGS | {"statement_timeout": "10s"}
    generic = ours | {"plan_cache_mode": "force_generic_plan"}
    found = {
        "auto": Veteran(await asyncpg.connect(grown_db, server_settings=ours)),
        "generic": Veteran(await asyncpg.connect(grown_db, server_settings=generic)),
    }
    conn = await asyncpg.connect(grown_db, server_settings={"synchronous_commit": "off"})
    await conn.execute(REAL_CLOCK)
    # Nobody may come and analyse it while we look.
    await conn.execute("alter table fleet.task set (autovacuum_enabled = off)")
    await conn.execute("analyze fleet.task")
    await conn.execute(AN_OWNER, OWNER)

    for veteran in found.values():
        await veteran.poll(asks_to_claim())
        for _ in range(10):
            await veteran.conn.fetchval(*A_BEAT)
            await claims.promote(veteran.conn, BATCH)
            await claims.unclaim(veteran.conn, OWNER, [SOMEBODY])
        for name, event in WRITES.items():
            await veteran.poll(asks_to_write([SOMEBODY], event, policy_of(name)))

    await conn.execute(READY, "q", "x", MILLION)
    await conn.execute(DEFERRED, MILLION, DUE)
    await conn.execute(ARCHIVED, MILLION)
    await conn.close()
    yield found
    for veteran in found.values():
        await veteran.conn.close()


@pytest.fixture(params=["auto", "generic"])
def veteran(request: pytest.FixtureRequest, veterans: dict[str, Veteran]) -> Veteran:
    return veterans[request.param]


async def test_u05_a_claim_among_millions_touches_what_it_returns(veteran: Veteran):
    async with veteran.for_show():
        plan = await veteran.explain(asks_to_claim())

    assert plan.tree["Actual Rows"] == BATCH
    assert plan.indexes == {"task_line", "task_pkey", "owner_pkey"}
    assert touches_no_more_than(plan, BATCH)


async def test_the_plan_is_the_one_from_when_the_table_was_empty(veteran: Veteran):
    query = "select generic_plans from pg_prepared_statements where statement like '%' || $1"
    before = await veteran.conn.fetchval(query, claims.CLAIM)

    async with veteran.for_show():
        await veteran.explain(asks_to_claim())

    assert before > 0
    assert await veteran.conn.fetchval(query, claims.CLAIM) == before + 1


async def test_u05_several_spans_touch_no_more_than_one(veteran: Veteran):
    ranks = [-41, -21, -1, 1]
    spans = [Span(-32768, 0, -41), *(Span(rank, 0, rank + 1) for rank in ranks)]

    async with veteran.for_show():
        plan = await veteran.explain(asks_to_claim(spans=spans))

    assert plan.tree["Actual Rows"] == BATCH
    assert touches_no_more_than(plan, BATCH)


async def test_a_claim_of_an_empty_queue_touches_nothing(veteran: Veteran):
    async with veteran.for_show():
        plan = await veteran.explain(asks_to_claim(queue="nobody"))

    assert touches_no_more_than(plan, 0)


@pytest.mark.parametrize("name", WRITES)
async def test_a_write_finds_its_tasks_by_id(veteran: Veteran, name: str):
    async with veteran.for_show():
        held = await veteran.claim()
        plan = await veteran.explain(asks_to_write(held, WRITES[name], policy_of(name)))

    assert plan.tree["Actual Rows"] == BATCH
    assert "task_pkey" in plan.indexes
    assert plan.indexes <= {"task_pkey", "cancellation_pkey"}
    assert touches_no_more_than(plan, BATCH)


# ── what lies before the watermark ───────────────────────────────────────────────────────────────


async def test_u05_dead_entries_before_the_watermark_are_not_walked(
    veterans: dict[str, Veteran], grown_db: str
):
    gone = 200_000
    # With a snapshot held open by somebody, nobody can clean up behind us.
    onlooker = await asyncpg.connect(grown_db)
    await onlooker.execute(
        "begin isolation level repeatable read; select 1 from fleet.task limit 1"
    )
    conn = veterans["auto"].conn
    place = Span(-32768, 0, 32767)
    for _ in range(gone // 10_000):
        held = await claims.claim(conn, OWNER, "q", 10_000, KNOWN, [place])
        place = Span(held[-1].rank, held[-1].pos, 32767)
        await conn.execute("delete from fleet.task where id = any ($1)", [c.id for c in held])

    for veteran in veterans.values():
        async with veteran.for_show():
            plan = await veteran.explain(asks_to_claim(spans=[place]))
            assert plan.tree["Actual Rows"] == BATCH
            assert touches_no_more_than(plan, BATCH)

    async with veterans["auto"].for_show():
        from_the_start = await veterans["auto"].explain(asks_to_claim())
        assert from_the_start.buffers > 5 * plan.buffers, "or the test proves nothing"
    await onlooker.close()


async def test_r06_unknown_jobs_at_the_head_are_passed_by_the_watermark(
    veterans: dict[str, Veteran],
):
    conn = veterans["auto"].conn
    await conn.execute(READY, "s", "stranger", 100_000)
    await conn.execute(READY, "s", "x", 10 * BATCH)

    passed = await veterans["auto"].claim(BATCH, "s")
    place = Span(passed[-1].rank, passed[-1].pos, 32767)

    for veteran in veterans.values():
        async with veteran.for_show():
            plan = await veteran.explain(asks_to_claim(queue="s", spans=[place]))
            assert plan.tree["Actual Rows"] == BATCH
            assert touches_no_more_than(plan, BATCH)


# ── functions, whose plans EXPLAIN does not show ─────────────────────────────────────────────────


async def test_a_beat_reads_what_is_due_and_what_it_is_told_of(veteran: Veteran):
    promoted = 1_000  # at most so many a beat
    before = await rows_read(veteran.conn)

    async with veteran.for_show():
        await veteran.conn.fetchval(*A_BEAT)

    assert await rows_read(veteran.conn) - before <= 4 * promoted


async def test_what_was_never_started_is_given_back_by_id(veteran: Veteran):
    before = await rows_read(veteran.conn)

    async with veteran.for_show():
        held = await veteran.claim()
        assert await claims.unclaim(veteran.conn, OWNER, held) == {claim.id for claim in held}

    assert await rows_read(veteran.conn) - before <= 6 * BATCH


async def test_p10_promoting_what_is_due_among_a_million_touches_what_is_due(veteran: Veteran):
    before = await rows_read(veteran.conn)

    async with veteran.for_show():
        assert await claims.promote(veteran.conn, BATCH) == {"q": BATCH}

    assert await rows_read(veteran.conn) - before <= 4 * BATCH


async def test_p10_promoting_when_nothing_is_due_touches_nothing(veteran: Veteran):
    async with veteran.for_show():
        await veteran.conn.execute("delete from fleet.task where due_at <= fleet.now()")
        await claims.promote(veteran.conn)  # marks the dead entries in the index
        before = await rows_read(veteran.conn)

        assert await claims.promote(veteran.conn) == {}

        assert await rows_read(veteran.conn) - before == 0
