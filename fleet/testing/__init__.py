"""Test what you build on Fleet: run tasks in-process, move the clock, make contexts.

    from fleet.testing import drain
    from shop.jobs import Order, app, receipts

    async def test_an_order_gets_its_receipt(fleet_db, monkeypatch):
        monkeypatch.setattr(app, "database_url", fleet_db)
        async with app:
            handle = await receipts.enqueue(Order(42))
            await drain(app)
            assert await handle.result(timeout=5) is None

The pytest plugin (installed with the package) gives ``fleet_db``, the URL of a fresh database
with the schema in it, and ``fleet_clock``, the clock of that database. See docs/testing.md.
"""

from fleet.testing.clock import Clock
from fleet.testing.contexts import make_context
from fleet.testing.drains import Drained, drain, drain_sync
from fleet.testing.schedules import fire_due

__all__ = ["Clock", "Drained", "drain", "drain_sync", "fire_due", "make_context"]
