"""``fleet.schedule`` and ``fleet.tick``: declared, made by hand, due, fired."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple, Self

import orjson

from fleet.model import Json, TaskId
from fleet.schedule import Missed, Schedule
from fleet.store.executor import Executor

# ── firing ───────────────────────────────────────────────────────────────────────────────────────

_DUE: Final = "select fleet.due_schedules()::text as due, fleet.now() as now"

# All of a firing: the check that nobody else has, the tasks, the record of the ticks, the next one.
_FIRE: Final = """
select fleet.fire($1::text, $2::bigint, $3::timestamptz, $4::timestamptz[],
                  $5::timestamptz)::text as done
"""

_NOTE_ERROR: Final = "select fleet.note_schedule_error($1::text, $2::bigint, $3::text)"


@dataclass(frozen=True, slots=True)
class Waiting:
    """A schedule that is due, or whose next tick nobody has computed yet."""

    name: str
    revision: int
    cron: str
    timezone: str
    job: str
    missed: Missed
    since: datetime
    next_at: datetime | None
    by_hand: bool
    declared: bool  # by an application that runs

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> Self:
        """Return one as the database tells it."""
        at = told["next_at"]
        return cls(
            **{
                **told,
                "since": datetime.fromisoformat(told["since"]),
                "next_at": None if at is None else datetime.fromisoformat(at),
            }
        )

    def schedule(self) -> Schedule:
        """Return its calendar; ``DefinitionError`` if this host cannot make sense of it."""
        return Schedule(
            name=self.name,
            cron=self.cron,
            timezone=self.timezone,
            job=self.job,
            missed=self.missed,
        )


class Fired(NamedTuple):
    """What became of a firing: the tasks, or why there are none."""

    tasks: list[TaskId]
    error: str | None


async def due(executor: Executor) -> tuple[list[Waiting], datetime]:
    """Return the schedules that are due, as a beat does, and what time it is there."""
    (row,) = await executor.fetch(_DUE)
    return [Waiting.read(each) for each in orjson.loads(row["due"])], row["now"]


async def fire(
    executor: Executor, waiting: Waiting, ticks: Sequence[datetime], following: datetime
) -> Fired | None:
    """Enqueue a task for each tick and move on, or do nothing; None: somebody else was faster."""
    rows = await executor.fetch(
        _FIRE, waiting.name, waiting.revision, waiting.next_at, list(ticks), following
    )
    if rows[0]["done"] is None:
        return None
    done = orjson.loads(rows[0]["done"])
    return Fired(done.get("tasks", []), done.get("error"))


async def note_error(executor: Executor, waiting: Waiting, problem: str) -> None:
    """Keep why its ticks cannot be computed here."""
    await executor.fetch(_NOTE_ERROR, waiting.name, waiting.revision, problem)


# ── declared by applications ─────────────────────────────────────────────────────────────────────

_DECLARE: Final = "select fleet.declare($1::text::jsonb)"


async def declare(executor: Executor, definitions: Sequence[Mapping[str, Any]]) -> None:
    """Write down the schedules of a live application, or that it still declares them.

    Each is what ``Schedule.definition()`` returns.
    """
    if definitions:
        await executor.fetch(_DECLARE, orjson.dumps(list(definitions)).decode())


# ── made by hand, and looked at ──────────────────────────────────────────────────────────────────

_ADD: Final = """
select fleet.schedule($1::text, $2::text, $3::text, $4::text::jsonb, timezone => $5::text,
                      missed => $6::text, key => $7::text, by => $8::text) as how
"""
_REMOVE: Final = "select fleet.unschedule($1::text, by => $2::text) as done"
_PAUSE: Final = "select fleet.pause_schedule($1::text, $2::boolean, by => $3::text) as done"
_FIRE_NOW: Final = "select fleet.fire_now($1::text, by => $2::text) as task"

_ALL: Final = """
select s.name::text, s.cron, s.timezone, s.job::text, s.input::text as input, s.key, s.missed,
       s.origin, s.paused, fleet.is_declared(s.name) as declared, s.since, s.next_at, s.last_tick,
       s.last_task, s.error, s.created_at, s.created_by,
       (select max(d.last_seen) from fleet.declared d where d.name = s.name) as last_declared
  from fleet.schedule s
 where $1::text is null or s.name = $1::text
 order by s.name
"""

_TICKS: Final = """
select t.tick, t.task, t.fired_at, t.fired_by
  from fleet.tick t where t.schedule = $1::text
 order by t.tick desc limit $2::int
"""


@dataclass(frozen=True, slots=True)
class Known:
    """A schedule as it stands in the database."""

    name: str
    cron: str
    timezone: str
    job: str
    input: Json
    key: str | None
    missed: Missed
    origin: str  # 'app' or 'hand'
    paused: bool
    declared: bool  # by an application that runs
    since: datetime
    next_at: datetime | None
    last_tick: datetime | None
    last_task: TaskId | None
    error: str | None
    created_at: datetime
    created_by: str
    last_declared: datetime | None

    def schedule(self) -> Schedule:
        """Return its calendar; ``DefinitionError`` if this host cannot make sense of it."""
        return Schedule(
            name=self.name,
            cron=self.cron,
            timezone=self.timezone,
            job=self.job,
            missed=self.missed,
        )


class Tick(NamedTuple):
    """One that has fired; ``fired_by`` if it was a person's wish and not the calendar's."""

    tick: datetime
    task: TaskId
    fired_at: datetime
    fired_by: str | None


async def known(executor: Executor, name: str | None = None) -> list[Known]:
    """Return every schedule, or the one of that name."""
    return [Known(*row) for row in await executor.fetch(_ALL, name)]


async def ticks(executor: Executor, name: str, limit: int = 10) -> list[Tick]:
    """Return what a schedule has fired, the latest first."""
    return [Tick(*row) for row in await executor.fetch(_TICKS, name, limit)]


async def add(executor: Executor, made: Schedule, by: str) -> str:
    """Make or change a schedule; return 'made', 'changed' or 'same'."""
    rows = await executor.fetch(
        _ADD,
        made.name,
        made.plain_cron,
        made.job,
        made.input,
        made.timezone,
        made.missed,
        made.key,
        by,
    )
    how: str = rows[0]["how"]
    return how


async def remove(executor: Executor, name: str, by: str) -> bool:
    """Remove a schedule; False if there is none."""
    return bool((await executor.fetch(_REMOVE, name, by))[0]["done"])


async def pause(executor: Executor, name: str, by: str, *, pause: bool = True) -> bool:
    """Let a schedule rest, or fire again; False if it was so already."""
    return bool((await executor.fetch(_PAUSE, name, pause, by))[0]["done"])


async def fire_now(executor: Executor, name: str, by: str) -> TaskId:
    """Enqueue one task now, as a tick of its own."""
    task: TaskId = (await executor.fetch(_FIRE_NOW, name, by))[0]["task"]
    return task
