"""The whole fleet at one look: queues, hosts and their workers, and what needs somebody's hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple

import orjson

from fleet.model import Failure, Seconds, TaskId
from fleet.store.control import PAUSED, Override, overrides
from fleet.store.executor import Executor
from fleet.store.registry import LIVE_FOR
from fleet.store.results import failure

# So often in a row, and it is no accident any more: its step does not fit into the drain.
MANY_RELEASES: Final = 5
_SHOWN: Final = 20

# One walk over what is live answers everything: few groups, however many rows. A definition counts
# while some worker says it is there; where no host is alive nobody can say so, and a queue without
# a host is the news, not its jobs.
_LIVE: Final = """
with hosts as (
    select exists (select from fleet.owner o
                    where o.beaten_at > fleet.now() - o.lease * interval '1 s') as any_alive)
select t.queue::text, t.job::text, t.step, t.state, t.owner, count(*) as n,
       extract(epoch from fleet.now() - min(t.ready_at))::float8 as age,
       count(*) filter (where t.pos is not null or t.due_at <= fleet.now()) as due,
       max(t.releases) as releases,
       exists (select from fleet.job j, hosts h
                where j.name = t.job
                  and (not h.any_alive
                       or j.last_seen > fleet.now() - $1::float8 * interval '1 s')
                  and (t.step = ''
                       or jsonb_path_exists(j.definition, '$.steps[*] ? (@.name == $step)',
                                            jsonb_build_object('step', t.step)))) as known
  from fleet.task t
 group by t.queue, t.job, t.step, t.state, t.owner
"""

_BURIED: Final = "select b.queue, count(*) as n from fleet.buried b group by b.queue"

_REGISTERED: Final = "select distinct j.queue::text as queue from fleet.job j"

_OWNERS: Final = """
select o.id, o.host, o.pid, o.state, o.lease, o.started_at, o.serves, o.workers::text as workers,
       greatest(extract(epoch from fleet.now() - o.beaten_at), 0)::float8 as silent
  from fleet.owner o
 where o.state <> 'taken'
 order by o.host, o.id
"""

_RELEASED: Final = """
select t.id as task_id, t.queue::text, t.job::text, t.step, t.releases
  from fleet.task t
 where t.releases >= $1::int
 order by t.releases desc, t.id
 limit $2::int
"""

_RECENT: Final = """
(select a.ended_at as at, a.task_id, a.job, a.step, a.attempt, a.outcome, a.error::text as error
   from fleet.attempt a
  where a.error is not null and a.outcome in ('failed', 'timed_out', 'crashed', 'lost')
  order by a.ended_at desc limit $1::int)
union all
(select b.buried_at, b.id, b.job, b.step, b.attempt, 'buried: ' || b.reason, b.error::text
   from fleet.buried b
  order by b.buried_at desc limit $1::int)
order by at desc limit $1::int
"""

_MOMENT: Final = "select fleet.now() as at, fleet.schema_version() as version"


@dataclass(slots=True)
class QueueStatus:
    """How many tasks of a queue are in which state; ``oldest_ready`` in seconds.

    ``rate`` is how many ended well in a second, over the last minute. ``served`` is whether a
    live host takes tasks from it, ``due`` how many somebody should take or has.
    """

    queue: str
    ready: int = 0
    deferred: int = 0
    waiting: int = 0
    running: int = 0
    buried: int = 0
    oldest_ready: Seconds | None = None
    rate: float = 0.0
    due: int = 0
    served: bool = False
    paused: bool = False

    def add(self, state: str, n: int, age: Seconds) -> None:
        """Count ``n`` more in ``state``, the oldest of which came into it ``age`` seconds ago."""
        setattr(self, state, getattr(self, state) + n)
        if state == "ready":
            self.oldest_ready = max(self.oldest_ready or 0.0, age)

    @property
    def unserved(self) -> bool:
        """Whether work is due here and no live host would take it."""
        return self.due > self.running and not self.served


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """A worker process as its supervisor last described it."""

    name: str
    pid: int | None
    state: str
    running: list[str]


@dataclass(frozen=True, slots=True)
class OwnerStatus:
    """A supervisor's start; ``silent`` is for how many seconds it has not been heard of."""

    id: int
    host: str
    pid: int
    state: str
    lease: Seconds
    started_at: datetime
    serves: list[str]
    workers: list[WorkerStatus]
    silent: Seconds
    running: int

    @property
    def alive(self) -> bool:
        """Whether it was heard of within its lease.

        This is for people to look at; who may take over from whom is decided by counters.
        """
        return self.silent < self.lease

    @property
    def claims(self) -> bool:
        """Whether it takes new tasks."""
        return self.alive and self.state in ("starting", "running")


@dataclass(slots=True)
class Unknown:
    """Tasks of a job, or at a step, that no live worker has: they wait until one has."""

    queue: str
    job: str
    step: str
    tasks: int = 0


class Released(NamedTuple):
    """A task that drains keep handing back."""

    task_id: TaskId
    queue: str
    job: str
    step: str
    releases: int


@dataclass(slots=True)
class Overview:
    """The fleet at one moment."""

    at: datetime
    schema_version: int
    queues: list[QueueStatus] = field(default_factory=list)
    owners: list[OwnerStatus] = field(default_factory=list)
    unknown: list[Unknown] = field(default_factory=list)
    overrides: list[Override] = field(default_factory=list)
    released: list[Released] = field(default_factory=list)

    @property
    def unserved(self) -> list[QueueStatus]:
        """The queues in which work is due that nobody would take."""
        return [queue for queue in self.queues if queue.unserved]

    def tell_rates(self, found: dict[str, float]) -> None:
        """Take in how many ended in a second, by queue."""
        for name in found.keys() - {queue.queue for queue in self.queues}:
            self.queues.append(QueueStatus(name))
        for queue in self.queues:
            queue.rate = found.get(queue.queue, 0.0)
        self.queues.sort(key=lambda queue: queue.queue)


async def overview(executor: Executor) -> Overview:
    """Look at everything once; ``rates`` is a question of its own."""
    moment = (await executor.fetch(_MOMENT))[0]
    seen = Overview(moment["at"], moment["version"])
    queues = {row["queue"]: QueueStatus(row["queue"]) for row in await executor.fetch(_REGISTERED)}
    held: dict[int, int] = {}
    unknown: dict[tuple[str, str, str], Unknown] = {}
    releases = 0
    for row in await executor.fetch(_LIVE, LIVE_FOR):
        queue = queues.setdefault(row["queue"], QueueStatus(row["queue"]))
        queue.add(row["state"], row["n"], row["age"])
        queue.due += row["due"]
        releases = max(releases, row["releases"])
        if row["owner"] is not None:
            held[row["owner"]] = held.get(row["owner"], 0) + row["n"]
        elif not row["known"]:
            place = (row["queue"], row["job"], row["step"])
            unknown.setdefault(place, Unknown(*place)).tasks += row["n"]
    for row in await executor.fetch(_BURIED):
        queues.setdefault(row["queue"], QueueStatus(row["queue"])).buried = row["n"]
    seen.unknown = [unknown[place] for place in sorted(unknown)]
    seen.owners = [_owner(row, held) for row in await executor.fetch(_OWNERS)]
    seen.overrides = await overrides(executor)
    if releases >= MANY_RELEASES:
        rows = await executor.fetch(_RELEASED, MANY_RELEASES, _SHOWN)
        seen.released = [Released(*row) for row in rows]
    _tell_queues(queues, seen)
    seen.queues = [queues[name] for name in sorted(queues)]
    return seen


def _owner(row: Any, held: dict[int, int]) -> OwnerStatus:
    told = dict(row)
    workers = [WorkerStatus(**worker) for worker in orjson.loads(told.pop("workers"))]
    return OwnerStatus(**told, workers=workers, running=held.get(row["id"], 0))


def _tell_queues(queues: dict[str, QueueStatus], seen: Overview) -> None:
    for owner in seen.owners:
        for name in owner.serves if owner.claims else ():
            queues.setdefault(name, QueueStatus(name)).served = True
    for override in seen.overrides:
        found = queues.setdefault(override.queue, QueueStatus(override.queue))
        found.paused |= override.key == PAUSED


class Recent(NamedTuple):
    """Something that went wrong."""

    at: datetime
    task_id: TaskId
    job: str
    step: str
    attempt: int
    outcome: str
    error: Failure | None


async def recent(executor: Executor, limit: int = _SHOWN) -> list[Recent]:
    """Return the last failures and burials, the newest first."""
    rows = await executor.fetch(_RECENT, limit)
    return [Recent._make((*tuple(row)[:-1], failure(row["error"]))) for row in rows]
