"""What the commands share: where the database is, a connection, and how things are printed."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import wraps
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

import asyncpg
import click
import orjson
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fleet.client.refusals import translate
from fleet.config import mask, parse_duration
from fleet.database import located
from fleet.errors import ConfigError, DatabaseError, DatabaseUnavailable, FleetError
from fleet.model import Seconds, TaskId
from fleet.store.executor import OWN
from fleet.store.failures import is_disconnect
from fleet.store.migrations import require

T = TypeVar("T")
Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

PATIENCE: Final[Seconds] = 5.0
_WIDE: Final = 200  # columns where nobody's window sets a limit: a file, a pipe


# ── where the database is ────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Where:
    """What the two options that every command has say."""

    url: str | None
    file: Path | None


def database_options(command: Callable[..., T]) -> Callable[..., T]:
    """Give a command ``--database-url`` and ``-c``, which it receives as its first argument."""

    @click.option("--database-url", metavar="URL", help="The database, before every other setting.")
    @click.option(
        "-c",
        "--config",
        "config_file",
        metavar="FILE",
        type=click.Path(path_type=Path),
        help="The fleet.toml to use, instead of searching for it.",
    )
    @wraps(command)
    def with_where(*, database_url: str | None, config_file: Path | None, **options: Any) -> T:
        return command(Where(database_url, config_file), **options)

    return with_where


class Database:
    """A connection of a command, and the address it may show."""

    def __init__(self, conn: Connection, url: str) -> None:
        self.conn = conn
        self.url = url

    def __str__(self) -> str:
        return mask(self.url)


def run(where: Where, act: Callable[[Database], Awaitable[T]], *, needs_schema: bool = True) -> T:
    """Connect and carry ``act`` out; what the server says against it becomes one of our errors."""
    with located(where.url, file=where.file) as url:
        return asyncio.run(_carry_out(url, act, needs_schema))


async def _carry_out(url: str, act: Callable[[Database], Awaitable[T]], needs_schema: bool) -> T:
    async with connected(url) as conn:
        with explained(url):
            if needs_schema:
                await require(conn)
            return await act(Database(conn, url))


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Connection]:
    """Connect within five seconds, or say why not."""
    try:
        conn = await asyncpg.connect(
            url,
            timeout=PATIENCE,
            statement_cache_size=0,
            server_settings={"application_name": "fleet command", **OWN},
        )
    except (OSError, TimeoutError, ValueError, asyncpg.PostgresError, asyncpg.InterfaceError) as e:
        cause = str(e).rstrip(".") or f"no reply within {PATIENCE:g}s"
        raise DatabaseUnavailable(mask(url), cause) from e
    try:
        yield conn
    finally:
        with suppress(OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
            await conn.close(timeout=1.0)


@contextmanager
def explained(url: str) -> Iterator[None]:
    """Turn what the server or the connection raises into an error that a person can act on."""
    try:
        yield
    except FleetError:
        raise
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        if is_disconnect(error):
            raise DatabaseUnavailable(mask(url), str(error).rstrip(".")) from error
        hint = getattr(error, "hint", None)
        told = f"PostgreSQL refused: {error}" + (f". {hint}" if hint else "")
        raise translate(error) or DatabaseError(told) from error


# ── options ──────────────────────────────────────────────────────────────────────────────────────

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")


def as_duration(text: str) -> Seconds:
    """Read ``90s`` or ``1h30m``, as the config does: always with a unit."""
    try:
        return parse_duration("", text)
    except ConfigError as error:
        raise click.BadParameter(f"{text!r} {error.hint}") from None


def as_moment(text: str) -> datetime:
    """Read ISO 8601 with a zone; without one nobody can tell when that is."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not ISO 8601, like 2030-01-31T09:00:00Z") from None
    if moment.utcoffset() is None:
        raise click.BadParameter(f"{text!r} has no time zone: write {text}Z or {text}+01:00")
    return moment


def as_task_id(text: str) -> TaskId:
    """Read a number that PostgreSQL's bigint holds."""
    if text.isascii() and text.isdigit() and len(text) < 20 and 0 < int(text) < 2**63:
        return int(text)
    raise click.BadParameter(f"{text!r} is no task id: a whole number from 1 on")


# ── output ───────────────────────────────────────────────────────────────────────────────────────


def out() -> Console:
    """Return the console for what a command prints; plain and wide where it is not a terminal."""
    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=False)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, emoji=False, width=_WIDE, no_color=True)
    return console


def warn(message: str) -> None:
    """Say something on stderr that is not the command's output."""
    click.secho(f"Warning: {message}", err=True, fg="yellow")


def print_json(value: object, *, lines: bool = False) -> None:
    """Print a value as JSON: indented, or as a line of its own."""
    option = 0 if lines else orjson.OPT_INDENT_2
    click.echo(orjson.dumps(value, default=str, option=option).decode())


def table(*headers: str, right: Sequence[str] = (), wrap: Sequence[str] = ()) -> Table:
    """Return a table without lines, which reads the same in a terminal and in a file.

    In a narrow window the columns in ``wrap`` go on in the next line; all others stay whole.
    """
    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for header in headers:
        made.add_column(
            header,
            justify="right" if header in right else "left",
            no_wrap=header not in wrap,
            overflow="fold",
        )
    return made


def safe(text: object) -> str:
    """Return text that came from elsewhere so that it cannot steer the terminal."""
    return "".join(
        char if char.isprintable() or char in "\n\t" else f"\\x{ord(char):02x}"
        for char in str(text)
    )


def styled(text: object, style: str = "") -> Text:
    """Return foreign text with a style of ours."""
    return Text(safe(text), style=style)


STATE_STYLES: Final = {
    "ready": "cyan",
    "running": "blue",
    "deferred": "yellow",
    "waiting": "yellow",
    "succeeded": "green",
    "cancelled": "magenta",
    "buried": "bold red",
}


def duration(seconds: Seconds) -> str:
    """Return a length of time as people say it.

    >>> [duration(s) for s in (0.0042, 0.25, 3.14159, 75, 7_260, 200_000)]
    ['4 ms', '250 ms', '3.1 s', '1m 15s', '2h 1m', '2d 7h']
    """
    if seconds < 0.9995:
        return f"{max(seconds, 0) * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for unit, size, smaller, small in (("d", 86_400, "h", 3_600), ("h", 3_600, "m", 60)):
        if whole >= size:
            return f"{whole // size}{unit} {whole % size // small}{smaller}"
    return f"{whole // 60}m {whole % 60}s"


def local(moment: datetime) -> str:
    """Return a moment in the local time zone, to the second."""
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")


# ── JSON from the command line ───────────────────────────────────────────────────────────────────


def read_document(text: str, what: str) -> str:
    """Return ``text`` (``-``: stdin) if it is one JSON document; else point at the place."""
    if text == "-":
        text = sys.stdin.buffer.read().decode("utf-8", "surrogateescape")
    try:
        text.encode()
        json.loads(text, parse_constant=_refuse_constant)
    except UnicodeEncodeError as error:
        raise click.UsageError(f"{what} is not UTF-8 at character {error.start + 1}") from error
    except json.JSONDecodeError as error:
        raise click.UsageError(f"{what} is not JSON: {_point_at(error)}") from error
    except RecursionError as error:
        raise click.UsageError(f"{what} is nested too deep") from error
    except ValueError as error:
        raise click.UsageError(f"{what} is not JSON: {error}") from error
    return text


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON value")


def _point_at(error: json.JSONDecodeError) -> str:
    line = error.doc.splitlines()[error.lineno - 1] if error.doc.strip() else ""
    # A window around the place: a document on one line may be long.
    start = max(error.colno - 1 - 40, 0)
    window = line[start : start + 72]
    caret = " " * (error.colno - 1 - start) + "^"
    place = f"line {error.lineno} column {error.colno}"
    return f"{error.msg.lower()} at {place}\n\n  {safe(window)}\n  {caret}"
