"""A process that fires schedules as a supervisor does, and dies at a chosen statement.

    python -m tests.chaos.ticker URL kill|cut|never N

The boundaries are those of ``victim``. ``cut`` lets the statement that fires go out and loses
the connection before its reply.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

import asyncpg

from fleet.store import beats
from supervisor.tasks import Tasks
from supervisor.ticks import Ticks
from tests.chaos.victim import Doomed, fragile


def cutting(doom: Doomed) -> type[asyncpg.Connection]:
    class Cutting(fragile(doom)):  # type: ignore[misc]
        async def fetch(self, query: str, *args: Any, **options: Any) -> Any:
            if doom.how == "cut" and "fleet.fire(" in query:
                await self.prepare(query)  # so that one message carries it out
                reply = asyncio.ensure_future(super().fetch(query, *args, **options))
                await asyncio.sleep(0)
                self.terminate()
                return await reply
            return await super().fetch(query, *args, **options)

    return Cutting


async def tick(url: str, doom: Doomed) -> None:
    conn = await asyncpg.connect(url, connection_class=cutting(doom))
    owner = await beats.register(conn, "chaos", os.getpid(), 15.0)
    ticks = Ticks(
        conn,
        Tasks(lambda: None),
        stale=lambda: "stale",
        declared_here=set,
        expect=lambda _: None,
    )
    while (told := await beats.beat(conn, owner, "running", [], [])) is not None and told.ticks:
        ticks.hear(told)
        assert ticks._firing is not None
        await ticks._firing
        if conn.is_closed():
            return
    conn.terminate()


if __name__ == "__main__":
    asyncio.run(tick(sys.argv[1], Doomed(sys.argv[2], int(sys.argv[3]))))
