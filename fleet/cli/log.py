"""``fleet log``: who told the fleet what, and when."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any, Final

import click
from rich.text import Text

from fleet.cli.common import (
    Database,
    Where,
    as_duration,
    as_json,
    database_options,
    local,
    out,
    print_json,
    run,
    safe,
)
from fleet.model import Seconds
from fleet.store.clock import now
from fleet.store.log import Line, lines

# A line's time is its statement's, and it is seen when that commits: each look goes back by this.
_OVERLAP: Final = timedelta(minutes=1)
_LOOK: Final[Seconds] = 0.5


@click.command()
@database_options
@click.option("--since", type=as_duration, metavar="1h", help="How far back; 30 days unless given.")
@click.option("--queue", metavar="NAME", help="Only what was said of this queue or its tasks.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True)
@click.option("--follow", "following", is_flag=True, help="Go on as it happens, until Ctrl-C.")
@as_json
def log(
    where: Where,
    *,
    since: Seconds | None,
    queue: str | None,
    limit: int,
    following: bool,
    as_json: bool,
) -> None:
    """Show what people told the fleet: who, when, what; the newest last. It is kept for 90 days.

    With --json each is a line of its own. With --follow, an operation in batches is told when its
    first one is done.
    """

    async def act(db: Database) -> None:
        back = 30 * 86_400.0 if since is None else since
        start = await now(db.conn) - timedelta(seconds=back)
        found = await lines(db.conn, start, queue=queue, limit=limit)
        for line in found:
            _print(line, as_json)
        if following:
            await _follow(db, queue, {line.id: line.at for line in found}, as_json)
        elif not found and not as_json:
            out().print("Nothing was said in that time.")

    run(where, act)


async def _follow(
    db: Database, queue: str | None, seen: dict[int, datetime], as_json: bool
) -> None:
    while True:
        floor = await now(db.conn) - _OVERLAP
        seen = {number: at for number, at in seen.items() if at >= floor}
        for line in await lines(db.conn, floor, queue=queue, but=[*seen]):
            seen[line.id] = line.at
            _print(line, as_json)
        await asyncio.sleep(_LOOK)


def _print(line: Line, as_json: bool) -> None:
    if as_json:
        print_json(asdict(line), lines=True)
        return
    shown = Text(f"{local(line.at)}  ", style="dim")
    shown.append(f"{safe(line.who)}  ", style="not dim")
    shown.append(safe(line.what), style="not dim bold")
    if line.target is not None:
        shown.append(f" {safe(line.target)}", style="not dim")
    detail = ", ".join(f"{key} = {_value(value)}" for key, value in line.detail.items())
    if detail:
        shown.append(f"  {safe(detail)}", style="not dim")
    out().print(shown, soft_wrap=True)


def _value(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
