"""``fleet status``: the whole fleet at one look."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Any

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from fleet.cli.common import (
    Database,
    Where,
    as_duration,
    as_json,
    database_options,
    duration,
    local,
    out,
    print_json,
    run,
    styled,
    table,
)
from fleet.model import Seconds
from fleet.store.migrations import LATEST
from fleet.store.overview import Overview, overview


@click.command()
@database_options
@click.option("--watch", is_flag=True, help="Look again and again, until Ctrl-C.")
@click.option("--interval", type=as_duration, default="1s", show_default=True, help="With --watch.")
@as_json
def status(where: Where, watch: bool, interval: Seconds, as_json: bool) -> None:
    """Show queues, who runs tasks, and what nobody knows how to run."""
    if watch:
        run(where, lambda db: _watch(db, interval, as_json))
        return
    found = run(where, _look)
    if as_json:
        print_json(found[1])
    else:
        out().print(found[0])


async def _look(db: Database) -> tuple[RenderableType, dict[str, Any]]:
    # One snapshot, so that a task which is moving is counted once.
    async with db.conn.transaction(isolation="repeatable_read", readonly=True):
        seen = await overview(db.conn)
    return _drawn(db, seen), _as_dict(db, seen)


async def _watch(db: Database, interval: Seconds, as_json: bool) -> None:
    console = out()
    if as_json or not console.is_terminal:
        while True:
            drawn, plain = await _look(db)
            if as_json:
                print_json(plain, lines=True)
            else:
                console.print(drawn, "")
            await asyncio.sleep(interval)
    with Live(console=console, auto_refresh=False, screen=False) as live:
        while True:
            live.update((await _look(db))[0], refresh=True)
            await asyncio.sleep(interval)


def _as_dict(db: Database, seen: Overview) -> dict[str, Any]:
    return {
        "database": str(db),
        "at": seen.at,
        "schema_version": seen.schema_version,
        "queues": [asdict(queue) for queue in seen.queues],
        "owners": [{**asdict(owner), "alive": owner.alive} for owner in seen.owners],
        "unknown": [asdict(unknown) for unknown in seen.unknown],
    }


def _drawn(db: Database, seen: Overview) -> RenderableType:
    newer = f", this release needs {LATEST}" if seen.schema_version > LATEST else ""
    parts: list[RenderableType] = [
        Text(f"{db}   schema {seen.schema_version}{newer}   {local(seen.at)}", style="dim"),
        "",
        _queues(seen),
        "",
        _owners(seen),
    ]
    if seen.unknown:
        parts += ["", *_unknown(seen)]
    if any(queue.buried for queue in seen.queues):
        parts += ["", Text("Buried: fleet task list --state buried, then fleet task revive ID")]
    return Group(*parts)


def _queues(seen: Overview) -> RenderableType:
    if not seen.queues:
        return Text("No queue has a task yet. Enqueue one: fleet enqueue JOB JSON --queue NAME")
    numbers = ("ready", "deferred", "waiting", "running", "buried", "oldest ready")
    rows = table("queue", *numbers, right=numbers, wrap=("queue",))
    for queue in seen.queues:
        rows.add_row(
            styled(queue.queue),
            *(
                Text(f"{count:,}", style=style if count else "dim")
                for count, style in (
                    (queue.ready, "cyan"),
                    (queue.deferred, "yellow"),
                    (queue.waiting, "yellow"),
                    (queue.running, "blue"),
                    (queue.buried, "bold red"),
                )
            ),
            "-" if queue.oldest_ready is None else duration(queue.oldest_ready),
        )
    return rows


def _owners(seen: Overview) -> RenderableType:
    if not any(owner.alive for owner in seen.owners):
        return Text("Nobody runs tasks at the moment.", style="yellow")
    heads = ("owner", "host", "pid", "running", "up", "last beat")
    rows = table(*heads, right=("running",), wrap=("host",))
    for owner in seen.owners:
        rows.add_row(
            str(owner.id),
            styled(owner.host),
            str(owner.pid),
            f"{owner.running:,}",
            duration((seen.at - owner.started_at).total_seconds()),
            Text(f"{duration(owner.silent)} ago", style="" if owner.alive else "bold red"),
        )
    return rows


def _unknown(seen: Overview) -> list[RenderableType]:
    lines: list[RenderableType] = [
        Text("Warning: nobody has registered these; they wait for a worker that has them:")
    ]
    for unknown in seen.unknown:
        step = f" at step {unknown.step}" if unknown.step else ""
        lines.append(
            styled(f"  {unknown.job}{step}: {unknown.tasks:,} in {unknown.queue}", "yellow")
        )
    return lines
