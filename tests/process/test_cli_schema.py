"""``fleet migrate`` and ``fleet grant``, as real processes on a real server."""

from __future__ import annotations

import json
import uuid
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from fleet.store.migrations import LATEST
from tests.process.commands import Commands

# ── migrate ──────────────────────────────────────────────────────────────────────────────────────


def test_migrate_shows_what_it_applies_and_says_the_version(folder, empty):
    fleet = Commands(folder, empty)
    assert fleet("migrate", "--check", code=1).stdout.count("pending") == LATEST

    said = fleet("migrate").stdout

    assert said.count("applied 0") == LATEST
    assert f"at version {LATEST} now" in said
    assert "nothing to do" in fleet("migrate").stdout
    assert fleet.json("migrate", "--check") == {"version": LATEST, "pending": []}


def test_migrate_from_several_processes_at_once_applies_each_file_once(folder, empty):
    fleet = Commands(folder, empty)
    running = [fleet.start("migrate", "--json") for _ in range(4)]
    reports = [json.loads(process.communicate(timeout=60)[0]) for process in running]

    assert [process.returncode for process in running] == [0] * 4
    applied = [name for report in reports for name in report["applied"]]
    assert len(applied) == len(set(applied)) == LATEST
    assert {report["version"] for report in reports} == {LATEST}


def test_migrate_stops_where_it_is_told_and_the_rest_refuses_until_it_goes_on(folder, empty):
    fleet = Commands(folder, empty)
    assert fleet.json("migrate", "--to", LATEST - 1)["version"] == LATEST - 1
    assert fleet.json("migrate", "--to", LATEST - 1)["applied"] == []

    said = fleet("status", code=1)
    assert (
        f"is at version {LATEST - 1}, this release needs {LATEST}. Run: fleet migrate"
        in said.stderr
    )

    assert len(fleet.json("migrate")["applied"]) == 1
    fleet("status")


async def test_migrate_prints_sql_for_other_tools(folder, empty):
    everything = Commands(folder, None)("migrate", "--print").stdout
    conn = await asyncpg.connect(empty)
    try:
        await conn.execute(everything)
    finally:
        await conn.close()

    fleet = Commands(folder, empty)
    assert fleet.json("migrate", "--check")["pending"] == []
    assert "nothing to do" in fleet("migrate", "--print").stdout
    later = fleet("migrate", "--print", "--from", LATEST - 1).stdout
    assert later.count("insert into fleet.migration") == 1
    early = fleet("migrate", "--print", "--from", 0, "--to", 2).stdout
    assert early.count("insert into fleet.migration") == 2
    assert "versions 1 to" in fleet("migrate", "--print", "--from", 99, code=1).stderr


def test_migrate_prints_everything_where_the_database_is_away(folder):
    said = Commands(folder, "postgresql://me:hunter2@127.0.0.1:1/none")("migrate", "--print")

    assert "from version 0" in said.stdout
    assert "Warning" in said.stderr
    assert "hunter2" not in said.stdout + said.stderr


async def test_migrate_refuses_a_file_that_was_changed(fleet, db):
    await db.execute("update fleet.migration set checksum = 'other' where version = 2")

    for args in (["migrate"], ["migrate", "--check"], ["migrate", "--print"]):
        assert "was changed after it was applied" in fleet(*args, code=1).stderr


async def test_migrate_without_the_right_to_says_what_is_needed(folder, empty):
    name = f"owner_{uuid.uuid4().hex[:8]}"
    conn = await asyncpg.connect(empty)
    try:
        await conn.execute(f"create role {name} login")
        parts = urlsplit(empty)
        host = parts.netloc.rpartition("@")[2]
        fleet = Commands(folder, urlunsplit(parts._replace(netloc=f"{name}@{host}")))

        said = fleet("migrate", code=1).stderr
        assert f"CREATE SCHEMA fleet AUTHORIZATION {name}" in said

        await conn.execute(f"create schema fleet authorization {name}")
        assert fleet.json("migrate")["version"] == LATEST
    finally:
        await conn.execute(f"drop owned by {name} cascade; drop role {name}")
        await conn.close()


# ── grant ────────────────────────────────────────────────────────────────────────────────────────


async def test_grant_prints_or_does(fleet, db):
    role = f'Ab "c" {uuid.uuid4().hex[:8]}'
    quoted = await db.fetchval("select quote_ident($1)", role)
    await db.execute(f"create role {quoted} login")
    try:
        printed = fleet("grant", "client", role, "--print").stdout
        assert f"grant usage on schema fleet to {quoted};" in printed
        assert not await db.fetchval("select has_schema_privilege($1, 'fleet', 'usage')", role)

        assert "may enqueue, and nothing else" in fleet("grant", "client", role).stdout
        assert await db.fetchval("select has_schema_privilege($1, 'fleet', 'usage')", role)
        fleet("grant", "worker", role)
        assert await db.fetchval("select has_table_privilege($1, 'fleet.task', 'delete')", role)

    finally:
        await db.execute(f"drop owned by {quoted}; drop role {quoted}")


async def test_migrate_reminds_of_grants(folder, empty):
    fleet = Commands(folder, empty)
    fleet("migrate", "--to", LATEST - 1)
    role = f"Ab c {uuid.uuid4().hex[:8]}"
    conn = await asyncpg.connect(empty)
    try:
        await conn.execute(f'create role "{role}"; grant usage on schema fleet to "{role}"')

        said = fleet("migrate").stdout

        assert f'fleet grant client|app|worker ROLE for "{role}"' in said
    finally:
        await conn.execute(f'drop owned by "{role}"; drop role "{role}"')
        await conn.close()


async def test_grant_to_the_owner_and_by_another(fleet, db, dsn):
    owner = await db.fetchval("select current_user")
    assert "may do everything already" in fleet("grant", "worker", owner).stdout

    role = f"stranger_{uuid.uuid4().hex[:8]}"
    await db.execute(f"create role {role} login")
    try:
        fleet("grant", "worker", role)
        parts = urlsplit(dsn)
        host = parts.netloc.rpartition("@")[2]
        stranger = Commands(fleet.folder, urlunsplit(parts._replace(netloc=f"{role}@{host}")))
        assert "who owns the schema fleet" in stranger("grant", "app", role, code=1).stderr
    finally:
        await db.execute(f"drop owned by {role}; drop role {role}")
