"""``fleet task cancel``: stop tasks, by their ids or by what they have in common."""

from __future__ import annotations

from typing import Final

import click

from fleet.cli.bulk import Meter, OneByOne, ask, yes_option
from fleet.cli.common import (
    Database,
    Where,
    as_json,
    as_task_id,
    database_options,
    out,
    print_json,
    run,
)
from fleet.errors import TaskNotFound
from fleet.model import TaskId
from fleet.people import me
from fleet.store import bulk, results

_SAID: Final = {
    "cancelled": "is cancelled",
    "requested": "runs now; its worker is told to stop",
    "ended": "had ended already",
}


@click.command()
@database_options
@click.argument("ids", nargs=-1, type=as_task_id, metavar="[ID…]")
@click.option("--queue", metavar="NAME", help="All live tasks of this queue.")
@click.option("--job", metavar="NAME", help="All live tasks of this job.")
@click.option("--key", help="All live tasks with this key.")
@yes_option
@as_json
def cancel(
    where: Where,
    *,
    ids: tuple[TaskId, ...],
    queue: str | None,
    job: str | None,
    key: str | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Stop tasks: those that wait at once, those that run as soon as their worker hears of it.

    Give ids, or --queue, --job and --key, which narrow each other down. What is enqueued after
    the command was given is not meant.
    """
    chosen = any(each is not None for each in (queue, job, key))
    if bool(ids) == chosen:
        raise click.UsageError("give ids, or --queue, --job and --key")
    if ids:
        _these(where, ids, as_json)
        return

    async def act(db: Database) -> bulk.Cancellation:
        found = await bulk.count_live(db.conn, queue=queue, job=job, key=key)
        if not found.matches:
            return bulk.Cancellation(0, 0)
        ask(f"Cancel {found.matches:,} tasks?", yes)
        meter = Meter("cancelled", found.matches)
        done = bulk.Cancellation(0, 0)
        batch = bulk.cancel(queue=queue, job=job, key=key, up_to=found.newest, by=me())
        async for some in bulk.in_batches(OneByOne(db.conn), batch):
            done = bulk.Cancellation(
                done.cancelled + some.cancelled, done.requested + some.requested
            )
            meter.add(sum(some))
        meter.end()
        return done

    done = run(where, act)
    if as_json:
        print_json(done._asdict())
    elif not any(done):
        out().print("No live task matches.")
    else:
        out().print(f"{done.cancelled:,} cancelled, {done.requested:,} run and are told to stop.")


def _these(where: Where, ids: tuple[TaskId, ...], as_json: bool) -> None:
    async def act(db: Database) -> list[tuple[TaskId, str | None]]:
        said: list[tuple[TaskId, str | None]] = []
        for task_id in ids:
            try:
                said.append((task_id, await results.cancel(db.conn, task_id, me())))
            except TaskNotFound:
                said.append((task_id, None))
        return said

    said = run(where, act)
    if as_json:
        print_json([{"id": task_id, "said": word} for task_id, word in said])
    for task_id, word in said:
        if word is None:
            click.echo(f"Error: {TaskNotFound(task_id)}", err=True)
        elif not as_json:
            out().print(f"Task {task_id} {_SAID[word]}.")
    if any(word in (None, "ended") for _, word in said):
        raise SystemExit(1)
