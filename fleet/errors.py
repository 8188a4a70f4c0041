"""Every error Fleet raises, in one tree.

FleetError
├── ConfigError                a setting that cannot work; names the key, the value, the remedy
│   └── NoDatabase             nothing says where the database is
├── DefinitionError            a job, step or schedule that cannot be registered
│   ├── AlreadyRegistered      the name is taken; names both places
│   ├── InvalidSetting         a retry, timeout, … out of bounds (also a ConfigError)
│   └── StepMismatch           a step's output does not fit the next step's input
├── EnqueueError               the call is wrong; nothing was written
│   ├── InvalidName
│   ├── InvalidOption          a delay, priority, key, … out of bounds
│   ├── NotEncodable           the value is not JSON that PostgreSQL keeps
│   ├── PayloadTooLarge
│   └── UnknownJob
├── DecodeError                stored JSON does not fit the type; names path and type only
├── DatabaseError
│   ├── DatabaseUnavailable    no connection in time
│   ├── SchemaOutdated         run ``fleet migrate``
│   ├── UniqueBlocked          somebody's open transaction holds the ``unique`` slot
│   └── MigrationError         a migration was changed, is missing, or failed
├── NotOpen                    used outside ``async with app``
├── ResultError
│   ├── TaskBuried
│   ├── TaskCancelled
│   ├── ResultGone
│   └── ResultTimeout
├── TaskNotFound
├── ReviveRefused              its ``unique`` slot is held by another task
├── LeaseLost                  a later claim owns the task; this outcome is dropped
├── EmbeddedError              the embedded PostgreSQL cannot run; says why
└── Fatal                      raised *by a step*: bury the task at once
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = [
    "AlreadyRegistered",
    "ConfigError",
    "DatabaseError",
    "DatabaseUnavailable",
    "DecodeError",
    "DefinitionError",
    "EmbeddedError",
    "EnqueueError",
    "Fatal",
    "FleetError",
    "InvalidName",
    "InvalidOption",
    "InvalidSetting",
    "LeaseLost",
    "MigrationError",
    "NoDatabase",
    "NotEncodable",
    "NotOpen",
    "PayloadTooLarge",
    "ResultError",
    "ResultGone",
    "ResultTimeout",
    "ReviveRefused",
    "SchemaOutdated",
    "StepMismatch",
    "TaskBuried",
    "TaskCancelled",
    "TaskNotFound",
    "UniqueBlocked",
    "UnknownJob",
]


class FleetError(Exception):
    """The root: catch this to catch everything Fleet raises on purpose."""


class ConfigError(FleetError):
    """A setting that cannot work; nothing was started."""

    def __init__(self, key: str, value: object, hint: str) -> None:
        self.key, self.value, self.hint = key, value, hint
        super().__init__(f"{key} = {value!r}: {hint}")


class NoDatabase(ConfigError):
    """Nothing says where the database is."""

    def __init__(self) -> None:
        FleetError.__init__(
            self,
            "no database is configured. Give one of: Fleet(database_url=...) or --database-url; "
            "FLEET_DATABASE_URL; DATABASE_URL; database_url in fleet.toml. "
            "For a throwaway server of this project: FLEET_EMBEDDED=1, or embedded = true in "
            "fleet.toml (fleet init writes it).",
        )
        self.key, self.value, self.hint = "database_url", None, str(self)


class DefinitionError(FleetError):
    """A job, step or schedule that cannot be registered."""


class AlreadyRegistered(DefinitionError):
    """The name is taken by another definition."""

    def __init__(self, kind: str, name: str, first: str, second: str) -> None:
        super().__init__(
            f"{kind} {name!r} is registered twice: first at {first}, again at {second}. "
            f"Names are durable and must be unique in an application: rename one of them."
        )


class InvalidSetting(ConfigError, DefinitionError):
    """A retry, timeout, priority, … of a job or step that cannot work."""


class StepMismatch(DefinitionError):
    """A step returns what the next step does not take."""


class EnqueueError(FleetError):
    """The call is wrong and nothing was written."""


class InvalidName(EnqueueError, DefinitionError):
    """A queue, job, step or schedule name that is not allowed."""

    def __init__(self, kind: str, name: object, rule: str) -> None:
        super().__init__(f"{kind} name {name!r} is not allowed: {rule}")


class InvalidOption(EnqueueError):
    """An option of enqueue that cannot work."""

    def __init__(self, option: str, value: object, hint: str) -> None:
        super().__init__(f"{option}={value!r}: {hint}")


class NotEncodable(EnqueueError):
    """The value has no faithful form as JSON in PostgreSQL."""


class PayloadTooLarge(EnqueueError):
    """The encoded value exceeds the limit."""

    def __init__(self, what: str, size: int, limit: int) -> None:
        super().__init__(
            f"{what} is {size:,} bytes of JSON, the limit is {limit:,}. "
            f"Store the data elsewhere and pass a reference to it."
        )


class UnknownJob(EnqueueError):
    """No job of that name is registered here."""


class DecodeError(FleetError):
    """Stored JSON does not fit the annotated type; names the path and the type, never a value."""


class DatabaseError(FleetError):
    """Something about the database itself."""


class DatabaseUnavailable(DatabaseError):
    """No connection could be had in time, or it broke under a call."""

    def __init__(self, target: str, cause: str, *, in_doubt: bool = False) -> None:
        self.in_doubt = in_doubt
        doubt = (
            " The connection broke under the call, so it may or may not have been carried out:"
            " unique= makes a repeat safe."
            if in_doubt
            else ""
        )
        super().__init__(f"PostgreSQL at {target} is not available: {cause}.{doubt}")


class SchemaOutdated(DatabaseError):
    """The schema is older than this code needs."""

    def __init__(self, found: int, needed: int) -> None:
        self.found, self.needed = found, needed
        state = f"is at version {found}" if found else "has not been created"
        super().__init__(
            f"the fleet schema in this database {state}, this release needs {needed}. "
            f"Run: fleet migrate"
        )


class UniqueBlocked(DatabaseError, TimeoutError):
    """Another transaction holds the ``unique`` slot and has not ended; nothing was written."""

    def __init__(self, job: str, unique: str, waited: float, by: Mapping[int, str]) -> None:
        self.blockers = dict(by)
        who = ", ".join(by.values()) or "PostgreSQL does not tell whose"
        end = " or ".join(f"pg_terminate_backend({pid})" for pid in by)
        super().__init__(
            f"job {job!r}, unique={unique!r}: waited {waited:g}s for a transaction that has "
            f"enqueued the same and is still open: {who}. Nothing was written. Have it commit or "
            f"roll back{f' (select {end})' if end else ''}, and try again; keep transactions that "
            f"enqueue short."
        )


class MigrationError(DatabaseError):
    """A migration was changed after it was applied, is missing, or failed."""


class NotOpen(FleetError):
    """The application is used outside ``async with app``."""

    def __init__(self) -> None:
        super().__init__(
            "this Fleet is not open. Use it inside `async with app:` (or call `await app.open()` "
            "at start-up), pass conn= to use your own connection, or use app.sync."
        )


class ResultError(FleetError):
    """A task has no result to give."""

    def __init__(self, task_id: int, message: str) -> None:
        self.task_id = task_id
        super().__init__(f"task {task_id} {message}")


class TaskBuried(ResultError):
    """The task failed for good; ``fleet task revive`` runs it again."""

    def __init__(self, task_id: int, reason: str, error: str | None) -> None:
        self.reason, self.error = reason, error
        detail = f": {error}" if error else ""
        super().__init__(task_id, f"was buried ({reason}){detail}. Look: fleet task show {task_id}")


class TaskCancelled(ResultError):
    """The task was cancelled before it ended."""

    def __init__(self, task_id: int) -> None:
        super().__init__(task_id, "was cancelled")


class ResultGone(ResultError):
    """There is no such task, or it was deleted with its result."""

    def __init__(self, task_id: int) -> None:
        super().__init__(
            task_id,
            "is not in the database: it never was committed, its job says on_success='delete', "
            "or its time in the archive is over",
        )


class ResultTimeout(ResultError, TimeoutError):
    """The task had not ended in time; it goes on."""

    def __init__(self, task_id: int, timeout: float, state: str) -> None:
        self.state = state
        super().__init__(task_id, f"had not ended after {timeout:g}s; it is {state} and goes on")


class TaskNotFound(FleetError):
    """No live, archived or buried task has this id."""

    def __init__(self, task_id: int) -> None:
        self.task_id = task_id
        super().__init__(f"there is no task {task_id}: not live, archived or buried")


class ReviveRefused(FleetError):
    """The task cannot come back as asked."""


class LeaseLost(FleetError):
    """A later claim owns this task; this one's outcome is dropped."""

    def __init__(self, task_id: int, fence: int) -> None:
        self.task_id, self.fence = task_id, fence
        super().__init__(
            f"task {task_id}: claim {fence} no longer holds, outcome dropped. This host was "
            f"silent for over its lease: look for a paused VM or a cut to PostgreSQL, or raise "
            f"supervisor.lease."
        )


class EmbeddedError(FleetError):
    """The embedded PostgreSQL cannot be used; the message says why and what to do."""


class Fatal(FleetError):
    """Raise this in a step to bury its task at once, without another attempt.

    >>> raise Fatal("the card was reported stolen")
    Traceback (most recent call last):
    fleet.errors.Fatal: the card was reported stolen
    """
