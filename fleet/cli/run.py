"""``fleet run``: the supervisor of this host and its workers."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Literal

import click

from fleet.cli.common import Where, database_options
from fleet.worker import logs


@click.command()
@database_options
@click.argument("app", required=False, metavar="[MODULE:APP]")
@click.option("--processes", metavar="N|auto", help="Of the shared pool; auto: this host's CPUs.")
@click.option("--concurrency", metavar="N", help="async steps at once in each shared process.")
@click.option("--http", metavar="HOST:PORT|off", help="Where /healthz, /readyz and /metrics are.")
@click.option(
    "--host",
    envvar="FLEET_HOST",
    metavar="NAME",
    help="What this host is called in status and shutdown; its own name unless given.",
)
@click.option(
    "--log-format",
    envvar=logs.FORMAT,
    type=click.Choice(["text", "json", "auto"]),
    default="auto",
    show_default=True,
    help="auto: text on a terminal, JSON lines otherwise.",
)
@click.option(
    "--log-level",
    envvar=logs.LEVEL,
    type=click.Choice(["debug", "info", "warning", "error"], case_sensitive=False),
    default="info",
    show_default=True,
)
def run(
    where: Where,
    *,
    app: str | None,
    processes: str | None,
    concurrency: str | None,
    http: str | None,
    host: str | None,
    log_format: Literal["text", "json", "auto"],
    log_level: str,
) -> None:
    """Run the tasks of MODULE:APP (or fleet.toml's app) until told to stop.

    \b
    SIGTERM, Ctrl-C   drain: claim no more, let running steps end, release the rest; twice: now
    SIGHUP            read fleet.toml again, live
    SIGUSR1           write stacks and tables to stderr
    """
    from supervisor.entry import Launch, launch

    form: logs.Format = "json" if log_format == "json" else "text"
    if log_format == "auto":
        form = "text" if sys.stderr.isatty() else "json"
    logs.configure(form, log_level.lower())
    launch(
        Launch(
            app=app,
            file=where.file,
            database_url=where.url,
            host=host or socket.gethostname(),
            folder=Path.cwd(),
            flags={
                "supervisor.processes": processes,
                "supervisor.concurrency": concurrency,
                "supervisor.http": http,
            },
        )
    )
