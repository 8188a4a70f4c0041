"""What commands that change many tasks share: the question before, the count during."""

from __future__ import annotations

import sys
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import click

from fleet.model import Seconds
from fleet.store.executor import Executor

T = TypeVar("T")

_SOON: Final[Seconds] = 0.2
_PATIENCE: Final[Seconds] = 5.0

yes_option = click.option("--yes", is_flag=True, help="Do not ask.")


def ask(question: str, yes: bool) -> None:
    """Go on only if somebody agrees."""
    if yes:
        return
    try:
        agreed = click.confirm(question, err=True)
    except click.Abort:
        click.echo(err=True)
        raise click.UsageError(f"nobody answers {question!r}: give --yes") from None
    if not agreed:
        raise click.ClickException("nothing was changed")


class OneByOne:
    """Carries out each batch on one connection, in a transaction of its own."""

    def __init__(self, conn: Executor) -> None:
        self._conn = conn

    async def __call__(self, act: Callable[[Executor], Awaitable[T]], /) -> T:
        """Return what ``act`` returns."""
        return await act(self._conn)


class Meter:
    """How far a long operation has got, on stderr: in place on a terminal, else now and then."""

    def __init__(self, verb: str, total: int) -> None:
        self._verb, self._total = verb, total
        self._done = 0
        self._live = sys.stderr.isatty()
        self._said = time.monotonic()
        self._shown = False

    def add(self, n: int) -> None:
        """Count on."""
        self._done += n
        now = time.monotonic()
        if now - self._said < (_SOON if self._live else _PATIENCE):
            return
        self._said, self._shown = now, True
        line = f"{self._verb} {self._done:,} of {self._total:,}"
        click.echo(f"\r{line} " if self._live else line, err=True, nl=not self._live)

    def end(self) -> None:
        """Leave the terminal's line."""
        if self._live and self._shown:
            click.echo(err=True)
