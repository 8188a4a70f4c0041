"""``fleet task``: look at tasks, stop them, bring them back."""

from __future__ import annotations

from datetime import datetime
from typing import get_args

import click

from fleet.cli.cancel import cancel
from fleet.cli.common import (
    STATE_STYLES,
    Database,
    Where,
    as_json,
    as_task_id,
    database_options,
    duration,
    out,
    print_json,
    run,
    styled,
    table,
)
from fleet.cli.failures import failures
from fleet.cli.revive import revive
from fleet.cli.show import show
from fleet.model import State, TaskId
from fleet.store import tasks
from fleet.store.clock import now


@click.group()
def task() -> None:
    """Look at tasks, cancel them, revive buried ones."""


task.add_command(show)
task.add_command(cancel)
task.add_command(revive)
task.add_command(failures)


@task.command(name="list")
@database_options
@click.option("--state", "states", multiple=True, type=click.Choice(get_args(State)))
@click.option("--queue", metavar="NAME")
@click.option("--job", metavar="NAME")
@click.option("--key")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True)
@click.option("--after", type=as_task_id, metavar="ID", help="Go on below this id.")
@as_json
def list_(
    where: Where,
    *,
    states: tuple[State, ...],
    queue: str | None,
    job: str | None,
    key: str | None,
    limit: int,
    after: TaskId | None,
    as_json: bool,
) -> None:
    """List tasks, the newest first."""

    async def act(db: Database) -> tuple[list[tasks.Listed], datetime]:
        listed = await tasks.list_tasks(
            db.conn, states=states, queue=queue, job=job, key=key, before=after, limit=limit
        )
        return listed, await now(db.conn)

    found, moment = run(where, act)
    if as_json:
        print_json([listed._asdict() for listed in found])
        return
    console = out()
    if not found:
        console.print("No task matches.")
        return
    wrapped = ("task", "queue", "key", "error")
    rows = table("id", "state", "since", "task", "queue", "key", "error", wrap=wrapped)
    for listed in found:
        rows.add_row(
            str(listed.id),
            styled(listed.state, STATE_STYLES[listed.state]),
            _since(listed, moment),
            styled(f"{listed.job}.{listed.step or '<first step>'} #{listed.attempt}"),
            styled(listed.queue),
            styled(listed.key or "-"),
            styled(": ".join(text for text in (listed.reason, listed.error) if text) or "-"),
        )
    console.print(rows)
    if len(found) == limit:
        console.print(f"\nMore, if there is more: --after {found[-1].id}")


def _since(listed: tasks.Listed, moment: datetime) -> str:
    seconds = (moment - listed.since).total_seconds()
    # While deferred it is when the task will be ready.
    return f"in {duration(-seconds)}" if seconds < 0 else f"{duration(seconds)} ago"
