"""What ``fleet doctor`` looks at: each check asks, judges, and says what to do.

ok        as it should be
note      worth knowing; nothing is wrong
warning   works today, and will hurt
error     tasks do not run, or cannot be enqueued

``about`` is the section of docs/runbook.md that says more.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import asyncpg

from fleet.cli.common import Database, connected, duration
from fleet.errors import DatabaseUnavailable, MigrationError
from fleet.model import Seconds
from fleet.settings import RunSettings
from fleet.store import health, migrations
from fleet.store.overview import Overview, overview

Severity: TypeAlias = Literal["ok", "note", "warning", "error"]

OLDEST_SERVER: Final = 15
HOST_CONNECTIONS: Final = 4  # claims, writes, beat, listen
DEAD_ROWS: Final = 10_000  # more than that, and more than are live: vacuum does not keep up
DAYS_AHEAD: Final = 3
RETENTION_DAYS: Final = 14
CLOCK_NOTE: Final[Seconds] = 1.0
CLOCK_WARNING: Final[Seconds] = 30.0
SHORT_STATEMENTS: Final[Seconds] = 5.0
ECHO: Final[Seconds] = 2.0


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    about: str
    severity: Severity
    says: str
    do: str | None = None


@dataclass(slots=True)
class Visit:
    """What the checks are about. ``settings`` are None if the file cannot be read."""

    db: Database
    settings: RunSettings | None
    patience: Seconds
    server: health.Server
    seen: Overview

    @property
    def conn(self) -> asyncpg.Connection[asyncpg.Record]:
        """The connection."""
        return self.db.conn


Check: TypeAlias = Callable[[Visit], Awaitable[list[Finding]]]


def ok(about: str, says: str) -> list[Finding]:
    """Return the finding that there is nothing to find."""
    return [Finding(about, "ok", says)]


async def examine(
    db: Database, settings: RunSettings | None, patience: Seconds, checks: Sequence[Check]
) -> AsyncIterator[Finding]:
    """Yield the findings in order; a server that cannot serve ends it."""
    server = await health.server(db.conn)
    for finding in _server(server):
        yield finding
    if server.major < OLDEST_SERVER:
        return
    version = await _schema(db, server)
    yield version
    if version.severity == "error":
        return
    role = await _role(db, server)
    yield role
    if role.severity == "error":
        return
    try:
        seen = await overview(db.conn)
    except asyncpg.InsufficientPrivilegeError as error:
        yield _may_not_look("role", error)
        return
    visit = Visit(db, settings, patience, server, seen)
    for check in checks:
        try:
            for finding in await check(visit):
                yield finding
        except asyncpg.InsufficientPrivilegeError as error:
            yield _may_not_look(check.__name__.replace("_", "-"), error)


def _may_not_look(about: str, error: Exception) -> Finding:
    return Finding(
        about,
        "note",
        f"this role may not look at everything: {error}",
        "run it as the schema's owner, or as a role with fleet grant app",
    )


# ── the server ───────────────────────────────────────────────────────────────────────────────────


def _server(found: health.Server) -> list[Finding]:
    if found.major < OLDEST_SERVER:
        return [
            Finding(
                "server",
                "error",
                f"PostgreSQL {found.version} is too old: Fleet needs {OLDEST_SERVER} or newer",
                "upgrade the server",
            )
        ]
    if found.read_only:
        return [
            Finding(
                "server",
                "error",
                f"PostgreSQL {found.version} takes no writes: a standby, or "
                f"default_transaction_read_only",
                "name the primary in the database URL, or add target_session_attrs=read-write",
            )
        ]
    return ok("server", f"PostgreSQL {found.version}")


async def _schema(db: Database, server: health.Server) -> Finding:
    if not server.has_schema:
        says = "there is no schema fleet in this database"
        return Finding("schema", "error", says, "fleet migrate")
    try:
        version = await migrations.version(db.conn)
        done = await migrations.applied(db.conn)
        migrations.pending(migrations.read(), done)
    except MigrationError as error:
        return Finding("schema", "error", str(error), "restore the files, then fleet migrate")
    except asyncpg.InsufficientPrivilegeError as error:
        return _may_not_look("schema", error)
    if version < migrations.LATEST:
        says = f"the schema is at version {version}, this release needs {migrations.LATEST}"
        return Finding("schema", "error", says, "fleet migrate")
    if version > migrations.LATEST:
        says = f"the schema is at version {version}, newer than this release: that is fine"
        return Finding("schema", "note", says, "deploy the newer release here too")
    return Finding("schema", "ok", f"version {version}")


async def _role(db: Database, server: health.Server) -> Finding:
    level = await health.level(db.conn)
    if level == "nothing":
        says = f"the role {server.role} may do nothing in the schema fleet"
        return Finding("role", "error", says, f"as the owner: fleet grant worker {server.role}")
    if level in ("client", "app"):
        may = "only enqueue" if level == "client" else "enqueue, look and cancel"
        says = f"the role {server.role} may {may}; it cannot run tasks"
        do = f"if it is meant to run them: fleet grant worker {server.role}"
        return Finding("role", "note", says, do)
    return Finding("role", "ok", f"{server.role} ({level})")


async def durability(visit: Visit) -> list[Finding]:
    """What is committed must survive a crash of the server."""
    found = await health.settings(visit.conn)
    off = [name for name in ("fsync", "full_page_writes") if found[name].value == "off"]
    findings = []
    if off:
        says = f"{' and '.join(off)} off: a crash of the server may destroy the database"
        do = f"set {' and '.join(f'{name} = on' for name in off)} in postgresql.conf"
        findings.append(Finding("durability", "warning", says, do))
    if found["synchronous_commit"].value == "off":
        says = (
            "synchronous_commit is off: after a crash of the server, tasks that were enqueued may "
            "be gone and tasks that ended may run again"
        )
        do = "set synchronous_commit = on, for this database or this role"
        findings.append(Finding("durability", "warning", says, do))
    return findings or ok("durability", "commits are durable")


async def timeouts(visit: Visit) -> list[Finding]:
    """The server's own timeouts must be longer than what they would cut."""
    found, findings = await health.settings(visit.conn), []
    steps = [step for step in await health.steps(visit.conn) if step.transactional]
    for name in ("idle_in_transaction_session_timeout", "transaction_timeout"):
        limit = found[name].seconds if name in found else None
        cut = [str(step) for step in steps if limit and step.timeout > limit]
        if limit and cut:
            says = f"{name} is {duration(limit)}, shorter than the timeout of {_some(cut)}"
            do = "give these steps a shorter timeout, or the workers' role a longer one"
            findings.append(Finding("timeouts", "warning", says, do))
    statement = found["statement_timeout"].seconds
    if statement and statement < SHORT_STATEMENTS:
        says = f"statement_timeout is {duration(statement)} for this role: large batches may fail"
        do = f"in psql: alter role {visit.server.role} set statement_timeout = 0"
        findings.append(Finding("timeouts", "warning", says, do))
    return findings or ok("timeouts", "none of the server's timeouts cuts a step short")


async def connections(visit: Visit) -> list[Finding]:
    """Every host holds a handful of connections."""
    found = await health.connections(visit.conn)
    hosts = sum(owner.alive for owner in visit.seen.owners)
    do = "raise max_connections (or the limit of the role or the database), or run fewer hosts"
    if hosts * HOST_CONNECTIONS > found.most:
        says = (
            f"{hosts} hosts hold {HOST_CONNECTIONS} connections each, and {found.most} are allowed"
        )
        return [Finding("connections", "warning", says, do)]
    if found.room < HOST_CONNECTIONS:
        says = f"room for {max(found.room, 0)} more of {found.most}; a host needs 4"
        return [Finding("connections", "warning", says, do)]
    return ok("connections", f"room for {found.room} more of {found.most}")


async def pooler(visit: Visit) -> list[Finding]:
    """LISTEN must hear what is notified: notify ourselves."""
    listen_url = visit.settings.supervisor.listen_url if visit.settings else None
    try:
        if listen_url is not None:
            async with connected(listen_url.url) as conn:
                hears = await health.hears(conn, within=ECHO)
        else:
            hears = await health.hears(visit.conn, within=ECHO)
    except DatabaseUnavailable as error:
        return [Finding("pooler", "error", f"supervisor.listen_url: {error}", "correct it")]
    if hears:
        return ok("pooler", "LISTEN hears NOTIFY")
    says = "LISTEN is accepted and nothing arrives: there is a pooler in transaction mode between"
    do = "set supervisor.listen_url to go past the pooler; without it Fleet polls once a beat"
    return [Finding("pooler", "warning", says, do)]


async def clock(visit: Visit) -> list[Finding]:
    """The database's clock rules; others only make logs hard to read together."""
    found = await health.clock_offset(visit.conn)
    way = "ahead of" if found.seconds > 0 else "behind"
    says = f"the database's clock is {duration(abs(found.seconds))} {way} this host's"
    size = abs(found.seconds) - found.within
    if size < CLOCK_NOTE:
        return ok("clock", f"{says} (± {duration(found.within)})")
    severity: Severity = "warning" if size >= CLOCK_WARNING else "note"
    return [Finding("clock", severity, says, "run NTP on both; at= is compared with the database")]


# ── the tables ───────────────────────────────────────────────────────────────────────────────────


async def autovacuum(visit: Visit) -> list[Finding]:
    """Claims slow down where dead rows pile up."""
    findings, table = [], await health.vacuum(visit.conn)
    if (await health.settings(visit.conn))["autovacuum"].value == "off":
        says = "autovacuum is off: claims will slow down, and the server will stop one day"
        findings.append(Finding("autovacuum", "warning", says, "set autovacuum = on"))
    if not table.enabled:
        says = "autovacuum is turned off for fleet.task"
        do = "in psql: alter table fleet.task reset (autovacuum_enabled)"
        findings.append(Finding("autovacuum", "warning", says, do))
    when = "never" if table.vacuumed_at is None else f"{table.vacuumed_at:%Y-%m-%d %H:%M}"
    says = f"fleet.task: {table.live:,} rows, {table.dead:,} dead, last vacuum {when}"
    if table.dead > max(DEAD_ROWS, table.live):
        do = "look for who holds a snapshot (below); else: vacuum fleet.task"
        findings.append(Finding("autovacuum", "warning", says, do))
    return findings or ok("autovacuum", says)


async def snapshot(visit: Visit) -> list[Finding]:
    """Who holds an old snapshot keeps vacuum from removing anything since."""
    findings = []
    if not visit.server.sees_sessions:
        says = f"the role {visit.server.role} sees no sessions but its own"
        do = f"grant pg_read_all_stats to {visit.server.role}"
        findings.append(Finding("snapshot", "note", says, do))
    for held in await health.holders(visit.conn):
        old = held.age is None or held.age > visit.patience
        idle = held.idle is not None and (held.state or "").startswith("idle in transaction")
        if old and held.holds and not (idle and (held.idle or 0) > visit.patience):
            since = "" if held.age is None else f" for {duration(held.age)}"
            says = f"{held} holds back vacuum{since}"
            findings.append(Finding("snapshot", "warning", says, _end(held)))
    return findings or ok("snapshot", "nobody holds an old snapshot")


async def idle_in_transaction(visit: Visit) -> list[Finding]:
    """An open transaction that does nothing holds locks and snapshots for nothing."""
    findings = []
    for held in await health.holders(visit.conn):
        waits = (held.state or "").startswith("idle in transaction")
        if waits and (held.idle or 0) > visit.patience:
            says = f"{held} has been idle in transaction for {duration(held.idle or 0)}"
            findings.append(Finding("idle-in-transaction", "warning", says, _end(held)))
    return findings or ok("idle-in-transaction", "no session sits in an open transaction")


def _end(held: health.Holder) -> str:
    if held.kind == "prepared transaction":
        return f"commit prepared '{held.who}', or rollback prepared '{held.who}'"
    if held.kind == "replication slot":
        return f"start its reader, or select pg_drop_replication_slot('{held.who}')"
    return f"find out what it does; select pg_terminate_backend({held.who}) ends it"


async def partitions(visit: Visit) -> list[Finding]:
    """The history needs a partition for every day on which something may go."""
    findings, found = [], await health.partitions(visit.conn)
    for table in found:
        ahead = table.ahead - RETENTION_DAYS - 1
        if ahead < DAYS_AHEAD:
            says = f"fleet.{table.parent} has partitions for {max(ahead, 0)} more days"
            do = "in psql: select * from fleet.maintain(), until it says neither dropped nor busy"
            findings.append(Finding("partitions", "warning", says, do))
        if table.early:
            says = f"{table.early:,} rows in fleet.{table.parent}_default that have no day there"
            do = "in psql: select * from fleet.maintain(); they go when their day is over"
            findings.append(Finding("partitions", "warning", says, do))
        elif table.late:
            says = f"{table.late:,} rows in fleet.{table.parent}_default, kept for over 3 weeks"
            findings.append(Finding("partitions", "note", says))
    return findings or ok("partitions", f"{found[0].ahead} days ahead")


def _some(names: list[str], most: int = 5) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


CHECKS: Final[tuple[Check, ...]] = (
    durability,
    timeouts,
    connections,
    pooler,
    clock,
    autovacuum,
    snapshot,
    idle_in_transaction,
    partitions,
)
