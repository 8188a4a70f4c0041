"""The Context a step receives: what it knows about its run, and what it may ask for."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable, MutableMapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypeAlias, Unpack

from opentelemetry import trace

from fleet.errors import FleetError, InvalidOption, UnknownJob

if TYPE_CHECKING:
    import asyncpg

    from fleet.job import Job
    from fleet.model import Claim, Submission
    from fleet.submit import EnqueueOptions

    Tx: TypeAlias = asyncpg.Connection[asyncpg.Record]

_LOGGER: Final = logging.getLogger("fleet.step")


class Signal:
    """Something that may happen while a step runs; for ``async def`` and ``def`` steps alike.

    >>> signal = Signal()
    >>> signal.is_set()
    False
    >>> signal.set()
    >>> signal.block(timeout=1)
    True
    """

    __slots__ = ("_event", "_waiters")

    def __init__(self) -> None:
        self._event = threading.Event()
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    def is_set(self) -> bool:
        """Tell whether it has happened."""
        return self._event.is_set()

    def set(self) -> None:
        """Make it happen; from any thread."""
        self._event.set()
        for loop, future in self._waiters:
            loop.call_soon_threadsafe(_wake, future)

    async def wait(self) -> None:
        """Wait until it happens, in an ``async def`` step."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        waiter = (loop, future)
        self._waiters.append(waiter)
        try:
            # Looked at after enlisting: a set() in between would find nobody to wake.
            if not self._event.is_set():
                await future
        finally:
            self._waiters.remove(waiter)

    def block(self, timeout: float | None = None) -> bool:
        """Wait until it happens, in a ``def`` step; False if ``timeout`` seconds pass first."""
        return self._event.wait(timeout)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class StepLogger(logging.LoggerAdapter[logging.Logger]):
    """Adds the task, its step and the trace to every record; ``extra=`` of a call is kept too."""

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        """Merge what the step gives with what the context knows."""
        span = trace.get_current_span().get_span_context()
        traced = (
            {"trace_id": f"{span.trace_id:032x}", "span_id": f"{span.span_id:016x}"}
            if span.is_valid
            else {}
        )
        kwargs["extra"] = {**(self.extra or {}), **traced, **(kwargs.get("extra") or {})}
        return msg, kwargs


class Host:
    """What runs a step, as its context sees it. This base does nothing: it is for unit tests."""

    def progress(self, context: Context, fraction: float, message: str) -> None:
        """Take note of how far a step has come."""

    def finish(self, context: Context, value: Any, conn: Any) -> Awaitable[None]:
        """Write the step's outcome on the user's connection."""
        raise FleetError("ctx.finish needs a worker: this context was made for a unit test")


class Context:
    """What a step knows about its run, and what it may ask for.

    ``fleet.testing.make_context`` makes one for a unit test.
    """

    __slots__ = (
        "_cancelled",
        "_children",
        "_claim",
        "_draining",
        "_finishing",
        "_host",
        "_jobs",
        "_log",
        "_tx",
        "state",
        "step",
    )

    def __init__(
        self,
        claim: Claim,
        step: str,
        *,
        jobs: Callable[[str], Job[Any, Any] | None],
        host: Host,
        state: Any = None,
        cancelled: Signal | None = None,
        draining: Signal | None = None,
    ) -> None:
        self._claim = claim
        self._jobs = jobs
        self._host = host
        self._children: list[Submission] = []
        self._finishing: Awaitable[None] | None = None
        self._cancelled = cancelled
        self._draining = draining
        self._log: StepLogger | None = None
        self._tx: Tx | None = None
        self.step: str = step
        """The name of the step that runs."""
        self.state: Any = state
        """What the application's lifespan yielded in this worker."""

    @property
    def task_id(self) -> int:
        """The task's id: the same for every step and attempt."""
        return self._claim.id

    @property
    def job(self) -> str:
        """The job's name."""
        return self._claim.job

    @property
    def queue(self) -> str:
        """The queue the task is in."""
        return self._claim.queue

    @property
    def attempt(self) -> int:
        """1 on this step's first try, then one more for each failure and each charged crash."""
        return self._claim.attempt

    @property
    def enqueued_at(self) -> datetime:
        """When the task was enqueued, by the database's clock."""
        return self._claim.enqueued_at

    @property
    def idempotency_key(self) -> str:
        """Same for every attempt of this step; new when a loop comes back to it.

        Give it to whatever you call outside, so that a repeat is recognised there.
        """
        return f"{self._claim.id}/{self.step}/{self._claim.visit}"

    @property
    def cancelled(self) -> Signal:
        """Set when somebody cancels the task while this step runs."""
        if self._cancelled is None:
            self._cancelled = Signal()
        return self._cancelled

    @property
    def draining(self) -> Signal:
        """Set when this worker is about to stop: a long step may return ``To.snooze(0)`` then."""
        if self._draining is None:
            self._draining = Signal()
        return self._draining

    @property
    def log(self) -> StepLogger:
        """A logger whose records carry task, job, step, attempt and trace."""
        if self._log is None:
            claim = self._claim
            extra = {
                "task_id": claim.id,
                "job": claim.job,
                "step": self.step,
                "attempt": claim.attempt,
                "queue": claim.queue,
            }
            self._log = StepLogger(_LOGGER, extra)
        return self._log

    @property
    def span(self) -> trace.Span:
        """The OpenTelemetry span of this attempt."""
        return trace.get_current_span()

    @property
    def tx(self) -> Tx:
        """The transaction of a ``transactional=True`` step: an asyncpg connection."""
        if self._tx is None:
            raise FleetError(
                f"step {self.job}.{self.step} has no transaction: declare it with "
                f"@job.step(transactional=True)"
            )
        return self._tx

    def progress(self, fraction: float, message: str = "") -> None:
        """Say how far this step has come, 0 to 1; shown by ``fleet task show`` and ``status()``."""
        if isinstance(fraction, bool) or not isinstance(fraction, int | float):
            raise InvalidOption("progress", fraction, "a number from 0 to 1")
        if not 0 <= fraction <= 1:
            raise InvalidOption("progress", fraction, "a number from 0 to 1")
        self._host.progress(self, float(fraction), str(message))

    def enqueue(
        self,
        job: Job[Any, Any] | str,
        input: Any = None,  # noqa: A002 -- the word users know it by
        **options: Unpack[EnqueueOptions],
    ) -> None:
        """Enqueue another task if, and exactly when, this step's outcome is written.

        It is written in the same statement as the outcome, so a retry never doubles it and a
        failure never leaves it behind. That is why there is nothing to await and no handle.
        With ``ctx.finish`` that is where it is called: enqueue before.
        """
        if self._finishing is not None:
            told = (
                "ctx.enqueue after ctx.finish: the outcome is written already, with all that goes "
                "with it. Call ctx.enqueue before ctx.finish"
            )
            # Once the step's transaction is committed, what it raises changes nothing any more.
            self.log.error("%s", told)
            raise FleetError(told)
        found = self._jobs(job) if isinstance(job, str) else job
        if found is None:
            raise UnknownJob(f"no job {job!r} is registered in this application")
        self._children.append(found.submission(input, **options))

    def finish(self, value: Any = None, *, conn: Any) -> Awaitable[None]:
        """Write this step's outcome in the transaction of your own connection.

        The step's writes on ``conn`` and its outcome then commit together or not at all:
        exactly-once effects with psycopg, SQLAlchemy or Django, also in ``def`` steps. With a
        connection that is not async it has happened when this returns; with an async one,
        ``await`` it. What the step returns afterwards is ignored.
        """
        self._finishing = self._host.finish(self, value, conn)
        return self._finishing

    def _check_finish(self) -> None:
        """Raise if the step has ended and its ``ctx.finish`` has not, for want of an await."""
        writing = self._finishing
        if not inspect.iscoroutine(writing):
            return
        state = inspect.getcoroutinestate(writing)
        if state == inspect.CORO_CLOSED:
            return
        if state == inspect.CORO_CREATED:
            writing.close()  # or Python warns of it, too
        raise FleetError(
            f"step {self.job}.{self.step} called ctx.finish on an async connection and did not "
            f"wait for it, so nothing was written: `await ctx.finish(...)`"
        )
