"""``fleet register``: tell the database which jobs an application has."""

from __future__ import annotations

import click

from fleet.cli.apps import load_app
from fleet.cli.common import (
    Database,
    Where,
    as_json,
    database_options,
    out,
    print_json,
    run,
    styled,
    table,
)
from fleet.store import registry
from fleet.store.registry import Definition


@click.command()
@database_options
@click.argument("app", required=False, metavar="[MODULE:APP]")
@as_json
def register(where: Where, app: str | None, as_json: bool) -> None:
    """Write down the jobs of MODULE:APP (or fleet.toml's app), for enqueues by name.

    Workers do this when they start. Before the first one has, this makes `fleet enqueue` and
    `select fleet.enqueue(…)` know the queue, the first step and the priority of each job.
    """
    application = load_app(app, where.file)

    async def act(db: Database) -> list[Definition]:
        return await registry.register(db.conn, application)

    found = run(where, act)
    if as_json:
        print_json([definition._asdict() for definition in found])
        return
    rows = table(
        "job", "queue", "first step", "definition", "", wrap=("job", "queue", "first step")
    )
    for definition in found:
        rows.add_row(
            *(styled(text) for text in (definition.name, definition.queue, definition.step)),
            definition.fingerprint,
            "new" if definition.new else "known",
        )
    console = out()
    console.print(rows)
    if found:
        console.print(f"\nNow: fleet enqueue {found[0].name} JSON")
    else:
        console.print("This application has no jobs.")
