"""A task's life as a drawing: one line an attempt, to scale, on one common axis.

    render #1  ····██✗                           failed     waited 1.2 s, ran 0.8 s
    render #2         ·········█✗                failed     waited 2.0 s, ran 0.4 s
    render #3                    ············██✓ next       waited 4.1 s, ran 0.9 s

Pure: from spans and a width to text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from rich.text import Text

from fleet.cli.common import duration
from fleet.model import Seconds

WAIT, WORK = "·", "█"

# How an attempt ended: its mark and its colour. What is not here is a burial.
_ENDS: Final = {
    "next": ("✓", "green"),
    "succeeded": ("✓", "green"),
    "snoozed": ("z", "yellow"),
    "released": ("<", "yellow"),
    "running": ("…", "blue"),
    "cancelled": ("■", "magenta"),
}
_FAILED: Final = ("✗", "red")


class Stretch(NamedTuple):
    """An attempt in seconds since the task was enqueued; ``waited_from`` is when the wait began."""

    name: str
    waited_from: Seconds
    started: Seconds
    ended: Seconds
    outcome: str


def draw(
    stretches: Sequence[Stretch], width: int, still_waiting: Seconds | None = None
) -> list[Text]:
    """Return the drawing; ``still_waiting`` is until when the task has waited since then."""
    last = max([stretch.ended for stretch in stretches], default=0.0)
    names = max([len(stretch.name) for stretch in stretches], default=0)
    axis = _Axis(max(last, still_waiting or 0.0) or 1.0, max(width - names - 4, 8))
    lines = [_line(stretch, names, axis) for stretch in stretches]
    if still_waiting is not None:
        start, end = axis.cell(last), axis.cell(still_waiting)
        line = Text(" " * (names + 2 + start))
        line.append(WAIT * max(end - start, 1), style="dim")
        line.append(f"  waiting for {duration(still_waiting - last)}", style="yellow")
        lines.append(line)
    return lines


class _Axis(NamedTuple):
    """``span`` seconds in ``cells`` characters."""

    span: Seconds
    cells: int

    def cell(self, moment: Seconds) -> int:
        return min(round(moment / self.span * self.cells), self.cells)


def _line(stretch: Stretch, names: int, axis: _Axis) -> Text:
    mark, style = _ENDS.get(stretch.outcome, _FAILED)
    # However short, an attempt is seen.
    started = min(axis.cell(stretch.started), axis.cells - 1)
    waited = min(axis.cell(stretch.waited_from), started)
    ended = max(axis.cell(stretch.ended), started + 1)
    line = Text(f"{stretch.name:<{names}}  ")
    line.append(" " * waited)
    line.append(WAIT * (started - waited), style="dim")
    line.append(WORK * (ended - started) + mark, style=style)
    line.append(" " * (axis.cells - ended + 1))
    line.append(f"{stretch.outcome:<11}", style=style)
    line.append(
        f"waited {duration(stretch.started - stretch.waited_from)}, "
        f"ran {duration(stretch.ended - stretch.started)}",
        style="dim",
    )
    return line
