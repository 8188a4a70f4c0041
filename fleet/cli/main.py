"""The entry point: which commands there are, and how each of them may end.

0     it did what was asked
1     it did not; one line on stderr says why and what to do
2     the call itself is wrong
130   Ctrl-C
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import Any, Final

import click

from fleet.errors import FleetError

# Imported when they are called: `fleet --help` need not wait for a database driver.
_COMMANDS: Final = {
    "init": "fleet.cli.init:init",
    "demo": "fleet.cli.demo:demo",
    "migrate": "fleet.cli.migrate:migrate",
    "grant": "fleet.cli.grant:grant",
    "register": "fleet.cli.register:register",
    "enqueue": "fleet.cli.enqueue:enqueue",
    "run": "fleet.cli.run:run",
    "shutdown": "fleet.cli.shutdown:shutdown",
    "queue": "fleet.cli.queue:queue",
    "schedule": "fleet.cli.schedule:schedule",
    "status": "fleet.cli.status:status",
    "top": "fleet.cli.top:top",
    "doctor": "fleet.cli.doctor:doctor",
    "task": "fleet.cli.task:task",
    "log": "fleet.cli.log:log",
}


class _Interrupted(click.ClickException):
    """Ctrl-C: end at once and say nothing."""

    exit_code = 130

    def __init__(self) -> None:
        super().__init__("")

    def show(self, file: Any = None) -> None:
        """Leave the terminal alone."""


class Commands(click.Group):
    """The group that loads its commands late and turns Fleet's errors into a line on stderr."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order in which one meets them."""
        return [*_COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command."""
        place = _COMMANDS.get(cmd_name)
        if place is None:
            return None
        module, name = place.split(":")
        command: click.Command = getattr(import_module(module), name)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; what Fleet raises on purpose is a message, anything else is a bug."""
        try:
            return super().invoke(ctx)
        except FleetError as error:
            raise click.ClickException(str(error)) from error
        except KeyboardInterrupt:
            raise _Interrupted from None


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version("pgfleet"), prog_name="fleet", message="%(prog)s %(version)s")
def main() -> None:
    """Durable, multi-step jobs on PostgreSQL.

    Where the database is: --database-url, FLEET_DATABASE_URL, DATABASE_URL, or fleet.toml, searched
    upwards from the current folder.
    """
