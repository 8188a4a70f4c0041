"""Listens: wake-ups, cancels and control. All of it is a hint; the beat alone would do.

LISTEN first, look for work second: the other way round leaves a gap in which a NOTIFY is lost. On
connect it notifies itself: silence means a pooler in transaction mode, which accepts LISTEN and
delivers nothing; then this says so, and the beat carries on alone. Whether the connection is
still there, the kernel and the beat find out (see ``link``); the probe is for what neither sees.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from fleet.model import Seconds
from fleet.store.failures import is_disconnect
from supervisor.link import Disconnected, Link

_log: Final = logging.getLogger("fleet.supervisor")

CHANNELS: Final = ("fleet_wake", "fleet_cancel", "fleet_control")
_ECHO: Final = "fleet_echo"
_PATIENCE: Final[Seconds] = 2.0
_PROBE_EVERY: Final[Seconds] = 60.0


class Listener:
    """One connection that hears: ``on_news(channel, payload)``, and ``on_gap()`` after a cut."""

    def __init__(
        self, link: Link, on_news: Callable[[str, str], None], on_gap: Callable[[], None]
    ) -> None:
        self._link = link
        self._on_news = on_news
        self._on_gap = on_gap
        self._echo = asyncio.Event()
        self.hears = False

    async def run(self) -> None:
        """Listen until cancelled, again and again."""
        while True:
            try:
                await self._listen()
            except Exception as error:
                self.hears = False
                self._link.drop()
                if not isinstance(error, Disconnected) and not is_disconnect(error):
                    _log.exception("listening failed; trying again")
                    await asyncio.sleep(1)
                await asyncio.sleep(0.1)

    async def _listen(self) -> None:
        conn = await self._link.connection()
        gone = asyncio.Event()
        conn.add_termination_listener(lambda _: gone.set())
        self._echo.clear()
        for channel in (*CHANNELS, _ECHO):
            await conn.add_listener(channel, self._heard)
        await self._link.fetch(f"notify {_ECHO}")
        try:
            async with asyncio.timeout(_PATIENCE):
                await self._echo.wait()
            self.hears = True
        except TimeoutError:
            _log.warning(
                "LISTEN is accepted but nothing arrives: there is a pooler in transaction mode in "
                "between. Fleet polls instead; supervisor.listen_url may go past the pooler"
            )
        self._on_gap()
        while not gone.is_set():
            try:
                async with asyncio.timeout(_PROBE_EVERY):
                    await gone.wait()
            except TimeoutError:
                # Only this one is cut off, behind somebody who answers the kernel in its stead.
                await self._link.fetch("select 1")
        self._link.drop()
        raise Disconnected("the listening connection ended")

    def _heard(self, _conn: Any, _pid: int, channel: str, payload: Any) -> None:
        if channel == _ECHO:
            self._echo.set()
            return
        try:
            self._on_news(channel, str(payload))
        except Exception as error:
            # Anybody may NOTIFY anything: a bad payload is logged and ignored.
            _log.warning("NOTIFY %s: ignored (%s)", channel, error)
