"""``fleet demo``: a shop at work, on a PostgreSQL and a host of its own, seen as it happens."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections import deque
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from fleet.cli.common import Database, connected, duration, explained, out, safe
from fleet.cli.status import hosts_of, look, queues_of
from fleet.demo import stage
from fleet.demo.play import Play, Summary
from fleet.model import Seconds

KEPT: Final = Path(".fleet-demo")
UNSEEN: Final[Seconds] = 20.0  # nobody is there to press Ctrl-C
SEEN: Final[Seconds] = 30.0
_EVERY: Final[Seconds] = 0.5
_LINES: Final = 12


@click.command()
@click.option(
    "--seconds",
    type=click.FloatRange(0, 3600),
    metavar="N",
    help=f"For how long orders keep coming in; {SEEN:g} in a terminal, else {UNSEEN:g}.",
)
@click.option("--keep", is_flag=True, help=f"Keep the database, in ./{KEPT}.")
def demo(seconds: Seconds | None, keep: bool) -> None:
    """Watch a small shop: a supervisor and its workers, crashes, retries, a burial.

    It runs on a PostgreSQL of its own, which is gone afterwards unless --keep is given. Ctrl-C
    drains it early.
    """
    console = out()
    if seconds is None:
        seconds = SEEN if console.is_terminal else UNSEEN
    console.print("Starting a PostgreSQL of the demo's own…")
    where = stage.kept(KEPT, console.print) if keep else stage.thrown_away(console.print)
    with where as (url, folder), explained(url):
        watcher = Watcher(url, folder, seconds)
        summary = asyncio.run(watcher.watch())
        _say(summary)
        _what_next(summary, keep)
    if summary.booked != summary.paid or summary.exit_code != 0:
        raise click.ClickException("something is wrong that should not be: please report this")


class Watcher:
    """Shows a play: a live view in a terminal, plain lines elsewhere."""

    def __init__(self, url: str, folder: Path, seconds: Seconds) -> None:
        self._url = url
        self._console = out()
        self._lines: deque[Text] = deque(maxlen=_LINES)
        self._live = self._console.is_terminal
        self._play = Play(url, folder, seconds, self._tell)

    async def watch(self) -> Summary:
        """Play, and show it until it ends."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._play.interrupt)
        showing = asyncio.create_task(self._show() if self._live else self._report())
        try:
            return await self._play.run()
        finally:
            showing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await showing

    def _tell(self, text: str, style: str) -> None:
        line = Text(f"{datetime.now(UTC).astimezone():%H:%M:%S}  ", style="dim")
        line.append(safe(text), style=f"not dim {style}")
        if self._live:
            self._lines.append(line)
        else:
            self._console.print(line, soft_wrap=True)

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(2)
            if self._play.stage in ("running", "finishing"):
                self._tell(self._so_far(), "dim")

    async def _show(self) -> None:
        with Live(console=self._console, auto_refresh=False, transient=True) as live:
            while self._play.stage == "starting":
                live.update(Text("Starting fleet run…", style="dim"), refresh=True)
                await asyncio.sleep(0.1)
            async with connected(self._url) as conn:
                db = Database(conn, self._url)
                while True:
                    live.update(await self._frame(db), refresh=True)
                    await asyncio.sleep(_EVERY)

    async def _frame(self, db: Database) -> RenderableType:
        seen = await look(db)
        hint = {"running": "Ctrl-C drains it", "draining": "Ctrl-C again ends it now"}
        title = Text(f"The shop is {self._play.stage}.  ", style="bold")
        title.append(hint.get(self._play.stage, ""), style="not bold dim")
        return Group(
            *(title, Text(self._so_far()), "", queues_of(seen), "", hosts_of(seen), ""),
            *self._lines,
        )

    def _so_far(self) -> str:
        seen = self._play.summary
        running = self._play.stage == "running"
        until = f"{self._play.to_go:.0f} s to go" if running else self._play.stage
        return (
            f"{seen.enqueued:,} enqueued, {seen.ran:,} ran, {seen.failures} failed attempts, "
            f"{seen.crashes} crashes, {seen.recovered} recovered, {len(seen.buried)} buried; "
            f"{until}"
        )


def _say(summary: Summary) -> None:
    console = out()
    restarts = ", ".join(f"{n} by {cause}" for cause, n in summary.restarts.most_common())
    buried = ", ".join(f"task {task} ({why})" for task, why in summary.buried.items())
    once = summary.booked == summary.paid
    lines = (
        ("ran", f"{summary.ran:,} of {summary.enqueued:,} tasks, in {summary.attempts:,} attempts"),
        ("failed", f"{summary.failures:,} attempts"),
        ("crashed", f"{summary.crashes:,} attempts, with their whole process"),
        ("recovered", f"{summary.recovered:,} tasks that had failed or crashed"),
        ("buried", buried or "none"),
        ("left", f"{summary.left:,} tasks, for the next host"),
        ("ledger", f"{summary.booked:,} payments, each booked once" if once else "WRONG"),
        (
            "speed",
            f"{summary.ran / max(summary.took, 0.001):.0f} tasks a second as they came in; from "
            f"enqueue to start {duration(summary.wait(0.5))} (median), "
            f"{duration(summary.wait(0.99))} (99 %)",
        ),
        ("restarts", restarts or "none"),
    )
    console.print()
    for name, told in lines:
        line = Text(f"{name:>10}  ", style="dim")
        line.append(told, style="not dim")
        console.print(line, soft_wrap=True)


def _what_next(summary: Summary, keep: bool) -> None:
    console = out()
    console.print("\nNext:")
    if keep:
        buried = next(iter(summary.buried), 1)
        console.print(f"  cd {KEPT}; fleet status; fleet task show {buried}; fleet run, fleet top")
    else:
        console.print("  fleet demo --keep     keeps the database, to look at with fleet status")
    console.print("  fleet init            starts a project of your own in this folder")
