"""``app.sync``: the same calls for code that does not await.

A thread of its own runs an event loop and a Client; calls from any thread are handed to it, and
those that come together share a statement. It starts with the first call that needs it, so that
an application may be imported, forked and forked again. A fork leaves the parent's thread and
sockets to the parent: the child starts afresh.

    parent ── fork ──▶ child       the runner object is inherited, its thread is not
      runner             runner?   made by another pid: set aside untouched, a new one is made
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import selectors
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, Unpack, overload

from fleet.client import control
from fleet.client.client import Client, traced, traced_all
from fleet.client.refusals import refused
from fleet.errors import FleetError, InvalidOption, UnknownJob
from fleet.model import BuryReason, Seconds, Submission, TaskId
from fleet.names import check_name
from fleet.store.bulk import Cancellation, Revival
from fleet.store.connections import at_once, executor_for, is_sync
from fleet.store.enqueue import Enqueued, insert
from fleet.store.results import Cancelled, TaskStatus
from fleet.submit import EnqueueOptions

if TYPE_CHECKING:
    from fleet.app import Fleet
    from fleet.job import Job
    from fleet.options import Duration

T = TypeVar("T")
I = TypeVar("I")  # noqa: E741 -- Job[I, O] is how the design writes it
O = TypeVar("O")  # noqa: E741

_GOODBYE: Final[Seconds] = 6.0  # a pending write has five seconds, and then it is over


@dataclass(frozen=True, slots=True)
class SyncHandle(Generic[O]):
    """A task, for code that does not await: ``id``, ``job``, and whether this call made it."""

    id: TaskId
    job: str | None = field(default=None, compare=False)
    created: bool = field(default=True, compare=False)
    _sync: SyncClient = field(repr=False, compare=False, kw_only=True)

    def status(self) -> TaskStatus:
        """Return where the task is now; ``TaskNotFound`` if it is nowhere."""
        return self._sync._call(lambda client: client.status(self.id))

    def result(self, timeout: Duration | None = None) -> O:
        """Wait for the task to end and return its value, or raise what became of it."""
        value: O = self._sync._call(lambda client: client.result(self.id, timeout))
        return value

    def cancel(self) -> Cancelled:
        """Stop the task: ``cancelled``, ``requested`` if it runs now, ``ended`` if too late."""
        return self._sync._call(lambda client: client.cancel(self.id))


@dataclass(frozen=True, slots=True)
class SyncQueue:
    """What may be said to one queue, by code that does not await; see ``QueueControl``."""

    name: str
    _sync: SyncClient = field(repr=False, compare=False, kw_only=True)

    def pause(self, *, for_: Duration | None = None, until: datetime | None = None) -> None:
        """Let nobody claim from it: until it is resumed, or for so long. What runs goes on."""
        self._sync._call(lambda client: client.queue(self.name).pause(for_=for_, until=until))

    def resume(self) -> bool:
        """Let it be claimed again; False if it was not paused."""
        return self._sync._call(lambda client: client.queue(self.name).resume())

    def set(
        self, *, for_: Duration | None = None, until: datetime | None = None, **settings: object
    ) -> None:
        """Let settings beat every host's file: what ``fleet queue set`` takes, checked alike."""
        self._sync._call(
            lambda client: client.queue(self.name).set(for_=for_, until=until, **settings)
        )

    def reset(self, *keys: str) -> bool:
        """Let the files count again, for these keys or for all; False if nothing was set."""
        return self._sync._call(lambda client: client.queue(self.name).reset(*keys))

    def purge(self, *, buried: bool = False) -> int:
        """Delete what waits, or the dead letters; never what runs. Returns how many."""
        return self._sync._call(lambda client: client.queue(self.name).purge(buried=buried))


class SyncClient:
    """What ``app.sync`` is. Every method may be called from any thread."""

    def __init__(self, app: Fleet) -> None:
        self._app = app
        self._lock = threading.Lock()
        self._runner: _Runner | None = None
        _everyone.add(self)

    @overload
    def enqueue(
        self,
        job: Job[None, O],
        input: None = None,
        *,
        conn: object = None,
        **options: Unpack[EnqueueOptions],
    ) -> SyncHandle[O]: ...
    @overload
    def enqueue(
        self, job: Job[I, O], input: I, *, conn: object = None, **options: Unpack[EnqueueOptions]
    ) -> SyncHandle[O]: ...
    @overload
    def enqueue(
        self, job: str, input: Any = None, *, conn: object = None, **options: Unpack[EnqueueOptions]
    ) -> SyncHandle[Any]: ...
    def enqueue(
        self,
        job: Job[Any, Any] | str,
        input: Any = None,  # noqa: A002 -- the name is part of the contract
        *,
        conn: object = None,
        **options: Unpack[EnqueueOptions],
    ) -> SyncHandle[Any]:
        """Write one task; with ``conn=``, in the transaction of your own (sync) connection.

        >>> app.sync.enqueue("welcome-email", {"id": 7}, delay=60)     # doctest: +SKIP
        SyncHandle(id=42, job='welcome-email', created=True)
        """
        known = self._job(job)
        submission = traced(known.submission(input, **options))
        if conn is not None:
            done = insert_now(conn, [submission])[0]
        else:
            handle = self._call(lambda client: client.enqueue(known, submission))
            done = Enqueued(handle.id, handle.created)
        return SyncHandle(done.id, known.name, done.created, _sync=self)

    def enqueue_many(
        self,
        job: Job[I, O] | str,
        inputs: Iterable[I],
        *,
        conn: object = None,
        **options: Unpack[EnqueueOptions],
    ) -> list[SyncHandle[O]]:
        """Write many tasks, all or none; handles come in the order of the inputs."""
        known = self._job(job)
        submissions = traced_all(known.submissions(inputs, **options))
        if conn is not None:
            done = insert_now(conn, submissions)
        else:
            handles = self._call(lambda client: client.enqueue_many(known, submissions))
            done = [Enqueued(handle.id, handle.created) for handle in handles]
        return [SyncHandle(task_id, known.name, new, _sync=self) for task_id, new in done]

    def handle(self, task_id: TaskId) -> SyncHandle[Any]:
        """Return a handle for a task known by its id; nothing is read yet."""
        return SyncHandle(self._app.handle(task_id).id, _sync=self)

    def queue(self, name: str) -> SyncQueue:
        """Return what may be said to a queue; nothing is said yet."""
        return SyncQueue(check_name("queue", name), _sync=self)

    def cancel(
        self,
        *ids: TaskId,
        queue: str | None = None,
        job: Job[Any, Any] | str | None = None,
        key: str | None = None,
    ) -> Cancellation:
        """Stop these tasks, or all that match everything given."""
        return self._call(lambda client: control.cancel(client, ids, queue=queue, job=job, key=key))

    def revive(
        self,
        *ids: TaskId,
        queue: str | None = None,
        job: Job[Any, Any] | str | None = None,
        reason: BuryReason | None = None,
        since: datetime | None = None,
        step: str | None = None,
    ) -> Revival:
        """Bring these dead letters back, or all that match everything given."""
        return self._call(
            lambda client: control.revive(
                client, ids, queue=queue, job=job, reason=reason, since=since, step=step
            )
        )

    def close(self) -> None:
        """Write what is pending and end the thread; a later call starts a new one."""
        with self._lock:
            runner, self._runner = self._runner, None
        if runner is not None and runner.pid == os.getpid():
            runner.stop()

    def _job(self, job: Job[Any, Any] | str) -> Job[Any, Any]:
        known = self._app.jobs.get(job) if isinstance(job, str) else job
        if known is None or known.app is not self._app:
            name = job if isinstance(job, str) else job.name
            raise UnknownJob(
                f"this application has no job {name!r}; it has "
                f"{', '.join(map(repr, self._app.jobs)) or 'none'}"
            )
        return known

    def _call(self, make: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
        with self._lock:
            runner = self._runner
            if runner is None or runner.pid != os.getpid():
                self._forget()
                runner = self._runner = _Runner(self._app)
        return runner.call(make)

    def _forget(self) -> None:
        """Set a runner of another process aside, untouched."""
        if self._runner is not None:
            _inherited.append(self._runner)
            self._runner = None


class _Runner:
    """A thread with an event loop and a Client, for as long as this process lives."""

    def __init__(self, app: Fleet) -> None:
        self.pid = os.getpid()
        # poll() keeps what it watches in this process. The kernel's epoll would be shared with a
        # forked child, whose garbage collector could then unsubscribe the parent from its sockets.
        selector = getattr(selectors, "PollSelector", selectors.SelectSelector)
        self._loop = asyncio.SelectorEventLoop(selector())
        self._client = Client(app)
        self._open = False
        self._opening = asyncio.Lock()
        self._thread = threading.Thread(target=self._serve, name="fleet sync", daemon=True)
        self._thread.start()

    def call(self, make: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
        """Run a call in the loop and wait for it."""
        if threading.current_thread() is self._thread:
            raise FleetError(
                "app.sync was called inside its own event loop, which would wait for itself: "
                "await the async call there, or move the sync one to another thread"
            )
        future = asyncio.run_coroutine_threadsafe(self._run(make), self._loop)
        try:
            return future.result()
        finally:
            future.cancel()  # of use only where the wait was interrupted, as by Ctrl-C

    def stop(self) -> None:
        """End in order, within seconds whatever happens."""
        with contextlib.suppress(Exception):
            asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(_GOODBYE)
        with contextlib.suppress(RuntimeError):  # closed meanwhile
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_GOODBYE)

    async def _run(self, make: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
        if not self._open:
            async with self._opening:
                if not self._open:
                    await self._client.open()
                    self._open = True
        return await make(self._client)

    async def _close(self) -> None:
        if self._open:
            await self._client.close()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self._loop.close()


def insert_now(conn: object, submissions: Sequence[Submission]) -> list[Enqueued]:
    """Write on a connection that blocks, with no event loop anywhere."""
    if not is_sync(conn):
        raise InvalidOption(
            "conn", type(conn), "it is async: await job.enqueue(..., conn=conn) instead"
        )
    with refused():
        return at_once(insert(executor_for(conn), submissions))


_everyone: Final[weakref.WeakSet[SyncClient]] = weakref.WeakSet()
# Kept so that they are not collected: they hold sockets that are the parent's.
_inherited: Final[list[_Runner]] = []


def _after_fork() -> None:
    for client in _everyone:
        client._lock = threading.Lock()  # another thread may have held it, and is not here
        client._forget()


# Once for all, and through weak references: an exit handler of its own would keep every application
# that was ever made alive, with all its jobs.
@atexit.register
def _at_exit() -> None:
    for client in list(_everyone):
        client.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
