"""What has happened, in order: every attempt that ended, every task that did."""

from __future__ import annotations

from datetime import datetime
from typing import Final, NamedTuple

from fleet.model import Failure, TaskId
from fleet.store.executor import Executor
from fleet.store.results import failure

# There is no index for this, which is why it is for small databases: the demo's.
_JOURNAL: Final = """
select a.ended_at as at, a.task_id, a.fence, a.job, a.step, a.attempt, a.outcome, false as final,
       null::timestamptz as enqueued_at, a.started_at, a.error::text as error
  from fleet.attempt a where a.ended_at > $1::timestamptz
union all
select f.finished_at, f.id, f.fence, f.job, f.step, f.attempt, f.outcome, true,
       f.enqueued_at, f.started_at, f.error::text
  from fleet.archive f where f.finished_at > $1::timestamptz
union all
select b.buried_at, b.id, b.fence, b.job, b.step, b.attempt, b.reason, true,
       b.enqueued_at, b.started_at, b.error::text
  from fleet.buried b where b.buried_at > $1::timestamptz
 order by at, task_id, fence
"""


class Entry(NamedTuple):
    """An attempt's end; ``final`` if it was the task's end too, which then has ``enqueued_at``."""

    at: datetime
    task_id: TaskId
    fence: int
    job: str
    step: str
    attempt: int
    outcome: str
    final: bool
    enqueued_at: datetime | None
    started_at: datetime | None
    error: Failure | None


async def journal(executor: Executor, after: datetime) -> list[Entry]:
    """Return what ended after a moment."""
    rows = await executor.fetch(_JOURNAL, after)
    return [Entry._make([*tuple(row)[:-1], failure(row["error"])]) for row in rows]
