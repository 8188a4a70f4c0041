"""Roles, tried for real: each one against every table and every function of the schema."""

from __future__ import annotations

import uuid
from urllib.parse import quote, urlsplit, urlunsplit

import asyncpg
import pytest

from fleet import Context, DatabaseError, Fleet, Retry
from fleet.store import grants
from fleet.testing import drain
from fleet.testing.plugin import scratch_database

ENQUEUE = {"enqueue", "enqueue_named", "enqueue_one", "enqueue_many", "schema_version"}
# The test databases' own, which everybody may read: see fleet.testing.clock.
CLOCK = "test_clock"


@pytest.fixture
async def role(db):
    """A role whose name needs quoting, without any rights; gone afterwards."""
    name = f'Web "app" Ö {uuid.uuid4().hex[:8]}'
    quoted = await db.fetchval("select quote_ident($1)", name)
    await db.execute(f"create role {quoted} login")
    yield name
    await db.execute(f"drop owned by {quoted}; drop role {quoted}")


def login(dsn: str, role: str) -> str:
    """Return the DSN with another user in it."""
    parts = urlsplit(dsn)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{quote(role, safe='')}@{host}"))


async def grant(db, level, role):
    async with db.transaction():
        for statement in await grants.statements(db, level, role):
            await db.execute(statement)


async def may(conn, statement: str) -> bool:
    """Tell whether the statement is let through; what else is wrong with it does not matter."""
    transaction = conn.transaction()
    await transaction.start()
    try:
        await conn.execute(statement)
    except asyncpg.InsufficientPrivilegeError:
        return False
    except asyncpg.PostgresError:
        return True
    finally:
        await transaction.rollback()
    return True


async def allowed_on_tables(db, conn) -> set[tuple[str, str]]:
    """Try every kind of access to every table, partitions included."""
    found = set()
    for table, column in await db.fetch(
        """
        select c.relname::text, quote_ident(a.attname)
          from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum = 1
         where c.relnamespace = 'fleet'::regnamespace and c.relkind in ('r', 'p', 'v', 'm', 'f')
        """
    ):
        for verb, statement in {
            "select": f"select * from fleet.{table} limit 1",
            "insert": f"insert into fleet.{table} default values",
            "update": f"update fleet.{table} set {column} = default",
            "delete": f"delete from fleet.{table}",
            "truncate": f"truncate fleet.{table}",
            "lock": f"lock table fleet.{table} in access exclusive mode nowait",
        }.items():
            if table != CLOCK and await may(conn, statement):
                found.add((verb, table))
    return found


async def allowed_functions(db, conn) -> set[str]:
    """Call every function with nulls."""
    found = set()
    for name, types in await db.fetch(
        """
        select p.proname::text, array(select format_type(t, null) from unnest(p.proargtypes) t)
          from pg_proc p where p.pronamespace = 'fleet'::regnamespace
        """
    ):
        nulls = ", ".join(f"null::{kind}" for kind in types)
        if await may(conn, f"select fleet.{name}({nulls})"):
            found.add(name)
    return found


async def allowed_sequences(db, conn) -> set[str]:
    rows = await db.fetch(
        "select relname from pg_class where relnamespace = 'fleet'::regnamespace and relkind = 'S'"
    )
    assert rows
    return {
        r["relname"] for r in rows if await may(conn, f"select nextval('fleet.{r['relname']}')")
    }


# ── what each may ────────────────────────────────────────────────────────────────────────────────


async def test_a_role_without_a_grant_may_nothing(dsn, db, role):
    conn = await asyncpg.connect(login(dsn, role))
    try:
        assert await allowed_on_tables(db, conn) == set()
        assert await allowed_functions(db, conn) == set()
        assert await allowed_sequences(db, conn) == set()
    finally:
        await conn.close()


async def test_a_client_may_enqueue_and_nothing_else(dsn, db, role):
    await grant(db, "client", role)

    conn = await asyncpg.connect(login(dsn, role))
    try:
        assert await allowed_on_tables(db, conn) == set()
        assert await allowed_functions(db, conn) == ENQUEUE
        assert await allowed_sequences(db, conn) == set()
        assert not await may(conn, "create table fleet.mine ()")
        assert not await may(conn, "alter table fleet.task add column mine int")
        task = await conn.fetchval("select fleet.enqueue('resize', '1', queue => 'images')")
    finally:
        await conn.close()
    assert await db.fetchval("select id from fleet.task") == task


async def test_a_client_enqueues_from_python_too(dsn, db, role):
    await grant(db, "client", role)
    app, resize = application(login(dsn, role))
    async with app:
        one = await resize.enqueue(1)
        many = await resize.enqueue_many([2, 3])
        unique = await resize.enqueue(4, unique="four")
        with pytest.raises(DatabaseError, match="fleet grant"):
            await one.status()

    ids = [one.id, *(handle.id for handle in many), unique.id]
    assert [row["id"] for row in await db.fetch("select id from fleet.task order by 1")] == ids


async def test_an_app_reads_and_cancels_and_writes_no_table(dsn, db, role):
    await grant(db, "app", role)

    conn = await asyncpg.connect(login(dsn, role))
    try:
        on_tables = await allowed_on_tables(db, conn)
        assert {verb for verb, _ in on_tables} == {"select"}
        assert {table for _, table in on_tables} == {
            *("task", "archive", "attempt", "buried", "job", "owner", "key", "cancellation"),
            *("override", "shutdown", "shutdown_ack", "log", "migration"),
            *("schedule", "tick", "declared"),
        }
        assert await allowed_functions(db, conn) == ENQUEUE | {
            *("schedule", "unschedule", "pause_schedule", "fire_now", "is_declared"),
            *("cancel", "cancel_where", "backlog", "now"),
        }
        assert await allowed_sequences(db, conn) == set()
    finally:
        await conn.close()


async def test_a_worker_may_everything_but_change_the_schema(dsn, db, role):
    await grant(db, "worker", role)

    conn = await asyncpg.connect(login(dsn, role))
    try:
        on_tables = await allowed_on_tables(db, conn)
        assert ("select", "migration") in on_tables
        assert ("insert", "migration") not in on_tables
        assert {"truncate"}.isdisjoint(verb for verb, _ in on_tables)
        assert {("insert", "task"), ("delete", "task"), ("insert", "archive")} <= on_tables
        every = await db.fetch(
            "select distinct proname from pg_proc where pronamespace = 'fleet'::regnamespace"
        )
        assert await allowed_functions(db, conn) == {row["proname"] for row in every}
        assert not await may(conn, "drop table fleet.task")
        assert not await may(conn, "create table fleet.mine ()")
    finally:
        await conn.close()


# ── their work ───────────────────────────────────────────────────────────────────────────────────


def application(dsn: str):
    """Return an application that needs everything a worker does, and one plain job of it."""
    app = Fleet(dsn)

    @app.job("resize", queue="images")
    async def resize(ctx: Context, image: int) -> int:
        return image

    orders = app.job("orders", queue="billing")

    @orders.step(retry=Retry(max_attempts=3, initial=1.0))
    async def take(ctx: Context, n: int) -> int:
        if ctx.attempt == 1:
            raise ConnectionError("away")
        ctx.enqueue("resize", n)
        ctx.progress(0.5, "half")
        return n

    @orders.step(transactional=True)
    async def book(ctx: Context, n: int) -> int:
        await ctx.tx.execute("select 1")
        return n + 1

    @app.job("broken", queue="billing")
    async def broken(ctx: Context, n: int) -> int:
        raise ValueError("always")

    return app, resize


async def test_a_whole_drain_as_worker_and_the_results_as_app(dsn, db, role, fleet_clock):
    await grant(db, "worker", role)
    app, _ = application(login(dsn, role))
    async with app:
        order = await app.jobs["orders"].enqueue(1, key="customer-7")
        after = await app.jobs["orders"].enqueue(2, key="customer-7", unique="two")
        dead = await app.jobs["broken"].enqueue(3)
        drained = await drain(app, clock=fleet_clock)
    assert len(drained.succeeded) == 4
    assert drained.buried == [dead.id]

    await grant(db, "app", role)
    reader, resize = application(login(dsn, role))
    async with reader:
        assert await reader.handle(order.id).result(timeout=1) == 2
        assert await reader.handle(after.id).result(timeout=1) == 3
        assert (await reader.handle(dead.id).status()).reason == "exhausted"
        waiting = await resize.enqueue(9)
        assert await waiting.cancel() == "cancelled"
    conn = await asyncpg.connect(login(dsn, role))
    try:
        # The drain needs what only a worker has.
        assert not await may(conn, f"select fleet.revive({dead.id})")
    finally:
        await conn.close()


async def test_partitions_made_after_the_grant_serve_these_roles_too(dsn, db, role, fleet_clock):
    await grant(db, "worker", role)
    before = await partitions(db)
    await fleet_clock.advance(days=60)
    conn = await asyncpg.connect(login(dsn, role))
    try:
        while "dropped" in {
            r["action"] for r in await conn.fetch("select * from fleet.maintain()")
        }:
            pass
    finally:
        await conn.close()

    app, _ = application(login(dsn, role))
    async with app:
        order = await app.jobs["orders"].enqueue(1)
        await drain(app, clock=fleet_clock)

    where = await db.fetchval(
        "select tableoid::regclass::text from fleet.archive where id = $1", order.id
    )
    assert where in await partitions(db) - before
    await grant(db, "app", role)
    reader, _ = application(login(dsn, role))
    async with reader:
        assert await reader.handle(order.id).result(timeout=1) == 2


async def partitions(db) -> set[str]:
    rows = await db.fetch(
        "select inhrelid::regclass::text as name from pg_inherits"
        " where inhparent = 'fleet.archive'::regclass"
    )
    return {row["name"] for row in rows}


# ── granting ─────────────────────────────────────────────────────────────────────────────────────


async def test_a_level_is_set_not_added(dsn, db, role):
    await grant(db, "worker", role)
    await grant(db, "client", role)

    conn = await asyncpg.connect(login(dsn, role))
    try:
        assert await allowed_on_tables(db, conn) == set()
        assert await allowed_functions(db, conn) == ENQUEUE
    finally:
        await conn.close()


async def test_roles_are_quoted_by_the_server(db, role):
    statements = await grants.statements(db, "client", role)

    quoted = '"' + role.replace('"', '""') + '"'
    assert all(statement.endswith(f" {quoted}") for statement in statements)
    assert (await grants.granted(db)) == []
    await grant(db, "client", role)
    assert (await grants.granted(db)) == [quoted]


@pytest.mark.parametrize("name", ["nobody-here", "public", "", "x; drop schema fleet cascade"])
async def test_an_unknown_role_is_said_to_be(db, name):
    with pytest.raises(DatabaseError, match="there is no role"):
        await grants.statements(db, "client", name)


async def test_the_owner_needs_no_grant(db):
    owner = await db.fetchval("select current_user")

    assert await grants.statements(db, "worker", owner) == []


async def test_only_the_owner_can_grant(dsn, db, role):
    await grant(db, "worker", role)
    conn = await asyncpg.connect(login(dsn, role))
    try:
        with pytest.raises(DatabaseError, match="who owns the schema fleet"):
            await grants.check_may_grant(conn, role)
    finally:
        await conn.close()
    await grants.check_may_grant(db, role)


async def test_without_a_schema_there_is_nothing_to_grant(server):
    with scratch_database(server.dsn, "template0") as dsn:
        conn = await asyncpg.connect(dsn)
        try:
            with pytest.raises(DatabaseError, match="fleet migrate"):
                await grants.statements(conn, "client", "anybody")
        finally:
            await conn.close()


async def test_what_runs_as_the_owner_cannot_be_led_astray_by_a_search_path(db):
    loose = await db.fetch(
        """
        select p.proname from pg_proc p
         where p.pronamespace = 'fleet'::regnamespace and p.prosecdef
           and not coalesce(p.proconfig::text like '%search_path=pg_catalog, pg_temp%', false)
        """
    )

    assert [row["proname"] for row in loose] == []


async def test_public_may_execute_nothing(db):
    rows = await db.fetch(
        """
        select p.proname
          from pg_proc p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
         where p.pronamespace = 'fleet'::regnamespace and a.grantee = 0
        """
    )

    assert [row["proname"] for row in rows] == []
