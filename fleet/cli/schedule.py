"""``fleet schedule``: what fires when, and what people change about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime
from typing import Any, get_args

import click
import orjson

from fleet.cli.common import (
    Database,
    Where,
    as_json,
    database_options,
    out,
    print_json,
    read_document,
    run,
    safe,
    styled,
    table,
    warn,
)
from fleet.errors import DatabaseError, DefinitionError, InvalidName
from fleet.model import TaskId
from fleet.names import check_name
from fleet.people import me
from fleet.schedule import Missed, Schedule
from fleet.store import clock, schedules
from fleet.store.schedules import Known, Tick


def _as_name(text: str) -> str:
    try:
        return check_name("schedule", text)
    except InvalidName as error:
        raise click.BadParameter(str(error)) from None


def _name(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.argument("name", type=_as_name, metavar="SCHEDULE")(command)


@click.group()
def schedule() -> None:
    """Show, make, fire and pause schedules."""


# ── look ─────────────────────────────────────────────────────────────────────────────────────────


@schedule.command("list")
@database_options
@as_json
def list_(where: Where, as_json: bool) -> None:
    """Show every schedule with its next and its last run, in the schedule's own zone."""

    async def act(db: Database) -> tuple[list[Known], datetime]:
        return await schedules.known(db.conn), await clock.now(db.conn)

    found, now = run(where, act)
    if as_json:
        print_json([_as_dict(each, now) for each in found])
        return
    if not found:
        out().print("There is no schedule. An application declares them: app.schedule(…);")
        out().print("or by hand: fleet schedule add NAME CRON JOB")
        return
    rows = table("schedule", "cron", "job", "next", "last", "state", wrap=("state", "cron"))
    for each in found:
        coming = _next(each, now)
        rows.add_row(
            styled(each.name),
            styled(each.cron),
            styled(each.job),
            _shown(each, coming),
            _shown(each, each.last_tick),
            styled(_state(each), _style(each)),
        )
    out().print(rows)


@schedule.command()
@database_options
@_name
@as_json
def show(where: Where, name: str, as_json: bool) -> None:
    """Show all about SCHEDULE, and the tasks of its last ticks."""

    async def act(db: Database) -> tuple[Known, list[Tick], datetime]:
        found = await _find(db, name)
        return found, await schedules.ticks(db.conn, name), await clock.now(db.conn)

    found, ticks, now = run(where, act)
    if as_json:
        print_json(_as_dict(found, now) | {"ticks": [tick._asdict() for tick in ticks]})
        return
    console = out()
    rows = table("", "", wrap=("",))
    origin = "an application declares it" if found.origin == "app" else f"by {found.created_by}"
    for key, value in {
        "schedule": found.name,
        "cron": found.cron,
        "zone": found.timezone,
        "job": found.job,
        "input": found.input,
        "key": found.key or "-",
        "missed": found.missed,
        "origin": origin,
        "state": _state(found),
        "next": _shown(found, _next(found, now)),
    }.items():
        rows.add_row(key, styled(value, _style(found) if key == "state" else ""))
    console.print(rows)
    if not ticks:
        console.print("\nIt has not fired yet.")
        return
    console.print()
    fired = table("tick", "task", "fired", "by", right=("task",))
    for tick in ticks:
        fired.add_row(
            _shown(found, tick.tick),
            str(tick.task),
            _shown(found, tick.fired_at),
            styled(tick.fired_by or "-"),
        )
    console.print(fired)


# ── change ───────────────────────────────────────────────────────────────────────────────────────


@schedule.command()
@database_options
@_name
@click.argument("cron")
@click.argument("job")
@click.argument("document", metavar="[JSON]", default="null")
@click.option("--timezone", metavar="ZONE", help="Like Europe/Rome; UTC unless given.")
@click.option(
    "--missed",
    type=click.Choice(get_args(Missed)),
    default="latest",
    show_default=True,
    help="What becomes of ticks that nobody was there for.",
)
@click.option("--key", help="The key of its tasks.")
@click.option("--replace", is_flag=True, help="Change the one of that name.")
@as_json
def add(
    where: Where,
    name: str,
    cron: str,
    job: str,
    document: str,
    timezone: str | None,
    missed: Missed,
    key: str | None,
    replace: bool,
    as_json: bool,
) -> None:
    """Enqueue JOB with JSON whenever CRON says: five fields, six with seconds first, or @daily."""
    try:
        made = Schedule(
            name=name,
            cron=cron,
            job=check_name("job", job),
            input=read_document(document, "the input"),
            key=key,
            timezone=timezone,
            missed=missed,
        )
    except (DefinitionError, InvalidName) as error:
        raise click.UsageError(str(error)) from None

    async def act(db: Database) -> tuple[str, Known, datetime]:
        if not replace and await schedules.known(db.conn, name):
            raise DatabaseError(f"there is a schedule {name}: give --replace to change it")
        how = await schedules.add(db.conn, made, me())
        return how, await _find(db, name), await clock.now(db.conn)

    how, found, now = run(where, act)
    if as_json:
        print_json(_as_dict(found, now) | {"how": how})
        return
    said = {"made": "is there", "changed": "is changed", "same": "was so already"}[how]
    told = f"Schedule {name} {said}: {job} is enqueued next at {_shown(found, _next(found, now))}."
    out().print(told)


@schedule.command()
@database_options
@_name
@as_json
def remove(where: Where, name: str, as_json: bool) -> None:
    """Remove SCHEDULE. What was said by hand over an application's is the application's again."""

    async def act(db: Database) -> list[Known]:
        if not await schedules.remove(db.conn, name, me()):
            raise _unknown(name)
        return await schedules.known(db.conn, name)

    left = run(where, act)
    if as_json:
        print_json({"name": name, "removed": True, "declared": bool(left)})
    elif left:
        out().print(f"Schedule {name} is as the application declares it again: {left[0].cron}.")
    else:
        out().print(f"Schedule {name} is removed. Tasks that it has enqueued stay.")


@schedule.command()
@database_options
@_name
@as_json
def fire(where: Where, name: str, as_json: bool) -> None:
    """Enqueue one task of SCHEDULE now; its calendar goes on as it was."""

    async def act(db: Database) -> TaskId:
        await _find(db, name)
        return await schedules.fire_now(db.conn, name, me())

    task = run(where, act)
    if as_json:
        print_json({"name": name, "task": task})
        return
    out().print(f"Task {task}. To follow it: fleet task show {task}")


@schedule.command()
@database_options
@_name
@as_json
def pause(where: Where, name: str, as_json: bool) -> None:
    """Let SCHEDULE rest. What would fire meanwhile does not, and is not missed."""
    _pause(where, name, True, as_json)


@schedule.command()
@database_options
@_name
@as_json
def resume(where: Where, name: str, as_json: bool) -> None:
    """Let SCHEDULE fire again, from its next tick on."""
    _pause(where, name, False, as_json)


def _pause(where: Where, name: str, wanted: bool, as_json: bool) -> None:
    async def act(db: Database) -> tuple[Known, datetime]:
        await _find(db, name)
        if not await schedules.pause(db.conn, name, me(), pause=wanted):
            warn(f"schedule {name} was {'paused already' if wanted else 'not paused'}")
        return await _find(db, name), await clock.now(db.conn)

    found, now = run(where, act)
    if as_json:
        print_json(_as_dict(found, now))
        return
    told = "is paused" if wanted else f"fires next at {_shown(found, _next(found, now))}"
    out().print(f"Schedule {name} {told}.")


# ── words ────────────────────────────────────────────────────────────────────────────────────────


async def _find(db: Database, name: str) -> Known:
    if found := await schedules.known(db.conn, name):
        return found[0]
    raise _unknown(name)


def _unknown(name: str) -> DatabaseError:
    return DatabaseError(f"there is no schedule {name}. Those there are: fleet schedule list")


def _next(known: Known, now: datetime) -> datetime | None:
    """Return when it fires next, also before a supervisor has said so; None: it does not."""
    if known.paused or _is_stale(known):
        return None
    if known.next_at is not None:
        return known.next_at
    try:
        return known.schedule().next_after(max(known.since, now))
    except DefinitionError:
        return None


def _is_stale(known: Known) -> bool:
    return known.origin == "app" and not known.declared


def _state(known: Known) -> str:
    words = ["paused"] if known.paused else []
    if _is_stale(known):
        words.append("stale: no application that runs declares it")
    if known.error:
        words.append(f"cannot fire: {known.error}")
    if known.origin == "hand":
        over = ", over what the application declares" if known.declared else ""
        words.append(f"by hand ({known.created_by}){over}")
    return "; ".join(words) or "ok"


def _style(known: Known) -> str:
    if known.error:
        return "red"
    return "yellow" if known.paused or _is_stale(known) else ""


def _shown(known: Known, moment: datetime | None) -> str:
    """Return a moment on the clocks of the schedule's zone."""
    if moment is None:
        return "-"
    try:
        return f"{moment.astimezone(known.schedule().zone):%Y-%m-%d %H:%M:%S %Z}"
    except DefinitionError:  # a zone that is not known here
        return safe(f"{moment:%Y-%m-%d %H:%M:%S %Z}")


def _as_dict(known: Known, now: datetime) -> dict[str, Any]:
    fields = asdict(known) | {"input": orjson.Fragment(known.input)}
    fields.pop("since")
    state = _state(known)
    return fields | {"next_at": _next(known, now), "stale": _is_stale(known), "state": state}
