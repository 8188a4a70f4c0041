"""``fleet init``: a first project in the current folder."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

_TOML: Final = """\
# Fleet's settings. FLEET_* variables and command-line options come before this file.

app = "jobs:app"            # module:attribute of the application; this folder is on sys.path

# A PostgreSQL of this project's own, in .fleet/: for development. It starts when it is used and
# stops with its last user. In production, remove this line and say where the database is:
embedded = true
# database_url = "postgresql://user:password@host:5432/name"   # or FLEET_DATABASE_URL
"""

_JOBS: Final = '''\
"""The jobs of this project. Steps are plain functions: call them in unit tests as they are."""

from dataclasses import dataclass

from fleet import Context, Fleet, Job, Retry

app = Fleet()


@dataclass
class Order:
    order_id: int


@dataclass
class Receipt:
    key: str


receipts: Job[Order, str] = app.job("order-receipt", queue="billing")


@receipts.step(retry=Retry(max_attempts=5, initial=1.0), timeout=30)
async def render(ctx: Context, order: Order) -> Receipt:
    return Receipt(key=f"receipts/{order.order_id}.pdf")  # flows into the next step


@receipts.step
async def email(ctx: Context, receipt: Receipt) -> str:
    ctx.log.info("sending %s", receipt.key)
    return receipt.key  # the last step's value is the task's result
'''


@click.command()
def init() -> None:
    """Write a fleet.toml and a sample jobs.py into this folder; what is there already is kept."""
    folder = Path.cwd()
    made = [_write(folder / "fleet.toml", _TOML), _write(folder / "jobs.py", _JOBS)]
    if any(made):
        click.echo("\nNow:")
        click.echo("  fleet migrate                                  # create the schema")
        click.echo("  fleet register                                 # tell it about jobs.py")
        click.echo("  fleet enqueue order-receipt '{\"order_id\": 42}'")
        click.echo("  fleet status")


def _write(path: Path, text: str) -> bool:
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        click.echo(f"{path.name} is there already: kept as it is.")
        return False
    except OSError as error:
        raise click.ClickException(f"cannot write {path}: {error.strerror}") from error
    click.echo(f"Wrote {path.name}")
    return True
