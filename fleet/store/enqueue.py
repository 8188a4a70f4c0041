"""Enqueue: submissions into the arguments of the SQL functions that write them.

Nothing here reads a table: a role that may execute ``fleet.enqueue_many`` and
``fleet.enqueue_one``, and nothing else, can enqueue.

JSON goes out as text and is cast on the server. A connection that is the user's may have a codec
of its own for jsonb, which would encode our text a second time. Delays go out as text too: drivers
turn a ``timedelta`` of 24 hours into *one day*, and where the session's time zone changes its
clocks that is 23 or 25 hours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

import orjson

from fleet.model import Seconds, Submission, TaskId
from fleet.store.executor import Executor

# A statement takes at most this many tasks, and at most this many characters of input: more
# rows gain nothing (1000: 335k rows/s), and a statement of a gigabyte would take the server down.
CHUNK: Final = 1000
CHUNK_SIZE: Final = 8 * 1_048_576

_MANY: Final = """
select fleet.enqueue_many(
    $1::text[], $2::text[], $3::text[], $4::text[], $5::int[], $6::text[]::interval[],
    $7::timestamptz[], $8::int[], $9::text[], $10::text[]) as ids
"""

_ONE: Final = """
select id, created
  from fleet.enqueue_one(
    $1::text, $2::text::jsonb, $3::text, $4::text, $5::int, $6::text::interval, $7::timestamptz,
    $8::text, $9::text, $10::text, $11::text)
"""

# With all that unique takes; the others need not send it.
_UNIQUE: Final = """
select id, created
  from fleet.enqueue_one(
    $1::text, $2::text::jsonb, $3::text, $4::text, $5::int, $6::text::interval, $7::timestamptz,
    $8::text, $9::text, $10::text, $11::text, $12::text::interval, $13::text)
"""

# The same, but a slot that another open transaction has is not waited for longer than $14. The
# setting ends with the statement, unless that is part of a transaction. The case makes sure that it
# comes first.
_ONE_SOON: Final = """
with bound as materialized (select set_config('lock_timeout', $14::text, true) as value)
select e.id, e.created
  from bound b
 cross join lateral fleet.enqueue_one(
    case when b.value is not null then $1::text end, $2::text::jsonb, $3::text, $4::text, $5::int,
    $6::text::interval, $7::timestamptz, $8::text, $9::text, $10::text, $11::text,
    $12::text::interval, $13::text) e
"""


class Enqueued(NamedTuple):
    """A task's id, and whether this call made it or ``unique`` found it."""

    id: TaskId
    created: bool


class Packed(NamedTuple):
    """The arguments of ``fleet.enqueue_many``, in its order.

    What many tasks share stands once for each distinct combination (job … at), and ``which`` says
    which one a task has. A column that nobody uses is None.
    """

    input: list[str]
    job: list[str]
    step: list[str]
    queue: list[str]
    priority: list[int]
    delay: list[str | None] | None
    at: list[datetime | None] | None
    which: list[int] | None
    key: list[str | None] | None
    trace: list[str | None] | None


def pack(submissions: Sequence[Submission]) -> Packed:
    """Group submissions, none of which is ``unique``, for one statement.

    >>> order = Submission(job="order", step="render", queue="billing", input='{"id":1}')
    >>> pack([order, order])[:4]
    (['{"id":1}', '{"id":1}'], ['order'], ['render'], ['billing'])
    """
    distinct: dict[tuple[str, str, str, int, Seconds | None, datetime | None], int] = {}
    which = [
        distinct.setdefault((s.job, s.step, s.queue, s.priority, s.delay, s.at), len(distinct) + 1)
        for s in submissions
    ]
    jobs, steps, queues, priorities, delays, ats = zip(*distinct, strict=True)
    keys = [s.key for s in submissions]
    traces = [s.trace for s in submissions]
    return Packed(
        input=[s.input for s in submissions],
        job=list(jobs),
        step=list(steps),
        queue=list(queues),
        priority=list(priorities),
        delay=_unless_empty([interval(delay) for delay in delays]),
        at=_unless_empty(list(ats)),
        which=which if len(distinct) > 1 else None,
        key=_unless_empty(keys),
        trace=_unless_empty(traces),
    )


def interval(delay: Seconds | None) -> str | None:
    """Return seconds as the text of an interval without days in it.

    >>> interval(86400)
    '86400.000000 s'
    """
    return None if delay is None else f"{delay:.6f} s"


def chunks(submissions: Sequence[Submission]) -> Iterator[Sequence[Submission]]:
    """Cut into statements of a bearable size, keeping the order."""
    start = size = 0
    for end, submission in enumerate(submissions):
        if end - start == CHUNK or (size and size + len(submission.input) > CHUNK_SIZE):
            yield submissions[start:end]
            start, size = end, 0
        size += len(submission.input)
    if start < len(submissions):
        yield submissions[start:]


async def insert_many(executor: Executor, submissions: Sequence[Submission]) -> list[TaskId]:
    """Write tasks, none of them ``unique``, a chunk a statement; return their ids in order."""
    if len(submissions) == 1:
        return [(await insert_one(executor, submissions[0])).id]  # 35 of 450 µs less than in arrays
    ids: list[TaskId] = []
    for chunk in chunks(submissions):
        rows = await executor.fetch(_MANY, *pack(chunk))
        ids += rows[0][0]
    return ids


async def insert_one(executor: Executor, submission: Submission) -> Enqueued:
    """Write one task, or find the one that has its ``unique`` slot."""
    if submission.unique is None:
        rows = await executor.fetch(_ONE, *_one(submission))
    else:
        rows = await executor.fetch(_UNIQUE, *_one(submission), *_repeats(submission))
    return Enqueued(rows[0][0], rows[0][1])


async def insert_soon(executor: Executor, submission: Submission, patience: Seconds) -> Enqueued:
    """Like ``insert_one``, but raise 55P03 rather than wait longer for another transaction."""
    arguments = (*_one(submission), *_repeats(submission))
    rows = await executor.fetch(_ONE_SOON, *arguments, f"{round(patience * 1000)}ms")
    return Enqueued(rows[0][0], rows[0][1])


async def insert(executor: Executor, submissions: Sequence[Submission]) -> list[Enqueued]:
    """Write any mixture and return what became of each, in order.

    It takes several statements if there are unique ones among them, or many: whoever wants all or
    nothing opens a transaction around it.
    """
    plain = [s for s in submissions if s.unique is None]
    ids = iter(await insert_many(executor, plain))
    return [
        Enqueued(next(ids), True) if s.unique is None else await insert_one(executor, s)
        for s in submissions
    ]


def children_json(submissions: Sequence[Submission]) -> str | None:
    """Return the argument of ``fleet.spawn``: what a step enqueues, as one JSON document."""
    if not submissions:
        return None
    children: dict[str, Any] = {}
    plain = [s for s in submissions if s.unique is None]
    if plain:
        children["many"] = {k: v for k, v in pack(plain)._asdict().items() if v is not None}
    unique = [s for s in submissions if s.unique is not None]
    if unique:
        children["one"] = [
            dict(zip(_ONE_NAMES, (*_one(s), *_repeats(s)), strict=True)) for s in unique
        ]
    return orjson.dumps(children).decode()


_ONE_NAMES: Final = (
    "job",
    "input",
    "queue",
    "step",
    "priority",
    "delay",
    "at",
    "key",
    "unique_key",
    "unique_scope",
    "traceparent",
    "unique_for",
    "on_repeat",
)


def _one(s: Submission) -> tuple[Any, ...]:
    return (
        s.job,
        s.input,
        s.queue,
        s.step,
        s.priority,
        interval(s.delay),
        s.at,
        s.key,
        s.unique,
        s.unique_scope,
        s.trace,
    )


def _repeats(s: Submission) -> tuple[str | None, str]:
    return interval(s.unique_for), s.on_repeat


def _unless_empty(column: list[Any]) -> list[Any] | None:
    return None if all(value is None for value in column) else column
