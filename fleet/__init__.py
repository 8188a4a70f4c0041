"""Durable, multi-step jobs on PostgreSQL: the public names, and nothing else."""

from typing import TYPE_CHECKING, Any, Final

from fleet import errors
from fleet.app import Fleet
from fleet.context import Context
from fleet.errors import (
    AlreadyRegistered,
    ConfigError,
    DatabaseError,
    DatabaseUnavailable,
    DecodeError,
    DefinitionError,
    EmbeddedError,
    EnqueueError,
    Fatal,
    FleetError,
    InvalidName,
    InvalidOption,
    InvalidSetting,
    LeaseLost,
    MigrationError,
    NoDatabase,
    NotEncodable,
    NotOpen,
    PayloadTooLarge,
    ResultError,
    ResultGone,
    ResultTimeout,
    ReviveRefused,
    SchemaOutdated,
    StepMismatch,
    TaskBuried,
    TaskCancelled,
    TaskNotFound,
    UniqueBlocked,
    UnknownJob,
)
from fleet.flow import To
from fleet.job import Job
from fleet.retry import Retry
from fleet.schedule import Schedule
from fleet.step import Step

if TYPE_CHECKING:
    from fleet.client import Handle, SyncHandle, TaskFailure, TaskStatus

__all__ = [
    "AlreadyRegistered",
    "ConfigError",
    "Context",
    "DatabaseError",
    "DatabaseUnavailable",
    "DecodeError",
    "DefinitionError",
    "EmbeddedError",
    "EnqueueError",
    "Fatal",
    "Fleet",
    "FleetError",
    "Handle",
    "InvalidName",
    "InvalidOption",
    "InvalidSetting",
    "Job",
    "LeaseLost",
    "MigrationError",
    "NoDatabase",
    "NotEncodable",
    "NotOpen",
    "PayloadTooLarge",
    "ResultError",
    "ResultGone",
    "ResultTimeout",
    "Retry",
    "ReviveRefused",
    "Schedule",
    "SchemaOutdated",
    "Step",
    "StepMismatch",
    "SyncHandle",
    "TaskBuried",
    "TaskCancelled",
    "TaskFailure",
    "TaskNotFound",
    "TaskStatus",
    "To",
    "UniqueBlocked",
    "UnknownJob",
    "errors",
]

# These bring the client and its driver along, which defining jobs does not need.
_OF_THE_CLIENT: Final = frozenset({"Handle", "SyncHandle", "TaskFailure", "TaskStatus"})


def __getattr__(name: str) -> Any:
    if name in _OF_THE_CLIENT:
        from fleet import client

        return getattr(client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
