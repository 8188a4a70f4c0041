"""Run everything that is due, in this process, with no supervisor.

The same claims, the same runner, the same outcomes as in production; only the processes are
missing. Steps run one after another, the most urgent and oldest first, so that a test is
repeatable.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from fleet.database import located_async
from fleet.errors import FleetError
from fleet.lifecycle import Advance, Bury, Cancel, Finish, PutBack, Transition
from fleet.model import Claim, OwnerId, Seconds, TaskId
from fleet.store import beats, claims, depths, results
from fleet.store.connections import executor_for, is_sync
from fleet.store.executor import Executor
from fleet.store.outcomes import Outcome, write
from fleet.store.standing import Standing, standing
from fleet.testing.callers import Borrowed, caller_for
from fleet.testing.clock import Clock
from fleet.testing.connections import connection
from fleet.testing.notes import Notes
from fleet.worker.lifespan import lifespan
from fleet.worker.runner import Connect, Runner
from fleet.worker.threads import Bench

if TYPE_CHECKING:
    from fleet.app import Fleet

_LEASE: Final[Seconds] = 15.0  # as a supervisor has it; a drain is not watched
_BUSY: Final[Seconds] = 2.0  # somebody's transaction that holds a row takes so long at the most


@dataclass(slots=True)
class Drained:
    """What a drain did: how many attempts ran, and the tasks by how they ended."""

    attempts: int = 0
    succeeded: list[TaskId] = field(default_factory=list)
    buried: list[TaskId] = field(default_factory=list)
    cancelled: list[TaskId] = field(default_factory=list)
    put_back: list[TaskId] = field(default_factory=list)  # an entry each time
    lost: list[TaskId] = field(default_factory=list)


async def drain(
    app: Fleet, *, conn: Any = None, clock: Clock | None = None, limit: int = 100_000
) -> Drained:
    """Run tasks until nothing is ready; with ``clock``, move the time to what comes later, too.

    ``conn`` runs everything on an open connection of any kind that ``enqueue`` takes, inside its
    transaction: for tests that roll everything back. Transactional steps then need it to be
    asyncpg's. ``limit`` attempts end the drain with an error, so that a job that loops for ever
    fails its test.
    """
    async with _workplace(app, conn) as place:
        return await _drain(app, place, clock, limit)


def drain_sync(app: Fleet, *, conn: Any = None, limit: int = 100_000) -> Drained:
    """Like ``drain``, for tests that are not async.

    With a connection that blocks (psycopg's, SQLAlchemy's, Django's) everything on it, and every
    ``def`` step, happens in this thread: steps see what the test has not committed.
    """
    if conn is not None and is_sync(conn):
        caller = caller_for(conn)
        place = _Place(Borrowed(executor_for(conn), caller), _same(conn), bench=caller)
        return caller.drive(lambda: _drain(app, place, None, limit))
    work = drain(app, conn=conn, limit=limit)
    if conn is not None:
        return asyncio.run(work)
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(asyncio.run, work).result()


async def _drain(app: Fleet, place: _Place, clock: Clock | None, limit: int) -> Drained:
    async with lifespan(app) as state:
        return await _Drain(app, place, state, clock, limit).run()


@dataclass(slots=True)
class _Place:
    """Where a drain runs: one connection for its own statements, and transactions for steps."""

    executor: Executor
    connect: Connect
    aside: Executor | None = None  # for what is written while a step runs
    bench: Bench | None = None  # where def steps run, if not in a thread of their own


@contextlib.asynccontextmanager
async def _workplace(app: Fleet, conn: Any) -> AsyncIterator[_Place]:
    if conn is None:
        async with (
            located_async(app.database_url) as url,
            connection(url) as own,
            connection(url) as aside,
        ):
            yield _Place(own, lambda: connection(url), aside)
        return
    yield _Place(executor_for(conn), _same(conn))


def _same(conn: Any) -> Connect:
    @contextlib.asynccontextmanager
    async def same() -> AsyncIterator[Any]:
        if not hasattr(conn, "is_in_transaction"):
            raise FleetError(
                "a transactional step needs an asyncpg connection for ctx.tx: give drain(conn=) "
                "one, or no conn at all"
            )
        yield conn

    return same


def _still_open(outcome: Outcome[Transition]) -> str:
    error = getattr(outcome.transition, "error", None)
    why = f" It ended with {error.type}: {error.message}" if error is not None else ""
    return (
        f"drain: what became of task {outcome.claim.id} ({outcome.claim.job}) cannot be written: a "
        f"transaction that changes it is still open.{why}"
    )


class _Drain:
    def __init__(
        self, app: Fleet, place: _Place, state: Any, clock: Clock | None, limit: int
    ) -> None:
        self.app = app
        self.place = place
        self.state = state
        self.clock = clock
        self.limit = limit
        self.known = [f"{job.name}/{step.name}" for job in app.jobs.values() for step in job.steps]
        self.known += [f"{job.name}/" for job in app.jobs.values()]
        self.done = Drained()

    async def run(self) -> Drained:
        db = self.place.executor
        owner = await beats.register(db, socket.gethostname(), os.getpid(), _LEASE)
        notes = Notes(self.place.aside, owner)

        async def look(claim: Claim) -> Standing:
            return await standing(db, owner, claim)

        runner = Runner(
            self.app,
            owner,
            f"drain:{os.getpid()}",
            connect=self.place.connect,
            look=look,
            state=self.state,
            on_progress=notes.take,
            bench=self.place.bench,
        )
        try:
            while True:
                if await self._pass(owner, runner, notes):
                    continue
                if not await self._later():
                    return self.done
        finally:
            runner.close()
            await notes.written()
            await beats.forget(db, owner)

    async def _pass(self, owner: OwnerId, runner: Runner, notes: Notes) -> bool:
        """Run the one most urgent task of each queue; False if there was none."""
        db = self.place.executor
        self.done.cancelled += await results.cancel_leftovers(db)
        promoted = await claims.promote(db)
        granted = await claims.grant_keys(db)
        ran = False
        for queue in await depths.queues_in_line(db):
            for claim in await claims.claim(db, owner, queue, 1, self.known):
                ran = True
                await self._run(owner, runner, claim, notes)
        return ran or bool(promoted) or bool(granted)

    async def _run(self, owner: OwnerId, runner: Runner, claim: Claim, notes: Notes) -> None:
        following: Claim | None = claim
        while following is not None:
            self.done.attempts += 1
            if self.done.attempts > self.limit:
                raise FleetError(f"drain: {self.limit} attempts and no end; does a job loop?")
            attempt = await runner.run(following)
            await notes.written()
            fence = attempt.fence
            if fence is None:
                fence = await self._write(owner, attempt.outcome)
            self._count(attempt.outcome, fence)
            following = None if fence is None else attempt.next(fence)
            if following is not None and await self._cancelled(owner, following, attempt.outcome):
                return

    async def _cancelled(self, owner: OwnerId, claim: Claim, before: Outcome[Transition]) -> bool:
        """End a task between two steps, if somebody has asked for that while the first one ran."""
        if not await results.is_to_be_cancelled(self.place.executor, claim.id):
            return False
        outcome = before._replace(claim=claim, transition=Cancel(), took=0.0, children=None)
        self._count(outcome, await self._write(owner, outcome))
        return True

    async def _write(self, owner: OwnerId, outcome: Outcome[Transition]) -> int | None:
        clock = asyncio.get_running_loop().time
        deadline = clock() + _BUSY
        while True:
            report = await write(self.place.executor, owner, [outcome])
            if outcome.claim.id not in report.busy:
                return report.fences.get(outcome.claim.id)
            if clock() > deadline:
                raise FleetError(_still_open(outcome))
            await asyncio.sleep(0.01)  # whoever has the row locked lets go of it soon

    def _count(self, outcome: Outcome[Transition], fence: int | None) -> None:
        task = outcome.claim.id
        if fence is None:
            self.done.lost.append(task)
            return
        match outcome.transition:
            case Finish():
                self.done.succeeded.append(task)
            case Bury():
                self.done.buried.append(task)
            case Cancel():
                self.done.cancelled.append(task)
            case PutBack():
                self.done.put_back.append(task)
            case Advance():
                pass

    async def _later(self) -> bool:
        """Move the clock to the next task that is due; False if there is none, or no clock."""
        if self.clock is None:
            return False
        seconds = await claims.next_due(self.place.executor)
        if seconds is None:
            return False
        await self.clock.advance(max(seconds, 0) + 0.001)
        return True
