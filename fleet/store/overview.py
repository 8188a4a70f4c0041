"""The whole fleet at one look: queues, owners, and tasks that nobody knows how to run."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from fleet.model import Seconds
from fleet.store.executor import Executor

# An owner beats every second. This is for people to look at; who may take over from whom is
# decided by counters and never by this.
ALIVE_FOR: Final[Seconds] = 30.0

# One walk over what is live answers everything: few groups, however many rows.
_LIVE: Final = """
select t.queue::text, t.job::text, t.step, t.state, t.owner, count(*) as n,
       extract(epoch from fleet.now() - min(t.ready_at))::float8 as age,
       exists (select from fleet.job j
                where j.name = t.job
                  and (t.step = ''
                       or jsonb_path_exists(j.definition, '$.steps[*] ? (@.name == $step)',
                                            jsonb_build_object('step', t.step)))) as known
  from fleet.task t
 group by t.queue, t.job, t.step, t.state, t.owner
"""

_BURIED: Final = "select b.queue, count(*) as n from fleet.buried b group by b.queue"

_REGISTERED: Final = "select distinct j.queue::text as queue from fleet.job j"

_OWNERS: Final = """
select o.id, o.host, o.pid, o.started_at,
       greatest(extract(epoch from fleet.now() - o.beaten_at), 0)::float8 as silent
  from fleet.owner o
 order by o.id
"""

_MOMENT: Final = "select fleet.now() as at, fleet.schema_version() as version"


@dataclass(slots=True)
class QueueStatus:
    """How many tasks of a queue are in which state; ``oldest_ready`` in seconds."""

    queue: str
    ready: int = 0
    deferred: int = 0
    waiting: int = 0
    running: int = 0
    buried: int = 0
    oldest_ready: Seconds | None = None

    def add(self, state: str, n: int, age: Seconds) -> None:
        """Count ``n`` more in ``state``, the oldest of which came into it ``age`` seconds ago."""
        setattr(self, state, getattr(self, state) + n)
        if state == "ready":
            self.oldest_ready = max(self.oldest_ready or 0.0, age)


@dataclass(frozen=True, slots=True)
class OwnerStatus:
    """A supervisor's start; ``silent`` is for how many seconds it has not been heard of."""

    id: int
    host: str
    pid: int
    started_at: datetime
    silent: Seconds
    running: int

    @property
    def alive(self) -> bool:
        """Whether it was heard of lately."""
        return self.silent < ALIVE_FOR


@dataclass(slots=True)
class Unknown:
    """Tasks of a job, or at a step, that nobody has registered: they wait until somebody has."""

    queue: str
    job: str
    step: str
    tasks: int = 0


@dataclass(slots=True)
class Overview:
    """The fleet at one moment."""

    at: datetime
    schema_version: int
    queues: list[QueueStatus] = field(default_factory=list)
    owners: list[OwnerStatus] = field(default_factory=list)
    unknown: list[Unknown] = field(default_factory=list)


async def overview(executor: Executor) -> Overview:
    """Look at everything once."""
    moment = (await executor.fetch(_MOMENT))[0]
    queues = {row["queue"]: QueueStatus(row["queue"]) for row in await executor.fetch(_REGISTERED)}
    held: dict[int, int] = {}
    unknown: dict[tuple[str, str, str], Unknown] = {}
    for row in await executor.fetch(_LIVE):
        queue = queues.setdefault(row["queue"], QueueStatus(row["queue"]))
        queue.add(row["state"], row["n"], row["age"])
        if row["owner"] is not None:
            held[row["owner"]] = held.get(row["owner"], 0) + row["n"]
        if not row["known"]:
            place = (row["queue"], row["job"], row["step"])
            unknown.setdefault(place, Unknown(*place)).tasks += row["n"]
    for row in await executor.fetch(_BURIED):
        queues.setdefault(row["queue"], QueueStatus(row["queue"])).buried = row["n"]
    owners = [
        OwnerStatus(
            id=row["id"],
            host=row["host"],
            pid=row["pid"],
            started_at=row["started_at"],
            silent=row["silent"],
            running=held.get(row["id"], 0),
        )
        for row in await executor.fetch(_OWNERS)
    ]
    return Overview(
        moment["at"],
        moment["version"],
        [queues[name] for name in sorted(queues)],
        owners,
        [unknown[place] for place in sorted(unknown)],
    )
