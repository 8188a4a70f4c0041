"""What the tests of the commands ask for: a project, a database, an application with a history."""

from __future__ import annotations

import pytest

from fleet import Context, Fatal, Fleet, Retry
from fleet.testing.plugin import scratch_database
from tests.process.commands import Commands

JOBS = """
from dataclasses import dataclass
from fleet import Context, Fleet

app = Fleet()
number = 42

@dataclass
class Order:
    order_id: int

@app.job("order-receipt", queue="billing", priority=3)
async def receipt(ctx: Context, order: Order) -> str:
    return "sent"
"""


@pytest.fixture
def folder(tmp_path):
    """A project's folder with an application in it."""
    (tmp_path / "jobs.py").write_text(JOBS)
    return tmp_path


@pytest.fixture
def empty(server):
    """The URL of a database without anything in it."""
    with scratch_database(server.dsn, "template0") as url:
        yield url


@pytest.fixture
def fleet(folder, dsn):
    """Run a command on the test's database and return what it said."""
    return Commands(folder, dsn)


@pytest.fixture
async def app(dsn):
    """An application whose tasks have a history."""
    app = Fleet(dsn)
    receipts = app.job("order-receipt", queue="billing")

    @receipts.step(retry=Retry(max_attempts=3))
    async def render(ctx: Context, order: dict) -> str:
        if ctx.attempt <= order.get("outages", 0):
            raise ConnectionError("503 from the \x1b[31mPDF service")
        return "a.pdf"

    @receipts.step
    async def email(ctx: Context, key: str) -> str:
        return f"sent {key}"

    @app.job("charge", queue="billing")
    async def charge(ctx: Context, card: str) -> str:
        if card == "expired":
            raise Fatal("the card has expired")
        return card

    async with app:
        yield app
