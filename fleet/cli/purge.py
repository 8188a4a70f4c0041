"""``fleet queue purge``: delete what waits in a queue, or its dead letters."""

from __future__ import annotations

import click

from fleet.cli.bulk import Meter, OneByOne, ask, yes_option
from fleet.cli.common import Database, Where, as_json, database_options, out, print_json, run
from fleet.cli.names import as_queue
from fleet.people import me
from fleet.store import bulk


@click.command()
@database_options
@click.argument("name", type=as_queue, metavar="QUEUE")
@click.option("--buried", is_flag=True, help="Its dead letters, instead of what waits.")
@yes_option
@as_json
def purge(where: Where, *, name: str, buried: bool, yes: bool, as_json: bool) -> None:
    """Delete what waits in QUEUE: ready, deferred, or waiting for its key. Never what runs.

    Nothing is kept of it, and nothing brings it back; `fleet task cancel --queue` keeps a history.
    To have none of it start meanwhile, pause the queue first.
    """

    async def act(db: Database) -> int:
        if buried:
            found = await bulk.count_buried(db.conn, queue=name)
        else:
            found = await bulk.count_live(db.conn, queue=name, idle=True)
        if not found.matches:
            return 0
        what = "buried tasks" if buried else "tasks that wait"
        ask(f"Delete {found.matches:,} {what} in queue {name} for good?", yes)
        meter, total = Meter("deleted", found.matches), 0
        batch = bulk.purge(name, buried=buried, up_to=found.newest, by=me())
        async for n in bulk.in_batches(OneByOne(db.conn), batch):
            total += n
            meter.add(n)
        meter.end()
        return total

    purged = run(where, act)
    if as_json:
        print_json({"queue": name, "purged": purged})
    elif purged:
        out().print(f"{purged:,} deleted from queue {name}.")
    else:
        out().print(f"Nothing {'is buried' if buried else 'waits'} in queue {name}.")
