"""What a role may do with the schema: each level has all of the one before.

    client   enqueue, and nothing else: it sees no table
    app      also status, result, cancel and schedules: reads tables, writes none
    worker   runs tasks: reads and writes, every function

A level is set, not added: a role that was a worker and is granted ``client`` can only enqueue from
then on. Archive and history are reached through their parents, so that partitions made later need
no grant of their own. Names come from the catalogue and are quoted by the server.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

from fleet.errors import DatabaseError
from fleet.store.executor import Executor

Level: TypeAlias = Literal["client", "app", "worker"]

_ENQUEUE: Final = ("enqueue", "enqueue_named", "enqueue_one", "enqueue_many", "schema_version")
_SCHEDULES: Final = ("schedule", "unschedule", "pause_schedule", "fire_now", "is_declared")
_CONTROL: Final = (*_ENQUEUE, *_SCHEDULES, "cancel", "cancel_where", "backlog", "now")
_READ: Final = (
    *("task", "archive", "attempt", "buried", "job", "owner", "key", "cancellation"),
    *("override", "shutdown", "shutdown_ack", "log", "migration", "schedule", "tick", "declared"),
)

_ROLE: Final = """
select quote_ident(r.rolname) as role,
       r.oid = n.nspowner as owns,
       pg_has_role(current_user, n.nspowner, 'usage') as may_grant,
       quote_ident(pg_get_userbyid(n.nspowner)) as owner
  from pg_namespace n
  left join pg_roles r on r.rolname = $1::text
 where n.nspname = 'fleet'
"""

# Functions by their argument types, so that a second one of the same name is not ambiguous.
_FUNCTIONS: Final = """
select p.proname::text as name,
       format('fleet.%I(%s)', p.proname, oidvectortypes(p.proargtypes)) as what
  from pg_proc p
 where p.pronamespace = 'fleet'::regnamespace
 order by 2
"""

_TABLES: Final = """
select c.relname::text as name, format('fleet.%I', c.relname) as what
  from pg_class c
 where c.relnamespace = 'fleet'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
 order by 2
"""

_GRANTED: Final = """
select quote_ident(r.rolname) as role
  from pg_namespace n, aclexplode(n.nspacl) acl
  join pg_roles r on r.oid = acl.grantee
 where n.nspname = 'fleet' and r.oid <> n.nspowner and acl.privilege_type = 'USAGE'
 order by 1
"""


async def statements(executor: Executor, level: Level, role: str) -> list[str]:
    """Return the SQL that gives ``role`` exactly this level; none for the owner, who has it all."""
    found = await executor.fetch(_ROLE, role)
    if not found:
        raise DatabaseError("there is no schema fleet in this database. Run: fleet migrate")
    if found[0]["role"] is None:
        raise DatabaseError(
            f"there is no role {role!r} on this server. Roles are yours to make: "
            f"CREATE ROLE … LOGIN PASSWORD …, then run this again."
        )
    if found[0]["owns"]:
        return []
    name: str = found[0]["role"]
    functions = [(row["name"], row["what"]) for row in await executor.fetch(_FUNCTIONS)]
    tables = [(row["name"], row["what"]) for row in await executor.fetch(_TABLES)]
    return [
        *(
            f"revoke all on {everything} from {name}"
            for everything in (
                "all tables in schema fleet",
                "all sequences in schema fleet",
                "all functions in schema fleet",
                "schema fleet",
            )
        ),
        f"grant usage on schema fleet to {name}",
        *_LEVELS[level](name, functions, tables),
    ]


async def check_may_grant(executor: Executor, role: str) -> None:
    """Raise unless the connection is the schema's owner: PostgreSQL itself would only warn."""
    found = await executor.fetch(_ROLE, role)
    if found and not found[0]["may_grant"]:
        raise DatabaseError(
            f"only {found[0]['owner']}, who owns the schema fleet, can grant rights on it: "
            f"connect as that role"
        )


async def granted(executor: Executor) -> list[str]:
    """Return the roles that were given access to the schema, quoted as identifiers."""
    return [row["role"] for row in await executor.fetch(_GRANTED)]


_Named: TypeAlias = Sequence[tuple[str, str]]


def _client(role: str, functions: _Named, _: _Named) -> list[str]:
    return _execute(role, [what for name, what in functions if name in _ENQUEUE])


def _app(role: str, functions: _Named, tables: _Named) -> list[str]:
    return [
        *_execute(role, [what for name, what in functions if name in _CONTROL]),
        _on_tables("select", role, [what for name, what in tables if name in _READ]),
    ]


def _worker(role: str, functions: _Named, tables: _Named) -> list[str]:
    # What was applied to the schema is the owner's to write.
    own = [what for name, what in tables if name != "migration"]
    return [
        *_execute(role, [what for _, what in functions]),
        _on_tables("select", role, [what for _, what in tables]),
        _on_tables("insert, update, delete", role, own),
        f"grant usage on all sequences in schema fleet to {role}",
    ]


def _execute(role: str, functions: Sequence[str]) -> list[str]:
    return [f"grant execute on function {function} to {role}" for function in functions]


def _on_tables(rights: str, role: str, tables: Sequence[str]) -> str:
    return f"grant {rights} on {', '.join(tables)} to {role}"


_LEVELS: Final = {"client": _client, "app": _app, "worker": _worker}
