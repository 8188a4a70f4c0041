"""How fast tasks end, for whoever looks, without an index that every finish would pay for.

A partition of the archive only ever grows at its end, so what ended lately lies on its last pages:
those are read, and no others (256 pages of each of the 15 partitions that hold something by
default: 94 ms where all of them are full of it, a tenth of that where one is; PostgreSQL 18). Where
a minute does not fit on them, the rate is that of the time that does.

The default partition, for what is kept longer than partitions are made ahead, is filled where old
rows have left room, and has an index instead.
"""

from __future__ import annotations

from typing import Final

from fleet.model import Seconds
from fleet.store.executor import Executor

RATE_OVER: Final[Seconds] = 60.0
PAGES: Final = 256

# The bounds of a day let PostgreSQL leave out every other partition, and ctid all pages but the
# last; OFFSET 0 would not be enough to keep the ctid a parameter, the aggregate is.
_RATES: Final = """
with moment as materialized (
    select fleet.now() as now, fleet.now() - $1::float8 * interval '1 s' as since),
part as materialized (
    select d.day::timestamp at time zone 'UTC' as lower,
           (d.day + 1)::timestamp at time zone 'UTC' as upper,
           greatest(pg_relation_size(c.oid) / current_setting('block_size')::int - $2::int, 0)
             as first
      from pg_inherits i
      join pg_class c on c.oid = i.inhrelid
     cross join lateral (select to_date(right(c.relname, 8), 'YYYYMMDD') as day) d
     where i.inhparent = 'fleet.archive'::regclass and c.relname ~ '^archive_[0-9]{8}$'
       and pg_relation_size(c.oid) > 0),
ended as (
    select t.queue, t.n, case when p.first = 0 then m.since else greatest(t.oldest, m.since) end
             as since
      from moment m cross join part p cross join lateral (
           select a.queue, count(*) filter (where a.finished_at > m.since) as n,
                  min(min(a.finished_at)) over () as oldest
             from fleet.archive a
            where a.keep_until >= p.lower and a.keep_until < p.upper
              and a.ctid >= format('(%s,0)', p.first)::tid
            group by a.queue) t
    union all
    select a.queue, count(*), m.since
      from moment m, fleet.archive a
     where a.keep_until >= coalesce((select max(p.upper) from part p), '-infinity')
       and a.finished_at > fleet.now() - $1::float8 * interval '1 s'
     group by a.queue, m.since)
select e.queue, sum(e.n / greatest(extract(epoch from m.now - e.since), 0.1))::float8 as rate
  from ended e, moment m
 where e.n > 0
 group by e.queue
"""


async def rates(executor: Executor, over: Seconds = RATE_OVER) -> dict[str, float]:
    """Return how many tasks a second went to the archive lately, by queue."""
    return {row["queue"]: row["rate"] for row in await executor.fetch(_RATES, over, PAGES)}
