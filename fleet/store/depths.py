"""How much waits in each queue: for Prometheus, the demo and drains."""

from __future__ import annotations

from typing import Final, NamedTuple

from fleet.model import Seconds
from fleet.store.executor import Executor

# A walk over what is live: 0.3 to 0.5 s for a million rows (PostgreSQL 18, a busy machine of 2
# CPUs), so whoever asks often asks with a cache.
_DEPTHS: Final = """
select t.queue::text, t.state, count(*) as n,
       coalesce(extract(epoch from fleet.now() - min(t.ready_at)), 0)::float8 as oldest
  from fleet.task t
 group by t.queue, t.state
"""


class Depth(NamedTuple):
    """How many tasks of a queue are in a state, and for how long the oldest has been ready."""

    queue: str
    state: str
    tasks: int
    oldest: Seconds


async def depths(conn: Executor) -> list[Depth]:
    """Count what is live."""
    return [
        Depth(row["queue"], row["state"], row["n"], max(row["oldest"], 0.0))
        for row in await conn.fetch(_DEPTHS)
    ]


_LIVE: Final = "select count(*) as n from fleet.task"


async def live(conn: Executor) -> int:
    """Return how many tasks have not ended yet."""
    n: int = (await conn.fetch(_LIVE))[0]["n"]
    return n


_IN_LINE: Final = "select distinct t.queue::text as queue from fleet.task t where t.pos is not null"


async def queues_in_line(conn: Executor) -> list[str]:
    """Return the queues in which something is ready or runs."""
    return [row["queue"] for row in await conn.fetch(_IN_LINE)]
