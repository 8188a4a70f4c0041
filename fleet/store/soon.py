"""For the rest of a transaction, wait for nobody's lock longer than a moment."""

from __future__ import annotations

from typing import Final

from fleet.model import Seconds
from fleet.store.executor import Executor

LOCKS: Final[Seconds] = 1.0

_SOON: Final = "select set_config('lock_timeout', $1::text, true)"


async def soon(conn: Executor) -> None:
    """Have a lock that is not had within ``LOCKS`` break the transaction: see ``is_locked``."""
    await conn.fetch(_SOON, f"{LOCKS * 1000:.0f}ms")
