"""Fire schedules in a test, as a supervisor would at this moment of the database's clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fleet.database import located_async
from fleet.model import TaskId
from fleet.store import registry, schedules
from fleet.testing.connections import connection

if TYPE_CHECKING:
    from fleet.app import Fleet


async def fire_due(app: Fleet) -> list[TaskId]:
    """Declare the application's schedules and fire all that is due; return the tasks.

    The first call is their beginning: a schedule's first tick is the first one after it was made.
    """
    tasks: list[TaskId] = []
    async with located_async(app.database_url) as url, connection(url) as conn:
        await registry.register(conn, app)
        await schedules.declare(conn, [each.definition() for each in app.schedules.values()])
        while True:
            waiting, now = await schedules.due(conn)
            moved = False
            for each in waiting:
                ticks, following = each.schedule().due(now, since=each.since, next_at=each.next_at)
                done = await schedules.fire(conn, each, ticks, following)
                if done is not None and done.error is None:
                    moved = True
                    tasks += done.tasks
            if not moved:
                return tasks
