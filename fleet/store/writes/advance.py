"""running → running: the next step, without letting go of the task.

Nothing indexed changes (a step with a priority of its own aside), so this is a HOT update: three
durable steps cost one row version each and no index entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fleet.lifecycle import Advance
from fleet.model import OwnerId, TaskId
from fleet.store.executor import Executor
from fleet.store.writes.outcome import Outcome

_ADVANCE: Final = """
with moved as (
    update fleet.task t
       set step = d.step, input = d.input::jsonb, fence = t.fence + 1, visit = t.visit + 1,
           failures = 0, crashes = 0, losses = 0, releases = 0, prior = 0, alone = false,
           progress = null, error = null, claimed_at = fleet.now(),
           priority = coalesce(d.priority, t.priority),
           rank = -2 * coalesce(d.priority, t.priority) + (t.rank & 1)
      from unnest($2::bigint[], $3::bigint[], $4::text[], $5::text[], $6::smallint[], $7::text[],
                  $8::int[], $9::text[], $10::float8[], $11::float8[], $12::text[])
           as d (id, fence, step, input, priority, old_step, attempt, worker, took, keep, children)
     where t.id = any ($2::bigint[])
       and t.id = d.id and t.fence = d.fence and t.owner = $1::bigint
    returning t.id, t.fence, t.visit, t.queue, t.job, d.old_step, d.attempt, d.worker, d.took,
              d.keep, d.children),
history as (
    insert into fleet.attempt (keep_until, task_id, fence, started_at, ended_at, visit, attempt,
        queue, job, step, outcome, worker)
    select fleet.now() + m.keep * interval '1 s', m.id, m.fence - 1,
           fleet.now() - m.took * interval '1 s', fleet.now(), m.visit - 1, m.attempt,
           m.queue, m.job, m.old_step, 'next', m.worker
      from moved m)
select m.id, m.fence, case when m.children is not null then fleet.spawn(m.children::jsonb) end
  from moved m
"""


async def advance(
    conn: Executor, owner: OwnerId, moved: Sequence[Outcome[Advance]]
) -> dict[TaskId, int]:
    """Move tasks to their next steps; the fences that come back are the new ones."""
    rows = await conn.fetch(
        _ADVANCE,
        owner,
        [o.claim.id for o in moved],
        [o.claim.fence for o in moved],
        [o.transition.step for o in moved],
        [o.transition.input for o in moved],
        [o.transition.priority for o in moved],
        [o.claim.step for o in moved],
        [o.claim.attempt for o in moved],
        [o.worker for o in moved],
        [o.took for o in moved],
        [o.keep for o in moved],
        [o.children for o in moved],
    )
    return {row[0]: row[1] for row in rows}
