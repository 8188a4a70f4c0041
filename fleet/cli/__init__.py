"""The command ``fleet``: one module a command or group of commands."""

from fleet.cli.main import main

__all__ = ["main"]
