"""A connection that comes back: errors classified, connects rationed, one log line in five seconds.

While the database is away every part of the supervisor wants it back at once. They share one
``Door``, which lets two connects a second through and says what is wrong once for all of them.

A connection whose packets are dropped looks alive for ever. The kernel finds that out in five
seconds, unless somebody in between (a pooler, a proxy) answers for the other end. So the beat,
which asks once a second, waits four at the most: if it hears nothing, all connections are let go.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Sequence
from typing import Any, Final

import asyncpg

from fleet.config import mask
from fleet.errors import DatabaseError
from fleet.model import Seconds
from fleet.store.alive import keep_alive
from fleet.store.executor import OWN, Row
from fleet.store.failures import is_disconnect

_log: Final = logging.getLogger("fleet.supervisor")

CONNECT_TIMEOUT: Final[Seconds] = 5.0
STATEMENT_TIMEOUT: Final[Seconds] = 30.0


class Disconnected(DatabaseError):
    """The connection broke; what was under way may or may not have happened."""


class Door:
    """Rations connects and complaints over all connections of this process."""

    def __init__(self) -> None:
        self.links: list[Link] = []
        self._open_at = 0.0
        self._said_at = -1e9
        self._failures = 0

    async def pass_through(self) -> None:
        """Wait for one's turn to connect."""
        left = self._open_at - time.monotonic()
        while left > 0:
            await asyncio.sleep(left)
            left = self._open_at - time.monotonic()
        if self._failures:
            self._open_at = time.monotonic() + 0.5

    def failed(self, error: BaseException, url: str) -> None:
        """Take note that a connect failed, and say so if that was not said lately."""
        self._failures += 1
        pause = min(0.5 * 1.3 ** min(self._failures, 6), 2.0) * random.uniform(0.8, 1.2)
        self._open_at = time.monotonic() + pause
        if time.monotonic() - self._said_at >= 5:
            self._said_at = time.monotonic()
            told = str(error) or type(error).__name__
            _log.warning("PostgreSQL at %s is not available (%s): trying again", mask(url), told)

    def cut(self) -> None:
        """Let go of every connection: one that should have answered did not."""
        for link in self.links:
            link.drop()

    def succeeded(self) -> None:
        """Take note that the database is back."""
        if self._failures:
            _log.info("PostgreSQL is back")
        self._failures = 0
        self._open_at = 0.0
        self._said_at = -1e9


class Link:
    """One connection with a purpose; ``fetch`` connects first if it must."""

    def __init__(
        self,
        url: str,
        purpose: str,
        door: Door,
        *,
        settings: dict[str, str] | None = None,
        timeout: Seconds = STATEMENT_TIMEOUT,
        pulse: bool = False,
    ) -> None:
        self._url = url
        self._door = door
        self._timeout = timeout
        self._pulse = pulse  # it asks what is always answered at once: silence means a cut
        self._settings = {"application_name": f"fleet {purpose}", **OWN, **(settings or {})}
        self._conn: asyncpg.Connection[asyncpg.Record] | None = None
        self._connecting = asyncio.Lock()
        self._turn = asyncio.Lock()  # a connection does one thing at a time; its users are several
        self.connects = 0
        door.links.append(self)

    async def fetch(self, query: str, /, *args: Any) -> Sequence[Row]:
        """Run a statement; ``Disconnected`` if the connection broke under it or cannot be had."""
        async with self._turn:
            conn = await self.connection()
            try:
                return await conn.fetch(query, *args, timeout=self._timeout)
            except Exception as error:
                if not is_disconnect(error):
                    raise
                if self._conn is conn:
                    self.drop()
                if self._pulse and isinstance(error, TimeoutError):
                    self._door.cut()
                raise Disconnected(str(error) or type(error).__name__) from error

    async def connection(self) -> asyncpg.Connection[asyncpg.Record]:
        """Return the connection, made anew if need be: one attempt, or ``Disconnected``."""
        async with self._connecting:
            if self._conn is not None and not self._conn.is_closed():
                return self._conn
            await self._door.pass_through()
            try:
                conn = await asyncpg.connect(
                    self._url, timeout=CONNECT_TIMEOUT, server_settings=self._settings
                )
            except Exception as error:
                if not is_disconnect(error) and not isinstance(error, asyncpg.PostgresError):
                    raise
                self._door.failed(error, self._url)
                raise Disconnected(str(error) or type(error).__name__) from error
            self._door.succeeded()
            keep_alive(conn)
            self._conn = conn
            self.connects += 1
            return conn

    @property
    def connected(self) -> bool:
        """Whether there is a connection that is not known to be broken."""
        return self._conn is not None and not self._conn.is_closed()

    def drop(self) -> None:
        """Let a broken connection go without a word: close() would wait for the other side."""
        if self._conn is not None:
            self._conn.terminate()
            self._conn = None
