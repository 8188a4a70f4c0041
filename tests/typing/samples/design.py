"""The code of the design's second section, as a user would write it.

Two words differ: a bare ``dict`` is an error to every strict checker, so it is ``dict[str, Any]``
here; and ``async with`` needs a function around it.
"""

from dataclasses import dataclass
from typing import Any

import asyncpg

from fleet import Context, Fleet, Job, Retry, To

app = Fleet()  # where the database is: §5


@dataclass
class Order:
    order_id: int


@dataclass
class Receipt:
    key: str


receipts: Job[Order, None] = app.job("order-receipt", queue="billing")


@receipts.step(retry=Retry(max_attempts=5, initial=1.0, coefficient=2.0, maximum=60.0), timeout=30)
async def render(ctx: Context, order: Order) -> Receipt:
    return Receipt(key=f"receipts/{order.order_id}.pdf")


@receipts.step
async def email(ctx: Context, receipt: Receipt) -> None: ...


@app.job("welcome-email", queue="emails")
async def welcome(ctx: Context, user: dict[str, Any]) -> None: ...


@app.job("resize", queue="images")
def resize(ctx: Context, image: dict[str, Any]) -> dict[str, Any]:
    return image


async def main(conn: "asyncpg.Connection[asyncpg.Record]") -> None:
    async with app:
        handle = await receipts.enqueue(Order(42))
        await receipts.enqueue(Order(43), delay=60, priority=5, key="customer-7", unique="order-43")
        await receipts.enqueue_many([Order(n) for n in range(10_000)])
        async with conn.transaction():
            await receipts.enqueue(Order(44), conn=conn)
        await handle.result(timeout=30)


# What a step returns decides what happens next.

looping: Job[Order, Receipt] = app.job("looping")


@looping.step
async def ask(ctx: Context, order: Order) -> Order | To[Receipt]:
    if order.order_id < 0:
        return To.snooze(60)
    if order.order_id == 0:
        return To.done(Receipt(key="none"))
    if order.order_id == 1:
        return To.step(ask, order, delay=5)
    return order


@looping.step(transactional=True)
async def store(ctx: Context, order: Order) -> To[Receipt]:
    await ctx.tx.execute("insert into receipt values ($1)", order.order_id)
    return To.next(Receipt(key="stored"), delay=1)
