"""All waits for results of one application share one poll.

One statement asks for every task that is awaited. It is repeated after 10 ms, then ever less often
until 500 ms, and from 10 ms again when somebody new waits or a task has ended. Nobody is notified
of ends: a commit with a NOTIFY takes a lock of the whole database, and most results nobody awaits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final, TypeAlias

from fleet.errors import NotOpen, ResultTimeout
from fleet.model import Seconds, TaskId
from fleet.store.results import Sight

Look: TypeAlias = Callable[[Sequence[TaskId]], Awaitable[list[Sight]]]

SHORTEST: Final[Seconds] = 0.010
LONGEST: Final[Seconds] = 0.500
_GROWTH: Final = 1.5


class _Awaited:
    """A task that somebody waits for: who, and how it was last seen."""

    __slots__ = ("sight", "waiters")

    def __init__(self) -> None:
        self.sight: Sight | None = None
        self.waiters: set[asyncio.Future[Sight]] = set()


class Waiter:
    """Waits for tasks to end; ``look`` is the one question it asks."""

    def __init__(self, look: Look) -> None:
        self._look = look
        self._awaited: dict[TaskId, _Awaited] = {}
        self._news = asyncio.Event()  # somebody came, or the last one left
        self._poller: asyncio.Task[None] | None = None

    async def wait(self, task_id: TaskId, timeout: Seconds | None) -> Sight:
        """Return the task's end, or that it is nowhere; or raise ``ResultTimeout``."""
        loop = asyncio.get_running_loop()
        awaited = self._awaited.setdefault(task_id, _Awaited())
        waiter: asyncio.Future[Sight] = loop.create_future()
        awaited.waiters.add(waiter)
        self._news.set()
        if self._poller is None:
            self._poller = loop.create_task(self._poll(), name="fleet results")
        try:
            async with asyncio.timeout(timeout):
                return await waiter
        except TimeoutError:
            sight = awaited.sight
            if sight is None:  # not even one look has come back: what is there already is there
                (sight,) = await self._look([task_id])
            if sight.ended:
                return sight
            raise ResultTimeout(task_id, timeout or 0.0, str(sight.state)) from None
        finally:
            self._leave(task_id, awaited, waiter)

    def close(self) -> None:
        """Stop looking, and say so to whoever still waits."""
        self._fail(NotOpen())
        if self._poller is not None:
            self._poller.cancel()

    def _leave(self, task_id: TaskId, awaited: _Awaited, waiter: asyncio.Future[Sight]) -> None:
        awaited.waiters.discard(waiter)
        if not awaited.waiters and self._awaited.get(task_id) is awaited:
            del self._awaited[task_id]
        if not self._awaited:
            self._news.set()

    async def _poll(self) -> None:
        interval = SHORTEST
        try:
            while self._awaited:
                self._news.clear()
                asked = list(self._awaited)
                began = asyncio.get_running_loop().time()
                ended = self._tell(await self._look(asked))
                took = asyncio.get_running_loop().time() - began
                interval = SHORTEST if ended else min(interval * _GROWTH, LONGEST)
                # However many are awaited, looking takes a fifth of the time at the most.
                if await self._pause(max(interval, 4 * took)):
                    interval = SHORTEST
                    # Newcomers are served at once, but a stream of them not without pause.
                    await asyncio.sleep(SHORTEST - (asyncio.get_running_loop().time() - began))
        except Exception as error:
            self._fail(error)
        finally:
            self._poller = None
            for awaited in self._awaited.values():
                for waiter in awaited.waiters:
                    waiter.cancel()

    async def _pause(self, interval: Seconds) -> bool:
        """Wait out the interval; True if there was news before its end."""
        with suppress(TimeoutError):
            async with asyncio.timeout(interval):
                await self._news.wait()
        return self._news.is_set()

    def _tell(self, sights: Sequence[Sight]) -> bool:
        """Give ends to those who wait for them; True if there were any."""
        ended = False
        for sight in sights:
            awaited = self._awaited.get(sight.id)
            if awaited is None:
                continue
            awaited.sight = sight
            if not sight.ended:
                continue
            ended = True
            del self._awaited[sight.id]
            for waiter in awaited.waiters:
                if not waiter.done():
                    waiter.set_result(sight)
        return ended

    def _fail(self, error: Exception) -> None:
        awaited, self._awaited = self._awaited, {}
        for task in awaited.values():
            for waiter in task.waiters:
                if not waiter.done():
                    waiter.set_exception(error)
