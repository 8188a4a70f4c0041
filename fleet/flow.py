"""What a step may return to say what happens next.

A plain value goes to the next step, or is the task's result on the last one. ``To`` says
anything else; the worker matches on its four forms: ``Next``, ``Goto``, ``Done``, ``Snooze``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Never, TypeAlias, TypeVar, final, overload

from fleet.model import Seconds
from fleet.options import Duration, seconds

if TYPE_CHECKING:
    from fleet.step import Step

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

Target: TypeAlias = "Step | Callable[..., Any] | str"


class To(Generic[T_co]):
    """Where a task goes after this step, when it is not simply on with a value.

    ``To[T]`` carries a ``T``. It is covariant, and the two that never end the job here, ``step``
    and ``snooze``, fit every ``To[...]``.

    >>> To.next({"page": 2}, delay=30)
    Next(value={'page': 2}, delay=30.0)
    >>> To.step("charge", 99)
    Goto(target='charge', value=99, delay=0.0)
    >>> To.done()
    Done(value=None)
    >>> To.snooze(60)
    Snooze(delay=60.0)
    """

    __slots__ = ()

    @overload
    @staticmethod
    def next(value: None = None, *, delay: Duration = 0) -> To[None]: ...
    @overload
    @staticmethod
    def next(value: T, *, delay: Duration = 0) -> To[T]: ...
    @staticmethod
    def next(value: Any = None, *, delay: Duration = 0) -> To[Any]:
        """Go on to the next step with ``value``, ``delay`` from now; the last step finishes."""
        return Next(value, seconds("delay", delay))

    @staticmethod
    def step(other: Target, value: object = None, *, delay: Duration = 0) -> To[Never]:
        """Go to any step of this job, earlier ones too: its function, its ``Step`` or its name."""
        return Goto(other, value, seconds("delay", delay))

    @overload
    @staticmethod
    def done(value: None = None) -> To[None]: ...
    @overload
    @staticmethod
    def done(value: T) -> To[T]: ...
    @staticmethod
    def done(value: Any = None) -> To[Any]:
        """Finish the task with ``value`` as its result, whatever steps would follow."""
        return Done(value)

    @staticmethod
    def snooze(delay: Duration) -> To[Never]:
        """Run this step again with the same input ``delay`` from now; this is not a failure."""
        return Snooze(seconds("snooze", delay))


@final
@dataclass(frozen=True, slots=True)
class Next(To[T_co]):
    """On to the next step; on the last one, finished."""

    value: T_co
    delay: Seconds = 0.0


@final
@dataclass(frozen=True, slots=True)
class Goto(To[Never]):
    """To a step of this job; ``job.target(goto.target)`` finds it."""

    target: Target
    value: object = None
    delay: Seconds = 0.0


@final
@dataclass(frozen=True, slots=True)
class Done(To[T_co]):
    """Finished, with this result."""

    value: T_co


@final
@dataclass(frozen=True, slots=True)
class Snooze(To[Never]):
    """This step again, later, without a failure on the record."""

    delay: Seconds
