"""What the history of a task says."""

from __future__ import annotations

import asyncpg


async def history(db: asyncpg.Connection, task_id: int) -> list[tuple[str, int, str]]:
    rows = await db.fetch(
        "select step, attempt, outcome from fleet.attempt where task_id = $1 order by fence",
        task_id,
    )
    return [tuple(row) for row in rows]
