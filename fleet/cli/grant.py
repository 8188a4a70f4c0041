"""``fleet grant``: what a role of PostgreSQL may do with Fleet."""

from __future__ import annotations

from typing import Final, get_args

import click

from fleet.cli.common import Database, Where, database_options, out, run
from fleet.store import grants

_CAN: Final = {
    "client": "enqueue, and nothing else",
    "app": "enqueue, see status and results, and cancel",
    "worker": "run tasks",
}


@click.command()
@database_options
@click.argument("level", type=click.Choice(get_args(grants.Level)))
@click.argument("role")
@click.option("--print", "print_sql", is_flag=True, help="Print the SQL and change nothing.")
def grant(where: Where, level: grants.Level, role: str, print_sql: bool) -> None:
    """Let ROLE enqueue (client), also see results and cancel (app), or run tasks (worker).

    Run it as the owner of the schema, and again after `fleet migrate`. It sets the level: what the
    role had before on the schema fleet, and its new level does not include, is taken away.
    """
    run(where, lambda db: _grant(db, level, role, print_sql))


async def _grant(db: Database, level: grants.Level, role: str, print_sql: bool) -> None:
    statements = await grants.statements(db.conn, level, role)
    if print_sql:
        for statement in statements:
            click.echo(f"{statement};")
        return
    if not statements:
        out().print(f"{role} owns the schema fleet and may do everything already.")
        return
    await grants.check_may_grant(db.conn, role)
    async with db.conn.transaction():
        for statement in statements:
            await db.conn.execute(statement)
    out().print(f"{role} may {_CAN[level]}.")
