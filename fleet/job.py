"""A job: a name, a queue and an ordered list of steps, registered with an application.

Everything is checked when it is written down: the function's shape, its annotations, and that
each step takes what the one before it returns. So a wrong job is an import error and never a
task that hangs in production.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    TypeAlias,
    TypeVar,
    Unpack,
    cast,
    get_args,
    overload,
)

import orjson

from fleet.annotations import place_of
from fleet.codec import encode
from fleet.errors import AlreadyRegistered, DefinitionError, InvalidOption
from fleet.flow import Target, To
from fleet.limits import NONE, Limits
from fleet.model import Submission
from fleet.names import check_name
from fleet.options import Duration
from fleet.policy import Key, Policy, Settings, resolve
from fleet.retry import Retry
from fleet.step import Step, check_order, make_step
from fleet.submit import EnqueueOptions, Prepared, defaults, prepare

if TYPE_CHECKING:
    from fleet.app import Fleet
    from fleet.client.handle import Handle
    from fleet.context import Context

I = TypeVar("I")  # noqa: E741 -- Job[I, O] is how the design writes it
O = TypeVar("O")  # noqa: E741
A = TypeVar("A")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])

Style: TypeAlias = Literal["asyncpg", "psycopg", "named"]


class Job(Generic[I, O]):
    """What ``app.job(...)`` returns: add steps to it, then enqueue tasks of it.

    >>> from fleet import Context, Fleet, Job
    >>> app = Fleet()
    >>> sums: Job[list[int], str] = app.job("sums", queue="maths")
    >>> @sums.step(timeout=30)
    ... def add(ctx: Context, numbers: list[int]) -> int:
    ...     return sum(numbers)
    >>> @sums.step
    ... async def show(ctx: Context, total: int) -> str:
    ...     return f"the sum is {total}"
    >>> [step.name for step in sums.steps]
    ['add', 'show']
    >>> sums.submission([1, 2]).input
    '[1,2]'
    """

    def __init__(
        self,
        app: Fleet,
        name: str,
        *,
        queue: str,
        settings: Settings,
        place: str,
        limits: Limits = NONE,
        key_limit: int = 1,
    ) -> None:
        self.app = app
        self.name = check_name("job", name)
        self.queue = check_name("queue", queue)
        self.settings = settings
        self.place = place
        self.limits = limits
        self.key_limit = key_limit
        self._steps: list[Step] = []
        self._decorated = False
        self._defaults: Prepared | None = None
        self._policies: dict[tuple[str, tuple[Settings, ...]], Policy] = {}
        self._input_of = f"input of job {name!r}"

    def __repr__(self) -> str:
        return f"<Job {self.name!r} on {self.queue!r}: {[step.name for step in self._steps]}>"

    # -- definition ------------------------------------------------------------------------------

    @overload
    def __call__(self, fn: Callable[[Context, A], Coroutine[Any, Any, To[R]]]) -> Job[A, R]: ...
    @overload
    def __call__(self, fn: Callable[[Context, A], Coroutine[Any, Any, R | To[R]]]) -> Job[A, R]: ...
    @overload
    def __call__(self, fn: Callable[[Context], Coroutine[Any, Any, To[R]]]) -> Job[None, R]: ...
    @overload
    def __call__(self, fn: Callable[[Context], Coroutine[Any, Any, R | To[R]]]) -> Job[None, R]: ...
    @overload
    def __call__(self, fn: Callable[[Context, A], To[R]]) -> Job[A, R]: ...
    @overload
    def __call__(self, fn: Callable[[Context, A], R | To[R]]) -> Job[A, R]: ...
    @overload
    def __call__(self, fn: Callable[[Context], To[R]]) -> Job[None, R]: ...
    @overload
    def __call__(self, fn: Callable[[Context], R | To[R]]) -> Job[None, R]: ...
    def __call__(self, fn: Callable[..., Any]) -> Job[Any, Any]:
        """Make ``fn`` the only step: the decorator form, ``@app.job(...)``."""
        if self._decorated and not inspect.isfunction(fn):
            raise DefinitionError(
                f"job {self.name!r} is not its function: enqueue it, or call its .fn in a test"
            )
        if self._steps:
            raise DefinitionError(
                f"job {self.name!r} already has step {self._steps[0].name!r} "
                f"({self._steps[0].place}), so {place_of(fn)} cannot be its only one: for "
                f"several steps, decorate each with .step"
            )
        self._add(fn, sys._getframe(1).f_locals, None, Settings(), transactional=False)
        self._decorated = True
        return self

    @overload
    def step(self, fn: F) -> F: ...
    @overload
    def step(
        self,
        *,
        name: str | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        priority: int | None = None,
        key: Key | None = None,
        keep: Duration | None = None,
        transactional: bool = False,
    ) -> Callable[[F], F]: ...
    def step(
        self,
        fn: Callable[..., Any] | None = None,
        *,
        name: str | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        priority: int | None = None,
        key: Key | None = None,
        keep: Duration | None = None,
        transactional: bool = False,
    ) -> Any:
        """Add a step, ``@job.step`` or ``@job.step(...)``; the function stays as it is."""
        settings = Settings(retry=retry, timeout=timeout, priority=priority, key=key, keep=keep)
        if fn is not None:
            self._add(fn, sys._getframe(1).f_locals, name, settings, transactional=transactional)
            return fn

        def decorate(fn: F) -> F:
            self._add(fn, sys._getframe(1).f_locals, name, settings, transactional=transactional)
            return fn

        return decorate

    def _add(
        self,
        fn: Callable[..., Any],
        local: Mapping[str, Any],
        name: str | None,
        settings: Settings,
        *,
        transactional: bool,
    ) -> None:
        step = make_step(fn, local=local, name=name, settings=settings, transactional=transactional)
        for other in self._steps:
            if other.name == step.name:
                raise AlreadyRegistered(
                    f"step of job {self.name!r}", step.name, other.place, step.place
                )
        if self._decorated:
            raise DefinitionError(
                f"job {self.name!r} is the decorated function {self._steps[0].name!r} "
                f"({self._steps[0].place}) and has no further steps: {step.name!r} "
                f"({step.place}) cannot be added. Use app.job(...) without decorating."
            )
        if self._steps:
            check_order(self.name, self._steps[-1], step)
        self._steps.append(step)

    # -- what it consists of ---------------------------------------------------------------------

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps in order; a job without any cannot be used."""
        if not self._steps:
            raise DefinitionError(
                f"job {self.name!r} ({self.place}) has no steps: decorate a function with it, or "
                f"add steps with its .step, in a module that is imported"
            )
        return tuple(self._steps)

    @property
    def first(self) -> Step:
        """The step a new task begins with."""
        return self.steps[0]

    @property
    def fn(self) -> Callable[..., Any]:
        """The function of a one-step job, to be called in a test."""
        if len(self.steps) != 1:
            raise DefinitionError(
                f"job {self.name!r} has {len(self._steps)} steps, so no one function is its fn: "
                f"call {', '.join(step.fn.__name__ for step in self._steps)} by name"
            )
        return self._steps[0].fn

    def step_named(self, name: str) -> Step:
        """Return a step by its name."""
        for step in self.steps:
            if step.name == name:
                return step
        raise DefinitionError(
            f"job {self.name!r} has no step {name!r}; it has "
            f"{', '.join(repr(step.name) for step in self._steps)}"
        )

    def target(self, other: Target) -> Step:
        """Return the step that ``To.step(other)`` means."""
        if isinstance(other, str):
            return self.step_named(other)
        found = [step for step in self.steps if step is other or step.fn is other]
        if len(found) == 1:
            return found[0]
        if found:
            names = ", ".join(repr(step.name) for step in found)
            raise DefinitionError(f"{other!r} is several steps of job {self.name!r}: say {names}")
        raise DefinitionError(f"{other!r} is no step of job {self.name!r}")

    def after(self, step: Target) -> Step | None:
        """Return the step that follows; None after the last."""
        position = self.steps.index(self.target(step)) + 1
        return self._steps[position] if position < len(self._steps) else None

    def policy(self, step: Target, *below: Settings) -> Policy:
        """Decide a step's settings; ``below`` are the queue's and the config's, in that order."""
        found = self.target(step)
        policy = self._policies.get((found.name, below))  # asked for at every attempt
        if policy is None:
            policy = resolve(found.settings, self.settings, *below)
            self._policies[found.name, below] = policy
        return policy

    def definition(self, *below: Settings) -> dict[str, Any]:
        """Return the job as plain JSON, for the registry in the database."""
        policy = resolve(self.settings, *below)
        return {
            "name": self.name,
            "queue": self.queue,
            "on_success": policy.on_success,
            "on_failure": policy.on_failure,
            "limits": self.limits.as_dict(),
            "key_limit": self.key_limit,
            "steps": [step.describe(self.policy(step, *below)) for step in self.steps],
        }

    def fingerprint(self, *below: Settings) -> str:
        """Return a short hash of the definition, the same in every process that has it."""
        text = orjson.dumps(self.definition(*below), option=orjson.OPT_SORT_KEYS)
        return hashlib.sha256(text).hexdigest()[:16]

    # -- enqueue ---------------------------------------------------------------------------------

    @overload
    def submission(
        self: Job[None, O], input: None = None, **options: Unpack[EnqueueOptions]
    ) -> Submission: ...
    @overload
    def submission(self, input: I, **options: Unpack[EnqueueOptions]) -> Submission: ...
    def submission(
        self,
        input: Any = None,  # noqa: A002 -- the word users know it by
        **options: Unpack[EnqueueOptions],
    ) -> Submission:
        """Check and encode one task without writing it."""
        return self._submit(self._prepare(options), input)

    def submissions(
        self, inputs: Iterable[I], **options: Unpack[EnqueueOptions]
    ) -> list[Submission]:
        """Check and encode many tasks with the same options without writing any."""
        if options.get("unique") is not None:
            raise InvalidOption(
                "unique", options["unique"], "would make all of these one task; enqueue them singly"
            )
        prepared = self._prepare(options)
        return [self._submit(prepared, value) for value in inputs]

    def _prepare(self, options: EnqueueOptions) -> Prepared:
        if self._defaults is None:  # from the first step, which stays the first
            self._defaults = defaults(self)
        return prepare(self._defaults, options)

    def _submit(self, prepared: Prepared, value: object) -> Submission:
        self._steps[0].check_input(value, self.name)
        encoded = encode(value, what=self._input_of, limit=self.app.max_payload)
        return prepared.submission(value, encoded)

    @overload
    async def enqueue(
        self: Job[None, O],
        input: None = None,
        *,
        conn: Any = None,
        **options: Unpack[EnqueueOptions],
    ) -> Handle[O]: ...
    @overload
    async def enqueue(
        self, input: I, *, conn: Any = None, **options: Unpack[EnqueueOptions]
    ) -> Handle[O]: ...
    async def enqueue(
        self,
        input: Any = None,  # noqa: A002
        *,
        conn: Any = None,
        **options: Unpack[EnqueueOptions],
    ) -> Handle[O]:
        """Write one task; with ``conn=``, in the transaction of your own connection.

        Options: ``delay`` (seconds or timedelta) or ``at`` (aware datetime); ``priority``;
        ``key`` (one after another); ``unique`` with ``unique_scope``; ``queue``.
        """
        submission = self._submit(self._prepare(options), input)
        handle = await self.app._client.enqueue(self, submission, conn)
        return cast("Handle[O]", handle)

    async def enqueue_many(
        self, inputs: Iterable[I], *, conn: Any = None, **options: Unpack[EnqueueOptions]
    ) -> list[Handle[O]]:
        """Write many tasks at once, all with the same options; handles come in their order."""
        submissions = self.submissions(inputs, **options)
        handles = await self.app._client.enqueue_many(self, submissions, conn)
        return cast("list[Handle[O]]", handles)

    @overload
    def statement(
        self: Job[None, O],
        input: None = None,
        *,
        style: Style = "asyncpg",
        **options: Unpack[EnqueueOptions],
    ) -> tuple[str, Any]: ...
    @overload
    def statement(
        self, input: I, *, style: Style = "asyncpg", **options: Unpack[EnqueueOptions]
    ) -> tuple[str, Any]: ...
    def statement(
        self,
        input: Any = None,  # noqa: A002
        *,
        style: Style = "asyncpg",
        **options: Unpack[EnqueueOptions],
    ) -> tuple[str, Any]:
        """Return ``(sql, params)`` that enqueues the task when you execute it yourself."""
        if style not in get_args(Style):
            raise InvalidOption("style", style, f"one of {', '.join(get_args(Style))}")
        from fleet.client.statement import statement

        return statement(self._submit(self._prepare(options), input), style)
