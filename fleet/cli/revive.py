"""``fleet task revive``: bring buried tasks back, one or many."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import get_args

import click

from fleet.cli.bulk import Meter, OneByOne, ask, yes_option
from fleet.cli.common import (
    Database,
    Where,
    as_duration,
    as_json,
    as_moment,
    as_task_id,
    database_options,
    out,
    print_json,
    read_document,
    run,
)
from fleet.errors import FleetError
from fleet.model import BuryReason, Seconds, TaskId
from fleet.names import check_step
from fleet.people import me
from fleet.store import bulk, clock, tasks


def as_since(text: str) -> Seconds | datetime:
    """Read how far back: ``2h``, or a moment."""
    return as_duration(text) if text[-1:].isalpha() and "T" not in text else as_moment(text)


@click.command()
@database_options
@click.argument("ids", nargs=-1, type=as_task_id, metavar="[ID…]")
@click.option("--step", metavar="NAME", help="Go on at this step instead.")
@click.option("--input", "document", metavar="JSON", help="With this input instead; - is stdin.")
@click.option("--queue", metavar="NAME", help="All buried tasks of this queue.")
@click.option("--job", metavar="NAME", help="All buried tasks of this job.")
@click.option("--reason", type=click.Choice(get_args(BuryReason)), help="All buried for this.")
@click.option("--since", type=as_since, metavar="2h|TIME", help="All buried since then.")
@click.option("--all", "everything", is_flag=True, help="All buried tasks.")
@yes_option
@as_json
def revive(
    where: Where,
    *,
    ids: tuple[TaskId, ...],
    step: str | None,
    document: str | None,
    queue: str | None,
    job: str | None,
    reason: BuryReason | None,
    since: Seconds | datetime | None,
    everything: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Run buried tasks again, at the step where they failed, with its budget anew.

    Give ids, or --queue, --job, --reason and --since, which narrow each other down.
    """
    chosen = any(each is not None for each in (queue, job, reason, since))
    if bool(ids) + chosen + everything != 1:
        raise click.UsageError("give ids, or --queue, --job, --reason and --since, or --all")
    if document is not None:
        if not ids:
            raise click.UsageError("--input goes with ids")
        document = read_document(document, "the input")
    if step is not None:
        check_step(step)

    async def act(db: Database) -> bulk.Revival:
        if ids:
            return await _these(db, ids, step, document)
        start = bulk.ALWAYS if everything else await _moment(db, since)
        found = await bulk.count_buried(db.conn, queue=queue, job=job, reason=reason, since=start)
        if found.matches:
            ask(f"Revive {found.matches:,} buried tasks?", yes)
        meter = Meter("revived", found.matches)
        whole = bulk.Revival([], {})
        batch = bulk.revive(
            queue=queue,
            job=job,
            reason=reason,
            since=start,
            step=step,
            up_to=found.newest,
            by=me(),
        )
        async for some in bulk.in_batches(OneByOne(db.conn), batch):
            whole.revived.extend(some.revived)
            whole.refused.update(some.refused)
            meter.add(len(some.revived))
        meter.end()
        return whole

    done = run(where, act)
    if as_json:
        refused = [{"id": task_id, "why": why} for task_id, why in done.refused.items()]
        print_json({"revived": done.revived, "refused": refused})
    else:
        _say(done)
    for why in done.refused.values():
        click.echo(f"Error: {why}", err=True)
    if done.refused:
        raise SystemExit(1)


async def _moment(db: Database, since: Seconds | datetime | None) -> datetime | None:
    if since is None or isinstance(since, datetime):
        return since
    return await clock.now(db.conn) - timedelta(seconds=since)


async def _these(
    db: Database, ids: tuple[TaskId, ...], step: str | None, document: str | None
) -> bulk.Revival:
    done = bulk.Revival([], {})
    for task_id in dict.fromkeys(ids):
        try:
            await tasks.revive(db.conn, task_id, step=step, new_input=document, by=me())
        except FleetError as error:
            done.refused[task_id] = str(error)
        else:
            done.revived.append(task_id)
    return done


def _say(done: bulk.Revival) -> None:
    if not done.revived and not done.refused:
        out().print("No buried task matches.")
    elif len(done.revived) == 1:
        (task_id,) = done.revived
        out().print(f"Task {task_id} is live again. Look: fleet task show {task_id}")
    elif done.revived:
        out().print(f"{len(done.revived):,} tasks are live again. Look: fleet status")
