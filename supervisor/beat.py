"""The beat: renews the lease, hears the news, and notices when the right to run has run out.

One statement a host every ``empty_delay``, and earlier when a deferred task is due earlier; there
is no other idle polling. What counts for the lease is when the last renewal that succeeded was
*sent*: at 0.8 of the lease since then the workers are stopped, so that nobody else can have been
given their tasks.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from fleet.model import OwnerId, Seconds
from fleet.store.beats import Told, beat
from fleet.store.failures import is_passing
from supervisor.link import Disconnected, Link

_log: Final = logging.getLogger("fleet.supervisor")

SAFE: Final = 0.8
PATIENCE: Final = 20
SAY_EVERY: Final[Seconds] = 5.0


class Heart:
    """Beats for one owner at a time."""

    def __init__(
        self,
        link: Link,
        *,
        every: Seconds,
        lease: Seconds,
        describe: Callable[[], tuple[str, list[Any], list[str]]],
        on_told: Callable[[Told], Awaitable[None]],
        on_expired: Callable[[], None],
        on_taken: Callable[[], Awaitable[None]],
    ) -> None:
        self._link = link
        self._every = every
        self._lease = lease
        self._describe = describe
        self._on_told = on_told
        self._on_expired = on_expired
        self._on_taken = on_taken
        self._hurry = asyncio.Event()
        self._said: list[Any] | None = None
        self._said_at = -math.inf  # what is wrong
        self._look_again_at = 0.0
        self._trouble: str | None = None
        self._expired = False
        self._expected = math.inf
        self.owner = OwnerId(0)
        self.renewed_at = time.monotonic()

    def begin(self, owner: OwnerId, since: float) -> None:
        """Beat for this owner from now on; it was registered no earlier than ``since``."""
        self.owner = owner
        self._said = None
        self._renewed(since)

    def _renewed(self, sent: float) -> None:
        self.renewed_at = sent
        self._expired = False

    def hurry(self) -> None:
        """Beat now: there is news."""
        self._hurry.set()

    def expect(self, delay: Seconds) -> None:
        """Beat again then: this host has just written a task that will be due."""
        at = time.monotonic() + delay
        if delay < self._every and at < self._expected:
            self._expected = at
            asyncio.get_running_loop().call_later(delay, self._hurry.set)

    @property
    def time_left(self) -> Seconds:
        """How long the right to run lasts without another renewal; negative: it is over."""
        return self.renewed_at + SAFE * self._lease - time.monotonic()

    async def run(self) -> None:
        """Beat until cancelled."""
        while True:
            pause = await self._beat()
            try:
                async with asyncio.timeout(pause):
                    await self._hurry.wait()
            except TimeoutError:
                pass
            self._hurry.clear()

    async def guard(self) -> None:
        """Stop the workers when the lease is about to run out; beside ``run``, which may hang."""
        while True:
            left = self.time_left
            if left <= 0 and not self._expired:
                self._expired = True
                self._on_expired()
            await asyncio.sleep(left if left > 0 else 0.05)  # a renewal only ever makes it later

    async def _beat(self) -> Seconds:
        """Beat once; return when to beat again."""
        sent = time.monotonic()
        if self._expected <= sent:
            self._expected = math.inf
        state, workers, queues = self._describe()
        news = None if workers == self._said else workers
        # Behind many dead rows a look into the queues takes long: never more than a twentieth
        # of the time.
        looks = queues if sent >= self._look_again_at else []
        try:
            told = await beat(self._link, self.owner, state, news, queues, looks)
        except Disconnected:
            return 0.05
        except Exception as error:
            if not is_passing(error) and sent - self._said_at >= SAY_EVERY:
                self._said_at = sent
                _log.exception("the beat failed; it is tried again until the lease is over")
            return self._every / 4
        if told is None:
            await self._on_taken()
            return 0.0
        self._renewed(sent)
        self._said = workers
        if looks:
            self._look_again_at = sent + PATIENCE * (time.monotonic() - sent)
        self._complain(told.trouble)
        try:
            await self._on_told(told)
        except Exception:
            _log.exception("what the database said could not be acted on")
        if told.due_in is not None and told.due_in < self._every:
            # Never a tight loop, should a due task be locked by somebody.
            return max(told.due_in, 0.02)
        return self._every

    def _complain(self, trouble: str | None) -> None:
        """Say what a beat could not do besides renewing the lease, once."""
        if trouble and trouble != self._trouble:
            _log.warning("the lease is renewed, but the rest of the beat failed: %s", trouble)
        self._trouble = trouble
