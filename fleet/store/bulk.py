"""Cancel, purge and revive in bulk: batch by batch, so that no statement locks a million rows.

Each batch is a call of a function that looks at a stretch of tasks, in the order of their ids, and
says how far it got. What comes after the operation has begun is not part of it: its tasks have
higher ids than ``up_to``. All batches of one operation count on in one line of the log.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime
from functools import partial
from typing import Final, NamedTuple, Protocol, TypeAlias, TypeVar

import orjson

from fleet.model import TaskId
from fleet.store.executor import Executor

T = TypeVar("T")

_COUNT_LIVE: Final = """
select count(*) filter (where ($1::text is null or t.queue = $1::text)
                          and ($2::text is null or t.job = $2::text)
                          and ($3::text is null or t.key = $3::text)
                          and (not $4::boolean or t.state <> 'running')) as n,
       coalesce(max(t.id), 0) as newest
  from fleet.task t
"""

_COUNT_BURIED: Final = """
select count(*) filter (where ($1::text is null or b.queue = $1::text)
                          and ($2::text is null or b.job = $2::text)
                          and ($3::text is null or b.reason = $3::text)
                          and ($4::timestamptz is null or b.buried_at >= $4::timestamptz)) as n,
       coalesce(max(b.id), 0) as newest
  from fleet.buried b
"""

_CANCEL: Final = """
select cancelled, requested, last, entry
  from fleet.cancel_where($1::text, $2::text, $3::text, above => $4::bigint, up_to => $5::bigint,
                          entry => $6::bigint, by => $7::text)
"""

_PURGE: Final = """
select purged, last, entry
  from fleet.purge($1::text, $2::boolean, above => $3::bigint, up_to => $4::bigint,
                   entry => $5::bigint, by => $6::text)
"""

_REVIVE: Final = """
select revived, refused::text as refused, last, entry
  from fleet.revive_where($1::text, $2::text, $3::text, $4::timestamptz, $5::text,
                          above => $6::bigint, up_to => $7::bigint, entry => $8::bigint,
                          by => $9::text)
"""

_NEWEST: Final = """
select coalesce((select max(t.id) from fleet.task t), 0) as live,
       coalesce((select max(b.id) from fleet.buried b), 0) as buried
"""

# Everything that is buried, in a filter that must say something.
ALWAYS: Final = datetime(1970, 1, 1).astimezone()


class Found(NamedTuple):
    """How many match, and the last id there is."""

    matches: int
    newest: TaskId


class Place(NamedTuple):
    """How far an operation has got, and its line in the log."""

    above: TaskId = 0
    entry: int | None = None


class Cancellation(NamedTuple):
    """How many will not run (again), and how many run and were asked to stop."""

    cancelled: int
    requested: int


class Revival(NamedTuple):
    """Who is live again, and who is not and why."""

    revived: list[TaskId]
    refused: dict[TaskId, str]


Batch: TypeAlias = Callable[[Executor, Place], Awaitable[tuple[T, Place | None]]]


class Run(Protocol):
    """Carries out one statement on a connection of the caller's choice."""

    async def __call__(self, act: Callable[[Executor], Awaitable[T]], /) -> T:
        """Return what ``act`` returns."""


async def in_batches(run: Run, batch: Batch[T]) -> AsyncIterator[T]:
    """Carry out a batch at a time and yield what each did."""
    place: Place | None = Place()
    while place is not None:
        done, place = await run(partial(_at, batch=batch, place=place))
        yield done


async def _at(executor: Executor, batch: Batch[T], place: Place) -> tuple[T, Place | None]:
    return await batch(executor, place)


def _onwards(last: TaskId | None, entry: int | None) -> Place | None:
    return None if last is None else Place(last, entry)


# ── what there is ────────────────────────────────────────────────────────────────────────────────


async def newest(executor: Executor, *, buried: bool = False) -> TaskId:
    """Return the last id there is, for an operation that begins now."""
    row = (await executor.fetch(_NEWEST))[0]
    last: TaskId = row["buried" if buried else "live"]
    return last


async def count_live(
    executor: Executor,
    *,
    queue: str | None = None,
    job: str | None = None,
    key: str | None = None,
    idle: bool = False,
) -> Found:
    """Count the live tasks that match; only those that do not run, if ``idle``."""
    row = (await executor.fetch(_COUNT_LIVE, queue, job, key, idle))[0]
    return Found(row["n"], row["newest"])


async def count_buried(
    executor: Executor,
    *,
    queue: str | None = None,
    job: str | None = None,
    reason: str | None = None,
    since: datetime | None = None,
) -> Found:
    """Count the dead letters that match."""
    row = (await executor.fetch(_COUNT_BURIED, queue, job, reason, since))[0]
    return Found(row["n"], row["newest"])


# ── what is done ─────────────────────────────────────────────────────────────────────────────────


def cancel(
    *, queue: str | None, job: str | None, key: str | None, up_to: TaskId, by: str | None
) -> Batch[Cancellation]:
    """Return the batch that cancels what matches all that is given."""

    async def batch(executor: Executor, place: Place) -> tuple[Cancellation, Place | None]:
        where = (place.above, up_to, place.entry)
        row = (await executor.fetch(_CANCEL, queue, job, key, *where, by))[0]
        done = Cancellation(row["cancelled"], row["requested"])
        return done, _onwards(row["last"], row["entry"])

    return batch


def purge(queue: str, *, buried: bool, up_to: TaskId, by: str | None) -> Batch[int]:
    """Return the batch that deletes what waits in a queue, or its dead letters."""

    async def batch(executor: Executor, place: Place) -> tuple[int, Place | None]:
        row = (await executor.fetch(_PURGE, queue, buried, place.above, up_to, place.entry, by))[0]
        return row["purged"], _onwards(row["last"], row["entry"])

    return batch


def revive(
    *,
    queue: str | None,
    job: str | None,
    reason: str | None,
    since: datetime | None,
    step: str | None,
    up_to: TaskId,
    by: str | None,
) -> Batch[Revival]:
    """Return the batch that brings back what matches all that is given."""

    async def batch(executor: Executor, place: Place) -> tuple[Revival, Place | None]:
        chosen = (queue, job, reason, since, step)
        rows = await executor.fetch(_REVIVE, *chosen, place.above, up_to, place.entry, by)
        refused = {each["id"]: each["why"] for each in orjson.loads(rows[0]["refused"])}
        done = Revival(list(rows[0]["revived"]), refused)
        return done, _onwards(rows[0]["last"], rows[0]["entry"])

    return batch
