"""``fleet status``: the whole fleet at one look."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import asdict
from typing import Any, Final

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
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
    safe,
    styled,
    table,
)
from fleet.model import Seconds
from fleet.store.migrations import LATEST
from fleet.store.overview import (
    MANY_RELEASES,
    Overview,
    OwnerStatus,
    QueueStatus,
    WorkerStatus,
    overview,
)
from fleet.store.rates import rates

WORKER_STATES: Final = {"booting": "yellow", "retiring": "yellow", "dead": "red"}


@click.command()
@database_options
@click.option("--watch", is_flag=True, help="Look again and again, until Ctrl-C.")
@click.option("--interval", type=as_duration, default="1s", show_default=True, help="With --watch.")
@as_json
def status(where: Where, watch: bool, interval: Seconds, as_json: bool) -> None:
    """Show queues, hosts and what their workers run, and what needs somebody's hand."""
    if watch:
        run(where, lambda db: _watch(db, interval, as_json))
        return
    found = run(where, _look)
    if as_json:
        print_json(found[1])
    else:
        out().print(found[0])


async def look(db: Database) -> Overview:
    """Look once, in one snapshot: a task which is moving is counted once."""
    async with db.conn.transaction(isolation="repeatable_read", readonly=True):
        seen = await overview(db.conn)
        seen.tell_rates(await rates(db.conn))
    return seen


async def _look(db: Database) -> tuple[RenderableType, dict[str, Any]]:
    seen = await look(db)
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
        "unserved": [queue.queue for queue in seen.unserved],
        "unknown": [asdict(unknown) for unknown in seen.unknown],
        "overrides": [asdict(override) for override in seen.overrides],
        "released": [released._asdict() for released in seen.released],
    }


def _drawn(db: Database, seen: Overview) -> RenderableType:
    parts: list[RenderableType] = [heading(db, seen), "", queues_of(seen), "", hosts_of(seen)]
    if told := notices(seen):
        parts += ["", *told]
    if any(queue.buried for queue in seen.queues):
        parts += ["", Text("Buried: fleet task list --state buried, then fleet task revive ID")]
    return Group(*parts)


def heading(db: Database, seen: Overview) -> Text:
    """Return where and when this was seen."""
    newer = f", this release needs {LATEST}" if seen.schema_version > LATEST else ""
    told = f"{db}   schema {seen.schema_version}{newer}   {local(seen.at)}"
    return Text(told, style="dim")


# ── queues ───────────────────────────────────────────────────────────────────────────────────────


def queues_of(seen: Overview) -> RenderableType:
    """Return the queues as a table."""
    if not seen.queues:
        return Text("No queue has a task yet. Enqueue one: fleet enqueue JOB JSON --queue NAME")
    numbers = ("ready", "deferred", "waiting", "running", "buried", "oldest ready", "done/s")
    rows = table("queue", *numbers, "", right=numbers, wrap=("queue",))
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
            rate(queue.rate),
            Text("paused", style="bold yellow")
            if queue.paused
            else Text("unserved" if queue.unserved else "", style="bold red"),
        )
    return rows


def rate(found: float) -> str:
    """Return a pace in three digits or so."""
    if found == 0:
        return "-"
    return f"{found:,.0f}" if found >= 10 else f"{found:.2g}" if found < 1 else f"{found:.1f}"


# ── hosts ────────────────────────────────────────────────────────────────────────────────────────


def hosts_of(seen: Overview) -> RenderableType:
    """Return the hosts as a table, the workers of each below it."""
    if not any(owner.alive for owner in seen.owners):
        nobody = Text("Nobody runs tasks at the moment. Start a host: fleet run", style="yellow")
        return Group(nobody, "", _hosts(seen)) if seen.owners else nobody
    return _hosts(seen)


def _hosts(seen: Overview) -> Table:
    heads = ("host", "owner", "pid", "state", "running", "up", "last beat", "lease")
    rows = table(*heads, right=("running",), wrap=("host",))
    for owner in seen.owners:
        style = "" if owner.alive else "bold red"
        rows.add_row(
            styled(owner.host),
            str(owner.id),
            str(owner.pid),
            Text("silent" if not owner.alive else safe(owner.state), style=style),
            f"{owner.running:,}",
            duration((seen.at - owner.started_at).total_seconds()),
            Text(f"{duration(owner.silent)} ago", style=style),
            duration(owner.lease),
        )
        for worker in owner.workers if owner.alive else ():
            rows.add_row(*_worker(worker))
    return rows


def _worker(worker: WorkerStatus) -> tuple[RenderableType, ...]:
    name = styled(f"  {worker.name}", "dim")
    state = Text(safe(worker.state), style=WORKER_STATES.get(worker.state, "dim"))
    if worker.running:
        state = styled(runs(worker), "blue")
    return name, "", str(worker.pid or ""), state


def runs(worker: WorkerStatus) -> str:
    """Return what a worker runs now, the same steps counted.

    >>> runs(WorkerStatus("shared#1", 7, "ready", ["pay.book", "pay.book", "mail.send"]))
    '2 × pay.book, mail.send'
    """
    counted = Counter(worker.running)
    return ", ".join(f"{n} × {step}" if n > 1 else step for step, n in counted.most_common(4))


# ── what needs somebody's hand ───────────────────────────────────────────────────────────────────


def notices(seen: Overview) -> list[RenderableType]:
    """Return a line for everything that does not go as it should, or was set by hand."""
    return [*_silent(seen.owners), *_unserved(seen), *_unknown(seen), *_released(seen), *_set(seen)]


def _silent(owners: list[OwnerStatus]) -> list[RenderableType]:
    return [
        styled(
            f"Warning: host {owner.host} (owner {owner.id}) is silent for "
            f"{duration(owner.silent)}, longer than its lease; it holds {owner.running:,} tasks",
            "yellow",
        )
        for owner in owners
        if not owner.alive
    ]


def _unserved(seen: Overview) -> list[RenderableType]:
    return [
        styled(f"Warning: {waiting(queue)}, which no live host serves", "yellow")
        for queue in seen.unserved
    ]


def waiting(queue: QueueStatus) -> str:
    """Return how much is due in a queue, in words.

    >>> waiting(QueueStatus("billing", due=1))
    '1 task waits in billing'
    """
    n = queue.due - queue.running
    return f"{n:,} {'task waits' if n == 1 else 'tasks wait'} in {queue.queue}"


def _unknown(seen: Overview) -> list[RenderableType]:
    if not seen.unknown:
        return []
    lines: list[RenderableType] = [
        Text("Warning: nobody has registered these; they wait for a worker that has them:")
    ]
    for unknown in seen.unknown:
        step = f" at step {unknown.step}" if unknown.step else ""
        lines.append(
            styled(f"  {unknown.job}{step}: {unknown.tasks:,} in {unknown.queue}", "yellow")
        )
    return lines


def _released(seen: Overview) -> list[RenderableType]:
    return [
        styled(
            f"Warning: task {found.task_id} ({found.job}.{found.step} in {found.queue}) was handed "
            f"back {found.releases} times in a row: it never ends before a drain does "
            f"(supervisor.drain_timeout)",
            "bold red",
        )
        for found in seen.released
        if found.releases >= MANY_RELEASES
    ]


def _set(seen: Overview) -> list[RenderableType]:
    return [
        styled(f"Set by hand: {override.queue}: {override}", "magenta")
        for override in seen.overrides
    ]
