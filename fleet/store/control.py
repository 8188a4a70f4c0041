"""How the fleet is told something: to shut down, to leave a queue alone, to serve it otherwise.

Whatever is said stands in a table, from which every beat reads it; the NOTIFY only makes it quick.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import orjson

from fleet.model import OwnerId, Seconds
from fleet.store.executor import Executor

# ── shutdown ─────────────────────────────────────────────────────────────────────────────────────

_OWNERS: Final = """
select o.id, o.host, o.pid, o.beat, o.lease, o.state, o.serves from fleet.owner o order by o.id
"""

# Those that are a day old are gone: whoever was meant is down, or deaf for good.
_REQUEST: Final = """
with old as (
    delete from fleet.shutdown s where s.requested_at < fleet.now() - interval '1 day'),
asked as (
    insert into fleet.shutdown (host, queue, last_owner, requested_by)
    select $1::text, $2::text, coalesce(max(o.id), 0), $3::text from fleet.owner o
    returning id, last_owner)
select a.id, a.last_owner, pg_notify('fleet_control', 'shutdown'),
       fleet.note('shutdown', $1::text,
                  jsonb_build_object('request', a.id, 'queue', $2::text), $3::text)
  from asked a
"""

_ANSWERS: Final = """
select a.owner, a.state from fleet.shutdown_ack a where a.shutdown = $1::bigint
"""

# The request may be gone by now, and with it the need to answer.
_ACKNOWLEDGE: Final = """
insert into fleet.shutdown_ack (shutdown, owner, state)
select s.id, $2::bigint, $3::text from fleet.shutdown s where s.id = $1::bigint
    on conflict (shutdown, owner) do update set state = excluded.state, at = fleet.now()
"""


@dataclass(frozen=True, slots=True)
class Owner:
    """A supervisor, as whoever wants to stop it sees it."""

    id: int
    host: str
    pid: int
    beat: int
    lease: Seconds
    state: str
    serves: tuple[str, ...]

    def meant(self, host: str | None, queue: str | None) -> bool:
        """Tell whether a command with this scope is for it."""
        return host in (None, self.host) and (queue is None or queue in self.serves)


async def owners(conn: Executor) -> list[Owner]:
    """Return every supervisor there is."""
    return [
        Owner(r["id"], r["host"], r["pid"], r["beat"], r["lease"], r["state"], tuple(r["serves"]))
        for r in await conn.fetch(_OWNERS)
    ]


async def request_shutdown(conn: Executor, host: str | None, queue: str | None, by: str) -> int:
    """Tell all who are there now, and nobody who starts later; return the request's number."""
    number: int = (await conn.fetch(_REQUEST, host, queue, by))[0]["id"]
    return number


async def answers(conn: Executor, shutdown: int) -> dict[int, str]:
    """Return what each owner has answered: draining, or down."""
    return {row["owner"]: row["state"] for row in await conn.fetch(_ANSWERS, shutdown)}


async def acknowledge(conn: Executor, shutdown: int, owner: OwnerId, state: str) -> None:
    """Answer a command."""
    await conn.fetch(_ACKNOWLEDGE, shutdown, owner, state)


# ── queues ───────────────────────────────────────────────────────────────────────────────────────

_SAY: Final = """
select fleet.set_queue($1::text, $2::text::jsonb,
                       fleet.now() + make_interval(secs => $3::float8), $4::text)
"""

_TAKE_BACK: Final = "select fleet.reset_queue($1::text, $2::text[], $3::text) as was"

_OVERRIDES: Final = """
select o.queue::text, o.key, o.value::text, o.until, o.changed_at, o.changed_by
  from fleet.override o
 where o.until is null or o.until > fleet.now()
 order by o.queue, o.key <> 'paused', o.key
"""

PAUSED: Final = "paused"


@dataclass(frozen=True, slots=True)
class Override:
    """One thing that the database says of a queue, in force now."""

    queue: str
    key: str
    value: Any
    until: datetime | None
    changed_at: datetime
    changed_by: str

    def __str__(self) -> str:
        said = PAUSED if self.key == PAUSED else f"{self.key} = {self.value}"
        end = f" until {_when(self.until)}" if self.until else ""
        return f"{said}{end} (by {self.changed_by}, {_when(self.changed_at)})"


def _when(moment: datetime) -> str:
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")


async def pause(conn: Executor, queue: str, seconds: Seconds | None, by: str | None) -> None:
    """Let nobody claim from a queue: until it is resumed, or for so long."""
    await conn.fetch(_SAY, queue, f'{{"{PAUSED}": true}}', seconds, by)


async def resume(conn: Executor, queue: str, by: str | None) -> bool:
    """Let it be claimed again; False if it was not paused."""
    return bool((await conn.fetch(_TAKE_BACK, queue, [PAUSED], by))[0]["was"])


async def override(
    conn: Executor,
    queue: str,
    settings: Mapping[str, object],
    seconds: Seconds | None,
    by: str | None,
) -> None:
    """Let these settings beat every file: until they are reset, or for so long."""
    await conn.fetch(_SAY, queue, orjson.dumps(settings).decode(), seconds, by)


async def reset(conn: Executor, queue: str, keys: Sequence[str], by: str | None) -> bool:
    """Let the files count again, for these keys or all; False if nothing was set."""
    return bool((await conn.fetch(_TAKE_BACK, queue, list(keys) or None, by))[0]["was"])


async def overrides(conn: Executor) -> list[Override]:
    """Return what is in force."""
    return [
        Override(
            row["queue"],
            row["key"],
            orjson.loads(row["value"]),
            row["until"],
            row["changed_at"],
            row["changed_by"],
        )
        for row in await conn.fetch(_OVERRIDES)
    ]
