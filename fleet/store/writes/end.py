"""running → buried or cancelled (or deleted, where the job keeps no failures)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import orjson

from fleet.lifecycle import Bury, Cancel
from fleet.model import OwnerId, Seconds, TaskId
from fleet.store.executor import Executor
from fleet.store.writes.outcome import Outcome

BURIED_FOR: Final[Seconds] = 90 * 86_400.0

_BURY: Final = """
with wanted as materialized (
    select * from jsonb_to_recordset($2::jsonb) as w (
        id bigint, fence bigint, reason text, error jsonb, failures int, crashes int, losses int,
        attempt int, worker text, took float8, keep float8)),
dead as (
    delete from fleet.task t
     where t.id = any (array(
               select f.id from fleet.task f join wanted w on f.id = w.id and f.fence = w.fence
                where f.id = any (array(select id from wanted)) and f.owner = $1::bigint
                  for update of f skip locked))
    returning t.*),
kept as (
    insert into fleet.buried (id, fence, buried_at, keep_until, enqueued_at, ready_at, started_at,
        visit, attempt, failures, crashes, losses, releases, prior, priority, reason, queue, job,
        step, worker, key, unique_slot, unique_scope, trace, input, error)
    select d.id, d.fence, fleet.now(), fleet.now() + $3::float8 * interval '1 s', d.enqueued_at,
           d.ready_at, fleet.now() - w.took * interval '1 s', d.visit, w.attempt, w.failures,
           w.crashes, w.losses, d.releases, d.prior, d.priority, w.reason, d.queue, d.job, d.step,
           w.worker, d.key, d.unique_slot, d.unique_scope, d.trace, d.input, w.error
      from dead d join wanted w on w.id = d.id
     where $4::boolean),
told as (
    insert into fleet.attempt (keep_until, task_id, fence, started_at, ended_at, visit, attempt,
        final, queue, job, step, outcome, worker, error)
    select fleet.now() + w.keep * interval '1 s', d.id, d.fence,
           fleet.now() - w.took * interval '1 s', fleet.now(), d.visit, w.attempt, true, d.queue,
           d.job, d.step, case when w.reason = 'poison' then 'crashed' else 'failed' end, w.worker,
           w.error
      from dead d join wanted w on w.id = d.id
     where not $4::boolean)
select d.id, d.fence from dead d
"""

_CANCEL: Final = """
with wanted as materialized (
    select * from unnest($2::bigint[], $3::bigint[], $4::int[], $5::text[], $6::float8[],
                         $7::float8[]) as w (id, fence, attempt, worker, took, keep)),
gone as (
    delete from fleet.task t
     where t.id = any (array(
               select f.id from fleet.task f join wanted w on f.id = w.id and f.fence = w.fence
                where f.id = any (array(select id from wanted)) and f.owner = $1::bigint
                  for update of f skip locked))
    returning t.*),
granted as (
    delete from fleet.cancellation c where c.task_id in (select id from gone)),
kept as (
    insert into fleet.archive (keep_until, id, fence, enqueued_at, ready_at, started_at,
        finished_at,
        visit, attempt, failures, crashes, losses, releases, priority, outcome, queue, job, step,
        worker, key, trace, input, error)
    select fleet.now() + w.keep * interval '1 s', g.id, g.fence, g.enqueued_at, g.ready_at,
           fleet.now() - w.took * interval '1 s', fleet.now(), g.visit, w.attempt, g.failures,
           g.crashes, g.losses, g.releases, g.priority, 'cancelled', g.queue, g.job, g.step,
           w.worker, g.key, g.trace, g.input, g.error
      from gone g join wanted w on w.id = g.id)
select g.id, g.fence from gone g
"""


async def bury(
    conn: Executor, owner: OwnerId, dead: Sequence[Outcome[Bury]], *, keep: bool = True
) -> dict[TaskId, int]:
    """Move tasks to the dead letters; with ``keep`` false delete them, all but the last failure."""
    document = [
        {
            "id": o.claim.id,
            "fence": o.claim.fence,
            "reason": o.transition.reason,
            "error": o.transition.error.as_dict(),
            "failures": o.transition.failures,
            "crashes": o.transition.crashes,
            "losses": o.transition.losses,
            "attempt": o.claim.attempt,
            "worker": o.worker,
            "took": o.took,
            "keep": o.keep,
        }
        for o in dead
    ]
    rows = await conn.fetch(_BURY, owner, orjson.dumps(document).decode(), BURIED_FOR, keep)
    return {row[0]: row[1] for row in rows}


async def cancel(
    conn: Executor, owner: OwnerId, gone: Sequence[Outcome[Cancel]]
) -> dict[TaskId, int]:
    """End tasks that were cancelled while they ran."""
    rows = await conn.fetch(
        _CANCEL,
        owner,
        [o.claim.id for o in gone],
        [o.claim.fence for o in gone],
        [o.claim.attempt for o in gone],
        [o.worker for o in gone],
        [o.took for o in gone],
        [o.keep for o in gone],
    )
    return {row[0]: row[1] for row in rows}
