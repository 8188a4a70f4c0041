"""What a doctor asks a server: one question a function, and no judgement."""

from __future__ import annotations

import asyncio
import time
import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

import asyncpg

from fleet.model import Seconds
from fleet.store.executor import Executor
from fleet.store.registry import LIVE_FOR

# ── the server and our role on it ────────────────────────────────────────────────────────────────

_SERVER: Final = """
select current_setting('server_version_num')::int / 10000 as major,
       current_setting('server_version') as version,
       current_setting('transaction_read_only') = 'on' or pg_is_in_recovery() as read_only,
       current_user::text as role,
       pg_has_role(current_user, 'pg_read_all_stats', 'usage') as sees_sessions,
       to_regnamespace('fleet') is not null as has_schema
"""


class Server(NamedTuple):
    """The server, and who we are there."""

    major: int
    version: str
    read_only: bool
    role: str
    sees_sessions: bool
    has_schema: bool


async def server(executor: Executor) -> Server:
    """Return what the server is."""
    return Server(*(await executor.fetch(_SERVER))[0])


# The widest thing that each level of ``fleet grant`` may do and the one below may not.
_ROLE: Final = """
select case
         when pg_has_role(current_user, n.nspowner, 'usage') then 'owner'
         when not has_schema_privilege(n.oid, 'usage') then 'nothing'
         when has_table_privilege('fleet.task', 'update') then 'worker'
         when has_table_privilege('fleet.task', 'select') then 'app'
         when has_function_privilege(f.oid, 'execute') then 'client'
         else 'nothing'
       end as level
  from pg_namespace n
  left join lateral (select p.oid from pg_proc p
                      where p.pronamespace = n.oid and p.proname = 'enqueue' limit 1) f on true
 where n.nspname = 'fleet'
"""


async def level(executor: Executor) -> str:
    """Return what our role may do: owner, worker, app, client or nothing."""
    found: str = (await executor.fetch(_ROLE))[0]["level"]
    return found


# ── settings ─────────────────────────────────────────────────────────────────────────────────────

_SETTINGS: Final = """
select s.name, s.setting, s.unit,
       case s.unit when 'ms' then s.setting::float8 / 1000 when 's' then s.setting::float8
       end as seconds
  from pg_settings s
 where s.name = any ($1::text[])
"""

ASKED: Final = (
    "fsync",
    "full_page_writes",
    "synchronous_commit",
    "autovacuum",
    "idle_in_transaction_session_timeout",
    "transaction_timeout",
    "statement_timeout",
)


class Setting(NamedTuple):
    """A setting of the server as it is for our role; ``seconds`` of those that are a time."""

    name: str
    value: str
    unit: str | None
    seconds: Seconds | None


async def settings(executor: Executor) -> dict[str, Setting]:
    """Return the settings that are worth a word; those this version has not are not there."""
    return {row["name"]: Setting(*row) for row in await executor.fetch(_SETTINGS, list(ASKED))}


# Three limits with a count of their own each; the narrowest is what counts.
_CONNECTIONS: Final = """
with open as (
    select count(*) as everybody,
           count(*) filter (where a.datname = current_database()) as here,
           count(*) filter (where a.usename = current_user) as ours
      from pg_stat_activity a where a.backend_type = 'client backend'),
limits as (
    select current_setting('max_connections')::int
             - current_setting('superuser_reserved_connections')::int as server,
           nullif(d.datconnlimit, -1) as database,
           case when not r.rolsuper then nullif(r.rolconnlimit, -1) end as role
      from pg_database d, pg_roles r
     where d.datname = current_database() and r.rolname = current_user)
select least(l.server, l.database, l.role) as most,
       least(l.server - o.everybody, l.database - o.here, l.role - o.ours)::int as room
  from limits l, open o
"""


class Connections(NamedTuple):
    """How many connections our role may have here, and for how many more there is room."""

    most: int
    room: int


async def connections(executor: Executor) -> Connections:
    """Return the room for connections."""
    return Connections(*(await executor.fetch(_CONNECTIONS))[0])


# ── vacuum, and who keeps it from working ────────────────────────────────────────────────────────

_TABLE: Final = """
select s.n_live_tup as live, s.n_dead_tup as dead,
       greatest(s.last_vacuum, s.last_autovacuum) as vacuumed_at,
       coalesce((select o.option_value::bool from pg_options_to_table(c.reloptions) o
                  where o.option_name = 'autovacuum_enabled'), true) as enabled
  from pg_class c left join pg_stat_user_tables s on s.relid = c.oid
 where c.oid = 'fleet.task'::regclass
"""


class Vacuum(NamedTuple):
    """What lies in ``fleet.task``, and when it was last cleaned."""

    live: int
    dead: int
    vacuumed_at: datetime | None
    enabled: bool


async def vacuum(executor: Executor) -> Vacuum:
    """Return how clean the table of tasks is."""
    return Vacuum(*(await executor.fetch(_TABLE))[0])


# Whoever holds a snapshot holds back vacuum, in every table. Fleet's own connections do not.
_HOLDERS: Final = """
select 'session' as kind, a.pid::text as who, a.application_name as name, a.usename::text as role,
       a.state, extract(epoch from clock_timestamp() - a.xact_start)::float8 as age,
       extract(epoch from clock_timestamp() - a.state_change)::float8 as idle,
       a.backend_xmin is not null or a.backend_xid is not null as holds
  from pg_stat_activity a
 where a.datname = current_database() and a.pid <> pg_backend_pid() and a.xact_start is not null
   and a.backend_type = 'client backend'
union all
select 'prepared transaction', p.gid, '', p.owner::text, 'prepared',
       extract(epoch from clock_timestamp() - p.prepared)::float8, null, true
  from pg_prepared_xacts p
 where p.database = current_database()
union all
select 'replication slot', s.slot_name::text, coalesce(s.plugin, ''), '',
       case when s.active then 'active' else 'inactive' end, null, null, true
  from pg_replication_slots s
 where s.xmin is not null or s.catalog_xmin is not null
 order by age desc nulls last
"""


class Holder(NamedTuple):
    """An open transaction, a prepared one, or a slot; ``idle``: since it last did anything."""

    kind: str
    who: str
    name: str
    role: str
    state: str | None
    age: Seconds | None
    idle: Seconds | None
    holds: bool

    def __str__(self) -> str:
        named = f" {self.name}" if self.name else ""
        pid = "pid " if self.kind == "session" else ""
        by = f" of {self.role}" if self.role else ""
        return f"{self.kind} {pid}{self.who}{named}{by}"


async def holders(executor: Executor) -> list[Holder]:
    """Return whoever keeps vacuum from cleaning up, the oldest first."""
    return [Holder(*row) for row in await executor.fetch(_HOLDERS)]


# ── partitions ───────────────────────────────────────────────────────────────────────────────────

# Days without a gap, from today on.
_AHEAD: Final = """
with days as (
    select p.parent, d.day,
           to_regclass(format('fleet.%s_%s', p.parent, to_char(d.day, 'YYYYMMDD'))) is null
             as missing
      from unnest(array['archive', 'attempt']) p (parent),
           lateral (select (fleet.now() at time zone 'UTC')::date + n as day
                      from generate_series(0, 60) n) d)
select d.parent, coalesce(min(d.day) filter (where d.missing), max(d.day) + 1)
                   - (fleet.now() at time zone 'UTC')::date as ahead
  from days d group by d.parent order by d.parent
"""

# Rows that are kept for over three weeks belong in the default partition; others say that a
# partition was missing when they came.
_STRANDED: Final = """
select p.parent, p.early, p.late
  from (select 'archive' as parent,
               (select count(*) from (select from fleet.archive_default where keep_until < $1
                                       limit 10001) r) as early,
               (select count(*) from (select from fleet.archive_default where keep_until >= $1
                                       limit 10001) r) as late
        union all
        select 'attempt',
               (select count(*) from (select from fleet.attempt_default where keep_until < $1
                                       limit 10001) r),
               (select count(*) from (select from fleet.attempt_default where keep_until >= $1
                                       limit 10001) r)) p
 order by p.parent
"""

_HORIZON: Final = "select fleet.now() + interval '21 days' as at"


class Partitions(NamedTuple):
    """Of one table: days ahead that have a partition; rows in the default one, by their expiry."""

    parent: str
    ahead: int
    early: int
    late: int


async def partitions(executor: Executor) -> list[Partitions]:
    """Return how far ahead the partitions reach, and what the default ones had to take."""
    horizon = (await executor.fetch(_HORIZON))[0]["at"]
    ahead = {row["parent"]: row["ahead"] for row in await executor.fetch(_AHEAD)}
    return [
        Partitions(row["parent"], ahead[row["parent"]], row["early"], row["late"])
        for row in await executor.fetch(_STRANDED, horizon)
    ]


# ── the clock ────────────────────────────────────────────────────────────────────────────────────

_CLOCK: Final = "select extract(epoch from fleet.now())::float8 as at"


@dataclass(frozen=True, slots=True)
class Offset:
    """How far the database's clock is ahead of this host's, give or take ``within``."""

    seconds: Seconds
    within: Seconds


async def clock_offset(executor: Executor, tries: int = 3) -> Offset:
    """Compare the two clocks; the quickest of a few tries is the most exact."""
    best: Offset | None = None
    for _ in range(tries):
        before = time.time()
        at: float = (await executor.fetch(_CLOCK))[0]["at"]
        after = time.time()
        found = Offset(at - (before + after) / 2, (after - before) / 2)
        if best is None or found.within < best.within:
            best = found
    assert best is not None
    return best


# ── NOTIFY ───────────────────────────────────────────────────────────────────────────────────────

_NOTIFY: Final = "select pg_notify($1::text, '')"


async def hears(conn: asyncpg.Connection[asyncpg.Record], *, within: Seconds) -> bool:
    """Tell whether LISTEN hears what is notified on the same connection."""
    channel, heard = f"fleet_doctor_{uuid.uuid4().hex}", asyncio.Event()

    def hear(*_: Any) -> None:
        heard.set()

    await conn.add_listener(channel, hear)
    await conn.fetch(_NOTIFY, channel)
    try:
        async with asyncio.timeout(within):
            await heard.wait()
    except TimeoutError:
        return False
    finally:
        await conn.remove_listener(channel, hear)
    return True


# ── definitions ──────────────────────────────────────────────────────────────────────────────────

_STEPS: Final = """
select j.name::text as job, s.step ->> 'name' as step, (s.step ->> 'timeout')::float8 as timeout,
       (s.step ->> 'transactional')::bool as transactional
  from fleet.job j, jsonb_array_elements(j.definition -> 'steps') s (step)
 where j.last_seen > (select max(l.last_seen) from fleet.job l) - $1::float8 * interval '1 s'
 order by j.name, 2
"""

_QUEUES: Final = "select distinct j.queue::text as queue from fleet.job j order by 1"


class StepTimeout(NamedTuple):
    """A registered step."""

    job: str
    step: str
    timeout: Seconds
    transactional: bool

    def __str__(self) -> str:
        return f"{self.job}.{self.step} ({self.timeout:g}s)"


async def steps(executor: Executor) -> list[StepTimeout]:
    """Return the steps that were registered when anything last was."""
    found: dict[tuple[str, str], Any] = {}
    for row in await executor.fetch(_STEPS, LIVE_FOR):
        found[row["job"], row["step"]] = StepTimeout(*row)
    return list(found.values())


async def queues(executor: Executor) -> list[str]:
    """Return the queues that registered jobs name."""
    return [row["queue"] for row in await executor.fetch(_QUEUES)]
