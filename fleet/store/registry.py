"""``fleet.job``: what workers know, so that SQL knows a job's queue, first step, priority and key.

A row is a definition: a name and the fingerprint of everything that the code says about it. During
a rolling deploy two of one name are live. ``first_seen`` is kept when a definition is seen again:
among the live ones the one first seen last is used, so that two versions do not take turns.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple, Protocol

import orjson

from fleet.model import Seconds
from fleet.store.executor import Executor

# The same minute as in fleet.definition_of: workers are seen often, and may be late at times.
LIVE_FOR: Final[Seconds] = 60.0

# In the order of names, whoever registers: two workers that boot at once cannot deadlock.
_REGISTER: Final = """
insert into fleet.job as j (name, fingerprint, queue, step, priority, definition)
select d.name, d.fingerprint, d.queue, d.step, d.priority, d.definition
  from jsonb_to_recordset($1::text::jsonb) as d (
       name text, fingerprint text, queue text, step text, priority smallint, definition jsonb)
 order by d.name
    on conflict (name, fingerprint) do update set last_seen = fleet.now()
returning j.name::text, j.fingerprint, j.queue::text, j.step, j.priority, j.first_seen, j.last_seen,
          true as live, j.first_seen = j.last_seen as new
"""

_DEFINITIONS: Final = """
select j.name::text, j.fingerprint, j.queue::text, j.step, j.priority, j.first_seen, j.last_seen,
       j.last_seen > fleet.now() - $1::float8 * interval '1 s' as live, false as new
  from fleet.job j
 where $2::text is null or j.name = $2::text
 order by j.name, live desc, j.first_seen desc, j.fingerprint
"""


class Definition(NamedTuple):
    """One row of ``fleet.job``; ``new`` if this very call wrote it."""

    name: str
    fingerprint: str
    queue: str
    step: str
    priority: int
    first_seen: datetime
    last_seen: datetime
    live: bool
    new: bool


class RegisteredJob(Protocol):
    """What is asked of a job: ``fleet.Job`` has it."""

    name: str

    def definition(self) -> dict[str, Any]:
        """Return it as plain JSON."""

    def fingerprint(self) -> str:
        """Return a short hash of that."""


class Application(Protocol):
    """What is asked of an application: ``fleet.Fleet`` has it."""

    @property
    def jobs(self) -> Mapping[str, RegisteredJob]:
        """Its jobs by name."""


async def register(executor: Executor, app: Application) -> list[Definition]:
    """Write down the jobs of an application, or that they were seen again."""
    document = [_described(job) for job in app.jobs.values()]
    if not document:
        return []
    rows = await executor.fetch(_REGISTER, orjson.dumps(document).decode())
    return sorted(Definition(*row) for row in rows)


def _described(job: RegisteredJob) -> dict[str, Any]:
    definition = job.definition()
    first = definition["steps"][0]
    return {
        "name": job.name,
        "fingerprint": job.fingerprint(),
        "queue": definition["queue"],
        "step": first["name"],
        "priority": first["priority"],
        "definition": definition,
    }


async def definitions(
    executor: Executor, name: str | None = None, *, live_for: Seconds = LIVE_FOR
) -> list[Definition]:
    """Return what is registered; of each name, the one that SQL uses comes first."""
    return [Definition(*row) for row in await executor.fetch(_DEFINITIONS, live_for, name)]


async def live(executor: Executor, *, live_for: Seconds = LIVE_FOR) -> dict[str, list[Definition]]:
    """Return the definitions seen lately, by name: two of one name during a rolling deploy."""
    found: dict[str, list[Definition]] = {}
    for definition in await definitions(executor, live_for=live_for):
        if definition.live:
            found.setdefault(definition.name, []).append(definition)
    return found
