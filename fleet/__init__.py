"""Durable, multi-step jobs on PostgreSQL: the public names, and nothing else."""

from fleet import errors
from fleet.app import Fleet
from fleet.context import Context
from fleet.errors import Fatal, FleetError
from fleet.flow import To
from fleet.job import Job
from fleet.retry import Retry
from fleet.schedule import Schedule
from fleet.step import Step

__all__ = [
    "Context",
    "Fatal",
    "Fleet",
    "FleetError",
    "Job",
    "Retry",
    "Schedule",
    "Step",
    "To",
    "errors",
]
