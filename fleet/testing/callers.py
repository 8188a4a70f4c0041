"""The thread that called ``drain_sync``, at the service of a drain whose loop runs in another one.

    calling thread    statements on its connection, one after another; def steps
    helper thread     the event loop: the drain itself, lifespan, middleware, async steps

A connection that blocks belongs to the thread that opened it, and Django refuses to use its own
where an event loop runs. So the loop goes elsewhere and hands back what must happen here. A ``def``
step sees the test's open transaction then, on the same connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeAlias, TypeVar

from fleet.store.connections import at_once, is_django
from fleet.store.executor import Executor, Row
from fleet.worker.threads import Work, ended, handed_over

T = TypeVar("T")

Main: TypeAlias = Callable[[], Coroutine[Any, Any, T]]


class Caller(ABC):
    """Runs a coroutine elsewhere, and here what it hands back; ``def`` steps are among that."""

    @abstractmethod
    def drive(self, main: Main[T]) -> T:
        """Run ``main`` to its end, called in the thread that is to serve it."""

    @abstractmethod
    async def run(self, fn: Callable[[], T]) -> T:
        """Have a function run in that thread."""

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Let a step begin: a drain runs one at a time."""
        yield

    def close(self) -> None:  # noqa: B027 -- meant to be empty
        """Do nothing: the thread is the caller's."""


class Borrowed:
    """An executor whose connection is only used in the calling thread."""

    def __init__(self, executor: Executor, caller: Caller) -> None:
        self._executor, self._caller = executor, caller

    async def fetch(self, query: str, /, *args: Any) -> Sequence[Row]:
        """Run a statement there."""
        return await self._caller.run(lambda: at_once(self._executor.fetch(query, *args)))


def caller_for(conn: object) -> Caller:
    """Return who serves a drain on this connection."""
    return _DjangoCaller() if is_django(conn) else _ThreadCaller()


class _ThreadCaller(Caller):
    def __init__(self) -> None:
        self._work: SimpleQueue[Work | None] = SimpleQueue()
        self._cancel: Callable[[], object] = lambda: None

    def drive(self, main: Main[T]) -> T:
        context = contextvars.copy_context()
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="fleet-drain") as thread:
            running = thread.submit(context.run, asyncio.run, self._cancellable(main))
            running.add_done_callback(lambda _: self._work.put(None))
            try:
                self._serve()
            finally:
                if not running.done():  # Ctrl-C: it still needs us to come to its end
                    self._cancel()
                    self._serve()
            return running.result()

    async def run(self, fn: Callable[[], T]) -> T:
        return (await handed_over(fn, self._work.put)).value()

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            work()

    async def _cancellable(self, main: Main[T]) -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        self._cancel = partial(loop.call_soon_threadsafe, task.cancel)
        return await main()


class _DjangoCaller(Caller):
    """Django's own way to the same end, so that ``sync_to_async`` in async steps leads here too."""

    def drive(self, main: Main[T]) -> T:
        from asgiref.sync import async_to_sync

        async def run() -> T:
            return await main()

        return async_to_sync(run)()

    async def run(self, fn: Callable[[], T]) -> T:
        from asgiref.sync import sync_to_async

        there = sync_to_async(partial(ended, fn), thread_sensitive=True)
        return (await there()).value()
