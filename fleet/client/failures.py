"""``async for failure in app.failures()``: what goes wrong, as it happens, once each.

Found by looking, so that it needs no NOTIFY and misses nothing while a connection is away. A row's
time is when its transaction began, and it is seen when that commits: so each look goes back by an
overlap and passes over what it has shown already, known by task and fence.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from fleet.client.pool import Pool
from fleet.errors import DatabaseUnavailable, NotOpen
from fleet.model import Failure, Seconds, TaskId
from fleet.options import moment
from fleet.store.clock import now
from fleet.store.failed import PAGE, Failed, Place, failed_after

_log = logging.getLogger("fleet.client")

# Outcomes are written in statements of milliseconds; a minute covers one that waited for a lock.
OVERLAP: Final = timedelta(minutes=1)
_LONGEST_PAUSE: Final[Seconds] = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFailure:
    """An attempt that did not succeed.

    ``outcome`` is ``failed``, ``timed_out``, ``crashed`` or ``lost``; of a burial, which is
    ``final``, its reason: ``exhausted``, ``fatal``, ``undecodable``, ``poison``, ``unstorable``.
    """

    task_id: TaskId
    job: str
    step: str
    queue: str
    attempt: int
    outcome: str
    final: bool
    error: Failure | None
    worker: str | None
    at: datetime


async def follow(
    pool: Pool, since: datetime | None, interval: Seconds
) -> AsyncIterator[TaskFailure]:
    """Yield failures until the application is closed: see ``_follow``."""
    with suppress(NotOpen):
        async for failure in _follow(pool, since, interval):
            yield failure


async def _follow(
    pool: Pool, since: datetime | None, interval: Seconds
) -> AsyncIterator[TaskFailure]:
    """Yield failures from ``since`` on; without it, those that come to light from now on."""
    seen: dict[tuple[TaskId, int], datetime] = {}
    if since is None:
        start = await pool.run(now, repeatable=True) - OVERLAP
        # What is there already is old, whatever its time; what is committed late is not.
        async for _ in _pages(pool, Place(start), seen):
            pass
    else:
        start = moment("since", since)
    floor = start
    while True:
        newest = floor + OVERLAP
        async for failed in _patiently(pool, Place(floor), seen, interval):
            newest = max(newest, failed.at)
            yield _shown(failed)
        floor = max(start, newest - OVERLAP)
        seen = {key: at for key, at in seen.items() if at >= floor}
        await asyncio.sleep(interval)


async def _patiently(
    pool: Pool, after: Place, seen: dict[tuple[TaskId, int], datetime], pause: Seconds
) -> AsyncIterator[Failed]:
    """Read like ``_pages``, but outlast a database that is away."""
    while True:
        try:
            async for failed in _pages(pool, after, seen):
                yield failed
            return
        except DatabaseUnavailable as error:
            # Each try takes five seconds, so that this is one line in ten.
            _log.warning("failures are not followed at the moment: %s", error)
            await asyncio.sleep(max(pause, _LONGEST_PAUSE))


async def _pages(
    pool: Pool, after: Place, seen: dict[tuple[TaskId, int], datetime]
) -> AsyncIterator[Failed]:
    """Read from ``after`` to the end, a page at a time, passing over what was seen."""
    while True:
        page = await pool.run(partial(failed_after, place=after), repeatable=True)
        for failed in page:
            if (failed.task_id, failed.fence) not in seen:
                seen[failed.task_id, failed.fence] = failed.at
                yield failed
        if len(page) < PAGE:
            return
        after = page[-1].place


def _shown(failed: Failed) -> TaskFailure:
    return TaskFailure(
        task_id=failed.task_id,
        job=failed.job,
        step=failed.step,
        queue=failed.queue,
        attempt=failed.attempt,
        outcome=failed.outcome,
        final=failed.final,
        error=failed.error,
        worker=failed.worker,
        at=failed.at,
    )
