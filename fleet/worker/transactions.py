"""The database connections of a worker: opened when a step first needs one, closed when idle.

There may be as many as steps may run at once. With fewer, a step would wait for a connection while
it occupies a slot and its time runs, and those of other steps decide whether it gets one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, Final

import asyncpg
from tenacity import AsyncRetrying, retry_if_exception, stop_after_delay, wait_random_exponential

from fleet.errors import FleetError
from fleet.model import Claim, OwnerId, Seconds
from fleet.store.alive import keep_alive
from fleet.store.executor import OWN
from fleet.store.failures import is_disconnect
from fleet.store.standing import Standing, standing

CONNECT_TIMEOUT: Final[Seconds] = 10.0
LOOK: Final[Seconds] = 5.0
_IDLE: Final[Seconds] = 60.0


class NoConnection(FleetError, TimeoutError):
    """A transactional step could not begin: its task goes back, at no cost."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"no connection to PostgreSQL within {CONNECT_TIMEOUT:g}s for a transactional step, "
            f"which has not begun and is handed back. Each one that runs has a connection, up to "
            f"{limit} in this process: see that the server answers and that its max_connections "
            f"leaves room, or lower the queue's concurrency."
        )


class Transactions:
    """A lazy pool for ``transactional`` steps, and the look that resolves an unknown COMMIT."""

    def __init__(self, url: str, owner: OwnerId, *, limit: int, patience: Seconds) -> None:
        self._url = url
        self._owner = owner
        self._limit = limit
        self._patience = patience
        self._pool: asyncpg.Pool[asyncpg.Record] | None = None
        self._opening = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def connect(self) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
        """Lend a connection; one that broke is not given back."""
        pool = await self._open()
        try:
            conn: Any = await pool.acquire(timeout=CONNECT_TIMEOUT)
        except TimeoutError as error:
            raise NoConnection(self._limit) from error
        try:
            yield conn
        finally:
            # Releasing a broken connection raises what the step has been told already.
            with contextlib.suppress(OSError, asyncpg.InterfaceError, asyncpg.PostgresError):
                await pool.release(conn, timeout=CONNECT_TIMEOUT)

    async def look(self, claim: Claim) -> Standing:
        """See how a claim stands; the database may need a moment to come back."""
        retrying = AsyncRetrying(
            retry=retry_if_exception(is_disconnect),
            wait=wait_random_exponential(multiplier=0.1, max=2),
            stop=stop_after_delay(self._patience),
            reraise=True,
        )
        return await retrying(self._look, claim)

    async def _look(self, claim: Claim) -> Standing:
        async with self.connect() as conn:
            try:
                async with asyncio.timeout(LOOK):
                    return await standing(conn, self._owner, claim)
            except TimeoutError:
                conn.terminate()  # what broke one connection may have broken this one as well
                raise

    async def _open(self) -> asyncpg.Pool[asyncpg.Record]:
        async with self._opening:
            if self._pool is None:
                self._pool = await asyncpg.create_pool(
                    self._url,
                    min_size=0,
                    max_size=self._limit,
                    max_inactive_connection_lifetime=_IDLE,
                    timeout=CONNECT_TIMEOUT,
                    init=_watched,
                    server_settings={"application_name": "fleet worker", **OWN},
                )
        return self._pool

    def close(self) -> None:
        """Drop the connections without waiting for the server."""
        if self._pool is not None:
            self._pool.terminate()


async def _watched(conn: asyncpg.Connection[asyncpg.Record]) -> None:
    keep_alive(conn)
