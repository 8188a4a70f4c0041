"""``fleet enqueue``: one task, from a terminal or a script."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, get_args

import click
import orjson

from fleet.app import Fleet
from fleet.cli.apps import load_app
from fleet.cli.common import (
    Database,
    Where,
    as_duration,
    as_json,
    as_moment,
    database_options,
    out,
    print_json,
    read_document,
    run,
)
from fleet.client.client import traced
from fleet.client.waiter import Waiter
from fleet.errors import EnqueueError, FleetError, ResultGone, TaskBuried, TaskCancelled, UnknownJob
from fleet.model import OnRepeat, Seconds, TaskId, UniqueScope
from fleet.names import check_step
from fleet.options import label
from fleet.options import priority as check_priority
from fleet.store import tasks
from fleet.store.enqueue import Enqueued, insert_one
from fleet.store.results import Sight, look
from fleet.submit import check_repeats


@click.command()
@database_options
@click.argument("job")
@click.argument("document", metavar="[JSON]", default="null")
@click.option("--queue", metavar="NAME", help="Its queue, instead of the job's.")
@click.option("--step", metavar="NAME", help="The step to begin with, instead of the first.")
@click.option("--delay", type=as_duration, metavar="90s", help="Not before this has passed.")
@click.option("--at", type=as_moment, metavar="TIME", help="Not before this moment (ISO 8601).")
@click.option("--priority", type=int, metavar="N", help="Higher runs first; 0 unless given.")
@click.option("--key", help="Tasks of one key and queue run one after another.")
@click.option("--unique", help="At most one task of the job under this name.")
@click.option(
    "--unique-scope",
    type=click.Choice(get_args(UniqueScope)),
    help="Until when --unique holds; while_live unless given.",
)
@click.option("--unique-for", type=as_duration, metavar="60s", help="--unique holds this long.")
@click.option(
    "--on-repeat",
    type=click.Choice(get_args(OnRepeat)),
    default="keep",
    show_default=True,
    help="What a repeat under --unique does to a task that has not started.",
)
@click.option("--app", "app_name", metavar="MODULE:APP", help="Check the input against its types.")
@click.option("--wait", is_flag=True, help="Wait for the task to end and print its result.")
@click.option("--timeout", type=as_duration, metavar="30s", help="With --wait: how long.")
@as_json
def enqueue(
    where: Where,
    *,
    job: str,
    document: str,
    app_name: str | None,
    wait: bool,
    timeout: Seconds | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Write a task of JOB with the input JSON (- reads it from stdin).

    Without --app the job must be registered (a worker that has it did that, or `fleet register`),
    or --queue given.
    """
    if options["delay"] is not None and options["at"] is not None:
        raise click.UsageError("give --delay or --at, not both")
    if timeout is not None and not wait:
        raise click.UsageError("--timeout goes with --wait")
    document = read_document(document, "the input")
    _check(options)
    app = None if app_name is None else load_app(app_name, where.file)

    async def act(db: Database) -> tuple[Enqueued, Sight | None]:
        if app is None:
            done = await tasks.enqueue_by_name(db.conn, job, document, **options)
        else:
            done = await _enqueue_typed(db, app, job, document, options)
        if not as_json:
            _say(job, done, options)
        return done, await _wait(db, done.id, timeout) if wait else None

    done, end = run(where, act)
    if as_json:
        told: dict[str, Any] = {"id": done.id, "created": done.created}
        if end is not None:
            told |= {"state": end.state, "result": _value(end)}
        print_json(told)
    elif end is not None and end.state == "succeeded":
        click.echo(end.result or "null")
    if end is not None:
        _raise_unless_succeeded(end)


def _check(options: dict[str, Any]) -> None:
    """Refuse here what can be refused without a connection."""
    if options["step"] is not None:
        check_step(options["step"])
    if options["priority"] is not None:
        check_priority("priority", options["priority"])
    for name in ("key", "unique"):
        if options[name] is not None:
            label(name, options[name])
    check_repeats(options)


async def _enqueue_typed(
    db: Database, app: Fleet, name: str, document: str, options: dict[str, Any]
) -> Enqueued:
    job = app.jobs.get(name)
    if job is None:
        known = ", ".join(sorted(app.jobs)) or "none"
        raise UnknownJob(f"this application has no job {name!r}; it has {known}")
    step: str | None = options.pop("step")
    if step is not None and step != job.first.name:
        raise EnqueueError(f"--step {step}: with --app a task begins at {job.first.name!r}")
    value = job.first.decode(document) if job.first.takes_input else orjson.loads(document)
    return await insert_one(db.conn, traced(job.submission(value, **options)))


def _say(job: str, done: Enqueued, options: dict[str, Any]) -> None:
    console = out()
    if not done.created:
        console.print(f"Task {done.id} has the unique name {options['unique']!r} already.")
    elif options["delay"] is not None or options["at"] is not None:
        console.print(f"Task {done.id} of {job} is enqueued for later.")
    else:
        console.print(f"Task {done.id} of {job} is enqueued.")
    console.print(f"Look: fleet task show {done.id}")


async def _wait(db: Database, task_id: TaskId, timeout: Seconds | None) -> Sight:
    async def ask(ids: Sequence[TaskId]) -> list[Sight]:
        return await look(db.conn, ids)

    waiter = Waiter(ask)
    try:
        return await waiter.wait(task_id, timeout)
    finally:
        waiter.close()
        await asyncio.sleep(0)


def _value(end: Sight) -> object:
    return None if end.result is None else orjson.loads(end.result)


def _raise_unless_succeeded(end: Sight) -> None:
    error: FleetError
    match end.state:
        case "succeeded":
            return
        case "buried":
            told = None if end.error is None else f"{end.error.type}: {end.error.message}"
            error = TaskBuried(end.id, end.reason or "unknown", told)
        case "cancelled":
            error = TaskCancelled(end.id)
        case _:
            error = ResultGone(end.id)
    raise error
