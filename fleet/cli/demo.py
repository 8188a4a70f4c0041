"""``fleet demo``: a shop at work on a PostgreSQL of its own, told as it happens."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import click
from rich.text import Text

from fleet.cli.common import duration, explained, out, safe
from fleet.demo import stage
from fleet.demo.play import BOOKED, Play, Summary, clock
from fleet.model import Seconds, TaskId

KEPT: Final = Path(".fleet-demo")
_COLOURS: Final = ("bright_blue", "bright_magenta", "bright_yellow", "bright_cyan", "bright_white")


@click.command()
@click.option(
    "--seconds",
    type=click.FloatRange(0, 3600),
    default=4.0,
    show_default=True,
    metavar="N",
    help="For how long orders keep coming in.",
)
@click.option("--keep", is_flag=True, help=f"Keep the database, in ./{KEPT}.")
def demo(seconds: Seconds, keep: bool) -> None:
    """Watch a small shop: retries, keys, a transaction, a burial and a revival.

    It runs on a PostgreSQL of its own, which is gone afterwards unless --keep is given.
    """
    console = out()

    def tell(task_id: TaskId | None, text: str, style: str) -> None:
        line = Text(f"{clock()}  ", style="dim")
        colour = "dim" if task_id is None else f"not dim {_COLOURS[task_id % len(_COLOURS)]}"
        line.append("        " if task_id is None else f"task {task_id:<3}", style=colour)
        line.append(f"  {safe(text)}", style=f"not dim {style}")
        console.print(line, soft_wrap=True)

    console.print("Starting a PostgreSQL of the demo's own…")
    where = stage.kept(KEPT, console.print) if keep else stage.thrown_away(console.print)
    with where as url:
        with explained(url):
            summary = asyncio.run(Play(url, seconds, tell).run())
        _say(summary)
        _what_next(keep)
    if summary.ledger != BOOKED:
        raise click.ClickException("the ledger is wrong: please report this")


def _say(summary: Summary) -> None:
    console = out()
    booked = " + ".join(f"{cents / 100:.2f}" for cents in summary.ledger)
    once = "each payment once, though one was tried twice"
    lines = (
        ("ran", f"{summary.succeeded} tasks in {summary.attempts} attempts"),
        ("failed", f"{summary.failures} attempts"),
        ("recovered", f"{len(summary.recovered)} tasks, all that had failed"),
        ("buried", f"{len(summary.buried)}, and revived {len(summary.revived)} with the fix"),
        ("ledger", f"{booked}: {once if summary.ledger == BOOKED else 'WRONG'}"),
        (
            "speed",
            f"{summary.succeeded / summary.took:.0f} tasks a second as they came in; from enqueue "
            f"to done {duration(summary.latency)} (median, where nothing went wrong)",
        ),
    )
    console.print()
    for name, told in lines:
        line = Text(f"{name:>10}  ", style="dim")
        line.append(told, style="not dim")
        console.print(line, soft_wrap=True)


def _what_next(keep: bool) -> None:
    console = out()
    console.print("\nNext:")
    if keep:
        console.print(f"  cd {KEPT}; fleet status; fleet task list; fleet task show 1")
    else:
        console.print("  fleet demo --keep     keeps the database, to look at with fleet status")
    console.print("  fleet init            starts a project of your own in this folder")
