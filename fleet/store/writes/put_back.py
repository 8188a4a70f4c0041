"""running → ready, deferred or waiting: retry, snooze, delay, release, crash, loss.

SKIP LOCKED, because a row may be held by the very transaction whose end we do not know (a worker
that was killed inside its COMMIT): waiting for it would hold up everybody else in the batch.

Rare beside finish and advance, so the batch travels as one JSON document: that reads better than
twenty arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import orjson

from fleet.lifecycle import PutBack
from fleet.model import OwnerId, TaskId
from fleet.store.executor import Executor
from fleet.store.writes.outcome import Outcome

_PUT_BACK: Final = """
with wanted as materialized (
    select * from jsonb_to_recordset($2::jsonb) as w (
        id bigint, fence bigint, outcome text, delay float8, step text, input text, visit int,
        failures int, crashes int, losses int, releases int, prior int, alone boolean, priority int,
        key text, error jsonb, old_step text, old_visit int, attempt int, worker text, took float8,
        keep float8, children text)),
free as materialized (
    select t.id
      from fleet.task t join wanted w on t.id = w.id and t.fence = w.fence
     where t.id = any (array(select id from wanted)) and t.owner = $1::bigint
       for update of t skip locked),
back as (
    update fleet.task t
       set state = case when w.delay is not null then 'deferred'
                        when w.key is not null then 'waiting' else 'ready' end,
           pos = case when w.delay is null and w.key is null then nextval('fleet.position') end,
           due_at = case when w.delay is not null then fleet.now() + w.delay * interval '1 s'
                         when w.key is not null then fleet.now() end,
           ready_at = fleet.now() + coalesce(w.delay, 0) * interval '1 s',
           key = coalesce(w.key, t.key),
           granted = t.granted and w.key is null,
           waiting_for = case when w.delay is null then w.key end,
           owner = null, claimed_at = null, counted = false, progress = null,
           step = w.step, input = case when w.input is null then t.input else w.input::jsonb end,
           visit = w.visit, failures = w.failures, crashes = w.crashes, losses = w.losses,
           releases = w.releases, prior = w.prior, alone = w.alone,
           priority = coalesce(w.priority, t.priority),
           rank = -2 * coalesce(w.priority, t.priority),
           error = case when w.outcome = 'next' then null else coalesce(w.error, t.error) end
      from free f join wanted w on w.id = f.id
     where t.id = any (array(select id from free)) and t.id = f.id
    returning t.id, t.fence, t.queue, t.job, t.state, w.outcome, w.error, w.old_step, w.old_visit,
              w.attempt, w.worker, w.took, w.keep, w.children),
history as (
    insert into fleet.attempt (keep_until, task_id, fence, started_at, ended_at, visit, attempt,
        queue, job, step, outcome, worker, error)
    select fleet.now() + b.keep * interval '1 s', b.id, b.fence,
           fleet.now() - b.took * interval '1 s', fleet.now(), b.old_visit, b.attempt,
           b.queue, b.job, b.old_step, b.outcome, b.worker, b.error
      from back b)
select b.id, b.fence,
       case when b.children is not null then fleet.spawn(b.children::jsonb) end,
       case when b.state = 'ready' then fleet.wake(array[b.queue::text]) end
  from back b
"""


async def put_back(
    conn: Executor, owner: OwnerId, back: Sequence[Outcome[PutBack]]
) -> dict[TaskId, int]:
    """Let go of tasks that will run again; what does not come back is lost or locked."""
    rows = await conn.fetch(_PUT_BACK, owner, orjson.dumps([_record(o) for o in back]).decode())
    return {row[0]: row[1] for row in rows}


def _record(outcome: Outcome[PutBack]) -> dict[str, Any]:
    claim, back = outcome.claim, outcome.transition
    return {
        "id": claim.id,
        "fence": claim.fence,
        "outcome": back.outcome,
        "delay": back.delay,
        "step": back.step,
        "input": back.input,
        "visit": back.visit,
        "failures": back.failures,
        "crashes": back.crashes,
        "losses": back.losses,
        "releases": back.releases,
        "prior": back.prior,
        "alone": back.alone,
        "priority": back.priority,
        "key": back.key,
        "error": back.error.as_dict() if back.error else None,
        "old_step": claim.step,
        "old_visit": claim.visit,
        "attempt": claim.attempt,
        "worker": outcome.worker,
        "took": outcome.took,
        "keep": outcome.keep,
        "children": outcome.children,
    }
