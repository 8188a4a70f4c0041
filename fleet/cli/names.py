"""Names from the command line."""

from __future__ import annotations

import click

from fleet.errors import InvalidName
from fleet.names import check_name


def as_queue(text: str) -> str:
    """Read the name of a queue."""
    try:
        return check_name("queue", text)
    except InvalidName as error:
        raise click.BadParameter(str(error)) from None
