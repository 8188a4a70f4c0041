"""A TCP proxy in front of PostgreSQL, in a thread of the test process, that can misbehave.

with Proxy(dsn) as way:
    asyncpg.connect(way.dsn)
    way.drop_packets()      # nothing passes any more, and nobody is told
    way.refuse()            # every connection is reset, and every new one
    way.open()
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from urllib.parse import urlsplit, urlunsplit


class Proxy:
    def __init__(self, dsn: str) -> None:
        self._to = urlsplit(dsn)
        self._loop = asyncio.new_event_loop()
        self._open = True
        self._pairs: set[_Pair] = set()
        self.connects: list[float] = []  # when somebody came; the monotonic clock's
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Proxy:
        self._thread.start()
        serving = asyncio.start_server(self._come, "127.0.0.1", 0)
        self._server = asyncio.run_coroutine_threadsafe(serving, self._loop).result(10)
        port = self._server.sockets[0].getsockname()[1]
        netloc = f"{self._to.username}@127.0.0.1:{port}"
        self.dsn = urlunsplit(self._to._replace(netloc=netloc))
        return self

    def __exit__(self, *_: object) -> None:
        self.refuse()
        self._do(self._server.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    # ── what it does to its users ───────────────────────────────────────────────────────────────

    def drop_packets(self) -> None:
        """Let nothing through on the connections there are; new ones work."""
        self._do(lambda: [pair.stop() for pair in self._pairs])

    def refuse(self) -> None:
        """Reset every connection, those that come too: the server is away."""

        def act() -> None:
            self._open = False
            for pair in self._pairs:
                pair.abort()
            self._pairs.clear()

        self._do(act)

    def open(self) -> None:
        """Serve those that come from now on."""
        self._open = True

    def since(self, moment: float) -> int:
        """How many have come since then."""
        return sum(at >= moment for at in self.connects)

    # ── inside ──────────────────────────────────────────────────────────────────────────────────

    def _do(self, act: Callable[[], object]) -> None:
        async def once() -> None:
            act()

        asyncio.run_coroutine_threadsafe(once(), self._loop).result(10)

    async def _come(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connects.append(time.monotonic())
        if not self._open:
            writer.transport.abort()
            return
        there = await asyncio.open_connection(self._to.hostname, self._to.port)
        pair = _Pair((reader, writer), there)
        self._pairs.add(pair)
        await pair.run()


class _Pair:
    """A connection on both sides."""

    def __init__(self, *sides: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
        (self._here, self._out), (self._there, self._in) = sides
        self._passing: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        self._passing = [
            asyncio.create_task(self._pass(self._here, self._in)),
            asyncio.create_task(self._pass(self._there, self._out)),
        ]
        await asyncio.wait(self._passing, return_when=asyncio.FIRST_COMPLETED)
        if not any(task.cancelled() for task in self._passing):
            self.abort()

    @staticmethod
    async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()

    def stop(self) -> None:
        for task in self._passing:
            task.cancel()

    def abort(self) -> None:
        self.stop()
        for writer in (self._out, self._in):
            writer.transport.abort()
