"""A connection for as long as it is needed."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import asyncpg

from fleet.store.executor import OWN


@contextlib.asynccontextmanager
async def connection(url: str) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    """Connect, and close it however the block ends."""
    conn = await asyncpg.connect(url, server_settings=OWN)
    try:
        yield conn
    finally:
        await conn.close()
