"""The schema's versions: numbered SQL files, applied in order, each in a transaction of its own.

Code needs the schema to be at least at ``LATEST``. A newer schema is fine: migrations only ever
expand what older releases use, so old workers and clients run on it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import asyncpg

from fleet.errors import MigrationError, SchemaOutdated

# Any number will do as long as it never changes: it is what concurrent runs serialise on.
_LOCK: Final = 4_702_394_921_427_289_928

_BOOTSTRAP: Final = """
create table if not exists fleet.migration (
    version    int primary key,
    name       text not null,
    checksum   text not null,
    applied_at timestamptz not null default now()
)
"""

# CREATE SCHEMA IF NOT EXISTS asks for the right to create one even where it exists, and the owner
# of a schema in a managed database often has no such right.
_SCHEMA: Final = """
do $$ begin
    if not exists (select from pg_namespace where nspname = 'fleet') then
        create schema fleet;
    end if;
end $$
"""

# The partitions of the coming weeks; a version that is older than this function has none.
_MAINTAIN: Final = """
do $$ begin
    if to_regprocedure('fleet.maintain()') is not null then
        perform fleet.maintain();
    end if;
end $$
"""

_FROM: Final = """
do $$ begin
    if (select coalesce(max(version), 0) from fleet.migration) <> {after} then
        raise exception 'this script goes on from version {after}, the database is at version %',
                        (select coalesce(max(version), 0) from fleet.migration)
            using hint = 'Print the one for this database: fleet migrate --print';
    end if;
end $$
"""

_APPLIED: Final = "select version, name, checksum from fleet.migration order by version"

_RECORD: Final = "insert into fleet.migration (version, name, checksum) values ($1, $2, $3)"

_VERSION: Final = "select fleet.schema_version() as version"


@dataclass(frozen=True, slots=True)
class Migration:
    """One file: ``0003_enqueue.sql`` is version 3, name ``enqueue``."""

    version: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        """SHA-256 of the text, whatever its line ends."""
        return hashlib.sha256(self.sql.encode()).hexdigest()

    @property
    def filename(self) -> str:
        """The name of the file it was read from."""
        return f"{self.version:04}_{self.name}.sql"


def folder() -> Path:
    """Return where the files are: inside an installed wheel, beside the package in a checkout."""
    package = Path(__file__).resolve().parent.parent
    inside = package / "migrations"
    return inside if inside.is_dir() else package.parent / "migrations"


def read(directory: Path | None = None) -> list[Migration]:
    """Read the files in order; a gap, a double or a stray name is an error."""
    directory = directory or folder()
    found = []
    for path in sorted(directory.glob("*.sql")):
        match = re.fullmatch(r"(\d{4})_([a-z0-9_]+)\.sql", path.name)
        if match is None:
            raise MigrationError(f"{path.name}: a migration is called like 0007_short_name.sql")
        found.append(Migration(int(match[1]), match[2], path.read_text(encoding="utf-8")))
    if not found or [m.version for m in found] != list(range(1, len(found) + 1)):
        versions = ", ".join(str(m.version) for m in found) or "none"
        raise MigrationError(
            f"{directory}: versions must be 1, 2, 3, … without a gap; found {versions}"
        )
    return found


LATEST: Final = len(list(folder().glob("*.sql")))


async def version(conn: asyncpg.Connection[asyncpg.Record]) -> int:
    """Return the version of the schema."""
    found: int = (await conn.fetch(_VERSION))[0]["version"]
    return found


async def require(conn: asyncpg.Connection[asyncpg.Record], needed: int = LATEST) -> None:
    """Raise ``SchemaOutdated``, with the command to type, unless the schema is recent enough."""
    try:
        found = await version(conn)
    except (asyncpg.InvalidSchemaNameError, asyncpg.UndefinedFunctionError):
        raise SchemaOutdated(0, needed) from None
    if found < needed:
        raise SchemaOutdated(found, needed)


async def applied(conn: asyncpg.Connection[asyncpg.Record]) -> dict[int, tuple[str, str]]:
    """Return version → (name, checksum) of what this database has; empty if it has nothing."""
    try:
        rows = await conn.fetch(_APPLIED)
    except (asyncpg.InvalidSchemaNameError, asyncpg.UndefinedTableError):
        return {}
    return {row["version"]: (row["name"], row["checksum"]) for row in rows}


def pending(
    files: Sequence[Migration], done: dict[int, tuple[str, str]], to: int | None = None
) -> list[Migration]:
    """Return what is still to apply, after checking that what was applied is what we have."""
    for migration in files:
        if migration.version in done and done[migration.version][1] != migration.checksum:
            raise MigrationError(
                f"{migration.filename} was changed after it was applied to this database. "
                f"Restore the file as it was, and put the change into a new migration."
            )
    target = files[-1].version if to is None else to
    if not 1 <= target <= files[-1].version:
        raise MigrationError(f"--to {target}: this release has versions 1 to {files[-1].version}")
    newest = max(done, default=0)
    if to is not None and newest > to:
        raise MigrationError(
            f"--to {to}: the database is at version {newest} already, and there is no way down. "
            f"Older releases run on a newer schema as it is."
        )
    return [m for m in files if m.version not in done and m.version <= target]


async def migrate(
    conn: asyncpg.Connection[asyncpg.Record],
    *,
    to: int | None = None,
    files: Sequence[Migration] | None = None,
    partitions: bool = True,
) -> AsyncIterator[Migration]:
    """Apply what is missing and yield each migration once it is committed.

    Any number of these may run at once: each file is applied under a lock, by whoever gets it.
    ``partitions`` makes those of the coming weeks, too; without them the default ones serve.
    """
    files = files if files is not None else read()
    for migration in pending(files, await applied(conn), to):
        # Read committed: whoever waited for the lock must see what was applied meanwhile.
        async with conn.transaction(isolation="read_committed"):
            await conn.execute("select pg_advisory_xact_lock($1)", _LOCK)
            await conn.execute(_SCHEMA)
            await conn.execute(_BOOTSTRAP)
            if migration not in pending(files, await applied(conn), to):
                continue  # somebody else was faster
            try:
                await conn.execute(migration.sql)
            except asyncpg.PostgresError as error:
                raise MigrationError(
                    f"{migration.filename} failed and was rolled back: {error}"
                ) from error
            await conn.execute(_RECORD, migration.version, migration.name, migration.checksum)
        yield migration
    if partitions:
        await conn.execute(_MAINTAIN)


def script(files: Sequence[Migration], *, after: int = 0) -> str:
    """Return everything past version ``after`` as one SQL script, for other migration tools."""
    begin = (_SCHEMA, _BOOTSTRAP, _FROM.format(after=after))
    parts = [statement.strip() + ";" for statement in begin]
    for migration in files:
        if migration.version > after:
            parts += [
                f"-- {migration.filename}",
                migration.sql.strip(),
                f"insert into fleet.migration (version, name, checksum) values "
                f"({migration.version}, '{migration.name}', '{migration.checksum}');",
            ]
    parts.append(_MAINTAIN.strip() + ";")
    return "\n\n".join(parts) + "\n"
