"""The claim: the one query that everything else is arranged around.

It must touch about as many rows as it returns, whatever else lies in the table: a million ready,
a million deferred, a million finished, the dead versions of everything claimed before. How:

- **Spans, not the start.** Each claim before this one left dead entries at the head of the index,
  and a claim that starts there walks them all (measured: 1M tasks drain at 44k/s so, at 141k/s
  with a watermark). So the caller says where to look: a span is "after this place in this rank,
  up to but not including that rank". A supervisor keeps a watermark a rank; ``EVERYTHING`` looks
  from the start. Spans leave no gap, so a rank that nobody has used before is found without being
  known.
- **One rank is one priority and lane**, the most urgent first, so the index needs no sorting and
  ``(rank, pos) > (…)`` is a boundary in it.
- **Lazy.** The lateral join locks a span's rows one at a time and stops at the limit, so nothing
  is locked that is not taken.
- **``id = any(array(…))``** instead of a join: one index search for the array; 36 % faster on
  PostgreSQL 18, and no plan that statistics could turn into a hash join over the whole table.
- **Not for an owner that was taken over**: what it claims late, nobody would run.
- **Nothing indexed changes** (a ``while_waiting`` slot aside), so the update is HOT.

Connections that claim run with ``SETTINGS``: plans are cached while the table is small or empty,
and a sequential scan that was right then is kept when a million rows have come.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Final, NamedTuple

from fleet.limits import NONE, Limits
from fleet.model import Claim, OwnerId, Seconds, TaskId
from fleet.store.executor import Executor

SETTINGS: Final = {
    "enable_seqscan": "off",
    "enable_sort": "off",
    "enable_bitmapscan": "off",
    # What a batch says of its tasks is joined to them by a hash, whatever the statistics say:
    # found by id = any (…) first, so never over the whole table.
    "enable_nestloop": "off",
    "enable_mergejoin": "off",
    "jit": "off",
}


class Span(NamedTuple):
    """A stretch of a queue's line: after (``rank``, ``pos``), before rank ``below``."""

    rank: int
    pos: int
    below: int


EVERYTHING: Final = (Span(-32768, 0, 32767),)

CLAIM: Final = """
update fleet.task t
   set state = 'running', fence = t.fence + 1, owner = $1, claimed_at = fleet.now(),
       unique_slot = case when t.unique_scope = 'while_waiting' then null else t.unique_slot end
 where not exists (select from fleet.owner o where o.id = $1 and o.state = 'taken')
   and t.id = any (array(
       select c.id
         from unnest($4::smallint[], $5::bigint[], $6::smallint[]) as span (rank, pos, below)
        cross join lateral (
              select w.id
                from fleet.task w
               where w.queue = $2::text and w.pos is not null
                 and (w.rank, w.pos) > (span.rank, span.pos) and w.rank < span.below
                 and w.state = 'ready' and (w.job || '/' || w.step) = any ($7::text[])
               order by w.rank, w.pos
               limit $3
                 for update skip locked) c
        limit $3))
returning t.id, t.fence, t.queue::text, t.job::text, t.step, t.visit, t.input::text, t.priority,
          t.failures, t.crashes, t.losses, t.releases, t.prior, t.alone, t.key, t.trace,
          t.enqueued_at, t.ready_at, t.rank, t.pos
"""

_by_place = attrgetter("rank", "pos")


async def claim(
    conn: Executor,
    owner: OwnerId,
    queue: str,
    limit: int,
    known: Sequence[str],
    spans: Sequence[Span] = EVERYTHING,
) -> list[Claim]:
    """Take up to ``limit`` ready tasks of ``queue``, the most urgent and oldest first.

    ``known`` are the ``job/step`` pairs that this owner can run (``job/`` is a job's first step,
    for rows enqueued from SQL before anybody had registered it); other tasks are passed over.
    """
    rows = await conn.fetch(
        CLAIM,
        owner,
        queue,
        limit,
        [span.rank for span in spans],
        [span.pos for span in spans],
        [span.below for span in spans],
        known,
    )
    # RETURNING has no order.
    return sorted(map(Claim._make, rows), key=_by_place)


class Gated(NamedTuple):
    """What a claim under limits came back with.

    ``room`` is how many it could have taken; ``wait``, where the rate is spent, in how many
    seconds the next one may start.
    """

    claims: list[Claim]
    room: int
    wait: Seconds | None


_CLAIM_LIMITED: Final = """
select * from fleet.claim_limited(
    $1, $2::text, $3::int, $4::smallint[], $5::bigint[], $6::smallint[], $7::text[],
    $8::int, $9::float8, $10::float8, $11::text, $12::int, $13::float8, $14::float8)
"""


async def claim_limited(
    conn: Executor,
    owner: OwnerId,
    queue: str,
    limit: int,
    known: Sequence[str],
    spans: Sequence[Span] = EVERYTHING,
    *,
    of_queue: Limits = NONE,
    job: str | None = None,
    of_job: Limits = NONE,
) -> Gated:
    """Take tasks as ``claim`` does, and no more than the limits of the queue and the job leave.

    With ``job``, ``known`` has this job's steps only.
    """
    rows = await conn.fetch(
        _CLAIM_LIMITED,
        owner,
        queue,
        limit,
        [span.rank for span in spans],
        [span.pos for span in spans],
        [span.below for span in spans],
        known,
        *_numbers(of_queue),
        job,
        *_numbers(of_job),
    )
    claims = [Claim._make(row[2:]) for row in map(tuple, rows) if row[2] is not None]
    return Gated(sorted(claims, key=_by_place), rows[0]["room"], rows[0]["wait"])


def _numbers(limits: Limits) -> tuple[int | None, float | None, float | None]:
    rate = limits.rate
    if rate is None:
        return limits.most, None, None
    return limits.most, rate.per_second, rate.size


_COUNT_IN: Final = "select fleet.count_in($1::bigint, $2::bigint[])"


async def count_in(conn: Executor, owner: OwnerId, ids: Sequence[TaskId]) -> None:
    """Let what runs already count against a limit that has just come."""
    await conn.fetch(_COUNT_IN, owner, ids)


_PEEK: Final = """
select 1
  from unnest($2::smallint[], $3::bigint[], $4::smallint[]) as span (rank, pos, below)
 cross join lateral (
       select from fleet.task w
        where w.queue = $1::text and w.pos is not null
          and (w.rank, w.pos) > (span.rank, span.pos) and w.rank < span.below
          and w.state = 'ready' and (w.job || '/' || w.step) = any ($5::text[])
        order by w.rank, w.pos
        limit 1) c
 limit 1
"""


async def peek(
    conn: Executor, queue: str, known: Sequence[str], spans: Sequence[Span] = EVERYTHING
) -> bool:
    """Tell whether there is anything that ``claim`` would take."""
    rows = await conn.fetch(
        _PEEK,
        queue,
        [span.rank for span in spans],
        [span.pos for span in spans],
        [span.below for span in spans],
        known,
    )
    return bool(rows)


_HELD: Final = """
select t.id, t.fence, t.queue::text, t.job::text, t.step, t.visit, t.input::text, t.priority,
       t.failures, t.crashes, t.losses, t.releases, t.prior, t.alone, t.key, t.trace,
       t.enqueued_at, t.ready_at, t.rank, t.pos
  from fleet.task t
 where t.pos is not null and t.owner = $1
"""


async def held(conn: Executor, owner: OwnerId) -> list[Claim]:
    """Return all that ``owner`` holds in the database: for a takeover, or after a lost reply.

    There is no index for this on purpose (it would cost every claim up to 17 %): it walks what is
    ready and running, and is rare.
    """
    rows = await conn.fetch(_HELD, owner)
    return sorted(map(Claim._make, rows), key=_by_place)


_ORPHANED: Final = """
select distinct t.owner from fleet.task t
 where t.pos is not null and t.owner is not null
   and not exists (select from fleet.owner o where o.id = t.owner)
"""


async def orphaned(conn: Executor) -> list[OwnerId]:
    """Return owners that hold something and do not exist: a claim was late, its sender is gone.

    A walk over what is ready and running, as for ``held``.
    """
    return [OwnerId(row["owner"]) for row in await conn.fetch(_ORPHANED)]


_PROMOTE: Final = "select queue, n from fleet.promote($1::int)"


async def promote(conn: Executor, limit: int = 1000) -> dict[str, int]:
    """Make up to ``limit`` deferred tasks ready that are due, earliest first.

    Returns how many became ready in each queue. A keyed task that does not hold its key yet
    starts to wait for it instead: ``grant_keys`` is next.
    """
    return {row["queue"]: row["n"] for row in await conn.fetch(_PROMOTE, limit)}


_GRANT: Final = "select fleet.grant_keys($1::int) as given"


async def grant_keys(conn: Executor, limit: int = 1000) -> int:
    """Give free keys to the first task that waits for each; return how many were given."""
    rows = await conn.fetch(_GRANT, limit)
    given: int = rows[0]["given"]
    return given


_NEXT_DUE: Final = """
select extract(epoch from min(d.due_at) - fleet.now())::float8 as seconds
  from (select due_at from fleet.task
         where due_at is not null and waiting_for is null order by due_at limit 1) d
"""


async def next_due(conn: Executor) -> float | None:
    """Return in how many seconds the earliest deferred task is due; None if there is none."""
    rows = await conn.fetch(_NEXT_DUE)
    seconds: float | None = rows[0]["seconds"]
    return seconds


_UNCLAIM: Final = "select fleet.unclaim($1::bigint, $2::bigint[], $3::bigint[]) as ids"


async def unclaim(conn: Executor, owner: OwnerId, claims: Sequence[Claim]) -> set[int]:
    """Give back what was never started: free of charge, to the front, without a trace."""
    rows = await conn.fetch(_UNCLAIM, owner, [c.id for c in claims], [c.fence for c in claims])
    return set(rows[0]["ids"])
