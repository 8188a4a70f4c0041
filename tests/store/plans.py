"""What a statement touches, as EXPLAIN and the server's counters tell it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import asyncpg

from fleet.lifecycle import Event, decide
from fleet.model import Claim, Failure, OwnerId
from fleet.policy import Policy
from fleet.store import claims, outcomes
from fleet.store.claims import EVERYTHING, Span
from fleet.store.outcomes import Outcome

MILLION: Final = 1_000_000
DUE: Final = 5_000  # of the deferred
BATCH: Final = 100
OWNER: Final = OwnerId(1)
KNOWN: Final = ["x/a", "x/b"]
ERROR: Final = Failure(type="ValueError", message="boom")

# As the migration has it: the clock of a test database is a table, with a scan of its own.
REAL_CLOCK: Final = """
create or replace function fleet.now() returns timestamptz
language sql stable parallel safe as 'select pg_catalog.statement_timestamp()';
"""

READY: Final = """
insert into fleet.task (queue, job, step, rank, state, pos)
select $1::text, $2::text, 'a', 1, 'ready', nextval('fleet.position')
  from generate_series(1, $3::int)
"""

DEFERRED: Final = """
insert into fleet.task (queue, job, step, rank, state, due_at)
select 'q', 'x', 'a', 1, 'deferred', fleet.now() + (n - $2::int) * interval '1 minute'
  from generate_series(1, $1::int) n
"""

ARCHIVED: Final = """
insert into fleet.archive (keep_until, id, fence, enqueued_at, ready_at, finished_at, visit,
    attempt, failures, crashes, losses, releases, priority, outcome, queue, job, step, input)
select fleet.now(), -n, 1, fleet.now(), fleet.now(), fleet.now(), 1, 1, 0, 0, 0, 0, 0,
       'succeeded', 'q', 'x', 'a', 'null'
  from generate_series(1, $1::int) n
"""

AN_OWNER: Final = """
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


# ── counters, for functions, whose plans EXPLAIN does not show ───────────────────────────────────

_READ: Final = """
select seq_tup_read + idx_tup_fetch from pg_stat_user_tables where relid = 'fleet.task'::regclass
"""


async def rows_read(conn: asyncpg.Connection) -> int:
    """How many rows of the table this database has read so far."""
    await conn.execute("select pg_stat_force_next_flush()")
    await conn.execute("select pg_stat_clear_snapshot()")
    return await conn.fetchval(_READ)
