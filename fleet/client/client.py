"""The application's side of the database: enqueue, handles, results, failures.

One Client serves one application in one event loop. It holds one connection for enqueues, which all
share it, and a few others: an enqueue under ``unique`` may have to wait for somebody's open
transaction, and nobody else should wait with it (``fleet.client.unique``).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import replace
from datetime import datetime
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import asyncpg

from fleet.client.coalesce import Coalescer
from fleet.client.control import QueueControl
from fleet.client.decode import ResultDecoders
from fleet.client.failures import TaskFailure, follow
from fleet.client.handle import Handle
from fleet.client.pool import BUDGET, Act, Connection, Line, Pool
from fleet.client.refusals import refused
from fleet.client.unique import Turns
from fleet.client.waiter import Waiter
from fleet.config import DatabaseUrl, find_database
from fleet.errors import InvalidOption, NotOpen, ResultGone, TaskBuried, TaskCancelled
from fleet.model import Seconds, Submission, TaskId
from fleet.options import Duration, seconds
from fleet.people import me
from fleet.store import results
from fleet.store.connections import executor_for
from fleet.store.enqueue import Enqueued, chunks, insert, insert_many
from fleet.store.migrations import require
from fleet.telemetry import current_traceparent

if TYPE_CHECKING:
    from fleet.app import Fleet
    from fleet.client.sync import SyncClient
    from fleet.embedded import Server
    from fleet.job import Job

T = TypeVar("T")

_OTHERS: Final = 3  # connections besides the one that enqueues


class OtherLoop(NotOpen):
    """The application was opened in another event loop."""

    def __init__(self) -> None:
        Exception.__init__(
            self,
            "this Fleet was opened in another event loop, and its connections live there. Open it "
            "in the loop that uses it, or use app.sync, which may be called from any thread.",
        )


class _Open:
    """What exists only while the application is open."""

    def __init__(self, writer: Line, others: Pool, unique: Turns, server: Server | None) -> None:
        self.writer, self.others, self.unique, self._server = writer, others, unique, server
        self.coalescer = Coalescer(self._write)
        self.waiter = Waiter(self._look)

    async def _write(self, submissions: Sequence[Submission]) -> list[TaskId]:
        return await self.writer.run(partial(_insert_many, submissions))

    async def _look(self, ids: Sequence[TaskId]) -> list[results.Sight]:
        return await self.others.run(lambda conn: results.look(conn, ids), repeatable=True)

    async def close(self) -> None:
        await self.coalescer.close()
        self.waiter.close()
        await asyncio.gather(self.writer.close(), self.others.close())
        if self._server is not None:
            await asyncio.to_thread(self._server.release)


class Client:
    """Enqueues tasks of one application and follows them; ``budget`` bounds every call."""

    def __init__(self, app: Fleet, *, budget: Seconds = BUDGET, connections: int = _OTHERS) -> None:
        self._app = app
        self._budget = budget
        self._connections = connections
        self._users = 0
        self._opening: asyncio.Task[_Open] | None = None
        self._decoders = ResultDecoders(app)

    # -- open and close --------------------------------------------------------------------------

    async def open(self) -> None:
        """Connect and check the schema; may be nested, the last ``close`` closes."""
        if self._opening is None:
            self._opening = asyncio.create_task(self._open(), name="fleet open")
        self._check_loop(self._opening)
        opening = self._opening
        self._users += 1
        with ExitStack() as undo:
            undo.callback(self._give_up, opening)
            await asyncio.shield(opening)
            undo.pop_all()

    def _give_up(self, opening: asyncio.Task[_Open]) -> None:
        self._users -= 1
        if not self._users and self._opening is opening:
            opening.cancel()
            self._opening = None

    async def close(self) -> None:
        """Write what is pending and disconnect, if this is the last of nested uses."""
        if self._opening is None:
            return
        self._check_loop(self._opening)
        self._users -= 1
        if not self._users:
            opened, self._opening = await self._opening, None
            await opened.close()

    async def _open(self) -> _Open:
        found = find_database(self._app.database_url)
        server = None
        if isinstance(found, DatabaseUrl):
            url = found.url
        else:
            from fleet.embedded import serve

            server = await asyncio.to_thread(serve(found.root).acquire)
            url = server.url
        others = Pool(url, size=self._connections, budget=self._budget)
        unique = Turns(others, self._connections, self._budget)
        opened = _Open(Line(url, self._budget), others, unique, server)
        async with AsyncExitStack() as undo:
            undo.push_async_callback(opened.close)
            await opened.others.open()
            await opened.writer.run(_check_schema, repeatable=True)
            undo.pop_all()
        return opened

    def _check_loop(self, opening: asyncio.Task[_Open]) -> None:
        if opening.get_loop() is not asyncio.get_running_loop():
            raise OtherLoop

    @property
    def _opened(self) -> _Open:
        if self._opening is None or not self._opening.done():
            raise NotOpen
        self._check_loop(self._opening)
        return self._opening.result()

    # -- enqueue ---------------------------------------------------------------------------------

    async def enqueue(
        self, job: Job[Any, Any], submission: Submission, conn: object = None
    ) -> Handle[Any]:
        """Write one task: on ``conn``, or together with the other calls of this moment."""
        submission = traced(submission)
        if conn is not None:
            with refused():
                done = (await insert(executor_for(conn), [submission]))[0]
        elif submission.unique is not None:
            with refused():
                done = await self._opened.unique.enqueue(submission)
        else:
            done = Enqueued(await self._opened.coalescer.submit(submission), True)
        return Handle(done.id, job.name, done.created, _client=self)

    async def enqueue_many(
        self, job: Job[Any, Any], submissions: Sequence[Submission], conn: object = None
    ) -> list[Handle[Any]]:
        """Write all of them or none; handles come in their order."""
        submissions = traced_all(submissions)
        with refused():
            if not submissions:
                done = []
            elif conn is not None:
                done = await insert(executor_for(conn), submissions)
            else:
                done = await self._opened.others.run(partial(_insert_all, submissions))
        return [Handle(task_id, job.name, created, _client=self) for task_id, created in done]

    # -- tasks -----------------------------------------------------------------------------------

    def handle(self, task_id: TaskId) -> Handle[Any]:
        """Return a handle for a task known by its id; nothing is read yet."""
        if isinstance(task_id, bool) or not isinstance(task_id, int) or not 0 < task_id < 2**63:
            raise InvalidOption("task_id", task_id, "the id of a task, a positive int")
        return Handle(task_id, _client=self)

    async def status(self, task_id: TaskId) -> results.TaskStatus:
        """Return where a task is now."""
        with refused():
            return await self._opened.others.run(
                lambda conn: results.status(conn, task_id), repeatable=True
            )

    async def cancel(self, task_id: TaskId) -> results.Cancelled:
        """Stop a task; asking twice does no harm."""
        with refused():
            return await self._opened.others.run(
                lambda conn: results.cancel(conn, task_id, me()), repeatable=True
            )

    async def result(self, task_id: TaskId, timeout: Duration | None = None) -> Any:
        """Wait for a task's end and return its value, or raise what became of it."""
        limit = None if timeout is None else seconds("timeout", timeout)
        with refused():
            sight = await self._opened.waiter.wait(task_id, limit)
        if sight.state == "succeeded":
            return self._decoders.decode(sight)
        if sight.state == "cancelled":
            raise TaskCancelled(task_id)
        if sight.state == "buried":
            error = f"{sight.error.type}: {sight.error.message}" if sight.error else None
            raise TaskBuried(task_id, sight.reason or "unknown", error)
        raise ResultGone(task_id)

    def failures(
        self, since: datetime | None = None, *, interval: Duration = 1.0
    ) -> AsyncIterator[TaskFailure]:
        """Follow what goes wrong: every attempt that fails, and every burial, once each."""
        return follow(self._opened.others, since, seconds("interval", interval))

    # -- what people tell the fleet ----------------------------------------------------------------

    def queue(self, name: str) -> QueueControl:
        """Return what may be said to a queue."""
        return QueueControl(self, name)

    async def tell(self, act: Act[T]) -> T:
        """Carry out what does no harm if it is done twice."""
        with refused():
            return await self._opened.others.run(act, repeatable=True)

    @cached_property
    def sync(self) -> SyncClient:
        """The same for code that does not await."""
        from fleet.client.sync import SyncClient

        return SyncClient(self._app)


def traced(submission: Submission) -> Submission:
    """Return the submission as part of the trace we are in, if we are in one."""
    trace = current_traceparent() if submission.trace is None else None
    return submission if trace is None else replace(submission, trace=trace)


def traced_all(submissions: Sequence[Submission]) -> Sequence[Submission]:
    """Return the submissions as parts of the trace we are in, if we are in one."""
    if current_traceparent() is None:
        return submissions
    return [traced(submission) for submission in submissions]


async def _insert_many(submissions: Sequence[Submission], conn: Connection) -> list[TaskId]:
    return await insert_many(conn, submissions)


async def _insert_all(submissions: Sequence[Submission], conn: Connection) -> list[Enqueued]:
    if len(list(chunks(submissions))) == 1 and all(s.unique is None for s in submissions):
        return await insert(conn, submissions)  # one statement is a transaction of its own
    async with conn.transaction():
        return await insert(conn, submissions)


async def _check_schema(conn: Connection) -> None:
    try:
        await require(conn)
    except asyncpg.InsufficientPrivilegeError:
        # A role that may only enqueue need not see the version: a missing function tells as well.
        return
