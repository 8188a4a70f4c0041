"""A small shop: what an application that uses Fleet looks like.

Five jobs. Every trouble in them is asked for by the input, so that the demo can show what becomes
of it.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
from dataclasses import dataclass
from typing import TypeAlias

import asyncpg

from fleet import Context, Fleet, Job, Retry

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

app = Fleet(name="shop")


async def open_ledger(conn: Connection) -> None:
    """Make the shop's own table, and empty it."""
    await conn.execute("""
        create schema if not exists shop;
        create table if not exists shop.ledger (
            order_id  int not null,
            cents     int not null,
            booked_at timestamptz not null default now()
        );
        truncate shop.ledger
    """)


async def count_ledger(conn: Connection) -> tuple[int, int]:
    """Return how many entries there are, and of how many orders."""
    found = await conn.fetch("select count(*), count(distinct order_id) from shop.ledger")
    return found[0][0], found[0][1]


class ServiceDown(Exception):
    """A service that the shop needs has answered 503."""


# ── two steps ────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Order:
    """What was bought."""

    order_id: int


@dataclass
class Receipt:
    """Where the PDF is."""

    key: str


# The second step gets what the first returned; each is retried and recorded on its own.
receipts: Job[Order, str] = app.job("order-receipt", queue="billing")


@receipts.step(retry=Retry(max_attempts=5, initial=0.4), timeout=10)
async def render(ctx: Context, order: Order) -> Receipt:
    """Make the PDF."""
    await asyncio.sleep(0.02)
    return Receipt(key=f"receipts/{order.order_id}.pdf")


@receipts.step(timeout=10)
async def email(ctx: Context, receipt: Receipt) -> str:
    """Send it."""
    await asyncio.sleep(0.01)
    return f"sent {receipt.key}"


# ── one that fails and recovers, and books exactly once ──────────────────────────────────────────


@dataclass
class Payment:
    """What is owed."""

    order_id: int
    cents: int
    flaky: bool = False


# A step in a transaction: its own writes and its outcome commit together, or neither does.
payments: Job[Payment, int] = app.job("take-payment", queue="billing")


@payments.step(transactional=True, retry=Retry(max_attempts=4, initial=0.3), timeout=10)
async def book(ctx: Context, payment: Payment) -> int:
    """Write it into the ledger."""
    await ctx.tx.execute(
        "insert into shop.ledger (order_id, cents) values ($1, $2)", payment.order_id, payment.cents
    )
    if payment.flaky and ctx.attempt == 1:
        raise ServiceDown("the bank answered 503 after the insert, before the commit")
    return payment.cents


# ── CPU work: a plain def, on a queue with processes of its own ──────────────────────────────────


@dataclass
class Image:
    """A picture of the catalogue."""

    image_id: int
    rounds: int = 40_000


@app.job("resize-image", queue="images", timeout=10)
def resize(ctx: Context, image: Image) -> str:
    """Use a core for a while; the process does nothing else meanwhile."""
    digest = str(image.image_id).encode()
    for _ in range(image.rounds):
        digest = hashlib.sha256(digest).digest()
    return digest.hex()[:12]


# ── later ────────────────────────────────────────────────────────────────────────────────────────


@app.job("ask-for-review", queue="emails", timeout=10)
async def ask(ctx: Context, order: Order) -> str:
    """Ask how it was: enqueued with delay=."""
    return f"asked about {order.order_id}"


# ── one that takes its whole process down ────────────────────────────────────────────────────────


@dataclass
class Feed:
    """A supplier's file."""

    supplier: str
    crashes: int = 0  # how often the parser kills its process before it gets through


@app.job("import-feed", queue="feeds", timeout=10)
async def parse(ctx: Context, feed: Feed) -> str:
    """Parse it with a library that crashes, as native code does."""
    await asyncio.sleep(0.05)
    if ctx.attempt <= feed.crashes:
        os.kill(os.getpid(), signal.SIGKILL)
    return f"{feed.supplier} imported"
