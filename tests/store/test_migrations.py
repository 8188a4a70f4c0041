"""Migrations: whole or not at all, once, by whoever comes first; old and new code beside them."""

from __future__ import annotations

import asyncio
import shutil
import uuid

import asyncpg
import pytest

from fleet import Context, Fleet, MigrationError, SchemaOutdated
from fleet.store import migrations
from fleet.store.migrations import LATEST, Migration
from fleet.testing import drain
from fleet.testing.plugin import scratch_database


@pytest.fixture
def empty(server):
    """The URL of a database without anything in it."""
    with scratch_database(server.dsn, "template0") as url:
        yield url


@pytest.fixture
async def bare(empty):
    conn = await asyncpg.connect(empty)
    try:
        yield conn
    finally:
        await conn.close()


@pytest.fixture
def folder(tmp_path):
    """A copy of the real files, to be spoilt."""
    copy = tmp_path / "migrations"
    shutil.copytree(migrations.folder(), copy)
    return copy


async def apply(conn, **options) -> list[int]:
    return [migration.version async for migration in migrations.migrate(conn, **options)]


async def version(conn) -> int:
    return max(await migrations.applied(conn), default=0)


# ── the files ────────────────────────────────────────────────────────────────────────────────────


def test_a_gap_between_the_files_is_refused(folder):
    next(folder.glob("0003_*")).unlink()

    with pytest.raises(MigrationError, match="without a gap; found 1, 2, 4"):
        migrations.read(folder)


def test_two_files_of_one_number_are_refused(folder):
    (folder / "0003_again.sql").write_text("select 1;")

    with pytest.raises(MigrationError, match="without a gap"):
        migrations.read(folder)


@pytest.mark.parametrize("name", ["7_short.sql", "0007-dash.sql", "0007_Upper.sql"])
def test_a_stray_name_is_refused(folder, name):
    (folder / name).write_text("select 1;")

    with pytest.raises(MigrationError, match=r"is called like 0007_short_name\.sql"):
        migrations.read(folder)


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(MigrationError, match="found none"):
        migrations.read(tmp_path)


def test_line_ends_do_not_change_a_checksum(folder):
    before = [m.checksum for m in migrations.read(folder)]
    for path in folder.glob("*.sql"):
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))

    assert [m.checksum for m in migrations.read(folder)] == before


# ── applying them ────────────────────────────────────────────────────────────────────────────────


async def test_they_are_applied_in_order_and_once(bare):
    assert await apply(bare) == list(range(1, LATEST + 1))
    assert await apply(bare) == []
    assert await version(bare) == LATEST


async def test_any_number_of_runs_at_once_apply_each_file_once(empty, bare):
    async def one() -> list[int]:
        conn = await asyncpg.connect(empty)
        try:
            return await apply(conn)
        finally:
            await conn.close()

    runs = await asyncio.gather(*(one() for _ in range(8)))

    assert sorted(version for run in runs for version in run) == list(range(1, LATEST + 1))
    assert await version(bare) == LATEST


async def test_a_file_changed_after_it_was_applied_is_refused(bare, folder):
    await apply(bare)
    changed = next(folder.glob("0002_*"))
    changed.write_text(changed.read_text() + "\n-- a harmless comment\n")

    with pytest.raises(MigrationError, match=r"0002_\w+\.sql was changed after it was applied"):
        await apply(bare, files=migrations.read(folder))


async def test_a_failing_file_is_rolled_back_whole_and_those_before_it_stay(bare):
    files = [
        *migrations.read(),
        Migration(LATEST + 1, "good", "create table fleet.kept ()"),
        Migration(LATEST + 2, "bad", "create table fleet.lost (); select 1/0"),
    ]

    with pytest.raises(MigrationError, match=r"_bad\.sql failed and was rolled back: division"):
        await apply(bare, files=files)

    assert await version(bare) == LATEST + 1
    assert await bare.fetchval("select to_regclass('fleet.kept') is not null")
    assert await bare.fetchval("select to_regclass('fleet.lost') is null")
    fixed = Migration(LATEST + 2, "bad", "create table fleet.lost ()")
    assert await apply(bare, files=[*files[:-1], fixed]) == [LATEST + 2]


async def test_there_is_no_way_down_and_no_way_past_the_last(bare):
    await apply(bare)

    with pytest.raises(MigrationError, match="no way down"):
        await apply(bare, to=LATEST - 1)
    with pytest.raises(MigrationError, match=f"versions 1 to {LATEST}"):
        await apply(bare, to=LATEST + 1)


async def test_the_printed_script_does_the_same(bare):
    await bare.execute(migrations.script(migrations.read()))

    assert await apply(bare) == []
    await migrations.require(bare)


@pytest.mark.parametrize("version_now", range(1, LATEST + 1))
async def test_any_version_can_be_stopped_at_and_gone_on_from(bare, version_now):
    files = migrations.read()
    assert await apply(bare, to=version_now) == list(range(1, version_now + 1))

    await bare.execute(migrations.script(files, after=version_now))

    assert await version(bare) == LATEST
    assert await apply(bare) == []


@pytest.mark.parametrize("to", range(1, LATEST + 1))
async def test_a_script_may_end_at_any_version(bare, to):
    await bare.execute(migrations.script(migrations.read()[:to]))
    assert await version(bare) == to


@pytest.mark.parametrize("after", [2, 4])
async def test_a_script_refuses_a_database_at_another_version(bare, after):
    await apply(bare, to=3)
    with pytest.raises(asyncpg.RaiseError, match=f"from version {after}.*is at version 3"):
        await bare.execute(migrations.script(migrations.read(), after=after))
    assert await version(bare) == 3


async def test_the_printed_script_goes_on_from_a_version(bare):
    files = migrations.read()
    await bare.execute(migrations.script(files))
    more = [*files, Migration(LATEST + 1, "more", "create table fleet.more ();")]

    script = migrations.script(more, after=LATEST)

    assert "0001_" not in script
    await bare.execute(script)
    assert await version(bare) == LATEST + 1


# ── who may ──────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
async def nobody(bare):
    """A role without any rights."""
    name = f"owner_{uuid.uuid4().hex[:8]}"
    await bare.execute(f"create role {name} login")
    yield name
    await bare.execute(f"drop owned by {name} cascade; drop role {name}")


async def test_an_owner_of_the_schema_needs_no_right_on_the_database(empty, bare, nobody):
    await bare.execute(f"create schema fleet authorization {nobody}")

    conn = await asyncpg.connect(empty, user=nobody)
    try:
        assert await apply(conn) == list(range(1, LATEST + 1))
        await migrations.require(conn)
        assert await conn.fetchval("select fleet.enqueue('job', queue => 'queue')") == 1
    finally:
        await conn.close()


async def test_the_printed_script_needs_no_right_on_the_database_either(empty, bare, nobody):
    await bare.execute(f"create schema fleet authorization {nobody}")

    conn = await asyncpg.connect(empty, user=nobody)
    try:
        await conn.execute(migrations.script(migrations.read()))
        await migrations.require(conn)
    finally:
        await conn.close()


async def test_without_a_schema_and_the_right_to_make_one_nothing_is_changed(empty, nobody):
    conn = await asyncpg.connect(empty, user=nobody)
    try:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await apply(conn)
        assert await migrations.applied(conn) == {}
    finally:
        await conn.close()


# ── old and new code ─────────────────────────────────────────────────────────────────────────────


async def test_code_refuses_a_database_without_the_schema(bare):
    with pytest.raises(SchemaOutdated, match=r"has not been created.*Run: fleet migrate"):
        await migrations.require(bare)


async def test_new_code_refuses_an_older_schema_with_the_command_to_type(db):
    with pytest.raises(
        SchemaOutdated, match=rf"is at version {LATEST}.*needs {LATEST + 1}.*fleet migrate"
    ):
        await migrations.require(db, LATEST + 1)


async def test_old_code_works_on_a_newer_schema(dsn, db):
    more = """
    alter table fleet.task add column colour text;
    alter table fleet.archive add column colour text default 'blue';
    create table fleet.later (id bigint primary key);
    """
    assert await apply(db, files=[*migrations.read(), Migration(LATEST + 1, "later", more)]) == [
        LATEST + 1
    ]

    app = Fleet(dsn)

    @app.job("double")
    async def double(ctx: Context, n: int) -> int:
        return 2 * n

    async with app:
        handle = await double.enqueue(21)
        await drain(app)
        assert await handle.result(timeout=1) == 42
    assert await apply(db) == []


async def test_u21_all_of_it_is_in_a_schema_of_its_own(db):
    outside = await db.fetch(
        "select n.nspname, c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace"
        " where n.nspname not in ('fleet', 'information_schema') and n.nspname !~ '^pg_'"
    )
    assert outside == []
    assert await db.fetchval("select count(*) from pg_tables where schemaname = 'fleet'") > 10
