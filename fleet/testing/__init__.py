"""Test what you build on Fleet: run tasks in-process, move the clock, make contexts.

    from fleet.testing import drain

    async def test_an_order_gets_its_receipt(fleet_db):
        async with Fleet(fleet_db) as app: ...
            handle = await receipts.enqueue(Order(42))
            await drain(app)
            assert await handle.result(timeout=0) is None

The pytest plugin (installed with the package) gives ``fleet_db``, the URL of a fresh database
with the schema in it, and ``fleet_clock``, the clock of that database. See docs/testing.md.
"""

from fleet.testing.clock import Clock
from fleet.testing.contexts import make_context
from fleet.testing.drains import Drained, drain, drain_sync

__all__ = ["Clock", "Drained", "drain", "drain_sync", "make_context"]
