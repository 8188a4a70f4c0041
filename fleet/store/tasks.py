"""Tasks as people look at them: lists, one task with everything about it, its attempts, revival.

A task is in exactly one of ``task``, ``archive`` and ``buried``. Each question is one statement
over all three, that is one snapshot, so that a task which is moving is never missed nor seen twice.
Inputs and results may hold secrets: they are read only where they are asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Final, NamedTuple

import orjson

from fleet.errors import ReviveRefused, TaskNotFound, UnknownJob
from fleet.model import BuryReason, Failure, Json, State, TaskId
from fleet.store.enqueue import Enqueued, interval
from fleet.store.executor import Executor
from fleet.store.failures import sqlstate
from fleet.store.results import failure

# ── lists ────────────────────────────────────────────────────────────────────────────────────────

# The first condition of each arm is decided before anything is read: asking for what is ready must
# not walk a million archived rows.
_LIST: Final = """
select l.*
  from ((select t.id, t.state, t.job::text, t.step, t.queue::text, t.priority, t.key,
                1 + t.prior + t.failures + t.crashes as attempt, t.enqueued_at,
                case when t.state = 'running' then t.claimed_at else t.ready_at end as since,
                t.error ->> 'type' as error, null::text as reason
           from fleet.task t
          where ($1::text[] is null or $1::text[] && '{ready,running,deferred,waiting}')
            and ($1::text[] is null or t.state = any ($1::text[]))
            and ($2::text is null or t.queue = $2::text)
            and ($3::text is null or t.job = $3::text)
            and ($4::text is null or t.key = $4::text)
            and t.id < $5::bigint
          order by t.id desc limit $6::int)
        union all
        (select a.id, a.outcome, a.job, a.step, a.queue, a.priority, a.key, a.attempt,
                a.enqueued_at, a.finished_at, a.error ->> 'type', null
           from fleet.archive a
          where ($1::text[] is null or $1::text[] && '{succeeded,cancelled}')
            and ($1::text[] is null or a.outcome = any ($1::text[]))
            and ($2::text is null or a.queue = $2::text)
            and ($3::text is null or a.job = $3::text)
            and ($4::text is null or a.key = $4::text)
            and a.id < $5::bigint
          order by a.id desc limit $6::int)
        union all
        (select b.id, 'buried', b.job, b.step, b.queue, b.priority, b.key, b.attempt, b.enqueued_at,
                b.buried_at, b.error ->> 'type', b.reason
           from fleet.buried b
          where ($1::text[] is null or 'buried' = any ($1::text[]))
            and ($2::text is null or b.queue = $2::text)
            and ($3::text is null or b.job = $3::text)
            and ($4::text is null or b.key = $4::text)
            and b.id < $5::bigint
          order by b.id desc limit $6::int)) l
 order by l.id desc
 limit $6::int
"""

_BEYOND_ALL: Final = 2**63 - 1


class Listed(NamedTuple):
    """A task as a line of a list; ``since`` is when it came into its state."""

    id: TaskId
    state: State
    job: str
    step: str
    queue: str
    priority: int
    key: str | None
    attempt: int
    enqueued_at: datetime
    since: datetime
    error: str | None
    reason: BuryReason | None


async def list_tasks(
    executor: Executor,
    *,
    states: Sequence[str] | None = None,
    queue: str | None = None,
    job: str | None = None,
    key: str | None = None,
    before: TaskId | None = None,
    limit: int = 50,
) -> list[Listed]:
    """Return tasks, the newest first, from below the id ``before`` on."""
    floor = _BEYOND_ALL if before is None else before
    rows = await executor.fetch(
        _LIST, list(states) if states else None, queue, job, key, floor, limit
    )
    return [Listed(*row) for row in rows]


# ── one task ─────────────────────────────────────────────────────────────────────────────────────

_SHOW: Final = """
select t.id, t.state, t.job::text, t.step, t.queue::text, t.priority, t.key,
       1 + t.prior + t.failures + t.crashes as attempt, t.visit, t.fence, t.failures, t.crashes,
       t.losses, t.releases, t.alone, t.enqueued_at, t.ready_at, t.due_at,
       case when t.state = 'running' then t.claimed_at end as started_at,
       null::timestamptz as ended_at, null::timestamptz as keep_until, t.owner,
       o.host, null::text as worker, k.holder as key_holder, t.unique_slot, t.unique_scope, t.trace,
       t.progress::text as progress, t.error::text as error, null::text as reason,
       c.requested_at as cancel_requested_at,
       octet_length(t.input::text) as input_size, null::int as result_size,
       case when $2::boolean then t.input::text end as input, null::text as result
  from fleet.task t
  left join fleet.owner o on o.id = t.owner
  left join fleet.key k on k.queue = t.queue and k.key = t.key
  left join fleet.cancellation c on c.task_id = t.id
 where t.id = $1::bigint
union all
select a.id, a.outcome, a.job, a.step, a.queue, a.priority, a.key, a.attempt, a.visit, a.fence,
       a.failures, a.crashes, a.losses, a.releases, false, a.enqueued_at, a.ready_at, null,
       a.started_at, a.finished_at, a.keep_until, null, null, a.worker, null, null, null, a.trace,
       null, a.error::text, null, null, octet_length(a.input::text), octet_length(a.result::text),
       case when $2::boolean then a.input::text end, case when $3::boolean then a.result::text end
  from fleet.archive a
 where a.id = $1::bigint
union all
select b.id, 'buried', b.job, b.step, b.queue, b.priority, b.key, b.attempt, b.visit, b.fence,
       b.failures, b.crashes, b.losses, b.releases, false, b.enqueued_at, b.ready_at, null,
       b.started_at, b.buried_at, b.keep_until, null, null, b.worker, null, b.unique_slot,
       b.unique_scope, b.trace, null, b.error::text, b.reason, null,
       octet_length(b.input::text), null, case when $2::boolean then b.input::text end, null
  from fleet.buried b
 where b.id = $1::bigint
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """Everything about one task at one moment; fields in the order of the query's columns."""

    id: TaskId
    state: State
    job: str
    step: str
    queue: str
    priority: int
    key: str | None
    attempt: int
    visit: int
    fence: int
    failures: int
    crashes: int
    losses: int
    releases: int
    alone: bool
    enqueued_at: datetime
    ready_at: datetime
    due_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    keep_until: datetime | None
    owner: int | None
    host: str | None
    worker: str | None
    key_holder: TaskId | None
    unique_slot: str | None
    unique_scope: str | None
    trace: str | None
    progress: Any
    error: Failure | None
    reason: BuryReason | None
    cancel_requested_at: datetime | None
    input_size: int
    result_size: int | None
    input: Json | None
    result: Json | None


_COLUMNS: Final = tuple(field.name for field in fields(Shown))


async def show(
    executor: Executor, task_id: TaskId, *, with_input: bool = False, with_result: bool = False
) -> Shown:
    """Return everything about one task; ``TaskNotFound`` if it is nowhere."""
    rows = await executor.fetch(_SHOW, task_id, with_input, with_result)
    if not rows:
        raise TaskNotFound(task_id)
    found: dict[str, Any] = dict(zip(_COLUMNS, rows[0], strict=True))
    found["error"] = failure(found["error"])
    found["progress"] = None if found["progress"] is None else orjson.loads(found["progress"])
    return Shown(**found)


# ── its attempts ─────────────────────────────────────────────────────────────────────────────────

# The last attempt of a task that ended is columns of its row there; the one that is under way, if
# there is one, of the live row.
_ATTEMPTS: Final = """
select a.fence, a.visit, a.step, a.attempt, a.outcome, a.started_at, a.ended_at, a.worker,
       a.error::text as error
  from fleet.attempt a where a.task_id = $1::bigint
union all
select f.fence, f.visit, f.step, f.attempt, f.outcome, f.started_at, f.finished_at, f.worker,
       case when f.outcome = 'cancelled' then f.error::text end
  from fleet.archive f where f.id = $1::bigint and f.started_at is not null
union all
select b.fence, b.visit, b.step, b.attempt, b.reason, b.started_at, b.buried_at, b.worker,
       b.error::text
  from fleet.buried b where b.id = $1::bigint and b.started_at is not null
union all
select t.fence, t.visit, t.step, 1 + t.prior + t.failures + t.crashes, 'running', t.claimed_at,
       null, null, null
  from fleet.task t where t.id = $1::bigint and t.state = 'running'
 order by fence
"""


class AttemptShown(NamedTuple):
    """One attempt. ``outcome`` of a burial is its reason, of the one under way ``running``."""

    fence: int
    visit: int
    step: str
    attempt: int
    outcome: str
    started_at: datetime
    ended_at: datetime | None
    worker: str | None
    error: Failure | None


async def attempts(executor: Executor, task_id: TaskId) -> list[AttemptShown]:
    """Return every attempt of a task that is known, the first one first."""
    rows = await executor.fetch(_ATTEMPTS, task_id)
    return [AttemptShown._make([*tuple(row)[:-1], failure(row["error"])]) for row in rows]


# ── revival ──────────────────────────────────────────────────────────────────────────────────────

_REVIVE: Final = """
select fleet.revive($1::bigint, $2::text, $3::text::jsonb, $4::text) as id
"""


_REFUSALS: Final = frozenset({"22023", "55000", "P0002", "23505"})


async def revive(
    executor: Executor,
    task_id: TaskId,
    *,
    step: str | None = None,
    new_input: Json | None = None,
    by: str | None = None,
) -> None:
    """Bring a buried task back; ``ReviveRefused`` if it is not buried, or its slot is taken."""
    try:
        await executor.fetch(_REVIVE, task_id, step, new_input, by)
    except Exception as error:
        message = getattr(error, "message", None) or str(error)
        if sqlstate(error) not in _REFUSALS or "fleet.revive: " not in message:
            raise
        hint = getattr(error, "hint", None)
        text = message.removeprefix("fleet.revive: ") + (f". {hint}" if hint else "")
        raise ReviveRefused(text) from error


# ── enqueue by name ──────────────────────────────────────────────────────────────────────────────

_ENQUEUE: Final = """
select id, created
  from fleet.enqueue_named(
    $1::text, $2::text::jsonb, $3::text, $4::text, $5::int, $6::text::interval, $7::timestamptz,
    $8::text, $9::text, $10::text, null, $11::text::interval, $12::text)
"""


async def enqueue_by_name(
    executor: Executor,
    job: str,
    document: Json,
    *,
    queue: str | None = None,
    step: str | None = None,
    priority: int | None = None,
    delay: float | None = None,
    at: datetime | None = None,
    key: str | None = None,
    unique: str | None = None,
    unique_scope: str | None = None,
    unique_for: float | None = None,
    on_repeat: str = "keep",
) -> Enqueued:
    """Write a task without its code: what is not given is what its job was registered with."""
    options = (queue, step, priority, interval(delay), at, key, unique, unique_scope)
    repeats = (interval(unique_for), on_repeat)
    try:
        rows = await executor.fetch(_ENQUEUE, job, document, *options, *repeats)
    except Exception as error:
        if sqlstate(error) != "42704":
            raise
        raise UnknownJob(
            f"no job {job!r} is registered, so that nobody knows its queue: start a worker that "
            f"has it, run `fleet register MODULE:APP`, or give the queue"
        ) from error
    return Enqueued(rows[0]["id"], rows[0]["created"])
