"""A Context for a unit test that calls a step's function directly."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from fleet.context import Context, Host
from fleet.model import Claim, Submission

if TYPE_CHECKING:
    from fleet.app import Fleet


class RecordedContext(Context):
    """A context that remembers what the step asked for."""

    progressed: list[tuple[float, str]]

    @property
    def enqueued(self) -> list[Submission]:
        """What the step enqueued, in order."""
        return self._children


class _Recorder(Host):
    def progress(self, context: Context, fraction: float, message: str) -> None:
        if isinstance(context, RecordedContext):
            context.progressed.append((fraction, message))


def make_context(
    *,
    app: Fleet | None = None,
    task_id: int = 1,
    job: str = "job",
    step: str = "step",
    queue: str = "default",
    attempt: int = 1,
    state: Any = None,
    tx: Any = None,
) -> RecordedContext:
    """Make a context for a step's function; nothing is written anywhere.

    >>> context = make_context(attempt=3)
    >>> context.attempt
    3
    >>> context.progress(0.5, "half")
    >>> context.progressed
    [(0.5, 'half')]
    """
    moment = datetime.now(UTC)
    claim = Claim(
        id=task_id,
        fence=1,
        queue=queue,
        job=job,
        step=step,
        visit=1,
        input="null",
        priority=0,
        failures=attempt - 1,
        crashes=0,
        losses=0,
        releases=0,
        prior=0,
        alone=False,
        key=None,
        trace=None,
        enqueued_at=moment,
        ready_at=moment,
        rank=1,
        pos=1,
    )
    jobs = app.jobs.get if app is not None else (lambda name: None)
    context = RecordedContext(claim, step, jobs=jobs, host=_Recorder(), state=state)
    context.progressed = []
    context._tx = tx
    return context
