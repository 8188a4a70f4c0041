"""The options of enqueue, checked once and applied to as many inputs as there are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypedDict, get_args

from fleet.errors import InvalidOption
from fleet.model import Json, OnRepeat, Seconds, Submission, UniqueScope
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
    unique_scope: UniqueScope | None
    unique_for: Duration | None
    on_repeat: OnRepeat | None
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
    unique_for: Seconds | None
    on_repeat: OnRepeat

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
            unique_for=self.unique_for,
            on_repeat=self.on_repeat,
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
        unique_for=None,
        on_repeat="keep",
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
    scope, period, on_repeat = check_repeats(options)
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
        unique_for=period,
        on_repeat=on_repeat,
    )


def check_repeats(
    options: Mapping[str, Any],
) -> tuple[UniqueScope, Seconds | None, OnRepeat]:
    """Check what goes with ``unique``: how long a name is taken, and what a repeat does."""
    scope, period = options.get("unique_scope"), options.get("unique_for")
    on_repeat = options.get("on_repeat")
    if scope is not None and scope not in get_args(UniqueScope):
        raise InvalidOption("unique_scope", scope, f"one of {', '.join(get_args(UniqueScope))}")
    if on_repeat is not None and on_repeat not in get_args(OnRepeat):
        raise InvalidOption("on_repeat", on_repeat, f"one of {', '.join(get_args(OnRepeat))}")
    if options.get("unique") is None:
        for name, value in (("unique_for", period), ("on_repeat", on_repeat)):
            if value not in (None, "keep"):
                raise InvalidOption(name, value, "goes with unique=, the name that repeats share")
    if period is not None:
        if scope is not None:
            raise InvalidOption("unique_for", period, "give unique_scope= or unique_for=, not both")
        period = seconds("unique_for", period)
        if period < 0.001:
            raise InvalidOption("unique_for", period, "a millisecond or more")
    if on_repeat == "push_back" and options.get("delay") is None and options.get("at") is None:
        hint = "give delay= too (or at=): it counts anew with every repeat"
        raise InvalidOption("on_repeat", on_repeat, hint)
    return scope or "while_live", period, on_repeat or "keep"
