"""The options of enqueue, checked once and applied to as many inputs as there are."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypedDict, get_args

from fleet.errors import InvalidOption
from fleet.model import Json, Seconds, Submission, UniqueScope
from fleet.names import check_name
from fleet.options import Duration, label, moment, priority, seconds
from fleet.policy import Key

if TYPE_CHECKING:
    from fleet.job import Job


class EnqueueOptions(TypedDict, total=False):
    """What ``enqueue`` takes besides the input; ``None`` is the same as leaving it out."""

    delay: Duration | None
    at: datetime | None
    priority: int | None
    key: str | None
    unique: str | None
    unique_scope: UniqueScope
    queue: str | None


_KNOWN: Final = EnqueueOptions.__annotations__.keys()


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Checked options of one job, waiting for inputs."""

    job: str
    step: str
    queue: str
    priority: int
    delay: Seconds | None
    at: datetime | None
    key: Key | None
    unique: str | None
    unique_scope: UniqueScope

    def submission(self, value: object, encoded: Json) -> Submission:
        """Return the task for one input; a key that is computed is computed from it here."""
        key = self.key
        if callable(key):
            computed = key(value)
            key = None if computed is None else label("key", computed)
        return Submission(
            job=self.job,
            step=self.step,
            queue=self.queue,
            input=encoded,
            priority=self.priority,
            delay=self.delay,
            at=self.at,
            key=key,
            unique=self.unique,
            unique_scope=self.unique_scope,
        )


def defaults(job: Job[Any, Any]) -> Prepared:
    """Return what a task of this job is enqueued with where the call says nothing."""
    policy = job.policy(job.first)
    return Prepared(
        job=job.name,
        step=job.first.name,
        queue=job.queue,
        priority=policy.priority,
        delay=None,
        at=None,
        key=policy.key,
        unique=None,
        unique_scope="while_live",
    )


def prepare(base: Prepared, options: EnqueueOptions) -> Prepared:
    """Check the options of one enqueue and lay them over the job's defaults."""
    if not options:
        return base
    unknown = options.keys() - _KNOWN
    if unknown:
        raise TypeError(f"no such option: {', '.join(sorted(unknown))}; {', '.join(_KNOWN)} are")
    delay, at = options.get("delay"), options.get("at")
    if delay is not None and at is not None:
        raise InvalidOption("delay", delay, "give delay= or at=, not both")
    scope = options.get("unique_scope", "while_live")
    if scope not in get_args(UniqueScope):
        raise InvalidOption("unique_scope", scope, f"one of {', '.join(get_args(UniqueScope))}")
    wanted, queue = options.get("priority"), options.get("queue")
    key, unique = options.get("key"), options.get("unique")
    return Prepared(
        job=base.job,
        step=base.step,
        queue=base.queue if queue is None else check_name("queue", queue),
        priority=base.priority if wanted is None else priority("priority", wanted),
        delay=None if delay is None else seconds("delay", delay),
        at=None if at is None else moment("at", at),
        key=base.key if key is None else label("key", key),
        unique=None if unique is None else label("unique", unique),
        unique_scope=scope,
    )
