"""Where ``def`` steps run: in a thread, so that the loop goes on answering; one after another.

A function cannot be stopped from outside. One that outlives its timeout keeps its thread, unwanted,
and the next step gets a new one: there is never more than one whose result somebody waits for.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Generic, NamedTuple, Protocol, TypeAlias, TypeVar

T = TypeVar("T")

Work: TypeAlias = Callable[[], None]


class Bench(Protocol):
    """Runs the functions of ``def`` steps, each in its turn."""

    def turn(self) -> contextlib.AbstractAsyncContextManager[None]:
        """Wait until nobody else's function runs here; the clock of a step starts after that."""

    async def run(self, fn: Callable[[], T]) -> T:
        """Run a function, in the caller's context, within a turn."""

    def close(self) -> None:
        """Let go, without waiting for a function that will not end."""


class StepThread:
    """A bench with a thread of its own."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._lane: _Lane | None = None
        self._busy = False

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for the one whose turn it is."""
        async with self._turn:
            try:
                yield
            finally:
                if self._busy:
                    # It goes on although nobody waits for it any more.
                    self.close()

    async def run(self, fn: Callable[[], T]) -> T:
        """Run a function in the thread."""
        if self._lane is None:
            self._lane = _Lane()
        self._busy = True
        ended = await handed_over(fn, self._lane.put)
        self._busy = False
        return ended.value()

    def close(self) -> None:
        """Let the thread go: it ends when its function does."""
        if self._lane is not None:
            self._lane.put(None)
        self._lane, self._busy = None, False


class Ended(NamedTuple, Generic[T]):
    """How a function ended. A future would not take a StopIteration, and wait for ever."""

    result: T | None
    error: BaseException | None

    def value(self) -> T:
        """Return or raise it, as the function did."""
        if self.error is not None:
            raise self.error
        return self.result  # type: ignore[return-value]  # there is no error, so it is T


async def handed_over(fn: Callable[[], T], put: Callable[[Work], None]) -> Ended[T]:
    """Have a function run by whoever takes what is put, and wait for its end."""
    context = contextvars.copy_context()
    future: Future[Ended[T]] = Future()

    def work() -> None:
        if future.set_running_or_notify_cancel():
            future.set_result(ended(lambda: context.run(fn)))

    put(work)
    return await asyncio.wrap_future(future)


def ended(fn: Callable[[], T]) -> Ended[T]:
    """Run a function here and say how it ended."""
    try:
        return Ended(fn(), None)
    except BaseException as error:
        return Ended(None, error)


class _Lane:
    """A daemon: a step that never ends must not keep its process from ending."""

    def __init__(self) -> None:
        self._work: SimpleQueue[Work | None] = SimpleQueue()
        self.put: Callable[[Work | None], None] = self._work.put
        threading.Thread(target=self._serve, name="fleet-step", daemon=True).start()

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            work()
            del work  # and with it the step's input, until the next one comes
