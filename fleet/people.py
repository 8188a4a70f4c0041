"""Who gives a command, for the record: a person's name means more than a database role's."""

from __future__ import annotations

import getpass
import socket


def me() -> str:
    """Return ``user@host``."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user need not have a name
        user = "?"
    return f"{user}@{socket.gethostname()}"
