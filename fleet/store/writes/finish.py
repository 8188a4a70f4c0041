"""running → succeeded: out of the live table, into the archive (or nowhere)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fleet.lifecycle import Finish
from fleet.model import OwnerId, TaskId
from fleet.store.executor import Executor
from fleet.store.writes.outcome import Outcome

_FINISH: Final = """
with done as (
    delete from fleet.task t
     using unnest($2::bigint[], $3::bigint[], $4::text[], $5::text[], $6::float8[], $7::float8[],
                  $8::text[]) as d (id, fence, result, worker, took, keep, children)
     where t.id = any ($2::bigint[])
       and t.id = d.id and t.fence = d.fence and t.owner = $1::bigint
    returning t.*, d.result, d.worker, d.took, d.keep, d.children),
kept as (
    insert into fleet.archive (keep_until, id, fence, enqueued_at, ready_at, started_at,
        finished_at,
        visit, attempt, failures, crashes, losses, releases, priority, outcome, queue, job, step,
        worker, key, trace, input, result)
    select fleet.now() + d.keep * interval '1 s', d.id, d.fence, d.enqueued_at, d.ready_at,
           fleet.now() - d.took * interval '1 s', fleet.now(), d.visit,
           1 + d.prior + d.failures + d.crashes, d.failures, d.crashes, d.losses, d.releases,
           d.priority, 'succeeded', d.queue, d.job, d.step, d.worker, d.key, d.trace, d.input,
           d.result::jsonb
      from done d)
select d.id, d.fence, case when d.children is not null then fleet.spawn(d.children::jsonb) end
  from done d
"""

_FINISH_AND_FORGET: Final = """
with done as (
    delete from fleet.task t
     using unnest($2::bigint[], $3::bigint[], $4::text[]) as d (id, fence, children)
     where t.id = any ($2::bigint[])
       and t.id = d.id and t.fence = d.fence and t.owner = $1::bigint
    returning t.id, t.fence, d.children)
select d.id, d.fence, case when d.children is not null then fleet.spawn(d.children::jsonb) end
  from done d
"""


async def finish(
    conn: Executor, owner: OwnerId, done: Sequence[Outcome[Finish]]
) -> dict[TaskId, int]:
    """Archive finished tasks; ids that do not come back were claimed by somebody else meanwhile."""
    rows = await conn.fetch(
        _FINISH,
        owner,
        [o.claim.id for o in done],
        [o.claim.fence for o in done],
        [o.transition.result for o in done],
        [o.worker for o in done],
        [o.took for o in done],
        [o.keep for o in done],
        [o.children for o in done],
    )
    return {row[0]: row[1] for row in rows}


async def finish_and_forget(
    conn: Executor, owner: OwnerId, done: Sequence[Outcome[Finish]]
) -> dict[TaskId, int]:
    """Delete finished tasks of jobs that keep no history."""
    rows = await conn.fetch(
        _FINISH_AND_FORGET,
        owner,
        [o.claim.id for o in done],
        [o.claim.fence for o in done],
        [o.children for o in done],
    )
    return {row[0]: row[1] for row in rows}
