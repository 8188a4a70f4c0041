"""Enqueues under ``unique``, which may have to wait for somebody's open transaction.

The slot may be held by a task that another transaction has written and not committed: only its end
decides whether ours is new. That wait happens in the server and takes a connection, so it is
done in turns: a short wait each, never on the last connection, until the time of the call is over.

    turn ─▶ insert, waiting 0.2 s at the most ─▶ done
     ▲                          │ the slot is still held
     └────────── pause ◀────────┘
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Final

from fleet.client.pool import Connection, Pool
from fleet.errors import FleetError, UniqueBlocked
from fleet.model import Seconds, Submission
from fleet.store.blockers import Blocker, blockers
from fleet.store.enqueue import Enqueued, insert_soon
from fleet.store.failures import is_locked

_WAIT: Final[Seconds] = 0.2
_PAUSE: Final[Seconds] = 0.05


class _Held(FleetError):
    """This turn is over, and the slot is still held."""


class Turns:
    """Carries out enqueues under ``unique`` on a pool, and leaves one of its connections alone."""

    def __init__(self, pool: Pool, connections: int, budget: Seconds) -> None:
        self._pool = pool
        self._budget = budget
        self._turns = asyncio.Semaphore(max(1, connections - 1))
        self._seen: Sequence[Blocker] = ()  # by whom the latest was blocked

    async def enqueue(self, submission: Submission) -> Enqueued:
        """Write the task or find the one that has its slot; or raise ``UniqueBlocked``."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._budget
        waited = False

        async def insert(conn: Connection) -> Enqueued:
            # Who is in the way is asked from the second turn on: most waits are over by then.
            async with self._watching(conn) if waited else contextlib.nullcontext():
                try:
                    return await insert_soon(conn, submission, _WAIT)
                except Exception as error:
                    if is_locked(error):
                        raise _Held from error
                    raise

        while clock() < deadline:
            async with self._turn(deadline) as mine:
                if not mine:
                    break
                try:
                    return await self._pool.run(insert, within=deadline - clock())
                except _Held:
                    waited = True
            await asyncio.sleep(_PAUSE)
        by = {blocker.pid: str(blocker) for blocker in self._seen}
        raise UniqueBlocked(submission.job, str(submission.unique), self._budget, by)

    @contextlib.asynccontextmanager
    async def _turn(self, deadline: Seconds) -> AsyncIterator[bool]:
        """Wait for a turn until the deadline; False if it did not come."""
        try:
            async with asyncio.timeout_at(deadline):
                await self._turns.acquire()
        except TimeoutError:
            yield False
            return
        try:
            yield True
        finally:
            self._turns.release()

    @contextlib.asynccontextmanager
    async def _watching(self, conn: Connection) -> AsyncIterator[None]:
        """Look, from another connection, for whom this one waits."""
        looking = asyncio.create_task(self._look(conn.get_server_pid()), name="fleet unique")
        try:
            yield
        finally:
            looking.cancel()
            await asyncio.wait([looking])

    async def _look(self, pid: int) -> None:
        await asyncio.sleep(_WAIT / 4)  # until it waits
        # Behind a pooler the number is not the server's; a role may not be let to see.
        with contextlib.suppress(FleetError):
            self._seen = (
                await self._pool.run(
                    lambda conn: blockers(conn, pid), repeatable=True, within=_WAIT
                )
                or self._seen
            )
