"""Attempts that went wrong, and burials, in the order of their time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple

from fleet.model import Failure, TaskId
from fleet.store.executor import Executor
from fleet.store.results import failure

PAGE: Final = 500

# A task's last attempt is columns of the buried row, unless its job deletes failures; all others
# are rows of fleet.attempt.
_FAILED: Final = """
select f.*
  from ((select a.ended_at as at, a.task_id, a.fence, a.job, a.step, a.queue, a.attempt,
                a.outcome, a.final, a.worker, a.error::text as error
           from fleet.attempt a
          where a.error is not null
            and a.outcome in ('failed', 'timed_out', 'crashed', 'lost')
            and (a.ended_at, a.task_id, a.fence) > ($1::timestamptz, $2::bigint, $3::bigint)
          order by a.ended_at, a.task_id, a.fence
          limit $4::int)
        union all
        (select b.buried_at, b.id, b.fence, b.job, b.step, b.queue, b.attempt,
                b.reason, true, b.worker, b.error::text
           from fleet.buried b
          where (b.buried_at, b.id, b.fence) > ($1::timestamptz, $2::bigint, $3::bigint)
          order by b.buried_at, b.id, b.fence
          limit $4::int)) f
 order by f.at, f.task_id, f.fence
 limit $4::int
"""


class Place(NamedTuple):
    """Where in the order one is: strictly after this."""

    at: datetime
    task_id: TaskId = -1
    fence: int = -1


class Failed(NamedTuple):
    """One row, as it is stored."""

    at: datetime
    task_id: TaskId
    fence: int
    job: str
    step: str
    queue: str
    attempt: int
    outcome: str
    final: bool
    worker: str | None
    error: Failure | None

    @property
    def place(self) -> Place:
        """Its place in the order."""
        return Place(self.at, self.task_id, self.fence)


async def failed_after(executor: Executor, place: Place, limit: int = PAGE) -> Sequence[Failed]:
    """Return the next failures after ``place``, at most ``limit`` of them."""
    rows = await executor.fetch(_FAILED, *place, limit)
    return [Failed._make((*tuple(row)[:-1], failure(row["error"]))) for row in rows]
