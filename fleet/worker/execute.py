"""One attempt of one step: decode, call, interpret. What comes out is an event for ``lifecycle``.

    claim ─▶ find the step ─▶ decode ─▶ call it (middleware, timeout) ─▶ interpret ─▶ event

Nothing here writes to the database.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import traceback
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from fleet.codec import encode
from fleet.context import Context
from fleet.errors import DecodeError, Fatal, FleetError
from fleet.flow import Done, Goto, Next, Snooze, To
from fleet.job import Job
from fleet.lifecycle import Advanced, Cancelled, Completed, Event, Failed, Refused, Snoozed
from fleet.model import Claim, Failure, Seconds
from fleet.options import label
from fleet.step import Step
from fleet.worker.threads import Bench

MAX_TRACEBACK: Final = 20_000
MAX_MESSAGE: Final = 4_000


class Misrouted(FleetError):
    """The claim names a job or step that this application does not have; it must be released."""


class StepTimeout(FleetError, TimeoutError):
    """The step did not end within its timeout."""

    def __init__(self, timeout: Seconds) -> None:
        super().__init__(f"the step did not end within its timeout of {timeout:g}s")


def find_step(jobs: Mapping[str, Job[Any, Any]], claim: Claim) -> tuple[Job[Any, Any], Step]:
    """Return the job and step of a claim; an empty step is the job's first."""
    job = jobs.get(claim.job)
    step: Step | None = None
    if job is not None:
        named = (step for step in job.steps if step.name == claim.step)
        step = next(named, None) if claim.step else job.first
    if job is None or step is None:
        raise Misrouted(f"this application has no {claim.job}.{claim.step or '<first>'}")
    return job, step


async def call(
    context: Context,
    step: Step,
    value: Any,
    *,
    timeout: Seconds,
    middleware: tuple[Callable[..., Any], ...],
    bench: Bench,
) -> Any:
    """Run the step inside its middleware until it returns, raises, or its time is up."""

    async def innermost() -> Any:
        args = (context, value) if step.takes_input else (context,)
        if step.is_async:
            return await step.fn(*args)
        return await bench.run(functools.partial(step.fn, *args))

    chain: Callable[[], Awaitable[Any]] = innermost
    for layer in reversed(middleware):
        chain = functools.partial(layer, context, chain)
    # The turn first: waiting for another step is not this one's time.
    async with contextlib.nullcontext() if step.is_async else bench.turn():
        try:
            async with asyncio.timeout(timeout) as limit:
                returned = await chain()
                context._check_finish()
                return returned
        except TimeoutError as error:
            if limit.expired():
                raise StepTimeout(timeout) from error
            raise


def interpret(job: Job[Any, Any], step: Step, returned: Any) -> Event:
    """Turn what the step returned into what happened, with values encoded."""
    limit = job.app.max_payload
    match returned:
        case Snooze():
            return Snoozed(returned.delay)
        case Done():
            return Completed(encode(returned.value, what="result", limit=limit))
        case Goto():
            return _advanced(job, job.target(returned.target), returned.value, returned.delay)
        case Next():
            value, delay = returned.value, returned.delay
        case To():
            raise FleetError(f"{type(returned).__name__} is no way to go on that Fleet knows")
        case _:
            value, delay = returned, 0.0
    following = job.after(step)
    if following is None:
        return Completed(encode(value, what="result", limit=limit))
    return _advanced(job, following, value, delay)


def _advanced(job: Job[Any, Any], to: Step, value: Any, delay: Seconds) -> Advanced:
    return Advanced(
        step=to.name,
        input=encode(value, what=f"input of step {to.name!r}", limit=job.app.max_payload),
        delay=delay or None,
        # Its own, not its job's: those were decided when the task was enqueued.
        priority=to.settings.priority,
        key=_key(to, value),
    )


def _key(to: Step, value: Any) -> str | None:
    key = to.settings.key
    if not callable(key):
        return key
    computed = key(value)
    return None if computed is None else label(f"step {to.name!r}: key", computed)


def event_of(error: BaseException, *, cancelled: bool) -> Event:
    """Turn what the step raised into what happened."""
    if isinstance(error, DecodeError):
        return Refused("undecodable", failure(error))
    if isinstance(error, Fatal):
        return Refused("fatal", failure(error))
    if isinstance(error, asyncio.CancelledError):
        if cancelled:
            return Cancelled()
        return Failed(Failure(type="CancelledError", message="the step cancelled itself"))
    if isinstance(error, StepTimeout):
        return Failed(failure(error), timed_out=True)
    return Failed(failure(error))


def failure(error: BaseException) -> Failure:
    """Return an exception as it is kept: its type by its full name, message and traceback."""
    kind = type(error)
    module = (
        "" if kind.__module__ in ("builtins", "fleet.errors", __name__) else f"{kind.__module__}."
    )
    return Failure(
        type=f"{module}{kind.__qualname__}",
        message=_read("message", lambda: str(error))[:MAX_MESSAGE],
        # The end is where it happened.
        traceback=_read("traceback", lambda: "".join(traceback.format_exception(error)))[
            -MAX_TRACEBACK:
        ],
    )


def _read(what: str, text: Callable[[], str]) -> str:
    # An exception's own code runs here, and a failure that cannot be told would be no failure.
    try:
        return clean(text())
    except Exception as error:
        return f"its {what} could not be read: its __str__ raised {type(error).__name__}"


def clean(text: str) -> str:
    """Return text that PostgreSQL can keep: no NUL, no lone surrogates."""
    return text.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()
