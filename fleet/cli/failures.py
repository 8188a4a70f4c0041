"""``fleet task failures``: what went wrong lately, or as it happens."""

from __future__ import annotations

import asyncio
from collections import deque
from datetime import timedelta

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
    styled,
)
from fleet.client.failures import TaskFailure, follow
from fleet.client.pool import Pool
from fleet.model import Seconds
from fleet.store.clock import now
from fleet.store.failed import PAGE, Failed, Place, failed_after


@click.command()
@database_options
@click.option("--follow", "following", is_flag=True, help="Go on as they happen, until Ctrl-C.")
@click.option("--since", type=as_duration, metavar="1h", help="How far back; 24h unless --follow.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True)
@as_json
def failures(
    where: Where, following: bool, since: Seconds | None, limit: int, as_json: bool
) -> None:
    """Show attempts that failed, and burials; the newest last.

    With --json each is a line of its own.
    """
    if following:
        run(where, lambda db: _follow(db, since, as_json))
        return
    found = run(where, lambda db: _lately(db, 86_400.0 if since is None else since, limit))
    for failed in found:
        _print(failed, as_json)
    if not found and not as_json:
        out().print("Nothing failed in that time.")


async def _lately(db: Database, since: Seconds, limit: int) -> list[Failed]:
    place = Place(await now(db.conn) - timedelta(seconds=since))
    newest: deque[Failed] = deque(maxlen=limit)
    while True:
        page = await failed_after(db.conn, place)
        newest.extend(page)
        if len(page) < PAGE:
            return list(newest)
        place = page[-1].place


async def _follow(db: Database, since: Seconds | None, as_json: bool) -> None:
    start = None if since is None else await now(db.conn) - timedelta(seconds=since)
    pool = Pool(db.url, size=1)
    await pool.open()
    try:
        async for failure in follow(pool, start, interval=0.5):
            _print(failure, as_json)
    finally:
        await asyncio.shield(pool.close())


def _print(failed: Failed | TaskFailure, as_json: bool) -> None:
    error = failed.error
    if as_json:
        print_json(
            {
                "at": failed.at,
                "task_id": failed.task_id,
                "job": failed.job,
                "step": failed.step,
                "queue": failed.queue,
                "attempt": failed.attempt,
                "outcome": failed.outcome,
                "final": failed.final,
                "worker": failed.worker,
                "error": error and error.as_dict(),
            },
            lines=True,
        )
        return
    line = Text(f"{local(failed.at)}  ", style="dim")
    line.append(f"task {failed.task_id} ", style="not dim")
    line.append(f"{safe(failed.job)}.{safe(failed.step)} #{failed.attempt} ", style="not dim")
    outcome = f"buried: {failed.outcome}" if failed.final else failed.outcome
    line.append(outcome, style="not dim bold red" if failed.final else "not dim red")
    if error is not None:
        first = error.message.splitlines()[0] if error.message else ""
        line.append_text(styled(f"  {error.type}: {first}", "not dim"))
    out().print(line, soft_wrap=True)
