"""``fleet top``: the fleet as it works, once a second, until q or Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections import deque
from collections.abc import Iterator
from typing import Final

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fleet.cli.common import (
    Database,
    Where,
    as_duration,
    database_options,
    duration,
    out,
    run,
    safe,
    styled,
    table,
)
from fleet.cli.status import heading, hosts_of, look, notices, queues_of, rate
from fleet.model import Seconds
from fleet.store.overview import Overview, Recent, recent

_BARS: Final = "▁▂▃▄▅▆▇█"
_PAST: Final = 60
_FAILURES: Final = 8


@click.command()
@database_options
@click.option("--interval", type=as_duration, metavar="1s", default="1s", show_default=True)
@click.option("--once", is_flag=True, help="Print one frame and leave.")
def top(where: Where, interval: Seconds, once: bool) -> None:
    """Watch queues, hosts, workers, rates and failures. q leaves."""
    run(where, lambda db: _watch(db, max(interval, 0.05), once))


async def _watch(db: Database, interval: Seconds, once: bool) -> None:
    console, past = out(), Past()
    if once or not console.is_terminal:
        console.print(await _frame(db, past))
        return
    leave = asyncio.Event()
    with _keys(leave), Live(console=console, auto_refresh=False, screen=True) as live:
        while not leave.is_set():
            live.update(await _frame(db, past), refresh=True)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(interval):
                    await leave.wait()


async def _frame(db: Database, past: Past) -> RenderableType:
    seen = await look(db)
    past.add(seen)
    failures = await recent(db.conn, _FAILURES)
    parts: list[RenderableType] = [
        heading(db, seen),
        past.line(seen),
        "",
        queues_of(seen),
        "",
        hosts_of(seen),
    ]
    if failures:
        parts += ["", Text("What went wrong last", style="bold"), _failures(seen, failures)]
    if told := notices(seen):
        parts += ["", *told]
    return Group(*parts)


class Past:
    """How much was ready and running in the last frames, as bars."""

    def __init__(self) -> None:
        self._ready: deque[int] = deque(maxlen=_PAST)
        self._running: deque[int] = deque(maxlen=_PAST)

    def add(self, seen: Overview) -> None:
        """Take in one more frame."""
        self._ready.append(sum(queue.ready for queue in seen.queues))
        self._running.append(sum(queue.running for queue in seen.queues))

    def line(self, seen: Overview) -> Text:
        """Return the sums of the fleet in one line."""
        done = sum(queue.rate for queue in seen.queues)
        line = Text()
        for name, values, style in (
            ("ready", self._ready, "cyan"),
            ("running", self._running, "blue"),
        ):
            line.append(f"{name} {values[-1]:,} ")
            line.append(f"{bars(values)}   ", style=style)
        line.append(f"done {rate(done)} a second")
        return line


def bars(values: deque[int]) -> str:
    """Return numbers as a row of bars, the largest of them at full height.

    >>> bars(deque([0, 1, 4, 8]))
    '▁▂▅█'
    """
    most = max(values, default=0)
    return "".join(_BARS[round(v / most * (len(_BARS) - 1)) if most else 0] for v in values)


def _failures(seen: Overview, failures: list[Recent]) -> Table:
    rows = table("ago", "task", "step", "outcome", "error", wrap=("error",))
    for found in failures:
        error = found.error
        first = error.message.splitlines()[0] if error and error.message else ""
        told = f"{error.type.rpartition('.')[2]}: {first}" if error else ""
        rows.add_row(
            duration((seen.at - found.at).total_seconds()),
            str(found.task_id),
            styled(f"{found.job}.{found.step} #{found.attempt}"),
            Text(safe(found.outcome), style="red"),
            styled(told[:200]),
        )
    return rows


@contextlib.contextmanager
def _keys(leave: asyncio.Event) -> Iterator[None]:
    """Set ``leave`` when q is pressed: keys come at once and are not shown."""
    if not sys.stdin.isatty():
        yield
        return
    import termios
    import tty

    fd, loop = sys.stdin.fileno(), asyncio.get_running_loop()
    before = termios.tcgetattr(fd)

    def pressed() -> None:
        # An end of input is the end of the terminal.
        typed = os.read(fd, 64)
        if not typed or b"q" in typed.lower():
            leave.set()

    tty.setcbreak(fd)
    loop.add_reader(fd, pressed)
    try:
        yield
    finally:
        loop.remove_reader(fd)
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
