"""The beat: what a supervisor says and hears once a second, in one statement."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from fleet.model import OwnerId, Seconds, TaskId
from fleet.store.executor import Executor
from fleet.store.schedules import Waiting

_BEAT: Final = """
select fleet.beat($1::bigint, $2::text, $3::text::jsonb, $4::text[], $5::text[])::text as told
"""

_REGISTER: Final = """
insert into fleet.owner (host, pid, lease) values ($1::text, $2::int, $3::float8) returning id
"""

_ARM: Final = """
insert into fleet.armed (queue, owner) select q, $1::bigint from unnest($2::text[]) q
    on conflict do nothing
"""
_DISARM: Final = """
delete from fleet.armed where owner = $1::bigint and queue = any ($2::text[])
"""

_TAKE: Final = """
update fleet.owner set state = 'taken' where id = $1::bigint and state <> 'taken' returning id
"""

_FORGET: Final = """
with gone as (delete from fleet.owner where id = $1::bigint)
delete from fleet.armed where owner = $1::bigint
"""


@dataclass(frozen=True, slots=True)
class Told:
    """What the database says at a beat."""

    ready: list[str]
    due_in: Seconds | None
    cancel: list[TaskId]
    owners: dict[int, tuple[int, Seconds]]  # id → (counter, lease)
    shutdown: list[dict[str, Any]]
    queues: dict[str, dict[str, Any]]
    heard: bool = True  # False: owners, shutdown and queues could not be read this time
    trouble: str | None = None  # what else could not be done
    now: Seconds | None = None  # the database's clock, since 1970
    ticks: list[Waiting] = field(default_factory=list)  # schedules that are due


async def register(conn: Executor, host: str, pid: int, lease: Seconds) -> OwnerId:
    """Become an owner: each start of a supervisor is a new one."""
    rows = await conn.fetch(_REGISTER, host, pid, lease)
    return OwnerId(rows[0]["id"])


async def beat(
    conn: Executor,
    owner: OwnerId,
    state: str,
    workers: list[Any] | None,
    queues: list[str],
    looks: list[str] | None = None,
) -> Told | None:
    """Renew the lease and hear the news; None if the owner has been taken over.

    ``looks`` are the queues to be looked into for ready work; by default all of them.
    """
    document = None if workers is None else orjson.dumps(workers).decode()
    looks = queues if looks is None else looks
    rows = await conn.fetch(_BEAT, owner, state, document, queues, looks)
    if rows[0]["told"] is None:
        return None
    told = orjson.loads(rows[0]["told"])
    return Told(
        ready=told.get("ready", []),
        due_in=told.get("due_in"),
        cancel=told.get("cancel", []),
        owners={int(k): (v[0], v[1]) for k, v in told.get("owners", {}).items()},
        shutdown=told.get("shutdown", []),
        queues=told.get("queues", {}),
        heard="owners" in told,
        trouble=told.get("trouble"),
        now=told.get("now"),
        ticks=[Waiting.read(each) for each in told.get("ticks", [])],
    )


async def arm(conn: Executor, owner: OwnerId, queues: list[str]) -> None:
    """Ask for a NOTIFY when something becomes ready in these queues."""
    await conn.fetch(_ARM, owner, queues)


async def disarm(conn: Executor, owner: OwnerId, queues: list[str]) -> None:
    """Ask for no more of them."""
    await conn.fetch(_DISARM, owner, queues)


async def take(conn: Executor, owner: OwnerId) -> bool:
    """Let an owner claim and renew no more; False if it was told so before, or is not there."""
    return bool(await conn.fetch(_TAKE, owner))


async def forget(conn: Executor, owner: OwnerId) -> None:
    """Remove an owner that holds nothing any more: one that leaves, or one that was taken over."""
    await conn.fetch(_FORGET, owner)


_MAINTAIN: Final = "select action from fleet.maintain()"


async def maintain(conn: Executor) -> None:
    """Make partitions ahead, and remove what is over: a little a call, until there is none."""
    while any(row["action"] in ("dropped", "deleted") for row in await conn.fetch(_MAINTAIN)):
        pass


_PROGRESS: Final = """
update fleet.task t
   set progress = jsonb_build_object('fraction', n.fraction, 'message', n.message)
  from unnest($2::bigint[], $3::bigint[], $4::float8[], $5::text[])
       as n (id, fence, fraction, message)
 where t.id = any (array(
           -- Progress of a task that somebody is about to finish is not worth waiting for.
           select w.id from fleet.task w where w.id = any ($2::bigint[]) for update skip locked))
   and t.id = n.id and t.fence = n.fence and t.owner = $1::bigint
"""


async def note_progress(conn: Executor, owner: OwnerId, notes: list[list[Any]]) -> None:
    """Keep how far steps have come: (task, fence, fraction, message) each."""
    ids, fences, fractions, messages = (list(column) for column in zip(*notes, strict=True))
    await conn.fetch(_PROGRESS, owner, ids, fences, fractions, messages)
