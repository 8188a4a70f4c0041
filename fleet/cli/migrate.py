"""``fleet migrate``: bring the schema up to date, or say what that would take."""

from __future__ import annotations

import time
from typing import Any

import asyncpg
import click

from fleet.cli.common import Database, Where, as_json, database_options, out, print_json, run, warn
from fleet.errors import DatabaseUnavailable, MigrationError, NoDatabase
from fleet.store import grants, health, migrations
from fleet.store.migrations import Migration


@click.command()
@database_options
@click.option("--to", type=click.IntRange(min=1), metavar="N", help="Stop at this version.")
@click.option("--check", is_flag=True, help="Change nothing; exit 1 if something is pending.")
@click.option("--print", "print_sql", is_flag=True, help="Print SQL for another migration tool.")
@click.option(
    "--from",
    "after",
    type=click.IntRange(min=0),
    metavar="N",
    help="With --print: the version to start from, without looking into a database.",
)
@as_json
def migrate(
    where: Where, *, to: int | None, check: bool, print_sql: bool, after: int | None, as_json: bool
) -> None:
    """Create the schema fleet, or bring it up to date.

    Safe to run from many places at once, and to run again. Older releases go on working on the
    newer schema, so migrate first and deploy second.
    """
    if after is not None and not print_sql:
        raise click.UsageError("--from goes with --print")
    if print_sql and (check or as_json):
        raise click.UsageError("--print goes with neither --check nor --json")
    files = migrations.read()
    if print_sql:
        _print(where, files, to, after)
        return
    act = _check if check else _apply
    report = run(where, lambda db: act(db, files, to, not as_json), needs_schema=False)
    if as_json:
        print_json(report)
    if check and report["pending"]:
        raise SystemExit(1)


async def _apply(
    db: Database, files: list[Migration], to: int | None, talk: bool
) -> dict[str, Any]:
    console = out()
    applied: list[str] = []
    migrations.pending(files, await migrations.applied(db.conn), to)  # what is wrong, before a word
    if talk:
        console.print(f"Database {db}")
    began = time.perf_counter()
    try:
        async for migration in migrations.migrate(db.conn, to=to, files=files):
            took, began = time.perf_counter() - began, time.perf_counter()
            applied.append(migration.filename)
            if talk:
                console.print(f"  applied {migration.filename:<28} {took * 1000:6.0f} ms")
    except asyncpg.InsufficientPrivilegeError as error:
        raise MigrationError(
            f"PostgreSQL refused: {error}. Migrations are run by the owner of the schema fleet; "
            f"to create it, a role needs CREATE on the database, or an administrator runs: "
            f"CREATE SCHEMA fleet AUTHORIZATION {(await health.server(db.conn)).role}"
        ) from error
    version = max(await migrations.applied(db.conn), default=0)
    if talk:
        _say_the_end(version, files, applied)
        if applied and (roles := await grants.granted(db.conn)):
            console.print(
                f"What is new needs granting again: fleet grant client|app|worker ROLE "
                f"for {', '.join(roles)}"
            )
    return {"version": version, "applied": applied}


def _say_the_end(version: int, files: list[Migration], applied: list[str]) -> None:
    newest = files[-1].version
    if version > newest:
        out().print(
            f"The schema is at version {version}, made by a newer release than this one "
            f"(version {newest}), which runs on it as it is."
        )
    elif applied:
        out().print(f"The schema is at version {version} now.")
    else:
        out().print(f"The schema is at version {version}: nothing to do.")


async def _check(
    db: Database, files: list[Migration], to: int | None, talk: bool
) -> dict[str, Any]:
    done = await migrations.applied(db.conn)
    pending = [migration.filename for migration in migrations.pending(files, done, to)]
    version = max(done, default=0)
    if talk:
        out().print(f"The schema is at version {version}, this release has {files[-1].version}.")
        for name in pending:
            out().print(f"  pending {name}")
        if pending:
            out().print("Run: fleet migrate")
    return {"version": version, "pending": pending}


def _print(where: Where, files: list[Migration], to: int | None, after: int | None) -> None:
    newest = files[-1].version
    if to is not None and to > newest:
        raise MigrationError(f"--to {to}: this release has versions 1 to {newest}")
    if after is not None and after > newest:
        raise MigrationError(f"--from {after}: this release has versions 1 to {newest}")
    start = _current(where, files) if after is None else after
    end = newest if to is None else to
    if start >= end:
        click.echo(f"-- Fleet: the schema is at version {start}; nothing to do up to {end}.")
        return
    click.echo(f"-- Fleet: the schema, from version {start} to {end}. Run it in one transaction.")
    click.echo(migrations.script(files[:end], after=start), nl=False)


def _current(where: Where, files: list[Migration]) -> int:
    async def look(db: Database) -> int:
        done = await migrations.applied(db.conn)
        migrations.pending(files, done)
        return max(done, default=0)

    try:
        return run(where, look, needs_schema=False)
    except NoDatabase:
        return 0
    except DatabaseUnavailable as error:
        warn(f"{error} This is everything, from version 0; --from N starts later.")
        return 0
