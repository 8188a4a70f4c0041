"""What became of tasks, and the wish that one should stop.

A task is in exactly one of ``task``, ``archive`` and ``buried``, and the statement that ends it
moves it. So each question looks into all three in one statement, that is in one snapshot: a task
can then never be missed because it moved between two looks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast

import orjson

from fleet.errors import TaskNotFound
from fleet.model import Failure, Json, State, TaskId
from fleet.store.executor import Executor, Row

Cancelled: TypeAlias = Literal["cancelled", "requested", "ended"]

# The archive has an index on id in each of its partitions: that many searches for one id. Only what
# is not live any more is looked for there.
_LOOK: Final = """
select asked.id,
       coalesce(t.state, a.outcome, b.state) as state,
       a.job, a.result, b.reason, b.error
  from unnest($1::bigint[]) as asked (id)
  left join lateral (
       select l.state from fleet.task l where l.id = asked.id) t on true
  left join lateral (
       select f.outcome, f.job, f.result::text as result
         from fleet.archive f where t.state is null and f.id = asked.id limit 1) a on true
  left join lateral (
       select 'buried' as state, d.reason, d.error::text as error
         from fleet.buried d where t.state is null and d.id = asked.id) b on true
"""

_STATUS: Final = """
select id, state, job, step, queue, priority, key, 1 + prior + failures + crashes as attempt,
       progress::text as progress, error::text as error, null as reason, enqueued_at, ready_at,
       case when state = 'running' then claimed_at end as started_at,
       null::timestamptz as finished_at
  from fleet.task where id = $1::bigint
union all
select id, outcome, job, step, queue, priority, key, attempt, null, error::text, null,
       enqueued_at, ready_at, started_at, finished_at
  from fleet.archive where id = $1::bigint
union all
select id, 'buried', job, step, queue, priority, key, attempt, null, error::text, reason,
       enqueued_at, ready_at, started_at, buried_at
  from fleet.buried where id = $1::bigint
"""

_CANCEL: Final = "select fleet.cancel($1::bigint, $2::text) as said"

_WISHED: Final = """
select t.id, t.state
  from fleet.cancellation c join fleet.task t on t.id = c.task_id
"""

_LEFTOVERS: Final = "select fleet.cancel_leftovers()"


class Sight(NamedTuple):
    """A task as one look saw it; ``state`` None: it is nowhere."""

    id: TaskId
    state: State | None
    job: str | None = None
    result: Json | None = None
    reason: str | None = None
    error: Failure | None = None

    @property
    def ended(self) -> bool:
        """Whether there is nothing more to wait for."""
        return self.state not in _LIVE


_LIVE: Final = frozenset({"ready", "running", "deferred", "waiting"})


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStatus:
    """What is known about a task at one moment.

    ``attempt`` counts the tries of the current step. ``ready_at`` is when the task became ready to
    run; while it is deferred, when it will. ``error`` is the last failure of the step, ``reason``
    why it was buried.
    """

    id: TaskId
    state: State
    job: str
    step: str
    queue: str
    priority: int
    key: str | None
    attempt: int
    progress: Any
    error: Failure | None
    reason: str | None
    enqueued_at: datetime
    ready_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


async def look(executor: Executor, ids: Sequence[TaskId]) -> list[Sight]:
    """See how each of the tasks stands; all of them in one snapshot."""
    return [_sight(row) for row in await executor.fetch(_LOOK, list(ids))]


async def status(executor: Executor, task_id: TaskId) -> TaskStatus:
    """Return everything about one task; ``TaskNotFound`` if it is nowhere."""
    rows = await executor.fetch(_STATUS, task_id)
    if not rows:
        raise TaskNotFound(task_id)
    row = rows[0]
    return TaskStatus(
        id=row["id"],
        state=row["state"],
        job=row["job"],
        step=row["step"],
        queue=row["queue"],
        priority=row["priority"],
        key=row["key"],
        attempt=row["attempt"],
        progress=None if row["progress"] is None else orjson.loads(row["progress"]),
        error=failure(row["error"]),
        reason=row["reason"],
        enqueued_at=row["enqueued_at"],
        ready_at=row["ready_at"],
        started_at=row["started_at"],
        finished_at=row["finished_at"],
    )


async def cancel(executor: Executor, task_id: TaskId, by: str | None = None) -> Cancelled:
    """Ask for the end of a task.

    ``cancelled``: it will not run (again). ``requested``: it runs now, and its worker is told.
    ``ended``: too late. ``TaskNotFound`` if it is nowhere.
    """
    rows = await executor.fetch(_CANCEL, task_id, by)
    if rows[0]["said"] is None:
        raise TaskNotFound(task_id)
    return cast("Cancelled", rows[0]["said"])


async def cancel_leftovers(executor: Executor) -> list[TaskId]:
    """End what was to be cancelled while it ran, and does not run any more; forget old wishes."""
    idle = [row["id"] for row in await executor.fetch(_WISHED) if row["state"] != "running"]
    await executor.fetch(_LEFTOVERS)
    return idle


async def is_to_be_cancelled(executor: Executor, task_id: TaskId) -> bool:
    """Tell whether somebody has asked for the end of a task that runs."""
    return any(row["id"] == task_id for row in await executor.fetch(_WISHED))


def failure(text: Json | None) -> Failure | None:
    """Read a stored error; one that was written by hand may lack parts or be something else."""
    if text is None:
        return None
    stored = orjson.loads(text)
    if not isinstance(stored, dict):
        return Failure(type="unknown", message=str(stored))
    return Failure(
        type=str(stored.get("type") or "unknown"),
        message=str(stored.get("message") or ""),
        traceback=stored.get("traceback"),
    )


def _sight(row: Row) -> Sight:
    return Sight(
        id=row["id"],
        state=row["state"],
        job=row["job"],
        result=row["result"],
        reason=row["reason"],
        error=failure(row["error"]),
    )
