"""``fleet queue``: what beats every host's configuration, at once, until it is taken back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from fleet import config
from fleet.cli.common import (
    Database,
    Where,
    as_duration,
    as_json,
    as_moment,
    database_options,
    local,
    out,
    print_json,
    run,
    styled,
    table,
    warn,
)
from fleet.cli.names import as_queue
from fleet.cli.purge import purge
from fleet.errors import FleetError
from fleet.model import Seconds
from fleet.people import me
from fleet.settings import QueueSettings, run_settings
from fleet.settings.overrides import LIVE, read_override
from fleet.store import clock, control
from fleet.store.control import Override, Owner


def _name(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.argument("name", type=as_queue, metavar="QUEUE")(command)


def _limited(command: Callable[..., Any]) -> Callable[..., Any]:
    until = click.option("--until", type=as_moment, metavar="TIME", help="ISO 8601, with a zone.")
    for_ = click.option("--for", "seconds", type=as_duration, metavar="2h", help="How long.")
    return until(for_(command))


@click.group()
def queue() -> None:
    """Show, pause, tune and purge queues, on the whole fleet at once."""


queue.add_command(purge)


@queue.command("list")
@database_options
@as_json
def list_(where: Where, as_json: bool) -> None:
    """Show what the file says of each queue, what was set by hand, and who serves it."""
    configured = _configured(where.file)

    async def act(db: Database) -> tuple[list[Override], list[Owner]]:
        return await control.overrides(db.conn), await control.owners(db.conn)

    overrides, owners = run(where, act)
    names = {*configured, *(o.queue for o in overrides), *(q for o in owners for q in o.serves)}
    if as_json:
        print_json(
            [_as_dict(name, configured.get(name), overrides, owners) for name in sorted(names)]
        )
        return
    if not names:
        out().print("No queue is configured, set or served yet.")
        return
    rows = table(
        "queue", "fleet.toml", "served by", "set by hand", wrap=("set by hand", "served by")
    )
    for name in sorted(names):
        rows.add_row(
            styled(name),
            _said(configured.get(name)),
            styled(
                ", ".join(_hosts(name, owners)) or "nobody", "" if _hosts(name, owners) else "red"
            ),
            styled("\n".join(str(o) for o in overrides if o.queue == name), "yellow"),
        )
    out().print(rows)


@queue.command()
@database_options
@_name
@_limited
@as_json
def pause(
    where: Where, name: str, seconds: Seconds | None, until: datetime | None, as_json: bool
) -> None:
    """Let nobody claim from QUEUE; steps that run go on. Enqueues are taken as ever."""

    async def act(db: Database) -> None:
        await control.pause(db.conn, name, await _length(db, seconds, until), me())

    _carry_out(where, act, name, "paused", as_json)


@queue.command()
@database_options
@_name
@as_json
def resume(where: Where, name: str, as_json: bool) -> None:
    """Let QUEUE be claimed again."""

    async def act(db: Database) -> None:
        if not await control.resume(db.conn, name, me()):
            warn(f"queue {name} was not paused")

    _carry_out(where, act, name, "served again", as_json)


@queue.command("set")
@database_options
@_name
@click.argument("settings", nargs=-1, required=True, metavar="KEY=VALUE...")
@_limited
@as_json
def set_(
    where: Where,
    name: str,
    settings: tuple[str, ...],
    seconds: Seconds | None,
    until: datetime | None,
    as_json: bool,
) -> None:
    """Let settings of QUEUE beat every host's file: processes and concurrency of a queue that has
    processes of its own, weight of one in the shared pool, limit and rate of any.
    """
    wanted: dict[str, object] = {}
    for each in settings:
        key, equals, value = each.partition("=")
        if not equals:
            raise click.UsageError(f"{each!r} is not KEY=VALUE. The keys: {', '.join(LIVE)}")
        key = key.strip()
        wanted[key] = read_override(name, key, value)

    async def act(db: Database) -> None:
        await control.override(db.conn, name, wanted, await _length(db, seconds, until), me())

    said = ", ".join(f"{key} = {value}" for key, value in wanted.items())
    _carry_out(where, act, name, f"set to {said}", as_json)


@queue.command()
@database_options
@_name
@click.argument("keys", nargs=-1, metavar="[KEY...]")
@as_json
def reset(where: Where, name: str, keys: tuple[str, ...], as_json: bool) -> None:
    """Let the files count again for QUEUE: for these keys, or for all. A pause stays."""

    async def act(db: Database) -> None:
        if not await control.reset(db.conn, name, keys, me()):
            warn(f"nothing was set for queue {name}")

    _carry_out(where, act, name, "as each host's file says", as_json)


def _carry_out(
    where: Where, act: Callable[[Database], Awaitable[None]], name: str, how: str, as_json: bool
) -> None:
    async def both(db: Database) -> tuple[list[Override], list[Owner]]:
        await act(db)
        return await control.overrides(db.conn), await control.owners(db.conn)

    overrides, owners = run(where, both)
    if as_json:
        print_json(_as_dict(name, None, overrides, owners))
        return
    hosts = _hosts(name, owners)
    served = f"on {', '.join(hosts)}" if hosts else "and nobody serves it at the moment"
    out().print(f"Queue {name} is {how}, {served}.")


async def _length(db: Database, seconds: Seconds | None, until: datetime | None) -> Seconds | None:
    """Return for how long, by the database's clock."""
    if seconds is not None and until is not None:
        raise click.UsageError("give --for or --until, not both")
    if until is None:
        return seconds
    now = await clock.now(db.conn)
    if until <= now:
        raise click.UsageError(f"--until {local(until)} is over: it is {local(now)}")
    return (until - now).total_seconds()


def _configured(file: Path | None) -> dict[str, QueueSettings]:
    """Return the queues of the fleet.toml that is near, which other hosts may not share."""
    try:
        return {q.name: q for q in run_settings(config.load(file=file).tables).queues}
    except FleetError as error:
        if file is not None:
            raise
        warn(f"what fleet.toml says is not shown: {error}")
        return {}


def _hosts(name: str, owners: list[Owner]) -> list[str]:
    return sorted({owner.host for owner in owners if name in owner.serves})


def _said(found: QueueSettings | None) -> str:
    if found is None:
        return "-"
    if not found.dedicated:
        return f"shared, weight {found.weight:g}"
    return f"{found.processes} processes" + (f" x {found.concurrency}" if found.concurrency else "")


def _as_dict(
    name: str, found: QueueSettings | None, overrides: list[Override], owners: list[Owner]
) -> dict[str, Any]:
    shown = ("processes", "concurrency", "weight", "limit")
    return {
        "queue": name,
        "config": {key: getattr(found, key) for key in shown} if found else None,
        "overrides": [asdict(each) for each in overrides if each.queue == name],
        "hosts": _hosts(name, owners),
    }
