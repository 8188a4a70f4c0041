"""Whom a statement waits for: the transactions that hold the lock it wants."""

from __future__ import annotations

from typing import Final, NamedTuple

from fleet.model import Seconds
from fleet.store.executor import Executor

# Of others' processes, a role without rights sees that they exist, and nothing else.
_BLOCKERS: Final = """
select b.pid, coalesce(nullif(a.application_name, ''), 'unnamed') as name,
       coalesce(a.state, 'state unknown') as state,
       extract(epoch from clock_timestamp() - a.xact_start)::float8 as age
  from (select distinct unnest(pg_blocking_pids($1::int)) as pid) b
  left join pg_stat_activity a on a.pid = b.pid
 where b.pid > 0
 order by 1
"""


class Blocker(NamedTuple):
    """A server process with an open transaction, for how long that is open, if one may know."""

    pid: int
    name: str
    state: str
    age: Seconds | None

    def __str__(self) -> str:
        """Say who it is, for an error message."""
        since = "" if self.age is None else f", transaction open for {self.age:.0f}s"
        return f"process {self.pid} ({self.name}, {self.state}{since})"


async def blockers(conn: Executor, pid: int) -> list[Blocker]:
    """Return whom the server process ``pid`` waits for at this moment."""
    return [Blocker._make(row) for row in await conn.fetch(_BLOCKERS, pid)]
