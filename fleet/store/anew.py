"""Statements on connections whose plans we may not rule: planned anew each time they run.

A driver prepares what it runs often, and PostgreSQL then keeps one plan for all values. A plan made
while ``fleet.task`` was small reads all of it, and is kept when a million rows have come. Our own
connections are told so when they are opened (``claims.SETTINGS``); a user's connection, or the one
of ``ctx.tx``, runs the user's statements too, and its settings are not ours to touch.

So these statements carry a limit that is none. With the value at hand the planner sees that, and
drops it; without it the plan has to count to a thousand million. That plan is never the cheaper
one, so it is never kept, and a plan made for the moment finds a task by its id. Measured: 0.37 ms
an outcome in place of 0.18 ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from fleet.store.executor import Executor, Row

_NO_LIMIT: Final = """
 limit case when ${}::int <> 0 then (select count(*) from generate_series(1, 1000000000)) end
"""


class Anew:
    """Runs selects (what they change stands in their ``with``) on an executor, planned anew."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    async def fetch(self, query: str, /, *args: Any) -> Sequence[Row]:
        """Run a statement that has no limit of its own."""
        return await self._executor.fetch(query + _NO_LIMIT.format(len(args) + 1), *args, 0)
