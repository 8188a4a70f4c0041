"""A small shop: what an application that uses Fleet looks like.

Every trouble in it is asked for by the input, so that the demo can show what becomes of it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from fleet import Context, Fatal, Fleet, Job, Retry

app = Fleet(name="shop")

LEDGER = """
create schema if not exists shop;
create table if not exists shop.ledger (
    order_id  int not null,
    cents     int not null,
    booked_at timestamptz not null default now()
)
"""


@dataclass
class Order:
    """What was bought."""

    order_id: int
    outages: int = 0  # how often the PDF service is down when this order asks for it


@dataclass
class Receipt:
    """Where the PDF is."""

    key: str


@dataclass
class Payment:
    """What is owed, and with which card it is paid."""

    order_id: int
    cents: int
    card: str = "valid"


@dataclass
class Change:
    """A customer's new address."""

    customer: int
    address: str


class ServiceDown(Exception):
    """A service that the shop needs has answered 503."""


# Two steps. The first retries on its own; the second gets what the first returned.
receipts: Job[Order, str] = app.job("order-receipt", queue="billing")


@receipts.step(retry=Retry(max_attempts=5, initial=0.4, coefficient=2.0, jitter=0.0), timeout=30)
async def render(ctx: Context, order: Order) -> Receipt:
    """Make the PDF."""
    if ctx.attempt <= order.outages:
        raise ServiceDown("the PDF service answered 503")
    return Receipt(key=f"receipts/{order.order_id}.pdf")


@receipts.step
async def email(ctx: Context, receipt: Receipt) -> str:
    """Send it."""
    await asyncio.sleep(0.01)
    return f"sent {receipt.key}"


# A step in a transaction: its own writes and its outcome commit together, or neither does.
payments: Job[Payment, int] = app.job("take-payment", queue="billing")


@payments.step(retry=Retry(max_attempts=3, initial=0.3, jitter=0.0))
async def charge(ctx: Context, payment: Payment) -> Payment:
    """Charge the card, with a key by which the bank knows a repeat."""
    if payment.card == "expired":
        raise Fatal("the card has expired; no retry will change that")
    return payment


@payments.step(transactional=True, retry=Retry(max_attempts=3, initial=0.3, jitter=0.0))
async def book(ctx: Context, payment: Payment) -> int:
    """Write it into the ledger, exactly once."""
    await ctx.tx.execute(
        "insert into shop.ledger (order_id, cents) values ($1, $2)", payment.order_id, payment.cents
    )
    if payment.card == "flaky" and ctx.attempt == 1:
        raise ServiceDown("the machine stumbled after the insert, before the commit")
    return payment.cents


@app.job("change-address", queue="customers")
async def change_address(ctx: Context, change: Change) -> str:
    """One change at a time a customer: enqueued with key=."""
    await asyncio.sleep(0.15)
    return change.address


@app.job("welcome-email", queue="emails")
async def welcome(ctx: Context, user: dict[str, str]) -> str:
    """A job of one step."""
    return f"welcome, {user['name']}"
