"""What the hot statements touch, judged by their plans and buffers and never by time.

The worst that can happen to a plan is to be made when the table was empty, and kept: so two
connections prepare everything on an empty, analysed table and poll it ten times. Only then come a
million ready, a million deferred and a million archived rows, and nobody runs ANALYZE. One
connection chooses its plans as PostgreSQL does by default, the other is made to use the generic one
that it has cached.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import asyncpg
import pytest
import pytest_asyncio

from fleet.lifecycle import (
    Advanced,
    Cancelled,
    Completed,
    Event,
    Failed,
    Refused,
    Released,
    decide,
    onward,
)
from fleet.model import Claim, Failure, OwnerId
from fleet.policy import Policy
from fleet.store import claims, outcomes
from fleet.store.claims import EVERYTHING, Span
from fleet.store.outcomes import Outcome, write
from fleet.testing.plugin import scratch_database

pytestmark = pytest.mark.asyncio(loop_scope="module")

MILLION: Final = 1_000_000
DUE: Final = 5_000  # of the deferred
BATCH: Final = 100
OWNER: Final = OwnerId(1)
KNOWN: Final = ["x/a", "x/b"]
ERROR: Final = Failure(type="ValueError", message="boom")

# As the migration has it: the clock of a test database is a table, with a scan of its own.
_REAL_CLOCK: Final = """
create or replace function fleet.now() returns timestamptz
language sql stable parallel safe as 'select pg_catalog.statement_timestamp()';
"""

_READY: Final = """
insert into fleet.task (queue, job, step, rank, state, pos)
select $1::text, $2::text, 'a', 1, 'ready', nextval('fleet.position')
  from generate_series(1, $3::int)
"""

_DEFERRED: Final = """
insert into fleet.task (queue, job, step, rank, state, due_at)
select 'q', 'x', 'a', 1, 'deferred', fleet.now() + (n - $2::int) * interval '1 minute'
  from generate_series(1, $1::int) n
"""

_ARCHIVED: Final = """
insert into fleet.archive (keep_until, id, fence, enqueued_at, ready_at, finished_at, visit,
    attempt, failures, crashes, losses, releases, priority, outcome, queue, job, step, input)
select fleet.now(), -n, 1, fleet.now(), fleet.now(), fleet.now(), 1, 1, 0, 0, 0, 0, 0,
       'succeeded', 'q', 'x', 'a', 'null'
  from generate_series(1, $1::int) n
"""

_AN_OWNER: Final = """
insert into fleet.owner (id, host, pid) overriding system value values ($1, 'here', 1)
"""


# ── plans ────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Plan:
    """What EXPLAIN (ANALYZE, BUFFERS) said about one statement."""

    tree: dict[str, Any]

    def nodes(self) -> Iterator[dict[str, Any]]:
        waiting = [self.tree]
        while waiting:
            node = waiting.pop()
            waiting += node.get("Plans", [])
            yield node

    @property
    def kinds(self) -> set[str]:
        return {node["Node Type"] for node in self.nodes()}

    @property
    def indexes(self) -> set[str]:
        return {node["Index Name"] for node in self.nodes() if "Index Name" in node}

    @property
    def buffers(self) -> int:
        return self.tree["Shared Hit Blocks"] + self.tree["Shared Read Blocks"]

    @property
    def touched(self) -> int:
        """The most rows that any one node has looked at."""
        return max(_looked_at(node) for node in self.nodes())


def _looked_at(node: dict[str, Any]) -> int:
    rows = sum(
        node.get(count, 0)
        for count in ("Actual Rows", "Rows Removed by Filter", "Rows Removed by Join Filter")
    )
    return round(rows * node["Actual Loops"])


def touches_no_more_than(plan: Plan, rows: int) -> bool:
    """Only what was asked for: no scan of a table, no sorting, and a bounded number of pages."""
    assert not plan.kinds & {
        "Seq Scan",
        "Sort",
        "Incremental Sort",
        "Bitmap Heap Scan",
    }
    assert plan.touched <= 2 * rows + 1
    assert plan.buffers <= 30 * rows + 50
    return True


class Question:
    """An executor that runs nothing: it remembers what it was asked."""

    query = ""
    args: tuple[Any, ...] = ()

    async def fetch(self, query: str, /, *args: Any) -> Sequence[Any]:
        self.query, self.args = query, args
        return []


Ask = Callable[[Question], Any]


def asks_to_claim(limit: int = BATCH, queue: str = "q", spans: Sequence[Span] = EVERYTHING) -> Ask:
    return lambda db: claims.claim(db, OWNER, queue, limit, KNOWN, spans)


def asks_to_promote(limit: int = BATCH) -> Ask:
    return lambda db: claims.promote(db, limit)


def asks_to_write(held: Sequence[Claim], event: Event, policy: Policy | None = None) -> Ask:
    batch = [ended(claim, event, policy) for claim in held]
    statement = outcomes._statement(batch[0].transition)
    return lambda db: statement(db, OWNER, batch)


def ended(claim: Claim, event: Event, policy: Policy | None = None) -> Outcome:
    return Outcome(claim, decide(claim, event, policy or Policy(), 0.0), "w1", 0.1, 86_400.0)


class Veteran:
    """A connection that prepared its statements when the table was empty."""

    def __init__(self, conn: asyncpg.Connection) -> None:
        self.conn = conn
        self.prepared: dict[str, str] = {}

    async def explain(self, ask: Ask) -> Plan:
        return Plan(
            json.loads(await self._run(ask, "explain (analyze, buffers, format json) "))[0]["Plan"]
        )

    async def poll(self, ask: Ask) -> None:
        for _ in range(10):
            await self._run(ask)

    async def _run(self, ask: Ask, how: str = "") -> str:
        question = Question()
        await ask(question)
        name = self.prepared.get(question.query)
        if name is None:
            name = self.prepared[question.query] = f"s{len(self.prepared)}"
            # Without types, as drivers do: PostgreSQL infers them.
            await self.conn.execute(f"prepare {name} as {question.query}")
        execute = f"{how}execute {name} ({', '.join(map(literal, question.args))})"
        return await self.conn.fetchval(execute) if how else await self.conn.execute(execute)

    @asynccontextmanager
    async def for_show(self) -> AsyncIterator[None]:
        """EXPLAIN ANALYZE does what it explains: take it back."""
        transaction = self.conn.transaction()
        await transaction.start()
        try:
            yield
        finally:
            await transaction.rollback()

    async def claim(self, limit: int = BATCH, queue: str = "q") -> list[Claim]:
        return await claims.claim(self.conn, OWNER, queue, limit, KNOWN)


def literal(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool() | int() | float():
            return str(value)
        case str():
            return "'" + value.replace("'", "''") + "'"
    elements = ["null" if e is None else json.dumps(e) for e in value]
    return literal("{" + ",".join(elements) + "}")


# ── a table that was empty and is not ────────────────────────────────────────────────────────────

SOMEBODY: Final = Claim._make([0, 0, "q", "x", "a", 1, "null", *[0] * 6, False, *[None] * 4, 1, 1])
A_BEAT: Final = ("select fleet.beat($1, 'running', null, $2)", OWNER, ["q"])
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
    await conn.execute(_REAL_CLOCK)
    # Nobody may come and analyse it while we look.
    await conn.execute("alter table fleet.task set (autovacuum_enabled = off)")
    await conn.execute("analyze fleet.task")
    await conn.execute(_AN_OWNER, OWNER)

    for veteran in found.values():
        await veteran.poll(asks_to_claim())
        await veteran.poll(asks_to_promote())
        for _ in range(10):
            await veteran.conn.fetchval(*A_BEAT)
            await claims.unclaim(veteran.conn, OWNER, [SOMEBODY])
        for name, event in WRITES.items():
            await veteran.poll(asks_to_write([SOMEBODY], event, policy_of(name)))

    await conn.execute(_READY, "q", "x", MILLION)
    await conn.execute(_DEFERRED, MILLION, DUE)
    await conn.execute(_ARCHIVED, MILLION)
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
    assert plan.indexes == {"task_line", "task_pkey"}
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


async def test_p10_promoting_what_is_due_among_a_million_touches_what_is_due(veteran: Veteran):
    async with veteran.for_show():
        plan = await veteran.explain(asks_to_promote())

    assert plan.tree["Actual Rows"] == BATCH
    assert plan.indexes == {"task_due", "task_pkey"}
    assert touches_no_more_than(plan, BATCH)


async def test_p10_promoting_when_nothing_is_due_touches_nothing(veteran: Veteran):
    async with veteran.for_show():
        await veteran.conn.execute("delete from fleet.task where due_at <= fleet.now()")
        await veteran.explain(asks_to_promote())  # marks the dead entries in the index

        plan = await veteran.explain(asks_to_promote())

    assert plan.tree["Actual Rows"] == 0
    assert plan.touched <= 1


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
        assert from_the_start.buffers > 10 * plan.buffers, "or the test proves nothing"
    await onlooker.close()


async def test_r06_unknown_jobs_at_the_head_are_passed_by_the_watermark(
    veterans: dict[str, Veteran],
):
    conn = veterans["auto"].conn
    await conn.execute(_READY, "s", "stranger", 100_000)
    await conn.execute(_READY, "s", "x", 10 * BATCH)

    passed = await veterans["auto"].claim(BATCH, "s")
    place = Span(passed[-1].rank, passed[-1].pos, 32767)

    for veteran in veterans.values():
        async with veteran.for_show():
            plan = await veteran.explain(asks_to_claim(queue="s", spans=[place]))
            assert plan.tree["Actual Rows"] == BATCH
            assert touches_no_more_than(plan, BATCH)


# ── functions, whose plans EXPLAIN does not show ─────────────────────────────────────────────────

_READ: Final = """
select seq_tup_read + idx_tup_fetch from pg_stat_user_tables where relid = 'fleet.task'::regclass
"""


async def rows_read(conn: asyncpg.Connection) -> int:
    """How many rows of the table this database has read so far."""
    await conn.execute("select pg_stat_force_next_flush()")
    await conn.execute("select pg_stat_clear_snapshot()")
    return await conn.fetchval(_READ)


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
        await app.execute(_READY, "q", "x", 20_000)
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


# ── no index is written ──────────────────────────────────────────────────────────────────────────

_UPDATES: Final = """
select n_tup_upd as updated, n_tup_hot_upd as hot
  from pg_stat_user_tables where relid = 'fleet.task'::regclass
"""


async def test_claims_and_next_steps_are_hot_updates(fleet_server: str, fleet_template: str):
    with scratch_database(fleet_server, fleet_template) as url:
        conn = await asyncpg.connect(url, server_settings=claims.SETTINGS)
        await conn.execute(_REAL_CLOCK)
        await conn.execute(_READY, "q", "x", 5_000)

        for _ in range(10):
            held = await claims.claim(conn, OWNER, "q", 500, KNOWN)
            for step in ("b", "a"):
                batch = [ended(claim, Advanced(step, '{"n": 1}')) for claim in held]
                report = await write(conn, OWNER, batch)
                held = [onward(o.claim, o.transition, report.fences[o.claim.id]) for o in batch]

        await conn.execute("select pg_stat_force_next_flush()")
        row = await conn.fetchrow(_UPDATES)
        assert row["updated"] == 5_000 * 3
        assert row["hot"] >= 0.9 * row["updated"]
        await conn.close()
