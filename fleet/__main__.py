"""``python -m fleet``: the command, where no script is installed."""

from fleet.cli import main

main(prog_name="fleet")
