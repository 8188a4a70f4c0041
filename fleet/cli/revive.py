"""``fleet task revive``: bring buried tasks back, one or many."""

from __future__ import annotations

from typing import get_args

import click

from fleet.cli.common import (
    Database,
    Where,
    as_json,
    as_task_id,
    database_options,
    out,
    print_json,
    read_document,
    run,
)
from fleet.errors import FleetError, ReviveRefused
from fleet.model import BuryReason, TaskId
from fleet.names import check_step
from fleet.store import registry, tasks


@click.command()
@database_options
@click.argument("ids", nargs=-1, type=as_task_id, metavar="[ID…]")
@click.option("--step", metavar="NAME", help="Go on at this step instead.")
@click.option("--input", "document", metavar="JSON", help="With this input instead; - is stdin.")
@click.option("--queue", metavar="NAME", help="All buried tasks of this queue.")
@click.option("--job", metavar="NAME", help="All buried tasks of this job.")
@click.option("--reason", type=click.Choice(get_args(BuryReason)), help="All buried for this.")
@click.option("--all", "everything", is_flag=True, help="All buried tasks.")
@click.option("--yes", is_flag=True, help="Do not ask.")
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
    everything: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Run buried tasks again, at the step where they failed, with its budget anew."""
    chosen = any((queue, job, reason))
    if bool(ids) + chosen + everything != 1:
        raise click.UsageError("give ids, or --queue, --job and --reason, or --all")
    if document is not None:
        if not ids:
            raise click.UsageError("--input goes with ids")
        document = read_document(document, "the input")
    if step is not None:
        check_step(step)

    async def act(db: Database) -> dict[TaskId, str | None]:
        wanted = list(dict.fromkeys(ids))
        if not wanted:
            wanted = await tasks.buried_ids(db.conn, queue=queue, job=job, reason=reason)
            if wanted and not yes:
                click.confirm(f"Revive {len(wanted):,} buried tasks?", abort=True, err=True)
        return {task_id: await _revive(db, task_id, step, document) for task_id in wanted}

    done = run(where, act)
    refused = {task_id: why for task_id, why in done.items() if why is not None}
    if as_json:
        revived = [task_id for task_id in done if task_id not in refused]
        print_json(
            {
                "revived": revived,
                "refused": [{"id": task_id, "why": why} for task_id, why in refused.items()],
            }
        )
    else:
        _say(done, refused)
    for why in refused.values():
        click.echo(f"Error: {why}", err=True)
    if refused:
        raise SystemExit(1)


def _say(done: dict[TaskId, str | None], refused: dict[TaskId, str]) -> None:
    revived = [task_id for task_id in done if task_id not in refused]
    if not done:
        out().print("No buried task matches.")
    elif len(revived) == 1:
        out().print(f"Task {revived[0]} is live again. Look: fleet task show {revived[0]}")
    elif revived:
        out().print(f"{len(revived):,} tasks are live again. Look: fleet status")


async def _revive(
    db: Database, task_id: TaskId, step: str | None, document: str | None
) -> str | None:
    """Revive one task; return why not, if so."""
    try:
        if step is not None:
            await _check_step(db, task_id, step)
        await tasks.revive(db.conn, task_id, step=step, new_input=document)
    except FleetError as error:
        return str(error)
    return None


async def _check_step(db: Database, task_id: TaskId, step: str) -> None:
    task = await tasks.show(db.conn, task_id)
    known = await registry.steps(db.conn, task.job)
    if known and step not in known:
        raise ReviveRefused(
            f"task {task_id}: its job {task.job} has no step {step!r}; it has {', '.join(known)}"
        )
