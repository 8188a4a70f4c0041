"""Owners: one row a supervisor's start, whose counter is its lease."""

from __future__ import annotations

from typing import Final

from fleet.model import OwnerId
from fleet.store.executor import Executor

_REGISTER: Final = "insert into fleet.owner (host, pid) values ($1::text, $2::int) returning id"

_BEAT: Final = """
update fleet.owner set beat = beat + 1, beaten_at = fleet.now() where id = $1::bigint returning beat
"""

_RETIRE: Final = "delete from fleet.owner where id = $1::bigint"


async def register(conn: Executor, host: str, pid: int) -> OwnerId:
    """Become an owner; the id is never used again."""
    rows = await conn.fetch(_REGISTER, host, pid)
    return OwnerId(rows[0]["id"])


async def beat(conn: Executor, owner: OwnerId) -> int | None:
    """Renew the lease; None if the owner has been taken over and must stop."""
    rows = await conn.fetch(_BEAT, owner)
    return rows[0]["beat"] if rows else None


async def retire(conn: Executor, owner: OwnerId) -> None:
    """Leave: call it once nothing is held any more."""
    await conn.fetch(_RETIRE, owner)
