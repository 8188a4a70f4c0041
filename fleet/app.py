"""The application: the registry of jobs and schedules, and the door to the database.

Defining is pure: nothing here connects to anything until the application is opened or used.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import datetime
from types import FrameType, MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from fleet.codec import encode
from fleet.config import parse_rate
from fleet.errors import AlreadyRegistered, ConfigError, DefinitionError, InvalidSetting
from fleet.job import Job
from fleet.limits import Limits, whole
from fleet.model import DEFAULT_QUEUE, MAX_PAYLOAD, BuryReason, OnFailure, OnSuccess, TaskId
from fleet.names import check_name
from fleet.options import Duration
from fleet.policy import Key, Settings
from fleet.retry import Retry
from fleet.schedule import Missed, Schedule

if TYPE_CHECKING:
    from fleet.client import Cancellation, Client, QueueControl, Revival, TaskFailure
    from fleet.client.handle import Handle
    from fleet.client.sync import SyncClient

# Runs once in each worker; what it yields is ctx.state.
Lifespan: TypeAlias = Callable[[], "AbstractAsyncContextManager[Any] | AbstractContextManager[Any]"]
# Called around each attempt as ``middleware(ctx, call_next)``.
Middleware: TypeAlias = Callable[..., Any]


class Fleet:
    """An application: its jobs, its schedules and where its database is.

    >>> from fleet import Context, Fleet
    >>> app = Fleet()
    >>> @app.job("welcome-email", queue="emails")
    ... async def welcome(ctx: Context, user: dict) -> None: ...
    >>> list(app.jobs)
    ['welcome-email']
    """

    def __init__(
        self,
        database_url: str | None = None,
        *,
        lifespan: Lifespan | None = None,
        middleware: Iterable[Middleware] = (),
        name: str | None = None,
        max_payload: int = MAX_PAYLOAD,
    ) -> None:
        if lifespan is not None and not callable(lifespan):
            raise ConfigError("lifespan", lifespan, "a function that returns a context manager")
        if isinstance(max_payload, bool) or not isinstance(max_payload, int) or max_payload < 1:
            raise ConfigError("max_payload", max_payload, "a number of bytes")
        if max_payload > MAX_PAYLOAD:
            hint = f"at most {MAX_PAYLOAD}: what is larger the database refuses"
            raise ConfigError("max_payload", max_payload, hint)
        self.database_url = database_url
        self.lifespan = lifespan
        self.middleware = tuple(middleware)
        for layer in self.middleware:
            if not callable(layer):
                raise ConfigError("middleware", layer, "functions, called as (ctx, call_next)")
        self.name = name
        self.max_payload = max_payload
        self._jobs: dict[str, Job[Any, Any]] = {}
        self._schedules: dict[str, Schedule] = {}
        self._opened: Client | None = None

    def __repr__(self) -> str:
        # Never the URL: it has a password in it.
        return f"<Fleet {self.name or ''!s}: {len(self._jobs)} jobs>"

    # -- the registry ----------------------------------------------------------------------------

    @property
    def jobs(self) -> Mapping[str, Job[Any, Any]]:
        """The registered jobs by name."""
        return MappingProxyType(self._jobs)

    @property
    def schedules(self) -> Mapping[str, Schedule]:
        """The registered schedules by name."""
        return MappingProxyType(self._schedules)

    def job(
        self,
        name: str,
        *,
        queue: str = DEFAULT_QUEUE,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        priority: int | None = None,
        key: Key | None = None,
        keep: Duration | None = None,
        on_success: OnSuccess | None = None,
        on_failure: OnFailure | None = None,
        limit: int | None = None,
        rate: str | None = None,
        key_limit: int = 1,
    ) -> Job[Any, Any]:
        """Register a job. Add steps to what it returns, or decorate its one function with it.

        ``retry``, ``timeout``, ``priority``, ``key`` and ``keep`` hold for every step that does
        not say otherwise. ``on_success="delete"`` keeps no history of what went well,
        ``on_failure="delete"`` none of what did not. In the whole fleet at most ``limit`` of its
        tasks run at once, and no more start than ``rate`` says (``"100/s"``, ``"5000/h burst
        50"``); of those with the same key ``key_limit`` run at once, in the order they came.
        """
        limits = _limits(limit, rate)
        whole("key_limit", key_limit)
        settings = Settings(
            retry=retry,
            timeout=timeout,
            priority=priority,
            key=key,
            keep=keep,
            on_success=on_success,
            on_failure=on_failure,
        )
        place = _place(sys._getframe(1))
        job: Job[Any, Any] = Job(
            self,
            name,
            queue=queue,
            settings=settings,
            place=place,
            limits=limits,
            key_limit=key_limit,
        )
        if first := self._jobs.get(name):
            raise AlreadyRegistered("job", name, first.place, place)
        self._jobs[name] = job
        return job

    def schedule(
        self,
        name: str,
        cron: str,
        job: Job[Any, Any] | str,
        input: object = None,  # noqa: A002 -- the word users know it by
        *,
        timezone: str | None = None,
        missed: Missed = "latest",
    ) -> Schedule:
        """Register a cron expression that enqueues ``job`` with ``input``.

        ``missed`` says what becomes of ticks nobody was there for: the latest one fires, none
        does, or all do.

        >>> from datetime import UTC, datetime
        >>> from fleet import Fleet
        >>> app = Fleet()
        >>> @app.job("report")
        ... async def report(ctx) -> None: ...
        >>> nightly = app.schedule("nightly", "30 2 * * *", report, timezone="Europe/Berlin")
        >>> nightly.next_after(datetime(2030, 7, 1, tzinfo=UTC)).isoformat()
        '2030-07-01T02:30:00+02:00'
        """
        place = _place(sys._getframe(1))
        check_name("schedule", name)
        if first := self._schedules.get(name):
            raise AlreadyRegistered("schedule", name, first.place, place)
        known = self._known(name, job, place)
        encoded = encode(input, what=f"input of schedule {name!r}", limit=self.max_payload)
        self._schedules[name] = Schedule(
            name=name,
            cron=cron,
            job=known.name,
            input=encoded,
            key=known.submission(input).key,
            timezone=timezone,
            missed=missed,
            place=place,
        )
        return self._schedules[name]

    def _known(self, schedule: str, job: Job[Any, Any] | str, place: str) -> Job[Any, Any]:
        name = job.name if isinstance(job, Job) else job
        known = self._jobs.get(name) if isinstance(name, str) else None
        if known is None:
            raise DefinitionError(
                f"schedule {schedule!r} ({place}) names job {name!r}, which this application "
                f"does not have: register the job first"
            )
        if isinstance(job, Job) and known is not job:
            raise DefinitionError(
                f"schedule {schedule!r} ({place}) names job {name!r} of another application "
                f"(registered at {job.place}, this one's at {known.place})"
            )
        return known

    # -- the database: all of it is the client's -------------------------------------------------

    @property
    def _client(self) -> Client:
        if self._opened is None:
            from fleet.client import Client

            self._opened = Client(self)
        return self._opened

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Connect; ``async with app:`` does it for you."""
        await self._client.open()

    async def close(self) -> None:
        """Let pending writes end and disconnect."""
        await self._client.close()

    def handle(self, task_id: TaskId) -> Handle[Any]:
        """Return a handle for a task known by its id; nothing is read yet."""
        return self._client.handle(task_id)

    def queue(self, name: str) -> QueueControl:
        """Return what may be said to a queue: pause, resume, set, reset, purge."""
        return self._client.queue(name)

    async def cancel(
        self,
        *ids: TaskId,
        queue: str | None = None,
        job: Job[Any, Any] | str | None = None,
        key: str | None = None,
    ) -> Cancellation:
        """Stop these tasks, or all that match everything given; those that run are asked to."""
        from fleet.client import control

        return await control.cancel(self._client, ids, queue=queue, job=job, key=key)

    async def revive(
        self,
        *ids: TaskId,
        queue: str | None = None,
        job: Job[Any, Any] | str | None = None,
        reason: BuryReason | None = None,
        since: datetime | None = None,
        step: str | None = None,
    ) -> Revival:
        """Bring these dead letters back, or all that match everything given; at ``step``."""
        from fleet.client import control

        return await control.revive(
            self._client, ids, queue=queue, job=job, reason=reason, since=since, step=step
        )

    @property
    def sync(self) -> SyncClient:
        """The same application for code that does not await: Django, Flask, scripts."""
        return self._client.sync

    def failures(
        self, since: datetime | None = None, *, interval: Duration = 1.0
    ) -> AsyncIterator[TaskFailure]:
        """Follow what goes wrong: every attempt that fails, and every burial, once each."""
        return self._client.failures(since, interval=interval)


def _place(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _limits(limit: int | None, rate: str | None) -> Limits:
    try:
        pace = None if rate is None else parse_rate("rate", rate)
    except ConfigError as error:
        raise InvalidSetting("rate", rate, error.hint) from None
    return Limits(None if limit is None else whole("limit", limit), pace)
