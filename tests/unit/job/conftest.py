"""An application, and a job of two steps."""

from __future__ import annotations

import pytest

from fleet import Context, Fleet, Job
from tests.unit.job.orders import Order, Receipt


@pytest.fixture
def app() -> Fleet:
    return Fleet()


@pytest.fixture
def receipts(app: Fleet) -> Job[Order, None]:
    job: Job[Order, None] = app.job("order-receipt", queue="billing")

    @job.step(timeout=30)
    async def render(ctx: Context, order: Order) -> Receipt:
        return Receipt(key=f"receipts/{order.order_id}.pdf")

    @job.step
    async def email(ctx: Context, receipt: Receipt) -> None: ...

    return job
