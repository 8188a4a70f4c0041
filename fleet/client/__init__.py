"""Enqueue, handles, results and the facade for code that does not await."""

from fleet.client.client import Client
from fleet.client.failures import TaskFailure
from fleet.client.handle import Handle
from fleet.client.sync import SyncHandle
from fleet.store.results import TaskStatus

__all__ = ["Client", "Handle", "SyncHandle", "TaskFailure", "TaskStatus"]
